"""Vega-Lite specification → compact inline SVG, by vl-convert. Nothing is fetched; nothing is drawn twice.

The first chart of a process costs about a second (the renderer starts a JavaScript engine), each further one some
hundredths. So the renderer is imported when there is something to draw, and drawings are kept: a report that is
written again while the validation goes on draws only what is new, and the last one too, in whatever process.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

from validator.files import Tree, replace_file

__all__ = ["ChartError", "draw", "recall", "save"]


VEGA_LITE = "5.20"
"""Pinned, so that a newer renderer does not change the look of reports."""

_MOST_KEPT = 512

_kept: dict[str, str] = {}
"""Drawings by the hash of their specification, the oldest first."""


class ChartError(Exception):
    """A chart could not be drawn; the message says why. Its table still tells what it would have shown."""


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
    while len(_kept) > _MOST_KEPT:
        del _kept[next(iter(_kept))]
    return svg


def _drawn(spec: str) -> str:
    try:
        import vl_convert
    except ImportError as error:
        raise ChartError(f"the chart renderer cannot be loaded: {error}") from error
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
    """The same picture in fewer bytes: known shapes only, coordinates to a tenth, two classes of our own.

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
