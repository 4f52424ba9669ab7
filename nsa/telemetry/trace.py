"""`trace/summary.json`: where the time of the traced steps went, computed from the profiler's events."""

from __future__ import annotations

import math
import re
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

__all__ = ["covered_us", "kernel_events", "on_gpu", "overlap_us", "summarize_trace"]

SCHEMA_VERSION = 1
Spans = list[tuple[float, float]]
Kernel = tuple[str, tuple[float, float]]
_COMMUNICATION = re.compile(r"nccl|gloo:|c10d::", re.IGNORECASE)
_N_TOP = 15


def _merged(spans: Iterable[tuple[float, float]]) -> Spans:
    out: Spans = []
    for start, end in sorted(spans):
        if out and start <= out[-1][1]:
            out[-1] = (out[-1][0], max(out[-1][1], end))
        elif end > start:
            out.append((start, end))
    return out


def covered_us(spans: Iterable[tuple[float, float]]) -> float:
    """Length of the union of intervals, microseconds."""
    return sum(end - start for start, end in _merged(spans))


def overlap_us(a: Iterable[tuple[float, float]], b: Iterable[tuple[float, float]]) -> float:
    """Length of the intersection of two unions of intervals, microseconds."""
    left, right = _merged(a), _merged(b)
    i = j = 0
    total = 0.0
    while i < len(left) and j < len(right):
        start, end = max(left[i][0], right[j][0]), min(left[i][1], right[j][1])
        total += max(end - start, 0.0)
        if left[i][1] < right[j][1]:
            i += 1
        else:
            j += 1
    return total


def _span(event: Any) -> tuple[float, float]:
    return float(event.time_range.start), float(event.time_range.end)


def on_gpu(event: Any) -> bool:
    """Whether an event happened on the device's timeline."""
    return "cuda" in str(event.device_type).lower()


def kernel_events(events: Sequence[Any]) -> list[Any]:
    """The kernels, copies and fills among the device's events. The rest are mirrors: the profiler draws each range
    of the host onto the device's timeline too, under its own name."""
    host_names = {e.name for e in events if not on_gpu(e)}
    return [e for e in events if on_gpu(e) and e.name not in host_names]


def _top(times: dict[str, list[float]]) -> list[dict[str, Any]]:
    ordered = sorted(times.items(), key=lambda item: -sum(item[1]))[:_N_TOP]
    return [{"name": n, "count": len(t), "time_ms": round(sum(t) / 1e3, 3)} for n, t in ordered]


def summarize_trace(events: Iterable[Any], *, on_cuda: bool, timed_steps: Sequence[int]) -> dict[str, Any]:
    """Shares of the traced wall time, over the ranges `nsa.step.N` of `timed_steps`, the last ones of the trace.

    `gpu_busy_share`: some kernel ran. `exposed_comm_share`: communication ran and nothing else did.
    `host_bound_share`: no kernel ran, so the GPU waited for the host. All three are null on a CPU, where
    `comm_share` is the time spent in calls of the process group. Shares of a GPU are medians over the steps: in a
    reduction a rank also waits for the others, so one pause of another rank would count as communication.
    `ranges_seen` maps range to count and milliseconds, of all steps.
    """
    events = list(events)
    timed = {f"nsa.step.{step}" for step in timed_steps}
    steps = sorted(_span(e) for e in events if e.name in timed and not on_gpu(e))
    begin = min((start for start, _ in steps), default=0.0)
    kernels = [(e.name, _span(e)) for e in kernel_events(events) if _span(e)[0] >= begin]
    ranges: dict[str, list[float]] = defaultdict(list)
    operators: dict[str, list[float]] = defaultdict(list)
    for event in events:
        start, end = _span(event)
        if on_gpu(event):
            continue
        if event.name.startswith("nsa.step."):
            continue
        if event.name.startswith("nsa."):
            ranges[event.name].append(end - start)
        elif start >= begin:
            operators[event.name].append(float(event.self_cpu_time_total))
    wall_us = covered_us(steps) or 1.0
    record: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "wall_ms": round(wall_us / 1e3, 3),
        "gpu_busy_share": None,
        "exposed_comm_share": None,
        "host_bound_share": None,
        "comm_share": round(min(sum(sum(t) for n, t in operators.items() if _COMMUNICATION.search(n)) / wall_us, 1), 4),
        "top_operators": _top(operators),
        "top_kernels": [],
        "ranges_seen": {
            name: {"count": len(times), "time_ms": round(sum(times) / 1e3, 3)} for name, times in sorted(ranges.items())
        },
    }
    return record | (_gpu_record(kernels, steps) if on_cuda and steps else {})


def _gpu_record(kernels: list[Kernel], steps: Spans) -> dict[str, Any]:
    """What a GPU did in `steps`, each of which is over on the GPU before the next one begins on the host."""
    times: dict[str, list[float]] = defaultdict(list)
    for name, (start, end) in kernels:
        times[name].append(end - start)
    walls_us, shares = [], []
    for (start, end), until in zip(steps, [*(start for start, _ in steps[1:]), math.inf], strict=True):
        own = [kernel for kernel in kernels if start <= kernel[1][0] < until]
        walls_us.append(max(max([end, *(last for _, (_, last) in own)]) - start, 1.0))
        shares.append(_gpu_shares(own, walls_us[-1]))
    return {
        "wall_ms": round(sum(walls_us) / 1e3, 3),
        **{name: round(statistics.median(one[name] for one in shares), 4) for name in shares[0]},
        "top_kernels": _top(times),
    }


def _gpu_shares(kernels: list[Kernel], wall_us: float) -> dict[str, float]:
    """Shares of a step that took `wall_us`, from its begin on the host to its last kernel's end."""
    comm = [span for name, span in kernels if _COMMUNICATION.search(name)]
    compute = [span for name, span in kernels if not _COMMUNICATION.search(name)]
    busy_us, comm_us = covered_us([*comm, *compute]), covered_us(comm)
    return {
        "gpu_busy_share": busy_us / wall_us,
        "exposed_comm_share": (comm_us - overlap_us(comm, compute)) / wall_us,
        "host_bound_share": 1 - busy_us / wall_us,
        "comm_share": comm_us / wall_us,
    }
