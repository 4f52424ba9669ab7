"""What is wrong with a runbook: where, why and what to write instead."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from validator.errors import UserError


class Mark(NamedTuple):
    """A place in a file, counted from 1. An override has no lines: its `file` is `--set KEY=VALUE`."""

    file: str
    line: int | None = None
    column: int | None = None


class Problem(NamedTuple):
    """One mistake. `str()` gives `file:line:column: message` and, on a line of its own, the fix."""

    file: str
    line: int | None
    column: int | None
    message: str
    fix: str = ""

    @classmethod
    def at(cls, mark: Mark, message: str, fix: str = "") -> Problem:
        """A problem at a mark."""
        return cls(mark.file, mark.line, mark.column, message, fix)

    @property
    def place(self) -> str:
        """`file:line:column`, as far as known."""
        return ":".join(str(part) for part in (self.file, self.line, self.column) if part is not None)

    def __str__(self) -> str:
        text = f"{self.place}: {self.message}"
        return f"{text}\n  fix: {self.fix}" if self.fix else text


class RunbookError(UserError):
    """A runbook cannot be used. `problems` holds every mistake that was found, in the order of the file."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(sorted(set(problems), key=_order))
        super().__init__("\n".join(str(problem) for problem in self.problems))

    def details(self) -> dict[str, Any]:
        """The problems, one by one."""
        return {"problems": [problem._asdict() for problem in self.problems]}


def _order(problem: Problem) -> tuple[bool, str, int, int, str]:
    """Mistakes of the file first, from top to bottom, then those of overrides."""
    return (problem.line is None, problem.file, problem.line or 0, problem.column or 0, problem.message)
