"""The level of a unit from its repeats, and the middle and the spread of many: medians, because a few bad ones must not
move them. Values are logarithms in which larger is better; NaN is a repeat that gave nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from validator.model.result import Floats

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

SLOW_REPEAT, SLOW_REPEAT_NOISE = 0.10, 6.0
"""A repeat that is slow now and then: a tenth, and six standard deviations between repeats, below its unit's others."""

_FEW = 64
_SCALE = 1.4826


def median_of(values: Floats, axis: int) -> Floats:
    """The median along an axis without its NaN; NaN where there is nothing else."""
    ordered = np.sort(values, axis=axis)  # NaN last
    count = np.isfinite(values).sum(axis=axis, keepdims=True)
    low = np.take_along_axis(ordered, np.maximum(count - 1, 0) // 2, axis=axis)
    high = np.take_along_axis(ordered, np.minimum(count // 2, values.shape[axis] - 1), axis=axis)
    middle: Floats = np.where(count > 0, (low + high) / 2, np.nan).squeeze(axis)
    return middle


def center_of(values: Floats) -> float:
    """The middle of known-good units: Hodges and Lehmann's median of all pairs' means for few, which is nearly as exact
    as the mean there, and the median for many; 0 for nothing."""
    usable = values[np.isfinite(values)]
    if usable.size <= _FEW:
        usable = (usable[:, None] + usable)[np.triu_indices(usable.size)] / 2
    return float(np.median(usable)) if usable.size else 0.0


def spread_of(values: Floats, middle: float | None = None) -> float:
    """The median absolute deviation, from the median, scaled to a normal standard deviation; 0 for nothing."""
    usable = values[np.isfinite(values)]
    if not usable.size:
        return 0.0
    return float(_SCALE * np.median(np.abs(usable - (np.median(usable) if middle is None else middle))))


@dataclass(frozen=True, eq=False)
class Levels:
    """The `mean` of each unit `[u]` without its slow repeats, `count` and `slow` repeats; the usual unit's standard
    deviation between repeats, `pooled`, with degrees of freedom `df`."""

    mean: Floats
    count: Ints
    slow: Ints
    pooled: float
    df: float


def levels(values: Floats) -> Levels:
    """The levels of `values [units, repeats]`."""
    away, finite = values - median_of(values, 1)[:, None], np.isfinite(values)
    repeats = max(2.0, float(np.median(finite.sum(axis=1)))) if len(values) else 2.0
    noise = spread_of(away, 0.0) * math.sqrt(repeats / (repeats - 1))
    slow = finite & (away < -slow_limit(noise))
    count = (finite & ~slow).sum(axis=1)
    mean = np.where(count > 0, np.where(finite & ~slow, values, 0.0).sum(axis=1) / np.maximum(count, 1), np.nan)
    squares = (np.where(finite & ~slow, values - mean[:, None], 0.0) ** 2).sum(axis=1)
    known = squares[count > 1] / (count[count > 1] - 1)
    freedom = float(np.median(count[count > 1])) - 1 if known.size else 1.0
    # The median of chi-square over its degrees of freedom is about (1 - 2/9df)**3: a few wild units do not matter.
    pooled = math.sqrt(float(np.median(known)) / (1 - 2 / (9 * freedom)) ** 3) if known.size else math.nan
    return Levels(mean, finite.sum(axis=1), slow.sum(axis=1), pooled, max(1.0, known.size * freedom / 2))


def slow_limit(noise: float) -> float:
    """How far below its usual level a repeat is slow, if repeats vary by `noise`."""
    return max(-math.log1p(-SLOW_REPEAT), SLOW_REPEAT_NOISE * noise)
