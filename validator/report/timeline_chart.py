"""The timeline as a chart: a row for each phase, a bar for each attempt at a run."""

from __future__ import annotations

from collections.abc import Sequence

from validator.model.units import format_duration
from validator.model.verdict import PhaseReport, ValidationReport
from validator.report.bars import Bar, bars_svg, brief
from validator.report.figure import Figure, make_figure
from validator.report.formats import format_percent, plural
from validator.report.timeline import Span, run_spans, timeline_table

__all__ = ["timeline_figure"]

_SIGNS = {"good": "✓", "bad": "✕", "muted": "○"}
MAX_BARS = 600


def timeline_figure(report: ValidationReport) -> Figure | None:
    """The chart of all runs; None when no run says when it began."""
    spans = run_spans(report)
    table = timeline_table(spans)
    if table is None:
        return None
    shown = spans[:MAX_BARS]
    rows = {place: _row(place, report.phases[place]) for place in sorted({span.phase for span in shown})}
    bars = [
        Bar(rows[span.phase], span.began_s, span.began_s + span.duration_s, span.tone, _SIGNS[span.tone])
        for span in shown
    ]
    length_s = max(bar.to_s for bar in bars)
    left_out = len(spans) - len(shown)
    return make_figure(
        "validation",
        "Timeline",
        bars_svg(tuple(rows.values()), bars, length_s=length_s, zero="the start of the validation"),
        measure="attempts at runs, by phase",
        summary=_told(spans, length_s),
        table=table,
        wide=True,
        note=f"{plural(left_out, 'attempt')} more in the table." if left_out else "",
    )


def _row(place: int, phase: PhaseReport) -> str:
    return f"{place + 1}  {brief(phase.title, limit=36)}"


def _told(spans: Sequence[Span], length_s: float) -> str:
    """How many ran, how they ended, and how much of the time something ran."""
    ways: dict[str, int] = {}
    for span in spans:
        ways[span.outcome] = ways.get(span.outcome, 0) + 1
    how = ", ".join(f"{count} {outcome}" for outcome, count in ways.items())
    busy_s = sum(span.duration_s for span in spans)
    share = f" ({format_percent(min(1.0, busy_s / length_s))} of the time)" if length_s > 0 else ""
    return (
        f"{plural(len(spans), 'attempt')} in {format_duration(length_s)}: {how}. Something ran for "
        f"{format_duration(busy_s)}{share}. Green with ✓: ended by itself with code 0; red with ✕: any other end."
    )
