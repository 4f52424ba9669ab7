"""Bars over time: when each run of a validation ran and how it ended, and what throttled the GPUs during a phase."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape
from typing import NamedTuple

from validator.model.verdict import PhaseReport, RunReport, ValidationReport
from validator.report.build_runs import ended
from validator.report.figure import Figure, make_figure
from validator.report.page import Table
from validator.report.palette import PALETTE
from validator.report.specs import WIDE, MachineCharts, Slowdown
from validator.report.templates import MARKS
from validator.text import format_duration, format_percent, format_value, one_line, plural
from validator.times import unix_seconds

# A chart of bars in named rows.

_TONES = {"good": "s3", "bad": "bound", "warn": "s2", "info": "s1", "muted": "s6"}
_MIN_PX = 2.0
_ROW_PX = 26
_LABEL_LIMIT = 38
_LETTER_PX = 6.6
"""Room for a letter of a row's name, at 11 px in a wide font; how wide the reader's font is cannot be known here."""

_PADDING_PX = 4
_AXIS_PX = 36
"""Room below the rows: ticks, their labels, and what the axis counts."""

_TICKS = 8
_TEXT, _GRID, _AXIS = (PALETTE[role].light for role in ("text", "grid", "axis"))


class Bar(NamedTuple):
    """One span of a timeline row, in seconds from the axis' zero; `tone` and `sign` say the same."""

    row: str
    from_s: float
    to_s: float
    tone: str
    sign: str


def brief(text: str, *, limit: int) -> str:
    """A name fit for an axis: cut without further words, since the table has it in full."""
    name = one_line(text, limit=500)
    return name if len(name) <= limit else name[: limit - 1].rstrip() + "…"


def time_unit(length_s: float) -> tuple[str, float]:
    """What to count a length of time in, and how many seconds one of it has."""
    return ("seconds", 1.0) if length_s < 300 else ("minutes", 60.0) if length_s < 3 * 3600 else ("hours", 3600.0)


def tick_places(end: float, *, count: int = _TICKS) -> tuple[str, ...]:
    """The ticks from 0 to `end` as they are labelled: about `count`, at multiples of 1, 2 or 5 times a power of ten.

    All have the same number of decimals, so `float` of one is its position.
    """
    if not (end > 0 and math.isfinite(end)):
        return ("0",)
    rough = end / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = power * min((1, 2, 5, 10), key=lambda factor: abs(math.log(factor * power / rough)))
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    return tuple(f"{place * step:.{decimals}f}" for place in range(int(end / step + 1e-9) + 1))


def bars_svg(rows: Sequence[str], bars: Sequence[Bar], *, length_s: float, zero: str) -> str:
    """Bars in named rows, top to bottom, without accessible text. `zero` says what the axis counts from.

    What reaches beyond the axis ends at its end; a bar of a row that is not among `rows` is left out.
    """
    unit, size = time_unit(length_s)
    end = max(length_s, 1e-3) / size
    names = [brief(row, limit=_LABEL_LIMIT) for row in rows]
    left = math.ceil(_LETTER_PX * max(map(len, names), default=0)) + _PADDING_PX
    width, height = WIDE - left, _ROW_PX * max(1, len(rows))
    axis = "".join(_axis_svg(end, width=width, title=f"{unit} since {zero}"))
    labels = "".join(
        f'<text x="-2" y="{_middle(place) + 3.5:g}" text-anchor="end">{escape(name)}</text>'
        for place, name in enumerate(names)
    )
    grid = "".join(f"M0,{_middle(place):g}h{width}" for place in range(len(rows)))
    whole_width, whole_height = WIDE + 3 * _PADDING_PX, height + _AXIS_PX + _PADDING_PX
    return (
        f'<svg aria-hidden="true" focusable="false" width="{whole_width}" height="{whole_height}" '
        f'viewBox="0 0 {whole_width} {whole_height}" xmlns="http://www.w3.org/2000/svg" font-family="sans-serif">'
        f'<g transform="translate({left + _PADDING_PX},{_PADDING_PX})">'
        f'<path d="{grid}" stroke="{_GRID}"/>'
        f'<g transform="translate(0,{height})">{axis}</g>'
        f'<g font-size="11px" fill="{_TEXT}">{labels}</g>'
        f"{''.join(_bars_svg(rows, bars, scale=width / end / size, width=width))}</g></svg>"
    )


