"""Values as people read them: one form of a number in sentences, columns and charts, and text that can do no harm."""

from __future__ import annotations

import codecs
import difflib
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime

from validator.times import parse_time

MISSING = "–"
"""A value that is not there."""

MAX_TEXT = 4000
"""Characters shown of one text of another program; the artifact holds the rest."""

# Everything that can hide, reorder or forge text: C0 and C1 controls (but tab and newline), bidirectional overrides,
# zero-width characters, lone surrogates and non-characters (which XML cannot hold either).
_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u200e\u200f\u2028\u2029\u202a-\u202e\u2060-\u2069\ufeff"
    "\ufff9-\ufffc\ufffe\uffff\ud800-\udfff]"
)
_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\)|[@-Z\\-_])")


def clean(text: object, *, limit: int = MAX_TEXT) -> str:
    """Text of another program made harmless: no terminal escapes, other controls as `\\xNN`, and not too long."""
    plain = _ANSI.sub("", str(text).replace("\r\n", "\n"))
    return shorten(_UNSAFE.sub(lambda match: _escape(match[0]), plain), limit=limit)


def one_line(text: object, *, limit: int = MAX_TEXT) -> str:
    """`clean`, with line breaks and tabs shown as `\\n` and `\\t`."""
    return clean(text, limit=limit).replace("\n", "\\n").replace("\t", "\\t")


def brief(text: object, *, limit: int = 60) -> str:
    """A line of at most `limit` characters, which ends in an ellipsis where some are left out."""
    line = one_line(text)
    return line if len(line) <= limit else f"{line[: limit - 1].rstrip()}…"


