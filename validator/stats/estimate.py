"""A number together with what it could also have been.

An `Estimate` carries replicates, so that the arithmetic of a criterion carries its interval: the replicates of a
ratio are the ratios of the replicates. A value without replicates is exact: a count, a first or last value, a literal.
Two estimates of the same run are drawn with the same random numbers, so what they share cancels.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np

from validator.model.catalogue import MAY_MISS, MIN_REPEATS, QUANTILES
from validator.model.result import Floats
from validator.stats.autocorrelation import independent_rows, is_constant, mean_half_width
from validator.stats.rows import Windowed
from validator.stats.timing import Timing
from validator.stats.window import SteadyWindow

LEVEL = 0.95
"""Coverage of every interval."""

SECOND_LEVEL = 0.98
"""Coverage of the intervals of a phase that was extended: a second look has its own chance to be wrong, and both
together must stay within 5 % on each side."""

REPLICATES = 4000
"""Replicates of an estimate: the 2.5 % point of a t distribution with 3 degrees of freedom is then good to 4 %."""

TAIL = 2.0
"""Bias of a mean after a slow start, over what the second half differs from the whole: exact for an excess that falls
to a third from the first half to the second, and more than enough for one that fades faster."""

_BLOCKS = 32
NORMAL_975 = 1.959963984540054
"""Standard errors from a mean to an end of its 95 % interval."""


class TooFewSamples(ValueError):
    """An interval cannot be stated from so little; the message says how much was there and how much would do."""


Reach = tuple[float, float]
"""Least and greatest value that a statistic has in any part of what was measured."""

UNKNOWN_REACH: Reach = (-math.inf, math.inf)


@dataclass(frozen=True, eq=False)
class Estimate:
    """`point` is the observed value, `replicates [REPLICATES]` its distribution.

    A value is `exact` without replicates, unless `unknown` says why they cannot be had. `reach` spans its readings in
    every part of the runs behind it, with the variation between runs allowed for.
    """

    point: float
    replicates: Floats | None = None
    reach: Reach = UNKNOWN_REACH
    unknown: str | None = None

    @property
    def exact(self) -> bool:
        """Whether the value is what it is."""
        return self.replicates is None and self.unknown is None

    def interval(self, level: float = LEVEL) -> tuple[float, float] | None:
        """The interval of this coverage; None for a value that is exact, or whose distribution is not known."""
        if self.replicates is None:
            return None
        low, high = np.quantile(self.replicates, [(1 - level) / 2, (1 + level) / 2])
        # The observed value lies in its own interval whatever the replicates' asymmetry.
        return min(float(low), self.point), max(float(high), self.point)


def without_negatives(interval: tuple[float, float], lowest: float) -> tuple[float, float]:
    """The interval without what lies below 0, if nothing that was read does: then neither does the truth."""
    return (max(interval[0], 0.0), max(interval[1], 0.0)) if lowest >= 0 else interval


def exact(value: float) -> Estimate:
    """A value without interval."""
    return Estimate(float(value), reach=(float(value), float(value)))


def combine(operator: str, operands: Sequence[Estimate]) -> Estimate:
    """`+ - * /` of two estimates, `abs` of one, `min` or `max` of any number.

    Raises:
        ZeroDivisionError: when the observed divisor is 0.
    """
    points = [operand.point for operand in operands]
    if operator == "/" and points[1] == 0:
        raise ZeroDivisionError("the divisor is 0")
    point = float(_apply(operator, points))
    reach = _reach(operator, [operand.reach for operand in operands])
    unknown = next((operand.unknown for operand in operands if operand.unknown is not None), None)
    if unknown is not None or all(operand.exact for operand in operands):
        return Estimate(point, None, reach, unknown)
    columns = [operand.point if operand.replicates is None else operand.replicates for operand in operands]
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        return Estimate(point, np.asarray(_apply(operator, columns), dtype=np.float64), reach)


def _reach(operator: str, reaches: Sequence[Reach]) -> Reach:
    """The arithmetic of intervals: every value that the operands' readings can give together."""
    low, high = reaches[0]
    if operator == "abs":
        return (0.0 if low < 0 < high else min(abs(low), abs(high)), max(abs(low), abs(high)))
    if operator in ("min", "max"):
        pick = min if operator == "min" else max
        return pick(one[0] for one in reaches), pick(one[1] for one in reaches)
    other = reaches[1]
    if operator == "/" and other[0] <= 0 <= other[1]:
        return UNKNOWN_REACH
    with np.errstate(invalid="ignore", over="ignore"):
        corners = [float(_apply(operator, [np.float64(a), np.float64(b)])) for a in (low, high) for b in other]
    return UNKNOWN_REACH if any(math.isnan(one) for one in corners) else (min(corners), max(corners))


