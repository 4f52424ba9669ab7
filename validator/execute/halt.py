"""The files by which a watchdog tells a trainer to stop, and everybody else why."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from validator.files import Tree

__all__ = ["ANOMALY_FILE", "HALT_FILE", "named_anomaly", "write_halt"]

HALT_FILE = ".HALT"
ANOMALY_FILE = ".anomaly_type"
_MAX_BYTES = 64 * 2**10


def named_anomaly(out: Path) -> str | None:
    """What the trainer, or a watchdog, wrote into `.anomaly_type`; None when there is no such file."""
    with suppress(OSError), Tree(out) as tree:
        words = tree.text(ANOMALY_FILE, limit=_MAX_BYTES).split()
        return words[0][:64] if words else None
    return None


def write_halt(out: Path, *, code: str, why: str) -> None:
    """Write `.anomaly_type` (unless the trainer has named the anomaly itself) and `.HALT`.

    A disk that is full must not keep a run from being stopped, so errors are passed over.
    """
    with suppress(OSError), Tree(out) as tree:
        if not tree.has_file(ANOMALY_FILE):
            with suppress(OSError):
                tree.write(ANOMALY_FILE, code + "\n")
        tree.write(HALT_FILE, why + "\n")
