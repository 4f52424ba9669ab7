"""Xid events: errors of GPUs that the NVIDIA driver wrote to the kernel log.

Codes and remedies: NVIDIA, "XID Errors" (https://docs.nvidia.com/deploy/xid-errors/).
"""

from __future__ import annotations

import itertools
import os
import re
from dataclasses import dataclass
from pathlib import Path

REMEDIES: dict[int, tuple[str, str]] = {
    79: ("the GPU has fallen off the bus", "reboot the machine"),
    48: ("an uncorrectable memory error", "reset the GPU"),
    64: ("a row could not be remapped", "reset the GPU"),
    95: ("an uncontained memory error", "reset the GPU"),
    119: ("the GPU's system processor does not answer", "reset the GPU"),  # word: ok
    120: ("an error of the GPU's system processor", "reset the GPU"),  # word: ok
    13: ("an exception in a program's kernel", "restart the application"),
    31: ("a program's access to memory that is not mapped", "restart the application"),
    94: ("a contained memory error", "restart the application"),
    63: ("a row was remapped", "nothing"),
    92: ("many corrected memory errors", "nothing"),
}
"""Code to meaning and remedy."""

# "NVRM: Xid (PCI:0000:17:00): 79, GPU has fallen off the bus."
_LINE = re.compile(r"NVRM: Xid \((?P<device>[^)\n]*)\): (?P<code>\d+)")
_MAX_RECORDS = 200_000


@dataclass(frozen=True)
class XidEvent:
    """One event. `device` is the PCI address as the driver writes it."""

    code: int
    device: str


def parse_xids(text: str) -> tuple[XidEvent, ...]:
    """Events in a kernel log: /dev/kmsg records or the lines of `dmesg`."""
    return tuple(XidEvent(int(one["code"]), one["device"].removeprefix("PCI:")) for one in _LINE.finditer(text))


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

    def latest(self) -> int | None:
        """Code of the last event since the last call."""
        events = () if self._handle is None else parse_xids(_records(self._handle))
        return events[-1].code if events else None

    def close(self) -> None:
        """Release the file. Closing twice is harmless."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None
