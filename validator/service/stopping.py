"""Stopping a validation from outside: the same requests as by Ctrl-C, sent to its runner and to no other process.

A folder names its runner by pid, start and host, and may have come from anywhere. So a process counts as the runner
only while it also has the folder's journal open, and it is held by a handle before that is looked at: the kernel
cannot give its pid to another one meanwhile.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Literal

from validator.errors import Unable
from validator.runs.folder import RunFolder, Runner
from validator.runs.replay import events_of, last_runner
from validator.system.processes import catches, proc_fields

StopHow = Literal["stop", "halt"]
"""`stop` lets the trainer checkpoint within its grace period; `halt` waits for nothing."""

_BETWEEN_S = 0.5
"""Between two requests: signals of one number that wait together count as one."""


def works_on(runner: Runner, folder: RunFolder) -> bool:
    """Whether the runner lives on this machine and has the folder's journal open for writing.

    To read it is not enough: this server does, and a folder that was handed in may name the server as its runner.
    """
    if not runner.alive():
        return False
    with suppress(OSError), folder.tree() as tree:
        journal = tree.stat(folder.journal.name)
        with os.scandir(f"/proc/{runner.pid}/fd") as opened:
            for entry in opened:
                with suppress(OSError):  # closed meanwhile
                    if os.path.samestat(Path(entry.path).stat(), journal) and _writes(runner.pid, entry.name):
                        return True
    return False


def _writes(pid: int, fd: str) -> bool:
    """Whether a process has opened a file for more than reading."""
    flags = dict(proc_fields(f"/proc/{pid}/fdinfo/{fd}")).get("flags", "0")
    return int(flags, 8) & os.O_ACCMODE != os.O_RDONLY


def request_stop(folder: RunFolder, how: StopHow) -> Runner:
    """Ask the runner of a folder to end: by one SIGTERM, or to `halt` by a second one, which skips every grace period.

    Returns the runner that was asked.

    Raises:
        Unable: when no runner works on the folder, when it does not catch signals (yet, or any more), or it belongs
            to another user.
    """
    runner = last_runner(folder, events_of(folder))
    try:
        handle = os.pidfd_open(runner.pid)
    except OSError as error:
        raise Unable(f"{folder.header.run_id} is not running here: process {runner.pid}: {error.strerror}") from error
    try:
        if not works_on(runner, folder):
            raise Unable(f"{folder.header.run_id} is not running here: no process works on its journal")
        if not catches(runner.pid, signal.SIGTERM):
            raise Unable(f"{folder.header.run_id} is starting or ending, so that a signal would kill it; try again")
        signal.pidfd_send_signal(handle, signal.SIGTERM)
        if how == "halt":
            time.sleep(_BETWEEN_S)
            if works_on(runner, folder) and catches(runner.pid, signal.SIGTERM):  # it may be ending by now
                signal.pidfd_send_signal(handle, signal.SIGTERM)
    except ProcessLookupError:
        pass  # it ended meanwhile, which is what was asked
    except PermissionError as error:
        raise Unable(f"process {runner.pid} belongs to another user, who has to stop {folder.header.run_id}") from error
    finally:
        os.close(handle)
    return runner
