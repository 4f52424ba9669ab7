"""Numbers of a whole run that follow from its series: the drift of its rate and the growth of its memory."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from validator.model.catalogue import METRICS, QUANTILES, Metric, version_of
from validator.model.result import Floats, MetricStats, Result, ScalarValue, Span
from validator.stats.autocorrelation import effective_size, is_constant, lag1, with_caution
from validator.stats.clock import clock_for
from validator.stats.estimate import (
    LEVEL,
    REPLICATES,
    UNKNOWN_REACH,
    Estimate,
    TooFewSamples,
    exact,
    levels_of,
    reach_of,
    sampled_mean,
    sampled_quantile,
    sampled_spread,
    without_negatives,
)
from validator.stats.growth import RunMemory, run_memories
from validator.stats.means import fell
from validator.stats.rate import as_read, not_in_step_times, rates_of
from validator.stats.rows import RATES, Windowed, is_restarted, obstacle_of, ordered, window_of, windowed
from validator.stats.slowing import Fall, falls_by_arrival, lasting_falls
from validator.stats.spacing import LASTING
from validator.stats.window import MIN_ROWS, Level, SteadyWindow

_MIN_ROWS = 9  # three in each third
_READINGS = 6
_MOST_OFF = math.log(10.0)
"""Beyond which an error of a drift, as a logarithm, says nothing more."""

_SAYS_NOTHING = 2.0
"""Times the observed rate, or the part of it, to which an interval reaches that says nothing of a drift."""

_MEMORY = ("gpu_mem_alloc_mib", "host_mem_mib")


@dataclass(frozen=True, eq=False)
class DerivedScalar:
    """A derived number as shown, and with replicates when it is a sample of a longer run."""

    name: str
    value: ScalarValue
    estimate: Estimate | None = None


def rate_drift(rate: Windowed | None) -> DerivedScalar | None:
    """`rate.drift_pct`: the rate of the window's last third against its first, in percent.

    The interval is Student's t on the pooled scatter within these two thirds, widened for autocorrelation; the readings
    are the changes between any two sixths. Where it reaches half or twice the rate, the run is too short to say how the
    rate drifts, and no interval is stated. None when there are too few rows, or when rates are so absurd that their
    means leave the range of floats.
    """
    rate = None if rate is None else rate.evened()
    if rate is None or len(rate.values) < _MIN_ROWS or not np.isfinite(rate.values).all() or (rate.values <= 0).any():
        return None
    thirds = np.array_split(np.arange(len(rate.values)), 3)
    sixths = [_mean(rate, part) for part in np.array_split(np.arange(len(rate.values)), _READINGS)]
    before, after = _mean(rate, thirds[0]), _mean(rate, thirds[-1])
    if not all(0 < mean < np.inf for mean in (before, after, *sixths)):
        return None
    residuals = np.concatenate([_relative(rate, thirds[0], before), _relative(rate, thirds[-1], after)])
    drift_pct = 100.0 * (after / before - 1.0)
    turn = max(sixths) / min(sixths)
    reach = (100.0 * (1.0 / turn - 1.0), 100.0 * (turn - 1.0))
    n, replicates = len(residuals), np.full(REPLICATES, drift_pct)
    if not is_constant(1.0 + residuals):
        effective = max(effective_size(n, with_caution(lag1(residuals, fitted=2), n)), 3.0)
        rng = np.random.default_rng([zlib.crc32(rate.sha256.encode()), n])
        scale = np.sqrt((effective - 2.0) / rng.chisquare(effective - 2.0, REPLICATES))
        error = float(residuals.std(ddof=2)) * math.sqrt(2.0 / effective)
        # As logarithms, for no rate is below 0: of few rows the heavy tails would end at -847 and 10^11 %.
        of_first, of_last = (error * rng.standard_normal(REPLICATES) * scale for _ in range(2))
        off = np.clip(of_last - of_first, -_MOST_OFF, _MOST_OFF)
        replicates = 100.0 * (after / before * np.exp(off) - 1.0)
    if rate.timing is not None:  # what a coarse clock leaves open of each third
        open_pct = 100.0 * (1.0 + drift_pct / 100.0) * sum(map(rate.timing.end_share, (thirds[0], thirds[-1])))
        replicates = _wider(replicates, drift_pct, open_pct)
        reach = (reach[0] - open_pct, reach[1] + open_pct)
    estimate = Estimate(drift_pct, replicates, reach)
    low, high = estimate.interval() or (drift_pct, drift_pct)
    note = "last third of the window against its first"
    if _spans(low, high, drift_pct) > _SAYS_NOTHING:
        why = f"the run is too short to say how its rate drifts: {n} rows that vary and correlate this much"
        value = ScalarValue(value=drift_pct, unit="%", source=rate.source, note=f"{note}; {why}")
        return DerivedScalar("rate.drift_pct", value, Estimate(drift_pct, None, reach, unknown=why))
    value = ScalarValue(value=drift_pct, unit="%", source=rate.source, ci_low=low, ci_high=high, note=note)
    return DerivedScalar("rate.drift_pct", value, estimate)


def _spans(low_pct: float, high_pct: float, drift_pct: float) -> float:
    """How many times higher, or lower, than the observed rate one end of the interval of a drift is."""
    at = 100.0 + drift_pct
    return max((100.0 + high_pct) / at, at / max(100.0 + low_pct, 1e-9 * at))


def _wider(replicates: Floats, point: float, by: float) -> Floats:
    """The replicates of a 95 % interval that reaches further on either side."""
    low, high = np.quantile(replicates, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    half = float(high - low) / 2
    if half == 0:
        return np.asarray(point + by * np.linspace(-1, 1, len(replicates)) / LEVEL)
    return np.asarray(point + (replicates - point) * (1 + by / half))


def _mean(rate: Windowed, part: npt.NDArray[np.intp]) -> float:
    return float(rate.numerator[part].sum() / rate.denominator[part].sum())


def _relative(rate: Windowed, part: npt.NDArray[np.intp], mean: float) -> Floats:
    """How far each row of a part is from the part's mean, relative to it."""
    numerator, denominator = rate.numerator[part], rate.denominator[part]
    return np.asarray((numerator - mean * denominator) / denominator.mean() / mean, dtype=np.float64)


