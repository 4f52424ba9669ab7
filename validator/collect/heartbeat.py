"""`heartbeat_rank{R}.jsonl`: each rank's signs of life and what it measured, a JSON object a line.

Records are decoded many at a time; only a block that is damaged is decoded line by line.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from validator.collect.intake import Digest, Intake, blocks, printable
from validator.collect.order import rising
from validator.collect.table import ALIASES
from validator.model.measure import SourceFile

__all__ = ["Heartbeat", "find_heartbeats", "read_heartbeat"]

MARKS = frozenset({"ts", "iso", "pid", "rank", "step", "msg"})
MAX_FIELDS = 512
MAX_LINE_BYTES = 2**20
MAX_STEP = 2**53


@dataclass(frozen=True)
class Heartbeat:
    """One rank's file.

    `times [n]` are Unix seconds of every record, `columns` the fields by step as in a table, `step_times_s` maps to
    when each step was first recorded: `(steps [m], seconds [m])`. `boots` are the steps at which a process began.
    """

    rank: int
    source: SourceFile
    lines: int
    times: npt.NDArray[np.float64]
    columns: Mapping[str, tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]]
    step_times_s: tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]
    pids: tuple[int, ...]
    first_step: int
    last_step: int
    last_msg: str
    done: bool
    max_gap_s: float | None


@dataclass
class _State:
    """What has been gathered of one file."""

    rank: int
    times: array[float] = field(default_factory=lambda: array("d"))
    steps: dict[str, array[int]] = field(default_factory=dict)
    values: dict[str, array[float]] = field(default_factory=dict)
    marks: tuple[array[int], array[float]] = field(default_factory=lambda: (array("q"), array("d")))
    pids: dict[int, int] = field(default_factory=dict)
    first_step: int | None = None
    highest: int = 0
    step: int = 0
    msg: str = ""
    done: bool = False
    records: int = 0
    faults: dict[str, tuple[int, int, str]] = field(default_factory=dict)

    def fault(self, code: str, line: int, sample: str) -> None:
        """Count a flaw; the first of its kind is kept as a sample."""
        count, first, text = self.faults.get(code, (0, line, sample))
        self.faults[code] = (count + 1, first, text)


_FAULTS = {
    "garbage-line": "lines are no JSON object and were left out",
    "truncated-line": "line at the end was cut short and was left out",
    "nul-bytes": "places hold NUL bytes, as a file does after a power cut",
    "no-timestamp": "records have no readable `ts`",
    "rank-mismatch": "records name another rank than the file does",
    "mixed-runs": "times a new process began at step 0 after steps had been done; runs share this file",
}


def find_heartbeats(folder: Path, pattern: str) -> dict[int, Path]:
    """Files that match a pattern with `{rank}`, by rank; a pattern without it names rank 0's file."""
    if "{rank}" not in pattern:
        return {0: folder / pattern} if (folder / pattern).is_file() else {}
    before, _, after = (folder / pattern).name.partition("{rank}")
    found = {}
    parent = (folder / pattern).parent
    try:
        names = sorted(entry.name for entry in parent.iterdir() if entry.is_file())
    except OSError:
        return {}
    for name in names:
        middle = name[len(before) : len(name) - len(after)]
        if name.startswith(before) and name.endswith(after) and middle.isascii() and middle.isdigit():
            found[int(middle)] = parent / name
    return dict(sorted(found.items()))


def read_heartbeat(path: Path, rank: int, intake: Intake) -> Heartbeat | None:
    """Read one rank's heartbeat. None when it cannot be opened or holds no record; never raises on content."""
    digest, state, line = Digest(), _State(rank), 1
    try:
        for block in blocks(path, digest):
            if b"\0" in block:
                state.fault("nul-bytes", line, f"{block.count(0)} bytes")
                block = block.replace(b"\0", b"")
            line += _take_block(block, line, state)
    except OSError as error:
        intake.note("unreadable", f"the heartbeat cannot be read: {error.strerror or error}", path)
        return None
    source = intake.add_source(path, sha256=digest.sha256, size=digest.size)
    for code, (count, first, sample) in state.faults.items():
        intake.note(code, f"{count} {_FAULTS[code]}; first: {sample!r}", path, first)
    if not state.records:
        intake.note("empty", "the heartbeat holds no records", path)
        return None
    return _finish(state, source, path, intake)


def _take_block(block: bytes, first_line: int, state: _State) -> int:
    raw = block.split(b"\n")
    whole = raw.pop() == b""
    count = len(raw)
    if not whole:
        raw.append(block[block.rfind(b"\n") + 1 :])
    records = _decode_all(raw) if whole else None
    if records is None:
        for offset, text in enumerate(raw):
            _take_line(text, first_line + offset, state, cut=offset == count and not whole)
    else:
        for offset, record in enumerate(records):
            _take(record, first_line + offset, state)
    return count


def _decode_all(lines: list[bytes]) -> list[Any] | None:
    """All lines by one call of the decoder; None unless each is exactly one JSON object."""
    try:
        records = json.loads(b"[" + b",".join(lines) + b"]")
    except (ValueError, RecursionError):
        return None
    if len(records) != len(lines) or not all(type(record) is dict for record in records):
        return None
    return list(records)


