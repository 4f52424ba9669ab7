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
from validator.stats.means import holm

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

SLOW_REPEAT, SLOW_REPEAT_NOISE = 0.10, 6.0
"""A repeat that is slow now and then: a tenth, and six standard deviations between repeats, below its unit's others."""

MAJORITY_OF = 4
"""Units from which a median is a reference. Of two or three nothing shows which one is slow: they differ."""

OUTLIER_MADS = 2.0
"""Distance from the fleet's median, in its robust spread, from which a slow unit is an outlier of the fleet."""

_FEW = 64
_SCALE = 1.4826
_DIFFERENT = 0.05
"""Error of the F test by which a unit varies more between repeats than the others, and keeps its own variance."""

_NODE_PRIOR, _ROUND_PRIOR = 0.03, 0.005
"""How far nodes, and rounds, are expected to differ: what pairs cannot separate otherwise (few nodes) is shared out by
these. A node's is wide, so that a slow one is hardly drawn to the others."""

_LINK_SPREAD = 0.003
"""How much healthy links differ at least. Of more exact repeats the fit would rather believe in slow nodes and a slow
round than in one slow link."""

_FAR = 2.0
"""Times its prior from which a node has none: it is an outlier, and not drawn to the others at all."""

_FREE_PAIRS = 3
"""Pairs of a node from which most of them show that it is the node, and neither a partner nor a link."""

_HUBER = 1.5
_FAR_OFF = 10.0
"""Times the usual rest from which a row says nothing of its nodes: it is a link's. Of four nodes a slow link is as good
an explanation as the opposite one being fast, so that even a little weight moves all nodes."""

_FIT_STEPS = 30
_POLISH_STEPS = 16


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
    error = found.pooled / np.sqrt(np.maximum(found.count, 1))
    return _compared(found.mean, error, found.df, found.count >= repeats, found.slow > 0, min_effect)


def _compared(level: Floats, error: Floats, df: float, enough: Mask, odd: Mask, min_effect: float) -> Screen:
    """Units compared with the median, and again with that of the others while more become suspects and stay the fewer.

    Three slow nodes of eight draw the median of all to themselves, and would hide each other. `odd` ones are suspects
    anyway.
    """
    suspect = np.zeros(len(level), dtype=bool)
    while True:
        known = level[enough & ~suspect]
        effect = level - (float(np.median(known)) if known.size else 0.0)
        # Of few units the median is itself uncertain.
        both = np.hypot(error, spread_of(known) * math.sqrt(math.pi / 2 / max(1, len(known))))
        more = suspect | (enough & (odd | suspicious(effect, error, both, min_effect)))
        settled = (more == suspect).all() or (suspect.any() and 2 * more.sum() >= enough.sum())
        if settled or 2 * more.sum() >= enough.sum():
            return Screen(effect, error, df, enough, suspect if settled else more)
        suspect = more


def suspicious(effect: Floats, error: Floats, both: Floats, min_effect: float) -> Mask:
    """Which effects may be the minimum effect, and are not noise alone. It accuses nobody: it says what to confirm.

    `error` is that of the unit, `both` includes that of the median.
    """
    limit = np.maximum(-math.log1p(-min_effect) - both, 1.5 * error)
    return np.asarray(np.nan_to_num(-effect, nan=-1.0) >= np.nan_to_num(limit, nan=math.inf))


@dataclass(frozen=True, eq=False)
class PairRows:
    """Pairs: `ends [rows, 2]` and round `at [rows]` as numbers, `values [rows, repeats]`; `fresh` ones confirm."""

    ends: Ints
    at: Ints
    values: Floats
    fresh: Mask

    def only(self, mask: Mask) -> PairRows:
        """Some of the rows."""
        return PairRows(self.ends[mask], self.at[mask], self.values[mask], self.fresh[mask])

    def touches(self, node: int) -> Mask:
        """The rows with this node at an end."""
        return np.asarray((self.ends == node).any(axis=1))

    def parts(self, nodes: int, rounds: int) -> Ints:
        """What each row consists of `[rows, 4]`, as numbers of parts: two nodes, a round and the level."""
        return np.column_stack([self.ends, self.at + nodes, np.full_like(self.at, nodes + rounds)])


