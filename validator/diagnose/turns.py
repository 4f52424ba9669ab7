"""Pauses with a period that fill many rows of a log: rows with one take turns with rows without.

Medians say nothing then, since they may be those of slow rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from validator.model.result import Floats, Steps
from validator.stats.window import MIN_ROWS

SLOW = 1.15
"""Times as long as the others that a slow row or step takes at least."""

MIN_TURNS = 6
"""Slow rows, and fast ones, that must take turns."""

_EVEN_ROW = 10
"""Steps from which rows that cover alike take turns by pauses: single steps may do so by what they compute."""

_MOST_ROWS = 1000
"""Rows in which the period of turns is looked for: it takes the square of as many."""

_OFTEN, _EXPLAINED = 0.25, 0.95
"""Among rows that cover unlike numbers of steps: least share of slow ones, and of rows that one period must explain."""

_ROOM = 1.25
"""How far beyond what the rows say a period is looked for: a pause at the edge of a row may be seen in the next."""

_MOST_STEPS = 2000
"""The longest period that is looked for among rows that cover unlike numbers of steps."""


@dataclass(frozen=True)
class Turns:
    """Slow rows `at [k]`, the seconds that each takes beyond the fast ones, and between which steps the period is."""

    at: npt.NDArray[np.intp]
    extra_s: Floats
    between: tuple[int, int]


def turns_of_uneven_rows(steps: Steps, times: Floats, covered: Floats) -> Turns | None:
    """The slow rows among rows that cover unlike numbers of steps, as those of a bar, where pauses of one period
    explain which rows are slow; None where they do not.

    Args:
        steps: the last step of each row `[n]`.
        times: seconds of each row.
        covered: steps of each row.
    """
    if len(steps) < 2 * MIN_ROWS or covered.min() == covered.max() or np.median(covered) < 2 or times.min() <= 0:
        return None
    kinds = _kinds(times / covered)
    if kinds is None or len(kinds[1]) < _OFTEN * len(steps):
        return None
    fast, at = kinds
    slow = np.zeros(len(steps), dtype=np.bool_)
    slow[at] = True
    span = float(covered.sum())
    # No pause is in a fast row, so the period is longer; each slow row has one.
    least, most = max(2, int(covered[fast].max() / _ROOM)), math.ceil(_ROOM * span / len(at))
    if most > _MOST_STEPS:
        return None
    some = slice(_MOST_ROWS)
    shares = {period: _explained(steps[some], covered[some], slow[some], period) for period in range(least, most + 1)}
    best = max(shares.values(), default=0.0)
    if best < _EXPLAINED:
        return None
    periods = [period for period, share in shares.items() if share == best]
    usual = covered * np.median(times[fast] / covered[fast])
    return Turns(at, (times - usual)[at], (min(periods), max(periods)))


def _explained(steps: Steps, covered: Floats, slow: npt.NDArray[np.bool_], period: int) -> float:
    """Share of the slow rows that hold a pause and of the others that hold none, their mean, by the best phase."""
    score = np.zeros(period + 1)
    weight = np.where(slow, 1 / slow.sum(), -1 / (~slow).sum())
    first, length = (steps - covered.astype(np.int64) + 1) % period, np.minimum(covered.astype(np.int64), period)
    np.add.at(score, first, weight)
    end = first + length
    np.add.at(score, np.minimum(end, period), -weight)
    over = end > period
    score[0] += weight[over].sum()
    np.add.at(score, (end - period)[over], -weight[over])
    held = np.cumsum(score[:period])
    return float(held.max() + 1) / 2


def turns_of_even_rows(steps: Steps, times: Floats, covered: Floats) -> Turns | None:
    """The rows of many steps that are slow, where they take turns with fast ones as pauses with a period make them: a
    pause every 25 steps falls into two rows of five that have ten steps each. None where they do not.

    Args:
        steps: the last step of each row `[n]`.
        times: seconds of each row.
        covered: steps of each row.
    """
    each = times / covered
    if np.median(covered) < _EVEN_ROW or each.min() <= 0:  # rows of one burst have no time of their own
        return None
    found = _every_other(each) or _two_kinds(each)
    if found is None:
        return None
    at, usual, (low, high) = found
    row, even = float(np.median(covered)), len({*np.diff(at).tolist()}) == 1
    least, largest = math.floor(low * row) + 1, math.ceil(high * row) - 1
    if even or least > largest:
        least = largest = round(float(np.median(np.diff(steps[at]))) if even else (low + high) / 2 * row)
    return Turns(at, (each - usual)[at] * covered[at], (least, largest))


_Even = tuple[npt.NDArray[np.intp], Floats, tuple[float, float]]
"""Slow rows, what each row would take without its pause, and between which numbers of rows the period lies."""


def _every_other(each: Floats) -> _Even | None:
    """Every other row, where each is slower than both beside it."""
    before, after = np.roll(each, 1), np.roll(each, -1)
    before[0], after[-1] = after[0], before[-1]
    for parity in (0, 1):
        at = np.arange(parity, len(each), 2)
        if len(at) >= MIN_TURNS and bool((each[at] > SLOW * np.maximum(before, after)[at]).all()):
            return at, (before + after) / 2, (2.0, 2.0)
    return None


def _two_kinds(each: Floats) -> _Even | None:
    """The slow ones of two kinds of rows, with nothing between the two, where the pauses of one period explain them."""
    if len(each) < 2 * MIN_ROWS:
        return None
    kinds = _kinds(each)
    if kinds is None:
        return None
    (fast, at), some = kinds, min(len(each), _MOST_ROWS)
    periods = _periods_of(at[at < some], some)
    return None if periods is None else (at, np.full(len(each), np.median(each[fast])), periods)


def _kinds(each: Floats) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]] | None:
    """The fast rows and the slow ones, by the widest gap among their times; None where there is hardly one."""
    order = np.argsort(each)
    ratios = each[order][1:] / each[order][:-1]
    fast, slow = np.split(order, [int(np.argmax(ratios)) + 1])
    if ratios.max() < SLOW or min(len(fast), len(slow)) < MIN_TURNS:
        return None
    return np.sort(fast), np.sort(slow)


def _periods_of(at: npt.NDArray[np.intp], n: int) -> tuple[float, float] | None:
    """Between which periods, in rows, pauses lie of which one falls into each of the rows `at [k]` of `n` and none into
    the others. None where no period, or one of less than a row, does that."""
    k, number = len(at), np.arange(len(at))
    apart, turns = at[None, :] - at[:, None], number[None, :] - number[:, None]
    later = turns > 0
    if not later.any():
        return None
    # The pause before the first one lies before all rows, that after the last one behind them.
    low = max(
        1.0,
        float(((apart - 1)[later] / turns[later]).max()),
        float((at / (number + 1)).max()),
        float(((n - 1 - at) / (k - number)).max()),
    )
    high = float(((apart + 1)[later] / turns[later]).min())
    return (low, high) if low < high else None
