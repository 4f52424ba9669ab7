"""From the series of one run to its statistics: each over its window, with its interval or the reason for none.

Two kinds of window, by the catalogue: `steady` metrics (rates, times) are a sample of a long run, so their means carry
an interval; `whole` metrics (loss, memory, gates) are taken over every step, so what they say of this run is exact.

A rate over a window is tokens over wall time, never the mean of rates: the mean of rates gives a slow step, which
took most of the time, the weight of a fast one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from validator.judge.derived import memory_growth, rate_drift
from validator.judge.estimate import (
    Estimate,
    TooFewSamples,
    bootstrap_mean,
    bootstrap_quantile,
    bootstrap_spread,
    exact,
)
from validator.judge.unseen import allow_for_unseen
from validator.judge.window import SteadyWindow, covered_steps, steady_window
from validator.model.catalogue import METRICS
from validator.model.measure import MetricStats, ScalarValue, Span
from validator.model.result import Result, Series

__all__ = ["EXACT_STATISTICS", "NotMeasured", "RunMeasurement", "Windowed", "measure"]

Floats = npt.NDArray[np.float64]
Steps = npt.NDArray[np.int64]

EXACT_STATISTICS = frozenset({"min", "max", "first", "last", "n"})
"""Statistics that say what was seen, not what would be seen again; they have no interval."""

MODEL_RATE = "model_tflops_per_s_per_rank"
RATES = ("toks_per_s", "toks_per_s_per_rank", MODEL_RATE)
_QUANTILES = {"p50": 0.50, "p95": 0.95, "p99": 0.99}


class NotMeasured(ValueError):
    """A statistic that cannot be had from this run; the message is a clause that says why."""


@dataclass(frozen=True, eq=False)
class Windowed:
    """One metric's rows within its window.

    `numerator [n]` over `denominator [n]`, summed, is the mean. `sampled` says whether the rows stand for more than
    themselves; `obstacle` why no statement about a longer run may rest on them, and `comparable` whether their mean may
    all the same stand beside those of other runs.
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
    comparable: bool = False

    def mean(self) -> float:
        """The weighted mean; NaN if a value is not finite."""
        if not np.isfinite(self.values).all():
            return math.nan
        total = float(self.denominator.sum())
        return float(self.numerator.sum()) / total if total > 0 else math.nan


@dataclass(frozen=True, eq=False)
class RunMeasurement:
    """The statistics of one run.

    `warmup_end_step` is the last step that belongs to warm-up, None when none was left out; `steady` whether the
    window may stand for a long run, and `note` what was found or why not.
    """

    run: str
    metrics: Mapping[str, MetricStats]
    scalars: Mapping[str, ScalarValue]
    warmup_end_step: int | None
    steady: bool
    note: str
    window: Span | None = None
    windows: Mapping[str, Windowed] = field(default_factory=dict)
    derived: Mapping[str, Estimate] = field(default_factory=dict)

    @np.errstate(all="ignore")
    def estimate(self, name: str, statistic: str) -> Estimate:
        """`metric.statistic` of this run with its replicates.

        Raises:
            NotMeasured: when the run has no such series, was never steady, or is too short for an interval.
        """
        windowed = self.windows.get(name)
        if windowed is None or len(windowed.values) == 0:
            raise NotMeasured(f"run {self.run} has no {name}" + ("" if windowed is None else " in its window"))
        try:
            return _estimate(windowed, statistic)
        except TooFewSamples as problem:
            raise NotMeasured(f"run {self.run}: {problem}") from problem

    @np.errstate(all="ignore")
    def point(self, name: str, statistic: str) -> float:
        """`metric.statistic` of this run as one number, for comparisons whose interval comes from repeats.

        Raises:
            NotMeasured: without such a series, or when it changes too much to be compared; being short is no obstacle.
        """
        windowed = self.windows.get(name)
        usable = windowed is not None and (windowed.obstacle is None or windowed.comparable)
        if windowed is not None and usable and len(windowed.values):
            if statistic in EXACT_STATISTICS:
                return _exact_statistic(windowed.values, statistic)
            return _whole_statistic(windowed, statistic) if np.isfinite(windowed.values).all() else math.nan
        return self.estimate(name, statistic).point