@dataclass(frozen=True, eq=False)
class PairFit:
    """log(bandwidth) = node a + node b + round + level + rest, with the `parts` in the order of the design.

    `node [n]`, less the `middle` of all nodes, and its `error` are NaN for a node without a row; `share [parts]` makes
    up that middle. `noise` is the standard deviation of a row's rest, with `df` degrees of freedom, `repeat` that
    between repeats of a row.
    """

    parts: Floats
    covariance: Floats
    share: Floats
    middle: float
    node: Floats
    error: Floats
    rest: Floats
    noise: float
    df: float
    repeat: float


def fit_pairs(rows: PairRows, nodes: int, rounds: int) -> PairFit:
    """Huber's robust regression over all rows."""
    found, size = levels(rows.values), nodes + rounds + 1
    usable = np.isfinite(found.mean)
    x, y, width = rows.parts(nodes, rounds)[usable], found.mean[usable], max(1, rows.values.shape[1])
    weight = (found.count - found.slow)[usable] / width
    repeat = found.pooled if math.isfinite(found.pooled) else 0.0
    floor = scale = max(repeat / math.sqrt(width), _LINK_SPREAD)
    rough, rest = _polished(x[:, :2], y, nodes)
    expected = np.repeat([_NODE_PRIOR, _ROUND_PRIOR, math.inf], [nodes, rounds, 1])
    often = np.bincount(x[:, :2].ravel(), minlength=nodes) >= _FREE_PAIRS
    expected[:nodes][often & (np.abs(rough) > _FAR * _NODE_PRIOR)] = math.inf

    def normal(weights: Floats, scale: float) -> Floats:
        both = (x[:, :, None] * size + x[:, None, :]).ravel()
        matrix = np.bincount(both, np.repeat(weights, 16), size * size).reshape(size, size)
        return np.asarray(matrix + np.diag((scale / expected) ** 2 + 1e-12))

    bound = np.linalg.inv(normal(weight, scale)) * (scale / expected) ** 2  # how far the priors decide each part
    df = max(1.0, len(y) - (size - float(np.diag(bound).sum())))
    parts: Floats = np.zeros(size)
    robust = weight
    for _ in range(_FIT_STEPS):
        scale = max(floor, spread_of(rest) * math.sqrt(len(y) / df) if df > 1 else floor)
        robust = weight * np.minimum(1.0, _HUBER * scale / np.maximum(np.abs(rest), 1e-12))
        robust = np.where(np.abs(rest) > _FAR_OFF * scale, 1e-6 * weight, robust)
        right = np.bincount(x.ravel(), np.repeat(robust * y, 4), size)
        before, parts = parts, np.asarray(np.linalg.solve(normal(robust, scale), right), dtype=np.float64)
        rest = np.asarray(y - parts[x].sum(axis=1), dtype=np.float64)
        if float(np.abs(parts - before).max()) < 0.02 * scale:
            break
    covariance = np.asarray(scale**2 * np.linalg.inv(normal(robust, scale)), dtype=np.float64)
    seen = np.isin(np.arange(size), x[:, :2])
    share = np.where(seen, 1.0, 0.0) / max(1, int(seen.sum()))
    # Pairs cannot separate the level from what all nodes share: a node's error is that of its distance to the middle.
    variance = np.diag(covariance) - 2 * covariance @ share + share @ covariance @ share
    middle, all_rest = center_of(parts[seen]), np.full(len(usable), np.nan)
    all_rest[usable] = rest
    node = np.where(seen, parts - middle, np.nan)[:nodes]
    error = np.where(seen, np.sqrt(np.maximum(variance, 0.0)), np.nan)[:nodes]
    return PairFit(parts, covariance, share, middle, node, error, all_rest, scale, df, repeat)