def memory_growth(windows: Mapping[str, Windowed], after_step: int | None) -> DerivedScalar | None:
    """`memory.growth_mib_per_1k_steps`: medians of the last and the first third after warm-up, over their distance.

    GPU memory where there is any, else that of the host. Memory is counted, not sampled, so the value is exact; medians
    keep a single spike from being taken for growth.
    """
    memory = next((windows[name] for name in _MEMORY if name in windows), None)
    if memory is None:
        return None
    inside = np.isfinite(memory.values) & (memory.steps > (after_step if after_step is not None else -1))
    steps, values = memory.steps[inside], memory.values[inside]
    if len(values) < _MIN_ROWS:
        return None
    parts = np.array_split(np.arange(len(values)), 3)
    distance = float(steps[parts[-1]].mean() - steps[parts[0]].mean())
    growth = float(np.median(values[parts[-1]]) - np.median(values[parts[0]])) / distance * 1000.0
    value = ScalarValue(value=growth, unit="MiB", source=memory.source, note=f"trend of {memory.name} after warm-up")
    return DerivedScalar("memory.growth_mib_per_1k_steps", value)


# From the series of one run to its statistics: each over its window, with its interval or the reason for none.


_NOISE_ROWS = 10
"""Rows from which the noise of one is known."""

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
    memories: tuple[RunMemory, ...] = ()
    """The memory of the run's processes after warm-up, on each node."""
    falls_by_arrival: tuple[Fall, ...] = ()
    """The same as `falls` of the pace at which steps arrived."""

    @property
    def without_pauses(self) -> RunMeasurement:
        """The same with rates apart from pauses of which the run holds too few."""
        windows = {name: rows.without_pauses or rows for name, rows in self.windows.items()}
        return replace(self, windows=windows)

    @property
    def at_end(self) -> RunMeasurement:
        """The same of its end alone, the shortest lasting one that begins with a level, where the run became slower."""
        window = self.window_found
        if window is None or not window.slowed:
            return self
        least = max(MIN_ROWS, LASTING * sum(level.rows for level in window.levels))
        first = len(window.levels) - 1
        while sum(level.rows for level in window.levels[first:]) < least:
            first -= 1
        ending = window.levels[first:]
        windows = {name: rows.since(ending[0].first_step) for name, rows in self.windows.items()}
        return replace(self, windows=windows, window_found=replace(window, levels=ending, slowed=False))

    @property
    def falls(self) -> tuple[Fall, ...]:
        """By how much the run ends slower than it lastingly was before, as far as its levels and rows show."""
        rows = self.windows.get("step_time_s") or self.windows.get("toks_per_s")
        return () if rows is None or self.window_found is None else _falls(rows, self.window_found.levels)

    @property
    def falls_by_tokens(self) -> tuple[Fall, ...] | None:
        """The same of tokens/s beside a time per step; None where the run has no two of them."""
        rows = self.windows.get("toks_per_s")
        return None if rows is None or "step_time_s" not in self.windows else _falls(rows, ())

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

    def _rows(self, name: str, statistic: str) -> Windowed:
        """The rows of a metric, if this statistic can be had of them."""
        rows = self.windows.get(name)
        if rows is None or len(rows.values) == 0:
            raise NotMeasured(f"run {self.run} has no {name}" + ("" if rows is None else " in its window"))
        if rows.invalid is not None and statistic not in rows.still_valid:
            raise NotMeasured(rows.invalid)
        return rows


