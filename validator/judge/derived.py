"""Numbers of a whole run that follow from its series: the drift of its rate and the growth of its memory."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from validator.judge.autocorrelation import effective_size, is_constant, lag1, with_caution
from validator.judge.estimate import REPLICATES, Estimate
from validator.model.measure import ScalarValue

if TYPE_CHECKING:
    from validator.judge.rows import Windowed

__all__ = ["DerivedScalar", "memory_growth", "rate_drift"]

_MIN_ROWS = 9  # three in each third
_READINGS = 6
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
    are the changes between any two sixths. None when there are too few rows, or when rates are so absurd that their
    means leave the range of floats.
    """
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
        first, last = (1.0 + error * rng.standard_normal(REPLICATES) * scale for _ in range(2))
        replicates = 100.0 * (after * last / np.maximum(before * first, 1e-9 * before) - 1.0)
    return _derived("rate.drift_pct", Estimate(drift_pct, replicates, reach), "%", rate.source)


def _mean(rate: Windowed, part: npt.NDArray[np.intp]) -> float:
    return float(rate.numerator[part].sum() / rate.denominator[part].sum())


def _relative(rate: Windowed, part: npt.NDArray[np.intp], mean: float) -> npt.NDArray[np.float64]:
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


def _derived(name: str, estimate: Estimate, unit: str, source: str) -> DerivedScalar:
    low, high = estimate.interval() or (estimate.point, estimate.point)
    note = "last third of the window against its first"
    value = ScalarValue(value=estimate.point, unit=unit, source=source, ci_low=low, ci_high=high, note=note)
    return DerivedScalar(name, value, estimate)
