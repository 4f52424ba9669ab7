"""Which charts a phase has, what each says in words, and the table that says the same.

A figure is complete without its picture: a screen reader and a terminal browser present the sentence and the table,
and so does the page when the renderer fails.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from validator.model.catalogue import METRICS, Metric, catalogue_order
from validator.model.expression import ExpressionError, Reference, parse_criterion
from validator.model.verdict import PhaseReport, RunReport, Verdict
from validator.report import specs
from validator.report.figure import Figure, bins, make_figure, measure_of, readout_of, thinner, with_drawing
from validator.report.page import Table
from validator.report.timeline import Watched, throttling_figures
from validator.text import format_interval, format_number, format_quantity, one_line, plural

if TYPE_CHECKING:
    from validator.model.record import ValidationRecord
    from validator.model.result import Result

MAX_LINES = 24
"""Runs drawn in one chart; more would hide each other. The table has them all."""

MAX_RANKS = 64
MAX_POINTS = 1800
"""Points in one chart, shared by its lines."""

_ALL_POINTS = 48_000
"""Points in all charts of a page, so that a report of many phases stays small."""


class _Topic(NamedTuple):
    """A chart of values over an axis: its metrics, best first, and how it is drawn.

    Over steps these are metrics of the trainer, over time quantities of the machine. A wide chart shows the first of
    its metrics that was measured, with its window and interval; the others show all of theirs.
    """

    title: str
    metrics: tuple[str, ...]
    wide: bool = False
    along: specs.Along = "step"


_WIDE = "Rate"
_ORDER = (_WIDE, "Loss", "GPU memory", "Host memory", "Gate entropy", "Gate shares", "Gradient norm")
"""Titles of the catalogue's charts over steps, in the order of the report; further ones follow as they are declared."""

_MACHINE_TOPICS = tuple(
    _Topic(metric.chart or name, (name,), along="time") for name, metric in specs.MACHINE_QUANTITIES.items()
)

_LABELS = {"gate_branch_shares_0": "compressed", "gate_branch_shares_1": "selected", "gate_branch_shares_2": "window"}
"""Branches in the order in which the trainer contract gives their shares."""


def record_charts(record: ValidationRecord, phases: Sequence[PhaseReport]) -> specs.ChartData:
    """The charts' data of a whole validation, with each run's warm-up as it was judged."""
    warmup_end = {run.id: run.warmup_end_step for phase in phases for run in phase.runs}
    results = (run.result for phase in record.phases for run in phase.runs if run.result is not None)
    return chart_data(results, warmup_end=warmup_end, declared=record.runbook.trainer.metrics.declared)


def chart_data(
    results: Iterable[Result],
    *,
    warmup_end: Mapping[str, int | None] | None = None,
    declared: Mapping[str, Metric] | None = None,
) -> specs.ChartData:
    """The charts' data of some runs.

    `warmup_end` gives, by run id, the last step of warm-up where one was found; `declared` the runbook's own series.
    """
    ends, metrics = warmup_end or {}, {**METRICS, **(declared or {})}
    return specs.ChartData({result.run: _run_charts(result, ends.get(result.run), metrics) for result in results})


def _run_charts(result: Result, warmup_end: int | None, metrics: Mapping[str, Metric]) -> specs.RunCharts:
    # Thinning needs numpy; a report without runs starts sooner without it.
    from validator.report.thinning import machine_charts, rank_spread, thin_series

    series = {
        name: thin_series(found, metric.chart)
        for name, found in result.series.items()
        if (metric := metrics.get(name)) is not None and metric.chart and metric.across is None and len(found.steps)
    }
    ranks = rank_spread(result.rank_series, warmup_end)
    return specs.RunCharts(result.run, series, ranks, machine_charts(result, warmup_end=warmup_end))


Drawable = Sequence[tuple[RunReport, specs.RunCharts]]


class _Drawn(NamedTuple):
    """One line of a chart: its run, its label in the legend, and its name in the readout."""

    run: RunReport
    label: str
    name: str
    series: specs.ChartSeries


