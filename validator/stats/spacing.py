"""How a trainer spaces its rows: the steps that each covers, and the rule by which the next one comes.

Most log every so many steps. Some log at increasing intervals, at 1, 2, 4, 8 or at 1, 2, 5, 10, 20; some every step at
first and every tenth later; some at even times. Whatever the rule, the rows themselves must show it: a series that
merely stops, or of which a part was lost, follows none.

A pause fills a row of one step and hardly shows in one of fifty, and the first one varies more. So where a trainer
prints each tenth step and later each fiftieth, or lines arrive in bursts, a search for changes among the rows finds
those of their length. Rows are joined up to the pace of the coarse ones then, and what takes rows as equal looks at
these.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import combinations, pairwise

import numpy as np

from validator.model.result import Floats, Result, Steps

LASTING = 0.1
"""Share of the window that a level must hold to be called lasting."""

_A_LEVEL = 5
"""Rows from which coarse ones can be a level of their own."""

_FEWEST = 20
"""Groups below which rows are not joined: too few are left to show a lasting level on either side of a change."""

_ALIKE = 1.5
"""Times as many steps, up to which rows are of one pace."""

_NOT_OF_STEPS = re.compile(r"telemetry\.|val(?:id(?:ation)?)?[._]")
_FEW = 6
"""Rows below which no rule can be seen."""

_PLATEAU = 3
"""Consecutive equal strides that make a pace."""

_GRID_ROWS = 12
"""Rows at the start among which the distances of two grids are looked for."""

_MANY_GAPS = 10
"""Regular gaps among single steps from which they are none of a logger that writes when it is time to."""

_MIN_RATIO, _MAX_RATIO = 1.1, 10.0
_UNEVEN = 1.6
"""How far beyond 1 one ratio of consecutive steps may be over another, as 5/2 and 2/1 are for rows at 1, 2, 5, 10."""

_MIN_STRIDE, _VARIES = 3, 2.5
"""Minimum steps between rows that come at even times, and how far a stride may be from the usual one."""

_OFF_PACE_OF_A_BAR, _SINGLE_OF_A_BAR = 0.1, 0.1
"""Least share of a bar's strides that are no multiple of the usual one; most that are single steps."""

_GROWTH = 4
"""Last stride over the first one from which rows come at increasing intervals."""

_START, _LONG_START, _MUCH_RARER = 0.1, 0.5, 5
"""Share of the steps in which a trainer that logs less often later may log more often, and the same for one that then
logs at most one step in so many of those before."""

_SAME_RULE = 2.0
"""How far changes of pace may differ in what the step is of the new pace, and be of one rule, as at 10 and 100."""


def covered_steps(steps: Steps) -> Floats:
    """Optimizer steps that each row covers: those since the row before it.

    The first row covers all steps up to it; a file whose first step is 0 counts from 0.
    """
    if len(steps) == 0:
        return np.zeros(0)
    base = min(1, int(steps[0]))
    return np.diff(steps, prepend=base - 1).astype(np.float64)


def even_rows(covered: Floats) -> Steps | None:
    """The first row of each group of rows to be joined, so that the groups cover alike; None where the rows do.

    Coarse rows that are few, or cover little, are no level of the run, and set no pace.

    Args:
        covered: steps of each row `[n]`, positive.
    """
    if len(covered) <= _A_LEVEL or covered.min() == covered.max():
        return None
    strides = np.sort(covered)
    coarser = np.append(np.cumsum(strides[::-1])[::-1][1:], 0.0)  # steps of the rows behind each of these
    few = np.arange(len(strides))[::-1] < _A_LEVEL
    pace = float(strides[np.flatnonzero((coarser < LASTING * covered.sum()) | few)[0]])
    if (covered < pace / _ALIKE).mean() < LASTING:
        return None
    group = np.floor((np.cumsum(covered) - covered / 2) / pace)
    first = np.flatnonzero(np.diff(group, prepend=-1.0))
    whole = joined(covered, first) >= pace / 2
    whole[0] = True  # what is left over belongs to the group before it
    return first[whole] if whole.sum() >= _FEWEST else None


def joined(values: Floats, groups: Steps | None) -> Floats:
    """The sum of the values of each group; the values where nothing is joined."""
    return values if groups is None else np.add.reduceat(values, groups)


