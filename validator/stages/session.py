"""The effects of a running validation: machine lock, journal, guardian, signals, terminal.

They are opened together and closed in reverse order, so that nothing outlives a run however it ends.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from validator.folder import RunFolder
from validator.model.plan import Plan
from validator.model.runbook import Runbook

if TYPE_CHECKING:
    from validator.execute.cancel import CancelToken
    from validator.execute.guardian import Guardian
    from validator.execute.journal import Journal
    from validator.execute.lock import MachineLock
    from validator.report.terminal import Observer

__all__ = ["Session", "Unable", "locked", "open_session", "require_hardware"]


class Unable(Exception):
    """The machine or the runner cannot do it: exit code 4. The message says what is missing or who is in the way."""


@dataclass
class Session:
    """The effects of a running validation, opened and closed by `open_session`."""

    folder: RunFolder
    plan: Plan
    journal: Journal
    observer: Observer
    cancel: CancelToken
    guardian: Guardian
    token: str
    fail_fast: bool
    began: float
    refreshed: float = 0.0


def require_hardware(runbook: Runbook) -> None:
    """Raises Unable with a sentence when the machine lacks what the runbook was written for."""
    if runbook.hardware.gpus == 0:
        return
    from validator.observe import missing_hardware

    missing = missing_hardware(runbook)
    if missing is not None:
        raise Unable(missing)


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
def open_session(folder: RunFolder, *, plan: Plan, quiet: bool, fail_fast: bool) -> Iterator[Session]:
    """Journal, guardian, signals and terminal of one validation, closed in reverse order whatever happens."""
    from validator.execute.cancel import CancelToken, cancel_on_signals
    from validator.execute.guardian import Guardian
    from validator.execute.journal import Journal
    from validator.observe.redact import redact
    from validator.report.terminal import make_observer

    token = secrets.token_hex(16)
    cancel = CancelToken()
    try:
        with (
            Journal.open(folder.journal, redact=redact) as journal,
            Guardian.start(token=token, report=folder.root / "guardian.txt") as guardian,
            cancel_on_signals(cancel),
            make_observer(quiet=quiet) as observer,
        ):
            yield Session(folder, plan, journal, observer, cancel, guardian, token, fail_fast, began=time.monotonic())
    finally:
        cancel.close()
