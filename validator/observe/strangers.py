"""Which processes on a GPU do not belong to the validation: a measurement beside one of them is void."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from validator.files import Tree
from validator.observe.nvml import MIB

__all__ = ["Strangers"]

_VARIABLE = "VALIDATOR_RUN_TOKEN"
_MOST_GENERATIONS = 64


class Strangers:
    """Counts foreign processes and names each in `path`, a line when it comes to a GPU.

    A process is the validation's own if its environment carries the token, or if it descends from this process. One
    that this machine's process table does not hold lives in another PID namespace: it counts only when the processes
    that are known show that the numbers NVML gives are those of this namespace.
    """

    def __init__(self, token: str | None, path: Path, *, proc: Path = Path("/proc")) -> None:
        self._needle = None if token is None else f"{_VARIABLE}={token}".encode()
        self._path = path
        self._proc = proc
        self._own: dict[tuple[int, str], bool] = {}
        self._present: dict[int, set[int]] = {}
        self._same_namespace = False

    def count(self, gpu: int, processes: Sequence[Any], name: Callable[[int], str]) -> int:
        """How many of a GPU's processes (`pid`, `usedGpuMemory` in bytes) are foreign; new ones are written down."""
        living = {process.pid: self._started(process.pid) for process in processes}
        mine = {pid for pid, started in living.items() if started is not None and self._is_own(pid, started)}
        self._same_namespace |= bool(mine)
        foreign = {
            pid for pid, started in living.items() if pid not in mine and (started is not None or self._same_namespace)
        }
        for process in processes:
            if process.pid in foreign - self._present.get(gpu, set()):
                self._write(gpu, process, name(process.pid))
        self._present[gpu] = foreign
        return len(foreign)

    def _write(self, gpu: int, process: Any, name: str) -> None:
        used = getattr(process, "usedGpuMemory", None)
        line = {
            "ts": round(time.time(), 3),
            "gpu": gpu,
            "pid": process.pid,
            "name": name or self._command(process.pid) or "unknown",
            "used_mib": None if used is None else round(used / MIB),
        }
        with suppress(OSError), Tree(self._path.parent) as tree:
            tree.append(self._path.name, f"{json.dumps(line)}\n".encode())

    def _is_own(self, pid: int, started: str) -> bool:
        known = self._own.get((pid, started))
        if known is None:
            known = self._own[pid, started] = self._has_token(pid) or self._descends(pid)
        return known

    def _has_token(self, pid: int) -> bool:
        if self._needle is None:
            return False
        with suppress(OSError):
            return self._needle in (self._proc / str(pid) / "environ").read_bytes().split(b"\0")
        return False

    def _descends(self, pid: int) -> bool:
        here = os.getpid()
        for _ in range(_MOST_GENERATIONS):
            if pid == here:
                return True
            fields = self._stat(pid)
            if len(fields) < 2 or not fields[1].isdigit() or int(fields[1]) <= 1:
                return False
            pid = int(fields[1])
        return False

    def _started(self, pid: int) -> str | None:
        """When the process was started, in ticks since boot: with the pid it names one process for good."""
        fields = self._stat(pid)
        return fields[19] if len(fields) > 19 else None

    def _stat(self, pid: int) -> list[str]:
        """Fields of /proc/PID/stat from the state on; the name before them may hold anything."""
        with suppress(OSError):
            return (self._proc / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
        return []

    def _command(self, pid: int) -> str:
        with suppress(OSError):
            return (self._proc / str(pid) / "comm").read_text(errors="replace").strip()
        return ""
