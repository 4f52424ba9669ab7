"""What a healthy loss curve never does: rise far above its own minimum, fall to exactly 0, or repeat itself."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from validator.diagnose.facts import RunFacts
from validator.diagnose.rule import Severity, evidence, found
from validator.model.result import Series
from validator.model.verdict import Finding

__all__ = ["diverging", "repeated_data", "zero_loss"]

Floats = npt.NDArray[np.float64]

_LEAST_ROWS = 10
_SMOOTH_SHARE = 20
"""Rows of a run over rows of a level: 1 in 20, but five at least (three below thirty rows)."""

_RISE_NOISE = 8.0
"""Rise over the minimum in units of the noise. See the table of false alarms in docs/findings.md."""

_RISE_SHARE = 0.25
"""Rise over the minimum as a share of its magnitude; a step of a curriculum costs a tenth."""

_DROP_SHARE = 0.10
"""Rise as a share of what had been learned: a loss that fell from 4 to 0.01 may end at 0.05."""

_EXPLODED = 100.0
_ABOVE_ZERO = 0.1
_NEAR_ZERO = 0.01
_ZERO_STRIKES = 3
_RETURNS, _OFTEN_ZERO = 5, 0.25
_REPEATS = 0.7
_LEAST_PERIODS = 4


def diverging(run: RunFacts) -> Iterator[Finding]:
    """The loss ends far above its own minimum, or the gradient norm at a hundred times its usual value."""
    loss, norm = run.series("loss"), run.series("grad_norm")
    if not run.training:
        return
    risen = None if loss is None else _risen(loss)
    if loss is not None and risen is not None:
        low, high, at = risen
        yield _diverges(
            f"The loss rises from {low:.4g} near step {at} to {high:.4g} at the end and does not come back.",
            "veto",
            loss,
            f"smoothed loss: minimum {low:.4g} near step {at}, end {high:.4g}",
        )
        return
    exploded = None if norm is None else _exploded(norm)
    if norm is not None and exploded is not None:
        usual, end, at = exploded
        learns = loss is not None and _at_its_minimum(loss)
        yield _diverges(
            f"The gradient norm is {end:.3g} from step {at} to the end, {end / usual:,.0f} times its usual {usual:.3g}"
            + (", though the loss is at its minimum." if learns else "."),
            "warning" if learns else "veto",
            norm,
            f"grad_norm: usually {usual:.3g}, {end:.3g} at the end",
        )


def _diverges(message: str, severity: Severity, series: Series, shown: str) -> Finding:
    return found(
        "diverging",
        message,
        severity=severity,
        because=[evidence(shown, series.source.path)],
        next_step="Look at what changed at that step (learning rate, data, precision) and start again from before it "
        "with a lower learning rate, longer warm-up or tighter clipping.",
    )


def _levels(values: Floats) -> tuple[Floats, int]:
    """Running medians, and the rows in each: a spike narrower than half of them leaves no trace."""
    width = max(5, len(values) // _SMOOTH_SHARE) if len(values) >= 30 else 3
    return np.median(np.lib.stride_tricks.sliding_window_view(values, width), axis=1), width


def _noise(values: Floats, width: int) -> float:
    """Scatter of one row, by how far rows that lie `width` apart are off a straight line: no trend and no spike enters.

    Rows side by side would understate what is autocorrelated. The noisier half of the curve counts, since noise may
    grow with the loss.
    """
    if len(values) <= 2 * width:
        return float(np.abs(np.diff(values)).max(initial=0.0))
    bent = np.abs(values[2 * width :] - 2 * values[width:-width] + values[: -2 * width])
    bent = bent[len(bent) // 4 :]  # a curve bends most where it begins
    parts = [half for half in np.array_split(bent, 2) if half.size]
    return max(float(np.median(half)) for half in parts) * 1.4826 / math.sqrt(6.0)


def _risen(loss: Series) -> tuple[float, float, int] | None:
    """Smoothed minimum, last level, and the step of the minimum, where the loss ends far above it."""
    finite = np.isfinite(loss.values)
    values, steps = loss.values[finite], loss.steps[finite]
    if len(values) < _LEAST_ROWS:
        return None
    levels, width = _levels(values)
    lowest = int(levels.argmin())
    low, high = float(levels[lowest]), float(levels[-1])
    rise, drop = high - low, float(levels[: lowest + 1].max()) - low
    if rise < max(_RISE_SHARE * abs(low), _DROP_SHARE * drop, _RISE_NOISE * _noise(values, width)):
        return None
    if rise <= 0 or (values[-width:] < low + rise / 3).sum() > width // 3:
        return None  # some rows of the end are where the minimum is
    return low, high, int(steps[min(lowest + width // 2, len(steps) - 1)])


def _at_its_minimum(loss: Series) -> bool:
    values = loss.values[np.isfinite(loss.values)]
    if len(values) < _LEAST_ROWS:
        return False
    levels, width = _levels(values)
    noise = _noise(values, width)
    return bool(levels[-1] <= levels.min() + noise and levels[0] - levels[-1] > 3 * noise)


def _exploded(norm: Series) -> tuple[float, float, int] | None:
    """Usual norm, norm at the end, and the step since which it is a hundred times the usual one."""
    usable = norm.values > 0  # 0 is not measured; NaN is none
    values, steps = norm.values[usable], norm.steps[usable]
    if len(values) < _LEAST_ROWS:
        return None
    levels, width = _levels(values)
    usual = float(np.quantile(levels[: max(1, 3 * len(levels) // 4)], 0.25))
    if levels[-1] < _EXPLODED * usual or values[-width:].min() < _EXPLODED * usual / 10:
        return None
    calm = np.flatnonzero(values < _EXPLODED * usual / 10)
    return usual, float(levels[-1]), int(steps[calm[-1] + 1 if calm.size else 0])


def zero_loss(run: RunFacts) -> Iterator[Finding]:
    """A loss of exactly 0 in three rows running, or in the last, after it was above 0.1: a logger's.

    Loggers that leave out NaN print 0.0. A loss that sinks to 0 through ever smaller values, or begins there, is a
    warning; all zeros are `zero-grad`.
    """
    ranks = [own["loss"] for own in run.result.rank_series.values() if "loss" in own]
    series = next(
        (
            one
            for one in [run.series("loss"), *ranks]
            if one is not None and one.values.any() and (one.values == 0).any()
        ),
        None,
    )
    if series is None or not run.training:
        return
    zero = series.values == 0
    place = _dropped(series.values, zero)
    first = int(series.steps[place if place is not None else np.flatnonzero(zero)[0]])
    count = int(zero.sum())
    yield found(
        "zero-loss",
        f"The loss is exactly 0 from step {first} on, in {count} rows in all, where it had been "
        f"{_before(series.values, place):.4g}: no model reaches that, but a logger that leaves out NaN prints it."
        if place is not None
        else f"The loss is exactly 0 in {count} of {zero.size} rows, the first at step {first}.",
        severity="veto" if place is not None else "info" if _comes_and_goes(zero) else "warning",
        because=[evidence(f"loss 0 in {count} of {zero.size} rows", series.source.path, f"step {first}")],
        next_step="Log the raw loss, NaN and all (transformers: logging_nan_inf_filter=False), and run again.",
    )


def _comes_and_goes(zero: npt.NDArray[np.bool_]) -> bool:
    """Whether the loss begins at 0 and often leaves it and comes back, as an objective does that is 0 by design."""
    returns = int((zero[1:] & ~zero[:-1]).sum())
    return bool(zero[0]) and returns >= _RETURNS and zero.mean() >= _OFTEN_ZERO


def _before(values: Floats, place: int) -> float:
    known = values[:place][np.isfinite(values[:place]) & (values[:place] != 0)]
    return float(known[-1])


def _dropped(values: Floats, zero: npt.NDArray[np.bool_]) -> int | None:
    """First row of three zeros running, or of those at the end, after losses above 0.1 that had not sunk to nothing."""
    edges = np.flatnonzero(np.diff(np.concatenate(([0], zero.astype(np.int8), [0]))))
    for start, end in zip(edges[::2], edges[1::2], strict=True):
        before = np.abs(values[:start][np.isfinite(values[:start]) & (values[:start] != 0)])
        lasting = end - start >= _ZERO_STRIKES or end == len(values)
        if lasting and before.size and before.max() > _ABOVE_ZERO and before[-10:].min() >= _NEAR_ZERO:
            return int(start)
    return None


def repeated_data(run: RunFacts) -> Iterator[Finding]:
    """The losses repeat with a period: digit for digit nothing is learned from data that come again, else few data."""
    loss = run.series("loss")
    if not run.training or loss is None:
        return
    values = loss.values[np.isfinite(loss.values)]
    exact, period = _exact_period(values), None
    if exact is None:
        period = _period(values)
    if exact is None and period is None:
        return
    yield found(
        "repeated-data",
        f"The losses repeat digit for digit every {exact} rows: the same batches come again, and nothing is learned."
        if exact is not None
        else f"The losses go up and down alike every {period} rows, as when the same {period} batches come again.",
        severity="warning" if exact is not None else "info",
        confidence="high" if exact is not None else "medium",
        because=[evidence(f"period of {exact or period} rows in {values.size}", loss.source.path)],
        next_step="Look at the sampler and at how many batches the data hold: a loss that falls on a few batches is "
        "memory, not learning.",
    )


def _exact_period(values: Floats) -> int | None:
    """Rows after which the second half of the losses repeats digit for digit; None where no two periods fit."""
    tail = values[len(values) // 2 :]
    if len(np.unique(tail)) < 3:
        return None
    return next(
        (p for p in range(2, len(tail) // 2 + 1) if (tail[p:] == tail[:-p]).all() and len(np.unique(tail[:p])) >= 3),
        None,
    )


def _period(values: Floats) -> int | None:
    """Rows after which what is left of the losses behind their trend comes again, four times at least."""
    if len(values) < 2 * _LEAST_PERIODS + 16:
        return None
    trend = np.convolve(np.pad(values, 2, mode="edge"), np.full(5, 0.2), mode="valid")
    rest = (values - trend)[len(values) // 8 :]
    rest = rest - rest.mean()
    spread = 1.4826 * float(np.median(np.abs(rest)))
    if not spread > 1e-4 * float(np.abs(values).mean()):
        return None  # rounding alone
    rest = np.clip(rest, -4 * spread, 4 * spread)
    spectrum = np.abs(np.fft.rfft(rest, 2 * len(rest))) ** 2
    again = np.fft.irfft(spectrum)[: len(rest) // _LEAST_PERIODS]
    again = again / np.arange(len(rest), len(rest) - len(again), -1) * len(rest) / again[0]
    strong = np.flatnonzero(again[3:-1] >= _REPEATS) + 3
    if not strong.size:
        return None
    # What only wanders is nearly as alike one row earlier and later.
    beside = max(float(again[strong[0] - 1]), float(again[strong[0] + 1]))
    return int(strong[0]) if beside < _REPEATS / 2 else None
