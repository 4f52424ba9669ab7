"""The live report: that of a running validation, drawn by another process.

Rendering forty runs takes seconds, on a busy machine many, and the runner must supervise runs meanwhile. So a separate
process renders (`main` below), at a lower priority than everything that is measured. It writes to its own folder, and
the runner alone moves the files into place. The runner ends that process before it writes the last report, so a late
rendering cannot replace that one, whichever of the two is killed at whatever moment.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from validator.files import sync_folder
from validator.model.record import PhaseRecord
from validator.model.verdict import PhaseReport
from validator.pipeline.evaluate import judge_latest
from validator.pipeline.write import render
from validator.report.figure import recall, save
from validator.runs.folder import RENDERINGS, RunFolder
from validator.runs.replay import RunEnd, events_of, pending, phase_end, phase_record
from validator.secrets.redact import redact
from validator.startup import call_argv

DRAWN = "drawn"
NOTHING_OPEN = "nothing open"
"""Answers of the process that draws; any other is the sentence that says why there is no report."""

DRAWINGS = "drawings.json"
"""Beside the renderings: the charts drawn so far, so that the last report draws only what is new."""

_INTERVAL_S = 2.0
"""Minimum time between two in-progress reports."""

_SETTLED_S = 1.0
"""A phase that is over sooner needs no report that says it is running. A longer one has it written during its run, not
before it: a machine that is paid for by the minute waits for nothing."""

_LOWEST_PRIORITY = 19

_END_S = 5.0
"""Patience with the end of a killed process: one that hangs in the kernel must not keep the last report waiting."""


class LiveReport:
    """The in-progress report of one runner. Nothing here waits for a drawing."""

    def __init__(self, folder: RunFolder, *, note: Callable[[str], None], program: Sequence[str] | None = None) -> None:
        """`note` receives why a report cannot be written; `program` replaces the one that draws."""
        self._folder = folder
        self._note = note
        self._program = program or (
            *call_argv("validator.pipeline.live_report", "main"),
            str(folder.root),
            str(os.getpid()),
        )
        self._process: subprocess.Popen[bytes] | None = None
        self._drawing = False
        self._heard = b""
        self._due_s: float | None = None
        self._shown_s = float("-inf")

    def schedule(self) -> None:
        """A phase has started: draw a report once it has lasted for a moment."""
        self._due_s = max(time.monotonic() + _SETTLED_S, self._shown_s + _INTERVAL_S)

    def unschedule(self) -> None:
        """The phase is over: no report is due any more."""
        self._due_s = None

    def poll(self) -> None:
        """Show what has been drawn and ask for what is due; called again and again during a run."""
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
            os.setpriority(os.PRIO_PROCESS, process.pid, _LOWEST_PRIORITY)
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
        try:
            for name in RENDERINGS:
                (self._folder.drawing / name).replace(self._folder.root / name)
        except OSError as error:  # the validation matters more than its live report
            self._cannot(error.strerror or str(error))
        sync_folder(self._folder.root)
        self._shown_s = time.monotonic()

    def _cannot(self, why: str) -> None:
        self._note(f"the live report cannot be written: {why}")

    def _end(self) -> None:
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


# The process that draws. It is asked by a line on stdin and answers by one on stdout. It reads the run folder, as every
# reader does; a phase that has ended is read and judged once. It writes to no file but those in the folder that is its
# own.

_PR_SET_PDEATHSIG = 1


class Drawing:
    """What is known of a running validation, and its live report."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._records: tuple[PhaseRecord, ...] = ()
        self._judged: dict[str, PhaseReport] = {}

    def draw(self) -> bool:
        """Write the live report into the folder for drawings; False when no phase is open any more.

        The runs of the phase that is under way are left out: their files are being written.
        """
        self._catch_up()
        folder, ended = self._folder, len(self._records)
        if ended == len(folder.header.runbook.phases):
            return False
        running = PhaseRecord(phase=folder.header.runbook.phases[ended], state="running")
        record = pending(folder, (*self._records, running))
        waiting = [judge_latest(folder, (*self._records, one), self._judged) for one in record.phases[ended:]]
        phases = (*self._judged.values(), *waiting)
        render(folder, record, phases, RunEnd(), into=folder.drawing)
        with suppress(OSError):  # the last report then draws them again
            save(self._folder.drawing / DRAWINGS)
        return True

    def _catch_up(self) -> None:
        """Read and judge the phases that have ended since, in order, as their runner does."""
        events = events_of(self._folder)
        for phase in self._folder.header.runbook.phases[len(self._records) :]:
            if phase_end(events, phase.id) is None:
                return
            record = phase_record(self._folder, phase, events, alive=True)
            self._judged[phase.id] = judge_latest(self._folder, (*self._records, record), self._judged)
            self._records = (*self._records, record)


def main() -> int:
    """Draw whenever a line comes, until there are no more. The arguments are the run folder and the runner's pid."""
    root, runner = Path(sys.argv[1]), int(sys.argv[2])
    _end_with(runner)
    # What libraries print must not be read as an answer.
    with os.fdopen(os.dup(1), "w", encoding="utf-8", errors="replace") as answers:
        os.dup2(2, 1)
        drawing = Drawing(RunFolder.open(root))
        while sys.stdin.buffer.readline():
            answers.write(_answer(drawing) + "\n")
            answers.flush()
    return 0


def _answer(drawing: Drawing) -> str:
    try:
        return DRAWN if drawing.draw() else NOTHING_OPEN
    except OSError as error:
        return error.strerror or str(error)
    except Exception as error:  # noqa: BLE001 -- whatever it is, the next phase's report is worth another try
        return redact(" ".join(f"{type(error).__name__}: {error}".split()))


def _end_with(runner: int) -> None:
    """Let the kernel end this process when its runner is gone, also when that was killed."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != runner:
        sys.exit(0)
