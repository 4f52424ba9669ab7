"""Where the time before the first step goes."""

from __future__ import annotations

import multiprocessing
import os
import time
from pathlib import Path

__all__ = ["StartClock", "process_age_s"]


def process_age_s() -> float | None:
    """Seconds since this process was started, the interpreter's start included; None without /proc. Of a process that
    was forked, since the one was that imported for it."""
    forked_from = multiprocessing.parent_process()
    began = Path(f"/proc/{forked_from.pid if forked_from else 'self'}/stat")
    try:
        # The name in parentheses may hold spaces; the start, in ticks since boot, is the 20th field after it.
        ticks = int(began.read_text(encoding="utf-8").rpartition(")")[2].split()[19])
        return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError, ValueError, IndexError):
        return None


class StartClock:
    """Splits the time since the process began into named parts, in the order in which they end."""

    def __init__(self) -> None:
        self._at_s = time.perf_counter()
        age_s = process_age_s()
        self._parts = [] if age_s is None else [("imports", age_s)]

    def lap(self, name: str) -> None:
        """Everything since the last lap was `name`."""
        now_s = time.perf_counter()
        self._parts.append((name, now_s - self._at_s))
        self._at_s = now_s

    def __str__(self) -> str:
        """``7.9 s before the first step: imports 3.1, process 1.2, …``"""
        total_s = sum(seconds for _, seconds in self._parts)
        return f"{total_s:.1f} s before the first step: " + ", ".join(f"{n} {s:.1f}" for n, s in self._parts)