_NO_NEED = "its interval is that over the runs"


def _falls(rows: Windowed, levels: Sequence[Level]) -> tuple[Fall, ...]:
    """The lasting falls of a time per step, or of a rate."""
    rows = rows.evened()
    timed = rows.name == "step_time_s"
    usable = np.isfinite(rows.values) & (rows.values > 0)
    times = (rows.values if timed else 1 / rows.values)[usable]
    weights = (rows.denominator if timed else rows.numerator)[usable]
    return lasting_falls(rows.steps[usable], times, weights, levels)


# What a trainer wrote may overflow or divide by zero; the outcome is judged, so numpy need not warn of it.
@np.errstate(all="ignore")
def measure(
    result: Result, *, warmup_steps: int, world_size: int = 1, declared: Mapping[str, Metric] | None = None
) -> RunMeasurement:
    """All statistics of a run.

    Args:
        result: what was collected.
        warmup_steps: optimizer steps that never count as steady.
        world_size: ranks of the run, for `toks_per_s_per_rank`.
        declared: series that the catalogue lacks, by name; of others every step counts.
    """
    known = {**METRICS, **(declared or {})}
    times, doubt = as_read(result, warmup_steps=warmup_steps)
    read = result.series if times is None else {**result.series, "step_time_s": times}
    series = {name: ordered(one) for name, one in read.items() if len(one.steps)}
    restarted = [name for name, one in read.items() if is_restarted(one)]
    window = window_of(series, warmup_steps)
    obstacle = obstacle_of(window, restarted, result.evidence)
    windows = {
        name: windowed(
            one, series, window, obstacle, known.get(name), warmup_steps=warmup_steps, evidence=result.evidence
        )
        for name, one in series.items()
    }
    if doubt is not None and "step_time_s" in windows:
        windows["step_time_s"] = replace(windows["step_time_s"], invalid=doubt)
    elif "step_time_s" in windows and (unseen := not_in_step_times(result, warmup_steps=warmup_steps)):
        own = windows["step_time_s"]
        windows["step_time_s"] = replace(own, note="; ".join(filter(None, (unseen, own.note))))
    scalars: dict[str, ScalarValue] = {}
    if "toks_per_s" in windows:
        ranks = result.evidence.world_size or world_size
        rates, pauses = rates_of(
            windows["toks_per_s"], result, series, warmup_steps=warmup_steps, world_size=ranks, doubt=doubt
        )
        if result.evidence.world_size is None and "toks_per_s_per_rank" in windows:
            del rates["toks_per_s_per_rank"]  # the trainer says it itself, and how many ranks it has is not known
        windows |= rates
        scalars |= pauses
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
        memories=tuple(run_memories(result.evidence, warmup_steps)),
        falls_by_arrival=falls_by_arrival(clock_for(result), after_step=window.after_step or 0),
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
        rows = rows.evened()
        levels = levels_of(rows, window) if window is not None and window.slowed else ()
        slow_start = window is not None and window.slow_start
        return sampled_mean(
            rows.numerator,
            rows.denominator,
            seed=seed,
            what=rows.name,
            levels=levels,
            slow_start=slow_start,
            timing=rows.timing,
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


def _noise(values: Floats) -> float | None:
    """Standard deviation of one row about the curve, in the last third of the rows; None of too few.

    From the differences of neighbors, so that a curve that still falls has none, by their median, so that a spike has
    no part in it.
    """
    steps = np.diff(values[-max(len(values) // 3, _NOISE_ROWS) :])
    if len(steps) < _NOISE_ROWS - 1:
        return None
    return float(1.4826 * np.median(np.abs(steps - np.median(steps))) / math.sqrt(2))


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
            interval = None if interval is None else without_negatives(interval, float(values.min()))
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
        noise=_noise(values) if finite else None,
        fell=fell(values.tolist()) if rows.name == "loss" else None,
        window=rows.span,
        source=rows.source,
        sha256=rows.sha256,
        note="; ".join(notes) or None,
        version=version_of(rows.name),
        invalid=rows.invalid,
    )
