"""TensorBoard's event files: records with checksums, each an event with a step and scalars.

Framing (TFRecord): length (uint64), its masked CRC-32C, the data, its masked CRC-32C, all little-endian.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from validator.ingest.read_log import FaultLog
from validator.ingest.readers.protobuf import DamagedMessage, double, fields, nested, signed, single
from validator.ingest.readers.rows import MAX_STEP, LoggedRow

_HEAD, _FOOT = 12, 4
_LARGEST = 1 << 16
"""Bytes of a record above which it holds a picture, a graph or a histogram, and no scalar."""

_WALL_TIME, _STEP, _SUMMARY = 1, 2, 5
_TAG, _SIMPLE_VALUE, _TENSOR = 1, 2, 8
_DTYPE, _CONTENT, _FLOATS, _DOUBLES = 1, 4, 5, 6
_DT_FLOAT, _DT_DOUBLE, _DT_BFLOAT16, _DT_HALF = 1, 2, 14, 19


def _table() -> tuple[int, ...]:
    made = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = (value >> 1) ^ (0x82F63B78 if value & 1 else 0)
        made.append(value)
    return tuple(made)


_CRC = _table()


def masked_crc32c(data: bytes) -> int:
    """The checksum of a record's parts: CRC-32C, rotated and offset."""
    value = 0xFFFFFFFF
    for byte in data:
        value = _CRC[(value ^ byte) & 0xFF] ^ (value >> 8)
    value ^= 0xFFFFFFFF
    return (((value >> 15) | (value << 17)) + 0xA282EAD8) & 0xFFFFFFFF


class EventFile:
    """Scalars by tag. A record that is damaged ends the file: what follows cannot be found again."""

    def __init__(self) -> None:
        self.faults = FaultLog()
        self._rest = bytearray()
        self._at = 0
        self._skip = 0
        self._count = 0
        self._broken = False

    def feed(self, data: bytes) -> Iterator[LoggedRow]:
        """The rows of the records that are complete."""
        if self._skip:
            passed = min(self._skip, len(data))
            self._skip, self._at, data = self._skip - passed, self._at + passed, data[passed:]
        self._rest += data
        begin = 0
        while not self._broken and len(self._rest) - begin >= _HEAD:
            head = bytes(self._rest[begin : begin + _HEAD])
            (length,), (check,) = struct.unpack("<Q", head[:8]), struct.unpack("<I", head[8:])
            if masked_crc32c(head[:8]) != check:
                self._break(f"a damaged length at byte {self._at}")
                break
            whole = _HEAD + length + _FOOT
            self._count += 1
            if length > _LARGEST:
                here = min(whole, len(self._rest) - begin)
                begin, self._at, self._skip = begin + here, self._at + here, whole - here
                continue
            if len(self._rest) - begin < whole:
                self._count -= 1
                break
            record = bytes(self._rest[begin + _HEAD : begin + whole])
            begin, self._at = begin + whole, self._at + whole
            if masked_crc32c(record[:-_FOOT]) != struct.unpack("<I", record[-_FOOT:])[0]:
                self._break(f"a damaged record before byte {self._at}")
                break
            yield from self._scalars(record[:-_FOOT])
        del self._rest[: len(self._rest) if self._broken else begin]

    def _break(self, what: str) -> None:
        self._broken = True
        self.faults.add("garbage-row", self._count, what)

    def _scalars(self, record: bytes) -> Iterator[LoggedRow]:
        time_s, step, summaries = None, 0, []
        try:
            for number, value in fields(record):
                if number == _WALL_TIME:
                    time_s = double(value)
                elif number == _STEP:
                    step = signed(value)
                elif number == _SUMMARY:
                    summaries.append(nested(value))
            values = dict(pair for one in summaries for pair in _values(one))
        except (DamagedMessage, UnicodeDecodeError, struct.error) as error:
            self.faults.add("garbage-cell", self._count, f"record {self._count}: {error}")
            return
        if values and abs(step) < MAX_STEP:
            yield LoggedRow(step, values, time_s=time_s, end=self._at)

    def close(self) -> None:
        """An incomplete record at the end was being written."""
        if (self._rest or self._skip) and not self._broken:
            self.faults.add("truncated-line", self._count + 1, f"{len(self._rest)} bytes at byte {self._at}")


def _values(summary: bytes) -> Iterator[tuple[str, float]]:
    for number, value in fields(summary):
        if number != 1:
            continue
        tag, scalar = "", None
        for inner, content in fields(nested(value)):
            if inner == _TAG:
                tag = nested(content).decode("utf-8")
            elif inner == _SIMPLE_VALUE:
                scalar = single(content)
            elif inner == _TENSOR:
                scalar = _of_tensor(nested(content))
        if tag and scalar is not None:
            yield tag, scalar


def _of_tensor(tensor: bytes) -> float | None:
    """A tensor's only element; None for a text, a picture or a tensor of several."""
    kind, content, numbers = 0, b"", b""
    for number, value in fields(tensor):
        if number == _DTYPE:
            kind = signed(value)
        elif number == _CONTENT:
            content = nested(value)
        elif number in (_FLOATS, _DOUBLES):
            width = 4 if number == _FLOATS else 8
            numbers += value if isinstance(value, bytes) else value.to_bytes(width, "little")
    data = content or numbers
    form = {_DT_FLOAT: "<f", _DT_DOUBLE: "<d", _DT_HALF: "<e"}.get(kind)
    if kind == _DT_BFLOAT16 and len(data) == 2:
        form, data = "<f", b"\0\0" + data
    if form is None or len(data) != struct.calcsize(form):
        return None
    return float(struct.unpack(form, data)[0])
