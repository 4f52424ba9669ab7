"""What can be measured: every metric's name, unit, window and statistics.

The catalogue lets `check` reject a criterion that could never be evaluated, before anything runs.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Literal, NamedTuple, get_args

Window = Literal["steady", "whole"]
Better = Literal["higher", "lower"]
Across = Literal["lowest", "sum", "highest", "host"]
"""Which value of a sample represents all GPUs; `host`: the column is the host's own."""


Statistic = Literal["mean", "stdev", "cv", "min", "p50", "p95", "p99", "max", "first", "last", "n"]

STATISTICS: tuple[Statistic, ...] = get_args(Statistic)
"""What may follow a series metric in a criterion. `stdev` is the population's; `cv` is stdev over mean."""


MIN_REPEATS = 4
"""Runs from which their variation is measured rather than assumed."""

MAY_MISS = 0.075
"""Maximum probability that a sample lies wholly on one side of a percentile that it gives an interval for."""

QUANTILES = {"p50": 0.50, "p95": 0.95, "p99": 0.99}
"""The statistics that are percentiles, as shares."""


class Metric(NamedTuple):
    """A series, one value per step, and how the tools use it. Every table that lists metrics is read from these facets.

    `window` says which steps count: `steady` leaves out warm-up (rates and times), `whole` takes every step
    (loss, memory, gates), so that `loss.first` is the loss at the first logged step.

    `compare`, `baseline` and the history:
    `better`      the direction that is good; without one, two validations are not compared by it;
    `statistic`   what is compared;
    `headline`    the verdict of `compare` rests on it, and `baseline` derives a bound from it (see `headlines`);
    `history`     the statistic that the history follows in every phase that trains; None: only where a criterion does.

    Charts:
    `chart`       title of the chart that draws it; metrics of one title share a chart, in the catalogue's order;
    `spread`      its place among the metrics of which the first that ranks report is drawn rank by rank; 0: not drawn.

    The first screen of a report:
    `tile`        label of its tile; a metric with the facet `headline` alone has one with its name.

    Definition:
    `follows`     it changes with the rate, as rates do, or at every step, so it is no cause of another rate;
    `across`      where it is read from the machine's samples: how the GPUs' columns `column` become one;
    `version`     of the definition; values of different versions are never compared.
    """

    name: str
    unit: str
    window: Window
    better: Better | None
    meaning: str
    statistic: Statistic = "mean"
    headline: bool = False
    history: Statistic | None = None
    chart: str | None = None
    spread: int = 0
    tile: str | None = None
    follows: bool = False
    across: Across | None = None
    cuda_only: bool = False
    version: int = 1

    @property
    def column(self) -> str:
        """The column of the samples, of each GPU (`gpu0_power_w` for `gpu_power_w`) or of the host."""
        return self.name if self.across == "host" else self.name.removeprefix("gpu_")


class Scalar(NamedTuple):
    """A single number known once per run or phase, written in criteria without a statistic.

    `key` is the key of a phase without which it does not exist: `scaling.efficiency` needs `scaling_against`. `tile` is
    the label of its tile on the first screen of a report.
    """

    name: str
    unit: str
    meaning: str
    text: bool = False
    cuda_only: bool = False
    key: str | None = None
    tile: str | None = None


def _inner(*rows: tuple[str, str, str | None, str]) -> tuple[Metric, ...]:
    """Series of the model's inner state, of which no direction is good: name, unit, chart, meaning."""
    return tuple(Metric(name, unit, "whole", None, meaning, chart=chart) for name, unit, chart, meaning in rows)


def _sampled(*rows: tuple[str, str, Across, Better | None, str | None, str]) -> tuple[Metric, ...]:
    """Series that the validator samples itself, drawn over time; a heartbeat assigns the samples to steps."""
    return tuple(
        Metric(name, unit, "steady", better, meaning, chart=chart, across=across, cuda_only=across != "host")
        for name, unit, across, better, chart, meaning in rows
    )


