"""Numbers and foreign text as people read them: four significant digits, units, no control characters."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Mapping, Sequence

__all__ = [
    "clean",
    "one_line",
    "format_interval",
    "format_margin",
    "format_number",
    "format_percent",
    "format_quantity",
    "format_value",
    "plural",
    "shorten",
    "text_width",
]

NO_BREAK = "\u00a0"
MAX_TEXT = 4000
"""Characters shown of one piece of foreign text; the artifact holds the rest."""

# Everything that can hide, reorder or forge text: C0 and C1 controls (but tab and newline), bidirectional overrides,
# zero-width characters, lone surrogates and non-characters (which XML cannot hold either).
_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u200e\u200f\u2028\u2029\u202a-\u202e\u2060-\u2069\ufeff"
    "\ufff9-\ufffc\ufffe\uffff\ud800-\udfff]"
)
_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\)|[@-Z\\-_])")


def clean(text: object, *, limit: int = MAX_TEXT) -> str:
    """Foreign text made harmless: terminal escapes dropped, other controls shown as `\\xNN`, and not too long."""
    plain = _ANSI.sub("", str(text).replace("\r\n", "\n"))
    return shorten(_UNSAFE.sub(lambda match: _escape(match[0]), plain), limit=limit)


def one_line(text: object, *, limit: int = MAX_TEXT) -> str:
    """`clean`, with line breaks and tabs shown as `\\n` and `\\t`."""
    return clean(text, limit=limit).replace("\n", "\\n").replace("\t", "\\t")


def _escape(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def shorten(text: str, *, limit: int) -> str:
    """At most `limit` characters, cut at the end with a note of how many were left out."""
    if len(text) <= limit:
        return text
    return f"{text[:limit]}… [{len(text) - limit:,} more characters]"


def format_number(value: float | None) -> str:
    """At most four significant digits, thousands separated: `847`, `12,345`, `0.9713`, `3.2e-5`; `–` for None.

    Whole numbers below a billion are shown in full, so that steps and counts are never rounded; a value that was
    given with fewer digits gets no zeros added.
    """
    if value is None:
        return "–"
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "∞" if value > 0 else "−∞"
    size = abs(value)
    if value == int(value) and size < 1e9:
        return _minus(f"{int(value):,}")
    if size >= 1e9 or size < 1e-4:
        return _minus(re.sub(r"\.?0*e([+-])0*", r"e\1", f"{value:.3e}"))
    digits = max(0, 3 - math.floor(math.log10(float(f"{size:.3e}"))))
    written = repr(size).partition(".")[2]
    return _minus(f"{value:,.{min(digits, len(written)) if 'e' not in written else digits}f}")


def _minus(text: str) -> str:
    return text.replace("-", "−", 1) if text.startswith("-") else text


def format_quantity(value: float | None, unit: str = "") -> str:
    """A number with its unit, kept on one line: `847.2 tok/s`, `61 %`."""
    if value is None:
        return "–"
    return format_number(value) + (NO_BREAK + one_line(unit, limit=20) if unit else "")


def format_value(value: object, unit: str = "") -> str:
    """Any observed value: numbers by `format_quantity`, truth as yes or no, the rest as cleaned text."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return format_quantity(value, unit)
    if isinstance(value, Mapping):
        return ", ".join(f"{one_line(k)}: {format_value(v)}" for k, v in value.items()) or "–"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(format_value(item) for item in value) or "–"
    return clean(value) or "–"


def format_interval(low: float | None, high: float | None) -> str:
    """A confidence interval, `[812.1, 861.4]`; empty when there is none."""
    if low is None or high is None:
        return ""
    return f"[{format_number(low)}, {format_number(high)}]"


def format_margin(margin: float | None) -> str:
    """Relative distance from the bound with its sign: `+12.3 %` on the good side, `−4.0 %` on the bad one."""
    if margin is None:
        return "–"
    if not math.isfinite(margin):
        return format_number(margin)
    percent = margin * 100
    text = f"{percent:+,.0f}" if abs(percent) >= 1000 else f"{percent:+.1f}"
    return _minus(text) + NO_BREAK + "%"


def format_percent(share: float | None) -> str:
    """A share as percent with three significant digits and at most three decimals: `2.1 %`, `0.007 %`."""
    if share is None or not math.isfinite(share):
        return format_number(share)
    percent = share * 100
    if percent == 0:
        return f"0{NO_BREAK}%"
    size = abs(percent)
    digits = 0 if size >= 100 else 1 if size >= 10 else 2 if size >= 0.1 else 3
    return _minus(f"{percent:,.{digits}f}") + NO_BREAK + "%"


def plural(count: int, noun: str, nouns: str | None = None) -> str:
    """`1 run`, `2 runs`, `2 criteria`."""
    return f"{count:,} {noun if count == 1 else nouns or noun + 's'}"


def text_width(text: str) -> int:
    """Columns that a text takes in a terminal: wide East Asian characters count twice, combining ones not at all."""
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)
