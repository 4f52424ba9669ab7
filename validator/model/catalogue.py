"""What can be measured: every metric's name, unit, window and statistics.

The catalogue lets `check` reject a criterion that could never be evaluated, before anything runs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

__all__ = [
    "MAY_MISS",
    "METRICS",
    "QUANTILES",
    "SCALARS",
    "STATISTICS",
    "Metric",
    "Scalar",
    "is_open_scalar",
    "version_of",
]

Window = Literal["steady", "whole"]

STATISTICS = ("mean", "stdev", "cv", "min", "p50", "p95", "p99", "max", "first", "last", "n")
"""What may follow a series metric in a criterion. `stdev` is the population's; `cv` is stdev over mean."""


MAY_MISS = 0.075
"""Chance, at most, that a sample lies wholly on one side of a percentile that it gives an interval for."""

QUANTILES = {"p50": 0.50, "p95": 0.95, "p99": 0.99}
"""The statistics that are percentiles, as shares."""


@dataclass(frozen=True)
class Metric:
    """A series: one value per step.

    `window` says which steps count: `steady` leaves out warm-up (rates and times), `whole` takes every step
    (loss, memory, gates), so that `loss.first` is the loss at the first logged step.
    """

    name: str
    unit: str
    window: Window
    better: Literal["higher", "lower"] | None
    meaning: str
    cuda_only: bool = False
    version: int = 1


@dataclass(frozen=True)
class Scalar:
    """A single number known once per run or phase, written in criteria without a statistic."""

    name: str
    unit: str
    kinds: tuple[str, ...]
    meaning: str
    text: bool = False
    cuda_only: bool = False
    version: int = 1


_VERSIONS = {
    "toks_per_s": 2,
    "toks_per_s_per_rank": 2,
    "model_tflops_per_s_per_rank": 2,
    "scaling.efficiency": 2,
}
"""Of definitions that changed, all others being 1. Numbers of different versions are never compared.

2: the rate is tokens over wall time to the end of the run, pauses included; 1 left pauses out.
"""


def _metrics(*rows: tuple[str, str, Window, Literal["higher", "lower"] | None, str]) -> dict[str, Metric]:
    return {
        name: Metric(
            name=name,
            unit=unit,
            window=window,
            better=better,
            meaning=meaning,
            cuda_only=name.startswith("gpu_"),
            version=_VERSIONS.get(name, 1),
        )
        for name, unit, window, better, meaning in rows
    }


METRICS: dict[str, Metric] = _metrics(
    (
        "toks_per_s",
        "tok/s",
        "steady",
        "higher",
        "global rate: tokens over wall time from the end of warm-up to the last row, pauses included",
    ),
    (
        "step_rate",
        "tok/s",
        "steady",
        "higher",
        "tokens over `step_time_s`: the rate without pauses for validation and checkpoints",
    ),
    ("toks_per_s_per_rank", "tok/s", "steady", "higher", "toks_per_s divided by the number of ranks"),
    (
        "model_tflops_per_s_per_rank",
        "TFLOP/s",
        "steady",
        "higher",
        "the model's arithmetic (`flops_per_token` of env.json) per second and rank; compare it with probe.gemm_tflops",
    ),
    ("step_time_s", "s", "steady", "lower", "wall time of one optimizer step"),
    (
        "wall_step_time_s",
        "s",
        "steady",
        "lower",
        "time of one optimizer step by the log's own clock, pauses for validation and checkpoints included",
    ),
    (
        "compute_time_s",
        "s",
        "steady",
        "lower",
        "a rank's own work in a step, waiting for other ranks excluded",
    ),
    ("dt_fetch_s", "s", "steady", "lower", "time spent waiting for the data loader in a step"),
    ("fetch_p50_ms", "ms", "steady", "lower", "median time to fetch a batch"),
    ("fetch_p95_ms", "ms", "steady", "lower", "95th percentile of the time to fetch a batch"),
    ("mfu_nsa", "", "steady", "higher", "share of the device's peak FLOP/s, by NSA's actual arithmetic"),
    (
        "mfu_dense_equivalent",
        "",
        "steady",
        "higher",
        "share of the device's peak FLOP/s, counting the arithmetic of dense attention of the same shape",
    ),
    ("loss", "nat", "whole", "lower", "training loss, mean over ranks and micro-batches"),
    ("lr", "", "whole", None, "learning rate"),
    ("grad_norm", "", "whole", None, "global gradient norm before clipping"),
    ("gpu_mem_alloc_mib", "MiB", "whole", "lower", "GPU memory allocated on rank 0"),
    ("gpu_mem_reserved_mib", "MiB", "whole", "lower", "GPU memory reserved on rank 0"),
    ("host_mem_mib", "MiB", "whole", "lower", "resident memory of rank 0's process"),
    (
        "gate_entropy_mean",
        "",
        "whole",
        None,
        "entropy of the normalised gates, in units of ln 3, mean over layers",
    ),
    ("gate_entropy_min", "", "whole", None, "entropy of the normalised gates, lowest layer"),
    ("gate_max_gate", "", "whole", None, "largest normalised gate, mean over layers"),
    (
        "gate_collapse_frac",
        "",
        "whole",
        None,
        "share of queries and heads whose gates have collapsed to one branch",
    ),
    ("sel_k_mean", "blocks", "whole", None, "selected blocks per query, mean"),
    ("sel_k_max", "blocks", "whole", None, "selected blocks per query, maximum"),
    ("sel_rows", "rows", "whole", None, "query rows that were counted"),
    ("sel_pct_at_max", "%", "whole", None, "share of queries that use every selection slot"),
)
"""Series of a training run. A trainer may write others; they are declared in `trainer.metrics.extra`."""

