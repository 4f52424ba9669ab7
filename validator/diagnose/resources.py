"""Memory, and what a step waits for."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy as np

from validator.diagnose.facts import RunFacts, as_number
from validator.diagnose.rule import evidence, found, percent
from validator.model.result import Series
from validator.model.verdict import Finding

__all__ = [
    "comm_bound",
    "host_bound",
    "loader_bound",
    "low_headroom",
    "memory_growth",
    "throttled",
]

HEADROOM = 0.10
LOADER_SHARE = 0.20
EXPOSED_SHARE = 0.25
IDLE_GPU_PCT = 50.0
_GROWTH_ROWS = 30
_GROWTH_SHARE = 0.01
_GROWTH_MIB = 16.0


def _gpu_total_mib(run: RunFacts) -> float | None:
    """Memory of the smallest GPU, by the trainer's dumps or the machine's snapshot."""
    told = as_number(run.result.extra.get("gpu_mem_total_mib")) or as_number(run.environment.get("gpu_mem_total_mib"))
    if told:
        return told
    gpus = run.machine.get("gpus")
    told_by_nvml = [gpu.get("memory_total_mib") for gpu in (gpus.values() if isinstance(gpus, Mapping) else ())]
    sizes = [size for size in map(as_number, told_by_nvml) if size]
    return min(sizes) if sizes else None


def low_headroom(run: RunFacts) -> Iterator[Finding]:
    """So little GPU memory is left that a longer sequence or a fragmented heap ends the run."""
    series, total = run.series("gpu_mem_reserved_mib") or run.series("gpu_mem_alloc_mib"), _gpu_total_mib(run)
    if series is None or total is None:
        return
    finite = series.values[np.isfinite(series.values)]
    if not finite.size:
        return
    peak = float(finite.max())
    left = 1 - peak / total
    if left < HEADROOM:
        yield found(
            "low-headroom",
            f"Only {percent(max(0.0, left))} of the GPU's memory is left at the peak ({peak:,.0f} of "
            f"{total:,.0f} MiB).",
            because=[evidence(f"max {series.name} {peak:,.0f} MiB", series.source.path)],
            next_step="Leave a tenth free for fragmentation and long batches: lower batch_size, or turn on "
            "grad_checkpointing.",
        )


def memory_growth(run: RunFacts) -> Iterator[Finding]:
    """Memory rises to the end without a plateau."""
    for name in ("gpu_mem_alloc_mib", "gpu_mem_reserved_mib", "host_mem_mib"):
        series = run.series(name)
        grown = _growth(series, run.spec.warmup_steps) if series is not None else None
        if series is None or grown is None:
            continue
        per_step, level = grown
        total = _gpu_total_mib(run) if name.startswith("gpu_") else None
        forecast = ""
        if total is not None and total > level:
            forecast = f" At this pace it is full after {(total - level) / per_step:,.0f} more steps."
        yield found(
            "memory-growth",
            f"{name} keeps rising, by {1000 * per_step:,.0f} MiB per 1,000 steps, to {level:,.0f} MiB at the "
            f"end.{forecast}",
            confidence="medium" if name == "host_mem_mib" else "high",
            because=[evidence(f"{name}: no plateau in the last third", series.source.path)],
            next_step="Run longer to see whether it levels off; look for tensors kept across steps (losses appended "
            "without .item(), growing caches), by torch.cuda.memory._snapshot() or tracemalloc.",
        )
        return


def _growth(series: Series, warmup_steps: int) -> tuple[float, float] | None:
    """MiB per step and the last level, when memory rises through each of the last parts; else None."""
    late = (series.steps > warmup_steps) & np.isfinite(series.values)
    steps, values = series.steps[late], series.values[late]
    if values.size < _GROWTH_ROWS:
        return None
    parts = [float(p.mean()) for p in np.array_split(values, 6)]
    rises = np.diff(parts[2:])
    needed = max(_GROWTH_SHARE * parts[-1], _GROWTH_MIB)
    if not (rises > 0).all() or parts[-1] - parts[2] < needed or rises[-1] < 0.5 * float(np.median(rises)):
        return None
    half = values.size // 2
    x, y = steps[half:] - steps[half:].mean(), values[half:] - values[half:].mean()
    slope = float((x * y).sum() / (x * x).sum())
    return (slope, float(values[-1])) if slope > 0 else None


def loader_bound(run: RunFacts) -> Iterator[Finding]:
    """Steps wait for data."""
    wait, p95, step_s = run.series("dt_fetch_s"), run.series("fetch_p95_ms"), run.step_time_s
    if step_s is None:
        return
    mean_s = _mean_step_s(run) or step_s
    waits = run.inside(wait) if wait is not None else np.empty(0)
    slowest = run.inside(p95) if p95 is not None else np.empty(0)
    if wait is not None and waits.size:
        share, source = float(waits.mean()) / mean_s, wait.source.path
        shown = f"mean dt_fetch_s {waits.mean():.3g} s of a step of {mean_s:.3g} s"
    elif p95 is not None and slowest.size and np.median(slowest) > 500 * step_s:
        share, source = float(np.median(slowest)) / 1000 / step_s, p95.source.path
        shown = f"fetch_p95_ms {np.median(slowest):.3g} ms, step {step_s:.3g} s"
    else:
        return
    if not LOADER_SHARE <= share < math.inf:
        return
    yield found(
        "loader-bound",
        f"The data loader takes {percent(share)} of a step.",
        because=[evidence(shown, source)],
        next_step="Prepare batches ahead (prefetch_batches), tokenize beforehand, or move the data to a local disk; "
        "compare with data: synthetic.",
    )


def _mean_step_s(run: RunFacts) -> float | None:
    times = run.series("step_time_s")
    values = run.inside(times) if times is not None else np.empty(0)
    return float(values.mean()) if values.size and values.mean() > 0 else None


def _exposed(run: RunFacts) -> tuple[float, float, float] | None:
    """Share of a step in which even the busiest rank waits for others, its step and compute time in seconds."""
    waits = []
    for own in run.result.rank_series.values():
        if "compute_time_s" in own and "step_time_s" in own:
            step, work = run.inside(own["step_time_s"]), run.inside(own["compute_time_s"])
            if step.size and work.size and 0 < np.median(step) < math.inf:
                waits.append(
                    (float(1 - np.median(work) / np.median(step)), float(np.median(step)), float(np.median(work)))
                )
    return min(waits) if len(waits) >= 2 else None


def comm_bound(run: RunFacts) -> Iterator[Finding]:
    """Communication that computation does not hide: even the busiest rank waits for the others."""
    exposed = _exposed(run) if run.world_size > 1 else None
    gradients = as_number(run.environment.get("grad_bytes"))
    if exposed is None or exposed[0] < EXPOSED_SHARE:
        return
    share, step_s, work_s = exposed
    wait = run.series("dt_fetch_s")
    waits = run.inside(wait) if wait is not None else np.empty(0)
    if waits.size and float(np.median(waits)) > 0.5 * (step_s - work_s):
        return  # it waits for data, not for others
    volume = ""
    if gradients:
        rate = 2 * (run.world_size - 1) / run.world_size * gradients / max(step_s - work_s, 1e-9) / 1e9
        volume = f" {gradients / 2**20:,.0f} MiB of gradients in that time are {rate:.2g} GB/s on the bus."
    yield found(
        "comm-bound",
        f"Even the busiest rank waits for the others in {percent(share)} of a step of {step_s:.3g} s.{volume}",
        confidence="medium",
        because=[evidence(f"compute_time_s {work_s:.3g} s of step_time_s {step_s:.3g} s on the busiest rank")],
        next_step="Compare with one process; then try larger accum, ddp_compress bf16 and other bucket sizes, and "
        "check the links (nvidia-smi topo -m, the all-reduce probe).",
    )


def host_bound(run: RunFacts) -> Iterator[Finding]:
    """Idle GPUs beside busy processor cores, by the machine's telemetry."""
    names = [n for n in run.result.series if n.startswith("telemetry.gpu") and n.endswith("_util_pct")]
    busy_gpus = [run.inside(run.result.series[n]) for n in names if not n.endswith("_mem_util_pct")]
    cpu, cores = run.series("telemetry.host_cpu_pct"), _cores(run)
    medians = [float(np.median(values)) for values in busy_gpus if values.size >= 5]
    if not medians or cpu is None or cores is None:
        return
    busy_cores = float(np.median(run.inside(cpu))) / 100 * cores
    if max(medians) >= IDLE_GPU_PCT or busy_cores < 0.8 * run.world_size:
        return
    shown = ", ".join(f"{value:.0f} %" for value in medians)
    yield found(
        "host-bound",
        f"The GPUs are busy only {shown} of the time while {busy_cores:.1f} processor cores are: Python sets the pace.",
        confidence="medium",
        because=[
            evidence(f"median GPU utilization {shown}; host {busy_cores:.1f} of {cores:.0f} cores", cpu.source.path)
        ],
        next_step="Profile one rank (py-spy record, or torch.profiler) and look for loops with .item() and for many "
        "tiny kernels; for long sequences set NSA_PREFILL_BATCHED=1.",
    )


def _cores(run: RunFacts) -> float | None:
    cpu = run.machine.get("cpu")
    return as_number(cpu.get("cores_logical")) if isinstance(cpu, Mapping) else None


def throttled(run: RunFacts) -> Iterator[Finding]:
    """A GPU slowed itself down while it was measured."""
    windows = [w for w in run.result.extra.get("invalid_windows", ()) if "throttled" in str(w["reason"])]
    if not windows:
        return
    first = windows[0]
    where = [f"steps {w['first_step']}–{w['last_step']}" for w in windows]
    yield found(
        "throttled",
        f"{first['reason']} in {where[0]}" + (f" and in {len(windows) - 1} more stretches." if windows[1:] else "."),
        because=[
            evidence(str(w["reason"]), w.get("source"), at) for w, at in list(zip(windows, where, strict=True))[:4]
        ],
        next_step="Check cooling, power limit and neighbors (nvidia-smi -q -d PERFORMANCE,TEMPERATURE), then repeat.",
    )
