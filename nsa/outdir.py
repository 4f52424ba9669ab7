"""Whether a run may start in its folder. Kept apart from the trainer so that the answer needs no torch import."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import time
from collections.abc import Iterator
from pathlib import Path

from nsa.config import ConfigError, SetupError

__all__ = ["ANOMALY_FILE", "HALT_FILE", "claim_out", "hold_folder", "make_out", "refuse_unfit_out"]

HALT_FILE = ".HALT"
ANOMALY_FILE = ".anomaly_type"
TRAINING_CSV = "training.csv"
LOCK_GRACE_S = 3.0


def make_out(out: Path) -> None:
    """Create the folder where there is none. Raises SetupError when that cannot be, or nothing can be written to it."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SetupError(
            f"out={out} cannot be created: {error.strerror}; choose a folder that you may write to"
        ) from None
    if not os.access(out, os.W_OK | os.X_OK):
        raise SetupError(f"out={out} cannot be written to: choose another folder, or change its permissions")


def _lock(handle: int) -> None:
    """Take the lock. A process that was killed a moment ago may hold it until its last thread is gone."""
    deadline_s = time.monotonic() + LOCK_GRACE_S
    while True:
        try:
            return fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(0.02)


@contextlib.contextmanager
def hold_folder(folder: Path, *, name: str) -> Iterator[None]:
    """Be the only one of those who ask to write to `folder`; also a process that is killed lets go of it.

    Raises SetupError, with `name` for the setting, when another process holds it. File systems that know no locks are
    taken as they are.
    """
    with contextlib.ExitStack() as stack:
        try:
            handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            stack.callback(os.close, handle)
            _lock(handle)
        except BlockingIOError:
            raise SetupError(
                f"{name}={folder} is being written to by another process: wait for its end, stop it, or choose "
                "another folder"
            ) from None
        except OSError:
            pass
        yield


@contextlib.contextmanager
def claim_out(out: Path, *, resume: bool) -> Iterator[None]:
    """Create `out` if need be and hold it for one run. Raises ConfigError or SetupError where that may not be."""
    if out.exists() and not out.is_dir():
        raise ConfigError([f"out={out} is a file: name a folder"])
    make_out(out)
    with hold_folder(out, name="out"):
        refuse_unfit_out(out, resume=resume)
        if not resume:
            for name in (TRAINING_CSV, "metrics.json", ANOMALY_FILE):  # of a start that ended before its first step
                (out / name).unlink(missing_ok=True)
        yield


def _has_rows(csv: Path) -> bool:
    """Whether there is a line behind the header."""
    if not csv.exists():
        return False
    with csv.open("rb") as lines:
        return len(list(itertools.islice(lines, 2))) > 1


def refuse_unfit_out(out: Path, *, resume: bool) -> None:
    """Raise ConfigError when `out` holds a stop file from before, or another run's results and `resume` is off."""
    halt = out / HALT_FILE
    if halt.exists():
        raise ConfigError(
            [f"{halt} exists from before this start and would stop the run at its first step: remove it (rm {halt})"]
        )
    csv, checkpoint = out / TRAINING_CSV, next(out.glob("checkpoints/step_*.pt"), None)
    found = f"{csv} holds another run's rows" if _has_rows(csv) else f"{checkpoint} is another run's"
    if not resume and (_has_rows(csv) or checkpoint):
        raise ConfigError([f"{found}: choose another out, remove the folder, or go on with it by --resume"])
