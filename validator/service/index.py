"""The index of the run folders in SQLite: what the service filters, counts and pages through.

Each row is the history's entry of a folder, so that a result is read in one way only. The file lies in the user's own
state folder and never among the run folders, which others may have written: whoever opens a database carries out what
it holds. Deleting it loses nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import threading
import time
from collections.abc import Iterator, Set
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from validator.errors import FolderError, Unable
from validator.files import user_folder
from validator.history.read import SAMPLE, HistoryEntry, read_entry, stamp_of
from validator.runs.folder import is_run_folder

_VERSION = 3
"""Of the table and of the entries in it; a file of another version is built again."""

_FRESH_S = 1.0
"""How long an answer may be old before the folder is looked at again."""

_FULL_S = 30.0
"""Time between two looks at all folders. Between them only new folders and those in progress are looked at."""

_YOUNG_S = 60.0
"""Age up to which a folder may be one whose runner has not written its header yet."""

_MAX_ENTRY = 512 << 10
"""Bytes of the largest entry: every page lists many of them. Those of real validations have some kilobytes."""


class RunFilter(NamedTuple):
    """Which runs are wanted, by columns as the address of a page names them; an empty value takes every one."""

    runbook: str = ""
    machine: str = ""
    branch: str = ""
    decision: str = ""
    host: str = ""

    @property
    def chosen(self) -> dict[str, str]:
        """The columns that are limited, and their values."""
        return {name: value for name, value in self._asdict().items() if value}


FILTERS = RunFilter._fields
_COLUMNS = (*FILTERS, "started")
_TABLE = (
    "DROP TABLE IF EXISTS runs",
    f"CREATE TABLE runs(folder TEXT PRIMARY KEY, stamp TEXT NOT NULL, entry TEXT NOT NULL, {', '.join(_COLUMNS)})",
    "CREATE INDEX by_time ON runs(started DESC, folder DESC)",
    f"PRAGMA user_version = {_VERSION}",
)


def index_path(reports: Path) -> Path:
    """Where the index of a reports folder is kept."""
    name = hashlib.sha256(os.fsencode(os.path.realpath(reports))).hexdigest()[:16]
    return user_folder("XDG_STATE_HOME", ".local/state") / "validator" / "service" / f"{name}.sqlite"


class RunIndex:
    """The runs below `reports`, kept in the database `path`. Safe to use from several threads, and by two servers.

    Raises:
        FolderError: when there is no such reports folder.
        Unable: when the database cannot be written.
    """

    def __init__(self, reports: Path, path: Path, *, rebuild: bool = False) -> None:
        if not reports.is_dir():
            raise FolderError(f"{reports} is no folder; give the one that `validator run --out` wrote to")
        self.reports = Path(os.path.realpath(reports))
        self.path = path
        self._lock = threading.RLock()
        self._looked = self._looked_fully = float("-inf")
        self._parent_ns = -1
        self._names: frozenset[str] = frozenset()
        self._watched: dict[str, str] = {}
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._db = self._opened(rebuild=rebuild)
        except (OSError, sqlite3.Error) as error:
            raise Unable(f"the index {path} cannot be written: {error}; set another XDG_STATE_HOME") from error

    def _opened(self, *, rebuild: bool) -> sqlite3.Connection:
        db = sqlite3.connect(self.path, check_same_thread=False, timeout=10.0)
        try:
            db.executescript("PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL")  # the folders have what is lost
            db.execute("BEGIN IMMEDIATE")  # another server may start at this moment
            if rebuild or db.execute("PRAGMA user_version").fetchone() != (_VERSION,):
                for statement in _TABLE:
                    db.execute(statement)
            db.commit()
        except sqlite3.DatabaseError as error:
            db.close()
            if isinstance(error, sqlite3.OperationalError) or rebuild:
                raise
            for name in ("", "-wal", "-shm"):  # damaged: the folders have all of it
                self.path.with_name(self.path.name + name).unlink(missing_ok=True)
            return self._opened(rebuild=True)
        return db

    def close(self) -> None:
        """Close the database."""
        with self._lock:
            self._db.close()

    def refresh(self, *, full: bool = False) -> None:
        """Read the folders that are new, in progress, or changed since the last look."""
        with self._lock:
            now, parent_ns = time.monotonic(), self.reports.stat().st_mtime_ns
            if not full and now - self._looked < _FRESH_S:
                return
            full = full or now - self._looked_fully >= _FULL_S
            looked_at, listed = {*self._watched}, full or parent_ns != self._parent_ns
            if listed:
                before, self._names = self._names, frozenset(self._folders())
                looked_at = {*self._names} if full else (looked_at & self._names) | (self._names - before)
                gone = "DELETE FROM runs WHERE folder NOT IN (SELECT value FROM json_each(?))"
                self._db.execute(gone, (json.dumps([*self._names]),))
            self._parent_ns, self._looked = parent_ns, now
            self._looked_fully = now if full else self._looked_fully
            if listed or {name: stamp_of(self.reports / name) for name in looked_at} != self._watched:
                self._update(looked_at)

    def _folders(self) -> Iterator[str]:
        """Names of the folders that may be run folders; links are left out, since they lead anywhere."""
        with os.scandir(self.reports) as found:
            for entry in found:
                if entry.name.startswith((SAMPLE, ".")) or not entry.is_dir(follow_symlinks=False):
                    continue
                with suppress(UnicodeError):  # a name that is no text has no address
                    entry.name.encode()
                    yield entry.name

    def _update(self, names: Set[str]) -> None:
        """Read folders whose results have changed; see which of them have no decision yet."""
        known = "SELECT folder, stamp, decision FROM runs WHERE folder IN (SELECT value FROM json_each(?))"
        rows = {row[0]: row[1:] for row in self._db.execute(known, (json.dumps([*names]),))}
        watched = dict[str, str]()
        for name in names:
            folder, (stamp, decision) = self.reports / name, rows.get(name, ("", None))
            with suppress(OSError):  # it is gone by now
                now = stamp_of(folder)
                if now and now != stamp:
                    decision = self._store(name, now, read_entry(folder))
                begins = not now and (is_run_folder(folder) or time.time() - folder.stat().st_mtime < _YOUNG_S)
                if begins or (now and decision == "IN_PROGRESS"):
                    watched[name] = now
        self._db.commit()
        self._watched = watched

    def _store(self, name: str, stamp: str, entry: HistoryEntry | None) -> str:
        """Keep what was read of a folder; returns its decision, empty for what cannot be kept."""
        data = b"" if entry is None else msgspec.json.encode(entry)
        if entry is None or len(data) > _MAX_ENTRY:
            self._db.execute("DELETE FROM runs WHERE folder = ?", (name,))
            return ""
        values = (name, stamp, data.decode(), *(getattr(entry, column) for column in _COLUMNS))
        self._db.execute(f"INSERT OR REPLACE INTO runs VALUES ({', '.join('?' * len(values))})", values)
        return entry.decision

    # Questions. Each looks at the folders first, at most once a second.

    def open_folders(self) -> tuple[str, ...]:
        """Folders whose validation has no decision yet: it runs, or its runner was killed."""
        with self._asked():
            return tuple(sorted(one for one, at in self._watched.items() if at or is_run_folder(self.reports / one)))

    def entry(self, folder: str) -> HistoryEntry | None:
        """The entry of a folder; None where the index has none."""
        return next(iter(self._entries("SELECT entry FROM runs WHERE folder = ?", folder)), None)

    def path_of(self, folder: str) -> Path | None:
        """The path of a folder that the index knows, and of no other: the only way from an address to a file."""
        with self._asked():
            if folder not in self._names:
                self._looked = float("-inf")  # the queue names a run as soon as it starts
                self.refresh()
            known = (folder in self._watched and is_run_folder(self.reports / folder)) or self.entry(folder) is not None
            return self.reports / folder if known else None

    def find(self, wanted: RunFilter, *, limit: int, offset: int = 0) -> tuple[tuple[HistoryEntry, ...], int]:
        """The runs of a filter, latest first, and how many there are in all."""
        where, values = " AND ".join(("1", *(f"{name} = ?" for name in wanted.chosen))), wanted.chosen.values()
        with self._asked() as db:
            (total,) = db.execute(f"SELECT count(*) FROM runs WHERE {where}", (*values,)).fetchone()
            query = f"SELECT entry FROM runs WHERE {where} ORDER BY started DESC, folder DESC LIMIT ? OFFSET ?"
            return self._entries(query, *values, limit, offset), int(total)

    def choices(self) -> dict[str, tuple[str, ...]]:
        """The values that each filter can have."""
        query = "SELECT DISTINCT {0} FROM runs WHERE {0} != '' ORDER BY 1"
        with self._asked() as db:
            return {name: tuple(row[0] for row in db.execute(query.format(name))) for name in FILTERS}

    def latest(self, *columns: str) -> tuple[HistoryEntry, ...]:
        """The latest decided run of each combination of columns of `FILTERS`, latest first."""
        return self._entries(
            f"SELECT entry FROM (SELECT entry, started, row_number() OVER (PARTITION BY {', '.join(columns)} "
            "ORDER BY started DESC, folder DESC) AS place FROM runs "
            "WHERE decision NOT IN ('IN_PROGRESS', 'INTERRUPTED')) WHERE place = 1 ORDER BY started DESC"
        )

    def version(self) -> tuple[int, int]:
        """What changes whenever the index does, through this server or another one."""
        with self._asked() as db:
            return db.total_changes, int(db.execute("PRAGMA data_version").fetchone()[0])

    def with_nodes(self) -> tuple[HistoryEntry, ...]:
        """Every run of a cluster, oldest first."""
        return self._entries("SELECT entry FROM runs WHERE json_array_length(entry, '$.nodes') > 0 ORDER BY started")

    def _entries(self, query: str, *values: str | int) -> tuple[HistoryEntry, ...]:
        with self._asked() as db:
            rows = db.execute(query, values).fetchall()
        return tuple(msgspec.json.decode(row[0], type=HistoryEntry) for row in rows)

    @contextmanager
    def _asked(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            self.refresh()
            yield self._db
