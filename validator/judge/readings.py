"""What a statistic is in every part of a run: the least and the greatest of these readings decide where they agree.

A value that lies far on one side of its bound in each sixth of the window, and on each level that the run had, needs no
formula that says how sure its mean is. So neither autocorrelation nor a ramp, nor a handful of rows, keeps a clear
answer back (docs/statistics.md).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from validator.judge.autocorrelation import mean_half_width
from validator.judge.estimate import UNKNOWN_REACH, Reach
from validator.judge.rows import Windowed
from validator.judge.window import SteadyWindow
from validator.model.catalogue import QUANTILES

__all__ = ["levels_of", "reach_of"]

Floats = npt.NDArray[np.float64]

PARTS = 6
"""Parts of a window whose means are read: were they noise alone, all would lie on one side of the truth in one run of
thirty-two. With fewer than two rows for each, every row is read; with fewer rows than parts, none."""

SPREAD_FACTOR = 2.0
"""How far the spread of a long run may be from that of a part of a short one."""


def reach_of(rows: Windowed, statistic: str, window: SteadyWindow) -> Reach:
    """Least and greatest reading of `statistic` over the parts of the rows and over the levels of the window.

    After a lasting slow-down the interval of the last level counts as well. The percentiles of a long run are within
    the range of the rows, and upwards as far again as the greatest row is from the median.
    """
    values = rows.values
    if len(values) < PARTS or not np.isfinite(values).all():
        return UNKNOWN_REACH
    if statistic in QUANTILES:
        low, middle, high = float(values.min()), float(np.median(values)), float(values.max())
        return low, high if statistic == "p50" else high + (high - middle)
    levels = levels_of(rows, window)
    if statistic != "mean":
        spreads = [_spread(values[part], relative=statistic == "cv") for part in (slice(None), *_parts(len(values)))]
        known = all(math.isfinite(spread) for spread in spreads)
        return (min(spreads) / SPREAD_FACTOR, max(spreads) * SPREAD_FACTOR) if known else UNKNOWN_REACH
    parts = [*_parts(len(values)), *levels]
    with np.errstate(all="ignore"):
        means = [float(rows.numerator[part].sum() / rows.denominator[part].sum()) for part in parts]
    if window.slowed and levels:
        means += _interval(rows, levels[-1], means[-1])
    return (min(means), max(means)) if all(math.isfinite(mean) for mean in means) else UNKNOWN_REACH


def _parts(rows: int) -> Iterator[slice]:
    edges = np.linspace(0, rows, (PARTS if rows >= 2 * PARTS else rows) + 1).astype(int).tolist()
    return (slice(a, b) for a, b in pairwise(edges))


def levels_of(rows: Windowed, window: SteadyWindow) -> list[slice]:
    """The rows of each level that has any."""
    edges = [
        (
            int(np.searchsorted(rows.steps, level.first_step)),
            int(np.searchsorted(rows.steps, level.last_step, side="right")),
        )
        for level in window.levels
    ]
    return [slice(a, b) for a, b in edges if b > a]


def _interval(rows: Windowed, part: slice, mean: float) -> Sequence[float]:
    numerator, denominator = rows.numerator[part], rows.denominator[part]
    half = mean_half_width((numerator - mean * denominator) / denominator.mean())
    return mean - half, mean + half


def _spread(values: Floats, *, relative: bool) -> float:
    mean = float(values.mean())
    return float(values.std()) / (abs(mean) if mean else math.nan) if relative else float(values.std())
