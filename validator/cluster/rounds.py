"""The rounds of the slow-node search: which groups of nodes are measured at the same time.

Groups of a round are disjoint, so that one start of processes measures them all. A group of one node is measured alone,
a group of two is a pair, a larger one is measured as a whole. Everything is deterministic by its seed.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

import numpy as np
import numpy.typing as npt

from validator.model.result import Floats

Group = tuple[str, ...]
Stage = Literal["each", "pairs", "confirm", "whole", "part"]

TOURNAMENT_UP_TO = 16
"""Nodes up to which each pair is measured."""

RANDOM_ROUNDS = 3
"""Rounds of random pairs above; the last round then pairs slow nodes with fast ones."""


@dataclass(frozen=True)
class Round:
    """Disjoint `groups`, measured at the same time, each measure `repeats` times, alternately."""

    stage: Stage
    groups: tuple[Group, ...]
    measures: tuple[str, ...]
    repeats: int


@dataclass(frozen=True, eq=False)
class Reading:
    """What one group gave in a round: `values [repeats]`, or `[repeats, gpus]` of a node, in the measure's unit.

    NaN is a repeat that gave nothing; a group without a reading gave nothing at all. Neither counts as slow.
    """

    measure: str
    group: Group
    values: npt.ArrayLike


def pair_rounds(nodes: Sequence[str], seed: int = 0, most: int | None = None) -> list[tuple[Group, ...]]:
    """Rounds of disjoint pairs: up to 16 nodes a tournament, which measures each pair once, above three rounds of it.

    `most` limits them. The circle method on shuffled nodes: one stays, the others rotate. With odd nodes one sits
    out in each round.
    """
    order: list[str | None] = [*sorted(nodes)]
    random.Random(seed).shuffle(order)
    if len(order) % 2:
        order.append(None)
    count = len(order) - 1 if len(nodes) <= TOURNAMENT_UP_TO else RANDOM_ROUNDS
    rounds: list[tuple[Group, ...]] = []
    for _ in range((count if most is None else min(most, len(order) - 1)) if len(nodes) > 1 else 0):
        half = len(order) // 2
        facing = zip(order[:half], reversed(order[half:]), strict=True)
        rounds.append(tuple((a, b) for a, b in facing if a is not None and b is not None))
        order = [order[0], order[-1], *order[1:-1]]
    return rounds


def slow_with_fast(ranked: Sequence[str], measured: Iterable[Group]) -> tuple[Group, ...]:
    """Pairs of slow nodes, which come first in `ranked`, with fast ones; none of those that were measured before.

    The slowest is paired with the fastest, so that a slow node stays slow and a slow link is left behind.
    """
    before = {frozenset(pair) for pair in measured}
    slow, fast = list(ranked[: len(ranked) // 2]), list(reversed(ranked[len(ranked) // 2 :]))
    pairs: list[Group] = []
    for node in slow:
        partner = next((other for other in fast if frozenset((node, other)) not in before), None)
        if partner is not None:
            fast.remove(partner)
            pairs.append((node, partner))
    return tuple(pairs)


def swap_rounds(
    suspects: Sequence[str], links: Sequence[Group], good: Sequence[str], *, count: int, first: int = 0
) -> list[tuple[Group, ...]]:
    """Rounds in which each suspect has a known-good partner, another one each time, and the other good nodes pair up.

    A suspected link is measured itself in every other round, and its ends with known-good nodes in the rounds between.
    `good` is in order of preference as a partner. `first` is how many such rounds there were before.
    """
    return [_swapped(suspects, links, list(good), turn) for turn in range(first, first + count)]


def _swapped(suspects: Sequence[str], links: Sequence[Group], good: Sequence[str], turn: int) -> tuple[Group, ...]:
    ends = dict.fromkeys(end for link in links for end in link)
    apart = {frozenset(link) for link in links}
    # Rotated, so that each suspect gets another partner and links that share a node are all measured.
    partners = _rotated(sorted(good, key=lambda node: node in ends), turn)
    free = dict.fromkeys([*suspects, *ends, *partners])
    pairs: list[Group] = []
    for link in _rotated(links, turn // 2) if turn % 2 == 0 else ():
        if free.keys() >= set(link):
            pairs.append(link)
            free = {node: None for node in free if node not in link}
    for node in list(free):
        fitting = (one for one in partners if one in free and one != node and frozenset((one, node)) not in apart)
        partner = next(fitting, None) if node in free else None
        if partner is not None:
            pairs.append((node, partner))
            del free[node], free[partner]
    return tuple(pairs)


_T = TypeVar("_T")


def _rotated(items: Sequence[_T], by: int) -> list[_T]:
    first = by % max(1, len(items))
    return [*items[first:], *items[:first]]


def logs_of(values: npt.ArrayLike) -> Floats:
    """Logarithms `[repeats, gpus]` of readings, larger is better; NaN where a value is not a positive number."""
    array = np.atleast_1d(np.asarray(values, dtype=np.float64))
    array = array[:, None] if array.ndim == 1 else array
    usable = np.isfinite(array) & (array > 0)
    return np.where(usable, np.log(np.where(usable, array, 1.0)), np.nan)
