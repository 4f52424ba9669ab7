"""What is said of a run or a phase in a few words, the same in the live table and in plain lines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from validator.model.units import format_duration
from validator.report.formats import format_quantity, one_line
from validator.report.parts import status_view

if TYPE_CHECKING:
    from validator.execute.progress import Progress
    from validator.model.verdict import PhaseReport
    from validator.plan.eta import Remaining

__all__ = ["criteria_count", "left_cell", "phase_line", "progress_cells", "share_of", "steps_cell"]


def steps_cell(progress: Progress) -> str:
    """`120/300`; empty for what has no steps."""
    if progress.step is None and progress.steps is None:
        return ""
    done = "–" if progress.step is None else f"{progress.step:,}"
    return done if progress.steps is None else f"{done}/{progress.steps:,}"


def progress_cells(progress: Progress) -> list[str]:
    """The parts of a plain line; what is not known is left out."""
    cells = [one_line(progress.state)]
    if steps := steps_cell(progress):
        cells.append(f"step {steps}")
    if progress.toks_per_s is not None:
        cells.append(format_quantity(progress.toks_per_s, "tok/s"))
    if progress.loss is not None:
        cells.append(f"loss {format_quantity(progress.loss)}")
    if progress.mem_mib is not None:
        cells.append(f"memory {format_quantity(round(progress.mem_mib), 'MiB')}")
    if progress.heartbeat_age_s is not None:
        cells.append(f"heartbeat {format_duration(progress.heartbeat_age_s)} ago")
    cells.append(f"elapsed {format_duration(progress.elapsed_s)}")
    if progress.eta_s is not None:
        cells.append(f"ETA {format_duration(progress.eta_s)}")
    return cells


def criteria_count(phase: PhaseReport) -> str:
    """`5/6 criteria` or `12/12 checks`; empty when there are none."""
    parts = []
    for items, noun in ((phase.criteria, "criteria"), (phase.checks, "checks")):
        if items:
            passed = sum(item.status == "PASS" for item in items)
            parts.append(f"{passed}/{len(items)} {noun}")
    return ", ".join(parts)


def phase_line(phase: PhaseReport) -> str:
    """`✓ PASS baseline (5/5 criteria)`, with the sentence when it did not pass."""
    view = status_view(phase.status)
    count = criteria_count(phase)
    line = f"{view.sign} {view.word} {one_line(phase.id)}" + (f" ({count})" if count else "")
    if phase.status != "PASS" and phase.message:
        line += f": {one_line(phase.message)}"
    elif not phase.required:
        line += ", not required"
    return line


def share_of(progress: Progress) -> float | None:
    """How far a run is by its steps; a run that has ended is over whatever its steps say."""
    if progress.state == "ended":
        return 1.0
    return progress.step / progress.steps if progress.step and progress.steps else None


def left_cell(remaining: Remaining | None) -> str:
    """`, about 4 min left in all`; empty when nothing can be said."""
    if remaining is None:
        return ""
    return f", {'at least' if remaining.at_least else 'about'} {format_duration(round(remaining.seconds))} left in all"