# What a trainer wrote may overflow or divide by zero; the outcome is judged, so numpy need not warn of it.
@np.errstate(all="ignore")
def measure(result: Result, *, warmup_steps: int, world_size: int = 1) -> RunMeasurement:
    """All statistics of a run.

    Args:
        result: what was collected.
        warmup_steps: optimizer steps that never count as steady.
        world_size: ranks of the run, for `toks_per_s_per_rank`.
    """
    series = {name: _ordered(one) for name, one in result.series.items() if len(one.steps)}
    restarted = [name for name, one in series.items() if one.restarted]
    window = _window(series, warmup_steps)
    obstacle = _obstacle(window, restarted, result.extra)
    windows = {name: _windowed(one.series, series, window, obstacle) for name, one in series.items()}
    if "toks_per_s" in windows and "toks_per_s_per_rank" not in windows:
        windows["toks_per_s_per_rank"] = _per_rank(windows["toks_per_s"], world_size)
    flops = flops_per_token(result.environment)
    if "toks_per_s" in windows and flops is not None:
        windows[MODEL_RATE] = _model_rate(windows["toks_per_s"], flops, world_size)
    metrics = {name: _stats(one) for name, one in windows.items()}
    derived: dict[str, Estimate] = {}
    scalars: dict[str, ScalarValue] = {}
    for scalar in (rate_drift(windows.get("toks_per_s")), memory_growth(windows, window.after_step)):
        if scalar is not None:
            scalars[scalar.name] = scalar.value
            if scalar.estimate is not None:
                derived[scalar.name] = scalar.estimate
    return RunMeasurement(
        run=result.run,
        metrics=metrics,
        scalars=scalars,
        warmup_end_step=window.after_step,
        steady=obstacle is None,
        note=obstacle or window.note,
        window=window.span,
        windows=windows,
        derived=derived,
    )


@dataclass(frozen=True, eq=False)
class _Ordered:
    series: Series
    restarted: bool


def _ordered(series: Series) -> _Ordered:
    """The series with strictly increasing steps: what follows the last step back, the last row of a repeated step."""
    steps, values = series.steps, series.values
    back = np.flatnonzero(np.diff(steps) < 0)
    if len(back):
        steps, values = steps[back[-1] + 1 :], values[back[-1] + 1 :]
    last_of_step = np.append(np.diff(steps) > 0, True)
    if last_of_step.all() and not len(back):
        return _Ordered(series, restarted=False)  # as it nearly always is; a copy of each column is memory
    kept = Series(series.name, series.unit, steps[last_of_step], values[last_of_step], series.source, series.rank)
    return _Ordered(kept, bool(len(back)))


def _window(series: Mapping[str, _Ordered], warmup_steps: int) -> SteadyWindow:
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
    return SteadyWindow(found.after_step, found.span, found.rows, False, note)


def _reciprocal(values: Floats) -> Floats:
    with np.errstate(divide="ignore"):
        return np.asarray(1.0 / values, dtype=np.float64)


def _obstacle(window: SteadyWindow, restarted: list[str], extra: Mapping[str, Any]) -> str | None:
    """Why nothing about a longer run may be concluded, if so."""
    if restarted:
        return f"the step goes back in {', '.join(sorted(restarted))}: the file mixes runs"
    if not window.steady:
        return window.note
    for invalid in extra.get("invalid_windows", ()):
        first, last = int(invalid["first_step"]), int(invalid["last_step"])
        if window.span is not None and first <= window.span.last_step and last >= window.span.first_step:
            return f"the window is invalid: {invalid['reason']} in steps {first}–{last}"
    return None


def _windowed(series: Series, others: Mapping[str, _Ordered], window: SteadyWindow, obstacle: str | None) -> Windowed:
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
        comparable=window.comparable and obstacle == window.note,
    )


def _slice(inside: npt.NDArray[np.bool_]) -> slice:
    """The rows that are inside, which lie together since steps rise: as a slice they need no copy."""
    rows = np.flatnonzero(inside)
    return slice(int(rows[0]), int(rows[-1]) + 1) if rows.size else slice(0, 0)


def _tokens_and_time(
    steps: Steps, rates: Floats, weights: Floats, times: _Ordered | None
) -> tuple[Floats, Floats, str]:
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


def _per_rank(rate: Windowed, world_size: int) -> Windowed:
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
        comparable=rate.comparable,
    )


