"""The index of runs: a JSON file next to the run folders, which remain authoritative.

It holds nothing that could not be read from the folders again: delete it, and the next command builds it again. It may
have come with a copied folder, so it is read like every file from elsewhere: what is not as this module writes it is
replaced. A database would be no such file, for opening one runs what it holds.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec

from validator.errors import FolderError
from validator.files import Tree
from validator.history.page import write_index
from validator.history.read import LARGEST, PIN, HistoryEntry, read_entry, run_folders, stamp_of
from validator.history.trend import Group, group_entries
from validator.runs.pushed import was_pushed
from validator.times import parse_time, utc_now


@dataclass(frozen=True)
class Retention:
    """Limits on what is kept of one runbook; None is no limit. `bytes` is the size of all its run folders together."""

    count: int | None = None
    age_days: float | None = None
    bytes: int | None = None


def is_run(parent: Path, entry: HistoryEntry) -> bool:
    """Whether a folder is what `validator run` made here: nothing else is removed, whatever its result.json says."""
    folder = parent / entry.folder
    try:
        with Tree(folder) as tree:
            header = tree.json("run.json")
    except (OSError, ValueError):
        return False
    own = not folder.is_symlink() and not was_pushed(folder)
    return own and isinstance(header, dict) and header.get("run_id") == entry.run_id


def expired(
    parent: Path, entries: Sequence[HistoryEntry], retention: Retention, *, now: datetime | None = None
) -> tuple[tuple[HistoryEntry, str], ...]:
    """The entries that exceed the limits, oldest first, each with why. `entries` are of one runbook, oldest first.

    Folders that are no run folders are left out, and count against no limit.
    """
    entries = [entry for entry in entries if is_run(parent, entry)]
    now = now or utc_now()
    safe = _safe(entries)
    age = None if retention.age_days is None else timedelta(days=retention.age_days)
    found: dict[str, tuple[HistoryEntry, str]] = {}
    for place, entry in enumerate(reversed(entries)):
        if retention.count is not None and place >= retention.count:
            found[entry.folder] = (entry, f"more than {retention.count} runs")
        # A time that cannot be read counts as now, so that nothing is removed for it.
        elif age is not None and now - (parse_time(entry.started) or now) > age:
            found[entry.folder] = (entry, f"older than {retention.age_days:g} days")
    if retention.bytes is not None:
        total = 0
        for entry in reversed(entries):
            total += 0 if entry.folder in found and entry.folder not in safe else folder_bytes(parent / entry.folder)
            if total > retention.bytes and entry.folder not in found:
                found[entry.folder] = (entry, "beyond the space that is allowed")
    return tuple(found[entry.folder] for entry in entries if entry.folder in found and entry.folder not in safe)


def _safe(entries: Sequence[HistoryEntry]) -> set[str]:
    """Pinned runs, open ones, the newest, and the last GO of each class of machine: later runs are compared with it."""
    last_go = {entry.machine: entry.folder for entry in entries if entry.decision == "GO"}
    return {
        *last_go.values(),
        *(entry.folder for entry in entries if entry.pinned or entry.decision == "IN_PROGRESS"),
        *([entries[-1].folder] if entries else []),
    }


def folder_bytes(folder: Path) -> int:
    """Bytes of all files in a folder; links count as nothing."""
    with Tree(folder) as tree:
        return sum(entry.bytes for entry in tree.walk())


def remove(parent: Path, entries: Sequence[HistoryEntry]) -> None:
    """Remove run folders. A folder is renamed first, so that a half-removed one is never taken for a run."""
    for entry in entries:
        folder = parent / entry.folder
        grave = parent / f".removed-{entry.folder}"
        folder.rename(grave)
        shutil.rmtree(grave, ignore_errors=True)


# The index of runs: a JSON file next to the run folders, which remain authoritative.

INDEX = ".history.json"

VERSION = 8
"""Of what the file holds; one of another version is built again."""


def read_history(parent: Path, *, rebuild: bool = False) -> tuple[HistoryEntry, ...]:
    """Every validation below `parent`, oldest first. Only folders that changed since the last time are read.

    Where the index cannot be written (a read-only file system), the answer is the same.
    """
    known = {} if rebuild else _indexed(parent)
    found: dict[str, tuple[str, HistoryEntry]] = {}
    for folder in run_folders(parent):
        stamp, before = stamp_of(folder), known.get(folder.name)
        entry = before[1] if before is not None and before[0] == stamp else read_entry(folder)
        if entry is not None:  # else it is gone meanwhile
            found[folder.name] = (stamp, entry)
    if found != known:
        with suppress(OSError, UnicodeError), Tree(parent) as tree:  # a folder's name may be no text
            tree.write(INDEX, msgspec.json.encode(_Index(VERSION, found)), sync=False)
    return tuple(sorted((entry for _, entry in found.values()), key=lambda one: (one.started, one.folder)))


@dataclass(frozen=True)
class _Index:
    """What the file holds: stamp and entry of each folder."""

    version: int
    runs: dict[str, tuple[str, HistoryEntry]]


def _indexed(parent: Path) -> dict[str, tuple[str, HistoryEntry]]:
    """Stamp and entry by folder, as the index has them; nothing where it is not as `read_history` writes it."""
    try:
        with Tree(parent) as tree:
            data = tree.read(INDEX)
        found = msgspec.json.decode(data, type=_Index)
    except (OSError, ValueError, RecursionError):
        return {}
    own = found.version == VERSION and msgspec.json.encode(found) == data
    return found.runs if own and all(map(_sound, found.runs.items())) else {}


def _sound(run: tuple[str, tuple[str, HistoryEntry]]) -> bool:
    """Whether an entry is of its folder, and holds no number that cannot be squared."""
    folder, (_, entry) = run
    numbers = [entry.duration_s, *(x for one in entry.points for x in (one.value, one.ci_low, one.ci_high))]
    numbers += [node.share for node in entry.nodes]
    return entry.folder == folder and all(x is None or abs(x) < LARGEST for x in numbers)


# The history of a folder of run folders, and its page.


@dataclass(frozen=True)
class History:
    """Past validations in groups that may be compared, and the page that shows all of them (None: not writable)."""

    groups: tuple[Group, ...]
    page: Path | None

    def as_dict(self) -> dict[str, Any]:
        """The JSON that `history --json` prints."""
        return {"schema_version": 1, "groups": [_group_json(group) for group in self.groups]}


def _group_json(group: Group) -> dict[str, Any]:
    found = asdict(group)
    for trend, row in zip(group.trends, found["trends"], strict=True):
        row["run_ids"] = [group.entries[place].run_id for place in trend.runs]
        row["regression"] = None if trend.regression is None else asdict(trend.regression)
    return found


def look_back(reports: Path, *, runbook: str | None = None, rebuild: bool = False) -> History:
    """Read the history below `reports` and write its page. `runbook` picks the groups that are returned.

    Raises:
        FolderError: when there is no such folder, or no run of that runbook.
    """
    if not reports.is_dir():
        raise FolderError(f"{reports} is no folder; give the one that `validator run --out` wrote to")
    groups = group_entries(read_history(reports, rebuild=rebuild))
    page = None
    with suppress(OSError):
        page = write_index(reports, groups)
    if runbook is None:
        return History(groups, page)
    picked = tuple(group for group in groups if group.runbook == runbook)
    if not picked:
        names = ", ".join(sorted({group.runbook for group in groups})) or "none"
        raise FolderError(f"--runbook {runbook}: {reports} has no run of it; it has runs of: {names}")
    return History(picked, page)


def update_index(reports: Path) -> None:
    """Bring the page up to date after a validation. It is a convenience: whatever fails here costs no decision."""
    try:
        look_back(reports)
    except Exception as error:  # noqa: BLE001 -- what other runs wrote may be anything, and the decision is written
        sys.stderr.write(f"{reports / 'index.html'} is not up to date: {type(error).__name__}: {error}\n")


def set_pin(reports: Path, run: str, *, keep: bool) -> None:
    """Pin a run folder, by name or path, so that retention never removes it; or take the pin away.

    Raises:
        FolderError: when there is no such run folder.
    """
    folder = next((path for path in (reports / run, Path(run)) if (path / "run.json").is_file()), None)
    if folder is None:
        raise FolderError(f"{run} is no run folder below {reports}; `validator history {reports}` lists them")
    with Tree(folder) as tree:
        if keep:
            tree.write(PIN, b"")
        else:
            tree.remove(PIN)
