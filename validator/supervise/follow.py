"""Reading a trainer's files while it writes them: only what is new, never a whole file again.

What is read here steers the supervision of a run. Measurement reads the same files afterwards, with care for every
irregularity; here a line that cannot be read is passed over.
"""

from __future__ import annotations

import glob
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

from validator.documents import parse_json
from validator.files import Tree
from validator.model.budget import TooSlow, searching
from validator.model.columns import HEADERLESS, contract_names, contract_values, without_colors
from validator.model.pattern import LinePattern, StepCounter, line_pattern
from validator.model.runbook import TrainerMetrics

_LOOK_BYTES = 4 << 20  # per file and look; a larger backlog is caught up with at the next looks
_HEAD_BYTES = 4096


@dataclass(frozen=True)
class Record:
    """One row or heartbeat: numbers by the catalogue's names, NaN and infinities included.

    `path` is the file, and `end` the byte behind the line that the record was read from.
    """

    source: str
    rank: int
    step: int | None
    values: Mapping[str, float]
    message: str = ""
    row: bool = False
    path: Path | None = field(default=None, compare=False)
    end: int = field(default=0, compare=False)


class Tail:
    """The new whole lines of a file that grows. One that is replaced, truncated or rewritten is read from its start.

    Some trainers rewrite a table when a column is added; its first bytes then differ. A carriage return ends a
    line too, since a progress bar may write nothing else, and is kept to mark the text as one that is redrawn.
    """

    def __init__(
        self,
        path: Path,
        *,
        root: Path | None = None,
        skip_to_last_bytes: int | None = None,
        link_roots: Sequence[str] = (),
    ) -> None:
        self.path = path
        self._root = path.parent if root is None else root
        self._link_roots = link_roots
        self._offset = 0
        self._inode = -1
        self._rest = b""
        self._head = b""
        self._skip = skip_to_last_bytes

    @property
    def read_to(self) -> int:
        """Bytes read so far."""
        return self._offset

    def lines(self) -> list[bytes]:
        """Lines finished since the last call, without their line feeds."""
        return [line for line, _ in self.lines_with_ends()]

    def lines_with_ends(self) -> list[tuple[bytes, int]]:
        """Lines finished since the last call, without their line feeds, and the byte behind each."""
        name = os.path.relpath(self.path, self._root)
        try:
            with Tree(self._root, link_roots=self._link_roots) as tree, tree.open(name) as file:
                stat = os.fstat(file.fileno())
                if stat.st_ino == self._inode and stat.st_size == self._offset:
                    return []
                head = file.read(_HEAD_BYTES)
                if stat.st_ino != self._inode or stat.st_size < self._offset or not head.startswith(self._head):
                    self._offset, self._inode, self._rest = 0, stat.st_ino, b""
                    self._jump(stat.st_size)
                self._head = head
                file.seek(self._offset)
                data = file.read(_LOOK_BYTES)
        except OSError:
            return []
        begin = self._offset - len(self._rest)
        self._offset += len(data)
        whole = (self._rest + data).splitlines(keepends=True)
        self._rest = whole.pop() if whole and not whole[-1].endswith((b"\n", b"\r")) else b""
        if len(self._rest) > _LOOK_BYTES:  # a line that never ends must not fill the memory
            self._rest = b""
        ends = accumulate(map(len, whole), initial=begin)
        next(ends)
        return [
            (line[:-1].rstrip(b"\r") if line.endswith(b"\n") else line, end)
            for line, end in zip(whole, ends, strict=True)
        ]

    @property
    def first_line(self) -> bytes:
        """The file's first line, as far as a few thousand bytes go; empty while nothing was read."""
        return self._head.partition(b"\n")[0].rstrip(b"\r")

    def _jump(self, size: int) -> None:
        if self._skip is not None and size > self._skip:
            self._offset = size - self._skip
            self._skip = None


@dataclass
class RankState:
    """What one rank last said, and when it was noticed (monotonic seconds)."""

    step: int | None = None
    heard: float | None = None
    pid: int | None = None
    message: str = ""


