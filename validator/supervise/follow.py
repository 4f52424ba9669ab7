"""Reading a trainer's files while it writes them: only what is new, never a whole file again.

What is read here steers the supervision of a run. Measurement reads the same files afterwards, with care for every
irregularity; here a line that cannot be read is passed over.
"""

from __future__ import annotations

import glob
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from validator.documents import parse_json
from validator.ingest.readers.hf_trainer import TwoStreams
from validator.ingest.readers.rows import live_values
from validator.ingest.text_logs import find_text_log
from validator.model.budget import TooSlow, searching
from validator.model.columns import (
    HEADERLESS,
    contract_names,
    contract_values,
    renamed,
    rows_count,
    says_nothing,
    separator,
    with_commas,
    without_colors,
)
from validator.model.loss_parts import read_parts
from validator.model.nodes import Live
from validator.model.pattern import Printed, StepCounter, line_pattern
from validator.model.print_tables import PrintedTable
from validator.model.print_words import MARK
from validator.model.recipes import BY_WORDS
from validator.model.runbook import TrainerMetrics
from validator.supervise.follow_files import FileFollower
from validator.supervise.nodes import LIVE_FILE, live_nodes
from validator.supervise.tail import Tail

_SEARCH_S, _SEARCH_SHARE = 1.0, 0.02
"""Time between two searches for a text log, or for heartbeats of more ranks; share of the time at most."""


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
    that are long already. Links are followed only to below the metrics' `link_roots`, and none on the way from `root`,
    which is `out` where it is not given. `too_slow` says why the log is no longer searched. `live` is what each node of
    a run does; where they train alone the run is as far as the slowest.
    With `newest`, only so many of the latest lines of a table or heartbeat count at each look: for latest values.
    """

    out: Path
    metrics: TrainerMetrics
    ranks: int | None = None
    skip_to_last_bytes: int | None = None
    newest: int | None = None
    log: Path | None = None
    root: Path | None = None
    step: int | None = None
    latest: dict[str, float] = field(default_factory=dict)
    too_slow: str = ""
    by_rank: dict[int, RankState] = field(default_factory=dict)
    live: dict[str, Live] = field(default_factory=dict)
    _tails: dict[Path, Tail] = field(default_factory=dict)
    _columns: dict[str, tuple[str, tuple[str, ...]]] = field(default_factory=dict)
    _logs: dict[str, Path] = field(default_factory=dict)
    _counters: dict[str, StepCounter] = field(default_factory=dict)
    _streams: TwoStreams = field(default_factory=TwoStreams)
    _files: FileFollower | None = None
    _announced: dict[str, Printed | None] = field(default_factory=dict)
    _in_tables: dict[Path, PrintedTable] = field(default_factory=dict)
    _counted: dict[str, int] = field(default_factory=dict)
    _text: Path | None = None
    _next_search_s: float = 0.0
    _beats_of: tuple[tuple[int, Path], ...] = ()
    _next_beats_s: float = 0.0

    def __post_init__(self) -> None:
        if any(reader.files for reader in self.metrics.readers):
            self._files = FileFollower(self.out, self.metrics, self.root or self.out)

    def look(self, *, now: float | None = None) -> tuple[Record, ...]:
        """Everything written since the last look, in the order of the files."""
        moment = time.monotonic() if now is None else now
        records = [*self._tables(), *self._beats(moment), *self._printed(), *self._logged(moment)]
        self.live = live_nodes(self.out)
        if self.nodes and len(self.nodes) == len(self.live):
            records.append(Record(LIVE_FILE, 0, min(self.nodes.values()), {}))
        for record in records:
            if record.step is not None and (self.step is None or record.step > self.step):
                self.step = record.step
            if record.rank == 0:
                self.latest.update(record.values)
        return tuple(records)

    @property
    def nodes(self) -> dict[str, int]:
        """The steps of nodes that train alone."""
        return {name: one.step for name, one in self.live.items() if one.step is not None}

    @property
    def behind(self) -> dict[str, Live]:
        """The nodes that the run waits for: all, or the slowest of those that train alone."""
        least = min((one.step or 0 for one in self.live.values()), default=0)
        return {name: one for name, one in self.live.items() if (one.step or 0) == least}

    @property
    def has_source(self) -> bool:
        """Whether the trainer declares anything that reports a step, and that can be searched in time."""
        searched = self.metrics.reads_log and not self.too_slow
        return any((self.metrics.csv, self.metrics.heartbeat, searched, self._files))

    def rank0_log(self) -> Path:
        """Where rank 0's standard output goes: the file that is known, torchrun's file for it, else the launcher's. Of
        a text log that the runbook names the part that is written to."""
        if self.log is not None:
            return self.log
        if self.metrics.log_below is not None:
            return self._text_log(self.metrics.log_below)
        found = sorted(self.out.glob("logs/ranks/*/attempt_*/0/stdout.log"))
        log = self.out / "logs" / "stdout.log"
        if found or log.is_file():
            return found[-1] if found else log
        own = sorted(self.out.glob("*.log"))  # of a trainer that validator did not start
        return own[0] if len(own) == 1 else log

    def _text_log(self, glob: str) -> Path:
        now = time.monotonic()
        if now >= self._next_search_s:
            found = find_text_log(self.out, glob).parts
            self._next_search_s = now + max(_SEARCH_S, (time.monotonic() - now) / _SEARCH_SHARE)
            if found and self.out / found[-1] != self._text:
                self._text = self.out / found[-1]
                self._logs.clear()
        return self.out / glob if self._text is None else self._text

    @property
    def _printed_logs(self) -> tuple[Path, ...]:
        """What is searched: rank 0's standard output and error, or the text log alone."""
        log = self.rank0_log()
        return (log,) if self.metrics.log is not None and self.log is None else (log, log.with_name("stderr.log"))

    def stamped(self) -> tuple[Path, ...]:
        """The files whose growth shows when a step was reported: table and log, else rank 0's heartbeat."""
        found = [self.out / self.metrics.csv] if self.metrics.csv is not None else []
        found += [] if self._files is None else self._files.paths
        if self.metrics.reads_log:
            searched = set(self.metrics.patterns) <= self._logs.keys() and not self._two_streams
            found += dict.fromkeys(self._logs.values()) if searched else self._printed_logs
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
                path,
                root=self.root or self.out,
                skip_to_last_bytes=self.skip_to_last_bytes,
                link_roots=self.metrics.link_roots,
            )
        return self._tails[path]

    def _tables(self) -> Iterator[Record]:
        named = () if self.metrics.csv is None else (self.metrics.csv,)
        for name in (*named, *(() if self._files is None else self._files.tables)):
            yield from self._rows(name)

    def _rows(self, name: str) -> Iterator[Record]:
        tail = self._tail(self.out / name)
        lines = tail.lines_with_ends(newest=self.newest)
        if tail.again:  # its header may be another one, and not among the newest lines
            self._columns.pop(name, None)
            self._counted.pop(name, None)
        for line, end in lines:
            names = None if line[:1].isdigit() else self._header(line)
            if names is not None:
                self._columns[name] = names
                continue
            if name not in self._columns:
                self._columns[name] = self._header(tail.first_line) or (separator(_text(tail.first_line)), HEADERLESS)
            mark, columns = self._columns[name]
            values = _numbers(dict(zip(columns, _cells(line, mark), strict=False)))
            step = _whole(values.pop("step", None))
            if rows_count(columns) and values:
                step = self._counted[name] = self._counted.get(name, 0) + 1
            if step is not None:
                yield Record(name, 0, step, values, row=True, path=tail.path, end=end)

    def _header(self, line: bytes) -> tuple[str, tuple[str, ...]] | None:
        """What stands between the columns and the contract's names of them, if the line names them: one is the step, or
        rows are counted, and none is a number."""
        mark = separator(_text(line))
        cells = _cells(line.lstrip(b"# "), mark)
        names = tuple(contract_names(renamed(cells, self.metrics.series_of)))
        counts = "step" in names or rows_count(names)
        return (mark, names) if counts and not _numbers(dict(enumerate(cells))) else None

    def _logged(self, now: float) -> Iterator[Record]:
        """Rows of the files that readers find."""
        if self._files is None:
            return
        for path, row in self._files.rows(now, lambda path: self._whole_tail(path).new_bytes()):
            yield Record(path.name, 0, row.step, row.values, row=True, path=path, end=row.end)

    def _whole_tail(self, path: Path) -> Tail:
        """A file whose records can only be found from its start."""
        if path not in self._tails:
            self._tails[path] = Tail(path, root=self.root or self.out)
        return self._tails[path]

    def _beats(self, now: float) -> Iterator[Record]:
        if now >= self._next_beats_s or not self._beats_of:
            self._beats_of, self._next_beats_s = tuple(self._heartbeat_files()), now + _SEARCH_S
        for rank, path in self._beats_of:
            state = self.by_rank.setdefault(rank, RankState())
            for line, end in self._tail(path).lines_with_ends(newest=self.newest):
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

    @property
    def _two_streams(self) -> bool:
        return any(reader.two_streams for reader in self.metrics.readers)

    def _printed(self) -> Iterator[Record]:
        """Records of the lines that are new; each log is read once, whatever looks for something in it."""
        if not self.metrics.reads_log:
            return
        lines = {path: self._tail(path).lines_with_ends() for path in self._printed_logs}
        for pattern in self.metrics.patterns:
            try:
                with searching(pattern) as count:
                    yield from self._matches(pattern, lines, count)
            except TooSlow as error:
                self.too_slow = str(error)
        if self._two_streams:
            yield from self._paired(lines)

    def _matches(
        self, pattern: str, lines: Mapping[Path, list[tuple[bytes, int]]], count: Callable[[], None]
    ) -> Iterator[Record]:
        wanted, counter = line_pattern(pattern), self._counters.setdefault(pattern, StepCounter())
        log = self._logs.get(pattern)
        for path in lines if log is None else (log,):
            for line, end in lines.get(path, ()):
                count()
                text = _text(line)
                if MARK in pattern:
                    text = self._in_tables.setdefault(path, PrintedTable()).row(text) or text
                printed = wanted.read(text)
                if printed is None:
                    continue
                printed = read_parts(printed, wanted, text, by_words=pattern in BY_WORDS)
                if printed.odd is None and says_nothing(printed.values, wanted.names):
                    self._announced[pattern] = printed if printed.step is not None else self._announced.get(pattern)
                    continue
                announced = self._announced.pop(pattern, None)
                if printed.step is None and announced is not None:
                    counter.step(announced)
                self._logs[pattern] = path
                step, values = _whole(counter.step(printed)), contract_values(printed.values)
                # A bar may redraw one step as often as it likes, and an evaluation prints its batches behind one.
                row = not line.endswith(b"\r") and not printed.of_evaluation
                yield Record("stdout", 0, step, values, row=row, path=path, end=end)
            if pattern in self._logs:
                return

    def _paired(self, lines: Mapping[Path, list[tuple[bytes, int]]]) -> Iterator[Record]:
        for path, new in lines.items():
            for number, (line, end) in enumerate(new):
                for row in self._streams.take(number, _text(line), end):
                    yield Record("stdout", 0, row.step, live_values(row, {}), path=path, end=end)


def _text(line: bytes) -> str:
    return without_colors(line.rstrip(b"\r")[:8192]).decode("utf-8", "replace")


def _cells(line: bytes, mark: str) -> list[str]:
    text = with_commas(line, mark).decode("utf-8", "replace").lstrip("\ufeff")
    return [cell.strip().strip("\"'") for cell in text.split(",")]


def _numbers(cells: Mapping[Any, object]) -> dict[str, float]:
    """The cells that are numbers, by the contract's names and in its units."""
    found = {}
    for name, value in cells.items():
        if isinstance(value, (int, float, str)) and not isinstance(value, bool):
            try:
                found[str(name)] = float(value)
            except (ValueError, OverflowError):
                continue
    return contract_values(found)


def _whole(value: float | None) -> int | None:
    """A step or a pid; None for what is no whole number, such as an epoch."""
    return int(value) if value is not None and abs(value) < 2**53 and value == int(value) else None
