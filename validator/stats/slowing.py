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
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from validator.model.result import Floats, Steps
from validator.stats.autocorrelation import effective_values, is_constant
from validator.stats.distributions import t_quantile
from validator.stats.window import LASTING, MIN_ROWS, Level, best_split, center_and_reach

_CHOSEN = 2.97 / 1.96
"""Widening of an interval for a change whose place was chosen as the greatest: the 5 % point of the supremum of a t
statistic over the middle seven tenths of a series (Andrews 1993), over that of one at a given place."""


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


def lasting_falls(steps: Steps, times: Floats, levels: Sequence[Level]) -> tuple[Fall, ...]:
    """The falls that a window shows, at most one by its levels and one by the mean of all rows.

    Args:
        steps: `[n]`, of the rows of the window.
        times: `[n]`, positive and finite, wall time per step or per token of each row.
        levels: of the window, in order.
    """
    if len(times) < 2 * MIN_ROWS:
        return ()
    edges = [int(np.searchsorted(steps, one.first_step)) for one in levels[1:]]
    edges = [0, *(edge for edge in dict.fromkeys(edges) if 0 < edge < len(times)), len(times)]
    looks = ((_without_pauses(times, edges), edges), (times, _likely(times)))
    found = (max(_falls_from(steps, *look), key=lambda fall: fall.least, default=None) for look in looks)
    return tuple(fall for fall in found if fall is not None)


def _likely(times: Floats) -> list[int]:
    """The edges of the likeliest change, and of those on both sides of it: what rises there may come back."""
    middle = _likeliest(times)
    sides = ((0, middle), (middle, len(times)))
    likely = [a + _likeliest(times[a:b]) for a, b in sides if b - a >= 2 * MIN_ROWS]
    return sorted({0, middle, *likely, len(times)})


def _likeliest(times: Floats) -> int:
    sums: Floats = np.cumsum(times - times.mean())
    return best_split(sums[:-1], len(times), MIN_ROWS)


def _without_pauses(times: Floats, edges: Sequence[int]) -> Floats:
    """The times, with the level's median in place of those that are far from it."""
    kept: Floats = times.copy()
    for a, b in pairwise(edges):
        center, reach = center_and_reach(times[a:b])
        kept[a:b][np.abs(times[a:b] - center) > reach] = center
    return kept


def _falls_from(steps: Steps, times: Floats, edges: Sequence[int]) -> Iterator[Fall]:
    """The fall from each beginning that there may be: the window's, and behind what was a slow start."""
    for first in range(len(edges) - 2):
        least = max(MIN_ROWS, LASTING * len(times))
        pooled = _lasting(_pooled(times, edges[first:]), least)
        if len(pooled) < 3:
            continue
        begin, behind, last = pooled[0], pooled[1], _fastest_end(times, edges, pooled[-2], least)
        fast, slow = float(times[begin:behind].mean()), float(times[last:].mean())
        noise = _row_half_width(times, [*edges[:first], *pooled])
        if begin and not _is_slow_start(times, edges[: first + 1], behind, noise):
            continue
        half = noise * math.sqrt(1 / (behind - begin) + 1 / (len(times) - last))
        if slow <= fast:
            continue
        fall = math.log(slow / fast)
        yield Fall(
            first_step=int(steps[begin - 1]) + 1 if begin else int(steps[0]),
            last_step=int(steps[behind - 1]),
            from_step=int(steps[last - 1]) + 1,
            lost=1 - math.exp(-fall),
            least=1 - math.exp(half - fall),
        )


def _pooled(times: Floats, edges: Sequence[int]) -> list[int]:
    """The edges between which the mean only rises: levels are joined to the one before while they are no slower."""
    pooled = [edges[0]]
    for edge in edges[1:]:
        pooled.append(edge)
        while len(pooled) > 2 and times[pooled[-3] : pooled[-2]].mean() >= times[pooled[-2] : edge].mean():
            del pooled[-2]
    return pooled


def _lasting(edges: list[int], least: float) -> list[int]:
    """The same, with an end that is too short to last joined to what is before it."""
    while len(edges) > 2 and edges[-1] - edges[-2] < least:
        edges = [*edges[:-2], edges[-1]]
    return edges


def _fastest_end(times: Floats, edges: Sequence[int], first: int, least: float) -> int:
    """Where the fastest end of the last stretch begins that lasts: what came back for so long is no lasting fall."""
    lasting = (edge for edge in edges[:-1] if edge >= first and len(times) - edge >= least)
    return min(lasting, key=lambda edge: float(times[edge:].mean()), default=first)


def _is_slow_start(times: Floats, edges: Sequence[int], behind: int, noise: float) -> bool:
    """Whether all before the last of these edges is slower than the stretch up to `behind`, which lasts as long."""
    begin = edges[-1]
    fast = float(times[begin:behind].mean())
    if behind - begin < begin or min(float(times[a:b].mean()) for a, b in pairwise(edges)) <= fast:
        return False
    half = noise * math.sqrt(1 / begin + 1 / (behind - begin))
    return math.log(float(times[:begin].mean()) / fast) > half


def _row_half_width(times: Floats, edges: Sequence[int]) -> float:
    """Half width of the interval of one row about the means between these edges, as a share, for the mean of many.

    What wanders between the edges is in it, by the long-run variance.
    """
    n = len(times)
    rest = np.concatenate([times[a:b] / times[a:b].mean() - 1 for a, b in pairwise(edges)])
    if is_constant(1 + rest):
        return 0.0
    effective = max(effective_values(rest), 2.0)
    freedom = max(min(effective, n) - len(edges) + 1, 1.0)
    return float(rest.std(ddof=1)) * math.sqrt(n / effective) * _CHOSEN * t_quantile(0.975, freedom)