def _apply(operator: str, values: Sequence[float | Floats]) -> float | Floats:
    first = values[0]
    if operator == "abs":
        return np.abs(first)
    if operator in ("min", "max"):
        reduce = np.minimum if operator == "min" else np.maximum
        for value in values[1:]:
            first = reduce(first, value)
        return first
    second = values[1]
    if operator == "+":
        return first + second
    if operator == "-":
        return first - second
    if operator == "*":
        return first * second
    return first / second


def _generator(seed: str, *salt: int) -> np.random.Generator:
    return np.random.default_rng([zlib.crc32(seed.encode()), *salt])


def sampled_mean(
    numerator: Floats,
    denominator: Floats,
    *,
    seed: str,
    what: str = "the series",
    levels: Sequence[slice] = (),
    slow_start: bool = False,
    timing: Timing | None = None,
) -> Estimate:
    """Sum of `numerator [n]` over sum of `denominator [n]`: a rate, or a weighted mean.

    With `levels`, which cover the rows, it is the mean of a run with these levels: the step between them is no scatter.
    After a `slow_start` the interval is wider by the bias of its tail, which `TAIL` estimates: no test on rows that
    vary shows where a start has faded.

    The rounding of a coarse clock, by its `timing`, makes rows vary, and yet no more than that of the first and the
    last one is in their mean. So the interval is that of rows whose times vary no more than the clock shows for
    certain, wider by the error of the ends; or that of the rows as they are, which holds the rounding as if it added
    up, where this is narrower.

    Raises:
        TooFewSamples: for a single row.
    """
    ratio = float(numerator.sum() / denominator.sum())
    influence = (numerator - ratio * denominator) / denominator.mean()
    for level in levels:
        influence[level] -= influence[level].mean()
    bias = TAIL * abs(float(influence[len(influence) // 2 :].mean())) if slow_start else 0.0
    found = _from_influence(ratio, influence, seed=seed, what=what, bias=bias)
    if timing is None:
        return found
    if timing.clock.row_s > 0:
        half = timing.row_share * abs(ratio) * len(influence) / 2
        certain = _without_rounding(influence, half)
        ends = _from_influence(ratio, certain, seed=seed, what=what, bias=bias + timing.end_share() * abs(ratio))
        return min(found, ends, key=_width)
    return _from_influence(ratio, influence, seed=seed, what=what, bias=bias + timing.end_share() * abs(ratio))


def _width(one: Estimate) -> float:
    low, high = one.interval() or (-math.inf, math.inf)
    return high - low


def _without_rounding(influence: Floats, half: float) -> Floats:
    """What each row adds where the sum so far, known to within `half` either way, moves no more than it must."""
    path, now = np.empty(len(influence)), 0.0
    for row, value in enumerate(np.cumsum(influence).tolist()):
        now = min(max(now, value - half), value + half)
        path[row] = now
    made: Floats = np.diff(path, prepend=0.0)
    return np.asarray(made - made.mean())


def _from_influence(point: float, influence: Floats, *, seed: str, what: str, bias: float = 0.0) -> Estimate:
    """A statistic whose error is the mean of `influence [n]`, what each row contributes to it (delta method).

    The half width of the 95 % interval is `mean_half_width`, and greater by the `bias` that the statistic may have. The
    replicates are a multiplier bootstrap of blocks, with the same multipliers for every metric of a file, so that what
    two of them share cancels in a difference.
    """
    n = len(influence)
    if n < 2:
        raise TooFewSamples(f"too few samples of {what}: a single row has no spread; log more often or run longer")
    constant = is_constant(influence + point)
    if constant and not bias:
        return Estimate(point, np.full(REPLICATES, point))
    half = 0.0 if constant else mean_half_width(influence, level=LEVEL)
    if not math.isfinite(half) or not math.isfinite(bias):
        raise TooFewSamples(f"{what} holds values too large to compute with")
    error = (half + bias) / NORMAL_975
    edges = np.linspace(0, n, min(n, _BLOCKS) + 1).astype(np.int64)[:-1]
    sums = np.add.reduceat(influence - influence.mean(), edges)
    scale = float(np.abs(sums).max())
    if scale == 0.0:
        sums, scale = np.ones(len(edges)), 1.0
    weights = sums / scale / math.sqrt(float(((sums / scale) ** 2).sum()))
    return Estimate(point, np.asarray(point + error * (_block_multipliers(seed)[:, : len(edges)] @ weights)))


@lru_cache(maxsize=4)  # of a megabyte each
def _block_multipliers(seed: str) -> Floats:
    return _generator(seed).standard_normal((REPLICATES, _BLOCKS))


def sampled_spread(values: Floats, *, relative: bool, seed: str, what: str = "the series") -> Estimate:
    """Population standard deviation of `values [n]`, or with `relative` its ratio to the mean.

    Raises:
        TooFewSamples: for a single row, and for the ratio to a mean of 0.
    """
    mean, stdev = float(values.mean()), float(values.std())
    if relative and mean == 0:
        raise TooFewSamples(f"the mean of {what} is 0, so its coefficient of variation does not exist")
    if is_constant(values):
        return _from_influence(0.0, np.zeros(len(values)), seed=seed, what=what)
    influence = ((values - mean) ** 2 - stdev * stdev) / (2 * stdev)  # a product ends in inf, a power in an error
    if relative:
        influence = influence / mean - (values - mean) * stdev / (mean * mean)
    return _from_influence(stdev / mean if relative else stdev, influence, seed=seed, what=what)


def sampled_quantile(values: Floats, q: float, *, seed: str, what: str = "the series") -> Estimate:
    """The q-quantile of `values [n]`.

    Replicates are order statistics at Beta-distributed ranks, which is the exact law of the bootstrap quantile, with
    the effective size in place of n. A tail that the sample does not reach has no interval.

    Raises:
        TooFewSamples: when fewer than 90 % of samples of this effective size would enclose the quantile.
    """
    n = len(values)
    effective = independent_rows(values)
    phi = (n - effective) / (n + effective)
    tail = max(q, 1 - q)
    # The two-sided interval loses 2.5 % on the near side; the rest of 10 % may be lost beyond the extreme value.
    if tail**effective > MAY_MISS:
        wanted = math.ceil(math.log(0.06) / math.log(tail) * (1 + phi) / (1 - phi))
        raise TooFewSamples(
            f"too few samples of {what} for its {100 * q:g}th percentile: {n} rows with autocorrelation {phi:.2f} "
            f"count as {effective:.0f} independent ones; about {wanted} rows in the window would do"
        )
    ranks = _generator(seed, n, round(1000 * q)).beta(q * (effective + 1), (1 - q) * (effective + 1), size=REPLICATES)
    return Estimate(float(np.quantile(values, q)), np.asarray(np.quantile(values, ranks), dtype=np.float64))


def over_runs(runs: Sequence[Estimate], *, run_cv: float, sign: int, seed: str) -> Estimate:
    """The mean over repeats, with the interval over runs: what the next run could also have shown.

    With four runs or more, their own variation is the scale: replicates are a Student-t multiplier bootstrap of the run
    means, whose multipliers are the same for every metric of these runs. With fewer, that variation is not known:
    `run_cv` is added as an assumption to what the runs show.

    Args:
        runs: one estimate for each run.
        run_cv: assumed standard deviation between runs over the mean.
        sign: +1 if a slow run raises the metric (times), -1 if it lowers it (rates), 0 if a slow run leaves it alone.
        seed: names the runs, so that estimates of the same runs share their random numbers.
    """
    n = len(runs)
    points = np.array([run.point for run in runs])
    mean = float(points.mean())
    reach = _between_runs(runs, NORMAL_975 * run_cv / math.sqrt(n) if sign else 0.0)
    multipliers, inflation, variation = _multipliers(seed, n)
    between = multipliers @ (points - mean) / math.sqrt(max(n - 1, 1)) / math.sqrt(n)
    if n >= MIN_REPEATS:
        return Estimate(mean, np.asarray(mean + between * inflation, dtype=np.float64), reach)
    unknown = next((run.unknown for run in runs if run.unknown is not None), None)
    if unknown is not None:
        return Estimate(mean, None, reach, unknown)
    slow = 1.0 + run_cv / math.sqrt(n) * variation
    within = sum((run.point if run.replicates is None else run.replicates) for run in runs) / n
    varied = (within + between) * np.maximum(slow, 1e-3) ** sign
    return Estimate(mean, np.asarray(np.broadcast_to(varied, (REPLICATES,)), dtype=np.float64), reach)


@lru_cache(maxsize=32)
def _multipliers(seed: str, n: int) -> tuple[Floats, Floats, Floats]:
    """For `n` runs, alike for all their metrics: weights `[REPLICATES, n]`, Student's inflation, and a variation."""
    rng = _generator(seed, n)
    weights = rng.standard_normal((REPLICATES, n))
    inflation = np.sqrt(max(n - 1, 1) / rng.chisquare(max(n - 1, 1), size=REPLICATES))
    return weights, inflation, rng.standard_normal(REPLICATES)


def _between_runs(runs: Sequence[Estimate], allowance: float) -> Reach:
    """The readings of all runs together, and further by the share by which another run may differ."""
    low, high = min(run.reach[0] for run in runs), max(run.reach[1] for run in runs)
    return (
        low - allowance * abs(low) if math.isfinite(low) else low,
        high + allowance * abs(high) if math.isfinite(high) else high,
    )


# What a statistic is in every part of a run: where the smallest and the largest of these readings agree, they decide.
#
# A value far on one side of its bound in each sixth of the window, and on each level that the run had, needs no formula
# of how sure its mean is. So neither autocorrelation nor a ramp, nor few rows, prevent a clear answer
# (docs/statistics.md).

PARTS = 6
"""Parts of a window whose means are read: were they noise alone, all would lie on one side of the truth in one run of
thirty-two. With fewer than two rows for each, every row is read; with fewer rows than parts, none."""

SPREAD_FACTOR = 2.0
"""How far the spread of a long run may be from that of a part of a short one."""


def reach_of(rows: Windowed, statistic: str, window: SteadyWindow) -> Reach:
    """Smallest and largest reading of `statistic` over the parts of the rows and over the levels of the window.

    After a lasting slow-down the interval of the last level counts as well. The percentiles of a long run are within
    the range of the rows, and upwards as far again as the greatest row is from the median.
    """
    values = rows.values
    if len(values) < PARTS or not np.isfinite(values).all():
        return UNKNOWN_REACH
    if statistic in QUANTILES:
        low, middle, high = float(values.min()), float(np.median(values)), float(values.max())
        return low, high if statistic == "p50" else high + (high - middle)
    if statistic != "mean":
        spreads = [
            _spread_reading(values[part], relative=statistic == "cv") for part in (slice(None), *_sixths(len(values)))
        ]
        known = all(math.isfinite(spread) for spread in spreads)
        return (min(spreads) / SPREAD_FACTOR, max(spreads) * SPREAD_FACTOR) if known else UNKNOWN_REACH
    rows = rows.evened()
    levels = levels_of(rows, window)
    parts = [*_sixths(len(rows.values)), *levels]
    with np.errstate(all="ignore"):
        means = [float(rows.numerator[part].sum() / rows.denominator[part].sum()) for part in parts]
        last = _interval(rows, levels[-1], means[-1]) if window.slowed and levels else ()
        if rows.timing is not None:  # what the clock leaves open of a part
            off = [abs(mean) * rows.timing.end_share(part) for mean, part in zip(means, parts, strict=True)]
            means = [mean + sign * one for mean, one in zip(means, off, strict=True) for sign in (-1, 1)]
    means += last
    return (min(means), max(means)) if all(math.isfinite(mean) for mean in means) else UNKNOWN_REACH


def _sixths(rows: int) -> Iterator[slice]:
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


def _spread_reading(values: Floats, *, relative: bool) -> float:
    mean = float(values.mean())
    return float(values.std()) / (abs(mean) if mean else math.nan) if relative else float(values.std())