def _middle(place: int) -> float:
    return _ROW_PX * place + _ROW_PX / 2 - 0.5


def _axis_svg(end: float, *, width: int, title: str) -> Iterator[str]:
    """The line, its ticks with their labels, and the title."""
    places = [(label, float(label) / end * width) for label in tick_places(end)]
    ticks = "".join(f"M{x:.1f},0v4" for _, x in places)
    yield f'<path d="M0,0h{width}{ticks}" fill="none" stroke="{_AXIS}"/>'
    yield f'<g font-size="11px" fill="{_TEXT}" text-anchor="middle">'
    yield from (f'<text x="{x:.1f}" y="15">{label}</text>' for label, x in places)
    yield f'<text x="{width / 2:g}" y="30">{escape(title)}</text></g>'


def _bars_svg(rows: Sequence[str], bars: Sequence[Bar], *, scale: float, width: int) -> Iterator[str]:
    """A rectangle for each bar, wide enough to be seen, and its sign above it. `scale` is in pixels per second."""
    found = {row: place for place, row in enumerate(rows)}
    shown = [(bar, *_extent(bar, scale=scale, width=width)) for bar in bars if bar.row in found]
    for bar, x, wide in shown:
        color = PALETTE[_TONES[bar.tone]].light
        y = _middle(found[bar.row])
        yield f'<rect x="{x:.1f}" y="{y:g}" width="{wide:.1f}" height="9" fill="{color}" stroke="{color}"'
        yield ' fill-opacity="0.8"/>'
    yield f'<g font-size="9px" fill="{_TEXT}" text-anchor="middle">'
    for bar, x, wide in shown:
        middle, y = x + wide / 2, _middle(found[bar.row]) - 2.5
        if bar.sign in MARKS:
            yield f'<path transform="translate({middle - 4.5:.1f},{y - 8:g}) scale(.75)" d="{MARKS[bar.sign]}"'
            yield f' fill="none" stroke="{_TEXT}" stroke-width="1.6"/>'
        else:
            yield f'<text x="{middle:.1f}" y="{y:g}">{escape(bar.sign)}</text>'
    yield "</g>"


def _extent(bar: Bar, *, scale: float, width: int) -> tuple[float, float]:
    """Where a bar begins and how wide it is, both within the axis."""
    x = min(max(bar.from_s * scale, 0.0), width - _MIN_PX)
    return x, max(min(bar.to_s * scale, float(width)) - x, _MIN_PX)


# When each run of a validation ran and how it ended: every attempt, from the start of the validation on.


class RunSpan(NamedTuple):
    """One attempt at a run. `phase` is the phase's index; times are seconds."""

    phase: int
    run: str
    attempt: str
    began_s: float
    duration_s: float
    outcome: str
    tone: str


def run_spans(report: ValidationReport) -> tuple[RunSpan, ...]:
    """Every attempt whose start is known, in the order of the phases and their runs."""
    zero = unix_seconds(report.started)
    return () if zero is None else tuple(_spans(report, zero))


def _spans(report: ValidationReport, zero: float) -> Iterator[RunSpan]:
    for place, phase in enumerate(report.phases):
        for run in phase.runs:
            attempts = (run.outcome or {}).get("attempts")
            for attempt in attempts if isinstance(attempts, (list, tuple)) else ():
                began, duration = unix_seconds(attempt.get("started")), attempt.get("duration_s")
                if began is None or not isinstance(duration, (int, float)):
                    continue
                word, tone = ended(attempt)
                number = format_value(attempt.get("number"))
                yield RunSpan(place, one_line(run.id), number, began - zero, max(0.0, float(duration)), word, tone)


def timeline_table(spans: tuple[RunSpan, ...]) -> Table | None:
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


# The timeline as a chart: a row for each phase, a bar for each attempt at a run.

_SIGNS = {"good": "✓", "bad": "✕", "muted": "○"}
MAX_BARS = 600


