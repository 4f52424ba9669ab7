"""What the machine did beside a run, thinned to what a chart can show: one line per GPU, by the clock.

Where several runs share a chart, each is drawn by one line: the GPU that matters most at each moment (the slowest,
the least busy, the hottest), or all of them together (power).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from validator.model.result import Samples

__all__ = ["GPU_QUANTITIES", "MachineCharts", "MachineLine", "Slowdown", "machine_charts"]

MAX_POINTS = 400
"""Samples kept of a line, each bucket's lowest and highest among them."""

MAX_SLOWDOWNS = 60
"""Stretches kept of a run; a GPU that flickers in and out of its power cap has hundreds."""

GPU_QUANTITIES: Mapping[str, str] = {
    "util_pct": "lowest",
    "sm_clock_mhz": "lowest",
    "power_w": "sum",
    "temperature_c": "highest",
}
"""Columns that are drawn for each GPU, and what stands for all GPUs of a run."""

HOST_QUANTITIES = ("host_cpu_pct",)

_COLUMN = re.compile(r"gpu(\d{1,3})_(\w+)")
_NOT_SLOW = 0x1 | 0x2 | 0x10 | 0x100
"""Idle, clocks that the user set, sync boost, display clocks: no sign of a GPU that holds back."""
_SPOILS = 0x8 | 0x20 | 0x40 | 0x80


@dataclass(frozen=True)
class MachineLine:
    """One quantity of one device (`GPU 0`, `host`, or `lowest of 8 GPUs`). Times are seconds since the first sample."""

    device: str
    times_s: tuple[float, ...]
    values: tuple[float, ...]
    n: int


@dataclass(frozen=True)
class Slowdown:
    """A stretch in which a GPU held back. One that `spoils` what is measured; the power cap does not."""

    device: str
    reason: str
    spoils: bool
    from_s: float
    to_s: float


@dataclass(frozen=True)
class MachineCharts:
    """What can be drawn of the machine beside one run.

    `lines` has, by quantity, a line per device; `across` the one line that stands for all GPUs. `steady_s` is when
    warm-up ended, `first_step_s` when the first step did; both are None where that is not known.
    """

    source: str
    duration_s: float
    lines: Mapping[str, tuple[MachineLine, ...]] = field(default_factory=dict)
    across: Mapping[str, MachineLine] = field(default_factory=dict)
    slowdowns: tuple[Slowdown, ...] = ()
    first_step_s: float | None = None
    steady_s: float | None = None

    @property
    def gpus(self) -> int:
        """GPUs that were sampled."""
        return max((len(self.lines.get(name, ())) for name in GPU_QUANTITIES), default=0)


def machine_charts(extra: Mapping[str, Any], *, warmup_end: int | None) -> MachineCharts | None:
    """The charts' data from `Result.extra`; None for a run that was not sampled, or only once."""
    import numpy as np

    samples: Samples | None = extra.get("samples")
    if samples is None:
        return None
    rising = _rising(samples.times_s)
    if rising.sum() < 2:
        return None
    start_s = float(samples.times_s[rising][0])
    times = samples.times_s[rising] - start_s
    columns = {name: values[rising] for name, values in samples.columns.items()}
    lines, across = _lines(times, columns)
    steps, ended = extra.get("step_times_s", (np.empty(0), np.empty(0)))
    steady = ended[steps >= warmup_end] if warmup_end is not None and len(steps) else ended[:0]
    return MachineCharts(
        source=samples.source.path,
        duration_s=float(times[-1]),
        lines=lines,
        across=across,
        slowdowns=tuple(_slowdowns(times, columns)),
        first_step_s=float(ended[0]) - start_s if len(ended) else None,
        steady_s=float(steady[0]) - start_s if len(steady) else None,
    )


def _rising(times: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    """The samples whose time lies behind all before them: where the clock was set back, what follows has no place."""
    import numpy as np

    known = np.isfinite(times)
    before = np.maximum.accumulate(np.where(known, times, -np.inf))
    rising: npt.NDArray[np.bool_] = known & (times > np.concatenate(([-np.inf], before[:-1])))
    return rising


def _lines(
    times: npt.NDArray[np.float64], columns: Mapping[str, npt.NDArray[np.float64]]
) -> tuple[dict[str, tuple[MachineLine, ...]], dict[str, MachineLine]]:
    import numpy as np

    found: dict[str, dict[int, npt.NDArray[np.float64]]] = {}
    for name, values in columns.items():
        match = _COLUMN.fullmatch(name)
        if match is not None and match[2] in GPU_QUANTITIES and np.isfinite(values).any():
            found.setdefault(match[2], {})[int(match[1])] = values
    lines = {
        quantity: tuple(_line(f"GPU {index}", times, gpus[index]) for index in sorted(gpus))
        for quantity, gpus in found.items()
    }
    across = {
        quantity: _line(_called(quantity, len(gpus)), times, _combined(quantity, np.stack(list(gpus.values()))))
        for quantity, gpus in found.items()
    }
    for name in HOST_QUANTITIES:
        if name in columns and np.isfinite(columns[name]).any():
            across[name] = _line("host", times, columns[name])
            lines[name] = (across[name],)
    return lines, across


def _called(quantity: str, gpus: int) -> str:
    which = GPU_QUANTITIES[quantity]
    return "GPU" if gpus == 1 else f"sum of {gpus} GPUs" if which == "sum" else f"{which} of {gpus} GPUs"


def _combined(quantity: str, values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """One value per sample from `values [gpu, n]`; NaN only where no GPU (of a sum: not every GPU) has one."""
    import numpy as np

    if GPU_QUANTITIES[quantity] == "sum":
        return np.asarray(values.sum(axis=0))
    reduce = np.fmin if GPU_QUANTITIES[quantity] == "lowest" else np.fmax
    return np.asarray(reduce.reduce(values, axis=0))


def _line(device: str, times: npt.NDArray[np.float64], values: npt.NDArray[np.float64]) -> MachineLine:
    import numpy as np

    from validator.report.view import extremes

    known = np.isfinite(values)
    at, shown = times[known], values[known]
    keep = extremes(shown, MAX_POINTS)
    return MachineLine(device, tuple(np.round(at[keep], 1).tolist()), tuple(shown[keep].tolist()), len(shown))


def _slowdowns(times: npt.NDArray[np.float64], columns: Mapping[str, npt.NDArray[np.float64]]) -> Iterator[Slowdown]:
    """Unbroken stretches by GPU and reason; a sample stands for the time up to the next one."""
    import numpy as np

    from validator.observe.nvml import THROTTLE_REASONS

    ends = np.append(times[1:], times[-1])
    told = 0
    for name, values in columns.items():
        match = _COLUMN.fullmatch(name)
        if match is None or match[2] != "throttle_mask":
            continue
        sound = np.isfinite(values) & (values >= 0) & (values < 2**53)
        masks = np.where(sound, values, 0).astype(np.int64) & ~_NOT_SLOW
        for bit, reason in THROTTLE_REASONS.items():
            edges = np.flatnonzero(np.diff(np.concatenate(([0], (masks & bit > 0).astype(np.int8), [0]))))
            for first, after in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
                told += 1
                if told > MAX_SLOWDOWNS:
                    return
                yield Slowdown(
                    f"GPU {int(match[1])}", reason, bool(bit & _SPOILS), float(times[first]), float(ends[after - 1])
                )
