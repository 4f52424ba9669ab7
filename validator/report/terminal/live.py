"""Progress of a validation as a table that is redrawn in place. Only this module needs `rich`."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from validator.model.plan import PhasePlan, Plan
from validator.model.runbook import Phase
from validator.model.verdict import PhaseReport, ValidationReport
from validator.plan.eta import Eta
from validator.report.elements import status_view
from validator.report.terminal.lines import criteria_count, left_cell, share_of, show, steps_cell
from validator.report.terminal.observer import Observer
from validator.report.terminal.summary import summary_lines
from validator.runs.folder import ReportPaths
from validator.supervise.monitor import Progress
from validator.text import MISSING, format_duration, format_number, one_line, plural

_STYLES = {"good": "green", "bad": "bold red", "warn": "yellow", "info": "cyan", "muted": "dim"}
_STATES = {"running": "green", "starting": "cyan", "slow": "yellow", "stopping": "yellow", "ended": "dim"}
_MAX_PENDING = 8
_COLUMNS = (("step", 7), ("tok/s", 6), ("loss", 5), ("MiB", 6), ("beat", 5), ("ETA", 8))
"""Minimum widths, so that the table does not shift as numbers grow; with the run's name they fill 80 columns."""


class LiveObserver(Observer):
    """Shows the validation in a terminal. Colors follow `color`; the layout needs 60 columns and is made for 80."""

    def __init__(self, *, stream: TextIO | None = None, color: bool = True, refresh_hz: float = 4.0) -> None:
        self._console = Console(
            file=stream or sys.stderr, no_color=not color, highlight=False, emoji=False, markup=False
        )
        self._plan: Plan | None = None
        self._eta: Eta | None = None
        self._phase: str | None = None
        self._phase_began_s = 0.0
        self._phase_runs: tuple[str, ...] = ()
        self._progress: Progress | None = None
        self._seen_s = 0.0
        self._done: list[str] = []
        self._live = Live(
            console=self._console,
            refresh_per_second=refresh_hz,
            transient=True,
            get_renderable=self._render,
            redirect_stdout=False,
        )

    def __exit__(self, *exception: object) -> None:
        self._live.stop()

    def started(self, plan: Plan, run_dir: Path) -> None:
        """Announce the plan, then start drawing."""
        self._plan, self._eta = plan, Eta(plan)
        count = f"{plural(len(plan.phases), 'phase')}, {plural(len(plan.runs), 'run')}"
        self._console.print(Text.assemble((one_line(plan.runbook), "bold"), f"  {count}"))
        self._console.print(Text(f"results in {one_line(run_dir)}", "dim"), soft_wrap=True)
        self._live.start()

    def phase_started(self, phase: Phase, planned: PhasePlan, *, spent_s: float = 0.0) -> None:
        """Show another phase in the table."""
        self._phase, self._progress = phase.id, None
        self._phase_began_s = time.monotonic()
        self._phase_runs = tuple(run.id for run in planned.runs)
        if self._eta is not None:
            self._eta.phase_started(planned, now_s=self._phase_began_s, spent_s=spent_s)

    def run_progress(self, progress: Progress) -> None:
        """Remember how far the run is; the table is redrawn on its own clock."""
        self._progress, self._seen_s = progress, time.monotonic()
        if self._eta is not None:
            self._eta.run_progress(progress.run, share_of(progress))

    def phase_finished(self, phase: PhaseReport) -> None:
        """Print the phase's line above the table."""
        self._phase, self._progress = None, None
        self._done.append(phase.id)
        if self._eta is not None:
            self._eta.phase_finished(phase.id, now_s=time.monotonic(), took_s=phase.duration_s)
        self._console.print(_finished_line(phase))

    def note(self, text: str) -> None:
        """Print a sentence above the table."""
        self._console.print(Text(f"  {one_line(text)}"), soft_wrap=True)

    def finished(self, report: ValidationReport, paths: ReportPaths) -> None:
        """Take the table away and print the summary on stdout."""
        self._live.stop()
        show(summary_lines, report, paths)

    def _render(self) -> RenderableType:
        parts: list[RenderableType] = []
        if self._phase is not None:
            parts.append(self._current())
        pending = [p.phase for p in self._plan.phases if p.phase not in self._done] if self._plan else []
        pending = [one_line(name, limit=24) for name in pending if name != self._phase]
        if pending:
            more = f" and {len(pending) - _MAX_PENDING} more" if len(pending) > _MAX_PENDING else ""
            parts.append(
                Text(f"next: {', '.join(pending[:_MAX_PENDING])}{more}", "dim", no_wrap=True, overflow="ellipsis")
            )
        left = left_cell(None if self._eta is None else self._eta.remaining(now_s=time.monotonic()))
        if left:
            parts.append(Text(left.removeprefix(", "), "dim"))
        return Group(*parts)

    def _current(self) -> RenderableType:
        """The current phase and run: two lines of numbers and a bar."""
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", expand=False, pad_edge=False)
        progress = self._progress
        table.add_column("run", no_wrap=True, overflow="ellipsis", min_width=12, max_width=21)
        table.add_column("state", no_wrap=True, min_width=8)
        timed = progress is not None and progress.toks_per_s is None and progress.step_time_s is not None
        for name, width in _COLUMNS:
            shown = "s/step" if timed and name == "tok/s" else name  # of a trainer that reports no rate
            table.add_column(shown, justify="right", no_wrap=True, min_width=width)
        if progress is None:
            elapsed = format_duration(time.monotonic() - self._phase_began_s)
            table.add_row(one_line(self._phase or "", limit=60), Text("working", "cyan"))
            return Group(table, Text(elapsed, "dim"))
        waited_s = time.monotonic() - self._seen_s
        table.add_row(
            one_line(progress.run, limit=60),
            Text(progress.state, _STATES.get(progress.state, "")),
            steps_cell(progress),
            format_number(progress.step_time_s if timed else progress.toks_per_s),
            format_number(progress.loss),
            format_number(round(progress.mem_mib) if progress.mem_mib is not None else None),
            _short_time(progress.heartbeat_age_s, waited_s),
            MISSING if progress.overdue_s is not None else _short_time(progress.eta_s, -waited_s),
        )
        return Group(table, self._bar(progress))

    def _bar(self, progress: Progress) -> RenderableType:
        """How much of the phase is done, over all its runs."""
        total = max(1, len(self._phase_runs))
        index = self._phase_runs.index(progress.run) if progress.run in self._phase_runs else 0
        share = progress.step / progress.steps if progress.step and progress.steps else 0.0
        runs = f"run {index + 1} of {total}" if total > 1 else ""
        overdue = progress.overdue_s
        note = progress.note or ("" if overdue is None else f"no step for {format_duration(overdue)}")
        row = Table.grid(padding=(0, 2, 0, 0))
        row.add_row(
            ProgressBar(total=1.0, completed=min(1.0, (index + share) / total), width=36),
            Text(f"{runs}  {format_duration(progress.elapsed_s)}".strip(), "dim"),
            Text(
                one_line(note or progress.nodes, limit=200),
                "yellow" if note else "dim",
                no_wrap=True,
                overflow="ellipsis",
            ),
        )
        return row


def _short_time(seconds: float | None, since_s: float) -> str:
    """A duration, advanced by the time since it was reported."""
    return "" if seconds is None else format_duration(max(0.0, seconds + since_s))


def _finished_line(phase: PhaseReport) -> Text:
    view = status_view(phase.status)
    line = Text.assemble((f"{view.sign} {view.word:<12} ", _STYLES[view.tone]), (one_line(phase.id), "bold"))
    about = [criteria_count(phase), format_duration(phase.duration_s) if phase.duration_s is not None else ""]
    line.append(f"  {', '.join(part for part in about if part)}", "dim")
    if phase.status != "PASS" and phase.message:
        line.append(f"  {one_line(phase.message, limit=300)}")
    return line
