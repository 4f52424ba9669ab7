"""Who is told while a validation runs: a live table, plain lines, or nobody.

The workflow calls an `Observer` and knows nothing of terminals. Progress goes to stderr; the
summary at the end is the result, so it goes to stdout.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, TextIO

if TYPE_CHECKING:
    from validator.execute.progress import Progress
    from validator.model.plan import PhasePlan, Plan
    from validator.model.runbook import Phase
    from validator.model.verdict import PhaseReport, ValidationReport
    from validator.report.write import ReportPaths

__all__ = ["Observer", "SilentObserver", "make_observer", "wants_color"]


class Observer(Protocol):
    """What the workflow tells. Use it in a `with` block, so that the terminal is left in order whatever happens.

    The order is: `started` once; then per phase `phase_started`, any number of `run_progress` and `phase_finished`;
    `note` at any time; `finished` once. A phase that is skipped, not run, or was over before gets `phase_finished`
    alone.
    """

    def __enter__(self) -> Observer: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def started(self, plan: Plan, run_dir: Path) -> None:
        """The plan is fixed, the run folder exists, and the first phase is about to run."""

    def phase_started(self, phase: Phase, planned: PhasePlan, *, spent_s: float = 0.0) -> None:
        """A phase is about to run; `spent_s` is what an earlier runner of the same validation spent on it."""

    def run_progress(self, progress: Progress) -> None:
        """How far the present run is; called as often as the supervisor likes."""

    def phase_finished(self, phase: PhaseReport) -> None:
        """A phase has been judged."""

    def note(self, text: str) -> None:
        """A sentence that the user should see now: a setting adopted, an attempt repeated."""

    def finished(self, report: ValidationReport, paths: ReportPaths) -> None:
        """All is judged and written."""


class SilentObserver:
    """Tells nobody."""

    def __enter__(self) -> SilentObserver:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def started(self, plan: Plan, run_dir: Path) -> None:
        """Nothing."""

    def phase_started(self, phase: Phase, planned: PhasePlan, *, spent_s: float = 0.0) -> None:
        """Nothing."""

    def run_progress(self, progress: Progress) -> None:
        """Nothing."""

    def phase_finished(self, phase: PhaseReport) -> None:
        """Nothing."""

    def note(self, text: str) -> None:
        """Nothing."""

    def finished(self, report: ValidationReport, paths: ReportPaths) -> None:
        """Nothing."""


def wants_color(stream: TextIO) -> bool:
    """Whether to color what is written there: a terminal, no `NO_COLOR`, and not a dumb one."""
    if os.environ.get("NO_COLOR"):
        return False
    return stream.isatty() and os.environ.get("TERM", "") != "dumb"


def make_observer(*, quiet: bool = False, stream: TextIO | None = None) -> Observer:
    """The observer that suits a stream (stderr by default).

    Live on a terminal that can draw the table (Unicode, cursor movement), plain lines elsewhere.
    """
    out = stream or sys.stderr
    if quiet:
        return SilentObserver()
    unicode = (getattr(out, "encoding", None) or "").lower().replace("-", "") == "utf8"
    if out.isatty() and unicode and os.environ.get("TERM", "") != "dumb":
        from validator.report.terminal.live import LiveObserver

        return LiveObserver(stream=out, color=wants_color(out))
    from validator.report.terminal.plain import PlainObserver

    return PlainObserver(stream=out)
