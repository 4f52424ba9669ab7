"""Xid events: errors of GPUs that the NVIDIA driver wrote to the kernel log.

`validator/model/xids.py` explains them.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from validator.model.xids import Xid, xid

# "NVRM: Xid (PCI:0000:17:00): 79, GPU has fallen off the bus."
_LINE = re.compile(r"NVRM: Xid \((?P<device>[^)\n]*)\): (?P<code>\d+)(?:, *(?P<text>[^\n]*))?")
_MAX_RECORDS = 200_000


@dataclass(frozen=True)
class XidEvent:
    """One event. `device` is the PCI address as the driver writes it, `text` what the log says behind the code."""

    code: int
    device: str
    text: str = ""

    @property
    def known(self) -> Xid:
        """What it means, how grave it is and what to do."""
        return xid(self.code, self.text)

    def __str__(self) -> str:
        return f"Xid {self.code} on {self.device}: {self.known.meaning}; {self.known.action}"


_GRAVITY = ("information", "warns", "fails")


def gravest(events: Iterable[XidEvent]) -> XidEvent | None:
    """The worst of some events, of equals the last; None where there are none."""
    ranked = sorted(events, key=lambda one: _GRAVITY.index(one.known.severity))
    return ranked[-1] if ranked else None


def parse_xids(text: str) -> tuple[XidEvent, ...]:
    """Events in a kernel log: /dev/kmsg records or the lines of `dmesg`."""
    return tuple(
        XidEvent(int(one["code"]), one["device"].removeprefix("PCI:"), (one["text"] or "").strip())
        for one in _LINE.finditer(text)
    )


def read_xids(path: Path = Path("/dev/kmsg")) -> tuple[XidEvent, ...] | None:
    """Events since the machine was started; None where the kernel log may not be read."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        return parse_xids(_records(handle))
    finally:
        os.close(handle)


def _records(handle: int) -> str:
    """The records from here to the end of the log."""
    records = itertools.takewhile(bool, (_next_record(handle) for _ in range(_MAX_RECORDS)))
    return b"".join(records).decode("utf-8", "replace")


def _next_record(handle: int) -> bytes:
    """One record of /dev/kmsg, empty at the end. EPIPE: the kernel has overwritten the next one, so ask again."""
    while True:
        try:
            return os.read(handle, 8192)
        except BrokenPipeError:
            continue
        except OSError:
            return b""


class XidWatch:
    """The kernel log from now on. Where it may not be read no event is found; preflight reports that."""

    def __init__(self, path: Path = Path("/dev/kmsg")) -> None:
        self._handle: int | None = None
        try:
            self._handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
            os.lseek(self._handle, 0, os.SEEK_END)
        except OSError:
            self.close()

    @property
    def blind(self) -> bool:
        """Whether the log may not be read."""
        return self._handle is None

    def latest(self) -> int | None:
        """Code of the gravest event since the last call."""
        worst = None if self._handle is None else gravest(parse_xids(_records(self._handle)))
        return None if worst is None else worst.code

    def close(self) -> None:
        """Release the file. Closing twice is harmless."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None
