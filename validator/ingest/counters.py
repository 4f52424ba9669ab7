"""`logs/counters.json`: errors that links and memories had counted before and after the run."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from validator.ingest.accounts import read_json_object
from validator.ingest.read_log import ReadLog, printable
from validator.model.counters import Counted

_MOST = 10_000
"""Counters that are read of one file."""


def read_counters(path: Path, read_log: ReadLog, *, node: str = "") -> Counted | None:
    """What grew on a node; None, and noted, where the file is not of this kind. A counter that was set back counts from
    0."""
    read = read_json_object(path, read_log, what="the counters of errors")
    if read is None:
        return None
    before, after, seconds = (_counts(read[0].get("before")), _counts(read[0].get("after")), read[0].get("seconds"))
    if not isinstance(seconds, (int, float)) or isinstance(seconds, bool) or not math.isfinite(seconds):
        seconds = 0.0
    grown = {}
    for name, count in after.items():
        earlier = before.get(name, 0)
        by = count - earlier if count >= earlier else count
        if by > 0:
            grown[name] = by
    return Counted(float(seconds), grown, read[1].path, node)


def _counts(found: Any) -> dict[str, int]:
    items = list(found.items())[:_MOST] if isinstance(found, dict) else []
    return {
        printable(str(name), limit=80): value
        for name, value in items
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0
    }