def flops_per_token(environment: Mapping[str, Any] | None) -> float | None:
    """The model's arithmetic for a token, forward and backward, by the trainer's own account."""
    told = (environment or {}).get("flops_per_token")
    found = told.get("nsa") if isinstance(told, Mapping) else told
    known = isinstance(found, (int, float)) and not isinstance(found, bool) and math.isfinite(found) and found > 0
    return float(found) if known and isinstance(found, (int, float)) else None


def _model_rate(rate: Windowed, flops: float, world_size: int) -> Windowed:
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


def _estimate(windowed: Windowed, statistic: str) -> Estimate:
    values = windowed.values
    seed = windowed.sha256  # the data decide: the same file has the same interval under any name
    if statistic in EXACT_STATISTICS:
        return exact(_exact_statistic(values, statistic))
    if not np.isfinite(values).all():
        return exact(math.nan)
    if not windowed.sampled:
        return exact(_whole_statistic(windowed, statistic))
    if windowed.obstacle is not None:
        raise NotMeasured(windowed.obstacle)
    if statistic == "mean":
        if windowed.name in RATES and not np.isfinite(windowed.denominator).all():
            return exact(0.0)  # a rate of 0 over a stretch of unknown length
        mean = bootstrap_mean(windowed.numerator, windowed.denominator, seed=seed, what=windowed.name)
        return allow_for_unseen(mean, windowed.numerator, windowed.denominator, slow=_slow(windowed.name))
    if statistic in _QUANTILES:
        return bootstrap_quantile(values, _QUANTILES[statistic], seed=seed, what=windowed.name)
    return bootstrap_spread(values, relative=statistic == "cv", seed=seed, what=windowed.name)


def _slow(name: str) -> int:
    """How a slow step moves the mean of a sampled metric: it lowers rates and raises times."""
    better = METRICS[name].better if name in METRICS else None
    return {"higher": -1, "lower": 1}.get(better or "", 0)


def _exact_statistic(values: Floats, statistic: str) -> float:
    if statistic == "n":
        return float(len(values))
    if statistic in ("first", "last"):
        return float(values[0 if statistic == "first" else -1])
    return float(values.min() if statistic == "min" else values.max())


def _whole_statistic(windowed: Windowed, statistic: str) -> float:
    if statistic == "mean":
        return windowed.mean()
    if statistic in _QUANTILES:
        return float(np.quantile(windowed.values, _QUANTILES[statistic]))
    stdev, mean = float(windowed.values.std()), windowed.mean()
    if statistic == "stdev":
        return stdev
    if mean == 0:
        raise NotMeasured(f"the mean of {windowed.name} is 0, so its coefficient of variation does not exist")
    return stdev / mean


def _stats(windowed: Windowed) -> MetricStats:
    values = windowed.values
    n, finite = len(values), bool(np.isfinite(values).all())
    notes = [windowed.note] if windowed.note else []
    interval: tuple[float, float] | None = None
    if n and not finite:
        bad = np.flatnonzero(~np.isfinite(values))
        notes.append(f"{len(bad)} of {n} values are not finite, the first at step {int(windowed.steps[bad[0]])}")
    elif n and windowed.sampled:
        try:
            interval = _estimate(windowed, "mean").interval()
        except (NotMeasured, TooFewSamples) as problem:
            notes.append(f"no interval: {problem}")
    elif n:
        notes.append("every step of the run, so exact")
    mean = windowed.mean() if n else None
    stdev = (float(values.std()) if finite else math.nan) if n else None
    quantiles = [float(q) for q in np.quantile(values, list(_QUANTILES.values()))] if n else [None] * 3
    return MetricStats(
        unit=windowed.unit,
        n=n,
        mean=mean,
        stdev=stdev,
        cv=None if mean is None or stdev is None or mean == 0 else stdev / mean,
        ci_low=interval[0] if interval else None,
        ci_high=interval[1] if interval else None,
        min=float(values.min()) if n else None,
        p50=quantiles[0],
        p95=quantiles[1],
        p99=quantiles[2],
        max=float(values.max()) if n else None,
        first=float(values[0]) if n else None,
        last=float(values[-1]) if n else None,
        window=windowed.span,
        source=windowed.source,
        sha256=windowed.sha256,
        note="; ".join(notes) or None,
    )
