"""A chart with its title, sentence and table, and what every kind of chart needs to be made.

A figure is complete without its picture: a screen reader and a terminal browser present the sentence and the table,
and so does the page when the renderer fails.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

from validator.files import Tree, replace_file
from validator.report.elements import anchor
from validator.report.page import Table
from validator.report.specs import Along, ChartSeries, Line
from validator.text import format_number, one_line

VEGA_LITE = "5.20"
"""Pinned, so that a newer renderer does not change the look of reports."""

_MAX_KEPT = 512

_kept: dict[str, str] = {}
"""Drawings by the hash of their specification, the oldest first."""


class ChartError(Exception):
    """A chart could not be drawn; the message says why. Its table still holds what it would have shown."""


def draw(spec: dict[str, Any]) -> str:
    """The chart as an `<svg>` element without accessible text of its own; the figure around it carries that.

    Raises:
        ChartError: when the renderer is missing or refuses.
    """
    text = json.dumps(spec, sort_keys=True)
    key = hashlib.sha256(text.encode()).hexdigest()
    return _keep(key, _kept.pop(key, "") or _drawn(text))


def save(path: Path) -> None:
    """Write the drawings that are kept, for another process to `recall`. Raises OSError when the disk refuses."""
    replace_file(path, json.dumps(_kept))


def recall(path: Path) -> None:
    """Keep what another process has drawn, if it left anything."""
    try:
        with Tree(path.parent) as tree:
            found = tree.json(path.name)
    except (OSError, ValueError):
        return
    for key, svg in found.items() if isinstance(found, dict) else ():
        if isinstance(svg, str):
            _keep(key, svg)


def _keep(key: str, svg: str) -> str:
    _kept[key] = svg
    while len(_kept) > _MAX_KEPT:
        del _kept[next(iter(_kept))]
    return svg


def _drawn(spec: str) -> str:
    try:
        import vl_convert
    except ImportError as error:
        fix = "install it: pip install vl-convert-python"
        raise ChartError(f"the chart renderer cannot be loaded ({error}); {fix}") from error
    try:
        svg: str = vl_convert.vegalite_to_svg(spec, vl_version=VEGA_LITE, allowed_base_urls=[])
    except (ValueError, RuntimeError) as error:
        raise ChartError(f"the chart renderer refused: {error}") from error
    return compact(svg)


_SHAPES = {
    "svg": ("xmlns", "width", "height", "viewBox", "font-family"),
    "g": ("transform", "fill"),
    "path": ("d", "transform"),
    "line": ("transform", "x1", "y1", "x2", "y2"),
    "rect": ("x", "y", "width", "height", "transform"),
    "text": ("transform", "text-anchor", "x", "y", "dx", "dy", "font-size", "font-weight", "font-style"),
    "tspan": ("x", "y", "dx", "dy"),
    "clipPath": ("id",),
    "defs": (),
}
"""Elements and attributes that a chart may hold; everything else (roles, labels, classes, styles) is dropped."""

_PAINT = (
    "fill",
    "stroke",
    "stroke-width",
    "stroke-dasharray",
    "stroke-opacity",
    "fill-opacity",
    "opacity",
    "clip-path",
)
_LONG = re.compile(r"-?\d+\.\d{2,}")
_STRAIGHT = re.compile(r"(?:[ML]-?\d+(?:\.\d+)?,-?\d+(?:\.\d+)?)+")
_POINT = re.compile(r"([ML])(-?\d+(?:\.\d+)?),(-?\d+(?:\.\d+)?)")
_NAMESPACE = "{http://www.w3.org/2000/svg}"


def compact(svg: str) -> str:
    """The same picture in fewer bytes: known shapes only, coordinates to a tenth, two classes for the page's script.

    Raises:
        ChartError: when the renderer's answer is not well-formed.
    """
    try:
        root = ET.fromstring(svg)
    except ET.ParseError as error:
        raise ChartError(f"the chart renderer's answer is not well-formed: {error}") from error
    _strip(root)
    prefix = f"c{hashlib.sha256(svg.encode()).hexdigest()[:10]}"
    text = ET.tostring(root, encoding="unicode", short_empty_elements=True)
    text = re.sub(r'(id="|url\(#)', rf"\g<1>{prefix}", text)
    return text.replace("<svg ", '<svg aria-hidden="true" focusable="false" ', 1)


_IDLE = {"opacity": "1", "stroke-width": "1", "stroke-dasharray": "1,0", "transform": "translate(0,0)"}
"""Attributes that say what holds without them. A dash without gaps also costs a browser more than a plain line."""


def _strip(element: ET.Element) -> None:
    """Remove, below an element and in it, all that does not draw, and groups that say nothing."""
    children = list(element)
    element[:] = []
    for child in children:
        child.tag = child.tag.removeprefix(_NAMESPACE)
        if child.tag not in _SHAPES:
            continue
        _strip(child)
        if child.tag == "g" and not child.attrib:
            element.extend(child)
        elif not _draws_nothing(child):
            element.append(child)
    name = str(element.tag).removeprefix(_NAMESPACE)
    element.tag = name
    if name == "svg":
        element.set("xmlns", "http://www.w3.org/2000/svg")
        element.set("font-family", "sans-serif")
    allowed = (*_SHAPES.get(name, ()), *_PAINT)
    kept = {name: value for name, value in element.attrib.items() if name in allowed and _IDLE.get(name) != value}
    role = _role(element.attrib)
    element.attrib.clear()
    if role:
        element.set("class", role)
    for name, value in kept.items():
        if name != "id":
            value = _LONG.sub(lambda match: f"{float(match[0]):.1f}".removesuffix(".0"), value)
        element.set(name, _relative(value) if name == "d" else value)


def _role(attributes: Mapping[str, str]) -> str | None:
    """What the page's script moves when it zooms: the axis of steps, and what is drawn over it."""
    if attributes.get("aria-label", "").startswith("X-axis"):
        return "x-axis"
    return "marks" if "role-mark" in attributes.get("class", "") else None


def _relative(path: str) -> str:
    """A path of straight lines with relative coordinates, which take half the room. Rounding does not add up."""
    if _STRAIGHT.fullmatch(path) is None:
        return path
    pieces, x, y = [], 0, 0
    for letter, left, right in _POINT.findall(path):
        to_x, to_y = round(float(left) * 10), round(float(right) * 10)
        if letter == "M":
            pieces.append(f"M{_tenths(to_x)},{_tenths(to_y)}l")
        else:
            pieces.append(f"{_tenths(to_x - x)},{_tenths(to_y - y)} ")
        x, y = to_x, to_y
    return re.sub(r"l(?=M|$)", "", "".join(pieces)).replace(",-", "-").replace(" -", "-").rstrip()


def _tenths(value: int) -> str:
    whole, rest = divmod(abs(value), 10)
    return ("-" if value < 0 else "") + (f"{whole or ''}.{rest}" if rest else str(whole))


def _draws_nothing(element: ET.Element) -> bool:
    if element.tag in ("g", "defs"):
        return not len(element)
    return element.tag == "path" and element.get("d", "") in ("", "M0,0h0v0h0Z")


# A chart with its title, sentence and table, and what every kind of chart needs to be made.

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
    """JSON that maps a position in the drawing to a step (or a time) and a value; empty where that is impossible."""
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
