"""The file of a W&B run (`run-ID.wandb`): protocol buffers in the blocks of a LevelDB log.

Seven bytes (`:W&B`, a magic number, a version), then blocks of 32 KiB. A part of a record has the CRC-32 of its kind
and data, a length (uint16) and a kind: whole, first, middle, last. Fewer than seven bytes at a block's end are
padding.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator

from validator.documents import parse_json
from validator.ingest.read_log import FaultLog, printable
from validator.ingest.readers.protobuf import DamagedMessage, fields, nested, signed
from validator.ingest.readers.rows import LoggedRow, record_row

_MAGIC = struct.pack("<4sHB", b":W&B", 0xBEE1, 0)
_BLOCK, _HEAD = 32768, 7
_WHOLE, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_LARGEST = 4 << 20
_HISTORY = 2
_ITEM, _STEP = 1, 2
_KEY, _NESTED_KEY, _JSON = 1, 2, 16
_NUMBERED = 1


class WandbFile:
    """What was given to `wandb.log`. The step is one that the trainer logs (`global_step`, `iter`), else W&B's own."""

    def __init__(self) -> None:
        self.faults = FaultLog()
        self._rest = bytearray()
        self._at = 0
        self._parts = bytearray()
        self._open = False
        self._count = 0
        self._broken = False

    def feed(self, data: bytes) -> Iterator[LoggedRow]:
        """The rows of the records that are complete."""
        self._rest += data
        begin = 0
        if not self._at and len(self._rest) >= _HEAD:
            if bytes(self._rest[:6]) != _MAGIC[:6]:
                self._break("its first bytes are not those of such a file")
            begin = self._at = _HEAD
        while not self._broken and self._at:
            left = _BLOCK - self._at % _BLOCK
            if left < _HEAD:  # padding
                if len(self._rest) - begin < left:
                    break
                begin, self._at = begin + left, self._at + left
                continue
            part = self._part(begin)
            if part is None:
                break
            kind, content = part
            begin, self._at = begin + _HEAD + len(content), self._at + _HEAD + len(content)
            record = self._joined(kind, content)
            if record is not None:
                self._count += 1
                yield from self._row(record)
        del self._rest[: len(self._rest) if self._broken else begin]

    def _part(self, begin: int) -> tuple[int, bytes] | None:
        """Kind and data of the part that begins there; None while it is incomplete, or where it is damaged."""
        if len(self._rest) - begin < _HEAD:
            return None
        check, length, kind = struct.unpack("<IHB", self._rest[begin : begin + _HEAD])
        if not _WHOLE <= kind <= _LAST or length > _BLOCK - self._at % _BLOCK - _HEAD:
            self._break(f"no record at byte {self._at}")
            return None
        if len(self._rest) - begin < _HEAD + length:
            return None
        content = bytes(self._rest[begin + _HEAD : begin + _HEAD + length])
        if zlib.crc32(content, zlib.crc32(bytes([kind]))) != check:
            self._break(f"a damaged record at byte {self._at}")
            return None
        return kind, content

    def _joined(self, kind: int, content: bytes) -> bytes | None:
        """The record that this part completes."""
        if kind in (_WHOLE, _FIRST):
            self._parts.clear()
            self._open = True
        if not self._open:
            self.faults.add("garbage-row", self._count, f"a part without a beginning before byte {self._at}")
            return None
        if len(self._parts) <= _LARGEST:
            self._parts += content
        if kind in (_FIRST, _MIDDLE):
            return None
        self._open = False
        if len(self._parts) > _LARGEST:
            self.faults.add("too-large", self._count, f"more than {_LARGEST} bytes")
            return None
        return bytes(self._parts)

    def _break(self, what: str) -> None:
        self._broken = True
        self.faults.add("garbage-row", self._count, what)

    def _row(self, record: bytes) -> Iterator[LoggedRow]:
        try:
            logged = [nested(value) for number, value in fields(record) if number == _HISTORY]
            for one in logged:
                row = self._history(one)
                if row is not None:
                    yield row
        except (DamagedMessage, UnicodeDecodeError) as error:
            self.faults.add("garbage-row", self._count, f"record {self._count}: {error}")

    def _history(self, history: bytes) -> LoggedRow | None:
        values: dict[str, object] = {}
        for number, value in fields(history):
            if number == _STEP:
                counted = [signed(inner) for place, inner in fields(nested(value)) if place == _NUMBERED]
                values.setdefault("_step", counted[-1] if counted else 0)
            elif number == _ITEM:
                key, content = self._item(nested(value))
                if key and content is not _UNREADABLE:
                    values[key] = content
        row = record_row(values, end=self._at, fallback="_step")
        if row is None and values:
            self.faults.add("missing-step", self._count, printable(", ".join(values), limit=60))
        return row

    def _item(self, item: bytes) -> tuple[str, object]:
        names: list[str] = []
        key, content = "", b""
        for number, value in fields(item):
            if number == _KEY:
                key = nested(value).decode("utf-8")
            elif number == _NESTED_KEY:
                names.append(nested(value).decode("utf-8"))
            elif number == _JSON:
                content = nested(value)
        try:
            return key or "/".join(names), parse_json(content)
        except ValueError:
            self.faults.add("garbage-cell", self._count, printable(content.decode("utf-8", "replace"), limit=60))
            return key, _UNREADABLE

    def close(self) -> None:
        """An incomplete record at the end was being written."""
        if (self._rest or self._open) and not self._broken:
            self.faults.add("truncated-line", self._count + 1, f"at byte {self._at}")


_UNREADABLE = object()
