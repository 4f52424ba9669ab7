"""When each run of a validation ran and how it ended: every attempt, from the start of the validation on."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import NamedTuple

from validator.model.units import format_duration
from validator.model.verdict import ValidationReport
from validator.report.build_runs import ended
from validator.report.formats import format_value, one_line
from validator.report.page import Table

__all__ = ["Span", "run_spans", "timeline_table"]


class Span(NamedTuple):
    """One attempt at a run. `phase` is the phase's place among the phases; times are seconds."""

    phase: int
    run: str
    attempt: str
    began_s: float
    duration_s: float
    outcome: str
    tone: str


def run_spans(report: ValidationReport) -> tuple[Span, ...]:
    """Every attempt that says when it began, in the order of the phases and their runs."""
    zero = _seconds(report.started)
    return () if zero is None else tuple(_spans(report, zero))


def _spans(report: ValidationReport, zero: float) -> Iterator[Span]:
    for place, phase in enumerate(report.phases):
        for run in phase.runs:
            attempts = (run.outcome or {}).get("attempts")
            for attempt in attempts if isinstance(attempts, (list, tuple)) else ():
                began, duration = _seconds(attempt.get("started")), attempt.get("duration_s")
                if began is None or not isinstance(duration, (int, float)):
                    continue
                word, tone = ended(attempt)
                number = format_value(attempt.get("number"))
                yield Span(place, one_line(run.id), number, began - zero, max(0.0, float(duration)), word, tone)


def _seconds(iso: object) -> float | None:
    """UNIX time of an ISO 8601 text; None for anything else."""
    try:
        return datetime.fromisoformat(str(iso).replace("Z", "+00:00")).timestamp()
    except (ValueError, OverflowError, OSError):
        return None


def timeline_table(spans: tuple[Span, ...]) -> Table | None:
    """The attempts in the order in which they began; None when nothing ran."""
    if not spans:
        return None
    rows = tuple(
        (
            span.run,
            span.attempt,
            format_duration(max(0.0, span.began_s)),
            format_duration(span.duration_s),
            span.outcome,
        )
        for span in sorted(spans, key=lambda span: span.began_s)
    )
    columns = ("Run", "Attempt", "Began after", "Took", "Ended")
    return Table("Runs in the order in which they began", columns, rows, frozenset(columns[1:4]))
