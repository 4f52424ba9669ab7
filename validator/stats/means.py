"""Tests on run means: whether two sides differ, are equal, or one is not worse, and how many runs are needed.

And on the losses of one run: whether they fall, and whether one row differs from another by more than its noise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median, pvariance

import numpy as np

from validator.model.catalogue import MIN_REPEATS
from validator.model.result import Floats, MetricStats
from validator.stats.distributions import f_above, t_below, t_quantile
from validator.stats.estimate import LEVEL, NORMAL_975

_MOST_POINTS = 300
"""Points in which a trend is looked for: it takes the square of as many."""

_POWER = 0.8
_ALPHA = 1.0 - LEVEL

ONE_SIDED = 0.05
"""Error of a one-sided limit. Two of them are a 90 % interval, which is what an equivalence test at 5 % needs."""

_COMPATIBLE = 0.1
"""Error of the F test by which two variances are taken for different, so that they are not pooled."""

_ASSUMED_DF = 4.0
"""Degrees of freedom of an assumed variation between runs; the measured one has six from 4 + 4 runs. With it
equal sides at the assumed 2 % are decided in 95.4 % of cases instead of 93.8 %."""

_ASSUMED_UP_TO = 1.5
"""Measured over assumed variation beyond which the assumption is dropped. It limits the error of a one-sided limit to
5.9 % where runs vary by 3 % and 2 % are assumed; at 2 % it is 4.3 %."""


@dataclass(frozen=True)
class Welch:
    """Welch's test of a minus b: two-sided p value and 95 % interval, relative to the mean of b."""

    p_value: float
    effect: float
    low: float
    high: float


def welch(a: Sequence[float], b: Sequence[float]) -> Welch:
    """Welch's unequal-variances t test, with the effect relative to |mean(b)|.

    Two arms without any scatter are different with certainty or equal with certainty.
    """
    first, second = np.asarray(a, dtype=float), np.asarray(b, dtype=float)
    base = abs(float(second.mean())) or 1.0
    difference = float(first.mean() - second.mean())
    parts = [float(side.var(ddof=1)) / len(side) for side in (first, second)]
    error = math.sqrt(sum(parts))
    if error <= 1e-12 * base:
        effect = difference / base
        return Welch(1.0 if abs(effect) <= 1e-12 else 0.0, effect, effect, effect)
    df = sum(parts) ** 2 / sum(part**2 / (len(side) - 1) for part, side in zip(parts, (first, second), strict=True))
    half = t_quantile((1 + LEVEL) / 2, df) * error
    p_value = 2.0 * t_below(-abs(difference) / error, df)
    return Welch(p_value, difference / base, (difference - half) / base, (difference + half) / base)


@dataclass(frozen=True)
class Ratio:
    """The ratio of two means, less 1, as its logarithm with standard error and degrees of freedom.

    `linear` where a value is not positive: `center` and `error` are then relative differences themselves.
    """

    center: float
    error: float
    df: float
    linear: bool = False

    def low(self, alpha: float = ONE_SIDED) -> float:
        """The lower limit: the truth lies below it in a share `alpha` of cases."""
        return self._at(-t_quantile(1 - alpha, self.df) * self.error if self.error else 0.0)

    def high(self, alpha: float = ONE_SIDED) -> float:
        """The upper limit, of the same meaning."""
        return self._at(t_quantile(1 - alpha, self.df) * self.error if self.error else 0.0)

    def _at(self, away: float) -> float:
        where = self.center + away
        return where if self.linear else math.expm1(min(where, 700.0))


