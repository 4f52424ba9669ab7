"""Vega-Lite specifications of the charts, as plain dicts.

Everything is drawn from `ChartData` and from numbers that the report holds, so a chart never shows what a table denies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from validator.model.verdict import Comparison
from validator.report.formats import one_line
from validator.report.palette import DASHES, PALETTE, SERIES
from validator.report.view import ChartSeries, RankSpread

__all__ = ["Band", "Bound", "Line", "Along", "Spec", "interval_spec", "lines_spec", "sized", "spread_spec"]

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
class Bound:
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
    bounds: Sequence[Bound] = (),
    band: Band | None = None,
    along: Along = "step",
    percent: bool = False,
) -> Spec:
    """Values over optimizer steps or over time, with warm-up shaded, the window's interval of the mean, and the bounds.

    The value axis has no title: the figure's heading names metric and unit, where no tick label can run into it. It
    holds the whole range of a share in percent, so that 99.5 beside 100 looks like what it is.
    """
    labels = list(dict.fromkeys(line.label for line in lines))
    first = min((line.series.steps[0] for line in lines if line.series.steps), default=0)
    scale: Spec = {"zero": False, "nice": True}
    if percent and all(0 <= value <= 100 for line in lines for value in line.series.values):
        scale = {"domain": [0, 100]}
    y = {"type": "quantitative", "title": None, "scale": scale, "axis": _axis(_top(lines))}
    layers: list[Spec] = []
    if warmup_end is not None and warmup_end > first:
        layers.append(
            {
                "data": {"values": [{"from": first, "to": warmup_end}]},
                "mark": {"type": "rect", "color": _LIGHT["warmup"]},
                "encoding": {"x": _x("from", along), "x2": {"field": "to"}},
            }
        )
    if band is not None:
        layers += _band_layers(band, y)
    layers.append(_line_layer(lines, labels, y, wide=wide, along=along))
    bad = [step for line in lines for step in line.series.non_finite_steps]
    if bad:
        layers.append(
            {
                "data": {"values": [{"step": step} for step in bad]},
                "mark": {"type": "rule", "color": _LIGHT["mark"], "strokeDash": [1, 3]},
                "encoding": {"x": _x("step", "step")},
            }
        )
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
    return {"data": {"values": values}, "mark": mark, "encoding": encoding}


def _band_layers(band: Band, y: Spec) -> list[Spec]:
    layers: list[Spec] = []
    where = {"from": band.first_step, "to": band.last_step, "mean": band.mean, "low": band.low, "high": band.high}
    if band.low is not None and band.high is not None:
        layers.append(
            {
                "data": {"values": [where]},
                "mark": {"type": "rect", "color": _LIGHT["interval"]},
                "encoding": {
                    "x": _x("from", "step"),
                    "x2": {"field": "to"},
                    "y": {"field": "low", **y},
                    "y2": {"field": "high"},
                },
            }
        )
    return layers


def _bound_layer(bound: Bound, y: Spec) -> Spec:
    return {
        "data": {"values": [{"value": bound.value, "label": bound.label}]},
        "layer": [
            {
                "mark": {"type": "rule", "color": _LIGHT["bound"], "strokeDash": [5, 3], "strokeWidth": 1.2},
                "encoding": {"y": {"field": "value", **y}},
            },
            {
                "mark": {
                    "type": "text",
                    "align": "right",
                    "baseline": "bottom",
                    "dy": -3,
                    "x": "width",
                    "color": _LIGHT["bound"],
                },
                "encoding": {"y": {"field": "value", **y}, "text": {"field": "label"}},
            },
        ],
    }


def interval_spec(comparison: Comparison, *, chosen: str | None) -> Spec:
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
    layers = [
        {
            "data": {"values": [arm for arm in arms if arm["low"] is not None and arm["high"] is not None]},
            "mark": {"type": "rule", "strokeWidth": 3},
            "encoding": {"y": y, "x": {"field": "low", **x}, "x2": {"field": "high"}, "color": color},
        },
        {
            "data": {"values": runs},
            "mark": {"type": "tick", "thickness": 1.5, "size": 14, "opacity": 1, "color": _LIGHT["s2"]},
            "encoding": {"y": y, "x": {"field": "mean", **x}},
        },
        {
            "data": {"values": [arm for arm in arms if arm["mean"] is not None]},
            "mark": {"type": "point", "filled": True, "size": 70, "opacity": 1},
            "encoding": {"y": y, "x": {"field": "mean", **x}, "color": color},
        },
    ]
    return sized({"layer": layers}, width=WIDE - 80, height=max(60, 30 * len(arms)))


def spread_spec(ranks: Sequence[RankSpread]) -> Spec:
    """Each rank's times: 5th to 95th percentile as a line, the middle half as a bar, the median as a mark."""
    values = [
        {"rank": f"rank {r.rank}", "p5": r.p5, "p25": r.p25, "p50": r.p50, "p75": r.p75, "p95": r.p95} for r in ranks
    ]
    y = {
        "field": "rank",
        "type": "nominal",
        "sort": [v["rank"] for v in values],
        "title": None,
        "axis": {"grid": False},
    }
    x = {
        "type": "quantitative",
        "title": None,
        "scale": {"zero": False, "nice": True},
        "axis": _axis(max(abs(r.p95) for r in ranks)),
    }
    layers = [
        {
            "mark": {"type": "rule", "color": _LIGHT["s6"]},
            "encoding": {"y": y, "x": {"field": "p5", **x}, "x2": {"field": "p95"}},
        },
        {
            "mark": {"type": "bar", "height": 9, "color": _LIGHT["s1"]},
            "encoding": {"y": y, "x": {"field": "p25", **x}, "x2": {"field": "p75"}},
        },
        {
            "mark": {"type": "tick", "thickness": 2.5, "size": 17, "opacity": 1, "color": _LIGHT["s2"]},
            "encoding": {"y": y, "x": {"field": "p50", **x}},
        },
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


def _top(lines: Sequence[Line]) -> float:
    return max((abs(value) for line in lines for value in line.series.values), default=0.0)


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
