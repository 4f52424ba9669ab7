"""How a trainer spaces its rows, so that a row that it never meant to write is not taken for one that is missing.

Most log every so many steps. Some log ever more seldom, at 1, 2, 4, 8 or at 1, 2, 5, 10, 20; some every step at first
and every tenth later; some by the clock. Whatever the rule, the rows themselves must show it: a series that merely
stops, or of which a part was lost, follows none.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import numpy.typing as npt

__all__ = ["by_the_clock", "next_due", "thins_out"]

Steps = npt.NDArray[np.int64]

_FEW = 6
"""Rows below which no rule can be seen."""

_PLATEAU = 3
"""Equal strides in a row that make a pace."""

_LEAST_RATIO, _MOST_RATIO = 1.1, 10.0
_UNEVEN = 1.6
"""How far beyond 1 one ratio of consecutive steps may be over another, as 5/2 and 2/1 are for rows at 1, 2, 5, 10."""

_LEAST_BY_CLOCK, _VARIES = 3, 2.5
"""Fewest steps from one row by the clock to the next, and how far a stride may be from the usual one."""

_OFF_PACE_OF_A_BAR, _SINGLE_OF_A_BAR = 0.1, 0.1
"""Least share of a bar's strides that are no multiple of the usual one; most that are single steps."""

_GROWTH = 4
"""Last stride over the first one from which rows can be said to come ever more seldom."""


def thins_out(steps: Steps) -> bool:
    """Whether rows come ever more seldom by a rule: by a ratio, by paces that each last, or first so and then so.

    `steps [n]` rise. The last row may come before it is due, as many trainers log their last step. Rows at an even pace
    do not thin out.
    """
    return _follows(steps) or _follows_but_last(steps)


def _follows_but_last(steps: Steps) -> bool:
    return len(steps) > _FEW and _follows(steps[:-1]) and int(steps[-1]) < _due(steps[:-1])


def _follows(steps: Steps) -> bool:
    strides = np.diff(steps)
    left, paces = len(strides), []
    while left and (length := _equal_at_end(strides[:left])) >= _PLATEAU:
        paces.append(int(strides[left - 1]))
        left -= length
    if len(steps) < _FEW or any(earlier >= later for later, earlier in pairwise(paces)):
        return False
    if not left:
        return len(paces) > 1
    # A lone stride onto the grid of the first pace, as from 1 to 10, says nothing for or against.
    return _by_ratio(steps[: left + 1]) or (left == 1 and len(paces) > 1 and int(strides[0]) < paces[-1])


def _equal_at_end(strides: Steps) -> int:
    """How many of the last strides are the same."""
    other = np.flatnonzero(strides != strides[-1])
    return len(strides) - (int(other[-1]) + 1 if other.size else 0)


def _by_ratio(steps: Steps) -> bool:
    """Whether each step is about the same multiple of the one before, as far as whole numbers can be."""
    steps = steps[steps > 0]
    strides = np.diff(steps)
    if len(steps) < _FEW - 1 or (np.diff(strides) < -1).any() or strides[-1] < _GROWTH * strides[0]:
        return False
    least, most = float((steps[1:] / (steps[:-1] + 1)).max()), float(((steps[1:] + 1) / steps[:-1]).min())
    return most >= _LEAST_RATIO and least - 1 <= _UNEVEN * (most - 1) and least <= _MOST_RATIO


def by_the_clock(steps: Steps) -> bool:
    """Whether rows come every so many seconds, not steps: strides that vary within bounds, and by no common step.

    Rows that are missing from an even pace leave strides that are multiples of it, or single steps. The first stride
    may hold a slow start, and the last row may come early. A bar that is drawn at most so often also has strides that
    no row missing from the usual pace would leave, as 2 beside 3, and few single ones, at the ends of epochs.
    """
    if len(steps) < _FEW:
        return False
    inner = np.diff(steps)[1:-1]
    _, counts = np.unique(inner, return_counts=True)
    usual = float(np.median(inner))
    if np.gcd.reduce(inner) != 1 or inner.max() > _VARIES * usual:
        return False
    if counts.max() <= len(inner) / 2 and inner.min() >= _LEAST_BY_CLOCK:
        return usual <= _VARIES * float(inner.min())
    single = inner == 1
    off_pace = (inner % usual != 0) & ~single
    return bool(usual > 1 and off_pace.mean() >= _OFF_PACE_OF_A_BAR and single.mean() <= _SINGLE_OF_A_BAR)


def next_due(steps: Steps) -> int:
    """The step at which the row behind the last one would come, by the rule of the rows; `steps [n]`, n > 1."""
    if _follows(steps):
        return _due(steps)
    if _follows_but_last(steps):
        return _due(steps[:-1])
    return int(steps[-1] + np.median(np.diff(steps)))


def _due(steps: Steps) -> int:
    """What follows rows of which none came early."""
    strides = np.diff(steps)
    if _equal_at_end(strides) >= _PLATEAU:
        return int(steps[-1] + strides[-1])
    ratios = steps[1:] / np.maximum(steps[:-1], 1)
    return int(np.ceil(steps[-1] * ratios[len(ratios) // 2 :].max()))
