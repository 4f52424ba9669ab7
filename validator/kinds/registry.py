"""The kinds of phases by name. This is the only module of `validator.kinds` that is imported from above.

A file of this package defines the kind of its name as a class with a `schema`. It is imported when something asks for
the kind: a runbook names a few.

Kinds from outside are found in the folders that the variable VALIDATOR_PLUGINS names: each Python file there defines
`KINDS`, a tuple of kinds like those of this package.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from validator.kinds.base import Found as Found
from validator.kinds.base import ImplicitCriterion as ImplicitCriterion
from validator.kinds.base import JudgedRun as JudgedRun
from validator.kinds.base import Kind, Site, Words
from validator.kinds.base import PlannedArm as PlannedArm
from validator.kinds.base import Rule as Rule
from validator.kinds.base import Seen as Seen
from validator.model.expression import open_reference
from validator.model.phases import ProcessPhase
from validator.model.runbook import Phase, Runbook, Setting
from validator.model.schemas import SCHEMAS, UnknownKind, declare
from validator.model.training_phases import TrainingPhase
from validator.runbook import load as runbooks
from validator.runbook import reference
from validator.runbook.asking import idle
from validator.runbook.build import Built
from validator.runbook.direction import wrong_ways
from validator.runbook.load import LoadedRunbook
from validator.runbook.problems import Mark, Problem, RunbookError

_kinds: dict[str, Kind[Any]] = {}
"""Those that are imported, and those from outside."""


def kind_of(name: str) -> Kind[Any]:
    """The kind of that name.

    Raises:
        UnknownKind: when there is none; the message names those that there are.
    """
    if name not in _kinds:
        if name not in SCHEMAS:
            raise UnknownKind(name)
        _kinds[name] = _imported(name)
    return _kinds[name]


def every_kind() -> Iterator[Kind[Any]]:
    """All kinds, in the order of their models in `validator.model.schemas`; imports each."""
    return map(kind_of, SCHEMAS)


def _imported(name: str) -> Kind[Any]:
    module = importlib.import_module(f"validator.kinds.{name}")
    (kind,) = (
        one
        for one in vars(module).values()
        if isinstance(one, type)
        and issubclass(one, Kind)
        and one.__module__ == module.__name__
        and "schema" in vars(one)
    )
    assert kind.schema is SCHEMAS[name], f"{kind.__name__} has another model than the kind {name}"
    return kind()


# Kinds from outside.

PLUGINS = "VALIDATOR_PLUGINS"
"""The variable that names folders with kinds of one's own, separated as in PATH."""


_plugin_problems: list[Problem] = []
"""Why kinds from outside cannot be used; an error wherever every kind is needed."""


def add(kind: Kind[Any]) -> None:
    """Make a kind known: to runbooks by its schema, to everything else by itself.

    Raises:
        ValueError: when there is a kind of that name, or a scalar of it has another meaning already.
    """
    declare(kind.schema)
    _kinds[kind.name] = kind


def _load_plugins(folders: str) -> Iterator[Problem]:
    for folder in (Path(one) for one in folders.split(os.pathsep) if one):
        if not folder.is_dir():
            fix = f"name folders with Python files in {PLUGINS}, or unset it"
            yield Problem.at(Mark(str(folder)), "this is no folder", fix)
        for file in sorted(folder.glob("*.py")):
            where = Mark(str(file))
            try:
                for kind in _kinds_in(file):
                    wrong = _mistake(kind)
                    if wrong is None:
                        add(kind)
                    else:
                        yield Problem.at(where, f"the kinds in this file cannot be used: {wrong[0]}", wrong[1])
            except Exception as error:  # noqa: BLE001 - whatever is wrong with it, its author needs to know where
                message = f"the kinds in this file cannot be used: {type(error).__name__}: {error}"
                yield Problem.at(where, message, "mend it by the example of docs/plugins.md")


def _mistake(kind: object) -> Words | None:
    """What is missing of something in KINDS, and what to write; None where it can be declared."""
    name = kind.__name__ if isinstance(kind, type) else type(kind).__name__
    if not isinstance(kind, Kind):
        return (
            f"{name} in KINDS is no instance of a kind",
            f"write KINDS = ({name}(),), of a class based on ProcessKind",
        )
    schema = getattr(kind, "schema", None)
    own = f"`schema = MyPhase` in class {name}, where MyPhase is a model of its own with kind: Literal['my-kind']"
    if schema is None:
        return f"{name} has no schema, the model of its keys", f"write {own}"
    if schema in SCHEMAS.values():
        return f"{name} has the schema {schema.__name__}, which is that of the kind {kind.name}", f"write {own}"
    return None


def _kinds_in(file: Path) -> tuple[Kind[Any], ...]:
    name = f"validator_plugin_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None, file
    assert spec.loader is not None, file
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # pydantic looks up the annotations of a model in its module
    spec.loader.exec_module(module)
    if not hasattr(module, "KINDS"):
        raise ValueError("there is no KINDS; write KINDS = (Name(),), the kinds of this file")
    return tuple(module.KINDS)


