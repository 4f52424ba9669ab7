"""What charts are drawn from, and their Vega-Lite specifications as plain dicts.

`ChartData` is all that the charts know of a run: short series of plain numbers, already thinned, and the spread of each
rank. It is rebuilt from the run folder whenever a report is, so nothing of it is stored. Everything is drawn from it,
and from numbers that the report holds, so a chart never shows what a table denies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from validator.model.catalogue import METRICS, Across, Metric
from validator.report.palette import DASHES, PALETTE, SERIES
from validator.text import one_line

if TYPE_CHECKING:
    from validator.model.verdict import ArmComparison

MACHINE_QUANTITIES: Mapping[str, Metric] = {
    metric.column: metric for metric in METRICS.values() if metric.across and metric.chart
}
"""Columns of the samples that are drawn."""

ACROSS_GPUS: Mapping[str, Across] = {
    name: metric.across for name, metric in MACHINE_QUANTITIES.items() if metric.across and metric.across != "host"
}
"""Columns that each GPU has, and which value represents all GPUs of a run."""


@dataclass(frozen=True)
class ChartSeries:
    """One line of a chart, thinned so that each bucket's lowest and highest value stay.

    `chart` is the title of the chart. `steps` (optimizer steps; in charts of the machine, seconds since the first
    sample) and `values` have the same length; values are finite. `device` is `GPU 0`, `host` or `lowest of 8 GPUs` in
    charts of the machine.
    `non_finite_steps` names (at most `MAX_NON_FINITE`) steps whose value was NaN or infinite, of `non_finite` in all.
    """

    metric: str
    unit: str
    steps: tuple[float, ...]
    values: tuple[float, ...]
    device: str = ""
    chart: str = ""
    non_finite: int = 0
    non_finite_steps: tuple[int, ...] = ()


@dataclass(frozen=True)
class Slowdown:
    """An interval in which a GPU was throttled. One that is `invalid` invalidates the measurement; the power cap does
    not.
    """

    device: str
    reason: str
    invalid: bool
    from_s: float
    to_s: float


@dataclass(frozen=True)
class MachineCharts:
    """What can be drawn of the machine during one run.

    `lines` has, by quantity, a line per device; `across` the one line that represents all GPUs. `steady_s` is when
    warm-up ended, in seconds since the first sample; None where that is not known.
    """

    duration_s: float
    lines: Mapping[str, tuple[ChartSeries, ...]] = field(default_factory=dict)
    across: Mapping[str, ChartSeries] = field(default_factory=dict)
    slowdowns: tuple[Slowdown, ...] = ()
    steady_s: float | None = None

    @property
    def gpus(self) -> int:
        """GPUs that were sampled."""
        return max((len(self.lines.get(name, ())) for name in ACROSS_GPUS), default=0)


@dataclass(frozen=True)
class RankSpread:
    """Percentiles of one rank's times after warm-up, in `unit`."""

    rank: int
    metric: str
    unit: str
    n: int
    p5: float
    p25: float
    p50: float
    p75: float
    p95: float


@dataclass(frozen=True)
class RunCharts:
    """What can be drawn of one run: global series by metric, the ranks' spread (empty below two ranks), the machine.

    `sparks` are series without a chart of their own that a tile of the first screen draws.
    """

    run: str
    series: Mapping[str, ChartSeries] = field(default_factory=dict)
    ranks: tuple[RankSpread, ...] = ()
    machine: MachineCharts | None = None
    sparks: Mapping[str, ChartSeries] = field(default_factory=dict)


@dataclass(frozen=True)
class ChartData:
    """What can be drawn of a validation, by run id as in `RunReport.id`. Empty means a report without charts."""

    runs: Mapping[str, RunCharts] = field(default_factory=dict)


# Vega-Lite specifications of the charts, as plain dicts.

Spec = dict[str, Any]

Along = Literal["step", "time"]

WIDE, NARROW = 905, 412
HEIGHT = 190
_LIGHT = {role: ink.light for role, ink in PALETTE.items()}


@dataclass(frozen=True)
class Line:
    """One line of a chart. Lines with the same label share color, dash and legend entry."""

    label: str
    series: ChartSeries


@dataclass(frozen=True)
class BoundLine:
    """A horizontal line that a criterion draws."""

    label: str
    value: float


@dataclass(frozen=True)
class Band:
    """The window of a single run: its steps, mean and interval."""

    first_step: int
    last_step: int
    mean: float
    low: float | None
    high: float | None


