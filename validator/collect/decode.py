"""Heartbeat lines to values, many at a time. `msgspec` where it is installed, the standard library's decoder elsewhere.

Both refuse what is not exactly one JSON object a line; the caller then looks at each line by itself.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from typing import Any

__all__ = ["LEAN", "decode_all", "decode_lean"]

LEAN = ("loss", "compute_time_s", "step_time_s")
"""What is read of every rank; the lowest one tells everything."""


def decode_all(block: bytes, count: int) -> list[dict[str, Any]] | None:
    """All records of a block of `count` lines; None unless each is exactly one JSON object."""
    try:
        records = _whole()(block)
    except (ValueError, RecursionError):
        return None
    if len(records) != count or not all(type(record) is dict for record in records):
        return None
    return records


def decode_lean(block: bytes, count: int) -> list[Any] | None:
    """The records as objects with `ts, step, msg, rank, pid` and the columns of `LEAN`, each a float or None.

    None unless each line is one record with all marks and plain numbers; also where `msgspec` is not installed.
    """
    decoder = _lean()
    if decoder is None:
        return None
    try:
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


@cache
def _lean() -> Callable[[bytes], list[Any]] | None:
    try:
        import msgspec
    except ImportError:
        return None
    fields: list[tuple[str, Any] | tuple[str, Any, Any]]
    fields = [("ts", float), ("step", int), ("msg", str), ("rank", int), ("pid", int)]
    fields += [(name, float | None, None) for name in LEAN]
    record = msgspec.defstruct("Beat", fields, gc=False)
    decode: Callable[[bytes], list[Any]] = msgspec.json.Decoder(record).decode_lines
    return decode