def thins_out(steps: Steps) -> bool:
    """Whether rows come at increasing intervals by a rule: by a ratio, or by paces that each last for some rows.

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
    if paces and strides[:left].max() > paces[-1]:
        return False  # what comes closer again has a gap before it
    # A lone stride onto the grid of the first pace, as from 1 to 10, says nothing for or against.
    return _by_ratio(steps[: left + 1]) or (left == 1 and len(paces) > 1)


@dataclass(frozen=True)
class Thinning:
    """Behind `step` rows come every `after` steps, in place of `before`: `missing` fewer."""

    step: int
    before: int
    after: int
    missing: int


def late_thinning(steps: Steps) -> Thinning | None:
    """Where rows come less often from some step on, and neither the start of a run nor a rule explains it.

    A trainer that lowers its pace on purpose does so at its start, or again and again in proportion to the step. A log
    that loses every other row looks like one, except that it begins anywhere. `steps [n]` rise.
    """
    if not thins_out(steps):
        return None
    strides = np.diff(steps)
    begins = np.flatnonzero(np.diff(strides, prepend=0))
    ends = np.append(begins[1:], len(strides))
    lasting = ends - begins >= _PLATEAU
    paces = [(int(strides[begin]), int(end)) for begin, end in zip(begins[lasting], ends[lasting], strict=True)]
    changes = [(before, after, end) for (before, end), (after, _) in pairwise(paces) if after > before]
    at_paces = [steps[end] / after for _, after, end in changes]
    if len(changes) > 1 and max(at_paces) <= _SAME_RULE * min(at_paces):
        return None
    first, last = int(steps[0]) - int(strides[0]), int(steps[-1])
    for before, after, end in changes:
        step, start = int(steps[end]), _LONG_START if after >= _MUCH_RARER * before else _START
        if step - first > start * (last - first):
            expected = np.arange(step + before, last + 1, before)
            return Thinning(step, before, after, missing=len(np.setdiff1d(expected, steps)))
    return None


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
    return most >= _MIN_RATIO and least - 1 <= _UNEVEN * (most - 1) and least <= _MAX_RATIO


def at_even_times(steps: Steps) -> bool:
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
    if counts.max() <= len(inner) / 2 and inner.min() >= _MIN_STRIDE:
        return usual <= _VARIES * float(inner.min())
    single = inner == 1
    off_pace = (inner % usual != 0) & ~single
    return bool(usual > 1 and off_pace.mean() >= _OFF_PACE_OF_A_BAR and single.mean() <= _SINGLE_OF_A_BAR)


def on_two_grids(steps: Steps) -> bool:
    """Whether rows come at every multiple of two numbers, as of 20 for the log and of 30 for an epoch, counted from 0
    or from 1, and at no other step; the first and the last row may be elsewhere.

    A grid of which a row is missing is none.
    """
    strides = np.diff(steps[:_GRID_ROWS])
    apart = {int(strides[at : at + many].sum()) for many in (1, 2, 3, 4) for at in range(len(strides) - many + 1)}
    for counted in (steps, steps + 1):
        grids = []
        for distance in sorted(apart):
            there = counted % distance == 0
            if there.sum() == counted[-1] // distance - (counted[0] - 1) // distance:
                grids.append(there)
        if any((one | other)[1:-1].all() for one, other in combinations(grids, 2)):
            return True
    return False


def pace_of_regular_gaps(strides: Steps) -> int | None:
    """The pace of rows of which every third is missing, or every fourth, and so on; None where rows are not so.

    Rows on two grids, as those of every 20 steps and of every 30, leave gaps at unequal distances.

    Args:
        strides: steps from each row to the next `[n]`.
    """
    inner = strides[1:-1]  # the first and the last row may come early
    found, counts = np.unique(inner, return_counts=True)
    if len(found) != 2 or found[1] != 2 * found[0] or counts[0] < counts[1] - 1:
        return None
    apart = np.diff(np.flatnonzero(inner == found[1]))
    enough = _PLATEAU if found[0] > 1 else _MANY_GAPS
    return int(found[0]) if len(apart) >= enough and apart[0] > 1 and not np.ptp(apart) else None


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


def is_of_steps(name: str) -> bool:
    """Whether a series may have a row for each step that is logged: not one of the machine, nor of a validation."""
    return _NOT_OF_STEPS.match(name) is None


def core_steps(result: Result) -> list[Steps]:
    """The steps of each of loss, rate and time that has rows; without a loss also of whatever has the most.

    Rates and times may be those of validator's own clock, which misses the first steps.
    """
    found = [result.series.get(name) for name in ("loss", "toks_per_s", "step_time_s")]
    if found[0] is None:
        own = (one for name, one in result.series.items() if is_of_steps(name))
        found.append(max(own, key=lambda one: len(one.steps), default=None))
    return [one.steps for one in found if one is not None and len(one.steps)]


def steps_to_next_row(result: Result) -> int:
    """How many steps behind the last known one the next row would come; 1 where every step is known.

    So many steps, less one, may have been done that a log with a row every so many steps says nothing of.
    """
    exact = result.evidence.heartbeats or "metrics.step" in result.scalars
    steps = max(core_steps(result), key=lambda one: one[-1], default=None)
    return 1 if exact or steps is None or len(steps) < 3 else next_due(steps) - int(steps[-1])
