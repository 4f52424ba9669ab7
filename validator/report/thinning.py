"""Measured series made short enough to draw: extremes kept, ranks as percentiles, samples of the machine by device."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np

from validator.ingest.telemetry import across_gpus
from validator.model.catalogue import METRICS
from validator.report.specs import ACROSS_GPUS, MACHINE_QUANTITIES, ChartSeries, MachineCharts, RankSpread, Slowdown
from validator.stats.clock import step_ends
from validator.system.gpu_facts import THROTTLE_REASONS

if TYPE_CHECKING:
    import numpy.typing as npt

    from validator.model.result import Result, Series


MAX_POINTS = 600
"""Points kept of a series: more than the pixels of a chart's width would only make the file larger."""

MAX_NON_FINITE = 50
"""Steps with NaN or infinities that are marked one by one."""

MAX_SAMPLES = 400
"""Samples kept of a line, each bucket's lowest and highest among them."""

MAX_SLOWDOWNS = 60
"""Throttling intervals kept of a run; a GPU that flickers in and out of its power cap has hundreds."""

_COLUMN = re.compile(r"gpu(\d{1,3})_(\w+)")
"""`gpu0_util_pct`: the GPU's index and the quantity."""

_HARMLESS = 0x1 | 0x2 | 0x10 | 0x100
"""Idle, clocks that the user set, sync boost, display clocks: no sign of a throttled GPU."""

_INVALID = 0x8 | 0x20 | 0x40 | 0x80
"""Hardware and thermal slowdowns and the power brake: what is measured meanwhile does not count."""


_SPREAD = sorted((metric for metric in METRICS.values() if metric.spread), key=lambda metric: metric.spread)
"""Compute time comes first: it distinguishes a slow rank from one that waits for it."""


def thin_series(series: Series, chart: str) -> ChartSeries:
    """A series for the chart of that title, with its extremes kept and its values that are not finite named."""
    finite = np.isfinite(series.values)
    steps, values = series.steps[finite], series.values[finite]
    keep = extremes(values, MAX_POINTS)
    bad = series.steps[~finite]
    return ChartSeries(
        metric=series.name,
        unit=series.unit,
        steps=tuple(steps[keep].tolist()),
        values=tuple(values[keep].tolist()),
        chart=chart,
        non_finite=len(bad),
        non_finite_steps=tuple(bad[:MAX_NON_FINITE].tolist()),
    )


