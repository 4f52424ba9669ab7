"""Which charts a phase has, what each says in words, and the table that says the same.

A figure is complete without its picture: the sentence and the table stand for it in a screen reader, in a terminal
browser, and when the renderer fails.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from validator.model.expression import ExpressionError, Reference, parse_criterion
from validator.model.verdict import PhaseReport, RunReport, Verdict
from validator.report.figure import Figure, bins, make_figure, measure_of, readout_of, thinner, with_drawing
from validator.report.formats import format_interval, format_number, format_quantity, one_line, plural
from validator.report.machine import MACHINE_FIGURES, machine_figures
from validator.report.page import Table
from validator.report.specs import Band, Bound, Line, interval_spec, lines_spec, spread_spec
from validator.report.view import ChartData, ChartSeries, RunCharts

__all__ = ["Figure", "all_figures", "phase_figures"]

MAX_LINES = 24
"""Runs drawn in one chart; more would hide each other. The table has them all."""

MAX_RANKS = 64
MAX_POINTS = 1800
"""Points in one chart, shared by its lines."""

_ALL_POINTS = 48_000
"""Points in all charts of a page, so that a report of many phases stays small."""


@dataclass(frozen=True)
class _Topic:
    """A chart over steps: its metrics, best first, and how it is drawn."""

    title: str
    metrics: tuple[str, ...]
    wide: bool
    together: bool = False


_TOPICS = (
    _Topic("Rate", ("toks_per_s", "step_time_s"), wide=True),
    _Topic("Loss", ("loss",), wide=False),
    _Topic("GPU memory", ("gpu_mem_alloc_mib", "gpu_mem_reserved_mib"), wide=False, together=True),
    _Topic("Host memory", ("host_mem_mib",), wide=False),
    _Topic("Gate entropy", ("gate_entropy_mean", "gate_entropy_min"), wide=False, together=True),
    _Topic(
        "Gate shares",
        ("gate_branch_shares_0", "gate_branch_shares_1", "gate_branch_shares_2"),
        wide=False,
        together=True,
    ),
    _Topic("Gradient norm", ("grad_norm",), wide=False),
)

_LABELS = {"gate_branch_shares_0": "compressed", "gate_branch_shares_1": "selected", "gate_branch_shares_2": "window"}
"""Branches in the order in which the trainer contract gives their shares."""


def all_figures(phases: Sequence[PhaseReport], charts: ChartData) -> tuple[tuple[Figure, ...], ...]:
    """The figures of each phase, still to be drawn. The more charts a page has, the fewer points each gets."""
    drawn = sum(any(run.id in charts.runs for run in phase.runs) for phase in phases)
    points = min(MAX_POINTS, _ALL_POINTS // max(1, drawn * (len(_TOPICS) + MACHINE_FIGURES)))
    return tuple(_planned(phase, charts, points=points) for phase in phases)


def phase_figures(phase: PhaseReport, charts: ChartData, *, points: int = MAX_POINTS) -> tuple[Figure, ...]:
    """The figures of one phase, drawn, in the order of the report: over time, arms, the rest, ranks, machine."""
    return tuple(map(with_drawing, _planned(phase, charts, points=points)))


def _planned(phase: PhaseReport, charts: ChartData, *, points: int) -> tuple[Figure, ...]:
    runs = [(run, charts.runs[run.id]) for run in phase.runs if run.id in charts.runs]
    figures = [figure for topic in _TOPICS for figure in _over_steps(phase, runs, topic, points)]
    machine = machine_figures(phase, runs, points=points)
    return (*figures[:1], *_arms(phase), *figures[1:], *_ranks(phase, runs), *machine)


def _over_steps(
    phase: PhaseReport, runs: Sequence[tuple[RunReport, RunCharts]], topic: _Topic, points: int
) -> Iterator[Figure]:
    present = [name for name in topic.metrics if any(name in drawn.series for _, drawn in runs)]
    if not present:
        return
    several_arms = len({run.arm for run, _ in runs}) > 1
    metrics = present if topic.together and not several_arms else present[:1]
    chosen = [(run, drawn.series[name]) for name in metrics for run, drawn in runs if name in drawn.series]
    shown = chosen[:MAX_LINES]
    lines = [
        Line(
            _LABELS.get(series.metric, series.metric) if len(metrics) > 1 else one_line(run.arm or "run", limit=40),
            thinner(series, points // len(shown)),
        )
        for run, series in shown
    ]
    spec = lines_spec(
        lines,
        wide=topic.wide,
        warmup_end=_warmup(shown),
        bounds=_bounds(phase.criteria, metrics),
        band=_band(shown) if topic.wide else None,
    )
    left_out = len(chosen) - len(shown)
    yield make_figure(
        phase.id,
        topic.title,
        spec,
        measure=measure_of(", ".join(metrics), shown[0][1].unit),
        summary=_told(topic, shown, phase),
        table=_series_table(topic, chosen),
        wide=topic.wide,
        note=f"{plural(left_out, 'run')} more in the table." if left_out else "",
        readout=readout_of(lines, _labels_of(lines, shown), shown[0][1].unit),
    )


def _labels_of(lines: Sequence[Line], shown: Sequence[tuple[RunReport, ChartSeries]]) -> list[str]:
    """What the readout calls each line: by its label, or, where all have the same, by its run."""
    several = len({line.label for line in lines}) > 1
    return [line.label if several else one_line(run.id) for line, (run, _) in zip(lines, shown, strict=True)]


def _warmup(shown: Sequence[tuple[RunReport, ChartSeries]]) -> int | None:
    """The longest warm-up of the runs drawn."""
    return max((run.warmup_end_step for run, _ in shown if run.warmup_end_step is not None), default=None)


def _band(shown: Sequence[tuple[RunReport, ChartSeries]]) -> Band | None:
    """Window, mean and interval, where there is one run to show them of."""
    if len(shown) != 1:
        return None
    run, series = shown[0]
    stats = run.metrics.get(series.metric)
    if stats is None or stats.window is None or stats.mean is None:
        return None
    return Band(stats.window.first_step, stats.window.last_step, stats.mean, stats.ci_low, stats.ci_high)


def _bounds(criteria: Sequence[Verdict], metrics: Sequence[str]) -> tuple[Bound, ...]:
    """The bounds of criteria on one of these metrics of this phase, each value once."""
    found: dict[float, Bound] = {}
    for verdict in criteria:
        if not isinstance(verdict.bound, float) or _metric_of(verdict.text) not in metrics:
            continue
        found.setdefault(verdict.bound, Bound(one_line(verdict.text, limit=60), verdict.bound))
    return tuple(found.values())


def _metric_of(text: str) -> str | None:
    """The metric that a criterion is about, when its left side is a lone `metric.statistic`."""
    try:
        left = parse_criterion(text).left
    except ExpressionError:
        return None
    parts = left.name.split(".") if isinstance(left, Reference) else []
    return parts[0] if len(parts) == 2 and parts[1] in ("mean", "min", "max", "p50", "last") else None


def _told(topic: _Topic, shown: Sequence[tuple[RunReport, ChartSeries]], phase: PhaseReport) -> str:
    """What the chart shows, in a few sentences."""
    runs = {run.id for run, _ in shown}
    text = f"{plural(len(runs), 'run')} over optimizer steps." if len(runs) > 1 else _course(topic, *shown[0])
    end = _warmup(shown)
    if end is not None:
        text += f" Gray: warm-up, to step {end:,}."
    for bound in _bounds(phase.criteria, topic.metrics):
        text += f" Dashed red: the bound of {bound.label}."
    bad = sum(series.non_finite for _, series in shown)
    if bad:
        text += f" {plural(bad, 'value is', 'values are')} not finite (dotted verticals)."
    return text


def _course(topic: _Topic, run: RunReport, series: ChartSeries) -> str:
    """One run in a sentence: mean and interval of what is steady, begin and end of what changes."""
    stats = run.metrics.get(series.metric)
    if topic.wide and stats is not None and stats.window is not None and stats.mean is not None:
        interval = format_interval(stats.ci_low, stats.ci_high)
        text = f"Mean {format_quantity(stats.mean, stats.unit)}"
        text += f", 95 % interval {interval} (blue band)" if interval else ""
        return text + f", over steps {stats.window.first_step:,}–{stats.window.last_step:,} (n = {stats.n:,})."
    if not series.values:
        return "No value is finite."
    return (
        f"{format_number(series.values[0])} at step {series.steps[0]:,}, {format_number(series.values[-1])} at step "
        f"{series.steps[-1]:,}; lowest {format_number(min(series.values))}, "
        f"highest {format_number(max(series.values))}."
    )


def _series_table(topic: _Topic, chosen: Sequence[tuple[RunReport, ChartSeries]]) -> Table:
    """One run: its steps in twelve parts. Several runs: a line each."""
    series = chosen[0][1]
    unit = f" ({series.unit})" if series.unit else ""
    columns = ["First", "Lowest", "Highest", "Last"]
    if len(chosen) == 1:
        rows = tuple(bins(series))
        return Table(
            f"{topic.title} by part of the run{unit}", ("Steps", *columns), rows, frozenset(("Steps", *columns))
        )
    rows = tuple(
        (
            one_line(run.id),
            line.metric,
            *(format_number(value) for value in (line.values[0], min(line.values), max(line.values), line.values[-1])),
        )
        for run, line in chosen
        if line.values
    )
    return Table(f"{topic.title} by run{unit}", ("Run", "Metric", *columns), rows, frozenset(columns))


def _ranks(phase: PhaseReport, runs: Sequence[tuple[RunReport, RunCharts]]) -> list[Figure]:
    """The spread of the ranks of the first run that has one; repeats look alike and each has its metrics table."""
    found = next(((run, drawn.ranks) for run, drawn in runs if drawn.ranks), None)
    if found is None:
        return []
    run, ranks = found
    slowest, fastest = (f(ranks, key=lambda rank: rank.p50) for f in (max, min))
    columns = ("Rank", "p5", "p25", "Median", "p75", "p95", "n")
    rows = tuple(
        (str(r.rank), *(format_number(v) for v in (r.p5, r.p25, r.p50, r.p75, r.p95)), f"{r.n:,}") for r in ranks
    )
    metric = ranks[0].metric
    summary = (
        f"{metric} of each rank after warm-up in {one_line(run.id)}: line 5th to 95th percentile, bar the middle "
        f"half, mark the median. Slowest: rank {slowest.rank}, {format_quantity(slowest.p50, slowest.unit)}; "
        f"fastest: rank {fastest.rank}, {format_quantity(fastest.p50, fastest.unit)}."
    )
    table = Table(f"{metric} by rank ({ranks[0].unit})", columns, rows, frozenset(columns))
    note = f"The first {MAX_RANKS} of {len(ranks)} ranks are drawn." if len(ranks) > MAX_RANKS else ""
    spec, measure = spread_spec(ranks[:MAX_RANKS]), measure_of(metric, ranks[0].unit)
    return [make_figure(phase.id, "Ranks", spec, measure=measure, summary=summary, table=table, wide=False, note=note)]


def _arms(phase: PhaseReport) -> list[Figure]:
    compared = phase.comparison
    if compared is None or not any(arm.run_means for arm in compared.arms):
        return []
    columns = ("Arm", "Mean", "95 % interval", "Runs")
    rows = tuple(
        (
            one_line(arm.arm),
            format_number(arm.mean),
            format_interval(arm.ci_low, arm.ci_high) or "–",
            str(len(arm.run_means)),
        )
        for arm in compared.arms
    )
    summary = (
        f"{one_line(compared.metric)} of each arm: dot and line are the mean of the runs and its 95 % interval over "
        f"runs, short marks the runs themselves, a star the arm to use. {one_line(compared.message)}"
    )
    table = Table("Arms", columns, rows, frozenset(columns[1:]))
    spec = interval_spec(compared, chosen=compared.recommended)
    measure = measure_of(compared.metric, compared.unit)
    return [make_figure(phase.id, "Arms", spec, measure=measure, summary=summary, table=table, wide=True)]
