"""SIGUSR1 dumps every thread's stack and the run continues; SIGTERM and SIGINT request a stop after the step.

Python runs signal handlers between bytecodes of the main thread, which never come while it waits in a collective.
So the C-level handler only writes the signal's number to a pipe, and a dedicated thread acts on it.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

__all__ = ["SignalDesk"]

HANDLED = (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT)


class SignalDesk:
    """Listens from construction to `close`. `stop_signal` is the number of a stop that was asked for, else 0.

    A second SIGINT interrupts at once, for a user whose step does not end.
    """

    def __init__(self, out: Path, *, rank: int, on_dump: Callable[[Path], None] = lambda path: None) -> None:
        self._out, self._rank, self._on_dump = out, rank, on_dump
        self.stop_signal = 0
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        self._previous = {number: signal.signal(number, self._note) for number in HANDLED}
        self._previous_fd = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        if not faulthandler.is_enabled():
            with contextlib.suppress(RuntimeError, ValueError, OSError):  # stderr may be no real file
                faulthandler.enable()
        self._thread = threading.Thread(target=self._serve, name="nsa-signals", daemon=True)
        self._thread.start()

    def _note(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and self.stop_signal == signal.SIGINT and self._interrupted:
            raise KeyboardInterrupt
        if number == signal.SIGINT:
            self._interrupted = True

    _interrupted = False

    def _serve(self) -> None:
        while data := os.read(self._reader, 64):
            for number in data:
                if number == signal.SIGUSR1:
                    self._dump()
                elif number in (signal.SIGTERM, signal.SIGINT) and not self.stop_signal:
                    self.stop_signal = number
                    self._acknowledge()

    def _acknowledge(self) -> None:
        """Confirm the request: the step that is finished first may take long."""
        if self._rank == 0:
            again = "; once more interrupts at once" if self.stop_signal == signal.SIGINT else ""
            name = signal.Signals(self.stop_signal).name
            with contextlib.suppress(OSError, ValueError):  # a terminal that is gone must not cost the next signal
                print(f"[signal] {name}: the run stops after this step{again}", file=sys.stderr, flush=True)  # noqa: T201

    def _dump(self) -> None:
        path = self._free_path()
        try:
            with path.open("w", encoding="utf-8") as handle:
                threads = ", ".join(f"{t.name}={t.ident:#x}" for t in threading.enumerate() if t.ident)
                handle.write(f"rank {self._rank} pid {os.getpid()} threads {threads}\n\n")
                handle.flush()
                faulthandler.dump_traceback(handle, all_threads=True)
            self._on_dump(path)
        except OSError as error:
            print(f"[signal] stack dump failed: {error}", file=sys.stderr, flush=True)  # noqa: T201

    def _free_path(self) -> Path:
        """`stackdump_<unix>.txt`, with the rank after the time on every rank but 0, and never one that exists."""
        stamp = int(time.time())
        suffix = f"_rank{self._rank}" if self._rank else ""
        path = self._out / f"stackdump_{stamp}{suffix}.txt"
        while path.exists():
            stamp += 1
            path = self._out / f"stackdump_{stamp}{suffix}.txt"
        return path

    def close(self) -> None:
        """Restore the previous handlers."""
        signal.set_wakeup_fd(self._previous_fd)
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        # signal.signal cannot restore a handler of faulthandler's: it has to be registered again.
        forget: Any = faulthandler.unregister  # says whether there was one, whatever its stub says
        if forget(signal.SIGUSR1):
            faulthandler.register(signal.SIGUSR1, all_threads=True)
        os.close(self._writer)
        self._thread.join(timeout=2.0)
        os.close(self._reader)
