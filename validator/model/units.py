"""Durations and sizes as people write them (`30m`, `1h30m`, `5 GiB`), held as seconds and bytes.

Numbers without a unit are refused: `timeout: 30` has been read as seconds by one person and minutes by another.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import PurePosixPath
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    TypeAdapter,
)
from pydantic_core import core_schema


def _below(path: str) -> str:
    parts = PurePosixPath(path)
    if parts.is_absolute() or ".." in parts.parts or "\0" in path:
        raise ValueError(f"the path {path!r} does not lie below the run folder")
    return path


PathBelow = Annotated[str, AfterValidator(_below)]
"""A path relative to the run folder that does not leave it; a journal may come from another machine."""

Identifier = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]
"""Lower-case letters, digits and underscores, so that a criterion can name it."""

RunId = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,254}$")]
"""Name of a run folder. It becomes part of other paths, and of the text of runbooks."""


Flag = Annotated[bool, Field(strict=True)]
"""True or false as YAML writes it: `"no"` and `off` are texts, and 0 is a number."""


class Frozen(BaseModel):
    """An immutable model that rejects unknown fields, so that a misspelled key is never ignored.

    Every command that reads a runbook makes these models. They are built when they are first used; a part that many of
    them have sets `defer_build=False`, so that each takes it as built. Modules of a runbook's models do without
    `from __future__ import annotations`: pydantic would evaluate each text.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=True, defer_build=True)


class Reads:
    """Of a type: what a runbook may write, and `read`, which makes of it a value that the type accepts.

    As pydantic's `BeforeValidator`, with a `PlainSerializer` where `write` is given. These look at the signatures of
    their functions, and make the schema of `written`, for each field of the type at every start.

    Args:
        written: the type of what may be written, or its JSON Schema.
        write: the text of a value in what is dumped, from which it can be read again.
    """

    def __init__(self, read: Callable[[Any], Any], *, written: Any, write: Callable[[Any], str] | None = None) -> None:
        self._read, self._written, self._write = read, written, write

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        dumped = None
        if self._write is not None:
            text = core_schema.str_schema()
            dumped = core_schema.plain_serializer_function_ser_schema(self._write, return_schema=text)
        return core_schema.no_info_before_validator_function(self._read, handler(source), serialization=dumped)

    def __get_pydantic_json_schema__(self, schema: Any, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        if isinstance(self._written, dict):
            return {**self._written}
        return handler(TypeAdapter(self._written).core_schema)


_SECONDS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_BYTES = {
    "B": 1,
    "kB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}
# One part of `1h30m`: a number and its unit.
_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)\s*")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]+)")


def parse_duration(value: object) -> float:
    """Seconds in a duration such as `90s`, `30m`, `1h30m` or `250ms`.

    Raises:
        ValueError: when the value has no unit or cannot be read; the message shows how to write it.
    """
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise ValueError(f"duration {value!r} is not text; write a number with a unit, such as 90s, 30m or 1h30m")
    text = str(value).strip()
    if re.fullmatch(r"\d+(\.\d+)?", text):
        raise ValueError(f"duration {text} has no unit; write {text}s, {text}m or {text}h")
    total, end = 0.0, 0
    for part in _DURATION_PART.finditer(text):
        if part.start() != end:
            break
        total += float(part[1]) * _SECONDS[part[2]]
        end = part.end()
    if not text or end != len(text):
        raise ValueError(f"duration {text!r} cannot be read; write it as 90s, 30m, 1h30m or 2d")
    return total


def parse_size(value: object) -> int:
    """Bytes in a size such as `5 GiB`, `512MiB` or `1 GB`.

    Raises:
        ValueError: when the value has no unit or an unknown one; the message lists the units.
    """
    match = _SIZE.fullmatch(str(value).strip()) if not isinstance(value, bool) else None
    if match is None:
        raise ValueError(f"size {value!r} cannot be read; write a number with a unit, such as 5 GiB or 512 MiB")
    unit = next((name for name in _BYTES if name.lower() == match[2].lower()), None)
    if unit is None:
        raise ValueError(f"size {value!r} has the unknown unit {match[2]!r}; use one of {', '.join(_BYTES)}")
    return round(float(match[1]) * _BYTES[unit])


def _duration_text(seconds: float) -> str:
    return f"{seconds:.9f}".rstrip("0").rstrip(".") + "s"


Duration = Annotated[
    float,
    Reads(
        parse_duration,
        written={"type": "string", "description": "A duration with its unit.", "examples": ["90s", "30m", "1h30m"]},
        write=_duration_text,
    ),
]
Size = Annotated[
    int,
    Reads(
        parse_size,
        written={"type": "string", "description": "A size with its unit.", "examples": ["5 GiB", "512 MiB"]},
        write=lambda size_bytes: f"{size_bytes} B",
    ),
]
