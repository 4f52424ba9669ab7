"""How commands end: the exit codes, and the errors that carry one."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path
from typing import Any, ClassVar


class ExitCode(IntEnum):
    """The exit codes of every command. Their names are the decisions, as result.json and JSON outputs write them."""

    GO = 0
    NO_GO = 1
    USAGE = 2
    """Wrong arguments, a wrong runbook, or a folder that is not what the command needs."""
    INCONCLUSIVE = 3
    UNABLE = 4
    """The machine refuses, or an internal error: there is no decision."""
    INTERRUPTED = 130
    """By Ctrl-C or SIGTERM, as shells count it: 128 + SIGINT."""

    def __str__(self) -> str:
        return str(self.value)  # as from Python 3.11 on

    @classmethod
    def of(cls, decision: str) -> ExitCode:
        """The code of a decision. One in progress counts as inconclusive, never as success."""
        return cls.INCONCLUSIVE if decision == "IN_PROGRESS" else cls[decision]


class UserError(Exception):
    """What the user has to change, or the machine does not allow; the message names it, its value and the fix.

    Commands print the message and end with `exit_code`.
    """

    exit_code: ClassVar[ExitCode] = ExitCode.USAGE

    def details(self) -> dict[str, Any]:
        """More for `--json`, beside the message."""
        return {}


class FolderError(UserError):
    """A folder that is not a run folder, or one that cannot be read. The message says what to do."""


class Unable(UserError):
    """The machine or the runner cannot do it. The message says what is missing or who is in the way."""

    exit_code = ExitCode.UNABLE


@contextmanager
def disk_errors(folder: Path, *, command: str) -> Iterator[None]:
    """Turn what the disk refuses into a sentence; everything that was started has been ended by then.

    Raises:
        Unable: naming the file, the reason, and the command to continue with.
    """
    try:
        yield
    except OSError as error:
        named = error.filename if isinstance(error.filename, str) else str(folder)
        few_files = error.errno in (errno.EMFILE, errno.ENFILE)
        fix = "Raise the limit of open files (`ulimit -n`)" if few_files else "Free space or repair the disk"
        raise Unable(
            f"results cannot be written: {error.strerror or error} ({named}); nothing is left running. "
            f"{fix}, then continue with: {command}"
        ) from error
