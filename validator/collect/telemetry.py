"""`logs/telemetry.csv`: the machine beside the run, sampled by the clock, laid onto the run's steps.

A sample belongs to the step that was under way when it was taken; the samples of one step are averaged. Steps in which
a GPU slowed itself down are windows in which nothing may be measured.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from validator.collect.heartbeat import Heartbeat
from validator.collect.intake import Intake, read_small
from validator.model.result import Series

__all__ = ["read_telemetry", "throttled_windows"]

Floats = npt.NDArray[np.float64]

SLOWDOWN_BITS = {
    0x08: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}
"""NVML's clock event reasons that spoil a measurement. The software power cap (0x04) is how a GPU is meant to run."""

_UNITS = {"_pct": "%", "_mib": "MiB", "_mhz": "MHz", "_power_w": "W", "_temperature_c": "°C"}
_MASK = "_throttle_mask"


def read_telemetry(path: Path, heartbeat: Heartbeat, intake: Intake) -> tuple[dict[str, Series], list[dict[str, Any]]]:
    """Series `telemetry.<column>` by step, and the windows in which a GPU throttled.

    `heartbeat` gives the time at which each step ended. Samples from before the first step and after the last are left
    out, as are cells that hold no number.
    """
    read = read_small(path, intake, what="the machine's telemetry")
    if read is None:
        return {}, []
    data, source = read
    lines = data.decode("utf-8", "replace").splitlines()
    names = [name.strip() for name in lines[0].split(",")] if lines else []
    rows = np.array([_row(line, len(names)) for line in lines[1:] if line.strip()], dtype=np.float64)
    if "ts" not in names or not rows.size:
        intake.note("empty", "the machine's telemetry holds no samples by `ts`", path)
        return {}, []
    steps, samples = _on_steps(rows[:, names.index("ts")], heartbeat)
    series = {}
    windows: list[dict[str, Any]] = []
    for index, name in enumerate(names):
        values = rows[samples, index]
        known = np.isfinite(values)
        if name == "ts" or not known.any():
            continue
        if name.endswith(_MASK):
            found = throttled_windows(name.removesuffix(_MASK), steps[known], values[known])
            windows += [{**window, "source": source.path} for window in found]
            continue
        at, mean = _mean_by_step(steps[known], values[known])
        unit = next((u for suffix, u in _UNITS.items() if name.endswith(suffix)), "")
        series[f"telemetry.{name}"] = Series(f"telemetry.{name}", unit, at, mean, source)
    return series, windows


def _row(line: str, width: int) -> list[float]:
    cells = line.split(",")[:width]
    numbers = []
    for cell in (*cells, *[""] * (width - len(cells))):
        try:
            numbers.append(float(cell))
        except ValueError:
            numbers.append(float("nan"))
    return numbers


def _on_steps(times: Floats, heartbeat: Heartbeat) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.intp]]:
    """The step under way at each sample, and the samples that have one."""
    ended_steps, ended = heartbeat.step_times_s
    if ended.size < 2 or (np.diff(ended) <= 0).any():  # without a rising clock no sample has a place
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.intp)
    samples = np.flatnonzero((times > ended[0]) & (times <= ended[-1]))
    return ended_steps[np.searchsorted(ended, times[samples])], samples


def _mean_by_step(steps: npt.NDArray[np.int64], values: Floats) -> tuple[npt.NDArray[np.int64], Floats]:
    at, place = np.unique(steps, return_inverse=True)
    return at, np.bincount(place, weights=values) / np.bincount(place)


def throttled_windows(gpu: str, steps: npt.NDArray[np.int64], masks: Floats) -> list[dict[str, Any]]:
    """Unbroken stretches of samples in which a GPU slowed down: `{first_step, last_step, reason}`."""
    windows: list[dict[str, Any]] = []
    open_window: dict[str, Any] | None = None
    for step, mask in zip(steps.tolist(), masks.tolist(), strict=True):
        bits = int(mask) if 0 <= mask < 2**63 else 0
        reasons = ", ".join(text for bit, text in SLOWDOWN_BITS.items() if bits & bit)
        if not reasons:
            open_window = None
        elif open_window is None:
            open_window = {"first_step": step, "last_step": step, "reason": f"{gpu} throttled: {reasons}"}
            windows.append(open_window)
        else:
            open_window["last_step"] = step
    return windows
