"""The rows of a series that statistics are taken from: in order, within the window, as numerator and denominator."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from validator.judge.spacing import next_due, thins_out
from validator.judge.window import SteadyWindow, covered_steps, steady_window
from validator.model.catalogue import METRICS
from validator.model.measure import Span
from validator.model.result import Series

__all__ = [
    "RATES",
    "Ordered",
    "Windowed",
    "obstacle_of",
    "ordered",
    "window_of",
    "windowed",
]

Floats = npt.NDArray[np.float64]
Steps = npt.NDArray[np.int64]

RATES = ("toks_per_s", "toks_per_s_per_rank", "model_tflops_per_s_per_rank", "step_rate")

_FEW = 12
"""Rows of a run below which none tells where another should have gone on."""

_HOLE_STRIDES, _HOLE_SHARE = 10.0, 0.25

_MOST_SPOILT = 0.1
"""Share of the window's steps that may be left out because something else disturbed them."""


@dataclass(frozen=True, eq=False)
class Windowed:
    """One metric's rows within its window.

    `numerator [n]` over `denominator [n]`, summed, is the mean. `sampled` says whether the rows stand for more than
    themselves.
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
    """Why not even what was seen may be told of these rows, but for the statistics in `still_told`."""

    still_told: tuple[str, ...] = ("n",)

    without_pauses: Windowed | None = None
    """The same rows less their pauses, where they hold so few that how often they come is not known; see
    `validator.judge.rate`."""

    def mean(self) -> float:
        """The weighted mean; NaN if a value is not finite."""
        if not np.isfinite(self.values).all():
            return math.nan
        total = float(self.denominator.sum())
        return float(self.numerator.sum()) / total if total > 0 else math.nan


@dataclass(frozen=True, eq=False)
class Ordered:
    """A series whose steps rise; `restarted` says that they did not, as written."""

    series: Series
    restarted: bool


def ordered(series: Series) -> Ordered:
    """The series with strictly increasing steps: what follows the last step back, the last row of a repeated step."""
    steps, values = series.steps, series.values
    back = np.flatnonzero(np.diff(steps) < 0)
    if len(back):
        steps, values = steps[back[-1] + 1 :], values[back[-1] + 1 :]
    last_of_step = np.append(np.diff(steps) > 0, True)
    if last_of_step.all() and not len(back):
        return Ordered(series, restarted=False)  # as it nearly always is; a copy of each column is memory
    kept = Series(series.name, series.unit, steps[last_of_step], values[last_of_step], series.source, series.rank)
    return Ordered(kept, bool(len(back)))


def window_of(series: Mapping[str, Ordered], warmup_steps: int) -> SteadyWindow:
    """The run's steady window, searched in the most direct series of time that there is."""
    if "step_time_s" in series:
        chosen = series["step_time_s"].series
        return steady_window(chosen.steps, chosen.values, warmup_steps=warmup_steps, of="time per step")
    if "toks_per_s" in series:
        chosen = series["toks_per_s"].series
        return steady_window(chosen.steps, _reciprocal(chosen.values), warmup_steps=warmup_steps, of="time per token")
    steps = max((one.series.steps for one in series.values()), key=len, default=np.zeros(0, np.int64))
    found = steady_window(steps, np.ones(len(steps)), warmup_steps=warmup_steps)
    note = "no step_time_s and no toks_per_s, so nothing tells whether the run was steady"
    return replace(found, steady=False, note=note, levels=())


def _reciprocal(values: Floats) -> Floats:
    with np.errstate(divide="ignore"):
        return np.asarray(1.0 / values, dtype=np.float64)


def obstacle_of(window: SteadyWindow, restarted: list[str], extra: Mapping[str, Any]) -> str | None:
    """Why nothing about a longer run may be concluded, if so."""
    if restarted:
        return f"the step goes back in {', '.join(sorted(restarted))}: the file mixes runs"
    spoilt = _spoilt(extra)
    if window.span is not None and spoilt:
        first, last = window.span.first_step, window.span.last_step
        inside = [(max(low, first), min(high, last), why) for low, high, why in spoilt if low <= last and high >= first]
        share = len(set().union(*(range(low, high + 1) for low, high, _ in inside))) / (last - first + 1)
        if share > _MOST_SPOILT:
            low, high, why = inside[0]
            also = f" and {len(inside) - 1} more times" if len(inside) > 1 else ""
            return f"{100 * share:.0f} % of the window is invalid: {why} in steps {low}–{high}{also}"
    return None


