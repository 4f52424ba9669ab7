"""Turns finished steps into rows, heartbeats and the summary; the only place that computes rates."""

from __future__ import annotations

import math
import statistics
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from nsa.config import SetupError
from nsa.data import FetchStats
from nsa.telemetry.files import AppendCsv
from nsa.telemetry.heartbeat import Heartbeat
from nsa.telemetry.memory import MIB, memory_now, rss_mib

__all__ = ["CSV_COLUMNS", "Recorder", "Rates", "StepRecord"]

CSV_COLUMNS = [
    "step",
    "loss",
    "lr",
    "toks_per_s",
    "step_time_s",
    "compute_time_s",
    "grad_norm",
    "dt_fetch_s",
    "tokens",
    "wall_s",
    "host_mem_mib",
    "gpu_mem_alloc_mib",
    "gpu_mem_reserved_mib",
    "gpu_mem_peak_mib",
    "mfu_nsa",
    "mfu_dense_equivalent",
]
K_STATS = ["sel_k_mean", "sel_k_max", "sel_rows", "sel_pct_at_max"]


@dataclass(frozen=True)
class StepRecord:
    """One finished optimizer step. `loss` (nats per token) and `grad_norm` (before clipping) are over all ranks."""

    step: int
    loss: float
    lr: float
    grad_norm: float
    wait_s: float
    aux: Mapping[str, Any] = field(default_factory=dict)
    fallbacks: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Rates:
    """What turns time into rates: tokens of a step over all ranks, operations per token, the ranks' peak FLOP/s."""

    tokens_per_step: int
    flops_nsa: float
    flops_dense_equivalent: float
    peak_flops: float | None

    def mfu(self, toks_per_s: float) -> dict[str, float]:
        """Share of the peak, by actual and by dense-equivalent arithmetic; empty where the peak is unknown."""
        if not self.peak_flops:
            return {}
        return {
            "mfu_nsa": toks_per_s * self.flops_nsa / self.peak_flops,
            "mfu_dense_equivalent": toks_per_s * self.flops_dense_equivalent / self.peak_flops,
        }


