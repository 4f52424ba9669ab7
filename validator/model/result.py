"""What was measured in one run: series and scalars, each with the file it came from.

Arrays are numpy's, so this module is imported only where something has been collected.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from validator.model.measure import Irregularity, ScalarValue, SourceFile

__all__ = ["Result", "Samples", "Series"]


@dataclass(frozen=True)
class Series:
    """One value per step, in file order.

    `steps [n]` int64 optimizer steps, `values [n]` float64 in `unit`; NaN and infinities are kept as the trainer wrote
    them, cells that could not be read are absent and counted as irregularities.
    """

    name: str
    unit: str
    steps: npt.NDArray[np.int64]
    values: npt.NDArray[np.float64]
    source: SourceFile
    rank: int = 0


@dataclass(frozen=True)
class Samples:
    """The machine beside a run, by the clock.

    `times_s [n]` UNIX time of each sample, `columns` name to `values [n]` as `observe.sampler` names them, NaN where a
    cell held no number.
    """

    source: SourceFile
    times_s: npt.NDArray[np.float64]
    columns: Mapping[str, npt.NDArray[np.float64]]


@dataclass(frozen=True)
class Result:
    """Everything read from one run's folder.

    `series` are global (CSV, stdout, or rank 0's heartbeat), `rank_series` are per rank, `requested` and `effective`
    the trainer's own account of its config (None when it gives none), `environment` the rest of its env.json.

    `extra` holds what is neither a series nor a scalar; each key is there only when there was something to read:
    `derived`     names of the series that follow from others, since the trainer did not write them;
    `arrivals`    source to (steps [n], seconds [n]): when each step had arrived, by the supervisor's monotonic clock;
    `tokens_per_step` tokens of a step, as the runbook declares or else the trainer reports; `pause_every` as declared;
    `world_size`  ranks by the trainer's own account (or as planned, when it gives none);
    `heartbeats`  rank to {path, pid, lines, first_ts, last_ts, last_progress_ts, last_step, last_msg, max_gap_s, done};
    `rank_compute_time_s` rank to its median time of own work per step, after warm-up;
    `invalid_windows` [{first_step, last_step, reason}] in which nothing may be measured;
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
    `tables`      [{caption, columns, rows}] worth showing beside the run's figures;
    `samples`     the machine beside the run (`Samples`); `step_times_s` steps, and the time at which each ended;
    `resumed_s`   when each process of rank 0 after the first one was first heard of, Unix seconds;
    `loader_error` {rank, path, error, unreachable} of the first rank that got no batch;
    `smoke`       the JSON object that a loader's trial printed.
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
