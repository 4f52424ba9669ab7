"""When each step of a trainer reached its files, by the validator's own monotonic clock.

A file that grows is noticed at once (inotify), and only its size and the time are kept; which step that size holds is
looked up when the monitor reads the new lines anyway. Writes in quick succession share a stamp, and the distance
between stamps grows with the attempt, so neither CPU time nor the file depends on how much a trainer writes.
"""

from __future__ import annotations

import ctypes
import os
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from validator.execute.follow import Record
from validator.files import Tree

__all__ = ["ARRIVALS_FILE", "ArrivalStamps"]

ARRIVALS_FILE = "arrivals.jsonl"

_LEAST_SPACING_S, _SPACING_SHARE = 0.05, 1e-4
"""Time between two stamps, at least, and the same as a share of the attempt so far: some 60,000 stamps in a day."""

_IN_MODIFY = 0x2
_FLAGS = os.O_NONBLOCK | os.O_CLOEXEC  # inotify_init1 takes the values of these


@dataclass
class _Growth:
    """One file: its last known size, growth that has not been mapped to a step, and the steps known so far."""

    watched: bool = False
    size: int = 0
    unread: deque[tuple[int, float]] = field(default_factory=deque)
    step: int | None = None
    stamped: int | None = None


class ArrivalStamps:
    """Stamps for one attempt, written to `out / arrivals.jsonl`: `{source, offset, step, s}` a line.

    `source` is relative to `out`, `offset` the size in bytes that was seen `s` seconds after `started`, and `step` the
    last one whose line had been written whole by then.
    """

    def __init__(self, out: Path, *, started: float) -> None:
        self._out = out
        self._started = started
        self._files: dict[Path, _Growth] = {}
        self._lines: list[str] = []
        self._next = started
        self._fd = _inotify()
        self._open = True

    def watch(self, paths: Iterable[Path]) -> None:
        """Stamp these files from now on; one that does not exist yet is tried again at the next call."""
        for path in paths if self._open else ():
            growth = self._files.setdefault(path, _Growth())
            growth.watched = growth.watched or _add_watch(self._fd, path)

    def fileno(self, now: float) -> int | None:
        """What becomes readable when a file grows; None while the next stamp is not due."""
        return self._fd if self._fd >= 0 and now >= self._next and self._open else None

    @property
    def due(self) -> float:
        """From when on the next stamp may be taken, by the monotonic clock."""
        return self._next

    def notice(self, now: float, *, always: bool = False) -> None:
        """Note which files have grown, if a stamp is due or, at the end, `always`."""
        if not self._open or (now < self._next and not always):
            return
        if self._fd >= 0:
            with suppress(OSError):
                os.read(self._fd, 1 << 16)
        grown = False
        for path, growth in self._files.items():
            try:
                size = os.stat(path).st_size  # noqa: PTH116 - a third of the time of Path.stat, twenty times a second
            except OSError:
                continue
            if size < growth.size:  # written anew
                growth.unread.clear()
            if size != growth.size:
                growth.unread.append((size, now))
                growth.size, grown = size, True
        if grown:
            self._next = now + max(_LEAST_SPACING_S, _SPACING_SHARE * (now - self._started))

    def settle(self, records: Iterable[Record], read_to: Mapping[Path, int]) -> None:
        """Find the step of each stamp whose bytes have been read, and write what was found.

        Args:
            records: what was read since the last call, in the order of each file.
            read_to: bytes of each file that have been read in all.
        """
        if not self._open:
            return
        fresh: dict[Path, deque[Record]] = {}
        for record in records:
            if record.path is not None and record.step is not None and record.path in self._files:
                fresh.setdefault(record.path, deque()).append(record)
        for path, growth in self._files.items():
            self._settle_one(path, growth, fresh.get(path, deque()), read_to.get(path, 0))
        if self._lines:
            with suppress(OSError), Tree(self._out) as tree:
                tree.append(ARRIVALS_FILE, "".join(self._lines).encode("ascii", "backslashreplace"))
            self._lines.clear()

    def _settle_one(self, path: Path, growth: _Growth, records: deque[Record], read_to: int) -> None:
        while growth.unread and growth.unread[0][0] <= read_to:
            size, at = growth.unread.popleft()
            while records and records[0].end <= size:
                growth.step = records.popleft().step
            if growth.step is not None and growth.step != growth.stamped:
                growth.stamped = growth.step
                name = os.path.relpath(path, self._out)
                self._lines.append(
                    f'{{"source":"{name}","offset":{size},"step":{growth.step},"s":{at - self._started:.4f}}}\n'
                )
        if records:  # read, but not noticed yet: the next stamp is theirs
            growth.step = records[-1].step

    def close(self) -> None:
        """Stop stamping. Closing twice is harmless."""
        self._open = False
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _inotify() -> int:
    """A descriptor for notifications; -1 where the system has none, and then every look takes the stamps."""
    try:
        return int(ctypes.CDLL(None, use_errno=True).inotify_init1(_FLAGS))
    except (OSError, AttributeError):
        return -1


def _add_watch(fd: int, path: Path) -> bool:
    if fd < 0:
        return False
    return int(ctypes.CDLL(None, use_errno=True).inotify_add_watch(fd, os.fsencode(path), _IN_MODIFY)) >= 0