@dataclass
class RunFollower:
    """Follows every file that `metrics` names below `out`.

    `log` is the file of printed lines where it is known; else the usual places are searched. `ranks` bounds the
    heartbeats that are looked for; None takes every one that is there. `skip_to_last_bytes` starts at the end of files
    that are long already. Links are followed only to below the metrics' `link_roots`. `too_slow` says why the log is no
    longer searched.
    """

    out: Path
    metrics: TrainerMetrics
    ranks: int | None = None
    skip_to_last_bytes: int | None = None
    log: Path | None = None
    step: int | None = None
    latest: dict[str, float] = field(default_factory=dict)
    too_slow: str = ""
    by_rank: dict[int, RankState] = field(default_factory=dict)
    _tails: dict[Path, Tail] = field(default_factory=dict)
    _columns: tuple[str, ...] | None = None
    _log: Path | None = None
    _counter: StepCounter = field(default_factory=StepCounter)

    def look(self, *, now: float | None = None) -> tuple[Record, ...]:
        """Everything written since the last look, in the order of the files."""
        moment = time.monotonic() if now is None else now
        records = [*self._rows(), *self._beats(moment), *self._printed()]
        for record in records:
            if record.step is not None and (self.step is None or record.step > self.step):
                self.step = record.step
            if record.rank == 0:
                self.latest.update(record.values)
        return tuple(records)

    @property
    def has_source(self) -> bool:
        """Whether the trainer declares anything that reports a step, and that can be searched in time."""
        return any((self.metrics.csv, self.metrics.heartbeat, self.metrics.stdout and not self.too_slow))

    def rank0_log(self) -> Path:
        """Where rank 0's standard output goes: the file that is known, torchrun's file for it, else the launcher's."""
        if self.log is not None:
            return self.log
        found = sorted(self.out.glob("logs/ranks/*/attempt_*/0/stdout.log"))
        log = self.out / "logs" / "stdout.log"
        if found or log.is_file():
            return found[-1] if found else log
        own = sorted(self.out.glob("*.log"))  # of a trainer that validator did not start
        return own[0] if len(own) == 1 else log

    def stamped(self) -> tuple[Path, ...]:
        """The files whose growth shows when a step was reported: table and log, else rank 0's heartbeat."""
        found = [self.out / self.metrics.csv] if self.metrics.csv is not None else []
        if self.metrics.stdout is not None:
            log = self.rank0_log()
            found += [log, log.with_name("stderr.log")] if self._log is None else [self._log]
        if not found and self.metrics.heartbeat is not None:
            found = [self.out / self.metrics.heartbeat.replace("{rank}", "0")]
        return tuple(found)

    def read_to(self) -> dict[Path, int]:
        """Bytes of each file that have been read."""
        return {path: tail.read_to for path, tail in self._tails.items()}

    def heartbeat_age_s(self, now: float) -> float | None:
        """Longest silence of any rank that has been heard, in seconds."""
        ages = [now - state.heard for state in self.by_rank.values() if state.heard is not None]
        return max(ages, default=None)

    def _tail(self, path: Path) -> Tail:
        if path not in self._tails:
            self._tails[path] = Tail(
                path, root=self.out, skip_to_last_bytes=self.skip_to_last_bytes, link_roots=self.metrics.link_roots
            )
        return self._tails[path]

    def _rows(self) -> Iterator[Record]:
        if self.metrics.csv is None:
            return
        tail = self._tail(self.out / self.metrics.csv)
        for line, end in tail.lines_with_ends():
            names = _header(line)
            if names is not None:
                self._columns = names
                continue
            if self._columns is None:
                self._columns = _header(tail.first_line) or HEADERLESS
            values = _numbers(dict(zip(self._columns, _cells(line), strict=False)))
            step = _whole(values.pop("step", None))
            if step is not None:
                yield Record(self.metrics.csv, 0, step, values, row=True, path=tail.path, end=end)

    def _beats(self, now: float) -> Iterator[Record]:
        for rank, path in self._heartbeat_files():
            state = self.by_rank.setdefault(rank, RankState())
            for line, end in self._tail(path).lines_with_ends():
                try:
                    entry = parse_json(line)
                except ValueError:
                    continue
                if not isinstance(entry, dict):
                    continue
                values = _numbers({str(key): value for key, value in entry.items()})
                step = _whole(values.pop("step", None))
                state.heard = now
                state.message = str(entry.get("msg", ""))
                state.pid = _whole(values.pop("pid", None)) or state.pid
                if step is not None and (state.step is None or step > state.step):
                    state.step = step
                for name in ("ts", "rank"):
                    values.pop(name, None)
                yield Record(path.name, rank, step if step else None, values, state.message, path=path, end=end)

    def _heartbeat_files(self) -> Iterator[tuple[int, Path]]:
        pattern = self.metrics.heartbeat
        if pattern is None:
            return
        if self.ranks is not None and "{rank}" in pattern:
            for rank in range(self.ranks):
                path = self.out / pattern.replace("{rank}", str(rank))
                if rank in self.by_rank or path.exists():
                    yield rank, path
            return
        matcher = re.compile(re.escape(pattern).replace(re.escape("{rank}"), r"(\d+)"))
        for path in sorted(self.out.glob(glob.escape(pattern).replace("{rank}", "*"))):
            match = matcher.fullmatch(str(path.relative_to(self.out)))
            if match:
                yield int(match[1]) if match.groups() else 0, path

    def _printed(self) -> Iterator[Record]:
        if self.metrics.stdout is None:
            return
        try:
            with searching(self.metrics.stdout) as count:
                yield from self._matches(line_pattern(self.metrics.stdout), count)
        except TooSlow as error:
            self.too_slow = str(error)

    def _matches(self, pattern: LinePattern, count: Callable[[], None]) -> Iterator[Record]:
        out = self.rank0_log()
        for path in (out, out.with_name("stderr.log")) if self._log is None else (self._log,):
            for line, end in self._tail(path).lines_with_ends():
                count()
                printed = pattern.read(without_colors(line.rstrip(b"\r")[:8192]).decode("utf-8", "replace"))
                if printed is None:
                    continue
                self._log = path
                step, values = _whole(self._counter.step(printed)), contract_values(printed.values)
                row = not line.endswith(b"\r")  # a bar may redraw one step as often as it likes
                yield Record("stdout", 0, step, values, row=row, path=path, end=end)
            if self._log is not None:
                return


def _cells(line: bytes) -> list[str]:
    return [cell.strip().strip("\"'") for cell in line.decode("utf-8", "replace").lstrip("\ufeff").split(",")]


def _header(line: bytes) -> tuple[str, ...] | None:
    """The contract's names of the columns, if the line names them: one is the step, and none is a number."""
    cells = _cells(line)
    names = tuple(contract_names(cells))
    return names if "step" in names and not _numbers(dict(enumerate(cells))) else None


def _numbers(cells: Mapping[Any, object]) -> dict[str, float]:
    """The cells that are numbers, by the contract's names and in its units."""
    found = {}
    for name, value in cells.items():
        if isinstance(value, (int, float, str)) and not isinstance(value, bool):
            with suppress(ValueError, OverflowError):
                found[str(name)] = float(value)
    return contract_values(found)


def _whole(value: float | None) -> int | None:
    """A step or a pid; None for what is no whole number, such as an epoch."""
    return int(value) if value is not None and abs(value) < 2**53 and value == int(value) else None
