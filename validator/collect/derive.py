"""What follows from what was read: rates per rank, step times, start-up, silence, stragglers."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from validator.collect.arrivals import Arrivals
from validator.collect.clock import longest_s
from validator.collect.heartbeat import Heartbeat
from validator.model.catalogue import METRICS, SCALARS
from validator.model.measure import ScalarValue
from validator.model.result import Series

__all__ = [
    "bus_bandwidth",
    "first_arrival",
    "first_step_s",
    "rate_of_all",
    "rate_per_rank",
    "step_times",
    "steps_done",
    "straggler_score",
]


def rate_of_all(rate: Series, world_size: int) -> Series:
    """`toks_per_s` of a trainer that tells the rate of one rank."""
    values = rate.values * world_size
    return Series("toks_per_s", METRICS["toks_per_s"].unit, steps=rate.steps, values=values, source=rate.source)


def rate_per_rank(rate: Series, world_size: int) -> Series:
    """`toks_per_s` over the number of ranks."""
    return Series(
        name="toks_per_s_per_rank",
        unit=METRICS["toks_per_s_per_rank"].unit,
        steps=rate.steps,
        values=rate.values / world_size,
        source=rate.source,
    )


def step_times(
    series: Mapping[str, Series],
    heartbeat: Heartbeat | None,
    tokens_per_step: float | None,
    *,
    duration_s: float | None = None,
) -> dict[str, Series]:
    """`step_time_s` or `toks_per_s` where the trainer gave only one of them, or neither but a heartbeat.

    A row's rate covers the steps since the row before, so `tokens_per_step / toks_per_s` is their mean step time. The
    heartbeat's own clock is the last resort: the time between first records of consecutive steps, over their number.
    """
    made: dict[str, Series] = {}
    rate, times = series.get("toks_per_s"), series.get("step_time_s")
    if times is None and rate is not None and tokens_per_step:
        usable = rate.values > 0
        made["step_time_s"] = _like("step_time_s", rate, usable, tokens_per_step / rate.values[usable])
    elif times is None and heartbeat is not None:
        steps, seconds = heartbeat.step_times_s
        spans, strides = np.diff(seconds), np.diff(steps)
        usable = (spans > 0) & (spans <= longest_s(duration_s))
        if usable.any():
            made["step_time_s"] = Series(
                name="step_time_s",
                unit="s",
                steps=steps[1:][usable],
                values=(spans / strides)[usable],
                source=heartbeat.source,
            )
    times = times or made.get("step_time_s")
    if rate is None and times is not None and tokens_per_step:
        usable = times.values > 0
        made["toks_per_s"] = _like("toks_per_s", times, usable, tokens_per_step / times.values[usable])
    return made


def _like(name: str, base: Series, usable: npt.NDArray[np.bool_], values: npt.NDArray[np.float64]) -> Series:
    return Series(name=name, unit=METRICS[name].unit, steps=base.steps[usable], values=values, source=base.source)


def straggler_score(
    rank_series: Mapping[int, Mapping[str, Series]], *, warmup_steps: int, column: str = "compute_time_s"
) -> tuple[float, dict[int, float]] | None:
    """How far the slowest rank lags, and each rank's median compute time in seconds.

    Each rank counts by the median of its `compute_time_s` after warm-up. The score is the median over ranks (the
    lower one of an even number, so that of two ranks the faster is the yardstick) divided by the slowest: 1 when all
    are alike, 0.5 when one takes twice as long. None with fewer than two ranks.
    """
    medians: dict[int, float] = {}
    for rank, own in rank_series.items():
        found = own.get(column)
        if found is None:
            continue
        values = found.values[(found.steps > warmup_steps) & np.isfinite(found.values)]
        if values.size:
            medians[rank] = float(np.median(values))
    if len(medians) < 2 or max(medians.values()) <= 0:
        return None
    return statistics.median_low(medians.values()) / max(medians.values()), medians


def first_step_s(heartbeat: Heartbeat, *, started_s: float) -> float | None:
    """Seconds from the launch to the first record of a finished step; None when the clocks make no sense of it."""
    seconds = heartbeat.step_times_s[1]
    if not seconds.size or seconds[0] < started_s:
        return None
    return float(seconds[0]) - started_s


def first_arrival(arrivals: Mapping[str, Arrivals]) -> tuple[float, str] | None:
    """Seconds from the launch until the supervisor saw the first row of a step, and the file that it is in."""
    seen = [(float(seconds[0]), source) for source, (_, seconds) in arrivals.items() if len(seconds)]
    return min(seen, default=None)


def steps_done(series: Mapping[str, Series], heartbeat: Heartbeat | None) -> float | None:
    """Optimizer steps that were finished: the highest step recorded anywhere.

    A trainer that counts from 0 shows it by a row for step 0, or by rows at the end of every so many steps (9, 19, 29);
    its count is one more than its last step. A rate at step 0 that is not positive says that nothing was done
    there, and with a heartbeat, which counts what was done, a loss at step 0 may be that of the initial model.
    """
    highest = [int(s.steps[-1]) for s in series.values() if s.steps.size]
    if heartbeat is not None:
        highest.append(heartbeat.last_step)
    if not highest:
        return None
    at_zero = {name: float(s.values[0]) for name, s in series.items() if s.steps.size and s.steps[0] == 0}
    timed = any(at_zero.get(name, 0.0) > 0 for name in ("toks_per_s", "step_time_s"))
    from_zero = timed or ("toks_per_s" not in at_zero and "loss" in at_zero and heartbeat is None)
    return float(max(highest) + (1 if from_zero or any(map(_at_ends, series.values())) else 0))


def _at_ends(series: Series) -> bool:
    """Whether rows come at the last of every k steps, counted from 0: each step is one less than a multiple of k."""
    strides = np.diff(series.steps)
    if series.name not in ("loss", "toks_per_s", "step_time_s") or len(strides) < 2:
        return False
    k = int(strides[0])
    return k > 1 and bool((strides == k).all()) and int(series.steps[0]) == k - 1


def scalar(name: str, value: float | None, source: str | None = None) -> dict[str, ScalarValue]:
    """The scalar under its catalogued unit; nothing when there is no value."""
    return {} if value is None else {name: ScalarValue(value=value, unit=SCALARS[name].unit, source=source)}


def bus_bandwidth(
    scalars: Mapping[str, ScalarValue], environment: Mapping[str, Any], *, world_size: int | None
) -> dict[str, ScalarValue]:
    """`profile.comm_bus_gb_s`: what the reduction of the gradients reached while communication ran in a traced step.

    Counted as nccl-tests counts the bus bandwidth of an all-reduce, 2 (n - 1) / n times its bytes per second, so that
    it can be held against `probe.all_reduce_gb_s`. Empty where the trace, the gradients' bytes or a second rank is
    missing.
    """
    share, step = scalars.get("profile.comm_share"), scalars.get("profile.step_time_ms")
    grad_bytes = environment.get("grad_bytes")
    known = [one.value for one in (share, step) if one is not None]
    if world_size is None or world_size < 2 or len(known) < 2:
        return {}
    numbers = [value for value in (*known, grad_bytes) if isinstance(value, (int, float)) and value > 0]
    if len(numbers) < 3 or isinstance(grad_bytes, bool):
        return {}
    spent_s = float(numbers[0]) * float(numbers[1]) / 1e3
    moved = 2 * (world_size - 1) / world_size * float(numbers[2])
    source = share.source if share is not None else None
    return scalar("profile.comm_bus_gb_s", moved / spent_s / 1e9, source)
