"""`heartbeat_rank{R}.jsonl`: each rank's signs of life and what it measured, a JSON object a line.

Records are decoded and taken in a block at a time; only a block that is damaged or odd is read line by line.
"""

from __future__ import annotations

import operator
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from validator.documents import parse_json
from validator.files import is_file, open_file
from validator.ingest.accounts import scalar
from validator.ingest.beats import Beats
from validator.ingest.clock import Gaps, clock_jumps
from validator.ingest.read_log import LEAN, ReadLog, decode_all, decode_shaped, line_ends, printable, read_blocks
from validator.ingest.rows import rising
from validator.model.columns import ALIASES
from validator.model.result import Floats, InvalidWindow, LoaderError, ScalarValue, SourceFile, Steps

MAX_LINE_BYTES = 2**20

Columns = Mapping[str, tuple[Steps, Floats]]


@dataclass(frozen=True)
class Heartbeat:
    """One rank's file.

    `columns` are the fields by step as in a table; columns that were recorded together share their steps' array.
    `step_times_s` maps to when each step was first recorded: `(steps [m], seconds [m])`; empty for a rank that was read
    in brief. `gaps` are the spans between records, `jumps` the windows in which the clock was set, `last_progress_s`
    when the last step was first recorded, Unix seconds.
    """

    rank: int
    source: SourceFile
    lines: int
    gaps: Gaps
    columns: Columns
    step_times_s: tuple[Steps, Floats]
    last_progress_s: float | None
    jumps: tuple[InvalidWindow, ...]
    pids: tuple[int, ...]
    resumed_s: tuple[float, ...]
    first_step: int
    last_step: int
    last_msg: str
    done: bool


_FAULTS = {
    "garbage-line": "lines are no JSON object and were left out",
    "truncated-line": "line at the end is incomplete and was left out",
    "not-utf8": "records hold bytes that are not UTF-8",
    "nul-bytes": "places hold NUL bytes, as a file does after a power cut",
    "no-message": "records have no readable `msg`, where others do",
    "no-timestamp": "records have no readable `ts`",
    "rank-mismatch": "records name another rank than the file does",
    "mixed-runs": "times a new process began at step 0 after steps had been done; runs share this file",
}


def find_heartbeats(folder: Path, pattern: str) -> dict[int, Path]:
    """Files that match a pattern with `{rank}`, by rank; a pattern without it names rank 0's file."""
    if "{rank}" not in pattern:
        return {0: folder / pattern} if is_file(folder / pattern) else {}
    before, _, after = (folder / pattern).name.partition("{rank}")
    found = {}
    parent = (folder / pattern).parent
    try:
        names = sorted(entry.name for entry in parent.iterdir() if is_file(entry))
    except OSError:
        return {}
    for name in names:
        middle = name[len(before) : len(name) - len(after)]
        if name.startswith(before) and name.endswith(after) and middle.isascii() and middle.isdigit():
            found[int(middle)] = parent / name
    return dict(sorted(found.items()))


def read_heartbeat(
    path: Path, rank: int, read_log: ReadLog, *, brief: bool = False, limit_s: float = float("inf")
) -> Heartbeat | None:
    """Read one rank's heartbeat. None when it cannot be opened or holds no record; never raises on content.

    Args:
        brief: keep of the fields only those that every rank is judged by (`LEAN`), and no time of each step.
        limit_s: longest span that can be silence; a longer one is a jump of the wall clock.
    """
    lean = frozenset({*LEAN, *(raw for raw, name in ALIASES.items() if name in LEAN)})
    beats = Beats(rank, wanted=lean if brief else None, gaps=Gaps(limit_s))
    source = read_blocks(path, read_log, lambda block, line: _take_block(block, line, beats), what="the heartbeat")
    if source is None:
        return None
    silent = beats.faults.seen.get("no-message", (0,))[0] == beats.records  # a trainer that never writes messages
    beats.faults.note(read_log, path, _FAULTS, ignored={"no-message"} if silent else ())
    if not beats.records:
        read_log.note("empty", "the heartbeat holds no records", path)
        return None
    return _finish(beats, source, path, read_log, brief=brief)


def _take_block(block: bytes, first_line: int, beats: Beats) -> int:
    """Read one block; the number of line ends in it."""
    count = line_ends(block)
    if b"\0" in block:
        beats.faults.add("nul-bytes", first_line, f"{block.count(0)} bytes")
        block = block.replace(b"\0", b"")
    start = 0 if beats.records else block.find(b"\n") + 1
    if start:  # the first record shows which process writes; it is the only one that may be new in a sound block
        _take_line(block[: start - 1], first_line, beats, cut=False)
        beats.flush()
    rest, first_line = block[start:], first_line + (1 if start else 0)
    whole = rest.endswith(b"\n")
    if whole and beats.records and _at_once(rest, count - (1 if start else 0), beats):
        return count
    raw = rest.split(b"\n")
    if whole or not rest:
        raw.pop()
    for offset, text in enumerate(raw):
        _take_line(text, first_line + offset, beats, cut=not whole and offset == len(raw) - 1)
    beats.flush()
    return count


def _at_once(block: bytes, count: int, beats: Beats) -> bool:
    """Take a sound block in one go: by the shape of those before it, or else as whole records."""
    shape = beats.shape()
    if shape is not None:
        records = decode_shaped(block, count, shape)
        if records is not None and beats.take_shaped(records, shape):
            return True
    whole = decode_all(block, count)
    return whole is not None and beats.take_block(whole)


