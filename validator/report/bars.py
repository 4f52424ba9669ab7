"""Bars in named rows on a time axis, as SVG: what ran when, and when a GPU held back.

Every report has a timeline, and to start the chart renderer for it takes longer than all else that a short validation
does. Rows of rectangles need no more than what stands here.

Each bar has its color and, above it, its sign, so that color never says anything alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape
from typing import NamedTuple

from validator.report.formats import one_line
from validator.report.palette import PALETTE
from validator.report.specs import WIDE

__all__ = ["Bar", "bars_svg", "brief", "tick_places", "time_unit"]

_TONES = {"good": "s3", "bad": "bound", "warn": "s2", "info": "s1", "muted": "s6"}
_LEAST_PX = 2.0
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
    """One span in a row, in seconds from the axis' zero; `tone` and `sign` say the same."""

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

    All have the same number of decimals, so `float` of one is its place.
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
    axis = "".join(_axis(end, width=width, title=f"{unit} since {zero}"))
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
        f"{''.join(_marks(rows, bars, scale=width / end / size, width=width))}</g></svg>"
    )


def _middle(place: int) -> float:
    return _ROW_PX * place + _ROW_PX / 2 - 0.5


def _axis(end: float, *, width: int, title: str) -> Iterator[str]:
    """The line, its ticks with their labels, and the title."""
    places = [(label, float(label) / end * width) for label in tick_places(end)]
    ticks = "".join(f"M{x:.1f},0v4" for _, x in places)
    yield f'<path d="M0,0h{width}{ticks}" fill="none" stroke="{_AXIS}"/>'
    yield f'<g font-size="11px" fill="{_TEXT}" text-anchor="middle">'
    yield from (f'<text x="{x:.1f}" y="15">{label}</text>' for label, x in places)
    yield f'<text x="{width / 2:g}" y="30">{escape(title)}</text></g>'


def _marks(rows: Sequence[str], bars: Sequence[Bar], *, scale: float, width: int) -> Iterator[str]:
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
        yield f'<text x="{x + wide / 2:.1f}" y="{_middle(found[bar.row]) - 2.5:g}">{escape(bar.sign)}</text>'
    yield "</g>"


def _extent(bar: Bar, *, scale: float, width: int) -> tuple[float, float]:
    """Where a bar begins and how wide it is, both within the axis."""
    x = min(max(bar.from_s * scale, 0.0), width - _LEAST_PX)
    return x, max(min(bar.to_s * scale, float(width)) - x, _LEAST_PX)
