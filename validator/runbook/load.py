"""Read a runbook, or report everything that is wrong with it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from validator.model.runbook import Runbook, TrainingPhase
from validator.runbook.build import Built, build
from validator.runbook.criteria import check_unknown_units
from validator.runbook.document import node_at, parse
from validator.runbook.meaning import check_groups, check_meaning
from validator.runbook.mistakes import check_mistakes
from validator.runbook.overrides import apply
from validator.runbook.places import absent, absent_files, placed
from validator.runbook.problems import Mark, Problem, RunbookError
from validator.runbook.starting import check_ends

_MAX_BYTES = 4 * 2**20


class LoadedRunbook(NamedTuple):
    """A valid runbook with its source: `sha256` is that of the file's bytes, `overrides` are the `--set` texts.

    `warnings` say why its decision can never be GO, or what is probably not meant; it can be run nevertheless. `absent`
    is what this machine lacks to start the trainer: a warning where it is only checked. `written_steps` are those in
    the file of each phase whose steps an override changed.
    """

    runbook: Runbook
    path: Path
    sha256: str
    text: str
    overrides: tuple[str, ...] = ()
    warnings: tuple[Problem, ...] = ()
    absent: tuple[Problem, ...] = ()
    written_steps: dict[str, int] = {}  # noqa: RUF012 - nothing changes it


Check = Callable[[Built, Runbook], Iterable[Problem]]
"""Problems of a runbook that was built."""


def load(
    path: str | os.PathLike[str], *, overrides: Sequence[str] = (), check: Check, warn: Check, gpus: Callable[[], int]
) -> LoadedRunbook:
    """Read and check the runbook at `path`, with overrides (`KEY=VALUE`) applied to it.

    Args:
        check: problems that only the kinds of the phases find; `validator.kinds.registry` has a `load` that knows them.
        warn: what keeps the decision from being GO, by the same.
        gpus: how many GPUs the machine has, for `hardware.gpus: all`.

    Raises:
        RunbookError: with every problem of the file and of the overrides, schema and meaning alike.
    """
    file = Path(path)
    data = _read_bytes(file)
    text = _decode(data, str(file))
    built, runbook = _checked(text, file=str(file), overrides=overrides, check=check, gpus=gpus)
    runbook = placed(built, runbook, file=file, overrides=overrides)
    missing = (*absent(runbook), *absent_files(runbook))
    return LoadedRunbook(
        runbook=runbook,
        path=file,
        sha256=hashlib.sha256(data).hexdigest(),
        text=text,
        overrides=tuple(overrides),
        warnings=(
            *warn(built, runbook),
            *check_groups(built, runbook),
            *check_unknown_units(built, runbook),
            *check_ends(built, runbook),
            *check_mistakes(built, runbook),
        ),
        absent=tuple(built.problem(("trainer", key), message, fix) for key, message, fix in missing),
        written_steps=_written_steps(text, runbook) if overrides else {},
    )


def loads(
    text: str, *, file: str = "runbook.yaml", overrides: Sequence[str] = (), check: Check, gpus: Callable[[], int]
) -> Runbook:
    """The runbook in a text; `file` is what problems call it.

    Raises:
        RunbookError: as `load`.
    """
    return _checked(text, file=file, overrides=overrides, check=check, gpus=gpus)[1]


def _checked(
    text: str, *, file: str, overrides: Sequence[str], check: Check, gpus: Callable[[], int]
) -> tuple[Built, Runbook]:
    """The runbook, and what it was built from."""
    root, problems = parse(text, file=file)
    if root is None and not problems:
        raise RunbookError([Problem(file, 1, 1, "the file is empty", "begin with schema: 1 and name: my-runbook")])
    if root is None:
        raise RunbookError(problems)
    if not isinstance(root.value, dict):
        fix = "begin with schema: 1 and name: my-runbook"
        raise RunbookError([*problems, Problem.at(root.mark, "a runbook is a mapping of keys to values", fix)])
    root, refused = apply(root, overrides)
    problems += refused
    every = node_at(root, ("hardware", "gpus"))
    if every is not None and every.value == "all":
        every.value = gpus()
    built = build(root)
    problems += built.problems
    if built.runbook is not None:
        problems += check_meaning(built, built.runbook)
        problems += check(built, built.runbook)
    if problems or built.runbook is None:
        raise RunbookError(problems)
    return built, built.runbook


def _written_steps(text: str, runbook: Runbook) -> dict[str, int]:
    """Steps in the text of each phase whose steps are others in the runbook, by the phase's id."""
    root, _ = parse(text, file="")
    steps: dict[str, int] = {}
    for index, phase in enumerate(runbook.phases if root is not None else ()):
        node = None if root is None else node_at(root, ("phases", index, "steps"))
        written = None if node is None else node.value
        if isinstance(phase, TrainingPhase) and isinstance(written, int) and written != phase.steps:
            steps[phase.id] = written
    return steps


def _read_bytes(file: Path) -> bytes:
    try:
        with file.open("rb") as source:
            data = source.read(_MAX_BYTES + 1)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        fix = "check the path and its permissions"
        raise RunbookError([Problem.at(Mark(str(file)), f"the file cannot be read: {reason}", fix)]) from error
    if len(data) > _MAX_BYTES:
        fix = "name a runbook, which is a text of some kilobytes"
        raise RunbookError([Problem.at(Mark(str(file)), f"the file has more than {_MAX_BYTES} bytes", fix)])
    return data


def _decode(data: bytes, file: str) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        column = error.start - (data.rfind(b"\n", 0, error.start) + 1) + 1
        message = f"byte 0x{data[error.start]:02x} is not UTF-8"
        raise RunbookError([Problem(file, line, column, message, "save the file as UTF-8")]) from error
