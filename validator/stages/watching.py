"""Watching a trainer that somebody else started, and what the watch comes to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from validator.folder import FolderError
from validator.model.runbook import TrainerMetrics, Watchdog

if TYPE_CHECKING:
    from validator.execute.watch import WatchEvent

__all__ = ["Watched", "watch_directory"]

_ENDS = ("done", "gone", "halted")
_HARMLESS = ("progress", "slow", "done", "gone")


@dataclass(frozen=True)
class Watched:
    """How a watch ended. `anomalies` are the codes that were seen, in order; `end` is the code of the trainer's end,
    None when the watch ended before it did."""

    anomalies: tuple[str, ...]
    end: str | None
    interrupted: bool

    @property
    def exit_code(self) -> int:
        """130 when the user ended the watch, 1 for an anomaly, 3 when the trainer vanished without a word, else 0."""
        if self.interrupted:
            return 130
        if self.anomalies:
            return 1
        return 3 if self.end == "gone" else 0


def watch_directory(
    directory: Path,
    *,
    interval_s: float,
    halt: bool,
    limits: Watchdog,
    metrics: TrainerMetrics,
    tell: Callable[[WatchEvent], None],
) -> Watched:
    """Watch a trainer's folder until the trainer has ended, the watchdog has halted it, or a signal comes.

    Raises:
        FolderError: when there is no such folder.
    """
    from validator.execute.cancel import CancelToken, cancel_on_signals
    from validator.execute.watch import watch

    anomalies: list[str] = []
    end: str | None = None
    cancel = CancelToken()
    try:
        with cancel_on_signals(cancel):
            events = watch(directory, interval_s=interval_s, halt=halt, limits=limits, metrics=metrics, cancel=cancel)
            for event in events:
                tell(event)
                if event.code not in _HARMLESS:
                    anomalies.append(event.code)
                if event.code in _ENDS:
                    end = event.code
        return Watched(tuple(anomalies), end, interrupted=cancel.requested)
    except NotADirectoryError as error:
        raise FolderError(str(error)) from error
    finally:
        cancel.close()
