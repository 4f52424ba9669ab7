"""What programs say of themselves: `env.json` and `metrics.json`, pytest's report, and signs of trouble in logs."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from validator.documents import parse_json
from validator.files import is_file, open_file, stat_file
from validator.ingest.read_log import ReadLog, clean, printable, read_small
from validator.model.result import LogHit, NamedTest, ScalarValue, SourceFile, UnpassedTests
from validator.model.schemas import SCALARS

_MAX_SCALARS = 5000


def read_json_object(path: Path, read_log: ReadLog, *, what: str) -> tuple[dict[str, Any], SourceFile] | None:
    """A file that holds one JSON object, texts made printable; None, and an irregularity, when it does not."""
    read = read_small(path, read_log, what=what)
    if read is None:
        return None
    data, source = read
    text = data.decode("utf-8-sig", "replace")
    if "\ufffd" in text and text.encode("utf-8") not in (data, data.removeprefix(b"\xef\xbb\xbf")):
        read_log.note("not-utf8", f"{what} holds bytes that are not UTF-8", path)
    try:
        value = parse_json(text)
    except ValueError as error:
        read_log.note("not-json", f"{what} is not JSON: {error}", path)
        return None
    if not isinstance(value, dict):
        read_log.note("not-json", f"{what} holds a {type(value).__name__} where an object is expected", path)
        return None
    return clean(value), source


def printed_object(path: Path, read_log: ReadLog, *, what: str) -> dict[str, Any] | None:
    """The JSON object in what a program printed, texts made printable; None, and an irregularity, where it has none."""
    read = read_small(path, read_log, what=what) if is_file(path) else None
    text = "" if read is None else read[0].decode("utf-8", "replace")
    found: Any = None
    try:
        found, _ = json.JSONDecoder().raw_decode(text, text.index("{"))
    except (ValueError, RecursionError):
        read_log.note("not-json", f"{what} printed no JSON object", path)
    return clean(found) if isinstance(found, dict) else None


def scalar(name: str, value: float | None, source: str | None = None) -> dict[str, ScalarValue]:
    """The scalar under its catalogued unit; nothing when there is no value."""
    return {} if value is None else {name: ScalarValue(value=value, unit=SCALARS[name].unit, source=source)}


def flat(config: Any) -> dict[str, Any] | None:
    """A config as name to value. A nested section's leaf has its own name, or by its whole path if that is taken.

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


# JUnit XML as pytest writes it: how many tests passed, and the names of those that did not.
#
# A test that was started and not ended has an entry without a name. The tests after it have no entry: only the log
# shows that they were selected.

_LISTED = 500
_HEAD_BYTES = 1 << 20
_COLLECTED = re.compile(rb"^(?:collecting \.\.\. ?)?collected (?P<every>\d{1,9}) items?(?P<rest>[^\n]*)$", re.M)
_COUNT = re.compile(rb" (?P<count>\d{1,9}) (?P<what>selected|skipped)\b")
_COLOR = re.compile(rb"\x1b\[[0-9;]*[A-Za-z]")


def tests_to_run(log: Path) -> int | None:
    """How many entries pytest meant to make, by what it printed at the start; None where it did not say (`-q`).

    A file that is skipped as a whole is none of the collected items and has an entry all the same.
    """
    try:
        with open_file(log) as file:
            head = _COLOR.sub(b"", file.read(_HEAD_BYTES)).replace(b"\r", b"\n")
    except OSError:
        return None
    found = _COLLECTED.search(head)
    if found is None:
        return None
    counts = {one["what"]: int(one["count"]) for one in _COUNT.finditer(found["rest"])}
    return counts.get(b"selected", int(found["every"])) + counts.get(b"skipped", 0)


def read_junit(path: Path, read_log: ReadLog) -> tuple[dict[str, ScalarValue], UnpassedTests] | None:
    """Counts as `tests.*` scalars, and the tests that did not pass by name.

    Cases are counted one by one rather than taken from the suite's attributes, so that a file with a wrong summary
    cannot pass. A document type is refused, since it can make a parser expand without bound.
    """
    read = read_small(path, read_log, what="the test report")
    if read is None:
        return None
    data, source = read
    if b"<!DOCTYPE" in data or b"<!ENTITY" in data:
        read_log.note("not-junit", "the test report declares a document type and was not read", path)
        return None
    try:
        root = ET.fromstring(data)
    except (ET.ParseError, ValueError, LookupError) as error:
        read_log.note("not-junit", f"the test report is not XML: {error}", path)
        return None
    counts = {"passed": 0, "failed": 0, "errors": 0, "skipped": 0}
    named: dict[str, list[NamedTest]] = {"failed": [], "errors": [], "skipped": []}
    for case in root.iter("testcase"):
        if not (case.get("name") or case.get("classname")):
            continue
        kind, message = _test_outcome(case)
        counts[kind] += 1
        if kind != "passed" and len(named[kind]) < _LISTED:
            name = "::".join(part for part in (case.get("classname"), case.get("name")) if part)
            named[kind].append(NamedTest(printable(name), printable(message)))
    counts["total"] = sum(counts.values())
    scalars = {
        f"tests.{name}": ScalarValue(value=float(count), unit="tests", source=source.path)
        for name, count in counts.items()
    }
    return scalars, UnpassedTests(**{kind: tuple(found) for kind, found in named.items()})


