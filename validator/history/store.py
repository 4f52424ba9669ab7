"""The index of runs: a SQLite file beside the run folders, which stay the truth.

It holds nothing that could not be read from the folders again: delete it, and the next command builds it anew. A file
that is damaged, or of another version, is replaced.
"""

from __future__ import annotations

import json
import sqlite3
import stat
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from validator.files import parse_json
from validator.history.read import Entry, Point, read_entry, run_folders, stamp_of

__all__ = ["DATABASE", "read_history"]

DATABASE = ".history.sqlite"

VERSION = 2
"""Of the tables below; a file with another is built anew."""

_TABLES = """
CREATE TABLE runs (
  folder TEXT PRIMARY KEY, stamp TEXT NOT NULL, run_id TEXT, runbook TEXT, title TEXT, machine TEXT, host TEXT,
  decision TEXT, why TEXT, started TEXT, finished TEXT, duration_s REAL, variant TEXT, software TEXT,
  pinned INTEGER, undecided TEXT);
CREATE TABLE points (
  folder TEXT NOT NULL REFERENCES runs(folder) ON DELETE CASCADE, place INTEGER NOT NULL, phase TEXT, metric TEXT,
  unit TEXT, value REAL, better TEXT, ci_low REAL, ci_high REAL, n INTEGER, version INTEGER,
  PRIMARY KEY (folder, place)) WITHOUT ROWID;
"""

_RUN_COLUMNS = (
    "folder, run_id, runbook, title, machine, host, decision, why, started, finished, duration_s, variant, "
    "software, pinned, undecided"
)
_POINT_COLUMNS = "phase, metric, unit, value, better, ci_low, ci_high, n, version"


def read_history(parent: Path, *, rebuild: bool = False) -> tuple[Entry, ...]:
    """Every validation below `parent`, oldest first. Only folders that changed since the last time are read.

    Where the index cannot be written (a read-only file system), it is made in memory, and the answer is the same.
    """
    path = parent / DATABASE
    with suppress(FileNotFoundError):
        if rebuild or not stat.S_ISREG(path.lstat().st_mode):
            path.unlink()  # a link would have the tables of another database dropped
    try:
        with _opened(path) as database:
            _refresh(database, parent)
            return tuple(_entries(database))
    except (sqlite3.Error, ValueError, TypeError):  # somebody else wrote it
        with closing(_usable(None)) as database:
            _refresh(database, parent)
            return tuple(_entries(database))


@contextmanager
def _opened(path: Path) -> Iterator[sqlite3.Connection]:
    try:
        database = _usable(path)
    except sqlite3.DatabaseError as error:
        if not isinstance(error, sqlite3.OperationalError):
            path.unlink(missing_ok=True)  # no database, or a damaged one
        try:
            database = _usable(path)
        except sqlite3.Error:
            database = _usable(None)
    with closing(database):
        yield database


def _usable(path: Path | None) -> sqlite3.Connection:
    """A connection to a database that has our tables and can be written."""
    database = sqlite3.connect(":memory:" if path is None else path, timeout=10.0, isolation_level=None)
    try:
        database.execute("PRAGMA foreign_keys = ON")
        database.execute("BEGIN IMMEDIATE")
        (version,) = database.execute("PRAGMA user_version").fetchone()
        if version != VERSION:
            for (table,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
                database.execute(f'DROP TABLE "{table}"')
            for statement in _TABLES.split(";")[:-1]:
                database.execute(statement)
            database.execute(f"PRAGMA user_version = {VERSION}")
        database.execute("COMMIT")
    except sqlite3.Error:
        database.close()
        raise
    return database


def _refresh(database: sqlite3.Connection, parent: Path) -> None:
    known = dict(database.execute("SELECT folder, stamp FROM runs"))
    there = {folder.name: folder for folder in run_folders(parent)}
    stamps = {name: stamp_of(folder) for name, folder in there.items()}
    gone = [name for name in known if name not in there]
    changed = [name for name, stamp in stamps.items() if known.get(name) != stamp]
    if not gone and not changed:
        return
    database.execute("BEGIN IMMEDIATE")
    database.executemany("DELETE FROM runs WHERE folder = ?", [(name,) for name in (*gone, *changed)])
    for name in changed:
        entry = read_entry(there[name])
        if entry is not None:
            _insert(database, entry, stamps[name])
    database.execute("COMMIT")


def _insert(database: sqlite3.Connection, entry: Entry, stamp: str) -> None:
    database.execute(
        f"INSERT INTO runs (stamp, {_RUN_COLUMNS}) VALUES (?{', ?' * 15})",
        (
            stamp,
            *(entry.folder, entry.run_id, entry.runbook, entry.title, entry.machine, entry.host, entry.decision),
            *(entry.why, entry.started, entry.finished, entry.duration_s, entry.variant),
            json.dumps(dict(entry.software)),
            entry.pinned,
            json.dumps(entry.undecided),
        ),
    )
    database.executemany(
        f"INSERT INTO points (folder, place, {_POINT_COLUMNS}) VALUES (?{', ?' * 10})",
        [
            (entry.folder, place, p.phase, p.metric, p.unit, p.value, p.better, p.ci_low, p.ci_high, p.n, p.version)
            for place, p in enumerate(entry.points)
        ],
    )


def _entries(database: sqlite3.Connection) -> Iterator[Entry]:
    points: dict[str, list[Point]] = {}
    for folder, *values in database.execute(f"SELECT folder, {_POINT_COLUMNS} FROM points ORDER BY folder, place"):
        points.setdefault(folder, []).append(Point(*values))
    rows: Iterable[tuple[object, ...]] = database.execute(f"SELECT {_RUN_COLUMNS} FROM runs ORDER BY started, folder")
    for row in rows:
        yield _entry(row, tuple(points.get(str(row[0]), ())))


def _entry(row: tuple[object, ...], points: tuple[Point, ...]) -> Entry:
    (folder, run_id, runbook, title, machine, host, decision, why, started, finished, duration_s, *rest) = row
    variant, software, pinned, undecided = rest
    return Entry(
        folder=str(folder),
        run_id=str(run_id),
        runbook=str(runbook),
        title=None if title is None else str(title),
        machine=str(machine),
        host=str(host),
        decision=str(decision),
        why=str(why),
        started=str(started),
        finished=None if finished is None else str(finished),
        duration_s=duration_s if isinstance(duration_s, float) else None,
        variant=str(variant),
        software=parse_json(str(software)),
        points=points,
        pinned=bool(pinned),
        undecided=tuple(parse_json(str(undecided))),
    )