def ratio(a: Sequence[float], b: Sequence[float], *, assumed_cv: float | None = None) -> Ratio:
    """Mean of a over mean of b with what its one-sided limits need, from at least two run means on each side.

    `assumed_cv`, a variation between runs that is assumed in addition to the measured one, counts where both agree.

    By logarithms, since rates vary in proportion. The variances are pooled where the sides have as many runs and an F
    test shows no difference: with few runs that is worth several percent of power, and with equal numbers it
    costs no size. Otherwise the degrees of freedom are Welch's.
    """
    first, second = np.asarray(a, dtype=float), np.asarray(b, dtype=float)
    linear = bool(min(first.min(), second.min()) <= 0)
    if linear:
        base = abs(float(second.mean())) or 1.0
        first, second = first / base, second / base
    else:
        first, second = np.log(first), np.log(second)
    center = float(first.mean() - second.mean())
    variances = [float(side.var(ddof=1)) for side in (first, second)]
    parts = [variance / len(side) for variance, side in zip(variances, (first, second), strict=True)]
    error = math.sqrt(sum(parts))
    if error <= 1e-12:
        return Ratio(center, 0.0, 1.0, linear)
    n = len(first)
    small, large = sorted(variances)
    alike = assumed_cv is not None and not linear and error * math.sqrt(n / 2) <= _ASSUMED_UP_TO * assumed_cv
    if n == len(second) and alike:
        return _with_assumed(Ratio(center, error, 2.0 * (n - 1)), n, assumed_cv or 0.0)
    if n == len(second) and small > 0 and 2 * f_above(large / small, n - 1, n - 1) > _COMPATIBLE:
        return Ratio(center, error, 2.0 * (n - 1), linear)
    df = sum(parts) ** 2 / sum(part**2 / (len(side) - 1) for part, side in zip(parts, (first, second), strict=True))
    return Ratio(center, error, df, linear)


def _with_assumed(found: Ratio, n: int, assumed_cv: float) -> Ratio:
    """The ratio with its variance, of n runs a side, pooled with the assumed one."""
    measured = found.error * math.sqrt(n / 2)
    df = found.df + _ASSUMED_DF
    variance = (found.df * measured**2 + _ASSUMED_DF * assumed_cv**2) / df
    return Ratio(found.center, math.sqrt(2 * variance / n), df)


def repeats_for_equality(cv: float, margin: float, *, two_sided: bool = True) -> int:
    """Runs per side that show equal sides to be within `margin` with 80 % power when runs vary by `cv`.

    `two_sided` asks for equality, else only that one side is not worse; at least four.
    """
    return _repeats(cv / margin, 1 - ONE_SIDED, (1 + _POWER) / 2 if two_sided else _POWER)


def repeats_needed(cv: float, effect: float, *, comparisons: int = 1) -> int:
    """Runs per arm that find a relative difference `effect` with 80 % power when runs vary by `cv`; at least four."""
    return MIN_REPEATS if effect <= 0 else _repeats(cv / effect, 1 - _ALPHA / (2 * comparisons), _POWER)


def _repeats(noise: float, *quantiles: float) -> int:
    """Runs per side whose standard error, at these quantiles together, is as small as what `noise` is relative to."""
    for n in range(MIN_REPEATS, 1000):
        reach = sum(t_quantile(one, 2 * (n - 1)) for one in quantiles)
        if n >= 2 * (reach * noise) ** 2:
            return n
    return 1000


