"""Charts of the machine beside a phase's runs: how busy, fast and hot the GPUs were, and what held them back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from validator.model.verdict import PhaseReport, RunReport
from validator.report.bars import Bar, bars_svg, brief
from validator.report.figure import Figure, bins, make_figure, measure_of, readout_of, thinner
from validator.report.formats import format_number, format_percent, format_quantity, one_line, plural
from validator.report.machine_view import MachineCharts, MachineLine, Slowdown
from validator.report.page import Table
from validator.report.specs import Line, lines_spec
from validator.report.view import ChartSeries, RunCharts

__all__ = ["MACHINE_FIGURES", "machine_figures"]

MAX_LINES = 24
MAX_ROWS = 24
MAX_STRETCHES = 40
"""Rows of the chart of slowdowns, and lines of its table."""

Watched = Sequence[tuple[RunReport, MachineCharts]]


@dataclass(frozen=True)
class _Quantity:
    """One chart: a column of the samples, and what its lines are called where each stands for a whole run."""

    title: str
    name: str
    unit: str


_QUANTITIES = (
    _Quantity("GPU utilization", "util_pct", "%"),
    _Quantity("GPU clock", "sm_clock_mhz", "MHz"),
    _Quantity("GPU power", "power_w", "W"),
    _Quantity("GPU temperature", "temperature_c", "°C"),
    _Quantity("Processor", "host_cpu_pct", "%"),
)
MACHINE_FIGURES = len(_QUANTITIES)


def machine_figures(
    phase: PhaseReport, runs: Sequence[tuple[RunReport, RunCharts]], *, points: int
) -> tuple[Figure, ...]:
    """The figures of one phase: each quantity over time, then what held the GPUs back, if anything did."""
    watched = [(run, drawn.machine) for run, drawn in runs if drawn.machine is not None]
    if not watched:
        return ()
    found = [figure for quantity in _QUANTITIES for figure in _over_time(phase, watched, quantity, points)]
    return (*found, *_held_back(phase, watched))


def _over_time(phase: PhaseReport, watched: Watched, quantity: _Quantity, points: int) -> Iterator[Figure]:
    chosen = list(_chosen(watched, quantity))
    if not chosen:
        return
    shown = chosen[:MAX_LINES]
    lines = [
        Line(
            line.device if len(watched) == 1 else one_line(run.arm or "run", limit=40),
            thinner(_as_series(quantity, line), points // len(shown)),
        )
        for run, line in shown
    ]
    left_out = len(chosen) - len(shown)
    lone = watched[0][1] if len(watched) == 1 else None
    yield make_figure(
        phase.id,
        quantity.title,
        lines_spec(
            lines,
            wide=False,
            along="time",
            warmup_end=None if lone is None else lone.steady_s,
            percent=quantity.unit == "%",
        ),
        measure=measure_of(quantity.name, quantity.unit),
        summary=_told(watched, chosen, quantity),
        table=_table(chosen, quantity, unit=quantity.unit),
        wide=False,
        note=f"{plural(left_out, 'line')} more in the table." if left_out else "",
        readout=readout_of(
            lines, [line.device if lone else one_line(run.id) for run, line in shown], quantity.unit, over="time"
        ),
    )


def _chosen(watched: Watched, quantity: _Quantity) -> Iterator[tuple[RunReport, MachineLine]]:
    """One run: each of its devices. Several: the line that stands for each run."""
    if len(watched) == 1:
        run, machine = watched[0]
        yield from ((run, line) for line in machine.lines.get(quantity.name, ()) if line.values)
        return
    for run, machine in watched:
        line = machine.across.get(quantity.name)
        if line is not None and line.values:
            yield run, line


def _as_series(quantity: _Quantity, line: MachineLine) -> ChartSeries:
    return ChartSeries(quantity.name, quantity.unit, line.times_s, line.values, line.n)


def _told(watched: Watched, chosen: Sequence[tuple[RunReport, MachineLine]], quantity: _Quantity) -> str:
    """Range and end of what is drawn, and what the gray area is."""
    low, high = (f(f(line.values) for _, line in chosen) for f in (min, max))
    devices = sorted({line.device for _, line in chosen})
    text = f"Lowest {format_quantity(low, quantity.unit)}, highest {format_quantity(high, quantity.unit)}"
    if len(watched) > 1:
        return f"{text}, over {plural(len(chosen), 'run')}: of each, {', '.join(devices)}."
    text += f", over {plural(len(devices), 'line')}: {', '.join(devices[:8])}." if len(devices) > 1 else "."
    steady = watched[0][1].steady_s
    return text + (f" Gray: start and warm-up, to second {steady:,.0f}." if steady is not None and steady > 0 else "")


def _table(chosen: Sequence[tuple[RunReport, MachineLine]], quantity: _Quantity, *, unit: str) -> Table:
    columns = ("First", "Lowest", "Highest", "Last")
    if len(chosen) == 1:
        rows = tuple(bins(_as_series(quantity, chosen[0][1])))
        caption = f"{quantity.title} by part of the run ({unit})"
        return Table(caption, ("Seconds", *columns), rows, frozenset(("Seconds", *columns)))
    rows = tuple(
        (
            one_line(run.id),
            line.device,
            *(format_number(value) for value in (line.values[0], min(line.values), max(line.values), line.values[-1])),
        )
        for run, line in chosen
    )
    return Table(f"{quantity.title} ({unit})", ("Run", "Device", *columns), rows, frozenset(columns))


def _held_back(phase: PhaseReport, watched: Watched) -> list[Figure]:
    """When which GPU held back, and why; nothing where none did."""
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
        Bar(row_of(run, slow), slow.from_s, slow.to_s, *(("bad", "✕") if slow.spoils else ("info", "i")))
        for run, slow in found
        if row_of(run, slow) in rows
    ]
    table_rows = tuple(
        (
            one_line(run.id),
            slow.device,
            slow.reason,
            "yes" if slow.spoils else "no",
            f"{slow.from_s:,.0f}",
            f"{slow.to_s:,.0f}",
        )
        for run, slow in found[:MAX_STRETCHES]
    )
    columns = ("Run", "GPU", "Reason", "Spoils the figures", "From (s)", "To (s)")
    more = len(found) - len(table_rows)
    more_told = f"{plural(more, 'more stretch', 'more stretches')} in logs/telemetry.csv of the runs." if more else ""
    table = Table("Stretches in which a GPU held back", columns, table_rows, frozenset(columns[4:]), more_told)
    length_s = max(machine.duration_s for _, machine in watched)
    drawing = bars_svg(rows, bars, length_s=length_s, zero="the first sample")
    note = f"{plural(len(names) - len(rows), 'row')} more would have no room." if len(names) > len(rows) else ""
    return [
        make_figure(
            phase.id,
            "GPU throttling",
            drawing,
            measure="reason by run" if several else "reason by GPU",
            summary=_slowness(found, watched),
            table=table,
            wide=True,
            note=note,
        )
    ]


def _slowness(found: Sequence[tuple[RunReport, Slowdown]], watched: Watched) -> str:
    """How much of the time, by reason; what it means for the figures."""
    total_s = sum(machine.duration_s * max(1, machine.gpus) for _, machine in watched)
    by_reason: dict[str, float] = {}
    for _, slow in found:
        by_reason[slow.reason] = by_reason.get(slow.reason, 0.0) + slow.to_s - slow.from_s
    shares = ", ".join(f"{reason} {format_percent(spent / total_s)}" for reason, spent in by_reason.items())
    text = f"Share of the GPUs' time: {shares}."
    if any(slow.spoils for _, slow in found):
        text += " ✕, red: heat or hardware held a GPU back, and nothing is measured in these steps."
    if any(not slow.spoils for _, slow in found):
        text += " i, blue: the power cap, which is how a GPU is meant to run."
    return text
