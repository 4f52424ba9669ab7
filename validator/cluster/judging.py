"""How far a node, a GPU or a link is from the fleet, from repeats: levels, the fit of pairs, and confirmation.

Values are logarithms in which larger is better, so that -0.05 is about 5 % slower. Medians and their deviations set the
reference, because a few bad nodes must not; NaN is a repeat that gave nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from validator.model.result import Floats
from validator.stats.distributions import binomial_above, f_above, t_below, t_quantile
from validator.stats.estimate import LEVEL

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Outcome = Literal["confirmed", "acquitted", "inconclusive"]

SLOW_REPEAT, SLOW_REPEAT_NOISE = 0.10, 6.0
"""A repeat that is slow now and then: a tenth, and six standard deviations between repeats, below its unit's others."""

MAJORITY_OF = 4
"""Units from which a median is a reference. Of two or three nothing shows which one is slow: they differ."""

OUTLIER_MADS = 3.0
"""Distance from the fleet's median, in its robust spread, from which a slow unit is an outlier of the fleet."""

_SCALE = 1.4826
_DIFFERENT = 0.05
"""Error of the F test by which a unit varies more between repeats than the others, and keeps its own variance."""

_NODE_PRIOR, _ROUND_PRIOR = 0.03, 0.005
"""How far nodes, and rounds, are expected to differ: what pairs cannot separate otherwise (few nodes) is shared out by
these. A node's is wide, so that a slow one is hardly drawn to the others."""

_HUBER = 1.5
_FIT_STEPS = 30


