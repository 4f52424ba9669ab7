"""The process that draws the report of a validation that goes on; `validator.stages.so_far` starts it and asks it.

It is asked by a line on stdin and answers by one on stdout. What it knows it reads from the run folder, as everybody
else does, and what has ended it reads and judges once. It writes to no file but those in the folder that is its own.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from validator.folder import RunFolder
from validator.model.record import PhaseRecord
from validator.stages.disk import events_of, pending, phase_end, phase_record
from validator.stages.reporting import judge_latest, render
from validator.stages.so_far import DRAWINGS, DRAWN, NOTHING_OPEN

if TYPE_CHECKING:
    from validator.model.verdict import PhaseReport

__all__ = ["Drawing", "main"]

_PR_SET_PDEATHSIG = 1


class Drawing:
    """What is known of a validation that goes on, and its report so far."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._records: tuple[PhaseRecord, ...] = ()
        self._judged: dict[str, PhaseReport] = {}

    def draw(self) -> bool:
        """Write the report so far into the folder for drawings; False when no phase is open any more.

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
        render(folder, record, phases, finished=None, duration_s=None, into=folder.drawing)
        self._save_drawings()
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

    def _save_drawings(self) -> None:
        from validator.report.svg import save

        with suppress(OSError):  # the last report then draws them again
            save(self._folder.drawing / DRAWINGS)


def main() -> int:
    """Draw whenever a line comes, until there are no more. The arguments are the run folder and the runner's pid."""
    root, runner = Path(sys.argv[1]), int(sys.argv[2])
    _end_with(runner)
    # Nobody else's words may pass for an answer.
    with os.fdopen(os.dup(1), "w", encoding="utf-8", errors="replace") as answers:
        os.dup2(2, 1)
        drawing = Drawing(RunFolder.open(root))
        while sys.stdin.buffer.readline():
            answers.write(_answer(drawing) + "\n")
            answers.flush()
    return 0


def _answer(drawing: Drawing) -> str:
    from validator.observe.redact import redact

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
