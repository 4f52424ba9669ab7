"""Which side of its bound a value is on, decided when the evidence decides.

In this order: exact values are compared. A value all of whose readings (each part of each run, each level, further by
the variation between runs) lie on one side is on that side. Otherwise the whole interval must lie there. What then
remains open could be either, and the message says what would decide it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from validator.model.catalogue import MIN_REPEATS
from validator.model.verdict import Needed, Status
from validator.stats.estimate import Estimate, combine, without_negatives
from validator.stats.window import SteadyWindow
from validator.text import format_distinct, format_interval, format_number, format_percent, listed

WORDS = {">=": "at least", "<=": "at most", ">": "above", "<": "below", "==": "equal to", "!=": "different from"}

_HOPELESS = 400
"""Times as much data as there is, beyond which no practical number of runs decides."""

Interval = tuple[float, float]


@dataclass(frozen=True)
class Terms:
    """What a comparison is decided by: `repeats` runs, `assumed_cv` between them, intervals of `level`.

    `windows` are those of the runs behind the values, for what they say of steadiness; `text` is the criterion.
    """

    operator: str
    unit: str
    text: str
    repeats: int
    assumed_cv: float
    level: float
    windows: tuple[SteadyWindow, ...] = ()
    needs: Callable[[], tuple[Needed, str | None] | None] = lambda: None
    """What would decide it by the parts of its phases, and as a clause where several phases have one."""

    at_end: Callable[[], Estimate | None] = lambda: None
    """Left minus right where of each run that became slower its end alone counts; None where that is not known."""


@dataclass(frozen=True)
class Decided:
    """The answer, with the interval of the value and its relative distance from the bound."""

    status: Status
    message: str
    interval: Interval | None = None
    margin: float | None = None
    open_for: Literal["interval", "rows"] | None = None
    needed: Needed | None = None


def decide(left: Estimate, right: Estimate, terms: Terms) -> Decided:
    """Whether `left` is on the right side of `right`."""
    operator, unit = terms.operator, f" {terms.unit}" if terms.unit else ""
    difference = combine("-", [left, right])
    margin = _margin(left.point, operator, right.point)
    shown, bound = (f"{digits}{unit}" for digits in format_distinct(left.point, right.point))
    if difference.exact:
        holds = _holds(left.point, operator, right.point)
        message = f"{shown} is {_words(operator, holds=holds)} {bound}."
        return Decided("PASS" if holds else "FAIL", message, None, margin)
    interval = difference.interval(terms.level)
    if interval is not None and not all(math.isfinite(end) for end in interval):
        interval = None
    ends = None if interval is None else (right.point + interval[0], right.point + interval[1])
    if ends is not None and right.point >= 0:
        ends = without_negatives(ends, left.reach[0])
    text = shown if ends is None else f"{shown} {format_interval(*ends)}"
    by_reach = side_of(difference.reach, operator)
    by_interval = "INCONCLUSIVE" if interval is None else side_of(interval, operator)
    status = by_reach if by_reach != "INCONCLUSIVE" else by_interval
    if (doubt := _doubt(status, by_reach, difference.reach, terms)) is not None:
        message = f"{text} is {_words(operator, holds=status == 'PASS')} {bound}, but {doubt}."
        return Decided("INCONCLUSIVE", message, ends, margin)
    if status == "INCONCLUSIVE":
        return _open(difference, text, bound, ends, margin, terms)
    slowed = status == "PASS" and any(window.slowed for window in terms.windows)
    how = ", with its whole interval" + (", and so is its end alone" if slowed else "")
    if by_interval != status:
        reach = right.point + difference.reach[0], right.point + difference.reach[1]
        how = f", and so is every part of what was measured: {format_number(reach[0])} to {format_number(reach[1])}"
        if ends is not None:  # a reader asks why a value passes whose interval holds the bound
            ends = max(ends[0], reach[0]), min(ends[1], reach[1])
            text = f"{shown} {format_interval(*ends)}"
    message = f"{text} is {_words(operator, holds=status == 'PASS')} {bound}{how}."
    return Decided(status, message + _remarks(terms), ends, margin)


def _doubt(status: Status, by_reach: Status, reach: Interval, terms: Terms) -> str | None:
    """Why what the numbers say is not yet decided: the run was becoming slower, or was still becoming faster."""
    if status == "PASS" and by_reach != "PASS":
        ended = next((window.note for window in terms.windows if window.slowed), None)
        if ended is None or _holds_at_end(terms):
            return None
        return f"the run ended slower than it began, and its last level is not clear of the bound: {ended}"
    settling = next((window.note for window in terms.windows if window.settling), None)
    if status == "FAIL" and settling is not None:
        span = reach[1] - reach[0]
        # It may get faster yet, though hardly by more than it already did.
        hopeless = math.isfinite(span) and side_of((reach[0] - span, reach[1] + span), terms.operator) == "FAIL"
        return None if hopeless else f"the start was {settling}"
    return None


def _holds_at_end(terms: Terms) -> bool:
    """Whether the ends of the runs that became slower are clear of the bound by their own interval."""
    ended = terms.at_end()
    interval = None if ended is None else ended.interval(terms.level)
    return interval is not None and side_of(interval, terms.operator) == "PASS"


def _remarks(terms: Terms) -> str:
    """What the answer rests on, and a warning where the run was not steady."""
    remarks = ""
    if terms.assumed_cv:
        share = format_percent(terms.assumed_cv)
        remarks += f" The interval allows for {share} between runs, which is assumed, not measured."
    moved = next((window.note for window in terms.windows if len(window.levels) > 1), None)
    return remarks + (f" Warning: {moved}." if moved else "")


def _open(
    difference: Estimate, text: str, bound: str, ends: Interval | None, margin: float | None, terms: Terms
) -> Decided:
    """Both answers are plausible: what would decide it."""
    if difference.unknown is not None:
        message = f"{text} is not clear of the bound {bound} in every part of what was measured: {difference.unknown}."
        # From four repeats on a run need not have an interval of its own, so more runs make up for missing rows.
        return Decided("INCONCLUSIVE", message, ends, margin, "rows" if terms.repeats < MIN_REPEATS else None)
    if ends is None:
        message = f"{text} has no finite interval: a divisor in {terms.text!r} may be 0."
        return Decided("INCONCLUSIVE", message, ends, margin)
    ended = next((window.note for window in terms.windows if window.slowed), None)
    if ended is not None:  # more runs like it would not show how slow it becomes
        message = f"The interval of {text} holds the bound {bound}, and the run ended slower than it began: {ended}."
        return Decided("INCONCLUSIVE", message, ends, margin)
    needed, clause = terms.needs() or (None, None)
    if _factor(difference) > _HOPELESS and clause is None:
        if needed is None or not needed.steps:
            message = f"The interval of {text} holds the bound {bound}; {_what_decides(difference, terms)}."
            return Decided("INCONCLUSIVE", message, ends, margin)
        # The value of so short a phase moves first.
        clause = f"about {listed([f'{n:,} steps of {phase}' for phase, n in needed.steps.items()])} would show more"
    message = f"The interval of {text} holds the bound {bound}; {clause or _what_decides(difference, terms)}."
    return Decided("INCONCLUSIVE", message, ends, margin, "interval", needed)


def _words(operator: str, *, holds: bool) -> str:
    return f"{'' if holds else 'not '}{WORDS[operator]}"


def _holds(left: float, operator: str, right: float) -> bool:
    if operator in ("==", "!="):
        return math.isclose(left, right, rel_tol=1e-9, abs_tol=1e-12) == (operator == "==")
    if operator in (">=", "<="):
        return left >= right if operator == ">=" else left <= right
    return left > right if operator == ">" else left < right


def side_of(interval: Interval, operator: str) -> Status:
    """The side of 0 on which the whole interval of left minus right lies."""
    low, high = interval
    if operator in ("<", "<="):
        low, high, operator = -high, -low, ">" if operator == "<" else ">="
    if operator == "==":
        return "PASS" if low == high == 0 else "INCONCLUSIVE" if low <= 0 <= high else "FAIL"
    if operator == "!=":
        return "FAIL" if low == high == 0 else "INCONCLUSIVE" if low <= 0 <= high else "PASS"
    if operator == ">=":
        return "PASS" if low >= 0 else "FAIL" if high < 0 else "INCONCLUSIVE"
    return "PASS" if low > 0 else "FAIL" if high <= 0 else "INCONCLUSIVE"


def _margin(left: float, operator: str, right: float) -> float | None:
    """Relative distance from the bound, positive on the good side; absolute where the bound is 0."""
    distance = 0.0 + (left - right if right == 0 else (left - right) / abs(right))
    if not math.isfinite(distance):
        return None
    if operator in ("<", "<="):
        return -distance
    if operator == "==":
        return -abs(distance) if distance else 0.0
    return abs(distance) if operator == "!=" else distance


def _what_decides(difference: Estimate, terms: Terms) -> str:
    """How much more would decide, if the observed value is the true one."""
    factor = _factor(difference)
    if math.isinf(factor):
        return "the value lies on the bound, so no number of runs would decide it"
    if factor > _HOPELESS:
        return "the value is so close to the bound that no practical number of runs would decide it"
    wanted = max(MIN_REPEATS, math.ceil(terms.repeats * factor))
    if terms.assumed_cv:
        return (
            f"{MIN_REPEATS} repeats would measure the variation between runs, which is assumed to be "
            f"{format_percent(terms.assumed_cv)}; at that, about {wanted} would decide it if the value is right"
        )
    if wanted > terms.repeats:
        were = "was 1" if terms.repeats == 1 else f"were {terms.repeats}"
        return f"if the value is right, about {wanted} repeats would decide it (there {were})"
    return f"if the value is right, a run about {max(2, math.ceil(factor))} times as long would decide it"


def _factor(difference: Estimate) -> float:
    """How many times as much data would decide, if the observed value is the true one; infinite on the bound."""
    if difference.replicates is None or difference.point == 0:
        return math.inf
    half = float(np.ptp(np.quantile(difference.replicates, [0.025, 0.975]))) / 2
    return (half / abs(difference.point)) ** 2
