"""The rows of a series that its statistics are taken from: in order, within the window, as numerator and denominator.

A rate over a window is tokens over wall time, never the mean of rates: the mean of rates gives a slow step, which
took most of the time, the weight of a fast one.
"""

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
    "MODEL_RATE",
    "RATES",
    "Ordered",
    "Windowed",
    "flops_per_token",
    "model_rate",
    "obstacle_of",
    "ordered",
    "per_rank",
    "window_of",
    "windowed",
]

Floats = npt.NDArray[np.float64]
Steps = npt.NDArray[np.int64]

MODEL_RATE = "model_tflops_per_s_per_rank"
RATES = ("toks_per_s", "toks_per_s_per_rank", MODEL_RATE)

_FEW = 12
"""Rows of a run below which none tells where another should have gone on."""

_HOLE_STRIDES, _HOLE_SHARE = 10.0, 0.25


@dataclass(frozen=True, eq=False)
class Windowed:
    """One metric's rows within its window.

    `numerator [n]` over `denominator [n]`, summed, is the mean. `sampled` says whether the rows stand for more than
    themselves; `obstacle` why no statement about a longer run may rest on them.
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
    obstacle: str | None = None
    invalid: str | None = None
    """Why not even what was seen may be told of these rows, but for the statistics in `still_told`."""

    still_told: tuple[str, ...] = ("n",)

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
    for invalid in extra.get("invalid_windows", ()):
        first, last = int(invalid["first_step"]), int(invalid["last_step"])
        if window.span is not None and first <= window.span.last_step and last >= window.span.first_step:
            return f"the window is invalid: {invalid['reason']} in steps {first}–{last}"
    return None


def windowed(
    series: Series, others: Mapping[str, Ordered], window: SteadyWindow, obstacle: str | None, *, warmup_steps: int
) -> Windowed:
    """One series within its window, with what its mean is made of. What is sampled may begin behind the warm-up."""
    known = METRICS.get(series.name)
    sampled = known is not None and known.window == "steady"
    steps, values, weights = series.steps, series.values, covered_steps(series.steps)
    if sampled:
        inside = _slice(window.contains(steps))
        steps, values, weights = steps[inside], values[inside], weights[inside]
        span = window.span if len(steps) else None
    else:
        weights = np.ones(1)
        span = Span(first_step=int(steps[0]), last_step=int(steps[-1]))
    if (weights == 1).all():  # a row for each step: the values are their own numerator
        weights, numerator = np.broadcast_to(np.ones(1), len(steps)), values
    else:
        numerator = values * weights
    denominator, note = weights, None
    hole = _hole(series, others, skipped=warmup_steps if sampled else 0)
    unsound = obstacle if sampled else None
    if series.name in RATES:
        numerator, denominator, note = _tokens_and_time(steps, values, weights, others.get("step_time_s"))
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
        note=note,
        obstacle=obstacle if sampled else None,
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


def _slice(inside: npt.NDArray[np.bool_]) -> slice:
    """The rows that are inside, which lie together since steps rise: as a slice they need no copy."""
    rows = np.flatnonzero(inside)
    return slice(int(rows[0]), int(rows[-1]) + 1) if rows.size else slice(0, 0)


def _tokens_and_time(steps: Steps, rates: Floats, weights: Floats, times: Ordered | None) -> tuple[Floats, Floats, str]:
    """What was done and how long it took, per row; from rates alone, in units of the tokens of a step."""
    if times is not None:
        index = np.searchsorted(times.series.steps, steps)
        index = np.minimum(index, len(times.series.steps) - 1)
        matched, seconds = times.series.steps[index] == steps, times.series.values[index]
        if matched.all() and (np.isfinite(seconds) & (seconds > 0)).all():
            return rates * seconds * weights, seconds * weights, "tokens over wall time (toks_per_s × step_time_s)"
    note = "tokens over wall time (harmonic mean of toks_per_s weighted by steps; step_time_s is not known)"
    with np.errstate(divide="ignore", invalid="ignore"):
        return weights, np.asarray(weights / rates, dtype=np.float64), note


def per_rank(rate: Windowed, world_size: int) -> Windowed:
    """The rate over the number of ranks."""
    return Windowed(
        name="toks_per_s_per_rank",
        unit="tok/s",
        steps=rate.steps,
        values=rate.values / world_size,
        numerator=rate.numerator / world_size,
        denominator=rate.denominator,
        sampled=True,
        span=rate.span,
        source=rate.source,
        sha256=rate.sha256,
        note=f"toks_per_s over {world_size} ranks",
        obstacle=rate.obstacle,
        invalid=rate.invalid,
        still_told=rate.still_told,
    )


def flops_per_token(environment: Mapping[str, Any] | None) -> float | None:
    """The model's arithmetic for a token, forward and backward, by the trainer's own account."""
    told = (environment or {}).get("flops_per_token")
    found = told.get("nsa") if isinstance(told, Mapping) else told
    known = isinstance(found, (int, float)) and not isinstance(found, bool) and math.isfinite(found) and found > 0
    return float(found) if known and isinstance(found, (int, float)) else None


def model_rate(rate: Windowed, flops: float, world_size: int) -> Windowed:
    """The rate in the model's arithmetic, for a comparison with what the GPU can do."""
    factor = flops / world_size / 1e12
    return replace(
        rate,
        name=MODEL_RATE,
        unit="TFLOP/s",
        values=rate.values * factor,
        numerator=rate.numerator * factor,
        note=f"toks_per_s × {flops:.4g} FLOP per token over {world_size} ranks",
    )
