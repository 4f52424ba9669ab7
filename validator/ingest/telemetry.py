"""`logs/telemetry.csv`: the machine during the run, sampled at even times, assigned to the run's steps.

A sample belongs to the step that was under way when it was taken; the samples of one step are averaged. Steps in which
a GPU slowed itself down, another program used it, or its driver reported an error are windows in which nothing may be
measured.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from validator.documents import parse_json
from validator.files import is_file
from validator.ingest.clock import Arrivals
from validator.ingest.read_log import ReadLog, printable, read_small
from validator.model.catalogue import METRICS, Across, Metric
from validator.model.result import Floats, InvalidWindow, Samples, Series, Steps
from validator.model.xids import xid

SLOWDOWN_BITS = {
    0x08: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}
"""NVML's clock event reasons that invalidate a measurement. The software power cap (0x04) is normal operation."""

_UNITS = {"_pct": "%", "_mib": "MiB", "_mhz": "MHz", "_power_w": "W", "_temperature_c": "°C"}
_MASK = "_throttle_mask"
OTHER_PROCESSES = "_foreign_processes"
"""End of the columns that count the processes on a GPU that are not the validation's."""

_XID = "xid"
_HARMLESS = (63, 92)
"""A row was remapped, corrected errors were counted: worth knowing, and no disturbance."""

_STATES = ("_pcie_gen", "_pcie_width")
"""Columns that are read for the probes alone."""

StepTimes = tuple[Steps, Floats]
"""Steps `[n]` and the Unix time in seconds `[n]` at which each ended, both rising."""

_NO_STEPS: Steps = np.empty(0, dtype=np.int64)
_NO_TIMES: Floats = np.empty(0)

_ONE_BY_ONE = 0.8
"""Share of the rows that must arrive by themselves for an arrival to be the end of a step."""


def read_samples(path: Path, read_log: ReadLog) -> Samples | None:
    """The table as it is, by time; None, and noted, where it holds no samples. Cells without a number are NaN."""
    read = read_small(path, read_log, what="the machine's telemetry")
    if read is None:
        return None
    data, source = read
    lines = data.decode("utf-8", "replace").splitlines()
    names = [name.strip() for name in lines[0].split(",")] if lines else []
    rows = np.array([_sample_values(line, len(names)) for line in lines[1:] if line.strip()], dtype=np.float64)
    if "ts" not in names or not rows.size:
        read_log.note("empty", "the machine's telemetry holds no samples by `ts`", path)
        return None
    columns = {name: rows[:, index] for index, name in enumerate(names) if name != "ts"}
    return Samples(source=source, times_s=rows[:, names.index("ts")], columns=columns)


def with_steps(samples: Samples, ended: StepTimes | None) -> Samples:
    """The samples with the step under way at each; `ended` as in `read_telemetry`."""
    known, inside = _on_steps(samples.times_s, ended)
    steps: Steps = np.full(len(samples.times_s), -1, dtype=np.int64)
    steps[inside] = known
    return replace(samples, steps=steps)


def read_telemetry(
    samples: Samples, path: Path, ended: StepTimes | None, read_log: ReadLog
) -> tuple[dict[str, Series], list[InvalidWindow]]:
    """Series by step, and the windows in which something disturbed the GPUs.

    The series are `telemetry.<column>`, and those of the catalogue that are of the whole machine.
    `ended` gives the time at which each step ended; without it no sample has a step. Samples from before the first
    step and after the last are left out, as are cells that hold no number. `path` is where the samples were read from.
    """
    steps, inside = _on_steps(samples.times_s, ended)
    found = [
        (f"telemetry.{name}", _unit(name), column)
        for name, column in samples.columns.items()
        if not name.endswith(_STATES) and not _disturbs(name)
    ]
    found += [(one.name, one.unit, _of_machine(one, samples)) for one in METRICS.values() if one.across is not None]
    series = {}
    for name, unit, column in found:
        values = column[inside]
        known = np.isfinite(values)
        if known.any():
            at, mean = _mean_by_step(steps[known], values[known])
            series[name] = Series(name, unit, at, mean, samples.source)
    return series, _windows(samples, path, read_log, steps, inside)


def _of_machine(metric: Metric, samples: Samples) -> Floats:
    """A metric of the whole machine by sample; NaN where no column holds it."""
    if metric.across == "host" or metric.across is None:
        return samples.columns.get(metric.column, np.full(len(samples.times_s), np.nan))
    column = re.compile(rf"gpu\d+_{metric.column}")  # gpu0_power_w
    gpus = [values for name, values in samples.columns.items() if column.fullmatch(name)]
    gpus = [values for values in gpus if np.isfinite(values).any()]
    return across_gpus(metric.across, gpus) if gpus else np.full(len(samples.times_s), np.nan)


def across_gpus(how: Across, gpus: Sequence[Floats]) -> Floats:
    """One value per sample from each GPU's `[n]`; NaN only where no GPU (of a sum: not every GPU) has one."""
    if how == "sum":
        return np.asarray(np.sum(gpus, axis=0))
    reduce = np.fmin if how == "lowest" else np.fmax
    return np.asarray(reduce.reduce(gpus, axis=0))