def _spoilt(extra: Mapping[str, Any]) -> list[tuple[int, int, str]]:
    """Steps that say nothing of this trainer: another process used the GPUs, or the clock was set.

    Throttled steps are not among them: a long run throttles too.
    """
    told = ((int(w["first_step"]), int(w["last_step"]), str(w["reason"])) for w in extra.get("invalid_windows", ()))
    return [one for one in told if "throttled" not in one[2]]


def windowed(
    series: Series,
    others: Mapping[str, Ordered],
    window: SteadyWindow,
    obstacle: str | None,
    *,
    warmup_steps: int,
    extra: Mapping[str, Any],
) -> Windowed:
    """One series within its window, with what its mean is made of. What is sampled may begin behind the warm-up.

    Of what is sampled, rows in which something else disturbed the run are left out.
    """
    known = METRICS.get(series.name)
    sampled = known is not None and known.window == "steady"
    steps, values, weights = series.steps, series.values, covered_steps(series.steps)
    if sampled:
        inside = _kept(steps, weights, window, _spoilt(extra))
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
    hole = _hole(series, others, skipped=warmup_steps if sampled else 0)
    unsound = obstacle if sampled else None
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
        note=f"{left_out} rows in which something else disturbed the run are left out" if left_out else None,
        invalid=unsound or (hole.text if hole is not None else None),
        still_told=("first", "n") if hole is not None and hole.after_first and unsound is None else ("n",),
    )


@dataclass(frozen=True)
class _Hole:
    """A stretch without rows, in words; and whether it lies behind the first row, which is then the run's first."""

    text: str
    after_first: bool


def _hole(series: Series, others: Mapping[str, Ordered], *, skipped: int) -> _Hole | None:
    """Where a series does not tell of most of a run that others tell of: its extremes, and its end, are not known.

    Rows may come seldom, and the last one may be due only after the end; but a stretch without any, of a quarter of the
    run and ten times their own pace, is one of which nothing is known. Among rows that come ever more seldom by a rule
    such a stretch is meant, but not behind the last one. Samples of the machine go by time, not by step. Up to step
    `skipped` nobody asks for rows.
    """
    steps, rows = series.steps, max(len(one.series.steps) for one in others.values())
    if series.name.startswith("telemetry.") or rows < _FEW or len(steps) == rows:
        return None
    begin = min(int(one.series.steps[0]) for one in others.values())
    end = max(int(one.series.steps[-1]) for one in others.values())
    by_rule = thins_out(steps) and steps[0] <= max(begin, 1) + _FEW and next_due(steps) > end
    if by_rule and end - int(steps[-1]) <= _HOLE_SHARE * (end - begin):
        return None
    strides = np.diff(steps, prepend=min(begin, 1) - 1)
    usual, longest = float(np.median(strides[1:] if len(strides) > 1 else strides)), int(strides[1:].max(initial=0))
    if by_rule or int(steps[-1]) + 2 * max(longest, int(strides[0]) if len(steps) == 1 else 0) <= end:
        told = "row" if len(steps) == 1 else "rows"
        text = f"{series.name} has {len(steps)} {told}, the last at step {steps[-1]}, where others go on to {end}"
        return _Hole(text, after_first=int(steps[0]) <= _HOLE_SHARE * (end - begin))
    asked = steps - np.maximum(steps - strides, skipped)
    wide = np.flatnonzero(asked > max(_HOLE_STRIDES * usual, _HOLE_SHARE * (end - begin)))
    if wide.size and len(steps) > 1:
        low, high = int(steps[wide[0]] - strides[wide[0]]), int(steps[wide[0]])
        text = f"{series.name} has no row between steps {low} and {high}, where others have"
        return _Hole(text, after_first=bool(wide[0] > 0))
    return None


def _kept(
    steps: Steps, covered: Floats, window: SteadyWindow, spoilt: list[tuple[int, int, str]]
) -> slice | npt.NDArray[np.bool_]:
    """The window's rows, less those that hold a disturbed step."""
    inside = window.contains(steps)
    clean = inside.copy()
    for low, high, _ in spoilt:
        clean &= (steps < low) | (steps - covered >= high)
    return _slice(inside) if clean.sum() == inside.sum() else clean


def _slice(inside: npt.NDArray[np.bool_]) -> slice:
    """The rows that are inside, which lie together since steps rise: as a slice they need no copy."""
    rows = np.flatnonzero(inside)
    return slice(int(rows[0]), int(rows[-1]) + 1) if rows.size else slice(0, 0)
