"""What limits a step: one slow rank, the data, communication, the host, or a throttled GPU."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from validator.diagnose.rule import Diagnosis, RunFacts, as_number, evidence, rule
from validator.model.result import Floats, Series
from validator.stats.autocorrelation import effective_size, lag1, long_run_stdev
from validator.stats.distributions import binomial_above, t_below
from validator.stats.means import holm
from validator.stats.spacing import covered_steps
from validator.text import format_percent

_LAG_INFO, _LAG_WARNING = 0.03, 0.10
_COST_WARNING = 0.02
_LEVEL = 0.01
_MIN_STEPS = 12
_DRAWS = 4000
_OUTLIER, _OUTLIER_NOISE = 0.10, 6.0
"""A step in which a rank is slow now and then: a tenth, and six robust deviations, above its own median lag."""

LOADER_SHARE = 0.20
EXPOSED_SHARE = 0.25

IDLE_GPU_PCT = 50.0

BUSY_GPU_PCT = 95.0
"""Mean utilization from which a GPU waits for no data: what a trainer measured as such is then its wait for the GPU."""


@dataclass(frozen=True)
class _Lag:
    """How a rank lags.

    `share` is its compute time over the others', less 1; `p_value` that of a lag below one percent; `cost` the share of
    a step that would be saved if it were as fast as the slowest of the others; `often` the share of slow
    steps.
    """

    rank: int
    share: float
    p_value: float
    cost: float
    often: float


@rule("straggler", "warning", of="run")
def straggler(run: RunFacts) -> Iterator[Diagnosis]:
    """One rank has a higher compute time than the others, always or now and then, and all wait for it."""
    ranks, work = _work(run)
    if len(ranks) < 2 or work.shape[1] < _MIN_STEPS:
        return
    lags = _lags(run, ranks, work)
    adjusted = holm([lag.p_value for lag in lags])  # 1 for ranks that lag too little to be reported
    slow = [lag for lag, p_value in zip(lags, adjusted, strict=True) if p_value < _LEVEL]
    if not slow:
        return
    worst = max(slow, key=lambda lag: lag.share)
    mean = work.mean(axis=1)
    listed = ", ".join(f"rank {rank}: {mean[i]:.3g} s" for i, rank in enumerate(ranks[:8]))
    now_and_then = f", in {format_percent(worst.often)} of the steps" if worst.often < 0.5 else ""
    others = "the other one" if len(ranks) == 2 else "the median of the others"
    subject = f"Ranks {ranks[0]} and {ranks[1]} differ: rank {worst.rank}" if len(ranks) == 2 else f"Rank {worst.rank}"
    heartbeat = run.evidence.heartbeats.get(worst.rank)
    path = None if heartbeat is None else heartbeat.path
    yield Diagnosis(
        f"{subject} has {format_percent(worst.share)} higher compute time than {others}{now_and_then}, "
        f"which costs {format_percent(worst.cost)} of a step (score {1 / (1 + worst.share):.2f}).",
        severity="warning" if worst.share >= _LAG_WARNING or worst.cost >= _COST_WARNING else "info",
        because=[evidence(f"compute_time_s, mean over {work.shape[1]} steps: {listed}", path)],
        next_step=f"Look at rank {worst.rank}'s device: clocks, temperature, PCIe width, other processes (nvidia-smi "
        "-q), and at the length of its data; swap devices by CUDA_VISIBLE_DEVICES to see whether it moves along.",
    )


def _work(run: RunFacts) -> tuple[list[int], Floats]:
    """Ranks `[r]`, and their compute times in the `n` steps that all recorded after warm-up, `[r, n]`, seconds."""
    own = {
        rank: series["compute_time_s"]
        for rank, series in sorted(run.result.rank_series.items())
        if "compute_time_s" in series
    }
    columns = {}
    for rank, one in own.items():
        usable = (one.steps > run.spec.warmup_steps) & np.isfinite(one.values) & (one.values > 0)
        steps, first = np.unique(one.steps[usable], return_index=True)
        if steps.size >= _MIN_STEPS:
            columns[rank] = (steps, one.values[usable][first])
    if not columns:
        return [], np.empty((0, 0))
    shared = next(iter(columns.values()))[0]
    for steps, _ in columns.values():
        shared = np.intersect1d(shared, steps, assume_unique=True)
    work = np.array([values[np.searchsorted(steps, shared)] for steps, values in columns.values()])
    return list(columns), work


def _lags(run: RunFacts, ranks: list[int], work: Floats) -> list[_Lag]:
    """Each rank compared with the median of the others, step by step."""
    times = run.result.series.get("step_time_s")
    whole = float(work.max(axis=0).mean())
    if times is not None and np.isfinite(times.values).any():
        whole = max(whole, float(np.median(times.values[np.isfinite(times.values)])))
    others = np.array([np.median(np.delete(work, i, axis=0), axis=0) for i in range(len(ranks))])
    ratios = work / others - 1
    limit = np.maximum(_OUTLIER, _OUTLIER_NOISE * 1.4826 * np.median(np.abs(ratios - np.median(ratios)), axis=1))
    outliers = (ratios > limit[:, None]).sum(axis=1)
    lags = []
    for i, rank in enumerate(ranks):
        share = float(work[i].mean() / others[i].mean() - 1)
        often = float((ratios[i] > max(_LAG_INFO, share / 2)).mean())
        p_value = 1.0
        if share >= _LAG_INFO:
            rare = _by_chance(int(outliers[i]), int(outliers.sum()), len(ranks))
            always = max(_bootstrapped(work[i], others[i]), _t_test(ratios[i]))
            p_value = min(1.0, 2 * min(rare, always))
        lags.append(_Lag(rank, share, p_value, _cost(work, i) / whole, often))
    return lags


def _cost(work: Floats, i: int) -> float:
    """Seconds of a step that rank `i` costs all others, beyond what any further rank of the usual noise would."""
    rest = np.delete(work, i, axis=0)
    if len(rest) == 1:
        return max(0.0, float(work[i].mean() - rest[0].mean()))
    without = float(rest.max(axis=0).mean())
    further = [without - float(np.delete(rest, j, axis=0).max(axis=0).mean()) for j in range(len(rest))]
    return max(0.0, float(work.max(axis=0).mean()) - without - float(np.median(further)))


def _t_test(ratios: Floats) -> float:
    """p value of a lag above one percent, by the long-run error of the mean: correlated steps are worth few."""
    phi = lag1(ratios - ratios.mean(), fitted=1)
    freedom = effective_size(len(ratios), phi) - 1.0
    error = long_run_stdev(ratios - ratios.mean(), phi) / np.sqrt(len(ratios))
    if error <= 0:
        return 0.0
    return t_below(-float(ratios.mean() - _LAG_INFO / 3) / error, freedom) if freedom >= 2 else 1.0


def _by_chance(own: int, of_all: int, ranks: int) -> float:
    """Chance that so many of all outliers fall on one rank, if each falls on any; fewer than three show nothing."""
    return binomial_above(own - 1, of_all, 1 / ranks) if own >= 3 else 1.0


def _bootstrapped(work: Floats, others: Floats) -> float:
    """The same, by drawing blocks of steps."""
    drawn, length = _blocks(len(work))
    own, other = (_sums(one, length)[drawn].sum(axis=1) for one in (work, others))
    return float((1 + (own / other - 1 <= _LAG_INFO / 3).sum()) / (1 + _DRAWS))


def _blocks(n: int) -> tuple[npt.NDArray[np.int64], int]:
    """First rows of the blocks of each resample `[draws, blocks]`, and the rows of a block: the square root of `n`."""
    length = max(1, round(n**0.5))
    return np.random.default_rng(n).integers(0, n, size=(_DRAWS, -(-n // length))), length


def _sums(values: Floats, length: int) -> Floats:
    """Sum of the block of `length` rows that begins at each row `[n]`, around the end."""
    sums = np.concatenate(([0.0], np.cumsum(np.concatenate([values, values[: length - 1]]))))
    blocks: Floats = sums[length:] - sums[:-length]
    return blocks


@rule("loader-bound", "warning", of="run")
def loader_bound(run: RunFacts) -> Iterator[Diagnosis]:
    """Steps wait for data."""
    wait, p95, step_s = run.series("dt_fetch_s"), run.series("fetch_p95_ms"), run.step_time_s
    if step_s is None:
        return
    mean_s = _mean(run, run.series("step_time_s")) or step_s
    mean_wait_s = _mean(run, wait)
    slowest = run.inside(p95) if p95 is not None else np.empty(0)
    if wait is not None and mean_wait_s is not None:
        whole_s = mean_s if mean_wait_s <= mean_s else mean_s + mean_wait_s  # a time that leaves the wait out
        share, source = mean_wait_s / whole_s, wait.source.path
        shown = f"mean dt_fetch_s {mean_wait_s:.3g} s of a step of {mean_s:.3g} s"
    elif p95 is not None and slowest.size and np.median(slowest) > 500 * step_s:
        share, source = float(np.median(slowest)) / 1000 / step_s, p95.source.path
        shown = f"fetch_p95_ms {np.median(slowest):.3g} ms, step {step_s:.3g} s"
    else:
        return
    if not LOADER_SHARE <= share < math.inf or _never_idle(run):
        return
    yield Diagnosis(
        f"The data loader takes {format_percent(share)} of a step.",
        because=[evidence(shown, source)],
        next_step="Prepare batches ahead (prefetch_batches), tokenize beforehand, or move the data to a local disk; "
        "compare with data: synthetic.",
    )


def _mean(run: RunFacts, series: Series | None) -> float | None:
    """Mean over the steps of the window, of a row as often as it covers steps: a line at the start of an epoch, where
    the loader starts, may cover one step, and the next a hundred."""
    if series is None:
        return None
    finite = np.isfinite(series.values)
    inside = run.in_window(series.steps) & finite
    usable = inside if inside.any() else finite
    covered = covered_steps(series.steps)[usable]
    return float(np.average(series.values[usable], weights=covered)) if covered.sum() > 0 else None


def _never_idle(run: RunFacts) -> bool:
    """Whether each GPU that works at all is busy throughout, so that none waits for data."""
    busy = [float(values.mean()) for values in map(run.inside, run.gpu_use) if values.size >= 5 and values.mean() >= 1]
    return bool(busy) and min(busy) >= BUSY_GPU_PCT


@rule("comm-bound", "warning", of="run")
def comm_bound(run: RunFacts) -> Iterator[Diagnosis]:
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
    yield Diagnosis(
        f"Even the busiest rank waits for the others in {format_percent(share)} of a step of {step_s:.3g} s.{volume}",
        confidence="medium",
        because=[evidence(f"compute_time_s {work_s:.3g} s of step_time_s {step_s:.3g} s on the busiest rank")],
        next_step="Compare with one process; then try larger accum, ddp_compress bf16 and other bucket sizes, and "
        "check the interconnect (nvidia-smi topo -m, the all-reduce probe).",
    )


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


@rule("host-bound", "warning", of="run")
def host_bound(run: RunFacts) -> Iterator[Diagnosis]:
    """Idle GPUs while CPU cores are busy, by the machine's telemetry."""
    busy_gpus = [run.inside(one) for one in run.gpu_use]
    cpu, cores = run.series("telemetry.host_cpu_pct"), run.cores
    medians = [float(np.median(values)) for values in busy_gpus if values.size >= 5]
    if not medians or cpu is None or cores is None:
        return
    busy_cores = float(np.median(run.inside(cpu))) / 100 * cores
    if max(medians) >= IDLE_GPU_PCT or busy_cores < 0.8 * run.world_size:
        return
    shown = ", ".join(f"{value:.0f} %" for value in medians)
    yield Diagnosis(
        f"The GPUs are busy only {shown} of the time while {busy_cores:.1f} CPU cores are: Python sets the pace.",
        confidence="medium",
        because=[
            evidence(f"median GPU utilization {shown}; host {busy_cores:.1f} of {cores:.0f} cores", cpu.source.path)
        ],
        next_step="Profile one rank (py-spy record, or torch.profiler) and look for loops with .item() and for many "
        "tiny kernels; for long sequences set NSA_PREFILL_BATCHED=1.",
    )


@rule("throttled", "warning", of="run")
def throttled(run: RunFacts) -> Iterator[Diagnosis]:
    """A GPU slowed itself down while it was measured."""
    windows = [one for one in run.evidence.invalid_windows if one.throttled]
    if not windows:
        return
    first = windows[0]
    where = [f"steps {one.first_step}–{one.last_step}" for one in windows]
    yield Diagnosis(
        f"{first.reason} in {where[0]}" + (f" and in {len(windows) - 1} more stretches." if windows[1:] else "."),
        because=[evidence(one.reason, one.source, at) for one, at in list(zip(windows, where, strict=True))[:4]],
        next_step="Check cooling, power limit and neighbors (nvidia-smi -q -d PERFORMANCE,TEMPERATURE), then repeat.",
    )