_TRAINING = ("train", "sweep", "ab", "audit", "profile", "soak", "data")
_PROCESS = ("command", "pytest", *_TRAINING)


def _of_kind(kind: str, *rows: tuple[str, str, str], text: bool = False, cuda_only: bool = False) -> tuple[Scalar, ...]:
    return tuple(
        Scalar(name=name, unit=unit, kinds=(kind,), meaning=meaning, text=text, cuda_only=cuda_only)
        for name, unit, meaning in rows
    )


_AUDIT = (
    *_of_kind(
        "audit",
        ("audit.attention", "", "backends that the attention ran, all branches together: `triton`, `flash`, …"),
        ("audit.cmp", "", "backend of the compressed branch, forward and backward, in every layer"),
        ("audit.sel", "", "backend of the selected branch"),
        ("audit.win", "", "backend of the window branch"),
        text=True,
    ),
    *_of_kind(
        "audit",
        ("audit.layers", "layers", "layers whose attention was audited"),
        ("audit.fallbacks", "calls", "calls that ran another path than the one asked for"),
    ),
)
_PROFILE = (
    *_of_kind(
        "profile",
        ("profile.gpu_busy_share", "", "share of the traced time in which some kernel ran"),
        ("profile.host_bound_share", "", "share of the traced time in which the GPU waited for the host"),
        ("profile.exposed_comm_share", "", "share of the traced time in which communication ran and nothing else"),
        ("profile.top_kernel_share", "", "time of the kernel that took most, over the traced time"),
        cuda_only=True,
    ),
    *_of_kind(
        "profile",
        ("profile.comm_share", "", "share of the traced time in which communication ran"),
        ("profile.top_operator_share", "", "host time of the operator that took most, over the traced time"),
        (
            "profile.comm_bus_gb_s",
            "GB/s",
            "bus bandwidth that the gradients' reduction reached; compare it with probe.all_reduce_gb_s",
        ),
        ("profile.step_time_ms", "ms", "time of a traced step"),
        ("profile.steps", "steps", "steps that were traced"),
        ("profile.ranges", "ranges", "named ranges in the trace"),
    ),
)
_SMOKE = _of_kind(
    "data",
    ("smoke.first_batch_s", "s", "time to the first batch of the loader alone"),
    ("smoke.toks_per_s", "tok/s", "rate of the loader alone, one rank"),
    ("smoke.fetch_p95_ms", "ms", "95th percentile of the loader's time for a batch, alone"),
)
_PROBE = _of_kind(
    "preflight",
    ("probe.gemm_tflops", "TFLOP/s", "dense bf16 matrix product, median of its repeats, slowest device"),
    ("probe.gemm_best_tflops", "TFLOP/s", "the same, best repeat: before the power limit lowers the clocks"),
    ("probe.copy_gb_s", "GB/s", "copy within a device's memory, bytes read and written, slowest device"),
    ("probe.host_to_device_gb_s", "GB/s", "pinned host memory to a device, one at a time, slowest device"),
    ("probe.device_to_host_gb_s", "GB/s", "a device to pinned host memory, one at a time, slowest device"),
    ("probe.peer_gb_s", "GB/s", "copy to the next device, one at a time, slowest pair"),
    ("probe.all_reduce_gb_s", "GB/s", "bus bandwidth of the all-reduce over all ranks, as nccl-tests counts it"),
    ("probe.all_reduce_latency_us", "us", "all-reduce of one number"),
    ("probe.pcie_gen", "", "PCIe generation while data were copied, slowest link"),
    ("probe.pcie_width", "lanes", "PCIe lanes while data were copied, narrowest link"),
)

