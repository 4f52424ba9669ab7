"""Long-winded tools (`collect_env`, `nvidia-smi`) write their files beside the run, in the background.

They run at the lowest priority while nothing is timed, have a time limit each, and end with this process whatever
happens to it.
"""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from validator.files import Tree
from validator.observe.redact import redact

__all__ = ["Capture", "start_captures"]

TIMEOUT_S = 60.0
_MAX_BYTES = 8 << 20

_WRAP = """
import ctypes, os, sys
try:
    ctypes.CDLL(None).prctl(1, 9)
except Exception:
    pass
os.nice(19)
os.execvp(sys.argv[1], sys.argv[1:])
"""
"""PR_SET_PDEATHSIG with SIGKILL survives exec: the tool cannot outlive the thread that waits for it."""


@dataclass(frozen=True)
class Capture:
    """A command whose standard output becomes a file."""

    file: str
    command: tuple[str, ...]


def start_captures(captures: Sequence[Capture], folder: Path, *, timeout_s: float = TIMEOUT_S) -> threading.Thread:
    """Run the commands one after the other in a background thread, each into `folder`/`file`.

    A command that fails or takes too long leaves a file that says so. The thread may be joined; it need not be.
    """
    worker = _Worker(tuple(captures), folder, timeout_s)
    thread = threading.Thread(target=worker.run, name="captures", daemon=True)
    atexit.register(worker.stop)
    thread.start()
    return thread


class _Worker:
    def __init__(self, captures: Sequence[Capture], folder: Path, timeout_s: float) -> None:
        self.captures = captures
        self.folder = folder
        self.timeout_s = timeout_s
        self.stopped = False
        self.process: subprocess.Popen[bytes] | None = None

    def run(self) -> None:
        try:
            for capture in self.captures:
                if not self.stopped:
                    self.write(capture.file, self.output(capture))
        finally:
            atexit.unregister(self.stop)

    def output(self, capture: Capture) -> str:
        """What the command prints, or a sentence on why it printed nothing."""
        try:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _WRAP, *capture.command],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            return f"{capture.command[0]} could not be started: {error.strerror}\n"
        self.process = process
        try:
            data, _ = process.communicate(timeout=self.timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            process.communicate()
            return f"{capture.command[0]} was stopped: it took more than {self.timeout_s:.0f} s\n"
        if process.returncode != 0 and not data:
            return f"{capture.command[0]} exited with code {process.returncode} and printed nothing\n"
        return redact(data[:_MAX_BYTES].decode("utf-8", "replace"))

    def write(self, file: str, text: str) -> None:
        """All or nothing; the run folder may be gone or full, which is nobody's fault here."""
        if self.stopped:
            return
        with suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True)
            with Tree(self.folder) as tree:
                tree.write(file, text, sync=False)

    def kill(self) -> None:
        if self.process is not None and self.process.poll() is None:
            with suppress(OSError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def stop(self) -> None:
        """At the interpreter's end: nothing may be left running."""
        self.stopped = True
        self.kill()
