"""What was measured in one run: series and scalars, each with the file it came from.

Arrays are numpy's, so this module is imported only where something has been collected.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from pydantic import Field

from validator.model.units import Frozen

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

Floats: TypeAlias = "npt.NDArray[np.float64]"
"""Measured values, times or rates, `[n]` unless a docstring says otherwise."""

Steps: TypeAlias = "npt.NDArray[np.int64]"
"""Optimizer steps, or the line numbers of rows, `[n]`."""


class SourceFile(Frozen):
    """A file that numbers were read from. `path` is relative to the run folder."""

    path: str
    sha256: str
    bytes: int


class Span(Frozen):
    """First and last step of a window, both included."""

    first_step: int
    last_step: int


class MetricStats(Frozen):
    """A series summarized over its window. `stdev` is the population's, `ci_*` the 95 % interval of the mean."""

    unit: str
    n: int
    mean: float | None
    stdev: float | None
    cv: float | None
    ci_low: float | None
    ci_high: float | None
    min: float | None
    p50: float | None
    p95: float | None
    p99: float | None
    max: float | None
    first: float | None
    last: float | None
    window: Span | None
    source: str | None
    sha256: str | None
    note: str | None = None
    version: int = Field(1, description="Of the metric's definition; other versions are not compared with it.")
    invalid: str | None = Field(None, description="Why not even the mean of these rows may be compared with others.")


class ScalarValue(Frozen):
    """A number or text known once per run. `ci_*` is the 95 % interval of a derived number, None for an exact one."""

    value: float | str | bool | None
    unit: str = ""
    source: str | None = None
    ci_low: float | None = None
    ci_high: float | None = None
    note: str | None = None
    version: int = Field(1, description="Of the number's definition.")


@dataclass(frozen=True)
class Irregularity:
    """A defect of an artifact: a truncated line, a second header, a non-monotonic step."""

    code: str
    message: str
    path: str
    line: int | None = None


@dataclass(frozen=True)
class Series:
    """One value per step, in file order.

    `steps [n]` int64 optimizer steps, `values [n]` float64 in `unit`; NaN and infinities are kept as the trainer wrote
    them, cells that could not be read are absent and counted as irregularities.
    """

    name: str
    unit: str
    steps: Steps
    values: Floats
    source: SourceFile
    rank: int = 0


@dataclass(frozen=True)
class Samples:
    """The machine during a run.

    `times_s [n]` UNIX time of each sample, `columns` name to `values [n]` as `system.sampler` names them, NaN where a
    cell is not a number.
    """

    source: SourceFile
    times_s: npt.NDArray[np.float64]
    columns: Mapping[str, npt.NDArray[np.float64]]


@dataclass(frozen=True)
class Result:
    """Everything read from one run's folder.

    `series` are global (CSV, stdout, or rank 0's heartbeat), `rank_series` are per rank, `requested` and `effective`
    the config that the trainer reports (None when it reports none), `environment` the rest of its env.json.

    `extra` holds what is neither a series nor a scalar; each key is there only when there was something to read:
    `derived`     names of the series that follow from others, since the trainer did not write them;
    `arrivals`    source to (steps [n], seconds [n]): when each step had arrived, by the supervisor's monotonic clock;
    `tokens_per_step` tokens of a step, as the runbook declares or else the trainer reports; `pause_every` as declared;
    `world_size`  ranks that the trainer reports (or as planned, when it reports none);
    `heartbeats`  rank to {path, pid, lines, first_ts, last_ts, last_progress_ts, last_step, last_msg, max_gap_s, done};
    `rank_compute_time_s` rank to its median compute time per step, after warm-up;
    `invalid_windows` [{first_step, last_step, reason}] whose rows are excluded;
    `gpu_mem_total_mib` size of the GPU's memory, by the trainer's memory dump;
    `halt`        {path, text, anomaly, stale};
    `tests`       {failed, errors, skipped}: each a list of {name, message};
    `log_hits`    kind of trouble to [{path, line, text}], from one bounded scan of all logs;
    `waiting_in`  [{path, line, text, collective}] of stack dumps that show a rank in a collective;
    `log_contains` each wanted text to {path, line} of its first appearance in rank 0's log, or None;
    `errors`      [{rank, path, message}] of ranks that raised;
    `files`       names of further contract files found, relative to the run folder, to their kind;
    `sdpa_audit`  the content of sdpa_audit.json; `trace` that of trace/summary.json;
    `fallbacks`   counter to calls, by fallback_counters.csv, which is written only when something fell back;
    `tables`      [{caption, columns, rows}] to be shown with the run's metrics;
    `samples`     the machine during the run (`Samples`); `step_times_s` steps, and the time at which each ended;
    `resumed_s`   first record of each process of rank 0 after the first, Unix seconds;
    `loader_error` {rank, path, error, unreachable} of the first rank that got no batch;
    `smoke`       the JSON object that the data-loader smoke test printed.
    """

    run: str
    series: Mapping[str, Series]
    rank_series: Mapping[int, Mapping[str, Series]]
    scalars: Mapping[str, ScalarValue]
    requested: Mapping[str, Any] | None
    effective: Mapping[str, Any] | None
    environment: Mapping[str, Any] | None
    irregularities: tuple[Irregularity, ...]
    sources: tuple[SourceFile, ...]
    log_tail: tuple[str, ...] = ()
    log_path: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