_CATALOGUE: tuple[Metric, ...] = (
    Metric(
        "toks_per_s",
        "tok/s",
        "steady",
        "higher",
        "global rate: tokens over wall time from the end of warm-up to the last row, pauses included",
        headline=True,
        history="mean",
        chart="Rate",
        version=2,
        tile="Throughput",
    ),
    Metric(
        "step_rate",
        "tok/s",
        "steady",
        "higher",
        "tokens over `step_time_s`: the rate without pauses for validation and checkpoints",
        tile="Throughput without pauses",
    ),
    Metric(
        "toks_per_s_per_rank",
        "tok/s",
        "steady",
        "higher",
        "toks_per_s divided by the number of ranks",
        version=2,
        tile="Throughput per rank",
    ),
    Metric(
        "model_tflops_per_s_per_rank",
        "TFLOP/s",
        "steady",
        "higher",
        "the model's arithmetic (`flops_per_token` of env.json) per second and rank; compare it with probe.gemm_tflops",
        version=2,
        tile="Model FLOP/s per rank",
    ),
    Metric(
        "step_time_s",
        "s",
        "steady",
        "lower",
        "wall time of one optimizer step",
        history="p95",
        chart="Rate",
        spread=2,
        follows=True,
        tile="Step time",
    ),
    Metric(
        "wall_step_time_s",
        "s",
        "steady",
        "lower",
        "time of one optimizer step by the log's own clock, pauses for validation and checkpoints included",
        follows=True,
        tile="Step time, pauses included",
    ),
    Metric(
        "compute_time_s",
        "s",
        "steady",
        "lower",
        "compute time of a rank in a step, waiting for other ranks excluded",
        spread=1,
        follows=True,
    ),
    Metric("dt_fetch_s", "s", "steady", "lower", "time spent waiting for the data loader in a step"),
    Metric("fetch_p50_ms", "ms", "steady", "lower", "median time to fetch a batch"),
    Metric("fetch_p95_ms", "ms", "steady", "lower", "95th percentile of the time to fetch a batch"),
    Metric(
        "mfu_nsa",
        "",
        "steady",
        "higher",
        "share of the device's peak FLOP/s, by NSA's actual arithmetic",
        tile="MFU",
    ),
    Metric(
        "mfu_dense_equivalent",
        "",
        "steady",
        "higher",
        "share of the device's peak FLOP/s, counting the arithmetic of dense attention of the same shape",
        tile="MFU, dense equivalent",
    ),
    Metric(
        "burnin_tflops",
        "TFLOP/s",
        "whole",
        None,
        "matrix products of a round of a burn-in, slowest device",
        chart="Matrix products, slowest device",
        spread=3,
    ),
    Metric(
        "loss",
        "nat",
        "whole",
        "lower",
        "training loss, mean over ranks and micro-batches",
        statistic="last",
        headline=True,
        history="last",
        chart="Loss",
        follows=True,
        tile="Loss",
    ),
    Metric("lr", "", "whole", None, "learning rate", follows=True),
    Metric("grad_norm", "", "whole", None, "global gradient norm before clipping", chart="Gradient norm", follows=True),
    Metric(
        "gpu_mem_alloc_mib",
        "MiB",
        "whole",
        "lower",
        "GPU memory allocated on rank 0",
        statistic="max",
        chart="GPU memory",
        cuda_only=True,
        tile="Peak GPU memory, allocated",
    ),
    Metric(
        "gpu_mem_reserved_mib",
        "MiB",
        "whole",
        "lower",
        "GPU memory reserved on rank 0",
        statistic="max",
        headline=True,
        history="max",
        chart="GPU memory",
        cuda_only=True,
        tile="Peak GPU memory",
    ),
    Metric(
        "host_mem_mib",
        "MiB",
        "whole",
        "lower",
        "resident memory of rank 0's process",
        statistic="max",
        history="max",
        chart="Host memory",
        tile="Peak host memory",
    ),
    *_sampled(
        ("gpu_util_pct", "%", "lowest", "higher", "GPU utilization", "GPU utilization, lowest GPU"),
        ("gpu_sm_clock_mhz", "MHz", "lowest", "higher", "GPU clock", "GPU clock, lowest GPU"),
        ("gpu_power_w", "W", "sum", "lower", "GPU power", "power of all GPUs together"),
        ("gpu_temperature_c", "°C", "highest", None, "GPU temperature", "GPU temperature, hottest GPU"),
        ("gpu_mem_used_mib", "MiB", "highest", "lower", None, "GPU memory in use by any process, fullest GPU"),
        ("host_cpu_pct", "%", "host", None, "CPU", "load of all CPU cores together"),
        ("host_run_mem_mib", "MiB", "host", None, "Host memory", "memory on the host that the run's processes hold"),
    ),
    *_inner(
        ("gate_entropy_mean", "", "Gate entropy", "entropy of the normalised gates in units of ln 3, mean over layers"),
        ("gate_entropy_min", "", "Gate entropy", "entropy of the normalised gates, lowest layer"),
        ("gate_max_gate", "", None, "largest normalised gate, mean over layers"),
        ("gate_collapse_frac", "", None, "share of queries and heads whose gates have collapsed to one branch"),
        ("sel_k_mean", "blocks", None, "selected blocks per query, mean"),
        ("sel_k_max", "blocks", None, "selected blocks per query, maximum"),
        ("sel_rows", "rows", None, "query rows that were counted"),
        ("sel_pct_at_max", "%", None, "share of queries that use every selection slot"),
        ("gate_branch_shares_0", "", "Gate shares", "share of the gates' weight on the compressed branch"),
        ("gate_branch_shares_1", "", "Gate shares", "share of the gates' weight on the selected branch"),
        ("gate_branch_shares_2", "", "Gate shares", "share of the gates' weight on the window branch"),
    ),
)

