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

from validator.cluster.levels import Mask, center_of, levels, slow_limit, spread_of
from validator.cluster.pairs import PairRows, fit_pairs
from validator.model.machine import MIN_EFFECT
from validator.model.result import Floats
from validator.stats.distributions import binomial_above, f_above, t_below, t_quantile
from validator.stats.estimate import LEVEL
from validator.stats.means import holm

REPEATS = 4
"""Readings without which nothing is said of a unit."""

LIMIT = -math.log1p(-MIN_EFFECT)
"""The smallest effect that counts, as a logarithm."""

MAJORITY_OF = 4
"""Units from which a median is a reference. Of two or three nothing shows which one is slow: they differ."""

OUTLIER_MADS = 2.0
"""Distance from the fleet's median, in its robust spread, from which a slow unit is an outlier of the fleet."""
_DIFFERENT = 0.05
"""Error of the F test by which a unit varies more between repeats than the others, and keeps its own variance."""


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


def screen(values: Floats) -> Screen:
    """Units measured alone, `values [units, repeats]`."""
    found = levels(values)
    error = found.pooled / np.sqrt(np.maximum(found.count, 1))
    return _compared(found.mean, error, found.df, found.count >= REPEATS, found.slow > 0)


def _compared(level: Floats, error: Floats, df: float, enough: Mask, odd: Mask) -> Screen:
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
        more = suspect | (enough & (odd | suspicious(effect, error, both)))
        settled = (more == suspect).all() or (suspect.any() and 2 * more.sum() >= enough.sum())
        if settled or 2 * more.sum() >= enough.sum():
            return Screen(effect, error, df, enough, suspect if settled else more)
        suspect = more


def suspicious(effect: Floats, error: Floats, both: Floats) -> Mask:
    """Which effects may be the minimum effect, and are not noise alone. It accuses nobody: it says what to confirm.

    `error` is that of the unit, `both` includes that of the median.
    """
    limit = np.maximum(LIMIT - both, 1.5 * error)
    return np.asarray(np.nan_to_num(-effect, nan=-1.0) >= np.nan_to_num(limit, nan=math.inf))


def screen_pairs(rows: PairRows, nodes: int, rounds: int) -> tuple[Screen, Screen]:
    """Nodes `[n]` and links `[rows]` of pairs that were each measured once.

    A link that gave nothing, between nodes that did, is a suspect. Of three nodes the pairs themselves are compared.
    """
    fit, found = fit_pairs(rows, nodes, rounds), levels(rows.values)
    count, slow = (np.bincount(rows.ends.ravel(), np.repeat(one, 2), nodes) for one in (found.count, found.slow > 0))
    enough = count >= REPEATS
    few = int(enough.sum()) < MAJORITY_OF
    node = _compared(fit.node, fit.error, fit.df, enough, slow > 1)
    if few:
        nobody = Screen(fit.node, fit.error, fit.df, enough & False, enough & False)
        return nobody, screen(rows.values)
    silent = (found.count == 0) & enough[rows.ends].all(axis=1)
    odd = (found.slow > 0) & ~node.suspect[rows.ends].any(axis=1)
    error = np.full(len(rows.at), fit.noise)
    doubted = silent | odd | suspicious(fit.rest, error, error)
    if len(rows.at) < 3 * enough.sum() / 2:
        # Fewer than three pairs a node: the fit explains everything, so ask the pair.
        raw = screen(rows.values).suspect
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


def alone_contrasts(values: Floats, suspects: Sequence[int], known: Mask) -> list[Contrast]:
    """Suspects among units measured alone again, `values [units, repeats]`, compared with the `known` good ones."""
    found, middle = levels(values[known]), center_of(levels(values[known]).mean)
    error = found.pooled / math.sqrt(max(1.0, float(np.median(found.count))))
    away = values - middle
    base = Known(found.pooled, found.df, max(spread_of(found.mean), error), found.pooled, away[known])
    shared = math.pi / 2 * error**2 / int(known.sum())  # variance of the known-good ones' median
    return [_contrast(away[one][:, None], base, shared) for one in suspects]


def pair_contrasts(rows: PairRows, suspects: Sequence[tuple[int, ...]], known: Mask, sound: Mask) -> list[Contrast]:
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
        found.append(_contrast(away, base, float(mean @ fit.covariance @ mean)))
    return found


def _contrast(own: Floats, base: Known, shared: float) -> Contrast:
    """The contrast of `own [rows, repeats]`; a row is what is independent: a repeat alone, or a round of a pair.

    `shared` is the variance of what it is compared with.
    """
    finite, limit = np.isfinite(own), -slow_limit(base.noise)
    slow, count = finite & (own < limit), int(finite.sum())
    hits = int(slow.sum())
    if count < REPEATS or not math.isfinite(base.pooled):
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
class UnitVerdict:
    """Of a contrast: the `reach` of its interval, a logarithm, its p value after Holm, and whether it is slow now and
    then."""

    outcome: Literal["confirmed", "acquitted", "inconclusive"]
    reach: float
    p_value: float
    intermittent: bool


def decide(contrasts: Sequence[Contrast], *, level: float) -> list[UnitVerdict]:
    """Holm's step-down test of "slower by the minimum effect at most" over all contrasts, with matching intervals.

    Confirmed is an outlier of the fleet whose whole interval is beyond the minimum effect, or which is slow now
    and then beyond chance; acquitted is one whose own one-sided 95 % limit is within it.
    """
    steady = [t_below((one.center + LIMIT) / one.error, one.df) if one.error < math.inf else 1.0 for one in contrasts]
    p_values = [min(p, one.by_chance) for p, one in zip(steady, contrasts, strict=True)]
    adjusted, left, rejecting = holm(p_values), len(contrasts), True
    found: dict[int, UnitVerdict] = {}
    for index in sorted(range(len(contrasts)), key=lambda index: p_values[index]):
        one, alpha = contrasts[index], (1 - level) / 2 / left
        often = one.by_chance < alpha
        rejecting = rejecting and p_values[index] < alpha
        outcome: Literal["confirmed", "acquitted", "inconclusive"] = "inconclusive"
        if rejecting and (often or one.mads <= -OUTLIER_MADS):
            outcome = "confirmed"
        elif one.slow == 0 and one.center - t_quantile(LEVEL, one.df) * one.error > -LIMIT:
            outcome = "acquitted"
        found[index] = UnitVerdict(outcome, t_quantile(1 - alpha, one.df) * one.error, adjusted[index], often)
        left -= rejecting and left > 1  # where Holm's test stops, the intervals stop narrowing
    return [found[index] for index in range(len(contrasts))]
