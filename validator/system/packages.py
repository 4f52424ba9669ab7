"""Whether the Python of a run has what the run is known to need: torch, pytest, the bundled trainer.

A run that ends with `No module named torch` would be a NO-GO for a sound machine. Nothing is imported to find out:
a package of the user's own would run.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from validator.documents import parse_json
from validator.startup import shipped

if TYPE_CHECKING:
    from validator.model.plan import RunSpec

_TIMEOUT_S = 20.0

_BUNDLED = re.compile(r"nsa(?:\.\w+)+")
_PYTHON = re.compile(r"python[\d.]*")
_OURS = "nsa.parity.oracle"
"""A module by which the bundled trainer is known from another package `nsa`."""

_FIND = """
import importlib.util, json, os, sys
def found(name):
    top, *rest = name.split(".")
    spec = importlib.util.find_spec(top)
    if spec is None:
        return None
    folders = list(spec.submodule_search_locations or ())
    places = [os.path.join(folder, *rest) for folder in folders]
    if not rest or any(os.path.isfile(place + end) for place in places for end in (".py", "/__init__.py")):
        return True
    return str(spec.origin or folders[0])
print(json.dumps({name: found(name) for name in sys.argv[1:]}))
"""
"""Asks an interpreter for modules, as `-m` finds them: null, true, or the file of another package of the name."""


_SOURCE = """
import importlib.util, os, sys
top, *rest = sys.argv[1].split(".")
print(os.path.join(list(importlib.util.find_spec(top).submodule_search_locations)[0], *rest) + ".py")
"""
"""Asks an interpreter for the file of a module, without importing anything of it."""


def source_lacks(text: str, *, module: str, python: str, cwd: str | None, path: str | None) -> bool:
    """Whether that Python has a module whose source does not hold a text, such as an option of a launcher; False where
    there is no answer.

    Args:
        cwd: where it is started.
        path: its `PYTHONPATH`, where it is given one.
    """
    found = _printed_by(_Place(python, cwd, path), _SOURCE, module)
    try:
        return bool(found) and text not in Path(found.strip()).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False


class _Place(NamedTuple):
    """Where a run looks for modules: its interpreter, its working folder and the path that it is given."""

    python: str
    cwd: str | None
    path: str | None


def lacking(runs: Iterable[RunSpec], *, runbook: str) -> str | None:
    """What the Python of a run lacks, as a sentence with the line to type; None when nothing is missing.

    A run that no Python starts, such as a container, and an interpreter that gives no answer lack nothing known.
    """
    needs: dict[_Place, dict[str, RunSpec]] = {}
    for run in runs:
        place = _Place(run.argv[0], run.cwd, run.env.get("PYTHONPATH"))
        for module in _modules(run):
            needs.setdefault(place, {}).setdefault(module, run)
    for place, users in needs.items():
        missing = _missing(place, users)
        if any(_BUNDLED.fullmatch(module) for module in users) and missing:
            return f"runbook {runbook} uses the bundled trainer: {_bundled(place.python, missing)}"
        for module in missing:
            return _unmet(module, users[module], place.python, runbook=runbook)
    return None


def _unmet(module: str, run: RunSpec, python: str, *, runbook: str) -> str:
    without = "set probe: false in it, " if _probes(run) else ""
    return (
        f"phase {run.phase} of runbook {runbook} needs {module}, which {python} does not have; {without}name the "
        f"trainer's own Python as trainer.python, or install it: {python} -m pip install {module}"
    )


def no_bundled_trainer(python: str = sys.executable) -> str | None:
    """Why the bundled trainer cannot be started by `python`, with the line to type; None when it can."""
    missing = _missing(_Place(python, None, None), ("nsa.train", "nsa.parity"))
    return _bundled(python, missing) if missing else None


def _modules(run: RunSpec) -> Iterator[str]:
    """The modules that a run is known to need, if a Python starts it."""
    if _PYTHON.fullmatch(Path(run.argv[0]).name) is None:
        return
    if "torch.distributed.run" in run.argv or _probes(run):
        yield "torch"
    started = [word for option, word in pairwise(run.argv) if option == "-m"]
    tested = run.argv[run.argv.index("--pyargs") + 1 :] if "--pyargs" in run.argv else ()
    yield from (word for word in started if word == "pytest")
    yield from (name for word in (*started, *tested) if _BUNDLED.fullmatch(name := word.partition("::")[0]))


def _probes(run: RunSpec) -> bool:
    """Whether it is a program of our own, which comes along and needs torch alone."""
    return any("run_module('nsa." in word for word in run.argv)


def _missing(place: _Place, modules: Iterable[str]) -> dict[str, str | None]:
    """The modules that are not there, with the file of the other package of that name where there is one.

    Torch is among them where the package `nsa` is the bundled one: nobody knows what another needs.
    """
    wanted = list(modules)
    found = _ask(place, [*wanted, "torch", _OURS])
    if any(_BUNDLED.fullmatch(module) for module in wanted) and found.get(_OURS) in (True, None):
        wanted.append("torch")
    return {module: where for module in wanted if (where := found.get(module, True)) is not True}


def _ask(place: _Place, modules: Iterable[str]) -> Mapping[str, Any]:
    """For each module whether it is there: true, the file of another package of the name, or None. Empty: no answer."""
    with suppress(ValueError):
        answer = parse_json(_printed_by(place, _FIND, *modules))
        return answer if isinstance(answer, dict) else {}
    return {}


def _printed_by(place: _Place, code: str, *words: str) -> str:
    """What a program of that interpreter prints; nothing where it fails, or takes long."""
    env = {**os.environ, **({} if place.path is None else {"PYTHONPATH": place.path})}
    with suppress(OSError, subprocess.TimeoutExpired, ValueError):
        done = subprocess.run(
            [place.python, "-c", code, *words],
            cwd=place.cwd,
            env=env,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
        return done.stdout if done.returncode == 0 else ""
    return ""


def _bundled(python: str, missing: Mapping[str, str | None]) -> str:
    other = next((f"{where} has no {module}" for module, where in missing.items() if where), None)
    if other is not None:
        return (
            f"{python} finds another package of the name nsa ({other}); start validator in another folder if it was "
            "found there, else use an environment that does not have it"
        )
    names = dict.fromkeys(f"no {module.partition('.')[0]}" for module in missing)
    return f"{python} has {' and '.join(names)}; install it with: {_install(python)}"


def _install(python: str) -> str:
    """The line that installs the bundled trainer: from the clone that validator runs from, if it does."""
    folder = shipped("nsa")
    if (folder / "pyproject.toml").is_file():
        return f"{python} -m pip install {folder}"
    ours = Path(python).absolute() == Path(sys.executable).absolute()
    return f'{python} -m pip install "{"training-validator[trainer]" if ours else "training-validator-nsa"}"'
