"""How a trainer spaces its rows, so that a row that it never meant to write is not taken for one that is missing.

Most log every so many steps. Some log at increasing intervals, at 1, 2, 4, 8 or at 1, 2, 5, 10, 20; some every step at
first and every tenth later; some at even times. Whatever the rule, the rows themselves must show it: a series that
merely stops, or of which a part was lost, follows none.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from validator.model.catalogue import METRICS, Metric
from validator.model.result import Floats, InvalidWindow, Result, RunEvidence, Series, Span, Steps
from validator.stats.timing import Timing, timing_of
from validator.stats.window import SteadyWindow, covered_steps, steady_window
from validator.text import format_percent

_FEW = 6
"""Rows below which no rule can be seen."""

_PLATEAU = 3
"""Consecutive equal strides that make a pace."""

_MIN_RATIO, _MAX_RATIO = 1.1, 10.0
_UNEVEN = 1.6
"""How far beyond 1 one ratio of consecutive steps may be over another, as 5/2 and 2/1 are for rows at 1, 2, 5, 10."""

_MIN_STRIDE, _VARIES = 3, 2.5
"""Minimum steps between rows that come at even times, and how far a stride may be from the usual one."""

_OFF_PACE_OF_A_BAR, _SINGLE_OF_A_BAR = 0.1, 0.1
"""Least share of a bar's strides that are no multiple of the usual one; most that are single steps."""

_GROWTH = 4
"""Last stride over the first one from which rows come at increasing intervals."""


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


def core_steps(result: Result) -> list[Steps]:
    """The steps of each of loss, rate and time that has rows; a trainer writes at least one of them."""
    found = (result.series.get(name) for name in ("loss", "toks_per_s", "step_time_s"))
    return [one.steps for one in found if one is not None and len(one.steps)]


def steps_to_next_row(result: Result) -> int:
    """How many steps behind the last known one the next row would come; 1 where every step is known.

    So many steps, less one, may have been done that a log with a row every so many steps says nothing of.
    """
    exact = result.evidence.heartbeats or "metrics.step" in result.scalars
    steps = max(core_steps(result), key=lambda one: one[-1], default=None)
    return 1 if exact or steps is None or len(steps) < 3 else next_due(steps) - int(steps[-1])


# The rows of a series that statistics are taken from: in order, within the window, as numerator and denominator.


RATES = frozenset(name for name, metric in METRICS.items() if metric.unit.endswith("/s"))

_FEW_ROWS = 12
"""Rows of a run below which no gap between series is judged."""

_HOLE_STRIDES, _HOLE_SHARE = 10.0, 0.25

_MAX_DISTURBED = 0.1
"""Share of the window's steps that may be left out because something else disturbed them."""


@dataclass(frozen=True, eq=False)
class Windowed:
    """One metric's rows within its window.

    `numerator [n]` over `denominator [n]`, summed, is the mean. `sampled` says whether the rows are a sample of a
    longer run.
    """

    name: str
    unit: str
    steps: Steps
    values: Floats
    numerator: Floats
    denominator: Floats
    sampled: bool
    span: Span | None
    source: str
    sha256: str
    note: str | None = None
    invalid: str | None = None
    """Why not even the seen values of these rows are reported, but for the statistics in `still_valid`."""

    still_valid: tuple[str, ...] = ("n",)

    without_pauses: Windowed | None = None
    """The same rows less their pauses, where they hold so few that how often they come is not known; see
    `validator.stats.rate`."""

    timing: Timing | None = None
    """What a coarse clock leaves open of these rows' times."""

    def since(self, step: int) -> Windowed:
        """The rows of this step and later ones, of rows that are a sample."""
        kept = self.steps >= step
        if not self.sampled or kept.all():
            return self
        parts = {name: getattr(self, name)[kept] for name in ("steps", "values", "numerator", "denominator")}
        plain = None if self.without_pauses is None else self.without_pauses.since(step)
        timing = None if self.timing is None else replace(self.timing, spans_s=self.timing.spans_s[kept])
        return replace(self, **parts, without_pauses=plain, timing=timing)

    def mean(self) -> float:
        """The weighted mean; NaN if a value is not finite."""
        if not np.isfinite(self.values).all():
            return math.nan
        total = float(self.denominator.sum())
        return float(self.numerator.sum()) / total if total > 0 else math.nan


