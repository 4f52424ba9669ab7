"""The machine during a run, once a second, as a CSV: what the processor, the memory and the GPUs were doing.

Costs a few system calls per second. `ts` is UNIX time, so that samples can be laid beside heartbeats; a value that
cannot be had is an empty cell. The file is opened anew for each row, because a retried attempt renames the folder.
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from validator.files import Tree
from validator.observe.nvml import MIB, memory_mib, open_gpus
from validator.observe.strangers import Strangers
from validator.observe.xid import XidWatch

__all__ = ["COLUMNS", "GPU_COLUMNS", "Sampler", "sample_columns"]

COLUMNS: dict[str, str] = {
    "ts": "s",
    "host_cpu_pct": "%",
    "host_iowait_pct": "%",
    "load_1m": "",
    "host_mem_available_mib": "MiB",
    "disk_free_mib": "MiB",
    "xid": "",
}
"""Columns of the host, with their units. Percentages are of all cores together; `xid` is the code of the latest driver
event since the sample before, empty when there was none."""

GPU_COLUMNS: dict[str, str] = {
    "util_pct": "%",
    "mem_util_pct": "%",
    "mem_used_mib": "MiB",
    "power_w": "W",
    "temperature_c": "°C",
    "sm_clock_mhz": "MHz",
    "mem_clock_mhz": "MHz",
    "throttle_mask": "",
    "processes": "",
    "foreign_processes": "",
    "pcie_gen": "",
    "pcie_width": "lanes",
}
"""Columns of each GPU, written as `gpu<index>_<name>`. `throttle_mask` holds NVML's bits (`nvml.THROTTLE_REASONS`).
Which processes are foreign is written to `gpu_processes.jsonl` beside the table when they come."""


def sample_columns(gpus: list[int]) -> list[str]:
    """The header for a machine with GPUs of these indices."""
    return [*COLUMNS, *(f"gpu{index}_{name}" for index in gpus for name in GPU_COLUMNS)]


class Sampler:
    """Writes samples to `path` from `__enter__` to `__exit__`, in a thread of its own.

    Whatever goes wrong in sampling ends the sampling, never the run; `failure` then says why.
    """

    def __init__(
        self,
        path: Path,
        *,
        interval_s: float = 1.0,
        token: str | None = None,
        nvml: Any | None = None,
        proc: Path = Path("/proc"),
        kernel_log: Path = Path("/dev/kmsg"),
    ) -> None:
        """`token` marks the processes of the validation; without it every process on a GPU is foreign."""
        self.path = path
        self.interval_s = interval_s
        self.failure: str | None = None
        self._proc = proc
        self._nvml, self._handles = open_gpus(nvml)
        self._before = self._ticks()
        self._strangers = Strangers(token, path.with_name("gpu_processes.jsonl"), proc=proc)
        self._xids = XidWatch(kernel_log) if self._handles else None
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)

    def __enter__(self) -> Sampler:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join(timeout=5.0)
        if self._xids is not None:
            self._xids.close()
        if self._nvml is not None:
            with suppress(Exception):
                self._nvml.nvmlShutdown()

    def _run(self) -> None:
        due = time.monotonic()
        try:
            while not self._done.wait(max(0.0, due - time.monotonic())):
                self._write(self.sample())
                due = max(due + self.interval_s, time.monotonic())  # late samples are not made up for
        except Exception as error:  # noqa: BLE001 -- telemetry must never end a run
            self.failure = f"sampling stopped: {type(error).__name__}: {error}"

    def sample(self) -> list[float | int | None]:
        """One row, in the order of `sample_columns`."""
        row: list[float | int | None] = [round(time.time(), 3), *self._host()]
        for index, handle in self._handles.items():
            row += self._gpu(index, handle)
        return row

    def _write(self, row: list[float | int | None]) -> None:
        if not self.path.parent.is_dir():
            return  # between two attempts; the next one makes the folder anew
        line = ",".join("" if value is None else str(value) for value in row)
        with Tree(self.path.parent) as tree:
            head = "" if tree.has_file(self.path.name) else ",".join(sample_columns(list(self._handles))) + "\n"
            tree.append(self.path.name, f"{head}{line}\n".encode())

    def _host(self) -> list[float | int | None]:
        busy, waiting = self._shares()
        load: float | None = None
        with suppress(OSError):
            load = round(os.getloadavg()[0], 2)
        xid = None if self._xids is None else self._xids.latest()
        return [busy, waiting, load, self._available(), self._disk(), xid]

    def _ticks(self) -> list[int]:
        """user, nice, system, idle, iowait, … of all cores together since the machine started."""
        with suppress(OSError, ValueError, IndexError):
            first = (self._proc / "stat").read_text().split("\n", 1)[0].split()
            return [int(word) for word in first[1:9]]
        return []

    def _shares(self) -> tuple[float | None, float | None]:
        """Shares of the time since the last sample: busy, and idle while waiting for a disk."""
        now, before = self._ticks(), self._before
        self._before = now
        spent = [later - earlier for later, earlier in zip(now, before, strict=False)]
        total = sum(spent)
        if len(spent) < 5 or total <= 0:
            return None, None
        return round(100 * (1 - (spent[3] + spent[4]) / total), 1), round(100 * spent[4] / total, 1)

    def _available(self) -> float | None:
        with suppress(OSError, ValueError, IndexError):
            for line in (self._proc / "meminfo").read_text().splitlines():
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) // 1024
        return None

    def _disk(self) -> float | None:
        with suppress(OSError):
            found = os.statvfs(self.path.parent)
            return found.f_bavail * found.f_frsize // MIB
        return None

    def _gpu(self, index: int, handle: Any) -> list[float | int | None]:
        rates = self._ask("nvmlDeviceGetUtilizationRates", handle)
        power_mw = self._ask("nvmlDeviceGetPowerUsage", handle)
        used_mib = memory_mib(self._nvml, handle)[1]
        processes = self._ask("nvmlDeviceGetComputeRunningProcesses", handle)
        return [
            None if rates is None else rates.gpu,
            None if rates is None else rates.memory,
            None if used_mib is None else round(used_mib),
            None if power_mw is None else round(power_mw / 1000, 1),
            self._ask("nvmlDeviceGetTemperature", handle, 0),
            self._ask("nvmlDeviceGetClockInfo", handle, 1),
            self._ask("nvmlDeviceGetClockInfo", handle, 2),
            self._ask("nvmlDeviceGetCurrentClocksThrottleReasons", handle),
            None if processes is None else len(processes),
            None if processes is None else self._strangers.count(index, processes, self._name),
            self._ask("nvmlDeviceGetCurrPcieLinkGeneration", handle),
            self._ask("nvmlDeviceGetCurrPcieLinkWidth", handle),
        ]

    def _name(self, pid: int) -> str:
        found = self._ask("nvmlSystemGetProcessName", pid)
        return found.decode("utf-8", "replace") if isinstance(found, bytes) else str(found or "")

    def _ask(self, name: str, *arguments: Any) -> Any:
        try:
            return getattr(self._nvml, name)(*arguments)
        except Exception:  # noqa: BLE001 -- NVMLError, or a binding without this question
            return None