def _escape(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def on_actions(environment: Mapping[str, str]) -> bool:
    """Whether this process runs in a job of GitHub Actions."""
    return environment.get("GITHUB_ACTIONS", "") not in ("", "false")


_PART = re.compile(r"[^\r\n]+|[\r\n]")
_BLANK = re.compile(r"[\s\x85\u200b\ufeff]*")


class CommandGuard:
    """Takes from text what the runner of GitHub Actions, which reads a job's output, would carry out as a command.

    That is a line whose first characters, blanks aside, are `::`, and `##[` anywhere in a line. One sign of it is
    escaped as JSON writes it, so that JSON stays the same value. The text comes in pieces, in order.
    """

    def __init__(self) -> None:
        self.at_start = True
        self._before = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")

    def guarded(self, text: str) -> str:
        """The next piece of the text."""
        return "".join(map(self._part, _PART.findall(text)))

    def guarded_bytes(self, data: bytes, *, final: bool = False) -> bytes:
        """The next piece of a text in UTF-8; bytes that are none stay as they are."""
        return self.guarded(self._decoder.decode(data, final)).encode("utf-8", "surrogateescape")

    def _part(self, part: str) -> str:
        if part in ("\r", "\n"):
            self.at_start, self._before = True, ""
            return part
        before, self._before = self._before, (self._before + part)[-2:]
        if self.at_start:
            blank = _BLANK.match(part)
            first = 0 if blank is None else blank.end()
            self.at_start = first == len(part)
            # A colon that ends the piece may be followed by another.
            if part[first : first + 2] in ("::", ":"):
                part = f"{part[:first]}\\u003a{part[first + 1 :]}"
        return (before + part).replace("##[", "##\\u005b")[len(before) :]


def shorten(text: str, *, limit: int) -> str:
    """At most `limit` characters, cut at the end with a note of how many were left out."""
    if len(text) <= limit:
        return text
    return f"{text[:limit]}… [{len(text) - limit:,} more characters]"


def format_number(value: float | None, *, digits: int = 4) -> str:
    """At most `digits` significant digits, thousands separated: `847`, `12,345`, `0.9713`, `-4`, `3.2e-5`.

    Whole numbers below a billion are shown in full, so that steps and counts are never rounded. No zeros are added. The
    minus sign is the one of keyboards, so that a number can be found again in a file and written into a runbook.
    """
    if value is None:
        return MISSING
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "∞" if value > 0 else "-∞"
    size = abs(value)
    if size < 1e9 and value == int(value):
        return f"{int(value):,}"
    if size >= 1e9 or size < 1e-4:
        # `3.200e-05` → `3.2e-5`, `1.000e+09` → `1e+9`
        return re.sub(r"\.?0*e([+-])0*", r"e\1", f"{value:.{digits - 1}e}")
    rounded = float(f"{size:.{digits - 1}e}")  # 9.9996 has one digit before the point, and two when it is rounded
    decimals = max(0, digits - 1 - math.floor(math.log10(rounded)))
    text = f"{value:,.{decimals}f}"
    return text.rstrip("0").rstrip(".") if decimals else text


def format_p_value(value: float) -> str:
    """`p = 0.012`."""
    return f"p = {format_number(value, digits=2)}"


def format_distinct(value: float, bound: float) -> tuple[str, str]:
    """Two numbers with as many digits as it takes to see that they differ: `38.996` and `39`."""
    shown = format_number(value), format_number(bound)
    for digits in range(5, 18):
        if value == bound or shown[0] != shown[1]:
            break
        shown = format_number(value, digits=digits), format_number(bound, digits=digits)
    return shown


def format_quantity(value: float | None, unit: str = "") -> str:
    """A number with its unit: `847.2 tok/s`, `61 %`."""
    if value is None or not unit:
        return format_number(value)
    return f"{format_number(value)} {one_line(unit, limit=20)}"


def format_value(value: object, unit: str = "") -> str:
    """Any observed value: numbers by `format_quantity`, truth as true or false, the rest as cleaned text."""
    if value is None:
        return MISSING
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return format_quantity(value, unit)
    if isinstance(value, Mapping):
        return ", ".join(f"{one_line(k)}: {format_value(v)}" for k, v in value.items()) or MISSING
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(format_value(item) for item in value) or MISSING
    return clean(value) or MISSING


def format_percent(share: float | None) -> str:
    """A share as a percentage of at most three significant digits and three decimals: `34 %`, `2.1 %`, `0.007 %`."""
    if share is None or not math.isfinite(share):
        return format_number(share)
    percent = 100 * share
    size = abs(percent)
    decimals = 0 if size >= 100 else 1 if size >= 10 else 2 if size >= 0.1 else 3
    return f"{format_number(round(percent, decimals))} %"


def format_change(share: float | None) -> str:
    """A relative difference as a percentage with its sign: `+12.3 %`, `-4.0 %`, `+1,234 %`."""
    if share is None or not math.isfinite(share):
        return format_number(share)
    percent = 100 * share
    return f"{percent:+,.0f} %" if abs(percent) >= 1000 else f"{percent:+.1f} %"


def format_interval(low: float | None, high: float | None, form: Callable[[float | None], str] = format_number) -> str:
    """A confidence interval, `[812.1, 861.4]`; empty when there is none."""
    return "" if low is None or high is None else f"[{form(low)}, {form(high)}]"


def format_time(moment: datetime | str, *, seconds: bool = True) -> str:
    """`2025-08-27 14:03:11 UTC` of a moment or of an ISO 8601 text; a text that names no time as it is."""
    read = parse_time(moment) if isinstance(moment, str) else moment
    if read is None:
        return one_line(moment, limit=60)
    return f"{read:%Y-%m-%d %H:%M:%S} UTC" if seconds else f"{read:%Y-%m-%d %H:%M} UTC"


def format_duration(seconds: float) -> str:
    """A duration for people: `0.4 s`, `12 s`, `3 min 20 s`, `2 h 5 min`, `3 d 4 h`; `unknown` if it is not finite."""
    if not math.isfinite(seconds):
        return "unknown"
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    for size, name, below, below_name in (
        (86400, "d", 3600, "h"),
        (3600, "h", 60, "min"),
        (60, "min", 1, "s"),
    ):
        if whole >= size:
            rest = whole % size // below
            return f"{whole // size} {name}" + (f" {rest} {below_name}" if rest else "")
    raise AssertionError("unreachable: every duration of a minute or more matches a size")


def format_size(size_bytes: float) -> str:
    """A size for people in binary units: `512 B`, `1.5 MiB`, `80.0 GiB`."""
    value = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def quoted(value: object) -> str:
    """A value as evidence quotes it: seven significant digits find it again in the file, seventeen hide it."""
    if not isinstance(value, float):
        return str(value)
    return f"{value:.0f}" if value.is_integer() and abs(value) < 1e15 else f"{value:.7g}"


def listed(names: Sequence[str], *, most: int = 5) -> str:
    """Names for a sentence, shortened: `a, b, c and 4 more`."""
    if len(names) <= most:
        return ", ".join(names)
    return f"{', '.join(names[:most])} and {len(names) - most} more"


def plural(count: int, noun: str, nouns: str | None = None) -> str:
    """`1 run`, `2 runs`, `2 criteria`."""
    return f"{count:,} {noun if count == 1 else nouns or noun + 's'}"


def nearest(word: str, known: Iterable[str], otherwise: str | None = None, *, cutoff: float = 0.5) -> str:
    """`did you mean X?` for the known name most similar to `word`, else `otherwise` or the list of known names."""
    names = list(known)
    close = difflib.get_close_matches(word, names, n=1, cutoff=cutoff)
    if close:
        return f"did you mean {close[0]}?"
    return otherwise if otherwise is not None else f"known: {', '.join(names)}"
