"""Signs of trouble in logs, found in one bounded look at each file.

A sign is first looked for by plain words, which is fast; only a line that holds one is held against its pattern.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from validator.collect.intake import Intake, printable
from validator.files import open_file, stat_file

__all__ = ["SIGNS", "Sign", "scan"]

SCAN_BYTES = 8 * 2**20
"""Read from the head, and as much from the tail, of a log that is longer."""

MAX_LINE = 8192
HITS = 5
MANY = {"eta": 500}
"""Lines kept of kinds of which a late one counts: the end that is promised while a model compiles is far away."""

LOOKS = 2000
"""Lines with a word that are held against the pattern, for each word and file."""


@dataclass(frozen=True)
class Sign:
    """`words` in lower case, one of which every line that matches `pattern` holds."""

    words: tuple[bytes, ...]
    pattern: re.Pattern[bytes]


_FACTOR = r"\d[\d,]{0,15}(?:\.\d{1,15})?"
"""A number of bounded length: a line of digits must not be searched from each of them to its end."""


def _sign(words: str, *patterns: str) -> Sign:
    return Sign(tuple(word.encode() for word in words.split("|")), re.compile("|".join(patterns).encode()))


SIGNS: Mapping[str, Sign] = {
    "oom": _sign(
        "out of memory|outofmemoryerror|alloc_failed|memoryerror|oom-kill|defaultcpuallocator|cannot allocate memory",
        r"CUDA out of memory|OutOfMemoryError|CUBLAS_STATUS_ALLOC_FAILED|MemoryError\b|oom-kill",
        r"DefaultCPUAllocator: (?:can't|not enough)|Cannot allocate memory",
    ),
    "port_in_use": _sign("eaddrinuse|address already in use", r"EADDRINUSE|[Aa]ddress already in use"),
    "disk_full": _sign(
        "no space left|enospc|disk quota exceeded", r"No space left on device|ENOSPC|Disk quota exceeded"
    ),
    "nccl": _sign(
        "nccl|watchdog caught|distbackenderror|distnetworkerror|connection closed by peer",
        r"NCCL error|ncclUnhandledCudaError|ncclSystemError|ncclInternalError|ncclRemoteError|ncclInvalidUsage",
        r"Watchdog caught collective operation timeout|NCCL WARN|DistBackendError|DistNetworkError",
        r"Connection closed by peer",
    ),
    "stale_halt": _sign(".halt", r"\.HALT\b"),
    "eta": _sign(
        "eta|remaining|time left| steps",
        r"(?i:\bETA\b|\bremaining\b|time left)[^\n]{0,40}?\d",
        r"\d\s?(?:h|hours|days?)\b[^\n]{0,12}\bfor [\d,]+ steps",
    ),
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


def scan(paths: tuple[Path, ...], intake: Intake) -> dict[str, list[dict[str, Any]]]:
    """Signs of trouble by kind: `{path, line, text}`, at most a few of each kind and no text twice.

    `line` is None in the tail of a log that is too long to be read whole. Files that cannot be read are passed over.
    """
    hits: dict[str, list[dict[str, Any]]] = {}
    for path in paths:
        try:
            pieces = _head_and_tail(path)
        except OSError:
            continue
        for first_line, data in pieces:
            _scan_piece(data, first_line, intake.name(path), hits)
    return hits


def _head_and_tail(path: Path) -> list[tuple[int | None, bytes]]:
    size = stat_file(path).st_size
    with open_file(path) as handle:
        head = handle.read(SCAN_BYTES)
        if size <= SCAN_BYTES:
            return [(1, head)]
        handle.seek(max(SCAN_BYTES, size - SCAN_BYTES))
        return [(1, head), (None, handle.read(SCAN_BYTES))]


def _scan_piece(data: bytes, first_line: int | None, name: str, hits: dict[str, list[dict[str, Any]]]) -> None:
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
                if not any(hit["text"] == text for hit in known):
                    known.append({"path": name, "line": line, "text": text})


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
