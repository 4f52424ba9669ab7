"""Whether a run may start in its folder. Kept apart from the trainer so that the answer needs no torch import."""

from __future__ import annotations

import os
from pathlib import Path

from nsa.config import ConfigError, SetupError

__all__ = ["ANOMALY_FILE", "HALT_FILE", "make_out", "refuse_unfit_out"]

HALT_FILE = ".HALT"
ANOMALY_FILE = ".anomaly_type"


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


def refuse_unfit_out(out: Path, *, resume: bool) -> None:
    """Raise ConfigError when `out` holds a stop file from before, or another run's results and `resume` is off."""
    if out.exists() and not out.is_dir():
        raise ConfigError([f"out={out} is a file: name a folder"])
    halt = out / HALT_FILE
    if halt.exists():
        raise ConfigError(
            [f"{halt} exists from before this start and would stop the run at its first step: remove it (rm {halt})"]
        )
    csv = out / "training.csv"
    if csv.exists() and not resume:
        raise ConfigError(
            [f"{csv} holds another run's rows: choose another out, remove the folder, or go on with it by --resume"]
        )
