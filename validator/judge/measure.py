"""From the series of one run to its statistics: each over its window, with its interval or the reason for none.

Two kinds of window, by the catalogue: `steady` metrics (rates, times) are a sample of a long run, so their means carry
an interval; `whole` metrics (loss, memory, gates) are taken over every step, so what they say of this run is exact.

Which rows these are, and what their mean is made of, is told by `validator.judge.rows`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from validator.judge.derived import memory_growth, rate_drift
from validator.judge.estimate import (
    UNKNOWN_REACH,
    Estimate,
    TooFewSamples,
    exact,
    sampled_mean,
    sampled_quantile,
    sampled_spread,
)
from validator.judge.rate import as_read, rates_of
from validator.judge.readings import levels_of, reach_of
from validator.judge.rows import RATES, Windowed, obstacle_of, ordered, window_of, windowed
from validator.judge.window import SteadyWindow
from validator.model.catalogue import QUANTILES, version_of
from validator.model.measure import MetricStats, ScalarValue, Span
from validator.model.result import Result

__all__ = ["EXACT_STATISTICS", "NotMeasured", "RunMeasurement", "measure"]

Floats = npt.NDArray[np.float64]
Steps = npt.NDArray[np.int64]

EXACT_STATISTICS = frozenset({"min", "max", "first", "last", "n"})
"""Statistics that say what was seen, not what would be seen again; they have no interval."""


class NotMeasured(ValueError):
    """A statistic that cannot be had from this run; the message is a clause that says why."""


@dataclass(frozen=True, eq=False)
class RunMeasurement:
    """The statistics of one run.

    `warmup_end_step` is the last step that belongs to warm-up, None when none was left out; `steady` whether the
    time per step kept its mean and the record is sound, and `note` what was found; `window_found` has the levels.
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
    window_found: SteadyWindow | None = None

    @property
    def without_pauses(self) -> RunMeasurement:
        """The same with rates apart from pauses of which the run holds too few."""
        windows = {name: rows.without_pauses or rows for name, rows in self.windows.items()}
        return replace(self, windows=windows)

    @np.errstate(all="ignore")
    def estimate(self, name: str, statistic: str, *, alone: bool = True) -> Estimate:
        """`metric.statistic` of this run with its readings and, if it stands `alone`, its replicates.

        Raises:
            NotMeasured: when the run has no such series, or when what was recorded of it is unsound.
        """
        rows = self._rows(name, statistic)
        if not rows.sampled or statistic in EXACT_STATISTICS or not np.isfinite(rows.values).all():
            return exact(_seen(rows, statistic))
        reach = UNKNOWN_REACH if self.window_found is None else reach_of(rows, statistic, self.window_found)
        try:
            found = (
                _sampled(rows, statistic, self.window_found)
                if alone
                else Estimate(_whole_statistic(rows, statistic), unknown=_NO_NEED)
            )
        except TooFewSamples as problem:
            found = Estimate(_whole_statistic(rows, statistic), unknown=f"run {self.run}: {problem}")
        return replace(found, reach=found.reach if found.exact else reach)

    def point(self, name: str, statistic: str) -> float:
        """`metric.statistic` of this run as one number, for comparisons whose interval comes from repeats.

        Raises:
            NotMeasured: without such a series, or when what was recorded of it is unsound.
        """
        return _seen(self._rows(name, statistic), statistic)

    def _rows(self, name: str, statistic: str) -> Windowed:
        """The rows of a metric, if this statistic can be had of them."""
        rows = self.windows.get(name)
        if rows is None or len(rows.values) == 0:
            raise NotMeasured(f"run {self.run} has no {name}" + ("" if rows is None else " in its window"))
        if rows.invalid is not None and statistic not in rows.still_told:
            raise NotMeasured(rows.invalid)
        return rows


_NO_NEED = "its interval is that over the runs"


