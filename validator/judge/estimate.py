"""A number together with what it could also have been.

An `Estimate` carries replicates, so that the arithmetic of a criterion carries its interval: the replicates of a
ratio are the ratios of the replicates. A value without replicates is exact: a count, a first or last value, a literal.
Two estimates of the same run are drawn with the same random numbers, so what they share cancels.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from validator.judge.autocorrelation import block_length, effective_values, is_constant, t_quantile
from validator.model.catalogue import MAY_MISS

__all__ = [
    "LEVEL",
    "MIN_EFFECTIVE",
    "MIN_REPEATS",
    "REPLICATES",
    "SECOND_LEVEL",
    "Estimate",
    "TooFewSamples",
    "bootstrap_mean",
    "bootstrap_quantile",
    "bootstrap_spread",
    "combine",
    "exact",
    "over_runs",
]

Floats = npt.NDArray[np.float64]

LEVEL = 0.95
"""Coverage of every interval."""

SECOND_LEVEL = 0.98
"""Coverage of the intervals of a phase that was extended: a second look has its own chance to be wrong, and both
together must stay within 5 % on each side."""

REPLICATES = 4000
"""Replicates of an estimate: the 2.5 % point of a t distribution with 3 degrees of freedom is then good to 4 %."""

MIN_EFFECTIVE = 2.0
"""Effective sample size below which no interval of a mean is stated: Student's t then has no degree of freedom left.

