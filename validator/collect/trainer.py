"""`env.json` and `metrics.json`: the trainer's own account of its config, its software and its final figures."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from validator.collect.intake import Intake, clean, read_small
from validator.files import parse_json
from validator.model.measure import ScalarValue, SourceFile

__all__ = ["flat", "open_scalars", "read_json_object"]

_MAX_SCALARS = 5000


def read_json_object(path: Path, intake: Intake, *, what: str) -> tuple[dict[str, Any], SourceFile] | None:
    """A file that holds one JSON object, texts made printable; None, and an irregularity, when it does not."""
    read = read_small(path, intake, what=what)
    if read is None:
        return None
    data, source = read
    text = data.decode("utf-8-sig", "replace")
    if "\ufffd" in text and text.encode("utf-8") not in (data, data.removeprefix(b"\xef\xbb\xbf")):
        intake.note("not-utf8", f"{what} holds bytes that are not UTF-8", path)
    try:
        value = parse_json(text)
    except ValueError as error:
        intake.note("not-json", f"{what} is not JSON: {error}", path)
        return None
    if not isinstance(value, dict):
        intake.note("not-json", f"{what} holds a {type(value).__name__} where an object is expected", path)
        return None
    return clean(value), source


def flat(config: Any) -> dict[str, Any] | None:
    """A config as name to value. A nested section's leaf goes by its own name, or by its whole path if that is taken.

    None when `config` is not an object.
    """
    if not isinstance(config, dict):
        return None
    result: dict[str, Any] = {}

    def walk(section: Mapping[str, Any], path: tuple[str, ...]) -> None:
        for key, value in section.items():
            if isinstance(value, dict):
                walk(value, (*path, key))
            elif len(result) < _MAX_SCALARS:
                result["_".join((*path, key)) if key in result else key] = value

    walk(config, ())
    return result


def open_scalars(prefix: str, values: Mapping[str, Any], source: str) -> dict[str, ScalarValue]:
    """`prefix.name` for each number, text or truth value, with names made fit for a criterion."""
    scalars = {}
    for key, value in values.items():
        name = re.sub(r"\W", "_", key, flags=re.ASCII)
        if not name or name[0].isdigit():
            name = f"_{name}"
        if value is None or isinstance(value, (bool, str)):
            scalars[f"{prefix}.{name}"] = ScalarValue(value=_nan(value), source=source)
        elif isinstance(value, (int, float)):
            scalars[f"{prefix}.{name}"] = ScalarValue(value=float(value), source=source)
    return scalars


def _nan(value: str | bool | None) -> float | str | bool | None:
    """Trainers that write strict JSON spell NaN and infinities as texts."""
    if isinstance(value, str) and value.lower() in ("nan", "inf", "-inf", "infinity", "-infinity"):
        return float(value)
    return value
