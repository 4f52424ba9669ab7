"""What shows the progress of a validation: a live table, plain lines for logs and pipes, or nothing.

The pipeline calls an `Observer` and knows nothing of terminals. Progress goes to stderr; the summary at the end is the
result, so it goes to stdout.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TextIO, TypeVar

from validator.model.plan import PhasePlan, Plan
from validator.model.runbook import Phase
from validator.model.verdict import PhaseReport, ValidationReport
from validator.plan.eta import Eta
from validator.report.terminal.lines import left_cell, phase_line, progress_cells, share_of, show, write_text
from validator.report.terminal.summary import summary_lines
from validator.runs.folder import ReportPaths
from validator.supervise.monitor import Progress
from validator.text import format_duration, one_line, plural

_Self = TypeVar("_Self", bound="Observer")

RESULTS_IN = ", results in "
"""What the first line of a validation has before the path of its run folder."""


class Observer:
    """What a validation reports its progress to. This one shows nothing; the others override what they show.

    Use it in a `with` block, so that the terminal is left in order whatever happens. The order is: `started` once; then
    per phase `phase_started`, any number of `run_progress` and `phase_finished`; `note` at any time; `finished` once. A
    phase that is skipped, not run, or had finished before gets `phase_finished` alone.
    """

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, *exception: object) -> None:
        """Give the terminal back."""

    def started(self, plan: Plan, run_dir: Path) -> None:
        """The plan is fixed, the run folder exists, and the first phase is about to run."""

    def phase_started(self, phase: Phase, planned: PhasePlan, *, spent_s: float = 0.0) -> None:
        """A phase is about to run; `spent_s` is what an earlier runner of the same validation spent on it."""

    def run_progress(self, progress: Progress) -> None:
        """How far the current run is; called as often as the supervisor likes."""

    def phase_finished(self, phase: PhaseReport) -> None:
        """A phase has been judged."""

    def note(self, text: str) -> None:
        """A sentence that the user should see now: a setting adopted, an attempt repeated."""

    def finished(self, report: ValidationReport, paths: ReportPaths) -> None:
        """Every phase is judged, and the reports are written."""


class PlainObserver(Observer):
    """Writes lines that make sense in a log file, each with the local time, and flushes each."""

    def __init__(self, *, stream: TextIO | None = None, every_s: float = 10.0) -> None:
        self._stream = stream or sys.stderr
        self._every_s = every_s
        self._last_s = float("-inf")
        self._shown: tuple[str, str] | None = None
        self._numbers: dict[str, int] = {}
        self._eta: Eta | None = None

    def started(self, plan: Plan, run_dir: Path) -> None:
        """Announce the plan and the folder of the results."""
        self._numbers = {planned.phase: number for number, planned in enumerate(plan.phases, 1)}
        self._eta = Eta(plan)
        count = f"{plural(len(plan.phases), 'phase')}, {plural(len(plan.runs), 'run')}"
        self._say(f"{one_line(plan.runbook)}: {count}{RESULTS_IN}{one_line(run_dir)}")

    def phase_started(self, phase: Phase, planned: PhasePlan, *, spent_s: float = 0.0) -> None:
        """Say which phase begins."""
        runs = f", {plural(len(planned.runs), 'run')}" if planned.runs else ""
        left = ""
        if self._eta is not None:
            now_s = time.monotonic()
            self._eta.phase_started(planned, now_s=now_s, spent_s=spent_s)
            left = left_cell(self._eta.remaining(now_s=now_s))
        self._say(f"{self._place(phase.id)} {one_line(phase.id)}: {phase.kind}{runs}{left}")
        self._shown = None

    def run_progress(self, progress: Progress) -> None:
        """Say how far a run is: at once when it changes state, else every few seconds."""
        now_s = time.monotonic()
        if self._eta is not None:
            self._eta.run_progress(progress.run, share_of(progress))
        shown = (progress.run, progress.state)
        if shown == self._shown and now_s - self._last_s < self._every_s:
            return
        self._shown, self._last_s = shown, now_s
        self._say("  " + "  ".join([one_line(progress.run), *progress_cells(progress)]))

    def phase_finished(self, phase: PhaseReport) -> None:
        """Say how a phase was judged."""
        if self._eta is not None:
            self._eta.phase_finished(phase.id, now_s=time.monotonic(), took_s=phase.duration_s)
        duration = f" in {format_duration(phase.duration_s)}" if phase.duration_s is not None else ""
        self._say(f"{self._place(phase.id)} {phase_line(phase)}{duration}")

    def note(self, text: str) -> None:
        """Say it."""
        self._say("  " + one_line(text))

    def finished(self, report: ValidationReport, paths: ReportPaths) -> None:
        """Print the summary on stdout."""
        show(summary_lines, report, paths)

    def _place(self, phase: str) -> str:
        """`[3/10]`: which phase of how many; a resumed validation counts on."""
        return f"[{self._numbers.get(phase, '?')}/{len(self._numbers)}]"

    def _say(self, text: str) -> None:
        stamp = time.strftime("%H:%M:%S")
        write_text(f"{stamp} {text}\n", self._stream)
