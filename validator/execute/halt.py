"""The files by which a watchdog tells a trainer to stop, and everybody else why."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

__all__ = ["ANOMALY_FILE", "HALT_FILE", "named_anomaly", "write_halt"]

HALT_FILE = ".HALT"
ANOMALY_FILE = ".anomaly_type"


def named_anomaly(out: Path) -> str | None:
    """What the trainer, or a watchdog, wrote into `.anomaly_type`; None when there is no such file."""
    with suppress(OSError):
        words = (out / ANOMALY_FILE).read_text(encoding="utf-8", errors="replace").split()
        return words[0][:64] if words else None
    return None


def write_halt(out: Path, *, code: str, why: str) -> None:
    """Write `.anomaly_type` (unless the trainer has named the anomaly itself) and `.HALT`.

    A disk that is full must not keep a run from being stopped, so errors are passed over.
    """
    with suppress(OSError):
        if not (out / ANOMALY_FILE).exists():
            (out / ANOMALY_FILE).write_text(code + "\n", encoding="utf-8")
    with suppress(OSError):
        (out / HALT_FILE).write_text(why + "\n", encoding="utf-8")