def _test_outcome(case: ET.Element) -> tuple[str, str]:
    for tag, kind in (("error", "errors"), ("failure", "failed"), ("skipped", "skipped")):
        child = case.find(tag)
        if child is not None:
            return kind, child.get("message") or (child.text or "").strip()
    return "passed", ""


# Signs of trouble in logs, found in one bounded look at each file.

SCAN_BYTES = 8 * 2**20
"""Read from the head, and as much from the tail, of a log that is longer."""

MAX_LINE = 8192
HITS = 5
REPEATED = frozenset({"nan_row"})
"""Kinds that count by how often they come: the same text is kept again."""

MANY = {"eta": 500, "skipped_steps": 2000}
"""Lines kept of kinds of which a late one counts: the end that is promised while a model compiles is far away, and what
an optimizer skipped is counted to the end."""

LOOKS = 2000
"""Lines with a word that are matched against the pattern, for each word and file."""


@dataclass(frozen=True)
class Sign:
    """`words` in lower case, one of which every line that matches `pattern` holds."""

    words: tuple[bytes, ...]
    pattern: re.Pattern[bytes]


_FACTOR = r"\d[\d,]{0,15}(?:\.\d{1,15})?"
"""A number of bounded length: a line of digits must not be searched from each of them to its end."""


def _sign(words: str, *patterns: str) -> Sign:
    return Sign(tuple(word.encode() for word in words.split("|")), re.compile("|".join(patterns).encode()))


_EVALUATION = ("val", "valid", "validation", "eval", "evaluation", "test", "dev", "best", "min", "lowest", "ema")
"""What a loss is of that is NaN until it is first known, or is none of a training."""

_CELL = r"[ \t]{0,60}(?:[:=|]|│|┃)[ \t]{0,60}"
"""Between a name and its value, in a line of words or in a table."""

_IN_TRAINING = rf"(?!(?:[\w./-]{{0,40}}?[_/.-])?(?:{'|'.join(_EVALUATION)})(?:[_/.-]|loss|ppl))" + "".join(
    rf"(?<!\b{word}{between})"
    for word in _EVALUATION
    for between in (r"[\W_]", r"[\W_] ", r" [\W_] ", r"[\"']:\{[\"']", r"[\"']: \{[\"']")
)


def _loss_of(value: str) -> str:
    """A pattern for the name of a loss or perplexity in training with what follows it; the costly part comes last."""
    part = rf"(?:_(?!{'|'.join(_EVALUATION)}|scale)[a-z]\w{{0,12}})?"
    return rf"(?i:(?<![\w./-])(?=[\w./-]{{0,60}}(?:loss{part}|perplexity|ppl){value}){_IN_TRAINING})"


