"""Which run folders may go: by count, age and size, never a pinned one, the last GO of its kind, or one still open."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path

from validator.files import Tree
from validator.history.read import Entry

__all__ = ["Retention", "expired", "folder_bytes", "is_run", "remove"]


@dataclass(frozen=True)
class Retention:
    """Limits on what is kept of one runbook; None is no limit. `bytes` is the size of all its run folders together."""

    count: int | None = None
    age_days: float | None = None
    bytes: int | None = None


def is_run(parent: Path, entry: Entry) -> bool:
    """Whether a folder is what `validator run` made: nothing else is ever removed, whatever its result.json says."""
    folder = parent / entry.folder
    try:
        with Tree(folder) as tree:
            header = tree.json("run.json")
    except (OSError, ValueError):
        return False
    return not folder.is_symlink() and isinstance(header, dict) and header.get("run_id") == entry.run_id


def expired(
    parent: Path, entries: Sequence[Entry], retention: Retention, *, now: datetime | None = None
) -> tuple[tuple[Entry, str], ...]:
    """The entries that exceed the limits, oldest first, each with why. `entries` are of one runbook, oldest first.

    Folders that are no run folders are left out, and count against no limit.
    """
    entries = [entry for entry in entries if is_run(parent, entry)]
    now = now or datetime.now(timezone.utc)
    safe = _safe(entries)
    found: dict[str, tuple[Entry, str]] = {}
    for place, entry in enumerate(reversed(entries)):
        if retention.count is not None and place >= retention.count:
            found[entry.folder] = (entry, f"more than {retention.count} runs")
        elif retention.age_days is not None and _started(entry, now) < now - timedelta(days=retention.age_days):
            found[entry.folder] = (entry, f"older than {retention.age_days:g} days")
    if retention.bytes is not None:
        total = 0
        for entry in reversed(entries):
            total += 0 if entry.folder in found and entry.folder not in safe else folder_bytes(parent / entry.folder)
            if total > retention.bytes and entry.folder not in found:
                found[entry.folder] = (entry, "beyond the space that is granted")
    return tuple(found[entry.folder] for entry in entries if entry.folder in found and entry.folder not in safe)


def _safe(entries: Sequence[Entry]) -> set[str]:
    """Pinned runs, open ones, the newest, and the last GO of each class of machine, which later runs are held to."""
    last_go = {entry.machine: entry.folder for entry in entries if entry.decision == "GO"}
    return {
        *last_go.values(),
        *(entry.folder for entry in entries if entry.pinned or entry.decision == "IN_PROGRESS"),
        *([entries[-1].folder] if entries else []),
    }


def _started(entry: Entry, now: datetime) -> datetime:
    """When it began; a time that cannot be read counts as now, so that nothing is removed for it."""
    try:
        found = datetime.fromisoformat(entry.started.replace("Z", "+00:00"))
    except ValueError:
        return now
    return found if found.tzinfo else found.replace(tzinfo=timezone.utc)


def folder_bytes(folder: Path) -> int:
    """Bytes of all files in a folder; links count as nothing."""
    with Tree(folder) as tree:
        return sum(entry.bytes for entry in tree.walk())


def remove(parent: Path, entries: Sequence[Entry]) -> None:
    """Remove run folders. A folder is renamed first, so that one half removed is never taken for a run."""
    for entry in entries:
        folder = parent / entry.folder
        grave = parent / f".removed-{entry.folder}"
        folder.rename(grave)
        shutil.rmtree(grave, ignore_errors=True)
