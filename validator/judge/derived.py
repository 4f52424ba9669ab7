"""Numbers of a whole run that follow from its series: the drift of its rate and the growth of its memory."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from validator.judge.autocorrelation import effective_size, is_constant, lag1, with_caution
from validator.judge.estimate import MIN_EFFECTIVE, REPLICATES, Estimate
from validator.model.measure import ScalarValue

if TYPE_CHECKING:
    from validator.judge.rows import Windowed

__all__ = ["DerivedScalar", "memory_growth", "rate_drift"]

_MIN_ROWS = 9  # three in each third
_MEMORY = ("gpu_mem_alloc_mib", "host_mem_mib")


@dataclass(frozen=True, eq=False)
class DerivedScalar:
    """A derived number as shown, and with replicates when it is a sample of a longer run."""

    name: str
    value: ScalarValue
    estimate: Estimate | None = None


def rate_drift(rate: Windowed | None) -> DerivedScalar | None:
    """`rate.drift_pct`: the rate of the window's last third against its first, in percent.

    The interval is Student's t on the pooled scatter within the thirds, widened for autocorrelation. A run that was
    never steady has a drift as well: that is what the number is for. None when there are too few rows, or when
    rates are so absurd that their means leave the range of floats.
    """
    if rate is None or len(rate.values) < _MIN_ROWS or not np.isfinite(rate.values).all() or (rate.values <= 0).any():
        return None
    parts = np.array_split(np.arange(len(rate.values)), 3)
    means = [float(rate.numerator[part].sum() / rate.denominator[part].sum()) for part in parts]
    if not all(0 < mean < np.inf for mean in means):
        return None
    residuals = np.concatenate(
        [
            (rate.numerator[part] - mean * rate.denominator[part]) / rate.denominator[part].mean() / mean
            for part, mean in zip(parts, means, strict=True)
        ]
    )
    drift_pct = 100.0 * (means[-1] / means[0] - 1.0)
    n = len(residuals)
    phi = lag1(residuals, fitted=3)
    phi = with_caution(phi, n)
    effective = effective_size(n, phi)
    note = "last third of the window against its first"
    if is_constant(1.0 + residuals):
        return _derived("rate.drift_pct", drift_pct, "%", rate.source, note, np.full(REPLICATES, drift_pct))
    if effective < MIN_EFFECTIVE:
        note += f"; no interval: {n} rows with autocorrelation {phi:.2f} count as {effective:.0f} independent ones"
        return DerivedScalar(
            "rate.drift_pct", ScalarValue(value=drift_pct, unit="%", source=rate.source, note=note), None
        )
    error = float(residuals.std(ddof=3)) * math.sqrt((1.0 + phi) / (1.0 - phi))
    rng = np.random.default_rng([zlib.crc32(rate.sha256.encode()), n])
    scale = np.sqrt((effective - 1.0) / rng.chisquare(effective - 1.0, REPLICATES))
    first, last = (1.0 + error / math.sqrt(n / 3) * rng.standard_normal(REPLICATES) * scale for _ in range(2))
    replicates = 100.0 * (means[-1] * last / np.maximum(means[0] * first, 1e-9) - 1.0)
    return _derived("rate.drift_pct", drift_pct, "%", rate.source, note, replicates)


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


def _derived(name: str, point: float, unit: str, source: str, note: str, replicates: np.ndarray) -> DerivedScalar:
    estimate = Estimate(point, replicates)
    low, high = estimate.interval() or (point, point)
    value = ScalarValue(value=point, unit=unit, source=source, ci_low=low, ci_high=high, note=note)
    return DerivedScalar(name, value, estimate)
