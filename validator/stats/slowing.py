"""Whether a run lastingly becomes slower, by how much, and by how much at least.

A rate that wanders goes both ways; one that becomes slower does not come back. So the levels of the window are pooled
wherever a later one is faster (isotonic regression by pool-adjacent-violators, Ayer et al. 1955): a staircase or a
drift keeps its whole fall, a level that comes back joins what is around it. A slow start is left out of that, where the
fast stretch behind it lasts as long. What is left is wander, and counts in the interval. Levels are found without long
pauses, so a second look, at the place where the mean of all rows changes most, finds pauses that become longer or more.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from validator.model.result import Floats, Steps
from validator.stats.autocorrelation import effective_values, is_constant, regular_events
from validator.stats.clock import Clock
from validator.stats.distributions import t_quantile
from validator.stats.spacing import LASTING
from validator.stats.window import MIN_ROWS, Level, best_split, center_and_reach

_CHOSEN = 2.97 / 1.96
"""Widening of an interval for a change whose place was chosen as the greatest: the 5 % point of the supremum of a t
statistic over the middle seven tenths of a series (Andrews 1993), over that of one at a given place."""

_STRETCH_S, _STRETCHES = 2.0, 60
"""Shortest stretch in which steps are counted by their arrival, forty times the distance of stamps, and how many a run
has at most."""


@dataclass(frozen=True)
class Fall:
    """A fall of the rate that lasts to the end of the run: shares of it that are `lost`, and lost at `least`.

    `first_step` to `last_step` are those of the stretch before, `from_step` the first of the slow end.
    """

    first_step: int
    last_step: int
    from_step: int
    lost: float
    least: float


def lasting_falls(steps: Steps, times: Floats, weights: Floats, levels: Sequence[Level]) -> tuple[Fall, ...]:
    """The falls that a window shows, at most one by its levels and one by the mean of all rows.

    Args:
        steps: `[n]`, of the rows of the window.
        times: `[n]`, positive and finite, wall time per step or per token of each row.
        weights: `[n]`, positive, the steps or tokens that each row covers.
        levels: of the window, in order.
    """
    if len(times) < 2 * MIN_ROWS:
        return ()
    edges = [int(np.searchsorted(steps, one.first_step)) for one in levels[1:]]
    edges = [0, *(edge for edge in dict.fromkeys(edges) if 0 < edge < len(times)), len(times)]
    rows = _Rows(steps, times, weights / weights.mean())
    spread = rows.with_pauses_spread()
    looks = ((rows.without_pauses(edges), edges), (spread, spread.likely_edges()))
    found = (max(_falls_from(*look), key=lambda fall: fall.least, default=None) for look in looks)
    return tuple(fall for fall in found if fall is not None)


def falls_by_arrival(clock: Clock | None, *, after_step: int) -> tuple[Fall, ...]:
    """The falls of the rate at which steps arrive, behind `after_step`: a time that the trainer prints may be that of
    one step in ten, or leave out what becomes slower."""
    if clock is None:
        return ()
    chosen = clock.steps > after_step
    at, when = clock.steps[chosen], clock.seconds[chosen]
    stretches = 0 if len(at) < 2 * MIN_ROWS else int(min((when[-1] - when[0]) / _STRETCH_S, _STRETCHES))
    if stretches < 2 * MIN_ROWS:
        return ()
    ends = np.unique(np.searchsorted(when, np.linspace(when[0], when[-1], stretches + 1)))
    spans, covered = np.diff(when[ends]), np.diff(at[ends])
    return lasting_falls(at[ends][1:], spans / covered, covered.astype(np.float64), ())


@dataclass(frozen=True, eq=False)
class _Rows:
    """The rows that are looked at, as in `lasting_falls`, with weights of 1 on average."""

    steps: Steps
    times: Floats
    weights: Floats

    def __len__(self) -> int:
        return len(self.times)

    def mean(self, begin: int, end: int | None = None) -> float:
        """The mean of these rows, by what they cover."""
        return float(np.average(self.times[begin:end], weights=self.weights[begin:end]))

    def size(self, begin: int, end: int | None = None) -> float:
        """Rows of mean weight that cover as much as these."""
        return float(self.weights[begin:end].sum())

    def without_pauses(self, edges: Sequence[int]) -> _Rows:
        """The rows, with the level's median in place of the times that are far from it."""
        kept: Floats = self.times.copy()
        for a, b in pairwise(edges):
            center, reach = center_and_reach(self.times[a:b])
            kept[a:b][np.abs(self.times[a:b] - center) > reach] = center
        return replace(self, times=kept)

    def with_pauses_spread(self) -> _Rows:
        """The rows, with each of their regular pauses spread over the rows since the one before.

        An evaluation belongs to all steps since the last one: a stretch that ends before the first is not faster.
        """
        center, reach = center_and_reach(self.times)
        beyond = np.where(self.times > center + reach, self.times - center, 0.0)
        at = regular_events(beyond)
        if at is None:
            return self
        owner = np.minimum(np.searchsorted(at, np.arange(len(self))), len(at) - 1)
        over = np.bincount(owner, weights=self.weights)
        over[[0, -1]] = np.median(over[1:-1])  # the window need not begin or end with a pause
        kept: Floats = self.times.copy()
        kept[at] = center
        return replace(self, times=kept + (beyond[at] * self.weights[at] / over)[owner])

    def likely_edges(self) -> list[int]:
        """The edges of the likeliest change, and of those on both sides of it: what rises there may come back."""
        middle = self._likeliest(0, len(self))
        sides = ((0, middle), (middle, len(self)))
        likely = [a + self._likeliest(a, b) for a, b in sides if b - a >= 2 * MIN_ROWS]
        return sorted({0, middle, *likely, len(self)})

    def _likeliest(self, begin: int, end: int) -> int:
        sums: Floats = np.cumsum((self.times[begin:end] - self.mean(begin, end)) * self.weights[begin:end])
        return best_split(sums[:-1], end - begin, MIN_ROWS)

    def row_half_width(self, edges: Sequence[int]) -> float:
        """Half width of the interval of one row about the means between these edges, as a share, for the mean of many.

        What wanders between the edges is in it, by the long-run variance.
        """
        n = len(self)
        parts = ((slice(a, b), self.mean(a, b)) for a, b in pairwise(edges))
        rest = np.concatenate([(self.times[part] / mean - 1) * self.weights[part] for part, mean in parts])
        if is_constant(1 + rest):
            return 0.0
        effective = max(effective_values(rest), 2.0)
        freedom = max(min(effective, n) - len(edges) + 1, 1.0)
        return float(rest.std(ddof=1)) * math.sqrt(n / effective) * _CHOSEN * t_quantile(0.975, freedom)