def all_figures(phases: Sequence[PhaseReport], charts: specs.ChartData) -> tuple[tuple[Figure, ...], ...]:
    """The figures of each phase, still to be drawn. The more charts a page has, the fewer points each gets."""
    drawn = sum(any(run.id in charts.runs for run in phase.runs) for phase in phases)
    points = min(MAX_POINTS, _ALL_POINTS // max(1, drawn * (len(_ORDER) + len(_MACHINE_TOPICS))))
    return tuple(_planned(phase, charts, points=points) for phase in phases)


def phase_figures(phase: PhaseReport, charts: specs.ChartData, *, points: int = MAX_POINTS) -> tuple[Figure, ...]:
    """The figures of one phase, drawn, in the order of the report: over steps, arms, ranks, machine."""
    return tuple(map(with_drawing, _planned(phase, charts, points=points)))


def _planned(phase: PhaseReport, charts: specs.ChartData, *, points: int) -> tuple[Figure, ...]:
    runs = [(run, charts.runs[run.id]) for run in phase.runs if run.id in charts.runs]
    figures = [figure for topic in _step_topics(runs) for figure in _over_axis(phase, runs, topic, points)]
    machine = [figure for topic in _MACHINE_TOPICS for figure in _over_axis(phase, runs, topic, points)]
    throttled = throttling_figures(phase, _watched(runs))
    return (*figures[:1], *_arms(phase), *figures[1:], *_ranks(phase, runs), *machine, *throttled)


def _step_topics(runs: Drawable) -> list[_Topic]:
    """The charts over steps for which these runs have a series, in the order of the report."""
    charts: dict[str, list[str]] = {title: [] for title in _ORDER}
    found = {name: series.chart for _, drawn in runs for name, series in drawn.series.items()}
    for name in sorted(found, key=catalogue_order):
        charts.setdefault(found[name], []).append(name)
    return [_Topic(title, tuple(names), wide=title == _WIDE) for title, names in charts.items() if names]


def _step_lines(runs: Drawable, topic: _Topic) -> list[_Drawn]:
    """Each run's first metric that was measured; with one arm, all metrics of a topic that is not wide."""
    present = [name for name in topic.metrics if any(name in drawn.series for _, drawn in runs)]
    several_arms = len({run.arm for run, _ in runs}) > 1
    metrics = present if not topic.wide and not several_arms else present[:1]
    found = [(run, drawn.series[name]) for name in metrics for run, drawn in runs if name in drawn.series]
    labels = [
        _LABELS.get(series.metric, series.metric) if len(metrics) > 1 else one_line(run.arm or "run", limit=40)
        for run, series in found
    ]
    several = len(set(labels[:MAX_LINES])) > 1  # where all lines have one label, the readout names the run instead
    return [
        _Drawn(run, label, label if several else one_line(run.id), series)
        for (run, series), label in zip(found, labels, strict=True)
    ]


def _watched(runs: Drawable) -> Watched:
    return [(run, drawn.machine) for run, drawn in runs if drawn.machine is not None]


def _time_lines(runs: Drawable, topic: _Topic) -> list[_Drawn]:
    """One run: each of its devices. Several: the line that represents all GPUs of a run."""
    watched, (name,) = _watched(runs), topic.metrics
    if len(watched) == 1:
        run, machine = watched[0]
        return [_Drawn(run, line.device, line.device, line) for line in machine.lines.get(name, ()) if line.values]
    return [
        _Drawn(run, one_line(run.arm or "run", limit=40), one_line(run.id), machine.across[name])
        for run, machine in watched
        if name in machine.across and machine.across[name].values
    ]


def _over_axis(phase: PhaseReport, runs: Drawable, topic: _Topic, points: int) -> Iterator[Figure]:
    """The chart of a topic; none where nothing was measured."""
    over_time = topic.along == "time"
    found = _time_lines(runs, topic) if over_time else _step_lines(runs, topic)
    if not found:
        return
    shown = found[:MAX_LINES]
    metrics, unit = tuple(dict.fromkeys(one.series.metric for one in found)), found[0].series.unit
    warmup_end = _steady_s(runs) if over_time else _warmup_end(shown)
    bounds = _bounds(phase.criteria, metrics)
    lines = [specs.Line(one.label, thinner(one.series, points // len(shown))) for one in shown]
    left_out = len(found) - len(shown)
    yield make_figure(
        phase.id,
        topic.title,
        specs.lines_spec(
            lines,
            wide=topic.wide,
            warmup_end=warmup_end,
            bounds=bounds,
            band=_band(shown) if topic.wide else None,
            along=topic.along,
            percent=unit == "%",
        ),
        measure=measure_of(", ".join(metrics), unit),
        summary=_time_summary(found, warmup_end) if over_time else _steps_summary(topic, shown, bounds),
        table=_series_table(topic, found),
        wide=topic.wide,
        note=f"{plural(left_out, 'line')} more in the table." if left_out else "",
        readout=readout_of(lines, [one.name for one in shown], unit, over=topic.along),
    )


def _warmup_end(shown: Sequence[_Drawn]) -> int | None:
    """The longest warm-up of the runs drawn, in steps."""
    return max((one.run.warmup_end_step for one in shown if one.run.warmup_end_step is not None), default=None)


def _steady_s(runs: Drawable) -> float | None:
    """When the warm-up of a lone run ended, in seconds since its first sample."""
    watched = _watched(runs)
    return watched[0][1].steady_s if len(watched) == 1 else None


def _band(shown: Sequence[_Drawn]) -> specs.Band | None:
    """Window, mean and interval, where there is one run to show them of."""
    if len(shown) != 1:
        return None
    stats = shown[0].run.metrics.get(shown[0].series.metric)
    if stats is None or stats.window is None or stats.mean is None:
        return None
    return specs.Band(stats.window.first_step, stats.window.last_step, stats.mean, stats.ci_low, stats.ci_high)


def _bounds(criteria: Sequence[Verdict], metrics: Sequence[str]) -> tuple[specs.BoundLine, ...]:
    """The bounds of criteria on one of these metrics of this phase, each value once."""
    found: dict[float, specs.BoundLine] = {}
    for verdict in criteria:
        if not isinstance(verdict.bound, float) or _metric_of(verdict.text) not in metrics:
            continue
        found.setdefault(verdict.bound, specs.BoundLine(one_line(verdict.text, limit=60), verdict.bound))
    return tuple(found.values())


def _metric_of(text: str) -> str | None:
    """The metric that a criterion is about, when its left side is a lone `metric.statistic`."""
    try:
        left = parse_criterion(text).left
    except ExpressionError:
        return None
    parts = left.name.split(".") if isinstance(left, Reference) else []
    return parts[0] if len(parts) == 2 and parts[1] in ("mean", "min", "max", "p50", "last") else None


def _steps_summary(topic: _Topic, shown: Sequence[_Drawn], bounds: Sequence[specs.BoundLine]) -> str:
    """What a chart over steps shows, in a few sentences."""
    runs = {one.run.id for one in shown}
    if len(runs) > 1:
        text = f"{plural(len(runs), 'run')} over optimizer steps."
    else:
        text = _one_run_summary(topic, shown[0].run, shown[0].series)
    warmup_end = _warmup_end(shown)
    if warmup_end is not None:
        text += f" Gray: warm-up, to step {warmup_end:,}."
    for bound in bounds:
        text += f" Dashed red: the bound of {bound.label}."
    bad = sum(one.series.non_finite for one in shown)
    if bad:
        text += f" {plural(bad, 'value is', 'values are')} not finite (dotted verticals)."
    return text


def _one_run_summary(topic: _Topic, run: RunReport, series: specs.ChartSeries) -> str:
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


def _time_summary(found: Sequence[_Drawn], steady_s: float | None) -> str:
    """Range of what a chart of the machine shows, its devices, and what the gray area is."""
    unit = found[0].series.unit
    low, high = (f(f(one.series.values) for one in found) for f in (min, max))
    devices = sorted({one.series.device for one in found})
    text = f"Lowest {format_quantity(low, unit)}, highest {format_quantity(high, unit)}"
    runs = len({one.run.id for one in found})
    if runs > 1:
        return f"{text}, over {plural(runs, 'run')}: of each, {', '.join(devices)}."
    text += f", over {plural(len(devices), 'line')}: {', '.join(devices[:8])}." if len(devices) > 1 else "."
    return text + (f" Gray: start and warm-up, to second {steady_s:,.0f}." if steady_s and steady_s > 0 else "")


def _series_table(topic: _Topic, found: Sequence[_Drawn]) -> Table:
    """One line: its course in twelve parts. Several: first, lowest, highest and last value of each."""
    unit = f" ({found[0].series.unit})" if found[0].series.unit else ""
    columns = ("First", "Lowest", "Highest", "Last")
    over, what = ("Seconds", "Device") if topic.along == "time" else ("Steps", "Metric")
    if len(found) == 1:
        rows = tuple(bins(found[0].series))
        return Table(f"{topic.title} by part of the run{unit}", (over, *columns), rows, frozenset((over, *columns)))
    rows = tuple(
        (
            one_line(one.run.id),
            one.series.device or one.series.metric,
            *(format_number(value) for value in (values[0], min(values), max(values), values[-1])),
        )
        for one in found
        if (values := one.series.values)
    )
    by = "run" if len({one.run.id for one in found}) > 1 else what.lower()
    return Table(f"{topic.title} by {by}{unit}", ("Run", what, *columns), rows, frozenset(columns))


def _ranks(phase: PhaseReport, runs: Drawable) -> list[Figure]:
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
    spec, measure = specs.spread_spec(ranks[:MAX_RANKS]), measure_of(metric, ranks[0].unit)
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
    spec = specs.interval_spec(compared, chosen=compared.recommended)
    measure = measure_of(compared.metric, compared.unit)
    return [make_figure(phase.id, "Arms", spec, measure=measure, summary=summary, table=table, wide=True)]
