"""The files of named readers while a trainer writes them: read by the decoders that read them afterwards."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from validator.files import Tree
from validator.ingest.readers import STREAMS, WHOLE, find_files
from validator.ingest.readers.rows import Decoder, LoggedRow, live_values
from validator.model.runbook import TrainerMetrics

_SEARCH_S = 2.0
"""Time between two searches for files, more where a search takes long."""

_SEARCH_SHARE = 0.02
_WHOLE_SHARE = 0.05
"""Share of the time, at most, that goes into searching, and into reading again what can only be read whole."""

_WHOLE_BYTES = 64 << 20


@dataclass
class _Stream:
    """A file that grows, and its decoder."""

    format: str
    make: Callable[[], Decoder]
    decoder: Decoder
    size: int = 0
    keyed: bool = False


@dataclass
class _Whole:
    """A file that is read as a whole, the rows of it that were taken, and what it was then."""

    taken: int = 0
    seen: tuple[int, int, int] = (0, 0, 0)
    next_s: float = 0.0


@dataclass
class FileFollower:
    """Follows the files that the readers of `metrics` find below `out`, over no link on the way from `root` to them.

    `paths` are those found so far.
    """

    out: Path
    metrics: TrainerMetrics
    root: Path
    paths: list[Path] = field(default_factory=list)
    _streams: dict[str, _Stream] = field(default_factory=dict)
    _wholes: dict[str, tuple[str, _Whole]] = field(default_factory=dict)
    _tables: list[str] = field(default_factory=list)
    _next_search_s: float = 0.0

    def rows(self, now: float, new_bytes: Callable[[Path], tuple[bytes, bool]]) -> Iterator[tuple[Path, LoggedRow]]:
        """Rows since the last look, each with its file, values by the contract's names.

        Args:
            now: monotonic seconds.
            new_bytes: what a file grew by since it was asked for last, and whether it begins from its start.
        """
        self._search(now)
        names = self.metrics.series_of
        for name, stream in self._streams.items():
            data, fresh = new_bytes(self.out / name)
            if fresh:
                stream.decoder = stream.make()
            stream.size += len(data)
            for row in stream.decoder.feed(data):
                stream.keyed = stream.keyed or row.keyed
                if row.keyed or not stream.keyed:
                    yield self.out / name, LoggedRow(row.step, live_values(row, names), row.time_s, row.end)
        for name, (kind, whole) in self._wholes.items():
            for row in self._changed(name, kind, whole, now):
                yield self.out / name, LoggedRow(row.step, live_values(row, names), row.time_s, row.end)

    @property
    def tables(self) -> tuple[str, ...]:
        """Tables that were found, relative to the folder."""
        return tuple(self._tables)

    def _search(self, now: float) -> None:
        if now < self._next_search_s:
            return
        began = os.times().elapsed
        for found in find_files(self.out, self.metrics):
            for name in found.paths:
                self._take(found.kind.format, name)
        took = os.times().elapsed - began
        self._next_search_s = now + max(_SEARCH_S, took / _SEARCH_SHARE)

    def _take(self, kind: str, name: str) -> None:
        known = name in self._streams or name in self._wholes or name in self._tables
        if known:
            return
        self.paths.append(self.out / name)
        if kind in WHOLE:
            self._wholes[name] = kind, _Whole()
        elif kind == "csv":
            self._tables.append(name)
        else:

            def make() -> Decoder:
                return STREAMS[kind](name, self.metrics)

            self._streams[name] = _Stream(kind, make, make())

    def _changed(self, name: str, kind: str, whole: _Whole, now: float) -> Iterator[LoggedRow]:
        if now < whole.next_s:
            return
        began = os.times().elapsed
        with suppress(OSError, ValueError), Tree(self.root) as tree:
            path = os.path.relpath(self.out / name, self.root)
            stat = tree.stat(path)
            seen = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
            if seen == whole.seen:
                return
            whole.seen = seen
            rows = list(WHOLE[kind]().rows(tree.read(path, limit=_WHOLE_BYTES)))
            fresh = rows[whole.taken :] if len(rows) >= whole.taken else rows
            whole.taken = len(rows)
            yield from fresh
        whole.next_s = now + (os.times().elapsed - began) / _WHOLE_SHARE
