"""The mark of a run folder that another machine handed in: it must count for no machine but the one that sent it."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from validator.files import Tree
from validator.text import one_line

PUSHED = ".pushed"
"""Who handed the folder in, and when."""


def was_pushed(folder: Path) -> bool:
    """Whether a run folder was handed in: it is no last GO, and retention neither counts nor removes it."""
    return os.path.lexists(folder / PUSHED)


def pushed_by(folder: Path) -> str:
    """The name of the token that a run folder was handed in with; empty for one that was made here."""
    if not was_pushed(folder):
        return ""
    with suppress(OSError, ValueError, TypeError, KeyError), Tree(folder) as tree:
        return one_line(tree.json(PUSHED)["by"], limit=100)
    return "unknown"
