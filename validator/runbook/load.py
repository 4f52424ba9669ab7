"""Read a runbook, or say everything that is wrong with it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from validator.model.runbook import Runbook
from validator.runbook.build import build
from validator.runbook.document import parse
from validator.runbook.overrides import apply
from validator.runbook.problems import Mark, Problem, RunbookError
from validator.runbook.semantics import check_meaning, warnings_of

__all__ = ["LoadedRunbook", "load", "loads"]

_MAX_BYTES = 4 * 2**20


@dataclass(frozen=True)
class LoadedRunbook:
    """A sound runbook with its source: `sha256` is that of the file's bytes, `overrides` are the `--set` texts.

    `warnings` say why its decision could never be GO; it can be run all the same.
    """

    runbook: Runbook
    path: Path
    sha256: str
    text: str
    overrides: tuple[str, ...] = ()
    warnings: tuple[Problem, ...] = ()


def load(path: str | os.PathLike[str], *, overrides: Sequence[str] = ()) -> LoadedRunbook:
    """Read and check the runbook at `path`, with overrides (`KEY=VALUE`) applied to it.

    Raises:
        RunbookError: with every problem of the file and of the overrides, schema and meaning alike.
    """
    file = Path(path)
    data = _read(file)
    text = _decode(data, str(file))
    runbook, warnings = _checked(text, file=str(file), overrides=overrides)
    return LoadedRunbook(
        runbook=runbook,
        path=file,
        sha256=hashlib.sha256(data).hexdigest(),
        text=text,
        overrides=tuple(overrides),
        warnings=warnings,
    )


def loads(text: str, *, file: str = "runbook.yaml", overrides: Sequence[str] = ()) -> Runbook:
    """The runbook in a text; `file` is what problems call it.

    Raises:
        RunbookError: as `load`.
    """
    return _checked(text, file=file, overrides=overrides)[0]


def _checked(text: str, *, file: str, overrides: Sequence[str]) -> tuple[Runbook, tuple[Problem, ...]]:
    """The runbook and its warnings."""
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
    built = build(root)
    problems += built.problems
    if built.runbook is not None:
        problems += check_meaning(built, built.runbook)
    if problems or built.runbook is None:
        raise RunbookError(problems)
    return built.runbook, tuple(warnings_of(built, built.runbook))


def _read(file: Path) -> bytes:
    try:
        with file.open("rb") as source:
            data = source.read(_MAX_BYTES + 1)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        fix = "check the path and its permissions"
        raise RunbookError([Problem.at(Mark(str(file)), f"the file cannot be read: {reason}", fix)]) from error
    if len(data) > _MAX_BYTES:
        fix = "name the runbook, which is a text of some kilobytes"
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
