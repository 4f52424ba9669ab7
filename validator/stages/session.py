"""The effects of a running validation: machine lock, journal, guardian, signals, terminal.

They are opened together and closed in reverse order, so that nothing outlives a run however it ends.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from validator.folder import RunFolder
from validator.model.plan import Plan
from validator.model.runbook import Runbook

if TYPE_CHECKING:
    from validator.execute.cancel import CancelToken
    from validator.execute.journal import Journal
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
def locked(runbook: Runbook, *, enabled: bool) -> Iterator[Any]:
    """Hold the machine (its GPUs, or its CPU) for the length of the context, so that two validations never disturb
    each other's timings. Raises Unable naming the holder."""
    from validator.execute.lock import LockHeld, hold

    try:
        with hold(_devices(runbook), enabled=enabled) as lock:
            yield lock
    except LockHeld as error:
        raise Unable(str(error)) from error


def _devices(runbook: Runbook) -> tuple[str, ...]:
    if runbook.hardware.gpus == 0:
        return ("cpu",)
    from validator.observe import visible_gpus

    return visible_gpus(runbook.hardware.gpus)


@contextmanager
def open_session(folder: RunFolder, *, plan: Plan, quiet: bool, fail_fast: bool) -> Iterator[Session]:
    """Journal, guardian, signals and terminal of one validation, closed in reverse order whatever happens."""
    from validator.execute.cancel import CancelToken, cancel_on_signals
    from validator.execute.guardian import guarded
    from validator.execute.journal import Journal
    from validator.observe.redact import redact
    from validator.report.terminal import make_observer

    token = secrets.token_hex(16)
    cancel = CancelToken()
    try:
        with (
            Journal.open(folder.journal, redact=redact) as journal,
            guarded(token),
            cancel_on_signals(cancel),
            make_observer(quiet=quiet) as observer,
        ):
            yield Session(folder, plan, journal, observer, cancel, token, fail_fast, began=time.monotonic())
    finally:
        cancel.close()