def extremes(values: npt.NDArray[np.float64], points: int) -> npt.NDArray[np.int64]:
    """Positions of the first, the last, and each bucket's lowest and highest value, in order."""
    count = len(values)
    if count <= points:
        return np.arange(count, dtype=np.int64)
    size = -(-2 * count // points)
    whole = count // size * size
    rows = values[:whole].reshape(-1, size)
    starts = np.arange(0, whole, size)
    rest = values[whole:]
    tail = [whole + int(rest.argmin()), whole + int(rest.argmax())] if len(rest) else []
    found: npt.NDArray[np.int64] = np.unique(
        np.concatenate(([0, count - 1, *tail], starts + rows.argmin(axis=1), starts + rows.argmax(axis=1)))
    ).astype(np.int64)
    return found


def rank_spread(ranks: Mapping[int, Mapping[str, Series]], warmup_end: int | None) -> tuple[RankSpread, ...]:
    """Each rank's percentiles of the first metric with the facet `spread` that at least two ranks report."""
    for metric in _SPREAD:
        rows = [
            row
            for rank in sorted(ranks)
            if (series := ranks[rank].get(metric.name)) is not None
            and (row := _rank_spread(rank, series, warmup_end)) is not None
        ]
        if len(rows) >= 2:
            return tuple(rows)
    return ()


def _rank_spread(rank: int, series: Series, warmup_end: int | None) -> RankSpread | None:
    steady = np.isfinite(series.values)
    if warmup_end is not None:
        steady &= series.steps > warmup_end
    values = series.values[steady]
    if not len(values):
        return None
    p5, p25, p50, p75, p95 = (float(v) for v in np.percentile(values, (5, 25, 50, 75, 95)))
    return RankSpread(
        rank=rank, metric=series.name, unit=series.unit, n=len(values), p5=p5, p25=p25, p50=p50, p75=p75, p95=p95
    )


def machine_charts(result: Result, *, warmup_end: int | None) -> MachineCharts | None:
    """The charts' data of the machine; None for a run with fewer than two samples."""
    samples = result.evidence.samples
    if samples is None:
        return None
    rising = _rising(samples.times_s)
    if rising.sum() < 2:
        return None
    start_s = float(samples.times_s[rising][0])
    times = samples.times_s[rising] - start_s
    columns = {name: values[rising] for name, values in samples.columns.items()}
    lines, across = _device_lines(times, columns)
    steps, ended = step_ends(result)
    steady = ended[steps >= warmup_end] if warmup_end is not None and len(steps) else ended[:0]
    return MachineCharts(
        duration_s=float(times[-1]),
        lines=lines,
        across=across,
        slowdowns=tuple(_slowdowns(times, columns)),
        steady_s=float(steady[0]) - start_s if len(steady) else None,
    )


def _rising(times: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    """The samples that are later than all before them: what follows a clock that was set back cannot be placed."""
    known = np.isfinite(times)
    before = np.maximum.accumulate(np.where(known, times, -np.inf))
    rising: npt.NDArray[np.bool_] = known & (times > np.concatenate(([-np.inf], before[:-1])))
    return rising


def _device_lines(
    times: npt.NDArray[np.float64], columns: Mapping[str, npt.NDArray[np.float64]]
) -> tuple[dict[str, tuple[ChartSeries, ...]], dict[str, ChartSeries]]:
    found: dict[str, dict[int, npt.NDArray[np.float64]]] = {}
    for name, values in columns.items():
        match = _COLUMN.fullmatch(name)
        if match is not None and match[2] in ACROSS_GPUS and np.isfinite(values).any():
            found.setdefault(match[2], {})[int(match[1])] = values
    lines = {
        quantity: tuple(_device_line(quantity, f"GPU {index}", times, gpus[index]) for index in sorted(gpus))
        for quantity, gpus in found.items()
    }
    across = {
        quantity: _device_line(
            quantity, _across_name(quantity, len(gpus)), times, across_gpus(ACROSS_GPUS[quantity], list(gpus.values()))
        )
        for quantity, gpus in found.items()
    }
    for name in MACHINE_QUANTITIES.keys() - ACROSS_GPUS.keys():
        if name in columns and np.isfinite(columns[name]).any():
            across[name] = _device_line(name, "host", times, columns[name])
            lines[name] = (across[name],)
    return lines, across


def _across_name(quantity: str, gpus: int) -> str:
    which = ACROSS_GPUS[quantity]
    return "GPU" if gpus == 1 else f"sum of {gpus} GPUs" if which == "sum" else f"{which} of {gpus} GPUs"


def _device_line(
    quantity: str, device: str, times: npt.NDArray[np.float64], values: npt.NDArray[np.float64]
) -> ChartSeries:
    known = np.isfinite(values)
    at, shown = times[known], values[known]
    keep = extremes(shown, MAX_SAMPLES)
    kept_s, kept = tuple(np.round(at[keep], 1).tolist()), tuple(shown[keep].tolist())
    return ChartSeries(quantity, MACHINE_QUANTITIES[quantity].unit, kept_s, kept, device)


def _slowdowns(times: npt.NDArray[np.float64], columns: Mapping[str, npt.NDArray[np.float64]]) -> Iterator[Slowdown]:
    """Unbroken intervals by GPU and reason; a sample counts for the time up to the next one."""
    ends = np.append(times[1:], times[-1])
    count = 0
    for name, values in columns.items():
        match = _COLUMN.fullmatch(name)
        if match is None or match[2] != "throttle_mask":
            continue
        sound = np.isfinite(values) & (values >= 0) & (values < 2**53)
        masks = np.where(sound, values, 0).astype(np.int64) & ~_HARMLESS
        for bit, reason in THROTTLE_REASONS.items():
            edges = np.flatnonzero(np.diff(np.concatenate(([0], (masks & bit > 0).astype(np.int8), [0]))))
            for first, after in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
                count += 1
                if count > MAX_SLOWDOWNS:
                    return
                yield Slowdown(
                    f"GPU {int(match[1])}", reason, bool(bit & _INVALID), float(times[first]), float(ends[after - 1])
                )
