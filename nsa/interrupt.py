"""Ctrl-C while a command still imports what it needs: torch takes seconds, and an interrupt there ends in a traceback
of library code, or is swallowed by it.
"""

from __future__ import annotations

import faulthandler
import os
import signal
from types import FrameType

__all__ = ["EXIT_CODE", "answer_ctrl_c", "answer_while_starting", "leave_at_ctrl_c"]

EXIT_CODE = 130


def leave_at_ctrl_c() -> None:
    """From here on Ctrl-C ends the process at once and without a word; nothing has been begun.

    Call it before the first slow import, and only where the module is the command that was typed. A Ctrl-C that is
    ignored (`nohup`, a job in the background) stays ignored.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _leave)


def answer_while_starting() -> None:
    """What the trainer answers until nsa.telemetry.signals does: Ctrl-C, and SIGUSR1, whose default is death. A start
    that hangs, in a rendezvous say, shows its stacks on stderr."""
    leave_at_ctrl_c()
    faulthandler.register(signal.SIGUSR1, all_threads=True)


def answer_ctrl_c() -> None:
    """From here on Ctrl-C is a KeyboardInterrupt again, which the command answers itself."""
    if signal.getsignal(signal.SIGINT) is _leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _leave(number: int, frame: FrameType | None) -> None:
    os._exit(EXIT_CODE)