def _take_line(raw: bytes, line: int, beats: Beats, *, cut: bool) -> None:
    if not raw.strip():
        return
    sample = printable(raw[:200].decode("utf-8", "replace"), limit=60)
    text = raw.decode("utf-8", "replace")
    try:
        record = parse_json(text, exact=True) if len(raw) <= MAX_LINE_BYTES else None
    except ValueError:
        record = None
    if isinstance(record, dict):
        if "\ufffd" in text and text.encode("utf-8", "replace") != raw:
            beats.faults.add("not-utf8", line, sample)
        beats.take(record, line)
    else:
        beats.faults.add("truncated-line" if cut else "garbage-line", line, sample)


def _finish(beats: Beats, source: SourceFile, path: Path, read_log: ReadLog, *, brief: bool) -> Heartbeat:
    steps, seconds = _array(beats.mark_steps, np.int64), _array(beats.mark_times, np.float64)
    kept = rising(steps, steps, (), _ignore)
    if kept.size < steps.size:
        steps, seconds = steps[kept], seconds[kept]
    if beats.gaps.back:
        furthest = beats.gaps.furthest_back_s
        read_log.note("clock-jump", f"the clock was set back {beats.gaps.back} times, by up to {furthest:.0f} s", path)
    return Heartbeat(
        rank=beats.rank,
        source=source,
        lines=beats.records,
        gaps=beats.gaps,
        columns=_columns(beats),
        step_times_s=(steps[:0], seconds[:0]) if brief else (steps, seconds),
        last_progress_s=float(seconds[-1]) if seconds.size else None,
        jumps=tuple(clock_jumps(steps, seconds, limit_s=beats.gaps.limit_s)),
        pids=tuple(beats.pids),
        resumed_s=tuple(beats.resumed_s),
        first_step=beats.first_step or 0,
        last_step=beats.step,
        last_msg=printable(beats.msg, limit=60),
        done=beats.done,
    )


def _columns(beats: Beats) -> Columns:
    """The columns, each rid of what a later part of the file repeats; equal steps are kept once."""
    made: dict[str, tuple[Steps, Floats]] = {}
    known: list[_Steps] = []
    for name in sorted(beats.columns, key=lambda name: name in ALIASES):  # the contract's own name comes first
        column = beats.columns.pop(name)
        values = _array(column.values, np.float64)
        if not values.size:
            continue
        same = next((one for one in known if one.same(column.steps)), None)
        if same is None:
            same = _Steps(column.steps)
            known.append(same)
        shown = printable(name, limit=100)
        made.setdefault(ALIASES.get(shown, shown), (same.steps, values if same.whole else values[same.kept]))
    return made


class _Steps:
    """The steps of a column, put together and rid of repeats."""

    def __init__(self, pieces: list[Steps]) -> None:
        self._pieces = pieces
        self._raw = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
        self.kept = rising(self._raw, self._raw, (), _ignore)
        self.whole = self.kept.size == self._raw.size
        self.steps = self._raw if self.whole else self._raw[self.kept]

    def same(self, pieces: list[Steps]) -> bool:
        """Whether these pieces are the same steps: the same objects, or equal ones."""
        if len(pieces) == len(self._pieces) and all(map(operator.is_, pieces, self._pieces)):
            return True
        if sum(map(len, pieces)) != len(self._raw):
            return False
        return np.array_equal(self._raw, np.concatenate(pieces))


def _array(values: array[Any], dtype: type[np.generic]) -> npt.NDArray[Any]:
    """The same memory as an array of numpy's, which an empty one has none of."""
    return np.frombuffer(values, dtype=dtype) if values else np.empty(0, dtype=dtype)


def _ignore(code: str, text: str, line: int | None) -> None:
    """Repeats and falls of the step are noted for the table, not again for each heartbeat."""


# What the heartbeats say of a run's data loader: its first batch, or why there was none.

UNREACHABLE = "unreachable"
"""The word by which a loader says that its source cannot be reached from here."""

_EDGE_BYTES = 256 * 2**10


def read_loader(out: Path, pattern: str | None, read_log: ReadLog) -> tuple[dict[str, ScalarValue], LoaderError | None]:
    """From the heartbeats: how long the slowest rank waited for its first batch, and why the first rank without one
    gave up."""
    if pattern is None:
        return {}, None
    waits: dict[int, tuple[float, Path]] = {}
    failed: LoaderError | None = None
    for rank, path in find_heartbeats(out, pattern).items():
        booted: float | None = None
        for record in _edges(path):
            message, ts = record.get("msg"), record.get("ts")
            if message == "boot" and isinstance(ts, (int, float)):
                booted = float(ts)
            elif message == "loader_ready" and booted is not None and isinstance(ts, (int, float)):
                waits.setdefault(rank, (float(ts) - booted, path))
            elif message == "loader_error" and failed is None:
                error = printable(str(record.get("error") or "no reason was given"))
                reason = f"{record.get('reason') or ''} {error}".lower()
                failed = LoaderError(rank, read_log.name(path), error, unreachable=UNREACHABLE in reason)
    if not waits:
        return {}, failed
    wait_s, path = max(waits.values(), key=lambda one: one[0])
    return scalar("startup.first_batch_s", max(0.0, wait_s), read_log.name(path)), failed


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
