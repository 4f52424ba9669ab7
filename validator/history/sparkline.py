"""A series in the space of a word: block characters in a terminal, a polyline on a page."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["blocks", "polyline"]

_BLOCKS = "▁▂▃▄▅▆▇█"


def blocks(values: Sequence[float], *, width: int = 24) -> str:
    """The last `width` values as block characters, scaled between the smallest and the largest of them.

    A series that moves by less than 1 % is drawn flat, in the middle: noise must not look like a mountain range.
    """
    shown = list(values)[-width:]
    return "".join(_BLOCKS[round(height * (len(_BLOCKS) - 1))] for height in _heights(shown))


def polyline(values: Sequence[float], *, width: float, height: float) -> list[tuple[float, float]]:
    """Points (x, y) of the series in a box, y growing downwards as in SVG."""
    step = width / max(1, len(values) - 1)
    return [(round(place * step, 1), round((1 - up) * height, 1)) for place, up in enumerate(_heights(values))]


def _heights(values: Sequence[float]) -> list[float]:
    """Each value between 0 and 1."""
    if not values:
        return []
    low, high = min(values), max(values)
    middle, span = (low + high) / 2, high - low
    least = 0.01 * abs(middle)
    if span == 0 or span < least:
        span = least or 1.0
    return [min(1.0, max(0.0, 0.5 + (value - middle) / span)) for value in values]
