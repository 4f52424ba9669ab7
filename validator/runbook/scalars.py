"""What a plain word in YAML means: the core schema of YAML 1.2 and nothing more.

`on`, `yes`, `12:30` and `0123` have been surprises for twenty years under YAML 1.1; here they are text, text, text and
the number 123.
"""

from __future__ import annotations

import re

__all__ = ["Scalar", "TagError", "plain_value", "tagged_value"]

Scalar = str | int | float | bool | None

_NULL = ("", "~", "null", "Null", "NULL")
_TRUE = ("true", "True", "TRUE")
_FALSE = ("false", "False", "FALSE")
_INTEGER = re.compile(r"[-+]?[0-9]{1,300}")
_OCTAL = re.compile(r"0o[0-7]{1,300}")
_HEX = re.compile(r"0x[0-9a-fA-F]{1,300}")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_INFINITY = re.compile(r"[-+]?\.(inf|Inf|INF)")
_NAN = (".nan", ".NaN", ".NAN")
_PREFIX = "tag:yaml.org,2002:"


class TagError(ValueError):
    """A tag that is not of the core schema, or a value that does not fit its tag."""


def plain_value(text: str) -> Scalar:
    """The value of an unquoted scalar."""
    if text in _NULL:
        return None
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    if _INTEGER.fullmatch(text):
        return int(text)
    if _OCTAL.fullmatch(text) or _HEX.fullmatch(text):
        return int(text, 0)
    if _FLOAT.fullmatch(text):
        return float(text)
    if _INFINITY.fullmatch(text):
        return float(text.replace(".", ""))
    return float("nan") if text in _NAN else text


def tagged_value(tag: str, text: str) -> Scalar:
    """The value of a scalar with an explicit tag such as `!!str`.

    Raises:
        TagError: for any tag but str, int, float, bool and null, and for a value that does not fit.
    """
    name = tag.removeprefix(_PREFIX)
    if name in ("str", "!"):
        return text
    value = plain_value(text)
    if name == "float" and type(value) is int:
        return float(value)
    kinds: dict[str, type] = {"int": int, "float": float, "bool": bool, "null": type(None)}
    if name not in kinds:
        raise TagError(f"tag {tag.replace(_PREFIX, '!!')} is not supported")
    if type(value) is not kinds[name]:
        raise TagError(f"{text!r} is not of the type !!{name}")
    return value
