"""Xid events: what the NVIDIA driver wrote to the kernel log about GPUs in trouble.

Codes and remedies: NVIDIA, "XID Errors" (https://docs.nvidia.com/deploy/xid-errors/).
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

__all__ = ["REMEDIES", "XidEvent", "XidWatch", "parse_xids", "read_xids"]

REMEDIES: dict[int, tuple[str, str]] = {
    79: ("the GPU has fallen off the bus", "reboot the machine"),
    48: ("an uncorrectable memory error", "reset the GPU"),
    64: ("a row could not be remapped", "reset the GPU"),
    95: ("an uncontained memory error", "reset the GPU"),
    119: ("the GPU's system processor does not answer", "reset the GPU"),
    120: ("an error of the GPU's system processor", "reset the GPU"),
    13: ("an exception in a program's kernel", "restart the application"),
    31: ("a program's access to memory that is not mapped", "restart the application"),
    94: ("a contained memory error", "restart the application"),
    63: ("a row was remapped", "nothing"),
    92: ("many corrected memory errors", "nothing"),
}
"""Code to meaning and remedy."""

_LINE = re.compile(r"NVRM: Xid \((?P<device>[^)]*)\): (?P<code>\d+)")
_MAX_RECORDS = 200_000


@dataclass(frozen=True)
class XidEvent:
    """One event. `device` is the PCI address as the driver writes it; `time_s` counts from the start of the kernel."""

    code: int
    device: str
    time_s: float | None = None


def parse_xids(text: str) -> tuple[XidEvent, ...]:
    """Events in a kernel log: /dev/kmsg records or the lines of `dmesg`."""
    found: list[XidEvent] = []
    for line in text.splitlines():
        match = _LINE.search(line)
        if match is not None:
            found.append(XidEvent(int(match["code"]), match["device"].removeprefix("PCI:"), _time_s(line)))
    return tuple(found)


def _time_s(line: str) -> float | None:
    record = re.match(r"\d+,\d+,(\d+),", line)
    if record is not None:
        return int(record[1]) / 1e6
    stamp = re.match(r"\[\s*(\d+\.\d+)\]", line)
    return float(stamp[1]) if stamp is not None else None


def read_xids(path: Path = Path("/dev/kmsg")) -> tuple[XidEvent, ...] | None:
    """Events since the machine was started; None where the kernel log may not be read."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return None
    records: list[bytes] = []
    try:
        while len(records) < _MAX_RECORDS:
            record = _next_record(handle)
            if not record:
                break
            records.append(record)
    finally:
        os.close(handle)
    return parse_xids(b"".join(records).decode("utf-8", "replace"))


def _next_record(handle: int) -> bytes:
    """One record of /dev/kmsg, empty at the end. EPIPE means that the next one was overwritten meanwhile: go on."""
    while True:
        try:
            return os.read(handle, 8192)
        except BrokenPipeError:
            continue
        except OSError:
            return b""


class XidWatch:
    """The kernel log from now on. Where it may not be read nothing is ever found, which preflight has said already."""

    def __init__(self, path: Path = Path("/dev/kmsg")) -> None:
        self._handle: int | None = None
        try:
            self._handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
            os.lseek(self._handle, 0, os.SEEK_END)
        except OSError:
            self.close()

    def latest(self) -> int | None:
        """Code of the last event since the last call."""
        code: int | None = None
        for _ in range(_MAX_RECORDS):
            record = _next_record(self._handle) if self._handle is not None else b""
            if not record:
                break
            for event in parse_xids(record.decode("utf-8", "replace")):
                code = event.code
        return code

    def close(self) -> None:
        """Release the file. Closing twice is harmless."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None
