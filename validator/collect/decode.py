"""Heartbeat lines to values, many at a time. `msgspec` where it is installed, the standard library's decoder elsewhere.

Both refuse what is not exactly one JSON object a line; the caller then looks at each line by itself.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, Literal

__all__ = ["LEAN", "Shape", "decode_all", "decode_shaped"]

LEAN = ("loss", "compute_time_s", "step_time_s")
"""What is read of every rank; the lowest one tells everything."""


@dataclass(frozen=True)
class Shape:
    """What the records of a sound block look like: who writes them, and which fields they may have.

    `numbers` hold plain numbers where they are there at all, `others` anything, `single` a value that is neither list
    nor object. A record with a further field is out of shape when `closed`; else that field is passed over.
    """

    rank: int
    pids: tuple[int, ...]
    numbers: tuple[str, ...]
    others: tuple[str, ...] = ()
    single: tuple[str, ...] = ()
    closed: bool = False


def decode_all(block: bytes, count: int) -> list[dict[str, Any]] | None:
    """All records of a block of `count` lines; None unless each is exactly one JSON object."""
    try:
        records = _whole()(block)
    except (ValueError, RecursionError):
        return None
    if len(records) != count or not all(type(record) is dict for record in records):
        return None
    return records


def decode_shaped(block: bytes, count: int, shape: Shape) -> list[Any] | None:
    """The records as objects with `ts, step, msg`, `n0, n1, …` (`numbers`, NaN if absent) and `o0, o1, …` (`others`).

    None unless each line is one record of that shape; also where `msgspec` is not installed. A number that is `null`
    is None.
    """
    decoder = _shaped(shape)
    if decoder is None:
        return None
    try:
        if not block.isascii():
            block.decode("utf-8")  # fields that are passed over are not looked at by the decoder
        records: list[Any] = decoder(block)
    except (ValueError, RecursionError):
        return None
    return records if len(records) == count else None


@cache
def _whole() -> Callable[[bytes], list[Any]]:
    try:
        from msgspec.json import Decoder
    except ImportError:
        return lambda block: list(json.loads(b"[" + b",".join(block.split(b"\n")[:-1]) + b"]"))
    fast = Decoder().decode_lines

    def decode(block: bytes) -> list[Any]:
        try:
            return list(fast(block))
        except ValueError:  # NaN and infinities as bare words are no JSON, and yet what Python's encoder writes
            return list(json.loads(b"[" + b",".join(block.split(b"\n")[:-1]) + b"]"))

    return decode


@lru_cache(maxsize=4)
def _shaped(shape: Shape) -> Callable[[bytes], list[Any]] | None:
    try:
        import msgspec
    except ImportError:
        return None
    fields: list[tuple[str, Any] | tuple[str, Any, Any]]
    fields = [("ts", float), ("pid", Literal[shape.pids]), ("rank", Literal[shape.rank]), ("step", int), ("msg", str)]
    names: dict[str, str] = {}
    for letter, keys, kind, absent in (
        ("n", shape.numbers, float | None, float("nan")),
        ("o", shape.others, Any, None),
        ("s", shape.single, str | float | int | bool | None, None),
    ):
        fields += [(f"{letter}{i}", kind, absent) for i in range(len(keys))]
        names |= {f"{letter}{i}": key for i, key in enumerate(keys)}
    try:
        record = msgspec.defstruct("Beat", fields, gc=False, rename=names, forbid_unknown_fields=shape.closed)
    except ValueError:  # a name with a quote or a control character
        return None
    decode: Callable[[bytes], list[Any]] = msgspec.json.Decoder(record).decode_lines
    return decode