def is_restarted(series: Series) -> bool:
    """Whether the step decreases somewhere, as written."""
    return bool((np.diff(series.steps) < 0).any())


def ordered(series: Series) -> Series:
    """The series with strictly increasing steps: what follows the last step back, the last row of a repeated step."""
    steps, values = series.steps, series.values
    back = np.flatnonzero(np.diff(steps) < 0)
    if len(back):
        steps, values = steps[back[-1] + 1 :], values[back[-1] + 1 :]
    last_of_step = np.append(np.diff(steps) > 0, True)
    if last_of_step.all() and not len(back):
        return series  # as it nearly always is; a copy of each column is memory
    return replace(series, steps=steps[last_of_step], values=values[last_of_step])


def window_of(series: Mapping[str, Series], warmup_steps: int) -> SteadyWindow:
    """The run's steady window, searched in the most direct series of time that there is."""
    if "step_time_s" in series:
        chosen = series["step_time_s"]
        return steady_window(chosen.steps, chosen.values, warmup_steps=warmup_steps, of="time per step")
    if "toks_per_s" in series:
        chosen = series["toks_per_s"]
        return steady_window(chosen.steps, _reciprocal(chosen.values), warmup_steps=warmup_steps, of="time per token")
    steps = max((one.steps for one in series.values()), key=len, default=np.zeros(0, np.int64))
    found = steady_window(steps, np.ones(len(steps)), warmup_steps=warmup_steps)
    note = "no step_time_s and no toks_per_s, so whether the run was steady is unknown"
    return replace(found, steady=False, note=note, levels=())


def _reciprocal(values: Floats) -> Floats:
    with np.errstate(divide="ignore"):
        return np.asarray(1.0 / values, dtype=np.float64)


def obstacle_of(window: SteadyWindow, restarted: list[str], evidence: RunEvidence) -> str | None:
    """Why nothing about a longer run may be concluded, if so."""
    if restarted:
        return f"the step decreases in {', '.join(sorted(restarted))}: the file mixes runs"
    disturbed = _disturbed(evidence)
    if window.span is not None and disturbed:
        first, last = window.span.first_step, window.span.last_step
        inside = [
            (max(one.first_step, first), min(one.last_step, last), one.reason)
            for one in disturbed
            if one.first_step <= last and one.last_step >= first
        ]
        share = len(set().union(*(range(low, high + 1) for low, high, _ in inside))) / (last - first + 1)
        if share > _MAX_DISTURBED:
            low, high, why = inside[0]
            also = f" and {len(inside) - 1} more times" if len(inside) > 1 else ""
            return f"{format_percent(share)} of the window is invalid: {why} in steps {low}–{high}{also}"
    return None


def _disturbed(evidence: RunEvidence) -> list[InvalidWindow]:
    """Steps that say nothing of this trainer: another process used the GPUs, or the clock was set.

    Throttled steps are not among them: a long run throttles too.
    """
    return [one for one in evidence.invalid_windows if not one.throttled]


