"""The effects of a running validation: machine lock, journal, guardian, signals, terminal.

They are opened together and closed in reverse order, so that nothing outlives a run however it ends.
"""

from __future__ import annotations

import errno
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from validator.folder import RunFolder
from validator.model.plan import Plan
from validator.model.runbook import Runbook
from validator.stages.disk import events_of, last_runner
from validator.stages.past import Past, read_past
from validator.stages.so_far import SoFar

if TYPE_CHECKING:
    from validator.execute.cancel import CancelToken
    from validator.execute.guardian import Guardian
    from validator.execute.journal import Journal
    from validator.execute.lock import MachineLock
    from validator.report.terminal import Observer

__all__ = [
    "Session",
    "Unable",
    "being_run",
    "disk_errors",
    "locked",
    "open_session",
    "require_hardware",
    "require_idle",
    "working_folder",
]


class Unable(Exception):
    """The machine or the runner cannot do it: exit code 4. The message says what is missing or who is in the way."""


@dataclass
class Session:
    """The effects of a running validation, opened and closed by `open_session`."""

    folder: RunFolder
    runbook: Runbook
    plan: Plan
    past: Past
    journal: Journal
    observer: Observer
    cancel: CancelToken
    guardian: Guardian
    token: str
    fail_fast: bool
    began: float
    so_far: SoFar


def require_hardware(runbook: Runbook) -> None:
    """Raises Unable with a sentence when the machine lacks what the runbook was written for."""
    if runbook.hardware.gpus == 0:
        return
    from validator.observe import missing_hardware

    missing = missing_hardware(runbook)
    if missing is not None:
        raise Unable(missing)


def require_idle(folder: RunFolder) -> None:
    """Raises Unable, naming it, when a runner still works on the folder."""
    if last_runner(folder, events_of(folder)).alive():
        raise Unable(being_run(folder))


@contextmanager
def working_folder(folder: RunFolder) -> Iterator[None]:
    """Work where the validation was begun: commands may name relative paths. Its interpreter must be there as well.

    Raises:
        Unable: when either is gone.
    """
    header = folder.header
    if not Path(header.python).exists():
        raise Unable(f"{header.python}, which ran the trainer, is gone; restore it, or begin anew with `validator run`")
    here = Path.cwd()
    try:
        os.chdir(header.cwd)
    except OSError as error:
        raise Unable(
            f"the folder {header.cwd}, where the validation was begun, cannot be entered: {error.strerror}; "
            "restore it, or begin anew with `validator run`"
        ) from error
    try:
        yield
    finally:
        os.chdir(here)


@contextmanager
def disk_errors(folder: Path, *, command: str) -> Iterator[None]:
    """Turn what the disk refuses into a sentence; everything that was started has been ended by then.

    Raises:
        Unable: naming the file, the reason, and the command to go on with.
    """
    try:
        yield
    except OSError as error:
        named = error.filename if isinstance(error.filename, str) else str(folder)
        few_files = error.errno in (errno.EMFILE, errno.ENFILE)
        fix = "Raise the limit of open files (`ulimit -n`)" if few_files else "Free space or repair the disk"
        raise Unable(
            f"results cannot be written: {error.strerror or error} ({named}); nothing is left running. "
            f"{fix}, then go on with: {command}"
        ) from error


@contextmanager
def locked(runbook: Runbook, *, enabled: bool) -> Iterator[MachineLock]:
    """Hold the machine (its GPUs, or its CPU) for the length of the context, so that no two validations disturb each
    other's timings. With `enabled` false nothing is held.

    Raises:
        Unable: naming the holder.
    """
    from validator.execute.lock import LockHeld, MachineLock, lock_names
    from validator.observe.redact import redact

    names = lock_names(runbook.hardware.gpus) if enabled else ()
    lock = MachineLock(names, redact=redact)
    try:
        lock.acquire()
    except LockHeld as error:
        raise Unable(str(error)) from error
    except OSError as error:
        raise Unable(f"the machine's lock cannot be taken: {error}; fix it or pass --no-lock") from error
    try:
        yield lock
    finally:
        lock.release()


@contextmanager
def open_session(
    folder: RunFolder, *, runbook: Runbook, plan: Plan, quiet: bool, fail_fast: bool, resume: bool = False
) -> Iterator[Session]:
    """Journal, guardian, signals and terminal of one validation, closed in reverse order whatever happens.

    With `resume`, what earlier runners left is read once the journal is held, and their processes are ended.

    Raises:
        Unable: when another process works on the same run folder.
    """
    from validator.execute.cancel import CancelToken, cancel_on_signals
    from validator.execute.guardian import Guardian
    from validator.report.terminal import make_observer

    token = secrets.token_hex(16)
    cancel = CancelToken()
    try:
        with _journal(folder) as journal, cancel_on_signals(cancel), make_observer(quiet=quiet) as observer:
            past = read_past(folder) if resume else Past()
            _end_leftovers(past, journal, observer)
            with (
                Guardian.start(token=token, report=folder.root / "guardian.txt") as guardian,
                closing(SoFar(folder, say=observer.note)) as so_far,
            ):
                yield Session(
                    folder=folder,
                    runbook=runbook,
                    plan=plan,
                    past=past,
                    journal=journal,
                    observer=observer,
                    cancel=cancel,
                    guardian=guardian,
                    token=token,
                    fail_fast=fail_fast,
                    began=time.monotonic() - past.worked_s,
                    so_far=so_far,
                )
    finally:
        cancel.close()


def _journal(folder: RunFolder) -> Journal:
    from validator.execute.journal import Journal, JournalBusy
    from validator.observe.redact import redact

    try:
        return Journal.open(folder.journal, redact=redact)
    except JournalBusy as error:
        raise Unable(being_run(folder)) from error


def being_run(folder: RunFolder) -> str:
    """The sentence that refuses to work on a folder that another process works on."""
    runner = last_runner(folder, events_of(folder))
    return (
        f"{folder.header.run_id} is being run by process {runner.pid} on {runner.host}; "
        "wait for it, or stop it and resume then"
    )


def _end_leftovers(past: Past, journal: Journal, observer: Observer) -> None:
    """End what killed runners left behind, where their guardians could not."""
    from validator.execute.tree import end_marked

    for marker in past.markers:
        ended = end_marked(marker)
        if ended:
            journal.append("leftovers_ended", pids=ended)
            observer.note(f"{len(ended)} processes of the earlier runner were still there and have been ended")