def _require_plugins() -> None:
    if _plugin_problems:
        raise RunbookError(_plugin_problems)


# Runbooks, checked with what the kinds know.


def load(path: str | os.PathLike[str], *, overrides: Sequence[str] = ()) -> LoadedRunbook:
    """Read and check the runbook at `path`, with overrides (`KEY=VALUE`) applied to it.

    Raises:
        RunbookError: with every problem of the file and of the overrides, schema and meaning alike.
    """
    _require_plugins()
    return runbooks.load(path, overrides=overrides, check=_check, warn=_warnings, gpus=_visible_gpus)


def loads(text: str, *, file: str = "runbook.yaml", overrides: Sequence[str] = ()) -> Runbook:
    """The runbook in a text; `file` is what problems call it.

    Raises:
        RunbookError: as `load`.
    """
    _require_plugins()
    return runbooks.loads(text, file=file, overrides=overrides, check=_check, gpus=_visible_gpus)


def json_schema() -> dict[str, Any]:
    """JSON Schema of runbooks, with the kinds from outside.

    Raises:
        RunbookError: when one of these cannot be used.
    """
    _require_plugins()
    return reference.json_schema()


def reference_markdown() -> str:
    """`docs/runbook-reference.md`, with the kinds from outside.

    Raises:
        RunbookError: when one of these cannot be used.
    """
    _require_plugins()
    asked = [(kind.name, *kind.asks_unwritten) for kind in every_kind() if kind.asks_unwritten is not None]
    return reference.reference_markdown(asked)


def _visible_gpus() -> int:
    from validator.system.nvml import count_gpus

    return count_gpus()


def _check(built: Built, runbook: Runbook) -> Iterator[Problem]:
    for index, phase in enumerate(runbook.phases):
        yield from kind_of(phase.kind).check(phase, Site(built, runbook, index))


def _warnings(built: Built, runbook: Runbook) -> Iterator[Problem]:
    """Phases that ask for nothing, bounds on the wrong side, and a runbook that cannot end in GO because none asks."""
    for index, phase in enumerate(runbook.phases):
        why = unasked(phase, runbook) if phase.required else None
        if why is not None:
            yield built.problem(
                ("phases", index, "id"),
                f"phase {phase.id} asks for nothing that could fail on what it measures ({why}), so the decision "
                "cannot be GO",
                "give it a required criterion such as toks_per_s.mean >= 1000, or declare observe: true",
            )
        for number, criterion in enumerate(phase.accept):
            if phase.required and criterion.required and open_reference(criterion.expr) is not None:
                yield built.problem(
                    ("phases", index, "accept", number),
                    f"the bound of `{criterion.expr}` is open, so the decision cannot be GO",
                    "write a number, or run it once and fill it in from that run: validator baseline RUN --edit FILE "
                    "--allow-not-go",
                )
        for number, one in wrong_ways(phase, runbook).items():
            yield built.problem(("phases", index, "accept", number), f"`{one.text}` {one.accepts}", one.fix)
    if not any(phase.required and asks(phase, runbook) for phase in runbook.phases):
        yield built.problem(
            ("phases",),
            "no required phase asks for anything that could fail on what it measures, so the decision cannot be GO",
            "give a phase a required criterion under accept, such as loss.last < loss.first",
            key=True,
        )


# What others ask of a phase's kind.


def asks(phase: Phase, runbook: Runbook) -> bool:
    """Whether a PASS of the phase can carry a GO."""
    written = any(idle(criterion, phase, runbook) is None for criterion in phase.accept)
    return written or kind_of(phase.kind).asks(phase, runbook)


def unasked(phase: Phase, runbook: Runbook) -> str | None:
    """Why a phase that should ask for something forbids GO, as a clause; None where it does ask, or need not."""
    if phase.observe or not kind_of(phase.kind).must_ask or asks(phase, runbook):
        return None
    if not phase.accept:
        return "it has no criterion"
    return "; ".join(f"`{one.expr}` {idle(one, phase, runbook)}" for one in phase.accept)


def arms_of(phase: TrainingPhase) -> tuple[PlannedArm, ...]:
    """The arms of a phase, in the order in which the first repeat runs them."""
    return kind_of(phase.kind).arms(phase)


def env_of(
    runbook: Runbook,
    phase: ProcessPhase,
    *,
    adopted: Mapping[str, Setting] | None = None,
    arm: Mapping[str, Setting] | None = None,
) -> dict[str, Setting]:
    """Environment added to a run: defaults, adopted (`env.NAME`), the kind, the phase, the arm; later ones win."""
    won = adopted if isinstance(phase, TrainingPhase) and adopted else {}
    return {
        **runbook.defaults.env,
        **{key[4:]: value for key, value in won.items() if key.startswith("env.")},
        **kind_of(phase.kind).env(phase),
        **phase.env,
        **(arm or {}),
    }


_plugin_problems.extend(_load_plugins(os.environ.get(PLUGINS, "")))
