"""JSON lines: an object a line, with a step and numbers."""

from __future__ import annotations

from collections.abc import Iterator

from validator.documents import parse_json
from validator.ingest.read_log import FaultLog, printable
from validator.ingest.readers.rows import LoggedRow, record_row
from validator.model.logged_names import record_name

_LONGEST = 1 << 20
"""A longer line holds no numbers of a step alone."""


class JsonLines:
    """Objects without a step are left out; one with a loss and no step is a flaw.

    `step` is the key that holds it, where the runbook names one.
    """

    def __init__(self, step: str | None = None) -> None:
        self._step = step
        self.faults = FaultLog()
        self._rest = b""
        self._at = 0
        self._line = 0
        self._skipping = False

    def feed(self, data: bytes) -> Iterator[LoggedRow]:
        """The rows of the lines that end in these bytes."""
        *whole, rest = (self._rest + data).split(b"\n")
        for raw in whole:
            self._at += len(raw) + 1
            self._line += 1
            if self._skipping or len(raw) > _LONGEST:
                self._skipping = False
                self.faults.add("too-large", self._line, f"{len(raw)} bytes")
                continue
            row = self._row(raw)
            if row is not None:
                yield row
        self._rest = rest
        if len(rest) > _LONGEST:  # its end is awaited, and nothing of it is kept
            self._at += len(rest)
            self._rest, self._skipping = b"", True

    def _row(self, raw: bytes) -> LoggedRow | None:
        text = raw.decode("utf-8-sig", "replace").strip()
        if not text.strip("\0"):
            return None
        try:
            record = parse_json(text)
        except ValueError:
            record = None
        if not isinstance(record, dict):
            self.faults.add("garbage-line", self._line, printable(text, limit=60))
            return None
        row = record_row(record, end=self._at, step=self._step)
        if row is None and any(record_name(str(key)).name == "loss" for key in record):
            self.faults.add("missing-step", self._line, printable(text, limit=60))
        return row

    def close(self) -> None:
        """A last line without an end is incomplete, unless it is a whole object."""
        if not self._rest.strip(b" \r\t\0"):
            return
        self.faults.add("truncated-line", self._line + 1, printable(self._rest.decode("utf-8", "replace"), limit=60))