METRICS: dict[str, Metric] = {metric.name: metric for metric in _CATALOGUE}
"""Series of a training run. A trainer may write others; they are declared in `trainer.metrics.extra`."""

PACES = ("wall_step_time_s", "step_time_s")
"""Times of a step that take the place of a rate where none is measured, that with the pauses in it first."""


def headlines(measured: Collection[str], known: Mapping[str, Metric]) -> frozenset[str]:
    """What a verdict on these measurements rests on, of the metrics `known`: the headlines among them.

    A trainer that reports no headline rate is judged by the rates that its runbook declares, else by its time per step.
    """
    found = {name for name in measured if name in known and known[name].headline}
    if not any(known[name].window == "steady" for name in found):
        rates = {name for name in measured if name in known and name not in METRICS and _is_rate(known[name])}
        paces = [name for name in PACES if name in measured][:1]
        found |= rates or set(paces)
    return frozenset(found)


def speeds(known: Mapping[str, Metric]) -> tuple[str, ...]:
    """What a run is compared by where nobody names a metric, the first that it reports: a rate, a time, the loss."""
    declared = (name for name, one in known.items() if name not in METRICS and _decides_speed(one))
    return ("toks_per_s", *declared, *PACES, "loss")


def _decides_speed(metric: Metric) -> bool:
    return _is_rate(metric) or (metric.headline and metric.window == "steady")


def _is_rate(metric: Metric) -> bool:
    return metric.window == "steady" and metric.better == "higher" and metric.unit.endswith("/s")


_ORDER = {name: index for index, name in enumerate(METRICS)}

_VERSIONS = {metric.name: metric.version for metric in _CATALOGUE} | {"scaling.efficiency": 2}


def _scalars(*rows: tuple[str, str, str], text: bool = False, cuda_only: bool = False) -> tuple[Scalar, ...]:
    return tuple(Scalar(name, unit, meaning, text=text, cuda_only=cuda_only) for name, unit, meaning in rows)


# The numbers known once per run, by what must run to know them. The models of the phases name the group that they have.

