"""Protocol buffers without their library: the fields of a message, by number.

Only what loggers write is read, so that a field that is unknown costs nothing. See docs/adr/0073.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

_MAX_VARINT = 10


class DamagedMessage(ValueError):
    """Bytes that are no message."""


def fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Number and value of each field: an integer for varints and fixed sizes (their bits), bytes for the rest.

    Raises:
        DamagedMessage: when the bytes are no message.
    """
    at, size = 0, len(data)
    while at < size:
        key, at = _varint(data, at)
        number, kind = key >> 3, key & 7
        if kind == 0:
            value, at = _varint(data, at)
            yield number, value
            continue
        if kind == 2:
            length, at = _varint(data, at)
        elif kind in (1, 5):
            length = 8 if kind == 1 else 4
        else:
            raise DamagedMessage(f"a field of kind {kind}")
        if not number or length > size - at:
            raise DamagedMessage("a field that is longer than its message")
        part = data[at : at + length]
        at += length
        yield number, part if kind == 2 else int.from_bytes(part, "little")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for place in range(_MAX_VARINT):
        if at >= len(data):
            raise DamagedMessage("a number that does not end")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return value, at
    raise DamagedMessage("a number that is too long")


def signed(value: int | bytes) -> int:
    """An `int64` from its varint."""
    if isinstance(value, bytes):
        raise DamagedMessage("bytes where a number belongs")
    value &= 2**64 - 1
    return value - 2**64 if value >= 2**63 else value


def double(bits: int | bytes) -> float:
    """A `double` from its bits."""
    return float(struct.unpack("<d", _bits(bits, 8))[0])


def single(bits: int | bytes) -> float:
    """A `float` from its bits."""
    return float(struct.unpack("<f", _bits(bits, 4))[0])


def _bits(bits: int | bytes, size: int) -> bytes:
    if isinstance(bits, bytes) or bits >= 1 << (8 * size):
        raise DamagedMessage("no number of that size")
    return bits.to_bytes(size, "little")


def nested(value: int | bytes) -> bytes:
    """A message or a text within a message."""
    if isinstance(value, int):
        raise DamagedMessage("a number where bytes belong")
    return value
