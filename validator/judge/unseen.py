"""What a window of one run cannot show, and its interval must allow for: a pause it missed, a trend it hides.

The bootstrap knows only the steps that it was given. Two things are systematically absent from a short window. Rare
slow steps: at one in fifty, two windows of 40 steps in five hold none and look faster than the run is. And the end of
a warm-up, which no test tells from noise in some dozens of rows. Intervals that ignore them cover the truth in 58 to
88 % of simulated runs in place of 95 % (docs/statistics.md).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from validator.judge.estimate import Estimate

__all__ = ["TREND_ROWS", "allow_for_unseen"]

Floats = npt.NDArray[np.float64]

TREND_ROWS = 100
"""Rows from which the search of the window finds a trend that matters; below, the interval allows for one."""

_BEYOND = 2.0
"""How far a trend is followed, in half windows from the middle: to the end of the window and half a window further."""


def allow_for_unseen(mean: Estimate, numerator: Floats, denominator: Floats, *, slow: int) -> Estimate:
    """The mean of one run, its interval extended for one more slow step and, in a short window, for its own trend.

    Args:
        mean: sum of `numerator [n]` over sum of `denominator [n]`, with replicates.
        slow: -1 when a slow step lowers the mean (rates), +1 when it raises it (times), 0 when it does neither.

    The slow side is extended by the weight of one step that takes twice as long, 1/n of the value. The side to which a
    straight line through a window of fewer than TREND_ROWS rows leads is extended by where that line leads.
    """
    interval = mean.interval()
    if interval is None or mean.replicates is None or not slow:
        return mean
    n, point = len(numerator), mean.point
    pause, trend = slow * abs(point) / n, _trend(numerator, denominator, point)
    low, high = point - interval[0], interval[1] - point
    further_low = max(-pause, 0.0) + max(-trend, 0.0)
    further_high = max(pause, 0.0) + max(trend, 0.0)
    below = mean.replicates < point
    factor = np.where(below, _factor(low, further_low), _factor(high, further_high))
    shifted = point + (mean.replicates - point) * factor
    if low == 0.0 or high == 0.0:
        # Without any scatter there is nothing to stretch: the allowance is spread evenly instead.
        shifted = shifted + np.linspace(-further_low, further_high, len(shifted)) / 0.95
    return Estimate(point, np.asarray(shifted, dtype=np.float64))


def _factor(reach: float, further: float) -> float:
    return (reach + further) / reach if reach > 0 else 1.0


def _trend(numerator: Floats, denominator: Floats, point: float) -> float:
    """Where a least-squares line through the window leads, less its mean; 0 for a window that is long enough."""
    n = len(numerator)
    if not 2 < n < TREND_ROWS:
        return 0.0
    influence = (numerator - point * denominator) / denominator.mean()
    x = np.arange(n) - (n - 1) / 2
    slope = float(x @ influence) / float(x @ x)
    return _BEYOND * slope * (n - 1) / 2