def _take_line(raw: bytes, line: int, state: _State, *, cut: bool) -> None:
    if not raw.strip():
        return
    sample = printable(raw[:200].decode("utf-8", "replace"), limit=60)
    try:
        record = json.loads(raw.decode("utf-8", "replace")) if len(raw) <= MAX_LINE_BYTES else None
    except (ValueError, RecursionError):
        record = None
    if isinstance(record, dict):
        _take(record, line, state)
    else:
        state.fault("truncated-line" if cut else "garbage-line", line, sample)


def _number(value: Any) -> float | None:
    """A measurement as a float; NaN and infinities may be written as texts."""
    kind = type(value)
    if kind is float:
        return float(value)
    if kind is int:
        return float(value) if -MAX_STEP <= value <= MAX_STEP else None
    if kind is str and value.lower() in ("nan", "inf", "-inf", "infinity", "-infinity"):
        return float(value)
    return None


def _take(record: dict[str, Any], line: int, state: _State) -> None:
    """Take in one record."""
    state.records += 1
    ts = _number(record.get("ts"))
    if ts is None or not 0 <= ts < 1e11:
        state.fault("no-timestamp", line, printable(str(record.get("ts")), limit=40))
        ts = None
    else:
        state.times.append(ts)
    msg = record.get("msg")
    state.msg = msg if isinstance(msg, str) else ""
    state.done = state.msg == "done" or (state.done and state.msg == "beat")
    raw_step = record.get("step")
    step = raw_step if type(raw_step) is int and 0 <= raw_step < MAX_STEP else state.step
    _check_writer(record, step, line, state)
    if state.first_step is None:
        state.first_step = step
    if state.msg == "beat":
        state.step = step
        return
    if step != state.step and ts is not None and state.msg != "boot":
        state.marks[0].append(step)
        state.marks[1].append(ts)
    state.step, state.highest = step, max(step, state.highest)
    if len(record) > len(MARKS) - 1 and step > 0:
        _take_fields(record, step, state)


def _check_writer(record: dict[str, Any], step: int, line: int, state: _State) -> None:
    """Notice another rank's records, and a process that started over in a file already used."""
    rank = record.get("rank")
    if type(rank) is int and rank != state.rank:
        state.fault("rank-mismatch", line, f"rank {rank} in the file of rank {state.rank}")
    pid = record.get("pid")
    if type(pid) is int and pid not in state.pids and len(state.pids) < 1000:
        if state.pids and step == 0 and state.highest > 0:
            state.fault("mixed-runs", line, f"pid {pid} after step {state.highest}")
        state.pids[pid] = line


def _take_fields(record: dict[str, Any], step: int, state: _State) -> None:
    for key, value in record.items():
        if key in MARKS or value is None or type(value) is bool:
            continue
        kind = type(value)
        if kind is list:
            pairs = [(f"{key}_{i}", v) for i, v in enumerate(value[:16])]
        elif kind is dict:
            pairs = [(f"{key}_{name}", v) for name, v in list(value.items())[:16]]
        else:
            pairs = [(key, value)]
        for name, item in pairs:
            number = _number(item)
            if number is None:
                continue
            steps = state.steps.get(name)
            if steps is None:
                if len(state.steps) >= MAX_FIELDS:
                    continue
                steps = state.steps[name] = array("q")
                state.values[name] = array("d")
            steps.append(step)
            state.values[name].append(number)


def _finish(state: _State, source: SourceFile, path: Path, intake: Intake) -> Heartbeat:
    columns = {}
    for name, raw_steps in state.steps.items():
        steps = np.frombuffer(raw_steps, dtype=np.int64)
        values = np.frombuffer(state.values[name], dtype=np.float64)
        kept = rising(steps, steps, (), lambda code, text, line: None)
        shown = printable(name, limit=100)
        columns[ALIASES.get(shown, shown)] = (steps[kept], values[kept])
    times = np.frombuffer(state.times, dtype=np.float64) if state.times else np.empty(0)
    mark_steps, mark_times = np.array(state.marks[0], dtype=np.int64), np.array(state.marks[1], dtype=np.float64)
    kept = rising(mark_steps, mark_steps, (), lambda code, text, line: None)
    jumps = np.diff(times)
    back = np.flatnonzero(jumps < -1.0)
    if back.size:
        worst = float(-jumps[back].min())
        intake.note("clock-jump", f"the clock goes back {back.size} times, by up to {worst:.0f} s", path)
    forward = jumps[jumps >= 0]
    return Heartbeat(
        rank=state.rank,
        source=source,
        lines=state.records,
        times=times,
        columns=columns,
        step_times_s=(mark_steps[kept], mark_times[kept]),
        pids=tuple(state.pids),
        first_step=state.first_step or 0,
        last_step=state.step,
        last_msg=printable(state.msg, limit=60),
        done=state.done,
        max_gap_s=float(forward.max()) if forward.size else None,
    )
