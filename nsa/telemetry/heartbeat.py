"""One JSON line per sign of life and rank: from the training loop, and from a thread while a step takes long."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from nsa.telemetry.files import json_safe

__all__ = ["Heartbeat"]


class Heartbeat:
    """Writes `heartbeat_rank{R}.jsonl`. Safe to call from any thread; each line is flushed.

    `step` is the last finished optimizer step and only the loop moves it: a beat shows that the process lives,
    not that it makes progress.
    """

    def __init__(
        self,
        out: Path,
        *,
        rank: int,
        beat_s: float,
        gpu_memory: Callable[[], dict[str, float]] = dict,
    ) -> None:
        self.path = out / f"heartbeat_rank{rank}.jsonl"
        self._rank, self._beat_s, self._step, self._gpu_memory = rank, beat_s, 0, gpu_memory
        self._lock = threading.Lock()
        _end_torn_line(self.path)
        self._handle = self.path.open("a", encoding="utf-8")
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="nsa-heartbeat", daemon=True)

    def start(self) -> None:
        """Begin to beat in the background."""
        self._thread.start()

    def go_on_from(self, step: int) -> None:
        """`step` was the last one finished when an earlier start ended."""
        with self._lock:
            self._step = step

    def write(self, msg: str, *, step: int | None = None, **fields: Any) -> None:
        """Append a record; a given `step` becomes the current one."""
        now = time.time()
        with self._lock:
            if self._handle.closed or (msg == "beat" and self._stop.is_set()):
                return
            if msg == "done":  # the last line: taking a run down may last longer than a beat
                self._stop.set()
            if step is not None:
                self._step = step
            record = {
                "ts": round(now, 6),
                "iso": datetime.fromtimestamp(now, timezone.utc).isoformat(timespec="milliseconds"),
                "pid": os.getpid(),
                "rank": self._rank,
                "step": self._step,
                "msg": msg,
                **self._gpu_memory(),
                **fields,
            }
            self._handle.write(json.dumps(json_safe(record)) + "\n")
            self._handle.flush()

    def _beat(self) -> None:
        while not self._stop.wait(self._beat_s):
            with contextlib.suppress(OSError):  # a disk that is full for a while costs beats, not all that follow
                self.write("beat")

    def close(self) -> None:
        """Stop the thread and close the file."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout=2.0)
        with self._lock, contextlib.suppress(OSError):
            self._handle.close()


def _end_torn_line(path: Path) -> None:
    """End a line that a killed process left incomplete, so that the next record starts a new line."""
    if not path.exists() or path.stat().st_size == 0:
        return
    with path.open("rb+") as handle:
        handle.seek(-1, os.SEEK_END)
        if handle.read(1) != b"\n":
            handle.write(b"\n")