def lines_spec(
    lines: Sequence[Line],
    *,
    wide: bool,
    warmup_end: float | None = None,
    bounds: Sequence[BoundLine] = (),
    band: Band | None = None,
    along: Along = "step",
    percent: bool = False,
) -> Spec:
    """Values over optimizer steps or over time, with warm-up shaded, the window's interval of the mean, and the bounds.

    The value axis has no title: the figure's heading names metric and unit, where no tick label can run into it. It
    holds the whole range of a share in percent, so that 99.5 next to 100 looks like the small difference that it is.
    """
    labels = list(dict.fromkeys(line.label for line in lines))
    first = min((line.series.steps[0] for line in lines if line.series.steps), default=0)
    scale: Spec = {"zero": False, "nice": True}
    if percent and all(0 <= value <= 100 for line in lines for value in line.series.values):
        scale = {"domain": [0, 100]}
    top = max((abs(value) for line in lines for value in line.series.values), default=0.0)
    y = {"type": "quantitative", "title": None, "scale": scale, "axis": _axis(top)}
    layers: list[Spec] = []
    if warmup_end is not None and warmup_end > first:
        shaded = {"x": _x("from", along), "x2": {"field": "to"}}
        layers.append(_layer({"type": "rect", "color": _LIGHT["warmup"]}, shaded, [{"from": first, "to": warmup_end}]))
    if band is not None and band.low is not None and band.high is not None:
        layers.append(_band_layer(band, y))
    layers.append(_line_layer(lines, labels, y, wide=wide, along=along))
    bad = [step for line in lines for step in line.series.non_finite_steps]
    if bad:
        mark = {"type": "rule", "color": _LIGHT["mark"], "strokeDash": [1, 3]}
        layers.append(_layer(mark, {"x": _x("step", "step")}, [{"step": step} for step in bad]))
    layers += [_bound_layer(bound, y) for bound in bounds]
    return sized({"layer": layers}, width=WIDE if wide else NARROW, height=HEIGHT)


