"""Contents that someone else wrote, read within limits: JSON, YAML and gzip.

No value is nested too deep, none is too large once unpacked or with its aliases written out, and what is no sound
document is a `ValueError` that says why.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from typing import Any

MAX_BYTES = 64 * 2**20
"""Largest file that is read whole, and largest content that is unpacked, unless a caller says otherwise."""

MAX_DEPTH = 64
"""Deepest nesting of JSON and of folders that is read: nothing of the contract comes near, and code may recurse."""

_LARGEST = 1e15
"""Bound of what is taken for a measurement."""

_MAX_INTEGER = 2**63 - 1
_MAX_VALUES = 100_000
_INTEGER_DIGITS = 20
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")  # `\ud83d`, written out in JSON


def unpack(data: bytes, *, limit: int = MAX_BYTES) -> bytes:
    """The content of a gzip file, at most `limit` bytes of it.

    Raises:
        ValueError: when it is no gzip file, is truncated, or holds more than `limit` bytes.
    """
    decoder = zlib.decompressobj(wbits=31)
    try:
        content = decoder.decompress(data, limit + 1)
    except zlib.error as error:
        raise ValueError(f"it is not a sound gzip file: {error}") from error
    if len(content) > limit:
        raise ValueError(f"it unpacks to more than {limit} bytes, the limit for such a file")
    if not decoder.eof:
        raise ValueError("the gzip file is truncated")
    return content


def parse_json(data: bytes | str, *, depth: int = MAX_DEPTH, exact: bool = False) -> Any:
    """The value of a JSON text that someone else wrote.

    NaN and infinities are accepted, for trainers write them. An integer beyond 64 bits becomes a float, and a lone
    surrogate a replacement character, for neither survives what is done with the value later; with `exact`, for a value
    that is written again, both stay.

    Raises:
        ValueError: when it is no JSON, or is nested deeper than `depth`.
    """
    import json  # which `check` of a runbook does without

    text = data if isinstance(data, str) else data.decode("utf-8", "replace")
    try:
        value = json.loads(text, parse_int=int if exact else _integer)
    except RecursionError as error:
        raise ValueError(f"it is nested deeper than {depth} levels") from error
    _require_shallow(value, depth)
    return _without_surrogates(value) if not exact and _SURROGATE.search(text) else value


def number_at(found: Any, *keys: str, least: float = -_LARGEST) -> float | None:
    """The number behind nested keys of a parsed document; None where there is none from `least` to 1e15."""
    for key in keys:
        found = found.get(key) if isinstance(found, Mapping) else None
    if isinstance(found, bool) or not isinstance(found, (int, float)) or not least <= found < _LARGEST:
        return None  # of NaN no comparison is true
    return float(found)


def parse_yaml(text: str) -> Any:
    """The value of a YAML text that someone else wrote, of plain types alone.

    Raises:
        ValueError: when it is no YAML, is nested too deep, refers to itself, or is too large with its aliases written
            out.
    """
    import yaml

    try:
        depth = 0
        for event in yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > MAX_DEPTH:
                raise ValueError(f"it is nested deeper than {MAX_DEPTH} levels")
        value = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(f"it is no sound YAML: {error}") from error
    if _written_out(value, {}) > _MAX_VALUES:
        raise ValueError(f"it refers to itself, or holds more than {_MAX_VALUES} values with its aliases written out")
    return value


def _written_out(value: object, known: dict[int, int]) -> int:
    """How many values a value holds, shared ones counted at every place."""
    if not isinstance(value, (dict, list)):
        return 1
    if id(value) not in known:
        known[id(value)] = _MAX_VALUES + 1  # what it counts as within itself
        children = value.values() if isinstance(value, dict) else value
        known[id(value)] = 1 + sum(_written_out(child, known) for child in children)
    return known[id(value)]


def _integer(digits: str) -> int | float:
    value = int(digits) if len(digits) <= _INTEGER_DIGITS else float(digits)
    return value if abs(value) <= _MAX_INTEGER else float(value)


def _require_shallow(value: object, depth: int) -> None:
    level = [value]
    for _ in range(depth):
        level = [
            child
            for one in level
            if isinstance(one, (dict, list))
            for child in (one.values() if isinstance(one, dict) else one)
            if isinstance(child, (dict, list))
        ]
        if not level:
            return
    raise ValueError(f"it is nested deeper than {depth} levels")


def _without_surrogates(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [_without_surrogates(one) for one in value]
    if isinstance(value, dict):
        return {_without_surrogates(key): _without_surrogates(one) for key, one in value.items()}
    return value
