"""What is seen in a terminal: progress while a validation runs, the summary, and the tables of other commands.

The parts are imported when they are called, so that a command pays only for what it shows.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from validator.report.terminal.observer import Observer, SilentObserver, make_observer, wants_color

if TYPE_CHECKING:
    from collections.abc import Sequence

    from validator.model.contrast import Contrast
    from validator.model.plan import Plan
    from validator.model.verdict import Finding, RunReport, ValidationReport
    from validator.report.terminal.doctor import Examined
    from validator.report.write import ReportPaths
    from validator.runbook import LoadedRunbook, RunbookInfo

__all__ = [
    "Inspected",
    "Observer",
    "SilentObserver",
    "make_observer",
    "print_contrast",
    "print_examination",
    "print_inspection",
    "print_plan",
    "print_runbooks",
    "print_summary",
    "wants_color",
]


class Inspected(Protocol):
    """What `print_inspection` shows: a folder, its measurements, and what looks wrong in it."""

    @property
    def directory(self) -> Path:
        """The folder."""

    @property
    def run(self) -> RunReport:
        """Its measurements."""

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What looks wrong."""

    @property
    def printed(self) -> Mapping[str, str] | None:
        """The print format that a log was read by, where nobody gave a pattern."""


def print_summary(report: ValidationReport, paths: ReportPaths) -> None:
    """Print the decision and what to do next."""
    from validator.report.terminal.summary import print_summary as show

    show(report, paths)


def print_plan(loaded: LoadedRunbook, plan: Plan) -> None:
    """Print every run of a plan with its command, settings and budget."""
    from validator.report.terminal.tables import print_plan as show

    show(loaded, plan)


def print_runbooks(runbooks: Sequence[RunbookInfo]) -> None:
    """Print the runbooks that can be run by name."""
    from validator.report.terminal.tables import print_runbooks as show

    show(runbooks)


def print_inspection(inspected: Inspected) -> None:
    """Print the measurements of one trainer folder and what looks wrong in it."""
    from validator.report.terminal.tables import print_inspection as show

    show(inspected)


def print_contrast(contrast: Contrast) -> None:
    """Print two runs set against each other."""
    from validator.report.terminal.contrast import print_contrast as show

    show(contrast)


def print_examination(examined: Examined) -> None:
    """Print what a machine can validate."""
    from validator.report.terminal.doctor import print_examination as show

    show(examined)