SCALARS: dict[str, Scalar] = {
    scalar.name: scalar
    for scalar in (
        Scalar(name="outcome.rc", unit="", kinds=_PROCESS, meaning="exit code of the run"),
        Scalar(name="outcome.duration_s", unit="s", kinds=_PROCESS, meaning="wall time of the run"),
        Scalar(name="tests.passed", unit="tests", kinds=("pytest",), meaning="tests that passed"),
        Scalar(name="tests.failed", unit="tests", kinds=("pytest",), meaning="tests that failed"),
        Scalar(name="tests.errors", unit="tests", kinds=("pytest",), meaning="tests that could not run"),
        Scalar(name="tests.skipped", unit="tests", kinds=("pytest",), meaning="tests that were skipped"),
        Scalar(name="tests.total", unit="tests", kinds=("pytest",), meaning="tests that were collected"),
        Scalar(
            name="startup.first_step_s",
            unit="s",
            kinds=_TRAINING,
            meaning="launch to the first finished step",
        ),
        Scalar(
            name="startup.first_batch_s",
            unit="s",
            kinds=_TRAINING,
            meaning="a rank joining the others to its first batch, slowest rank",
        ),
        Scalar(name="steps.done", unit="steps", kinds=_TRAINING, meaning="optimizer steps that were finished"),
        Scalar(name="heartbeat.max_gap_s", unit="s", kinds=_TRAINING, meaning="longest silence of any rank"),
        Scalar(
            name="straggler.score",
            unit="",
            kinds=_TRAINING,
            meaning="median over worst of the ranks' compute times, each the median of its steps after warm-up; "
            "of one run, without an interval",
        ),
        Scalar(
            name="scaling.efficiency",
            unit="",
            kinds=("train",),
            version=_VERSIONS["scaling.efficiency"],
            meaning="per-rank rate of the phase named by `scaling_against` over this phase's per-rank rate",
        ),
        Scalar(
            name="pause.count",
            unit="pauses",
            kinds=_TRAINING,
            meaning="rows of the window that took much longer than their steps: validation, checkpoints, interruptions",
        ),
        Scalar(name="pause.cost_s", unit="s", kinds=_TRAINING, meaning="wall time of one pause, mean"),
        Scalar(name="pause.period_steps", unit="steps", kinds=_TRAINING, meaning="steps from pause to pause, median"),
        Scalar(
            name="memory.growth_mib_per_1k_steps",
            unit="MiB",
            kinds=_TRAINING,
            meaning="growth of memory after warm-up, over 1,000 steps",
        ),
        Scalar(
            name="rate.drift_pct",
            unit="%",
            kinds=_TRAINING,
            meaning="rate of the last third against the first third, after warm-up; below 0 where it slows down",
        ),
        *_AUDIT,
        *_PROFILE,
        *_SMOKE,
        *_PROBE,
    )
}
"""Numbers known once per run."""

_OPEN = re.compile(r"(effective|requested|metrics)\.[A-Za-z_][A-Za-z0-9_]*")


def is_open_scalar(name: str) -> bool:
    """Whether only the trainer can name it: `effective.seq_len`, `requested.lr`, `metrics.x`."""
    return _OPEN.fullmatch(name) is not None


def version_of(name: str) -> int:
    """Version of the definition of a series or scalar; 1 for what the catalogue does not know."""
    known = METRICS.get(name) or SCALARS.get(name)
    return 1 if known is None else known.version