def _falls_from(rows: _Rows, edges: Sequence[int]) -> Iterator[Fall]:
    """The fall from each beginning that there may be: the window's, and behind what was a slow start."""
    least = max(MIN_ROWS, LASTING * len(rows))
    for first in range(len(edges) - 2):
        pooled = _lasting(_pooled(rows, edges[first:]), least)
        if len(pooled) < 3:
            continue
        begin, behind, last = pooled[0], pooled[1], _fastest_end(rows, edges, pooled[-2], least)
        fast, slow = rows.mean(begin, behind), rows.mean(last)
        noise = rows.row_half_width([*edges[:first], *pooled])
        if begin and not _is_slow_start(rows, edges[: first + 1], behind, noise):
            continue
        half = noise * math.sqrt(1 / rows.size(begin, behind) + 1 / rows.size(last))
        if slow <= fast:
            continue
        fall = math.log(slow / fast)
        yield Fall(
            first_step=int(rows.steps[begin - 1]) + 1 if begin else int(rows.steps[0]),
            last_step=int(rows.steps[behind - 1]),
            from_step=int(rows.steps[last - 1]) + 1,
            lost=1 - math.exp(-fall),
            least=1 - math.exp(half - fall),
        )


def _pooled(rows: _Rows, edges: Sequence[int]) -> list[int]:
    """The edges between which the mean only rises: levels are joined to the one before while they are no slower."""
    pooled = [edges[0]]
    for edge in edges[1:]:
        pooled.append(edge)
        while len(pooled) > 2 and rows.mean(pooled[-3], pooled[-2]) >= rows.mean(pooled[-2], edge):
            del pooled[-2]
    return pooled


def _lasting(edges: list[int], least: float) -> list[int]:
    """The same, with an end that is too short to last joined to what is before it."""
    while len(edges) > 2 and edges[-1] - edges[-2] < least:
        edges = [*edges[:-2], edges[-1]]
    return edges


def _fastest_end(rows: _Rows, edges: Sequence[int], first: int, least: float) -> int:
    """Where the fastest end of the last stretch begins that lasts: what came back for so long is no lasting fall."""
    lasting = (edge for edge in edges[:-1] if edge >= first and len(rows) - edge >= least)
    return min(lasting, key=rows.mean, default=first)


def _is_slow_start(rows: _Rows, edges: Sequence[int], behind: int, noise: float) -> bool:
    """Whether all before the last of these edges is slower than the stretch up to `behind`, which lasts as long."""
    begin = edges[-1]
    fast = rows.mean(begin, behind)
    if rows.size(begin, behind) < rows.size(0, begin) or min(rows.mean(a, b) for a, b in pairwise(edges)) <= fast:
        return False
    half = noise * math.sqrt(1 / rows.size(0, begin) + 1 / rows.size(begin, behind))
    return math.log(rows.mean(0, begin) / fast) > half
