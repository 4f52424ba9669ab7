"""A chart with all that stands around it, and what every kind of chart over a run needs to be made.

A figure is complete without its picture: the sentence and the table stand for it in a screen reader, in a terminal
browser, and when the renderer fails.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from validator.report.formats import format_number, one_line
from validator.report.page import Table
from validator.report.parts import anchor
from validator.report.specs import Along, Line
from validator.report.svg import ChartError, draw
from validator.report.view import ChartSeries

__all__ = ["Figure", "bins", "make_figure", "measure_of", "readout_of", "thinner", "with_drawing"]

_BINS = 12

_SIZE = re.compile(r'<svg [^>]*width="([\d.]+)" height="([\d.]+)"')


@dataclass(frozen=True)
class Figure:
    """One chart. `svg` is empty until it is drawn from `spec`, and when it could not be; then `note` says why.

    `readout` is JSON for the page's script: labels of the lines, first and last step, lowest and highest value, unit,
    and `over` where the axis does not count steps. It is empty for charts that have no such axis.
    """

    id: str
    title: str
    measure: str
    summary: str
    svg: str
    table: Table
    wide: bool
    note: str = ""
    readout: str = ""
    spec: dict[str, Any] | None = None

    @property
    def size(self) -> tuple[int, int] | None:
        """Width and height of the drawing in CSS pixels, rounded up; None where there is none."""
        found = _SIZE.search(self.svg)
        return (math.ceil(float(found[1])), math.ceil(float(found[2]))) if found else None

    @property
    def frame(self) -> str:
        """The class of what holds the drawing: it reserves the room, so that a browser may put off painting it."""
        return "s{}x{}".format(*self.size) if self.size else ""


def make_figure(
    place: str,
    title: str,
    drawing: dict[str, Any] | str,
    *,
    measure: str,
    summary: str,
    table: Table,
    wide: bool,
    note: str = "",
    readout: str = "",
) -> Figure:
    """The chart with an id made of `place` and title. `drawing` is a specification still to be drawn, or the SVG."""
    spec, svg = (None, drawing) if isinstance(drawing, str) else (drawing, "")
    return Figure(anchor("chart", place, title), title, measure, summary, svg, table, wide, note, readout, spec)


def with_drawing(figure: Figure) -> Figure:
    """The same figure with its picture; one that cannot be drawn says why."""
    if figure.spec is None:
        return figure
    try:
        return replace(figure, svg=draw(figure.spec), spec=None)
    except ChartError as error:
        note = f"{figure.note} Not drawn: {one_line(error, limit=300)}.".strip()
        return replace(figure, note=note, readout="", spec=None)


def measure_of(metric: str, unit: str) -> str:
    """What the value axis shows: `toks_per_s, tok/s`."""
    return ", ".join(part for part in (one_line(metric, limit=80), one_line(unit, limit=20)) if part)


def readout_of(lines: Sequence[Line], labels: Sequence[str], unit: str, *, over: Along = "step") -> str:
    """What turns a place in the drawing back into a step (or a time) and a value; empty where that cannot be."""
    steps = [step for line in lines for step in line.series.steps]
    values = [value for line in lines for value in line.series.values]
    if not steps or min(steps) == max(steps) or min(values) == max(values):
        return ""
    found: dict[str, Any] = {
        "lines": list(labels),
        "x": [min(steps), max(steps)],
        "y": [min(values), max(values)],
        "unit": unit,
        **({"over": "Second"} if over == "time" else {}),
    }
    return json.dumps(found, ensure_ascii=False, separators=(",", ":"))


def thinner(series: ChartSeries, points: int) -> ChartSeries:
    """Every k-th pair of a series that shares its chart with many others, its first and last point kept."""
    if len(series.steps) <= max(60, points):
        return series
    size = max(1, -(-2 * len(series.steps) // max(60, points)))
    kept = {0, len(series.steps) - 1}
    for start in range(0, len(series.steps), size):
        bucket = range(start, min(start + size, len(series.steps)))
        kept |= {min(bucket, key=series.values.__getitem__), max(bucket, key=series.values.__getitem__)}
    order = sorted(kept)
    return replace(
        series,
        steps=tuple(series.steps[i] for i in order),
        values=tuple(series.values[i] for i in order),
    )


def bins(series: ChartSeries) -> Iterator[tuple[str, ...]]:
    """A series in twelve parts: its steps, then the first, lowest, highest and last value."""
    count = len(series.values)
    parts = min(_BINS, count)
    for part in range(parts):
        start, stop = part * count // parts, (part + 1) * count // parts
        values, steps = series.values[start:stop], series.steps[start:stop]
        span = f"{steps[0]:,}–{steps[-1]:,}" if len(steps) > 1 else f"{steps[0]:,}"
        yield (span, *(format_number(v) for v in (values[0], min(values), max(values), values[-1])))