SIGNS: Mapping[str, Sign] = {
    "oom": _sign(
        "out of memory|outofmemoryerror|alloc_failed|memoryerror|oom-kill|defaultcpuallocator|cannot allocate memory",
        r"CUDA out of memory|OutOfMemoryError|CUBLAS_STATUS_ALLOC_FAILED|MemoryError\b|oom-kill",
        r"DefaultCPUAllocator: (?:can't|not enough)|Cannot allocate memory",
    ),
    "port_in_use": _sign("eaddrinuse|address already in use", r"EADDRINUSE|[Aa]ddress already in use"),
    "disk_full": _sign(
        "no space left|enospc|disk quota exceeded",
        r"(?m:^)(?!.{0,300}inotify).{0,2000}(?:No space left on device|ENOSPC|Disk quota exceeded)",
    ),
    "nccl": _sign(
        "nccl|watchdog caught|distbackenderror|distnetworkerror|connection closed by peer",
        r"NCCL error|ncclUnhandledCudaError|ncclSystemError|ncclInternalError|ncclRemoteError|ncclInvalidUsage",
        r"Watchdog caught collective operation timeout|NCCL WARN|DistBackendError|DistNetworkError",
        r"Connection closed by peer",
    ),
    "nan_loss": _sign(
        "nan",
        # `loss: nan`, `| value_loss   | nan |`: a part of what is trained as well, since that is the sum of its parts
        _loss_of(rf"['\"]?{_CELL}['\"]?nan(?![\w/-])"),
        # `loss nan lr 0.1`, not a sentence as `loss NaN detection is on`
        _loss_of(r"[ \t]{1,60}nan(?=\s{0,3}(?:$|[,;|)\]}\r\n]|\w{1,20}[ :=]{1,3}[-+]?[\d.n]))"),
    ),
    "nan_row": _sign(
        "nan",
        rf"(?i:(?<![^\n])[^\w\n]{{0,60}}(?:train(?:ing)?[_/. ])?loss['\"]?{_CELL}['\"]?nan[^\w\n]{{0,60}}(?![^\n]))",
    ),
    "nan_words": _sign(
        "loss",
        r"(?i:\bnon-?finite\s(?:\w+\s)?loss\b|\b(?:nan|inf)\b[^\n]{0,20}\bloss\b)",
        r"(?i:\bloss\b[^\n]{0,20}\b(?:not finite|non-?finite|nan|inf|infinity|infinite)\b)",
    ),
    "stale_halt": _sign(".halt|halt f", r"\.HALT\b|\bHALT (?:file|flag)\b"),
    "eta": _sign(
        "eta|remaining|time left| steps",
        r"(?i:\bETA\b|\bremaining\b|time left)[^\n]{0,40}?\d",
        r"\d\s?(?:h|hours|days?)\b[^\n]{0,12}\bfor [\d,]+ steps",
    ),
    "skipped_steps": _sign("skipped=", r"\bstep=\d{1,12}, skipped=\d{1,12}"),
    "speedup": _sign(
        "speedup|speed-up|faster",
        rf"{_FACTOR}\s?(?:x|×)\s{{0,2}}(?i:speed-?up|faster)",
        rf"(?i:speed-?up|faster)[^\d\n]{{0,12}}{_FACTOR}\s?(?:x|×)(?!\w)",
    ),
    "compression": _sign("gradient compression", r"(?i:gradient compression)"),
    "recompile_limit": _sign("_limit", r"torch\._dynamo hit config\.\w*(?:recompile|cache_size)_limit"),
    "mismatch": _sign("mismatch|differ", r"(?i:selection[^\n]{0,40}(?:mismatch|differ)|(?:v1|v2)[^\n]{0,20}mismatch)"),
    "dead_parameter": _sign(
        "dead parameter|grad",
        r"(?i:dead parameter|parameters? (?:that )?(?:did not receive|without|got no|never got a?) ?grad)",
    ),
}
"""Kinds of trouble or claims, and what gives them away."""


def scan(paths: tuple[Path, ...], read_log: ReadLog) -> dict[str, list[LogHit]]:
    """Signs of trouble by kind, at most a few of each kind and no text twice. Files that cannot be read are passed
    over."""
    hits: dict[str, list[LogHit]] = {}
    for path in paths:
        try:
            pieces = _head_and_tail(path)
        except OSError:
            continue
        for first_line, data in pieces:
            _scan_piece(data, first_line, read_log.name(path), hits)
    return hits


def _head_and_tail(path: Path) -> list[tuple[int | None, bytes]]:
    size = stat_file(path).st_size
    with open_file(path) as handle:
        head = handle.read(SCAN_BYTES)
        if size <= SCAN_BYTES:
            return [(1, head)]
        handle.seek(max(SCAN_BYTES, size - SCAN_BYTES))
        return [(1, head), (None, handle.read(SCAN_BYTES))]


def _scan_piece(data: bytes, first_line: int | None, name: str, hits: dict[str, list[LogHit]]) -> None:
    lower = data.lower()
    for kind, sign in SIGNS.items():
        for word in sign.words:
            for start, end in _lines_with(word, lower):
                if len(hits.get(kind, ())) >= MANY.get(kind, HITS):
                    break
                if sign.pattern.search(data, start, end) is None:
                    continue
                text = printable(data[start:end].decode("utf-8", "replace"))
                line = None if first_line is None else first_line + data.count(b"\n", 0, start)
                known = hits.setdefault(kind, [])
                if kind in REPEATED or not any(hit.text == text for hit in known):
                    known.append(LogHit(name, line, text))


def _lines_with(word: bytes, lower: bytes) -> list[tuple[int, int]]:
    """First and last offsets of the lines that hold a word, in bounds."""
    spans: list[tuple[int, int]] = []
    at = lower.find(word)
    while at >= 0 and len(spans) < LOOKS:
        start = lower.rfind(b"\n", max(0, at - MAX_LINE), at) + 1 or max(0, at - MAX_LINE)
        end = lower.find(b"\n", at, at + MAX_LINE)
        end = min(len(lower), at + MAX_LINE) if end < 0 else end
        spans.append((start, end))
        at = lower.find(word, end)
    return spans