def timeline_figure(report: ValidationReport) -> Figure | None:
    """The chart of all runs; None when no run's start is known."""
    spans = run_spans(report)
    table = timeline_table(spans)
    if table is None:
        return None
    shown = spans[:MAX_BARS]
    places = sorted({span.phase for span in shown})
    rows = {place: f"{place + 1}  {brief(report.phases[place].title, limit=36)}" for place in places}
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
        summary=_timeline_summary(spans, length_s),
        table=table,
        wide=True,
        note=f"{plural(left_out, 'attempt')} more in the table." if left_out else "",
    )


def _timeline_summary(spans: Sequence[RunSpan], length_s: float) -> str:
    """How many ran, how they ended, and how much of the time something ran."""
    outcomes: dict[str, int] = {}
    for span in spans:
        outcomes[span.outcome] = outcomes.get(span.outcome, 0) + 1
    how = ", ".join(f"{count} {outcome}" for outcome, count in outcomes.items())
    busy_s = sum(span.duration_s for span in spans)
    share = f" ({format_percent(min(1.0, busy_s / length_s))} of the time)" if length_s > 0 else ""
    return (
        f"{plural(len(spans), 'attempt')} in {format_duration(length_s)}: {how}. Runs were active for "
        f"{format_duration(busy_s)}{share}. Green with a check mark: ended by itself with code 0; red with a cross: "
        "any other end."
    )


# The chart of what throttled the GPUs during a phase's runs.

MAX_ROWS = 24
MAX_INTERVALS = 40
"""Rows of the chart of slowdowns, and lines of its table."""

Watched = Sequence[tuple[RunReport, MachineCharts]]


def throttling_figures(phase: PhaseReport, watched: Watched) -> list[Figure]:
    """When which GPU was throttled, and why; nothing where none was."""
    found = [(run, slow) for run, machine in watched for slow in machine.slowdowns]
    if not found:
        return []
    several = len(watched) > 1

    def row_of(run: RunReport, slow: Slowdown) -> str:
        run_name = brief(run.id.removeprefix(f"{phase.id}/"), limit=20)
        return f"{run_name if several else slow.device}: {slow.reason}"

    names = list(dict.fromkeys(row_of(run, slow) for run, slow in found))
    rows = names[:MAX_ROWS]
    bars = [
        Bar(row_of(run, slow), slow.from_s, slow.to_s, *(("bad", "✕") if slow.invalid else ("info", "i")))
        for run, slow in found
        if row_of(run, slow) in rows
    ]
    table_rows = tuple(
        (
            one_line(run.id),
            slow.device,
            slow.reason,
            "yes" if slow.invalid else "no",
            f"{slow.from_s:,.0f}",
            f"{slow.to_s:,.0f}",
        )
        for run, slow in found[:MAX_INTERVALS]
    )
    columns = ("Run", "GPU", "Reason", "Invalidates the measurement", "From (s)", "To (s)")
    more = len(found) - len(table_rows)
    more_note = f"{plural(more, 'more interval')} in logs/telemetry.csv of the runs." if more else ""
    table = Table("Throttling intervals", columns, table_rows, frozenset(columns[4:]), more_note)
    length_s = max(machine.duration_s for _, machine in watched)
    drawing = bars_svg(rows, bars, length_s=length_s, zero="the first sample")
    note = f"{plural(len(names) - len(rows), 'row')} more only in the table." if len(names) > len(rows) else ""
    return [
        make_figure(
            phase.id,
            "GPU throttling",
            drawing,
            measure="reason by run" if several else "reason by GPU",
            summary=_throttling_summary(found, watched),
            table=table,
            wide=True,
            note=note,
        )
    ]


def _throttling_summary(found: Sequence[tuple[RunReport, Slowdown]], watched: Watched) -> str:
    """How much of the time, by reason; what it means for the measurement."""
    total_s = sum(machine.duration_s * max(1, machine.gpus) for _, machine in watched)
    by_reason: dict[str, float] = {}
    for _, slow in found:
        by_reason[slow.reason] = by_reason.get(slow.reason, 0.0) + slow.to_s - slow.from_s
    shares = ", ".join(f"{reason} {format_percent(spent / total_s)}" for reason, spent in by_reason.items())
    text = f"Share of the GPUs' time: {shares}."
    if any(slow.invalid for _, slow in found):
        text += " A cross, red: thermal or hardware throttling; these steps are not measured."
    if any(not slow.invalid for _, slow in found):
        text += " i, blue: the power cap, which is normal operation."
    return text