def median_of(values: Floats, axis: int) -> Floats:
    """The median along an axis without its NaN; NaN where there is nothing else."""
    ordered = np.sort(values, axis=axis)  # NaN last
    count = np.isfinite(values).sum(axis=axis, keepdims=True)
    low = np.take_along_axis(ordered, np.maximum(count - 1, 0) // 2, axis=axis)
    high = np.take_along_axis(ordered, np.minimum(count // 2, values.shape[axis] - 1), axis=axis)
    middle: Floats = np.where(count > 0, (low + high) / 2, np.nan).squeeze(axis)
    return middle


def spread_of(values: Floats) -> float:
    """The median absolute deviation, scaled to a normal standard deviation; 0 for nothing."""
    usable = values[np.isfinite(values)]
    return float(_SCALE * np.median(np.abs(usable - np.median(usable)))) if usable.size else 0.0


@dataclass(frozen=True, eq=False)
class Levels:
    """The level of each unit `[u]` from its repeats, slow repeats apart.

    `stdev` is a unit's own between repeats, `pooled` that of the usual unit, with degrees of freedom `df`.
    """

    mean: Floats
    count: Ints
    slow: Ints
    stdev: Floats
    pooled: float
    df: float


def levels(values: Floats) -> Levels:
    """The levels of `values [units, repeats]`."""
    away = values - median_of(values, 1)[:, None]
    finite = np.isfinite(values)
    repeats = max(2.0, float(np.median(finite.sum(axis=1)))) if len(values) else 2.0
    noise = (
        _SCALE * math.sqrt(repeats / (repeats - 1)) * float(np.median(np.abs(away[finite]))) if finite.any() else 0.0
    )
    slow = finite & (away < -slow_limit(noise))
    kept = np.where(finite & ~slow, values, 0.0)
    count = (finite & ~slow).sum(axis=1)
    mean = np.where(count > 0, kept.sum(axis=1) / np.maximum(count, 1), np.nan)
    squares = (np.where(finite & ~slow, values - mean[:, None], 0.0) ** 2).sum(axis=1)
    variance = np.where(count > 1, squares / np.maximum(count - 1, 1), np.nan)
    known = variance[np.isfinite(variance)]
    freedom = max(1.0, float(np.median(count[count > 1])) - 1) if known.size else 1.0
    # The median of chi-square over its degrees of freedom is about (1 - 2/9df)**3: a few wild units do not matter.
    pooled = math.sqrt(float(np.median(known)) / (1 - 2 / (9 * freedom)) ** 3) if known.size else math.nan
    return Levels(
        mean, finite.sum(axis=1), slow.sum(axis=1), np.sqrt(variance), pooled, max(1.0, known.size * freedom / 2)
    )


def slow_limit(noise: float) -> float:
    """How far below its usual level a repeat is slow, if repeats vary by `noise`."""
    return max(-math.log1p(-SLOW_REPEAT), SLOW_REPEAT_NOISE * noise)


@dataclass(frozen=True, eq=False)
class Screen:
    """Units `[u]` compared with their median: `effect` and its standard `error`, with degrees of freedom `df`.

    `enough` marks units that were measured enough to be judged, `suspect` those to be measured again.
    """

    effect: Floats
    error: Floats
    df: float
    enough: Mask
    suspect: Mask

    @property
    def reference(self) -> Mask:
        """The known-good units, with which suspects are compared."""
        return self.enough & ~self.suspect

    @property
    def majority(self) -> bool:
        """Whether known-good units are enough, and more than the suspects. Otherwise nothing shows who is slow."""
        return int(self.enough.sum()) >= MAJORITY_OF and bool(self.reference.sum() > self.suspect.sum())

    @property
    def mads(self) -> Floats:
        """Distance of each unit from the median in the fleet's robust spread, which is at least the usual error."""
        known = self.error[self.reference]
        floor = float(np.median(known)) if known.size else 0.0
        return self.effect / max(spread_of(self.effect[self.reference]), floor, 1e-9)

    def difference(self) -> tuple[int, int, float, float] | None:
        """Of units without a majority: the slowest, the fastest, how far apart, and the reach of the interval of that,
        as wide as all pairs of units need together."""
        known = np.flatnonzero(self.enough)
        if self.majority or len(known) < 2:
            return None
        slow, fast = (int(known[pick(self.effect[known])]) for pick in (np.argmin, np.argmax))
        error = math.hypot(self.error[slow], self.error[fast])
        share = (1 - LEVEL) / (len(known) * (len(known) - 1))
        return slow, fast, float(self.effect[slow] - self.effect[fast]), t_quantile(1 - share, self.df) * error


def screen(values: Floats, *, repeats: int, min_effect: float) -> Screen:
    """Units measured alone, `values [units, repeats]`; at least so many repeats are needed to be judged."""
    found = levels(values)
    enough = found.count >= repeats
    middle = median_of(found.mean[enough], 0) if enough.any() else 0.0
    effect = found.mean - middle
    error = found.pooled / np.sqrt(np.maximum(found.count, 1))
    suspect = enough & (suspicious(effect, error, min_effect) | (found.slow > 0))
    return Screen(effect, error, found.df, enough, suspect)


def suspicious(effect: Floats, error: Floats, min_effect: float) -> Mask:
    """Which effects may be the minimum effect, and are not noise alone. It accuses nobody: it says what to confirm."""
    limit = np.maximum(-math.log1p(-min_effect) - error, 2 * error)
    return np.nan_to_num(-effect, nan=-1.0) >= np.nan_to_num(limit, nan=math.inf)


@dataclass(frozen=True, eq=False)
class PairRows:
    """Pairs as measured: ends `a`, `b` and round `at` `[rows]` as numbers, readings `values [rows, repeats]`."""

    a: Ints
    b: Ints
    at: Ints
    values: Floats

    def only(self, mask: Mask) -> PairRows:
        """Some of the rows."""
        return PairRows(self.a[mask], self.b[mask], self.at[mask], self.values[mask])

    def touches(self, nodes: Sequence[int]) -> Mask:
        """The rows with one of these nodes at an end."""
        return np.isin(self.a, nodes) | np.isin(self.b, nodes)


@dataclass(frozen=True, eq=False)
class PairFit:
    """log(bandwidth) = level + round + node a + node b + rest; a median node is 0.

    `node [n]` and `error [n]` are NaN for a node without a row. `noise` is the standard deviation of a row's rest, with
    `df` degrees of freedom, and `repeat` that between repeats of a row.
    """

    level: float
    node: Floats
    error: Floats
    round: Floats
    rest: Floats
    noise: float
    df: float
    repeat: float
    covariance: Floats
    mean: Floats

    def variance_of(self, rows: PairRows, apart: int | None = None) -> float:
        """Variance of the mean of what these rows were expected to be; node `apart`, of each row, as a median one."""
        x, share, nodes = np.zeros(len(self.covariance)), 1 / max(1, len(rows.a)), len(self.node)
        for end in (rows.a, rows.b, rows.at + nodes):
            np.add.at(x, end, share)
        x[-1] = 1.0
        if apart is not None:
            x[apart] = 0.0
            x[:nodes] += self.mean
        return float(x @ self.covariance @ x)

    def expected(self, rows: PairRows) -> Floats:
        """What each row would be without a rest; a node that is not in the fit counts as a median one."""
        node = np.nan_to_num(self.node)
        return self.level + self.round[rows.at] + node[rows.a] + node[rows.b]


def fit_pairs(rows: PairRows, nodes: int, rounds: int, reference: Mask) -> PairFit:
    """Huber's robust regression over all rows; the median of the `reference [n]` nodes becomes 0."""
    found = levels(rows.values)
    usable = np.isfinite(found.mean)
    a, b, at, y = rows.a[usable], rows.b[usable], rows.at[usable] + nodes, found.mean[usable]
    weight = (found.count - found.slow)[usable] / max(1, rows.values.shape[1])
    repeat = found.pooled if math.isfinite(found.pooled) else 0.0
    floor = max(repeat / math.sqrt(max(1, rows.values.shape[1])), 1e-6)
    size, last = nodes + rounds + 1, nodes + rounds
    solution, scale, inverse, df = np.zeros(size), floor, np.eye(size), 1.0
    solution[last] = float(np.median(y)) if y.size else 0.0
    columns = np.stack([a, b, at, np.full_like(a, last)])
    rest = np.asarray(y - solution[columns].sum(axis=0), dtype=np.float64)
    for _ in range(_FIT_STEPS if y.size else 0):
        scale = max(floor, spread_of(rest) * math.sqrt(y.size / df) if df > 1 else floor)
        robust = weight * np.minimum(1.0, _HUBER * scale / np.maximum(np.abs(rest), 1e-12))
        normal, right = np.zeros((size, size)), np.zeros(size)
        for one in columns:
            np.add.at(right, one, robust * y)
            for other in columns:
                np.add.at(normal, (one, other), robust)
        prior = np.zeros(size)
        prior[:nodes], prior[nodes:last] = (scale / _NODE_PRIOR) ** 2, (scale / _ROUND_PRIOR) ** 2
        inverse = np.linalg.inv(normal + np.diag(prior + 1e-12))
        df = max(1.0, y.size - (size - float(np.diag(inverse) @ prior)))
        before, solution = solution, inverse @ right
        rest = y - solution[columns].sum(axis=0)
        if float(np.abs(solution - before).max()) < 0.02 * scale:
            break
    seen = np.isin(np.arange(nodes), np.concatenate([a, b]))
    covariance = scale**2 * inverse
    # Pairs cannot separate the level from what all nodes share, so that a node's error is that of its distance to them.
    mean = np.where(seen, 1.0, 0.0) / max(1, int(seen.sum()))
    among = covariance[:nodes, :nodes]
    variance = np.diag(among) - 2 * among @ mean + float(mean @ among @ mean)
    base = solution[:nodes][seen & reference]
    shift = float(np.median(base)) if base.size else 0.0
    all_rest = np.full(len(rows.a), np.nan)
    all_rest[usable] = rest
    return PairFit(
        float(solution[last]) + 2 * shift,
        np.where(seen, solution[:nodes] - shift, np.nan),
        np.where(seen, np.sqrt(np.maximum(variance, 0.0)), np.nan),
        solution[nodes:last],
        all_rest,
        scale,
        df,
        repeat,
        covariance,
        mean,
    )


def screen_pairs(rows: PairRows, nodes: int, rounds: int, repeats: int, min_effect: float) -> tuple[Screen, Screen]:
    """Nodes `[n]` and links `[rows]` of pairs that were each measured once.

    A link that gave nothing, between nodes that did, is a suspect. Of three nodes the pairs themselves are compared.
    """
    fit, found = fit_pairs(rows, nodes, rounds, np.ones(nodes, dtype=bool)), levels(rows.values)
    count, slow = np.zeros(nodes, dtype=int), np.zeros(nodes, dtype=int)
    for end in (rows.a, rows.b):
        np.add.at(count, end, found.count)
        np.add.at(slow, end, found.slow > 0)
    enough = count >= repeats
    few = int(enough.sum()) < MAJORITY_OF
    suspect = enough & (suspicious(fit.node, fit.error, min_effect) | (slow > 1))
    node = Screen(fit.node, fit.error, fit.df, enough & (not few), suspect & (not few))
    if few:
        return node, screen(rows.values, repeats=repeats, min_effect=min_effect)
    silent = (found.count == 0) & enough[rows.a] & enough[rows.b]
    odd = (found.slow > 0) & ~suspect[rows.a] & ~suspect[rows.b]
    error = np.full(len(rows.a), fit.noise)
    doubted = silent | odd | suspicious(fit.rest, error, min_effect)
    return node, Screen(fit.rest, error, fit.df, (found.count > 0) | silent, doubted)


@dataclass(frozen=True)
class Contrast:
    """A suspect compared with known-good ones on readings that did not make it a suspect.

    `center` and its standard `error` are logarithms, with degrees of freedom `df`; `mads` is the distance from the
    fleet's median in its robust spread. Of `count` repeats `slow` were slow now and then, which has the probability
    `by_chance` for a healthy unit.
    """

    center: float
    error: float
    df: float
    mads: float
    count: int
    slow: int = 0
    by_chance: float = 1.0


@dataclass(frozen=True)
class Reference:
    """What suspects are compared with: the usual row's standard deviation `pooled` with `df`, the known-good units'
    `spread`, the `noise` between repeats, and how many of the known-good ones' `count` repeats were `slow`."""

    pooled: float
    df: float
    spread: float
    noise: float
    slow: int
    count: int


def alone_contrasts(values: Floats, suspects: Sequence[int], known: Mask, *, repeats: int) -> list[Contrast]:
    """Suspects among units measured alone again, `values [units, repeats]`, compared with the `known` good ones."""
    found = levels(values[known])
    shift = float(np.nanmedian(found.mean)) if np.isfinite(found.mean).any() else math.nan
    each = max(1.0, float(np.median(found.count)) if found.count.size else 1.0)
    error = found.pooled / math.sqrt(each)
    spread = max(spread_of(found.mean), error)
    base = Reference(found.pooled, found.df, spread, found.pooled, int(found.slow.sum()), int(found.count.sum()))
    shared = math.pi / 2 * error**2 / max(1, int(known.sum()))  # variance of the known-good ones' median
    return [_contrast((values[one] - shift)[:, None], base, shared, repeats) for one in suspects]


def pair_contrasts(
    rows: PairRows, fresh: Mask, suspects: Sequence[tuple[int, ...]], known: Mask, links: Mask, *, repeats: int
) -> list[Contrast]:
    """Suspects (a node, or the two of a link) in `fresh` rows, compared with what their partners give without them.

    `known` marks nodes, and `links` rows, that are no suspects: they alone make the fit.
    """
    sound = known[rows.a] & known[rows.b] & links
    fit = fit_pairs(rows.only(sound), len(known), int(rows.at.max()) + 1, known)
    away = rows.values - fit.expected(rows)[:, None]
    others = away[sound & fresh]
    slow = int((others < -slow_limit(fit.repeat)).sum())
    found = []
    for one in suspects:
        mine = fresh & ((rows.a == min(one)) & (rows.b == max(one)) if len(one) == 2 else rows.touches(one) & links)
        if len(one) == 2:
            shared, spread = fit.variance_of(rows.only(mine)), fit.noise
        else:
            mine &= known[np.where(rows.a == one[0], rows.b, rows.a)]
            shared, spread = fit.variance_of(rows.only(mine), one[0]), max(spread_of(fit.node[known]), fit.noise)
        base = Reference(fit.noise, fit.df, spread, fit.repeat, slow, int(np.isfinite(others).sum()))
        found.append(_contrast(away[mine], base, shared, repeats))
    return found


def _contrast(own: Floats, base: Reference, shared: float, repeats: int) -> Contrast:
    """The contrast of `own [rows, repeats]`; a row is what is independent: a repeat alone, or a round of a pair."""
    finite = np.isfinite(own)
    count = int(finite.sum())
    slow = finite & (own < -slow_limit(base.noise))
    hits = int(slow.sum())
    if count < repeats or not math.isfinite(base.pooled):
        return Contrast(math.nan, math.inf, 1.0, math.nan, count)
    often = 2 <= hits <= count / 2
    chance = binomial_above(hits - 1, count, (base.slow + 0.5) / (base.count + 1)) if often else 1.0
    kept = finite & ~slow if hits == 1 else finite
    means = np.array([row[one].mean() for row, one in zip(own, kept, strict=True) if one.any()])
    center, n, variance, df = float(means.mean()), len(means), base.pooled**2, base.df
    wild = float(means.var(ddof=1)) if n > 1 else 0.0
    if n > 1 and f_above(wild / max(variance, 1e-18), n - 1, df) < _DIFFERENT:
        variance, df = wild, n - 1.0
    return Contrast(center, math.sqrt(variance / n + shared), df, center / max(base.spread, 1e-9), count, hits, chance)


@dataclass(frozen=True)
class Verdict:
    """Of a contrast: the logarithms of its interval, its p value after Holm, and whether it is slow now and then."""

    outcome: Outcome
    low: float
    high: float
    p_value: float
    intermittent: bool


def decide(contrasts: Sequence[Contrast], *, min_effect: float, level: float) -> list[Verdict]:
    """Holm's step-down test of "slower by the minimum effect at most" over all contrasts, with matching intervals.

    Confirmed is an outlier of the fleet whose whole interval is beyond the minimum effect, or which is slow now
    and then beyond chance; acquitted is one whose own one-sided 95 % limit is within it.
    """
    limit = -math.log1p(-min_effect)
    steady = [t_below((one.center + limit) / one.error, one.df) if one.error < math.inf else 1.0 for one in contrasts]
    p_values = [min(p, one.by_chance) for p, one in zip(steady, contrasts, strict=True)]
    found: dict[int, Verdict] = {}
    left, largest, rejecting = len(contrasts), 0.0, True
    for index in sorted(range(len(contrasts)), key=lambda index: p_values[index]):
        one, alpha = contrasts[index], (1 - level) / 2 / left
        reach = t_quantile(1 - alpha, one.df) * one.error
        largest, often = max(largest, min(1.0, p_values[index] * left)), one.by_chance < alpha
        rejecting = rejecting and p_values[index] < alpha
        outcome: Outcome = "inconclusive"
        if rejecting and (often or one.mads <= -OUTLIER_MADS):
            outcome = "confirmed"
        elif one.slow == 0 and one.center - t_quantile(LEVEL, one.df) * one.error > -limit:
            outcome = "acquitted"
        found[index] = Verdict(outcome, one.center - reach, one.center + reach, largest, often)
        left -= rejecting and left > 1
    return [found[index] for index in range(len(contrasts))]
