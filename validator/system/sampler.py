"""The machine during a run, once a second, as a CSV: the load of CPU, memory and GPUs.

Costs a few system calls per second; errors of links are counted before and after the run alone (`counters.py`). `ts`
is UNIX time, so that samples can be joined with heartbeats; a value that is not available is an empty cell. The file is
opened for each row, because a retried attempt renames the folder.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from validator.files import Tree
from validator.system.counters import ErrorCounters
from validator.system.gpu_facts import GpuFacts, use_of
from validator.system.host import load_1m, meminfo, memory_left
from validator.system.nvml import MIB, Gpus
from validator.system.processes import TICK_S, OtherProcesses, read_proc_text
from validator.system.sysfs import SYS
from validator.system.xid import XidWatch

COLUMNS = (
    *("ts", "host_cpu_pct", "host_iowait_pct", "host_other_cpu_pct", "load_1m"),
    *("host_mem_available_mib", "host_run_mem_mib", "host_run_ranks", "disk_free_mib", "xid"),
)
"""Columns of the host. Percentages are of all cores together; `host_other_cpu_pct` is what programs use that do not
belong to the validation. Memory is available within the limits of a container, too; `host_run_mem_mib` is what the
run's processes hold (`OtherProcesses.run_memory`), `host_run_ranks` how many of its ranks are alive. `xid` is the
code of the gravest driver event since the sample before, empty when there was none."""

GPU_COLUMNS = (
    *("util_pct", "mem_util_pct", "mem_used_mib", "power_w", "temperature_c", "sm_clock_mhz", "mem_clock_mhz"),
    *("throttle_mask", "processes", "foreign_processes", "pcie_gen", "pcie_width"),
)
"""Columns of each GPU, written as `gpu<index>_<name>`. `throttle_mask` holds NVML's bits
(`gpu_facts.THROTTLE_REASONS`). `foreign_processes` counts those that are not the validation's; `gpu_processes.jsonl` in
the same folder names them."""


def sample_columns(gpus: Sequence[int]) -> list[str]:
    """The header for a machine with GPUs of these indices."""
    return [*COLUMNS, *(f"gpu{index}_{name}" for index in gpus for name in GPU_COLUMNS)]


class Sampler:
    """Writes samples to `path` while its context is open, in its own thread.

    An error ends the sampling, never the run; `failure` then says why.
    """

    def __init__(
        self,
        path: Path,
        *,
        interval_s: float = 1.0,
        token: str | None = None,
        nvml: Any | None = None,
        proc: Path = Path("/proc"),
        sys: Path = SYS,
        kernel_log: Path = Path("/dev/kmsg"),
    ) -> None:
        """`token` marks the processes of the validation; without it only descendants of this process are its own."""
        self.path = path
        self.interval_s = interval_s
        self.failure: str | None = None
        self.use: tuple[bool, bool] | None = None
        """`use_of` the GPUs at the latest sample; None where there are none."""
        self._proc = proc
        self._gpus = Gpus.open(nvml=nvml)
        self._before = self._ticks()
        self._others = OtherProcesses(token, path.with_name("gpu_processes.jsonl"))
        self._others.own_cpu_seconds()
        self._xids = XidWatch(kernel_log) if self._gpus else None
        if self._xids is not None and self._xids.blind:
            self._gpus.watch_events()
        self._counters = ErrorCounters(self._gpus, sys=sys)
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)

    def __enter__(self) -> Sampler:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._done.set()
        self._thread.join(timeout=5.0)
        with suppress(OSError):  # a full disk: the run itself says so
            self._counters.write(self.path.parent)
        if self._xids is not None:
            self._xids.close()
        self._gpus.close()

    def _run(self) -> None:
        due = time.monotonic()
        try:
            while not self._done.wait(max(0.0, due - time.monotonic())):
                self._write(self.sample())
                due = max(due + self.interval_s, time.monotonic())  # a late sample is not made up for
        except Exception as error:  # noqa: BLE001 -- telemetry must never end a run
            self.failure = f"sampling stopped: {type(error).__name__}: {error}"

    def sample(self) -> list[float | int | None]:
        """One row, in the order of `sample_columns`."""
        row: list[float | int | None] = [round(time.time(), 3), *self._host()]
        states = self._gpus.states()
        self.use = use_of(states) if states else None
        for gpu in states:
            row += self._gpu(gpu)
        return row

    def _write(self, row: list[float | int | None]) -> None:
        if not self.path.parent.is_dir():
            return  # between two attempts; the next one makes the folder again
        line = ",".join("" if value is None else str(value) for value in row)
        with Tree(self.path.parent) as tree:
            head = "" if tree.has_file(self.path.name) else ",".join(sample_columns(self._gpus.indices)) + "\n"
            tree.append(self.path.name, f"{head}{line}\n".encode())

    def _host(self) -> list[float | int | None]:
        busy, waiting, others = self._shares()
        load = load_1m()
        memory = meminfo(self._proc)
        known = (memory.get("MemAvailable"), memory_left(self._proc))
        available = min((one for one in known if one is not None), default=None)
        held = self._others.run_memory(memory.get("Shmem"))
        return [
            busy,
            waiting,
            others,
            None if load is None else round(load, 2),
            None if available is None else available // MIB,
            None if held is None else round(held / MIB, 1),
            self._others.run_ranks(),
            self._disk(),
            self._xid(),
        ]

    def _xid(self) -> int | None:
        """By the kernel log; where it may not be read, by the driver, which names one event at a time."""
        if self._xids is None:
            return None
        return self._gpus.next_xid() if self._xids.blind else self._xids.latest()

    def _ticks(self) -> list[int]:
        """user, nice, system, idle, iowait, … of all cores together since the machine started."""
        first = read_proc_text(self._proc / "stat").partition("\n")[0].split()
        with suppress(ValueError):
            return [int(word) for word in first[1:9]]
        return []

    def _shares(self) -> tuple[float | None, float | None, float | None]:
        """Shares of the time since the last sample: busy, idle while waiting for a disk, used by other processes."""
        now, before = self._ticks(), self._before
        own_s = self._others.own_cpu_seconds()
        self._before = now
        spent = [later - earlier for later, earlier in zip(now, before, strict=False)]
        total = sum(spent)
        if len(spent) < 5 or total <= 0:
            return None, None, None
        programs_s = sum(spent[:3]) * TICK_S  # not interrupts, nor what the hypervisor took
        others = None if own_s is None else round(100 * max(0.0, programs_s - own_s) / (total * TICK_S), 1)
        return round(100 * (1 - (spent[3] + spent[4]) / total), 1), round(100 * spent[4] / total, 1), others

    def _disk(self) -> float | None:
        with suppress(OSError):
            found = os.statvfs(self.path.parent)
            return found.f_bavail * found.f_frsize // MIB
        return None

    def _gpu(self, gpu: GpuFacts) -> list[float | int | None]:
        processes = self._gpus.compute_processes(gpu.index)
        others = None if processes is None else self._others.count(gpu.index, processes, self._gpus.process_name)
        return [
            gpu.utilization_pct,
            gpu.memory_utilization_pct,
            None if gpu.memory_used_mib is None else round(gpu.memory_used_mib),
            None if gpu.power_w is None else round(gpu.power_w, 1),
            gpu.temperature_c,
            gpu.sm_clock_mhz,
            gpu.mem_clock_mhz,
            gpu.throttle_mask,
            None if processes is None else len(processes),
            others,
            gpu.pcie_gen,
            gpu.pcie_width,
        ]
