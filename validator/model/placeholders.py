"""Placeholders in what a runbook passes on: `{out}`, `{steps}` and the like, filled in when a run is planned.

Only a lone lower-case word in braces is a placeholder. `${VAR}` belongs to the shell and stays, `{{` and `}}` are
literal braces, and any other brace (JSON, awk programs with spaces) is left alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

__all__ = ["PLACEHOLDERS", "fill", "has_placeholder", "sole_placeholder", "unknown_placeholders"]

PLACEHOLDERS: dict[str, str] = {
    "steps": "optimizer steps of the run",
    "out": "folder of the run, absolute; the trainer writes there",
    "nproc": "number of processes",
    "run_dir": "folder of the whole validation, absolute",
    "python": "the interpreter that starts the trainer",
    "stdlib": "folder of Python's own library sources: real text that is present on every machine",
    "phase": "id of the phase",
    "arm": "name of the arm, empty where the phase has none",
    "repeat": "number of the repeat, counted from 1",
    "port": "a free TCP port, chosen anew at each attempt",
}
"""Every placeholder and what it stands for. `port` is filled in by the supervisor, the others by the plan."""

_PATTERN = re.compile(r"\{\{|\}\}|\$\{[^}]*\}?|\{(?P<name>[a-z_][a-z0-9_]*)\}")


def unknown_placeholders(text: str) -> Iterator[tuple[str, int]]:
    """Each placeholder of `text` that does not exist, with its 0-based column."""
    for match in _PATTERN.finditer(text):
        if match["name"] is not None and match["name"] not in PLACEHOLDERS:
            yield match["name"], match.start()


def has_placeholder(text: str) -> bool:
    """Whether `text` says something else in every run, so that it is nothing to go on with elsewhere."""
    return any(match["name"] is not None for match in _PATTERN.finditer(text))


def sole_placeholder(text: str) -> str | None:
    """The placeholder's name when the whole text is one placeholder, else None."""
    match = _PATTERN.fullmatch(text)
    return match["name"] if match else None


def fill(text: str, values: Mapping[str, object]) -> str:
    """`text` with its placeholders replaced by `values`; `{port}` is left for the supervisor unless it is given.

    Raises:
        KeyError: for a placeholder that `values` lacks; `check` reports unknown ones before it comes to that.
    """

    def replace(match: re.Match[str]) -> str:
        whole, name = match[0], match["name"]
        if whole in ("{{", "}}"):
            return whole[0]
        if name is None:
            return whole
        if name == "port" and "port" not in values:
            return whole
        return str(values[name])

    return _PATTERN.sub(replace, text)