def _line_layer(lines: Sequence[Line], labels: Sequence[str], y: Spec, *, wide: bool, along: Along) -> Spec:
    values = [
        {"step": step, "value": value, "line": line.label, "run": index}
        for index, line in enumerate(lines)
        for step, value in zip(line.series.steps, line.series.values, strict=True)
    ]
    lone = all(len(line.series.steps) == 1 for line in lines)
    columns = max(1, (WIDE if wide else NARROW) // (45 + 7 * max(len(label) for label in labels)))
    legend: Spec | None = (
        {
            "orient": "top",
            "title": None,
            "symbolType": "stroke",
            "columnPadding": 30,
            "columns": columns,
            "labelLimit": 300,
        }
        if len(labels) > 1
        else None
    )
    colors = [_LIGHT[SERIES[index % len(SERIES)]] for index in range(len(labels))]
    dashes = [list(DASHES[(index + index // len(SERIES)) % len(DASHES)]) for index in range(len(labels))]
    encoding: Spec = {
        "x": _x("step", along),
        "y": {"field": "value", **y},
        "detail": {"field": "run", "type": "nominal"},
        "color": {"field": "line", "type": "nominal", "scale": {"domain": labels, "range": colors}, "legend": legend},
    }
    if not lone:
        scale = {"domain": labels, "range": dashes}
        encoding["strokeDash"] = {"field": "line", "type": "nominal", "scale": scale, "legend": legend}
    mark = (
        {"type": "point", "filled": True}
        if lone
        else {"type": "line", "strokeWidth": 1.4 if len(lines) <= 4 else 1, "clip": True}
    )
    return _layer(mark, encoding, values)


def _layer(mark: Spec, encoding: Spec, values: Sequence[Mapping[str, Any]] | None = None) -> Spec:
    """One mark; without values of its own it draws those of the whole chart."""
    return {**({} if values is None else {"data": {"values": values}}), "mark": mark, "encoding": encoding}


def _band_layer(band: Band, y: Spec) -> Spec:
    where = {"from": band.first_step, "to": band.last_step, "mean": band.mean, "low": band.low, "high": band.high}
    over = {"x": _x("from", "step"), "x2": {"field": "to"}, "y": {"field": "low", **y}, "y2": {"field": "high"}}
    return _layer({"type": "rect", "color": _LIGHT["interval"]}, over, [where])


def _bound_layer(bound: BoundLine, y: Spec) -> Spec:
    line = {"type": "rule", "color": _LIGHT["bound"], "strokeDash": [5, 3], "strokeWidth": 1.2}
    place = {"align": "right", "baseline": "bottom", "dy": -3, "x": "width"}
    at: Spec = {"y": {"field": "value", **y}}
    return {
        "data": {"values": [{"value": bound.value, "label": bound.label}]},
        "layer": [
            _layer(line, at),
            _layer({"type": "text", **place, "color": _LIGHT["bound"]}, {**at, "text": {"field": "label"}}),
        ],
    }


def interval_spec(comparison: ArmComparison, *, chosen: str | None) -> Spec:
    """Each arm's mean with its interval over runs, and the runs themselves as small marks."""
    names = [("★ " if arm.arm == chosen else "") + one_line(arm.arm, limit=24) for arm in comparison.arms]
    arms = [
        {"arm": name, "mean": arm.mean, "low": arm.ci_low, "high": arm.ci_high, "chosen": arm.arm == chosen}
        for name, arm in zip(names, comparison.arms, strict=True)
    ]
    runs: list[Spec] = [
        {"arm": name, "mean": mean} for name, arm in zip(names, comparison.arms, strict=True) for mean in arm.run_means
    ]
    x: Spec = {"type": "quantitative", "title": None, "scale": {"zero": False, "padding": 18}}
    x["axis"] = _axis(max((abs(run["mean"]) for run in runs), default=0.0))
    y = {"field": "arm", "type": "nominal", "sort": names, "title": None, "axis": {"labelLimit": 180, "grid": False}}
    color = {"condition": {"test": "datum.chosen", "value": _LIGHT["s1"]}, "value": _LIGHT["s6"]}
    thick = {"type": "rule", "strokeWidth": 3}
    tick = {"type": "tick", "thickness": 1.5, "size": 14, "opacity": 1, "color": _LIGHT["s2"]}
    dot = {"type": "point", "filled": True, "size": 70, "opacity": 1}
    interval = {"y": y, "x": {"field": "low", **x}, "x2": {"field": "high"}, "color": color}
    at_mean = {"y": y, "x": {"field": "mean", **x}}
    layers = [
        _layer(thick, interval, [arm for arm in arms if arm["low"] is not None and arm["high"] is not None]),
        _layer(tick, at_mean, runs),
        _layer(dot, {**at_mean, "color": color}, [arm for arm in arms if arm["mean"] is not None]),
    ]
    return sized({"layer": layers}, width=WIDE - 80, height=max(60, 30 * len(arms)))


def spread_spec(ranks: Sequence[RankSpread]) -> Spec:
    """Each rank's times: 5th to 95th percentile as a line, the middle half as a bar, the median as a mark."""
    values = [
        {"rank": f"rank {r.rank}", "p5": r.p5, "p25": r.p25, "p50": r.p50, "p75": r.p75, "p95": r.p95} for r in ranks
    ]
    names = [value["rank"] for value in values]
    y = {"field": "rank", "type": "nominal", "sort": names, "title": None, "axis": {"grid": False}}
    x: Spec = {"type": "quantitative", "title": None, "scale": {"zero": False, "nice": True}}
    x["axis"] = _axis(max(abs(r.p95) for r in ranks))
    median = {"type": "tick", "thickness": 2.5, "size": 17, "opacity": 1, "color": _LIGHT["s2"]}
    layers = [
        _layer({"type": "rule", "color": _LIGHT["s6"]}, {"y": y, "x": {"field": "p5", **x}, "x2": {"field": "p95"}}),
        _layer(
            {"type": "bar", "height": 9, "color": _LIGHT["s1"]},
            {"y": y, "x": {"field": "p25", **x}, "x2": {"field": "p75"}},
        ),
        _layer(median, {"y": y, "x": {"field": "p50", **x}}),
    ]
    return sized({"data": {"values": values}, "layer": layers}, width=NARROW, height=max(60, 22 * len(ranks)))


def _x(field: str, along: Along) -> Spec:
    title = {"step": "optimizer step", "time": "seconds since the first sample"}[along]
    return {
        "field": field,
        "type": "quantitative",
        "title": title,
        "scale": {"zero": False, "nice": False, "padding": 4},
        "axis": {"format": ",d", "tickMinStep": 1, "tickCount": 8, "grid": False},
    }


def _axis(top: float) -> Spec:
    """Few ticks; large numbers in thousands, so that labels stay short."""
    return {"tickCount": 5, **({"format": "~s"} if top >= 10_000 else {})}


def sized(body: Mapping[str, Any], *, width: int, height: int) -> Spec:
    """A whole specification: layers, size in pixels, and the look that all charts share."""
    text = {"labelColor": _LIGHT["text"], "titleColor": _LIGHT["text"], "labelFontSize": 11, "titleFontSize": 11}
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
        "width": width,
        "height": height,
        "padding": 4,
        "background": None,
        "config": {
            "font": "sans-serif",
            "view": {"stroke": None},
            "axis": {
                **text,
                "titleFontWeight": "normal",
                "gridColor": _LIGHT["grid"],
                "domainColor": _LIGHT["axis"],
                "tickColor": _LIGHT["axis"],
                "tickSize": 4,
            },
            "legend": {**text, "padding": 0, "offset": 6},
            "text": {"fontSize": 11},
        },
        **body,
    }