OUTCOME = _scalars(("outcome.rc", "", "exit code of the run"), ("outcome.duration_s", "s", "wall time of the run"))
TESTS = _scalars(
    ("tests.passed", "tests", "tests that passed"),
    ("tests.failed", "tests", "tests that failed"),
    ("tests.errors", "tests", "tests that could not run"),
    ("tests.skipped", "tests", "tests that were skipped"),
    ("tests.total", "tests", "tests that were collected"),
)
TRAINING = (
    *_scalars(
        ("startup.first_step_s", "s", "launch to the first finished step"),
        ("startup.first_batch_s", "s", "a rank joining the others to its first batch, slowest rank"),
        ("steps.done", "steps", "optimizer steps that were finished"),
    ),
    Scalar("heartbeat.max_gap_s", "s", "longest silence of any rank", tile="Longest silence"),
    *_scalars(
        (
            "straggler.score",
            "",
            "median over worst of the ranks' compute times, each the median of its steps after warm-up; "
            "of one run, without an interval",
        ),
    ),
    Scalar(
        "scaling.efficiency",
        "",
        "per-rank rate of the phase named by `scaling_against` over this phase's per-rank rate",
        key="scaling_against",
        tile="Scaling efficiency",
    ),
    *_scalars(
        (
            "pause.count",
            "pauses",
            "rows of the window that took much longer than their steps: validation, checkpoints, interruptions",
        ),
        ("pause.cost_s", "s", "wall time of one pause, mean"),
        ("pause.period_steps", "steps", "steps from pause to pause, median"),
        ("memory.growth_mib_per_1k_steps", "MiB", "growth of memory after warm-up, over 1,000 steps"),
    ),
    Scalar(
        "rate.drift_pct",
        "%",
        "rate of the last third against the first third, after warm-up; below 0 where it slows down",
        tile="Drift of the rate",
    ),
)
CURRENCY = "currency"
"""Unit of an amount of money: `hardware.currency`, which only the runbook knows."""

