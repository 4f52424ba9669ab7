"""How numbers stand in sentences."""

from __future__ import annotations

import math

__all__ = ["listed", "number", "percent", "quoted", "told_apart"]


def number(value: float) -> str:
    """Four significant digits without an exponent where people would write none: `39`, `0.9213`, `12,345`."""
    if not math.isfinite(value):
        return str(value)
    if abs(value) >= 1000 and abs(value) < 1e9:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def quoted(value: object) -> str:
    """A value as evidence quotes it: seven significant digits find it again in the file, seventeen hide it."""
    if not isinstance(value, float):
        return str(value)
    return f"{value:.0f}" if value.is_integer() and abs(value) < 1e15 else f"{value:.7g}"


def told_apart(value: float, bound: float) -> tuple[str, str]:
    """Two numbers as people write them, with the digits that it takes to see that they differ: `38.996` and `39`."""
    short = number(value), number(bound)
    if value == bound or short[0] != short[1]:
        return short
    for digits in range(5, 18):
        longer = f"{value:.{digits}g}", f"{bound:.{digits}g}"
        if longer[0] != longer[1]:
            return longer
    return short


def percent(fraction: float) -> str:
    """A fraction as a percentage with its sign: `+2.1 %`."""
    return f"{100 * fraction:+.1f} %"


def listed(names: list[str], *, most: int = 5) -> str:
    """Names for a sentence, shortened: `a, b, c and 4 more`."""
    if len(names) <= most:
        return ", ".join(names)
    return f"{', '.join(names[:most])} and {len(names) - most} more"
