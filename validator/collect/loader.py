"""What is known of a run's data loader: its first batch, why there was none, and how it does alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from validator.collect.derive import scalar
from validator.collect.heartbeat import find_heartbeats
from validator.collect.intake import Intake, clean, printable, read_small
from validator.files import is_file, open_file, parse_json
from validator.model.measure import ScalarValue

__all__ = ["UNREACHABLE", "read_loader", "read_smoke"]

UNREACHABLE = "unreachable"
"""The word by which a loader says that its source cannot be reached from here."""

_EDGE_BYTES = 256 * 2**10
_SMOKE = {
    "first_batch_s": "smoke.first_batch_s",
    "toks_per_s": "smoke.toks_per_s",
    "fetch_p95_ms": "smoke.fetch_p95_ms",
}


def read_loader(out: Path, pattern: str | None, intake: Intake) -> tuple[dict[str, ScalarValue], dict[str, Any]]:
    """From the heartbeats: how long the slowest rank waited for its first batch, and the error where none came.

    `extra["loader_error"]` holds {rank, path, error, unreachable} of the first rank that gave up.
    """
    if pattern is None:
        return {}, {}
    waits: dict[int, tuple[float, Path]] = {}
    extra: dict[str, Any] = {}
    for rank, path in find_heartbeats(out, pattern).items():
        booted: float | None = None
        for record in _edges(path):
            message, ts = record.get("msg"), record.get("ts")
            if message == "boot" and isinstance(ts, (int, float)):
                booted = float(ts)
            elif message == "loader_ready" and booted is not None and isinstance(ts, (int, float)):
                waits.setdefault(rank, (float(ts) - booted, path))
            elif message == "loader_error" and "loader_error" not in extra:
                error = printable(str(record.get("error") or "no reason was given"))
                reason = f"{record.get('reason') or ''} {error}".lower()
                extra["loader_error"] = {
                    "rank": rank,
                    "path": intake.name(path),
                    "error": error,
                    "unreachable": UNREACHABLE in reason,
                }
    if not waits:
        return {}, extra
    wait_s, path = max(waits.values(), key=lambda one: one[0])
    return scalar("startup.first_batch_s", max(0.0, wait_s), intake.name(path)), extra


def _edges(path: Path) -> Iterator[dict[str, Any]]:
    """The records at the beginning and at the end of a heartbeat, where the loader speaks."""
    try:
        with open_file(path) as handle:
            head = handle.read(_EDGE_BYTES)
            size = handle.seek(0, 2)
            handle.seek(max(len(head), size - _EDGE_BYTES))
            tail = handle.read(_EDGE_BYTES)
    except OSError:
        return
    for line in (*head.split(b"\n"), *tail.split(b"\n")):
        if b"boot" not in line and b"loader_" not in line:
            continue
        try:
            record = parse_json(line)
        except ValueError:
            continue
        if isinstance(record, dict):
            yield record


def read_smoke(out: Path, intake: Intake) -> tuple[dict[str, ScalarValue], dict[str, Any]]:
    """The JSON object that a loader's trial printed: its figures, and the whole as `extra["smoke"]`."""
    path = out / "logs" / "stdout.log"
    read = read_small(path, intake, what="the loader's trial") if is_file(path) else None
    text = "" if read is None else read[0].decode("utf-8", "replace")
    found: Any = None
    try:
        found, _ = json.JSONDecoder().raw_decode(text, text.index("{"))
    except (ValueError, RecursionError):
        intake.note("not-json", "the loader's trial printed no JSON object", path)
    if not isinstance(found, dict):
        return {}, {}
    told = clean(found)
    scalars: dict[str, ScalarValue] = {}
    for key, name in _SMOKE.items():
        value = told.get(key)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            scalars |= scalar(name, float(value), intake.name(path))
    return scalars, {"smoke": told}