def windowed(
    series: Series,
    others: Mapping[str, Series],
    window: SteadyWindow,
    obstacle: str | None,
    known: Metric | None,
    *,
    warmup_steps: int,
    evidence: RunEvidence,
) -> Windowed:
    """One series within its window, with what its mean is made of. What is sampled may begin behind the warm-up.

    `known` says which window a series has; without it every step counts.

    Of what is sampled, rows in which something else disturbed the run are left out.
    """
    sampled = known is not None and known.window == "steady"
    steps, values, weights = series.steps, series.values, covered_steps(series.steps)
    if sampled:
        inside = _kept(steps, weights, window, _disturbed(evidence))
        steps, values, weights = steps[inside], values[inside], weights[inside]
        span = window.span if len(steps) else None
    else:
        weights = np.ones(1)
        span = Span(first_step=int(steps[0]), last_step=int(steps[-1]))
    if (weights == 1).all():  # a row for each step: the values are their own numerator
        weights, numerator = np.broadcast_to(np.ones(1), len(steps)), values
    else:
        numerator = values * weights
    denominator = weights
    by_time = series.name.startswith("telemetry.") or (known is not None and known.across is not None)
    hole = None if by_time else _hole(series, others, skipped=warmup_steps if sampled else 0)
    unsound = obstacle if sampled else None
    timing = timing_of(series, others, steps) if sampled else None
    left_out = sampled and int(window.contains(series.steps).sum()) - len(steps)
    return Windowed(
        name=series.name,
        unit=known.unit if known is not None and known.unit else series.unit,
        steps=steps,
        values=values,
        numerator=numerator,
        denominator=denominator,
        sampled=sampled,
        span=span,
        source=series.source.path,
        sha256=series.source.sha256,
        note=_joined(
            f"{left_out} rows in which something else disturbed the run are left out" if left_out else "",
            "" if timing is None else timing.note(),
        ),
        timing=timing,
        invalid=unsound or (hole.text if hole is not None else None),
        still_valid=("first", "n") if hole is not None and hole.after_first and unsound is None else ("n",),
    )


def _joined(*texts: str) -> str | None:
    return "; ".join(filter(None, texts)) or None


@dataclass(frozen=True)
class _Hole:
    """A stretch without rows, in words; and whether it lies behind the first row, which is then the run's first."""

    text: str
    after_first: bool


def _hole(series: Series, others: Mapping[str, Series], *, skipped: int) -> _Hole | None:
    """Where a series leaves out most of a run that others cover: its extremes, and its end, are not known.

    Rows may be rare, and the last one may be due only after the end; but a stretch without any, of a quarter of the
    run and ten times their own pace, is one of which nothing is known. Among rows at increasing intervals by a rule
    such a stretch is meant, but not behind the last one. Up to step
    `skipped` no rows are expected.
    """
    steps, rows = series.steps, max(len(one.steps) for one in others.values())
    if rows < _FEW_ROWS or len(steps) == rows:
        return None
    begin = min(int(one.steps[0]) for one in others.values())
    end = max(int(one.steps[-1]) for one in others.values())
    by_rule = thins_out(steps) and steps[0] <= max(begin, 1) + _FEW_ROWS and next_due(steps) > end
    if by_rule and end - int(steps[-1]) <= _HOLE_SHARE * (end - begin):
        return None
    strides = np.diff(steps, prepend=min(begin, 1) - 1)
    usual, longest = float(np.median(strides[1:] if len(strides) > 1 else strides)), int(strides[1:].max(initial=0))
    if by_rule or int(steps[-1]) + 2 * max(longest, int(strides[0]) if len(steps) == 1 else 0) <= end:
        noun = "row" if len(steps) == 1 else "rows"
        text = f"{series.name} has {len(steps)} {noun}, the last at step {steps[-1]}, where others continue to {end}"
        return _Hole(text, after_first=int(steps[0]) <= _HOLE_SHARE * (end - begin))
    expected = steps - np.maximum(steps - strides, skipped)
    wide = np.flatnonzero(expected > max(_HOLE_STRIDES * usual, _HOLE_SHARE * (end - begin)))
    if wide.size and len(steps) > 1:
        low, high = int(steps[wide[0]] - strides[wide[0]]), int(steps[wide[0]])
        text = f"{series.name} has no row between steps {low} and {high}, where others have"
        return _Hole(text, after_first=bool(wide[0] > 0))
    return None


def _kept(
    steps: Steps, covered: Floats, window: SteadyWindow, disturbed: list[InvalidWindow]
) -> slice | npt.NDArray[np.bool_]:
    """The window's rows, less those that hold a disturbed step."""
    inside = window.contains(steps)
    clean = inside.copy()
    for one in disturbed:
        clean &= (steps < one.first_step) | (steps - covered >= one.last_step)
    return _slice(inside) if clean.sum() == inside.sum() else clean


def _slice(inside: npt.NDArray[np.bool_]) -> slice:
    """The rows that are inside, which lie together since steps rise: as a slice they need no copy."""
    rows = np.flatnonzero(inside)
    return slice(int(rows[0]), int(rows[-1]) + 1) if rows.size else slice(0, 0)
