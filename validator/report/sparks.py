"""Spark lines: the course of a series over its window, small enough for a tile."""

from __future__ import annotations

import math

from validator.model.result import Span
from validator.report.figure import thinner
from validator.report.page import SPARK_HEIGHT, SPARK_WIDTH, Spark
from validator.report.specs import ChartSeries
from validator.text import format_number, format_quantity, one_line

_POINTS = 240
"""About as many as a tile has pixels: fewer would draw the extremes of buckets as a saw."""

_REACH = 2.0
"""A bound farther from the values than this many times their range would flatten the line, and is not drawn."""


def spark_of(series: ChartSeries, window: Span | None, bound: float | None, run: str) -> Spark | None:
    """The line of a series within its window, with its bound where that is near; None for fewer than three values."""
    pairs = sorted(  # a log may go back
        (step, value)
        for step, value in zip(series.steps, series.values, strict=True)
        if window is None or window.first_step <= step <= window.last_step
    )
    if len(pairs) < 3 or pairs[0][0] == pairs[-1][0]:
        return None
    steps, values = zip(*pairs, strict=True)
    thin = thinner(ChartSeries(series.metric, series.unit, steps, values), _POINTS)
    low, high = min(values), max(values)
    if not math.isfinite(high - low):
        return None
    near = bound is not None and max(bound - high, low - bound) <= _REACH * (high - low)
    bottom, top = (min(low, bound), max(high, bound)) if near and bound is not None else (low, high)
    text = (
        f"{one_line(series.metric)} of {one_line(run)}, steps {steps[0]:,}–{steps[-1]:,}: "
        f"lowest {format_number(low)}, highest {format_quantity(high, series.unit)}"
    )
    return Spark(
        points=" ".join(
            f"{_across(step, steps[0], steps[-1])},{_up(value, bottom, top)}"
            for step, value in zip(thin.steps, thin.values, strict=True)
        ),
        bound=_up(bound, bottom, top) if near and bound is not None else "",
        text=f"{text}; dashed: the bound, {format_quantity(bound, series.unit)}" if near else text,
    )


def _across(step: float, first: float, last: float) -> str:
    return f"{SPARK_WIDTH * (step - first) / (last - first):.1f}".removesuffix(".0")


def _up(value: float, bottom: float, top: float) -> str:
    """Height of a value, from the top as SVG counts; a line that does not move lies in the middle."""
    share = (value - bottom) / (top - bottom) if top > bottom else 0.5
    return f"{1 + (SPARK_HEIGHT - 2) * (1 - share):.1f}".removesuffix(".0")