# What a trainer wrote may overflow or divide by zero; the outcome is judged, so numpy need not warn of it.
@np.errstate(all="ignore")
def measure(result: Result, *, warmup_steps: int, world_size: int = 1) -> RunMeasurement:
    """All statistics of a run.

    Args:
        result: what was collected.
        warmup_steps: optimizer steps that never count as steady.
        world_size: ranks of the run, for `toks_per_s_per_rank`.
    """
    times, doubt = as_read(result, warmup_steps=warmup_steps)
    read = result.series if times is None else {**result.series, "step_time_s": times}
    series = {name: ordered(one) for name, one in read.items() if len(one.steps)}
    restarted = [name for name, one in series.items() if one.restarted]
    window = window_of(series, warmup_steps)
    obstacle = obstacle_of(window, restarted, result.extra)
    windows = {
        name: windowed(one.series, series, window, obstacle, warmup_steps=warmup_steps, extra=result.extra)
        for name, one in series.items()
    }
    if doubt is not None and "step_time_s" in windows:
        windows["step_time_s"] = replace(windows["step_time_s"], invalid=doubt)
    scalars: dict[str, ScalarValue] = {}
    if "toks_per_s" in windows:
        ranks = int(result.extra.get("world_size", world_size))
        rates = rates_of(
            windows["toks_per_s"], result, series, warmup_steps=warmup_steps, world_size=ranks, doubt=doubt
        )
        windows |= rates.windows
        scalars |= rates.scalars
    metrics = {name: _stats(one, window) for name, one in windows.items()}
    derived: dict[str, Estimate] = {}
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
        steady=obstacle is None and window.steady,
        note=obstacle or window.note,
        window=window.span,
        windows=windows,
        derived=derived,
        window_found=window,
    )


@np.errstate(all="ignore")
def _seen(rows: Windowed, statistic: str) -> float:
    """The statistic of these rows as they are."""
    if statistic in EXACT_STATISTICS:
        return _exact_statistic(rows.values, statistic)
    return _whole_statistic(rows, statistic) if np.isfinite(rows.values).all() else math.nan


def _sampled(rows: Windowed, statistic: str, window: SteadyWindow | None) -> Estimate:
    """The statistic of rows that are a sample of a longer run, with its replicates.

    A longer run of one that became slower is slower still. So what its mean misses is missed, and the interval is that
    of a mean over these levels; it passes nothing (`validator.judge.deciding`).
    """
    values, seed = rows.values, rows.sha256  # the data decide: the same file has the same interval under any name
    if statistic == "mean":
        if rows.name in RATES and not np.isfinite(rows.denominator).all():
            return exact(0.0)  # a rate of 0 over a stretch of unknown length
        levels = levels_of(rows, window) if window is not None and window.slowed else ()
        slow_start = window is not None and window.slow_start
        return sampled_mean(
            rows.numerator, rows.denominator, seed=seed, what=rows.name, levels=levels, slow_start=slow_start
        )
    if statistic in QUANTILES:
        return sampled_quantile(values, QUANTILES[statistic], seed=seed, what=rows.name)
    return sampled_spread(values, relative=statistic == "cv", seed=seed, what=rows.name)


def _exact_statistic(values: Floats, statistic: str) -> float:
    if statistic == "n":
        return float(len(values))
    if statistic in ("first", "last"):
        return float(values[0 if statistic == "first" else -1])
    return float(values.min() if statistic == "min" else values.max())


def _whole_statistic(rows: Windowed, statistic: str) -> float:
    if statistic == "mean":
        return rows.mean()
    if statistic in QUANTILES:
        return float(np.quantile(rows.values, QUANTILES[statistic]))
    stdev, mean = _stdev(rows.values), rows.mean()
    if statistic == "stdev":
        return stdev
    if mean == 0:
        raise NotMeasured(f"the mean of {rows.name} is 0, so its coefficient of variation does not exist")
    return stdev / mean


def _stdev(values: Floats) -> float:
    """Of the population; 0 where nothing varies, which sums of rounded numbers would miss."""
    return 0.0 if values.min() == values.max() else float(values.std())


def _stats(rows: Windowed, window: SteadyWindow) -> MetricStats:
    values = rows.values
    n, finite = len(values), bool(np.isfinite(values).all())
    notes = [rows.note] if rows.note else []
    interval: tuple[float, float] | None = None
    if n and not finite:
        bad = np.flatnonzero(~np.isfinite(values))
        notes.append(f"{len(bad)} of {n} values are not finite, the first at step {int(rows.steps[bad[0]])}")
    elif n and rows.sampled:
        try:
            interval = None if rows.invalid is not None else _sampled(rows, "mean", window).interval()
            notes += [f"no interval: {rows.invalid}"] if rows.invalid is not None else []
        except TooFewSamples as problem:
            notes.append(f"no interval: {problem}")
    elif n:
        notes.append("every step of the run, so exact")
    mean = rows.mean() if n else None
    stdev = (_stdev(values) if finite else math.nan) if n else None
    quantiles = [float(q) for q in np.quantile(values, list(QUANTILES.values()))] if n else [None] * 3
    return MetricStats(
        unit=rows.unit,
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
        window=rows.span,
        source=rows.source,
        sha256=rows.sha256,
        note="; ".join(notes) or None,
        version=version_of(rows.name),
        invalid=rows.invalid,
    )
