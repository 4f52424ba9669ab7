"""The mark of a run folder that another machine handed in: who may do that must lower no bound of runs on this one."""

from __future__ import annotations

import os
from pathlib import Path

PUSHED = ".pushed"
"""Who handed the folder in, and when."""


def was_pushed(folder: Path) -> bool:
    """Whether a run folder was handed in: it is no last GO, and retention neither counts nor removes it."""
    return os.path.lexists(folder / PUSHED)