def disturbed_somewhere(
    samples: Samples, path: Path, ended: StepTimes | None, series: Mapping[str, Series], read_log: ReadLog
) -> list[InvalidWindow]:
    """What disturbed the GPUs of a run no step of which has a time on the samples' clock: it may have been at any step.

    Empty where steps have such a time.
    """
    rows = [
        one.steps for name, one in series.items() if name in ("loss", "toks_per_s", "step_time_s") and one.steps.size
    ]
    if not rows or _on_steps(samples.times_s, ended)[1].size:
        return []
    first, last = min(int(one[0]) for one in rows), max(int(one[-1]) for one in rows)
    places = np.arange(len(samples.times_s), dtype=np.intp)
    seen = dict.fromkeys(one.reason for one in _windows(samples, path, read_log, places.astype(np.int64), places))
    reasons = (f"{reason}, at a step whose time is unknown," for reason in seen)
    return [InvalidWindow(first, last, reason, samples.source.path) for reason in reasons]


def _windows(
    samples: Samples, path: Path, read_log: ReadLog, steps: Steps, inside: npt.NDArray[np.intp]
) -> list[InvalidWindow]:
    others = other_processes(path.with_name("gpu_processes.jsonl"), read_log)
    windows: list[InvalidWindow] = []
    for name, column in samples.columns.items():
        if _disturbs(name):
            values = np.where(np.isfinite(column[inside]), column[inside], 0.0)
            windows += _windows_of(steps, values, _reason_of(name, others), samples.source.path)
    return windows


def _disturbs(column: str) -> bool:
    return column == _XID or column.endswith((_MASK, OTHER_PROCESSES))


def _unit(column: str) -> str:
    return next((unit for suffix, unit in _UNITS.items() if column.endswith(suffix)), "")


def _sample_values(line: str, width: int) -> list[float]:
    cells = line.split(",")[:width]
    numbers = []
    for cell in (*cells, *[""] * (width - len(cells))):
        try:
            numbers.append(float(cell))
        except ValueError:
            numbers.append(float("nan"))
    return numbers


def times_of_arrivals(arrivals: Mapping[str, Arrivals], *, started_s: float | None) -> StepTimes | None:
    """The time at which each step's row arrived, by the file that has most rows, for a trainer without heartbeats.

    None where the start is unknown, or where rows come in bursts, as from a buffer: their steps ended before.
    """
    steps, seconds = max(arrivals.values(), key=lambda one: len(one[0]), default=(_NO_STEPS, _NO_TIMES))
    last = np.append(np.diff(seconds) > 0, True)[: len(seconds)]  # rows of one moment: the last is the one that ended
    if started_s is None or len(steps) < 2 or last.mean() < _ONE_BY_ONE:
        return None
    return steps[last], seconds[last] + started_s


def _on_steps(times: Floats, ended: StepTimes | None) -> tuple[Steps, npt.NDArray[np.intp]]:
    """The step under way at each sample, and the samples that have one."""
    steps, ends = ended or (_NO_STEPS, _NO_TIMES)
    if ends.size < 2 or (np.diff(ends) <= 0).any():  # without a rising clock no sample has a place
        return _NO_STEPS, np.empty(0, dtype=np.intp)
    samples = np.flatnonzero((times > ends[0]) & (times <= ends[-1]))
    return steps[np.searchsorted(ends, times[samples])], samples


def _mean_by_step(steps: Steps, values: Floats) -> tuple[Steps, Floats]:
    at, place = np.unique(steps, return_inverse=True)
    return at, np.bincount(place, weights=values) / np.bincount(place)


def _reason_of(column: str, others: Mapping[str, str]) -> Callable[[int], str]:
    """What a value of a column says against measuring; empty when it says nothing."""
    if column == _XID:
        return lambda code: _event(code) if code and code not in _HARMLESS else ""
    if column.endswith(OTHER_PROCESSES):
        gpu = column.removesuffix(OTHER_PROCESSES)
        who = f": {others[gpu]}" if gpu in others else ""
        return lambda count: f"{gpu} was used by another program{who}" if count else ""
    gpu = column.removesuffix(_MASK)

    def throttled(mask: int) -> str:
        reasons = ", ".join(text for bit, text in SLOWDOWN_BITS.items() if mask & bit)
        return f"{gpu} throttled: {reasons}" if reasons else ""

    return throttled


def _event(code: int) -> str:
    known = xid(code)
    return f"driver event Xid {code}: {known.meaning}; {known.action}"


def other_processes(path: Path, read_log: ReadLog) -> dict[str, str]:
    """GPU to the other processes that used it, as text."""
    read = read_small(path, read_log, what="the list of other processes") if is_file(path) else None
    found: dict[str, list[str]] = {}
    for line in (b"" if read is None else read[0]).splitlines():
        try:
            entry = parse_json(line)
            used = entry["used_mib"]
            shown = f"pid {int(entry['pid'])} ({printable(str(entry['name']), limit=80)}"
            found.setdefault(f"gpu{int(entry['gpu'])}", []).append(f"{shown}{'' if used is None else f', {used} MiB'})")
        except (ValueError, KeyError, TypeError, OverflowError):
            continue
    return {gpu: ", ".join(list(dict.fromkeys(names))[:5]) for gpu, names in found.items()}


def _windows_of(steps: Steps, values: Floats, reason_of: Callable[[int], str], source: str) -> list[InvalidWindow]:
    """Unbroken stretches of samples that speak against measuring, each with the reason of its first sample."""
    reasons = [reason_of(int(value) if 0 <= value < 2**63 else 0) for value in values.tolist()]
    stretches = itertools.groupby(zip(steps.tolist(), reasons, strict=True), key=lambda one: bool(one[1]))
    found = [list(stretch) for invalid, stretch in stretches if invalid]
    return [InvalidWindow(one[0][0], one[-1][0], one[0][1], source) for one in found]