A higher limit does harm: it lets through only the runs whose autocorrelation was underestimated."""

SHORT_ROWS = 60
"""Rows below which a trend and autocorrelation cannot be told apart, so that more independent steps are asked for."""

MIN_EFFECTIVE_SHORT = 8.0
"""The same limit for windows below SHORT_ROWS rows. Of runs that start half as slow again and fade over 15 steps, one
in fifty had an interval at 40 autocorrelated rows, and half of those were wrong."""

MIN_VALUES = 8
"""Values below which neither a spread nor an autocorrelation can be estimated."""

MIN_REPEATS = 4
"""Runs from which their variation is measured rather than assumed."""

_MAX_BLOCKS = 250
_NORMAL_975 = 1.959963984540054


class TooFewSamples(ValueError):
    """An interval cannot be stated from so little; the message says how much was there and how much would do."""


@dataclass(frozen=True, eq=False)
class Estimate:
    """`point` is the observed value, `replicates [REPLICATES]` its distribution, None when it is exact."""

    point: float
    replicates: Floats | None = None

    @property
    def exact(self) -> bool:
        """Whether the value has no interval."""
        return self.replicates is None

    def interval(self, level: float = LEVEL) -> tuple[float, float] | None:
        """The interval of this coverage; None for an exact value."""
        if self.replicates is None:
            return None
        low, high = np.quantile(self.replicates, [(1 - level) / 2, (1 + level) / 2])
        # The observed value lies in its own interval whatever the replicates' asymmetry.
        return min(float(low), self.point), max(float(high), self.point)

    def standard_error(self) -> float:
        """Standard deviation of the replicates; 0 for an exact value."""
        return 0.0 if self.replicates is None else float(self.replicates.std())

    def scaled(self, factor: float | Floats) -> Estimate:
        """The estimate times a number, or its replicates times a number each (a variation around 1)."""
        if isinstance(factor, float):
            replicates = None if self.replicates is None else self.replicates * factor
            return Estimate(self.point * factor, replicates)
        base = self.point if self.replicates is None else self.replicates
        return Estimate(self.point, np.asarray(base * factor, dtype=np.float64))


def exact(value: float) -> Estimate:
    """A value without interval."""
    return Estimate(float(value))


def combine(operator: str, operands: Sequence[Estimate]) -> Estimate:
    """`+ - * /` of two estimates, `abs` of one, `min` or `max` of any number.

    Raises:
        ZeroDivisionError: when the observed divisor is 0.
    """
    points = [operand.point for operand in operands]
    if operator == "/" and points[1] == 0:
        raise ZeroDivisionError("the divisor is 0")
    point = float(_apply(operator, points))
    if all(operand.exact for operand in operands):
        return Estimate(point)
    columns = [operand.point if operand.replicates is None else operand.replicates for operand in operands]
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        return Estimate(point, np.asarray(_apply(operator, columns), dtype=np.float64))


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


def _effective(values: Floats, what: str) -> tuple[float, float]:
    """Effective size of a series, if it has enough of it, and the lag-1 coefficient that would give this size."""
    n = len(values)
    effective = effective_values(values)
    phi = (n - effective) / (n + effective) if n else 0.0
    if not math.isfinite(phi):
        raise TooFewSamples(f"{what} holds values too large to compute with")
    least = MIN_EFFECTIVE if n >= SHORT_ROWS else MIN_EFFECTIVE_SHORT
    if n < MIN_VALUES or effective < least:
        wanted = max(math.ceil(4 * MIN_EFFECTIVE * (1 + phi) / (1 - phi)), SHORT_ROWS)
        raise TooFewSamples(
            f"too few samples of {what}: {n} rows with autocorrelation {phi:.2f} count as {effective:.0f} independent "
            f"ones; about {wanted} rows in the window would do"
        )
    return phi, effective


def bootstrap_mean(numerator: Floats, denominator: Floats, *, seed: str, what: str = "the series") -> Estimate:
    """Sum of `numerator [n]` over sum of `denominator [n]`: a rate, or a weighted mean.

    A circular block bootstrap (Politis and Romano 1992) gives the replicates' shape. Its spread is known to be too
    small in short autocorrelated series, so it is widened to the larger of the bootstrap's and the lag-1 model's
    standard error, and by Student's t for the effective sample size.

    Raises:
        TooFewSamples: when the effective size is below MIN_EFFECTIVE.
    """
    n, ratio = len(numerator), float(numerator.sum() / denominator.sum())
    influence = (numerator - ratio * denominator) / denominator.mean()
    phi, effective = _effective(influence, what)
    if is_constant(influence + ratio):
        return Estimate(ratio, np.full(REPLICATES, ratio))
    length = max(block_length(n, phi), math.ceil(n / _MAX_BLOCKS))
    draws = _blocks(n, length, seed)
    replicates = _block_sums(numerator, length)[draws].sum(1) / _block_sums(denominator, length)[draws].sum(1)
    blocks = draws.shape[1]
    bootstrapped = float(replicates.std()) * math.sqrt(blocks / (blocks - 1))
    modelled = float(influence.std(ddof=1)) / math.sqrt(effective)
    wanted = max(bootstrapped, modelled) * t_quantile((1 + LEVEL) / 2, effective - 1) / _NORMAL_975
    spread = float(replicates.std())
    return Estimate(ratio, ratio + (replicates - replicates.mean()) * (wanted / spread))


def _blocks(n: int, length: int, seed: str) -> npt.NDArray[np.int64]:
    """First rows of the blocks of each replicate, `[REPLICATES, ceil(n / length)]`."""
    return _generator(seed, n, length).integers(0, n, size=(REPLICATES, math.ceil(n / length)))


def _block_sums(values: Floats, length: int) -> Floats:
    """Sum of the `length` values from each position on, around the end."""
    wrapped = np.concatenate([[0.0], np.cumsum(np.concatenate([values, values[: length - 1]]))])
    return np.asarray(wrapped[length:] - wrapped[:-length], dtype=np.float64)


def bootstrap_spread(values: Floats, *, relative: bool, seed: str, what: str = "the series") -> Estimate:
    """Population standard deviation of `values [n]`, or with `relative` its ratio to the mean.

    Raises:
        TooFewSamples: when the effective size is below MIN_EFFECTIVE.
    """
    n, mean = len(values), float(values.mean())
    if relative and mean == 0:
        raise TooFewSamples(f"the mean of {what} is 0, so its coefficient of variation does not exist")
    phi, effective = _effective(values, what)
    point = float(values.std()) / (mean if relative else 1.0)
    length = max(block_length(n, phi), math.ceil(n / _MAX_BLOCKS))
    draws = _blocks(n, length, seed)
    size = draws.shape[1] * length
    shifts = _block_sums(values - mean, length)[draws].sum(1) / size
    squares = _block_sums((values - mean) ** 2, length)[draws].sum(1) / size
    spreads = np.sqrt(np.maximum(squares - shifts**2, 0.0)) / ((mean + shifts) if relative else 1.0)
    widened = t_quantile((1 + LEVEL) / 2, effective - 1) / _NORMAL_975
    return Estimate(point, point + (spreads - spreads.mean()) * widened)


def bootstrap_quantile(values: Floats, q: float, *, seed: str, what: str = "the series") -> Estimate:
    """The q-quantile of `values [n]`.

    Replicates are order statistics at Beta-distributed ranks, which is the exact law of the bootstrap quantile, with
    the effective size in place of n. A tail that the sample does not reach has no interval.

    Raises:
        TooFewSamples: when fewer than 90 % of samples of this effective size would enclose the quantile.
    """
    n = len(values)
    effective = min(effective_values(values), n)  # steps that alternate reach no further into a tail than they are
    phi = (n - effective) / (n + effective)
    tail = max(q, 1 - q)
    # The two-sided interval loses 2.5 % on the near side; the rest of 10 % may be lost beyond the extreme value.
    if effective < MIN_EFFECTIVE or tail**effective > MAY_MISS:
        wanted = math.ceil(max(math.log(0.06) / math.log(tail), 4 * MIN_EFFECTIVE) * (1 + phi) / (1 - phi))
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
    rng = _generator(seed, n)
    multipliers = rng.standard_normal((REPLICATES, n))
    between = multipliers @ (points - mean) / math.sqrt(max(n - 1, 1)) / math.sqrt(n)
    if n >= MIN_REPEATS:
        inflation = np.sqrt((n - 1) / rng.chisquare(n - 1, size=REPLICATES))
        return Estimate(mean, np.asarray(mean + between * inflation, dtype=np.float64))
    slow = 1.0 + run_cv / math.sqrt(n) * rng.standard_normal(REPLICATES)
    within = sum((run.point if run.replicates is None else run.replicates) for run in runs) / n
    varied = (within + between) * np.maximum(slow, 1e-3) ** sign
    return Estimate(mean, np.asarray(np.broadcast_to(varied, (REPLICATES,)), dtype=np.float64))