COST = (
    Scalar(
        "cost.per_million_tokens",
        CURRENCY,
        "`hardware.price_per_gpu_hour` of every rank's GPU over the global rate, with the interval of the rate",
        tile="Cost of a million tokens",
    ),
    Scalar(
        "cost.planned_run",
        CURRENCY,
        "the same for `trainer.planned_tokens` or `planned_steps`",
        tile="Cost",
    ),
)
AUDIT = (
    *_scalars(
        ("audit.attention", "", "backends that the attention ran, all branches together: `triton`, `flash`, …"),
        ("audit.cmp", "", "backend of the compressed branch, forward and backward, in every layer"),
        ("audit.sel", "", "backend of the selected branch"),
        ("audit.win", "", "backend of the window branch"),
        text=True,
    ),
    *_scalars(
        ("audit.layers", "layers", "layers whose attention was audited"),
        ("audit.fallbacks", "calls", "calls that ran another path than the requested one"),
    ),
)
PROFILE = (
    *_scalars(
        ("profile.gpu_busy_share", "", "share of a traced step in which some kernel ran"),
        ("profile.host_bound_share", "", "share of a traced step in which the GPU waited for the host"),
        ("profile.exposed_comm_share", "", "share of a traced step in which communication ran and nothing else"),
        ("profile.top_kernel_share", "", "time of the kernel that took most, over the traced time"),
        cuda_only=True,
    ),
    *_scalars(
        ("profile.comm_share", "", "share of a traced step in which communication ran"),
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
SMOKE = _scalars(
    ("smoke.first_batch_s", "s", "time to the first batch in the data-loader smoke test"),
    ("smoke.toks_per_s", "tok/s", "rate of the data-loader smoke test, one rank"),
    ("smoke.fetch_p95_ms", "ms", "95th percentile of the time for a batch in the data-loader smoke test"),
)
PROBE = _scalars(
    ("probe.gemm_tflops", "TFLOP/s", "dense bf16 matrix product, median of its repeats, slowest device"),
    ("probe.gemm_best_tflops", "TFLOP/s", "the same, best repeat: before the power limit lowers the clocks"),
    ("probe.copy_gb_s", "GB/s", "copy within a device's memory, bytes read and written, slowest device"),
    ("probe.host_to_device_gb_s", "GB/s", "pinned host memory to a device, one at a time, slowest device"),
    ("probe.device_to_host_gb_s", "GB/s", "a device to pinned host memory, one at a time, slowest device"),
    ("probe.peer_gb_s", "GB/s", "copy to the next device, one at a time, slowest pair"),
    ("probe.all_reduce_gb_s", "GB/s", "bus bandwidth of the all-reduce over all ranks, as nccl-tests counts it"),
    ("probe.all_reduce_gib", "GiB", "payload of that all-reduce"),
    ("probe.all_reduce_latency_us", "us", "all-reduce of one number"),
    ("probe.pcie_gen", "", "PCIe generation while data were copied, slowest link"),
    ("probe.pcie_width", "lanes", "PCIe lanes while data were copied, narrowest link"),
    ("links.min_gb_s", "GB/s", "bus bandwidth of the all-reduce of two nodes, slowest pair; with `on: pairs`"),
)

BURNIN = (
    *_scalars(
        ("burnin.errors", "", "wrong answers of any device, of all parts"),
        ("burnin.gemm_errors", "", "wrong elements of matrix products"),
        ("burnin.memory_errors", "", "words of memory that did not keep their pattern"),
        ("burnin.collective_errors", "", "wrong elements of collectives"),
        ("burnin.tflops", "TFLOP/s", "matrix products (bf16 on a GPU, fp32 on a CPU) over the time, slowest device"),
        ("burnin.slowest_share", "", "rate of the slowest device over the median of the others"),
        ("burnin.sag_pct", "%", "rate of the last third against the first third, of the device that lost most"),
        ("burnin.memory_gb_s", "GB/s", "memory read, compared and written, slowest device"),
    ),
    *_scalars(
        ("burnin.temperature_c", "°C", "highest temperature of any GPU"),
        ("burnin.power_w", "W", "mean power of the GPU that drew least"),
        ("burnin.clock_mhz", "MHz", "mean clock of the slowest GPU"),
        (
            "burnin.throttled_pct",
            "%",
            "samples in which the GPU slowed itself down for temperature or power, worst GPU",
        ),
        cuda_only=True,
    ),
)

_COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")

COLLECTIVE = (
    *(
        Scalar(f"collective.{name}_{ending}", unit, meaning.format(name.replace("_", "-")))
        for ending, unit, meaning in (
            ("bus_gb_s", "GB/s", "bus bandwidth of the {} at its largest size, as nccl-tests counts it"),
            ("fit_gb_s", "GB/s", "bus bandwidth of the {} by the fit of latency and bandwidth over all sizes"),
            ("latency_us", "us", "latency of the {} by the same fit"),
        )
        for name in _COLLECTIVES
    ),
    *_scalars(
        ("collective.errors", "", "wrong elements of collectives"),
        ("collective.late_ms", "ms", "how much later than the first a rank begins a collective, latest rank"),
    ),
)

TOOLS = _scalars(
    ("nccl_tests.all_reduce_bus_gb_s", "GB/s", "bus bandwidth by nccl-tests at its largest size, where installed"),
    ("nvbandwidth.host_to_device_gb_s", "GB/s", "slowest host to device copy by nvbandwidth, where installed"),
    ("nvbandwidth.device_to_host_gb_s", "GB/s", "slowest device to host copy by nvbandwidth, where installed"),
    ("nvbandwidth.peer_gb_s", "GB/s", "slowest copy between two devices by nvbandwidth, where installed"),
    ("ib.write_gb_s", "GB/s", "slowest InfiniBand adapter, writing to itself by ib_write_bw, where installed"),
    ("dcgm.failed", "tests", "tests of `dcgmi diag` that failed, where installed"),
)

_LEAST = "least rate of a node alone, as a share of the nodes' median; with `on: each`"
NODES = (Scalar("nodes.min", "", _LEAST, tile="Slowest node by the median"),)

_GROUPS = (*OUTCOME, *TESTS, *TRAINING, *COST, *AUDIT, *PROFILE, *SMOKE, *PROBE, *BURNIN, *COLLECTIVE, *TOOLS, *NODES)

TILES: dict[str, str] = {
    **{one.name: one.tile or one.name for one in _CATALOGUE if one.tile or one.headline},
    **{one.name: one.tile for one in _GROUPS if one.tile},
}
"""The label of every value that has a tile on the first screen of a report whether or not a criterion asks for it."""

_OPEN = re.compile(r"(effective|requested|metrics)\.[A-Za-z_][A-Za-z0-9_]*")


def is_open_scalar(name: str) -> bool:
    """Whether the trainer chooses its name: `effective.seq_len`, `requested.lr`, `metrics.x`."""
    return _OPEN.fullmatch(name) is not None


def catalogue_order(name: str) -> tuple[int, str]:
    """A key that sorts metrics as the catalogue lists them, and others by name behind them."""
    return _ORDER.get(name, len(_ORDER)), name


def version_of(name: str) -> int:
    """Version of the definition of a series or scalar; 1 for one that never changed."""
    return _VERSIONS.get(name, 1)