def pooled_cv(groups: Sequence[Sequence[float]]) -> float | None:
    """Relative standard deviation between runs of the same group, pooled; None when no group has two runs."""
    usable = [np.asarray(group, dtype=float) for group in groups if len(group) > 1 and np.isfinite(group).all()]
    freedom = sum(len(values) - 1 for values in usable)
    if not freedom or any(values.mean() == 0 for values in usable):
        return None
    return math.sqrt(sum(((values / values.mean() - 1.0) ** 2).sum() for values in usable) / freedom)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down adjustment: the smallest p value times the number of tests, and so on, never decreasing."""
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda index: p_values[index])):
        largest = max(largest, min(1.0, p_values[index] * (len(p_values) - rank)))
        adjusted[index] = largest
    return adjusted


# Whether a run learns: losses that fall, and what that says of a gradient norm of 0.

_SUMMABLE = 1e150
"""Losses beyond this, of which no squares can be added, say nothing."""

FEW_LOSSES = 12

_AT_ONCE = 8.0
"""Robust deviations of the later losses by which the first one must lie above them to say that much was learned."""

ROUNDED_NORM = 0.01
"""Gradient norm up to which other rows of 0.000 may be rounding."""


def within_noise(change: float, noise: float | None, *, rows: int) -> bool:
    """Whether a change between sums of so many `rows` in all may be none, by the standard deviation `noise` of one row.

    False where the noise is not known.
    """
    return noise is not None and abs(change) < NORMAL_975 * math.sqrt(rows) * noise


def is_flat(losses: MetricStats) -> bool:
    """Whether a run shows no fall: neither by all its rows, nor so clearly by the first and the last that those of a
    run as good show it too."""
    if losses.first is None or losses.last is None or losses.fell is not False:
        return False
    return within_noise(losses.first - losses.last, losses.noise, rows=4)


def fell(losses: Sequence[float]) -> bool:
    """Whether losses fell, beyond noise and by at least a fiftieth: from the first to the last third, or at the start.

    A run that learns has a gradient: a norm of 0 while the loss falls was not measured (DeepSpeed prints 0.000).
    """
    third = len(losses) // 3
    if len(losses) < FEW_LOSSES or not all(abs(loss) < _SUMMABLE for loss in losses):
        return False
    first, last = losses[:third], losses[-third:]
    rest = median(losses[1:])
    noise = 1.4826 * median(abs(loss - rest) for loss in losses[1:])
    if losses[0] - rest > max(_AT_ONCE * noise, 0.02 * abs(losses[0])):
        return True
    drop = fmean(first) - fmean(last)
    error = math.sqrt((pvariance(first) + pvariance(last)) / third)
    return drop > 0.02 * abs(fmean(first)) and (drop > 4 * error or trend(losses) < -4)


def trend(losses: Sequence[float]) -> float:
    """Mann and Kendall's statistic for a trend, about standard normal without one: rows that sink one by one are no
    noise, however much the first of them differ. Of many rows the means of _MOST_POINTS groups count."""
    if len(losses) > _MOST_POINTS:
        losses = [float(part.mean()) for part in np.array_split(np.asarray(losses), _MOST_POINTS)]
    n = len(losses)
    signs = sum((later > one) - (later < one) for i, one in enumerate(losses) for later in losses[i + 1 :])
    return signs / math.sqrt(n * (n - 1) * (2 * n + 5) / 18)


_MANTISSAS = (7, 10)
"""Bits of bfloat16 and float16, whose steps are often larger than those of the print."""


_NEAR_BY_CHANCE = 1e-3
"""Chance that all losses lie within a decimal of multiples of such a step, below which they are written by it."""


def print_step(losses: Floats) -> float:
    """The last decimal with which losses `[n]` are written, 1e-9 at the finest; of 16-bit floats their own step."""
    scales = (10.0**places for places in range(9))
    step = next((1 / one for one in scales if np.allclose(losses * one, np.rint(losses * one), 1e-9, 1e-6)), 1e-9)
    lowest, several = float(np.abs(losses).min()), len(np.unique(losses))
    own = [2.0 ** (math.floor(math.log2(lowest)) - bits) for bits in _MANTISSAS] if lowest > step else []
    # A few losses lie near whole multiples of a step by chance.
    sure = (one for one in own if one > step and (2 * step / one) ** several <= _NEAR_BY_CHANCE)
    return next((one for one in sure if (_beside(losses, one) <= step).all()), step)


def _beside(losses: Floats, step: float) -> Floats:
    """How far losses `[n]` are from whole multiples of a step."""
    return np.abs(losses - step * np.rint(losses / step))


def says_nsa(effective: object) -> bool:
    """Whether a trainer's effective config says that its attention is NSA, whose gates the limits are about."""
    return isinstance(effective, dict) and str(effective.get("attention", "")).lower() == "nsa"
