"""How numbers stand in sentences."""

from __future__ import annotations

import math

__all__ = ["listed", "number", "percent"]


def number(value: float) -> str:
    """Four significant digits without an exponent where people would write none: `39`, `0.9213`, `12,345`."""
    if not math.isfinite(value):
        return str(value)
    if abs(value) >= 1000 and abs(value) < 1e9:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def percent(fraction: float) -> str:
    """A fraction as a percentage with its sign: `+2.1 %`."""
    return f"{100 * fraction:+.1f} %"


def listed(names: list[str], *, most: int = 5) -> str:
    """Names for a sentence, shortened: `a, b, c and 4 more`."""
    if len(names) <= most:
        return ", ".join(names)
    return f"{', '.join(names[:most])} and {len(names) - most} more"
