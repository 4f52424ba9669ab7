"""MLflow's local stores: a file a metric below `mlruns`, or a table of an SQLite database."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from validator.files import Tree
from validator.ingest.read_log import FaultLog, printable
from validator.ingest.readers.rows import MAX_STEP, LoggedRow, as_number

if TYPE_CHECKING:
    import sqlite3

_LONGEST = 256
_LARGEST_FLOAT = 1.7976931348623157e308
"""What the database holds in place of an infinity."""

_OPERATIONS = 50_000_000
_MAX_ROWS = 5_000_000


class MetricFile:
    """`TIMESTAMP_MS VALUE STEP` a line; the key is the file's path below `metrics`."""

    def __init__(self, key: str) -> None:
        self.faults = FaultLog()
        self._key = key
        self._rest = b""
        self._at = 0
        self._line = 0

    def feed(self, data: bytes) -> Iterator[LoggedRow]:
        """The rows of the lines that end in these bytes."""
        *whole, rest = (self._rest + data).split(b"\n")
        for raw in whole:
            self._at += len(raw) + 1
            self._line += 1
            words = raw[:_LONGEST].decode("utf-8", "replace").split()
            numbers = [as_number(word) for word in words]
            if len(words) < 3 or None in numbers[:3] or not abs(step := numbers[2] or 0.0) < MAX_STEP:
                if words:
                    self.faults.add("garbage-cell", self._line, printable(" ".join(words), limit=60))
                continue
            moment, value = numbers[0] or 0.0, numbers[1]
            if value is not None and step == int(step):
                yield LoggedRow(int(step), {self._key: value}, time_s=moment / 1e3, end=self._at)
        self._rest = rest[:_LONGEST]

    def close(self) -> None:
        """A last line without an end is incomplete."""
        if self._rest.strip():
            self.faults.add(
                "truncated-line", self._line + 1, printable(self._rest.decode("utf-8", "replace"), limit=60)
            )


class SeveralRuns(ValueError):
    """A database that holds the metrics of more than one run; the message names them."""


class Database:
    """The rows of `metrics`, of the only run that has any. The file is read from a copy: nothing beside it is touched.

    An SQLite file may come with a journal that names further files, which SQLite would delete; no journal is copied.
    """

    def __init__(self) -> None:
        self.faults = FaultLog()

    def rows(self, data: bytes) -> Iterator[LoggedRow]:
        """The rows in the order in which they were logged.

        Raises:
            SeveralRuns: when more than one run has metrics.
        """
        try:
            import sqlite3  # some builds of Python have none
        except ImportError as error:
            self.faults.add("garbage-row", 0, f"this Python cannot read SQLite: {error}")
            return
        with tempfile.TemporaryDirectory(prefix="validator-") as folder:
            path = Path(folder, "copy.db")
            with Tree(path.parent) as tree:
                tree.write(path.name, data, sync=False)
            try:
                with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro&immutable=1", uri=True)) as store:
                    yield from self._read(store)
            except sqlite3.Error as error:
                self.faults.add("garbage-row", 0, f"it is no sound SQLite database: {printable(str(error), limit=80)}")

    def _read(self, store: sqlite3.Connection) -> Iterator[LoggedRow]:
        store.execute("PRAGMA trusted_schema = OFF")
        budget = iter(range(_OPERATIONS // 10_000))
        store.set_progress_handler(lambda: 0 if next(budget, None) is not None else 1, 10_000)
        kind = store.execute("SELECT type, sql FROM sqlite_master WHERE name = 'metrics'").fetchone()
        if kind is None or kind[0] != "table" or "VIRTUAL" in str(kind[1]).upper():
            self.faults.add("garbage-row", 0, "it has no table metrics")
            return
        runs = [str(run) for (run,) in store.execute("SELECT DISTINCT run_uuid FROM metrics LIMIT 8")]
        if len(runs) > 1:
            raise SeveralRuns(f"{len(runs)} runs have metrics in it: {', '.join(run[:8] for run in runs)}")
        wanted = f"SELECT key, value, timestamp, step, is_nan FROM metrics ORDER BY timestamp, step LIMIT {_MAX_ROWS}"
        for key, value, moment, step, is_nan in store.execute(wanted):
            number = math.nan if is_nan else as_number(value)
            if number is None or not isinstance(step, int) or not isinstance(key, str):
                self.faults.add("garbage-cell", 0, printable(f"{key} {value} {step}", limit=60))
                continue
            if abs(number) >= _LARGEST_FLOAT:
                number = math.copysign(math.inf, number)
            time_s = moment / 1e3 if isinstance(moment, int) else None
            yield LoggedRow(step, {key[:_LONGEST]: number}, time_s=time_s)