class Recorder:
    """Writes `training.csv`, `k_stats.csv`, `fallback_counters.csv` (rank 0) and `progress` beats (every rank).

    Time runs from `start`; the first row covers everything since then. `step_time_s` leaves out what `exclude`
    reports (validation, checkpoints), `toks_per_s` and `wall_s` do not.
    """

    def __init__(
        self,
        out: Path,
        *,
        is_main: bool,
        heartbeat: Heartbeat,
        rates: Rates,
        device: torch.device,
        log_every: int,
        steps: int,
        start_step: int = 0,
        wall_before_s: float = 0.0,
        tensorboard: bool = False,
    ) -> None:
        self._heartbeat, self._rates, self._device = heartbeat, rates, device
        self._log_every, self._steps, self._start_step = log_every, steps, start_step
        self._wall_before_s = wall_before_s
        self._scalars = open_tensorboard(out, start_step) if tensorboard and is_main else None
        self._files: dict[str, AppendCsv] = {}
        self._out, self._is_main = out, is_main
        if is_main:
            self._files["training"] = AppendCsv(out / "training.csv", CSV_COLUMNS)
        self._row_step, self._excluded_s, self._waited_s = start_step, 0.0, 0.0
        self._step_times_s: deque[float] = deque(maxlen=10_000)
        self.first: StepRecord | None = None
        self.last: StepRecord | None = None
        self._began_s = self._row_at_s = self._last_at_s = self._said_at_s = time.perf_counter()

    def start(self, at_s: float) -> None:
        """Training begins, at `at_s` by `time.perf_counter`."""
        self._began_s = self._row_at_s = self._last_at_s = at_s

    def exclude(self, seconds: float) -> None:
        """Leave `seconds` just spent on something else out of the next row's step_time_s."""
        self._excluded_s += seconds

    @property
    def wall_s(self) -> float:
        """Seconds of training until now, those before a resume included."""
        return self._wall_before_s + time.perf_counter() - self._began_s

    def is_logged(self, step: int) -> bool:
        """Whether `step` ends a row: every `log_every`-th, the first and the last."""
        return step % self._log_every == 0 or step in (self._start_step + 1, self._steps)

    def step_done(self, record: StepRecord, fetch: FetchStats | None, at_s: float) -> None:
        """Take a step that was finished at `at_s`; `fetch` is given where it ends a row."""
        self._last_at_s = at_s
        self.first, self.last = self.first or record, record
        self._waited_s += record.wait_s
        if fetch is None:
            self._heartbeat.write("step_end", step=record.step)
        else:
            self._row(record, fetch, at_s)

    def _row(self, record: StepRecord, fetch: FetchStats, at_s: float) -> None:
        n_steps = record.step - self._row_step
        interval_s = max(at_s - self._row_at_s, 1e-9)
        step_time_s = max(interval_s - self._excluded_s, 0.0) / n_steps
        toks_per_s = n_steps * self._rates.tokens_per_step / interval_s
        shared = {
            "loss": record.loss,
            "toks_per_s": toks_per_s,
            "step_time_s": step_time_s,
            "compute_time_s": max(step_time_s - self._waited_s / n_steps, 0.0),
            "dt_fetch_s": fetch.wait_s / n_steps,
            "grad_norm": record.grad_norm,
            **self._rates.mfu(toks_per_s),
        }
        self._step_times_s.append(step_time_s)
        self._row_step, self._row_at_s, self._excluded_s, self._waited_s = record.step, at_s, 0.0, 0.0
        if self._is_main:
            wall_s = self._wall_before_s + at_s - self._began_s
            self._write_row(record, shared, wall_s)
            self._write_aux(record)
            self._write_scalars(record, shared)
            self._say(record, toks_per_s, step_time_s, at_s)
        percentiles = {"fetch_p50_ms": fetch.p50_ms, "fetch_p95_ms": fetch.p95_ms}
        self._heartbeat.write(
            "progress",
            step=record.step,
            lr=record.lr,
            **{k: _round(v) for k, v in (shared | percentiles | dict(record.aux)).items()},
            **record.fallbacks,
        )

    def _write_row(self, record: StepRecord, shared: Mapping[str, float], wall_s: float) -> None:
        memory = {f"{name}_mib": value for name, value in memory_now(self._device).items()}
        if memory:
            memory["gpu_mem_peak_mib"] = torch.cuda.max_memory_allocated(self._device) / MIB
        self._files["training"].row(
            {
                "step": record.step,
                "lr": record.lr,
                "tokens": record.step * self._rates.tokens_per_step,
                "wall_s": wall_s,
                "host_mem_mib": rss_mib(),
                **shared,
                **memory,
            }
        )

    def _write_aux(self, record: StepRecord) -> None:
        if any(k in record.aux for k in K_STATS):
            row = {k: record.aux.get(k) for k in K_STATS}
            self._file("k_stats", ("step", *K_STATS)).row({"step": record.step, **row})
        for name, count in record.fallbacks.items():
            counters = self._file("fallback_counters", ("step", "counter", "count"))
            counters.row({"step": record.step, "counter": name, "count": count})

    def _write_scalars(self, record: StepRecord, shared: Mapping[str, float]) -> None:
        if self._scalars is not None:
            for name, value in {"lr": record.lr, **shared, **record.aux}.items():
                if isinstance(value, (int, float)):
                    self._scalars.add_scalar(name, value, record.step)

    def _file(self, name: str, columns: tuple[str, ...]) -> AppendCsv:
        if name not in self._files:
            self._files[name] = AppendCsv(self._out / f"{name}.csv", columns)
        return self._files[name]

    def _say(self, record: StepRecord, toks_per_s: float, step_time_s: float, now_s: float) -> None:
        """One line a second at most on the console; the files have every row."""
        if now_s - self._said_at_s < 1.0 and record.step not in (self._start_step + 1, self._steps):
            return
        self._said_at_s = now_s
        print(  # noqa: T201 - the trainer's log is its standard output
            f"step {record.step}/{self._steps} loss {record.loss:.4f} lr {record.lr:.3g} grad_norm "
            f"{record.grad_norm:.3g} {toks_per_s:,.0f} tok/s {step_time_s * 1e3:.1f} ms/step",
            flush=True,
        )

    def summary(self) -> dict[str, Any]:
        """The run in numbers, for metrics.json."""
        n_steps = self.last.step - self._start_step if self.last else 0
        wall_s = self._last_at_s - self._began_s
        tokens = n_steps * self._rates.tokens_per_step
        times = sorted(self._step_times_s)
        toks_per_s = tokens / wall_s if wall_s > 0 and n_steps else None
        return {
            "step": self.last.step if self.last else self._start_step,
            "start_step": self._start_step,
            "steps_requested": self._steps,
            "loss_first": self.first.loss if self.first else None,
            "loss_last": self.last.loss if self.last else None,
            "tokens": tokens,
            "wall_s": wall_s,
            "toks_per_s": toks_per_s,
            "step_time_p50_s": statistics.median(times) if times else None,
            "step_time_p95_s": times[max(math.ceil(0.95 * len(times)) - 1, 0)] if times else None,
            **(self._rates.mfu(toks_per_s) if toks_per_s else {}),
        }

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            file.close()
        if self._scalars is not None:
            self._scalars.close()


def open_tensorboard(out: Path, start_step: int) -> Any:
    """A writer of TensorBoard scalars into `tb/`, which makes a reader forget what an earlier start wrote behind
    `start_step`, as the CSV files do. Raises SetupError where the package is missing."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise SetupError(
            "tensorboard=true needs the tensorboard package: install it, or set tensorboard=false (NSA_TB_DISABLE=1)"
        ) from None
    return SummaryWriter(str(out / "tb"), purge_step=start_step + 1)


def _round(value: Any) -> Any:
    return float(f"{value:.6g}") if isinstance(value, float) and math.isfinite(value) else value