def _polished(ends: Ints, y: Floats, nodes: int) -> tuple[Floats, Floats]:
    """How far each node is from the middle, by medians over its pairs, and what that leaves of the rows.

    The fit starts here: from nodes that are all alike a very slow one would look like noise, of which its prior then
    explains as much as is needed to stay there.
    """
    order = np.argsort(ends.ravel(), kind="stable")
    count = np.bincount(ends.ravel(), minlength=nodes)
    place = np.arange(order.size) - np.repeat(np.cumsum(count) - count, count)
    touching = np.full((nodes, max(1, int(count.max(initial=0)))), np.nan)
    away, rest = np.zeros(nodes), y - (np.median(y) if y.size else 0.0)
    for _ in range(_POLISH_STEPS if y.size else 0):
        touching[ends.ravel()[order], place] = rest[order // 2]
        away = away + np.nan_to_num(median_of(touching, 1)) / 2  # the other end takes its half
        away = away - np.median(away[count > 0])
        rest = y - away[ends].sum(axis=1)
        rest = rest - np.median(rest)
    return away, np.asarray(rest, dtype=np.float64)


def screen_pairs(rows: PairRows, nodes: int, rounds: int, *, repeats: int, min_effect: float) -> tuple[Screen, Screen]:
    """Nodes `[n]` and links `[rows]` of pairs that were each measured once.

    A link that gave nothing, between nodes that did, is a suspect. Of three nodes the pairs themselves are compared.
    """
    fit, found = fit_pairs(rows, nodes, rounds), levels(rows.values)
    count, slow = (np.bincount(rows.ends.ravel(), np.repeat(one, 2), nodes) for one in (found.count, found.slow > 0))
    enough = count >= repeats
    few = int(enough.sum()) < MAJORITY_OF
    node = _compared(fit.node, fit.error, fit.df, enough, slow > 1, min_effect)
    if few:
        nobody = Screen(fit.node, fit.error, fit.df, enough & False, enough & False)
        return nobody, screen(rows.values, repeats=repeats, min_effect=min_effect)
    silent = (found.count == 0) & enough[rows.ends].all(axis=1)
    odd = (found.slow > 0) & ~node.suspect[rows.ends].any(axis=1)
    error = np.full(len(rows.at), fit.noise)
    doubted = silent | odd | suspicious(fit.rest, error, error, min_effect)
    if (
        len(rows.at) < 3 * enough.sum() / 2
    ):  # fewer than three pairs a node: the fit explains everything, so ask the pair
        raw = screen(rows.values, repeats=repeats, min_effect=min_effect).suspect
        known = node.suspect[rows.ends].any(axis=1) | doubted
        node.suspect[rows.ends[raw & ~known].ravel()] = True
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
class Known:
    """What suspects are compared with: the usual row's standard deviation `pooled` with `df`, the known-good units'
    `spread`, the `noise` between repeats, and the known-good ones' own repeats, as deviations."""

    pooled: float
    df: float
    spread: float
    noise: float
    repeats: Floats


def alone_contrasts(values: Floats, suspects: Sequence[int], known: Mask, *, repeats: int) -> list[Contrast]:
    """Suspects among units measured alone again, `values [units, repeats]`, compared with the `known` good ones."""
    found, middle = levels(values[known]), center_of(levels(values[known]).mean)
    error = found.pooled / math.sqrt(max(1.0, float(np.median(found.count))))
    away = values - middle
    base = Known(found.pooled, found.df, max(spread_of(found.mean), error), found.pooled, away[known])
    shared = math.pi / 2 * error**2 / int(known.sum())  # variance of the known-good ones' median
    return [_contrast(away[one][:, None], base, shared, repeats) for one in suspects]


def pair_contrasts(
    rows: PairRows, suspects: Sequence[tuple[int, ...]], known: Mask, sound: Mask, *, repeats: int
) -> list[Contrast]:
    """Suspects (a node, or the two of a link) in fresh rows, compared with what their partners give without them.

    `known` marks nodes, and `sound` rows, that are no suspects: they alone make the fit.
    """
    nodes, rounds = len(known), int(rows.at.max()) + 1
    fitted = known[rows.ends].all(axis=1) & sound
    fit, parts = fit_pairs(rows.only(fitted), nodes, rounds), rows.parts(nodes, rounds)
    others = (rows.values - fit.parts[parts].sum(axis=1)[:, None])[fitted & rows.fresh]
    spread = max(spread_of(fit.node[known]), fit.noise)
    found = []
    for one in suspects:
        mine = rows.fresh & np.all([rows.touches(end) for end in one], axis=0)
        if len(one) == 1:
            mine &= sound & ((rows.ends == one[0]) | known[rows.ends]).all(axis=1)
        x = parts[mine]
        mean = np.bincount(x.ravel(), minlength=len(fit.parts)) / max(1, len(x))
        away = rows.values[mine] - fit.parts[x].sum(axis=1)[:, None]
        if len(one) == 1:  # expected is what a node in the middle of the fleet would give in its place
            away += fit.parts[one[0]] - fit.middle
            mean[one[0]] = 0.0
            mean += fit.share
        base = Known(fit.noise, fit.df, spread if len(one) == 1 else fit.noise, fit.repeat, others)
        found.append(_contrast(away, base, float(mean @ fit.covariance @ mean), repeats))
    return found


def _contrast(own: Floats, base: Known, shared: float, repeats: int) -> Contrast:
    """The contrast of `own [rows, repeats]`; a row is what is independent: a repeat alone, or a round of a pair.

    `shared` is the variance of what it is compared with.
    """
    finite, limit = np.isfinite(own), -slow_limit(base.noise)
    slow, count = finite & (own < limit), int(finite.sum())
    hits = int(slow.sum())
    if count < repeats or not math.isfinite(base.pooled):
        return Contrast(math.nan, math.inf, 1.0, math.nan, count)
    chance = 1.0
    if 2 <= hits <= count / 2:
        usual = (int((base.repeats < limit).sum()) + 0.5) / (int(np.isfinite(base.repeats).sum()) + 1)
        chance = binomial_above(hits - 1, count, usual)
    kept = finite & ~slow if hits == 1 else finite
    means = np.array([row[one].mean() for row, one in zip(own, kept, strict=True) if one.any()])
    center, n, variance, df = float(means.mean()), len(means), base.pooled**2, base.df
    wild = float(means.var(ddof=1)) if n > 1 else 0.0
    if n > 1 and f_above(wild / max(variance, 1e-18), n - 1, df) < _DIFFERENT:
        variance, df = wild, n - 1.0
    mads = center / max(base.spread, 1e-9)
    return Contrast(center, math.sqrt(variance / n + shared), df, mads, count, hits, chance)


@dataclass(frozen=True)
class Verdict:
    """Of a contrast: the `reach` of its interval, a logarithm, its p value after Holm, and whether it is slow now and
    then."""

    outcome: Literal["confirmed", "acquitted", "inconclusive"]
    reach: float
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
    adjusted, left, rejecting = holm(p_values), len(contrasts), True
    found: dict[int, Verdict] = {}
    for index in sorted(range(len(contrasts)), key=lambda index: p_values[index]):
        one, alpha = contrasts[index], (1 - level) / 2 / left
        often = one.by_chance < alpha
        rejecting = rejecting and p_values[index] < alpha
        outcome: Literal["confirmed", "acquitted", "inconclusive"] = "inconclusive"
        if rejecting and (often or one.mads <= -OUTLIER_MADS):
            outcome = "confirmed"
        elif one.slow == 0 and one.center - t_quantile(LEVEL, one.df) * one.error > -limit:
            outcome = "acquitted"
        found[index] = Verdict(outcome, t_quantile(1 - alpha, one.df) * one.error, adjusted[index], often)
        left -= rejecting and left > 1  # where Holm's test stops, the intervals stop narrowing
    return [found[index] for index in range(len(contrasts))]
