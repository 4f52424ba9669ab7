"""The report of a validation that goes on, drawn beside it.

To draw what forty runs left takes seconds, on a busy machine many, and whoever draws looks after no run meanwhile. So
a process of its own does it (`validator.stages.drawing`), behind everything that is measured. It writes to a folder of
its own, and the runner alone moves what lies there into place. The runner ends that process before it writes the last
report, so nothing drawn late can replace that one, whichever of the two is killed at whatever moment.
"""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from validator.folder import RENDERINGS, RunFolder
from validator.python import calling

if TYPE_CHECKING:
    import subprocess

__all__ = ["DRAWINGS", "DRAWN", "NOTHING_OPEN", "SoFar"]

DRAWN = "drawn"
NOTHING_OPEN = "nothing open"
"""Answers of the process that draws; any other is the sentence that says why there is no report."""

DRAWINGS = "drawings.json"
"""Beside the renderings: the charts drawn so far, so that the last report draws only what is new."""

_APART_S = 2.0
"""Least time between two in-progress reports."""

_SETTLED_S = 1.0
"""A phase that is over sooner needs no report that says it is running. One that goes on has it written beside its run,
not before it: a machine that is paid for by the minute waits for nothing."""

_LEAST_PRIORITY = 19

_END_S = 5.0
"""Patience with the end of a killed process: one that hangs in the kernel must not keep the last report waiting."""


class SoFar:
    """The in-progress report of one runner. Nothing here waits for a drawing."""

    def __init__(self, folder: RunFolder, *, say: Callable[[str], None], program: Sequence[str] | None = None) -> None:
        """`say` is told why a report cannot be written; `program` replaces the one that draws."""
        self._folder = folder
        self._say = say
        self._program = program or (*calling("validator.stages.drawing", "main"), str(folder.root), str(os.getpid()))
        self._process: subprocess.Popen[bytes] | None = None
        self._drawing = False
        self._heard = b""
        self._due_s: float | None = None
        self._shown_s = float("-inf")

    def later(self) -> None:
        """A phase has begun: have one report drawn when it has gone on for a moment."""
        self._due_s = max(time.monotonic() + _SETTLED_S, self._shown_s + _APART_S)

    def never_mind(self) -> None:
        """The phase is over: none needs to be begun any more."""
        self._due_s = None

    def look(self) -> None:
        """Show what has been drawn and ask for what is due; called again and again while a run goes on."""
        if self._drawing:
            self._take()
        if not self._drawing and self._due_s is not None and time.monotonic() >= self._due_s:
            self._due_s = None
            self._ask()

    def close(self) -> None:
        """End the process, whatever it is doing. Nothing that it draws is shown from here on; closing twice is
        harmless."""
        self._due_s = None
        began = self._process is not None
        self._end()
        if began:
            from validator.report.svg import recall

            recall(self._folder.drawing / DRAWINGS)
        shutil.rmtree(self._folder.drawing, ignore_errors=True)

    def _ask(self) -> None:
        if self._process is not None and self._process.poll() is not None:
            self._end()
        try:
            process = self._process = self._process or self._start()
            assert process.stdin is not None, "it is a pipe"
            process.stdin.write(b"\n")
        except OSError as error:
            self._end()
            self._cannot(error.strerror or str(error))
        else:
            self._drawing = True

    def _start(self) -> subprocess.Popen[bytes]:
        import subprocess

        shutil.rmtree(self._folder.drawing, ignore_errors=True)  # a runner that was killed may have left it
        self._folder.drawing.mkdir()
        process = subprocess.Popen(
            self._program,
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # a Ctrl-C of the terminal is the runner's to answer
        )
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, process.pid, _LEAST_PRIORITY)
        assert process.stdout is not None, "it is a pipe"
        os.set_blocking(process.stdout.fileno(), False)
        return process

    def _take(self) -> None:
        """Show what was drawn, if it is ready."""
        answer = self._answer()
        if answer is None:
            return
        self._drawing = False
        if answer == DRAWN:
            self._show()
        elif answer != NOTHING_OPEN:
            self._cannot(answer)

    def _answer(self) -> str | None:
        assert self._process is not None, "asked before"
        assert self._process.stdout is not None, "it is a pipe"
        try:
            data = os.read(self._process.stdout.fileno(), 65536)
        except BlockingIOError:
            return None
        if not data:
            self._end()
            return "the process that draws it has ended"
        self._heard += data
        line, newline, rest = self._heard.partition(b"\n")
        if not newline:
            return None
        self._heard = rest
        return line.decode(errors="replace")

    def _show(self) -> None:
        """Move the files into place; the first is result.json, of which the others are renderings."""
        from validator.files import sync_folder

        try:
            for name in RENDERINGS:
                (self._folder.drawing / name).replace(self._folder.root / name)
        except OSError as error:  # the phases themselves are worth more than a look at them
            self._cannot(error.strerror or str(error))
        sync_folder(self._folder.root)
        self._shown_s = time.monotonic()

    def _cannot(self, why: str) -> None:
        self._say(f"the report so far cannot be written: {why}")

    def _end(self) -> None:
        import subprocess

        process, self._process = self._process, None
        self._drawing, self._heard = False, b""
        if process is None:
            return
        if process.poll() is None:
            with suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=_END_S)
