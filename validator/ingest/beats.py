"""What is known of one rank's heartbeat while it is read: by whole blocks where they are sound, else by the line."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import repeat
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from validator.ingest.clock import Gaps
from validator.ingest.read_log import FaultLog, Shape, printable
from validator.model.result import Floats, Steps

MARKS = frozenset({"ts", "iso", "pid", "rank", "step", "msg"})
MAX_FIELDS = 512
MAX_STEP = 2**53
_MAX_PIDS = 1000
_WORDS = ("nan", "inf", "-inf", "infinity", "-infinity")

_BEAT = 2
_KINDS = {"boot": 1, "beat": _BEAT}
"""Messages that are no progress: of a process that begins, and of the thread that only says that it lives."""

_MAX_WRITERS = 8
"""Processes in one file, above which it is no longer read by shape."""


def number(value: Any) -> float | None:
    """A measurement as a float; NaN and infinities may be written as texts."""
    kind = type(value)
    if kind is float:
        return float(value)
    if kind is int:
        return float(value) if -MAX_STEP <= value <= MAX_STEP else None
    if kind is str and value.lower() in _WORDS:
        return float(value)
    return None


@dataclass
class Column:
    """A field's values in the order of the file. Their steps come in pieces, which fields of the same records share."""

    steps: list[Steps] = field(default_factory=list)
    values: array[float] = field(default_factory=lambda: array("d"))

    def add(self, steps: Steps, values: Floats) -> None:
        """Append a piece."""
        self.steps.append(steps)
        self.values.frombytes(_bytes(values))


@dataclass
class Beats:
    """`mark_steps` and `mark_times` hold when, in Unix seconds, the step was seen to change; `resumed_s` when each
    process after the first one was first heard of."""

    rank: int
    wanted: frozenset[str] | None = None
    gaps: Gaps = field(default_factory=Gaps)
    columns: dict[str, Column] = field(default_factory=dict)
    mark_steps: array[int] = field(default_factory=lambda: array("q"))
    mark_times: array[float] = field(default_factory=lambda: array("d"))
    pids: dict[int, int] = field(default_factory=dict)
    resumed_s: array[float] = field(default_factory=lambda: array("d"))
    first_step: int | None = None
    highest: int = 0
    step: int = 0
    msg: str = ""
    done: bool = False
    records: int = 0
    faults: FaultLog = field(default_factory=FaultLog)
    _known: dict[str, bool] = field(default_factory=dict)
    _steps: dict[str, array[int]] = field(default_factory=dict)
    _values: dict[str, array[float]] = field(default_factory=dict)
    _times: array[float] = field(default_factory=lambda: array("d"))

    # ------------------------------------------------------------------------------------------------- by the line

    def take(self, record: dict[str, Any], line: int) -> None:
        """Take in one record, whatever it holds. `flush` must follow before anything is read."""
        self.records += 1
        ts = number(record.get("ts"))
        if ts is None or not 0 <= ts < 1e11:
            self.faults.add("no-timestamp", line, printable(str(record.get("ts")), limit=40))
            ts = None
        else:
            self._times.append(ts)
        msg = record.get("msg")
        self.msg = msg if isinstance(msg, str) else ""
        if not self.msg:
            self.faults.add("no-message", line, printable(str(msg), limit=40))
        self.done = self.msg == "done" or (self.done and self.msg == "beat")
        step = self._step_of(record.get("step"))
        self._check_writer(record, step, ts, line)
        if self.first_step is None:
            self.first_step = step
        if self.msg == "beat":
            self.step = step
            return
        if step != self.step and ts is not None and self.msg != "boot":
            self.mark_steps.append(step)
            self.mark_times.append(ts)
        self.step, self.highest = step, max(step, self.highest)
        if step > 0:
            for key, value in record.items():
                if key not in MARKS:
                    self._take_field(key, value, step)

    def _step_of(self, raw: Any) -> int:
        if type(raw) is float and raw.is_integer():
            raw = int(raw)
        return raw if type(raw) is int and 0 <= raw < MAX_STEP else self.step

    def _check_writer(self, record: dict[str, Any], step: int, ts: float | None, line: int) -> None:
        """Notice another rank's records, and a process that started over in a file already used."""
        rank = record.get("rank")
        if type(rank) is int and rank != self.rank:
            self.faults.add("rank-mismatch", line, f"rank {rank} in the file of rank {self.rank}")
        pid = record.get("pid")
        if type(pid) is int and pid not in self.pids and len(self.pids) < _MAX_PIDS:
            if self.pids and step == 0 and self.highest > 0:
                self.faults.add("mixed-runs", line, f"pid {pid} after step {self.highest}")
            if self.pids and ts is not None:
                self.resumed_s.append(ts)
            self.pids[pid] = line

    def _take_field(self, key: str, value: Any, step: int) -> None:
        for name, item in _named_items(key, value):
            found = number(item) if self.wanted is None or name in self.wanted else None
            if found is None or not self._open(name):
                continue
            if name not in self._steps:
                self._steps[name], self._values[name] = array("q"), array("d")
            self._steps[name].append(step)
            self._values[name].append(found)

    def _open(self, name: str) -> bool:
        """Whether a column exists or may be added."""
        if name not in self.columns:
            if len(self.columns) >= MAX_FIELDS:
                return False
            self.columns[name] = Column()
        return True

    def flush(self) -> None:
        """Move what was taken line by line behind the blocks before it."""
        self.gaps.add(np.array(self._times, dtype=np.float64))
        self._times = array("d")
        for name, steps in self._steps.items():
            self.columns[name].add(np.array(steps, dtype=np.int64), np.array(self._values[name], dtype=np.float64))
        self._steps.clear()
        self._values.clear()

    # ---------------------------------------------------------------------------------------------------- by blocks

    def take_block(self, records: Sequence[dict[str, Any]]) -> bool:
        """Take in records at once; False, and nothing is taken, when one of them is out of the ordinary."""
        try:
            marks = tuple([record[key] for record in records] for key in ("ts", "step", "msg", "rank", "pid"))
        except KeyError:
            return False
        kinds: tuple[set[type], ...] = ({float, int}, {int}, {str}, {int}, {int})
        if any(not set(map(type, values)) <= kind for values, kind in zip(marks, kinds, strict=True)):
            return False
        ts, step, msg, rank, pid = marks
        if not records or set(rank) != {self.rank} or not set(pid) <= self.pids.keys():
            return not records
        try:
            steps = np.array(step, dtype=np.int64)
        except OverflowError:
            return False
        if self._take_marks(ts, steps, msg) is None:
            return False
        groups: dict[tuple[str, ...], list[int]] = {}
        for place, (record, word) in enumerate(zip(records, msg, strict=True)):
            if word != "beat":
                groups.setdefault(tuple(record), []).append(place)
            else:
                self._known |= dict.fromkeys(record.keys() - self._known.keys() - MARKS, False)
        pieces: dict[str, list[tuple[Any, Any, Any]]] = {}
        for keys, places in groups.items():
            at = np.array(places, dtype=np.int64)
            own = steps[at]
            for key in keys:
                if key not in MARKS:
                    plain = self._take_column(key, [records[i][key] for i in places], at, own, pieces)
                    self._known[key] = plain and self._known.get(key, True)
        self._put(pieces)
        return True

    def _take_column(
        self, key: str, raw: list[Any], at: Steps, steps: Steps, pieces: dict[str, list[tuple[Any, Any, Any]]]
    ) -> bool:
        """One key of records that have the same keys, at once or one by one; whether all values were numbers."""
        if self.wanted is not None and key not in self.wanted and not any(w.startswith(key) for w in self.wanted):
            return True
        values = _plain_numbers(raw)
        if values is not None:
            _keep(pieces, key, at, steps, values)
            return True
        singles: dict[str, tuple[list[int], list[float]]] = {}
        for place, value in enumerate(raw):
            for name, item in _named_items(key, value):
                found = number(item)
                if found is not None and (self.wanted is None or name in self.wanted):
                    places, numbers = singles.setdefault(name, ([], []))
                    places.append(place)
                    numbers.append(found)
        for name, (places, numbers) in singles.items():
            _keep(pieces, name, at[places], steps[places], np.array(numbers, dtype=np.float64))
        return False

    def shape(self) -> Shape | None:
        """What a sound block like those before holds; None where that is not known.

        When all fields are wanted, every one must be known; when only some are, nothing in which one could be nested
        may be passed over.
        """
        pids = tuple(self.pids)
        if not 0 < len(pids) <= _MAX_WRITERS or not all(0 <= one < 2**31 for one in (self.rank, *pids)):
            return None
        if self.wanted is not None:
            above = {name[:end] for name in self.wanted for end, sign in enumerate(name) if sign == "_"}
            single = tuple(sorted(above - self.wanted - MARKS))
            return Shape(self.rank, pids, numbers=tuple(sorted(self.wanted)), single=single)
        if not self._known or len(self._known) > MAX_FIELDS:
            return None
        numbers = tuple(name for name, plain in self._known.items() if plain)
        others = tuple(name for name, plain in self._known.items() if not plain)
        return Shape(self.rank, pids, numbers=numbers, others=("iso", *others), closed=True)

    def take_shaped(self, records: Sequence[Any], shape: Shape) -> bool:
        """As `take_block`, of records that `decode_shaped` made."""
        if not records:
            return True
        try:
            steps = np.array([record.step for record in records], dtype=np.int64)
        except OverflowError:
            return False
        columns = [(name, _column(records, f"n{i}")) for i, name in enumerate(shape.numbers)]
        if any(np.abs(values).max(initial=0.0, where=~np.isnan(values)) > MAX_STEP for _, values in columns):
            return False  # a whole number that a float does not keep is for `take` to leave out
        kinds = self._take_marks([record.ts for record in records], steps, [record.msg for record in records])
        if kinds is None:
            return False
        at = np.flatnonzero((kinds != _BEAT) & (steps > 0))
        if len(at) < len(records):
            columns = [(name, values[at]) for name, values in columns]
        own = steps[at]
        pieces: dict[str, list[tuple[Any, Any, Any]]] = {}
        for name, values in columns:
            there = ~np.isnan(values)
            if there.all():
                _keep(pieces, name, at, own, values)
            elif there.any():
                _keep(pieces, name, at[there], own[there], values[there])
        for i, name in enumerate(shape.others):
            if name not in MARKS:
                get = attrgetter(f"o{i}")
                self._take_column(name, [get(records[place]) for place in at.tolist()], at, own, pieces)
        self._put(pieces)
        return True

    def _take_marks(self, ts: Sequence[float], steps: Steps, msg: Sequence[str]) -> npt.NDArray[np.int8] | None:
        """Times, steps and the last message of a sound block; each record's kind, or None when anything is odd."""
        words = set(msg)
        try:
            times = np.array(ts, dtype=np.float64)
        except OverflowError:
            return None
        if "" in words or times.min() < 0 or not times.max() < 1e11 or steps.min() < 0 or steps.max() >= MAX_STEP:
            return None
        kinds = np.zeros(len(times), dtype=np.int8)
        if words & _KINDS.keys():
            kinds = np.fromiter(map(_KINDS.get, msg, repeat(0)), dtype=np.int8, count=len(msg))
        silent, beat = kinds != 0, kinds == _BEAT
        fresh = (np.diff(steps, prepend=self.step) != 0) & ~silent
        if fresh.any():
            self.mark_steps.frombytes(_bytes(steps[fresh]))
            self.mark_times.frombytes(_bytes(times[fresh]))
        if self.first_step is None:
            self.first_step = int(steps[0])
        if not beat.all():
            last = int(np.flatnonzero(~beat)[-1])
            self.highest = max(self.highest, int(steps[~beat].max()))
            self.done = msg[last] == "done"
        self.step, self.msg = int(steps[-1]), msg[-1]
        self.records += len(times)
        self.gaps.add(times)
        return kinds

    def _put(self, pieces: dict[str, list[tuple[Any, Any, Any]]]) -> None:
        """Append a block's columns, those of several groups in the order of the file; step 0 has no measurement."""
        for name, parts in pieces.items():
            if not self._open(name):
                continue
            at, steps, values = parts[0]
            if len(parts) > 1:
                at, steps, values = (np.concatenate(one) for one in zip(*parts, strict=True))
                order = np.argsort(at, kind="stable")
                steps, values = steps[order], values[order]
            finished = steps > 0
            if not finished.all():
                steps, values = steps[finished], values[finished]
            if steps.size:
                self.columns[name].add(steps, values)


def _named_items(key: str, value: Any) -> list[tuple[str, Any]]:
    """A field as columns: the entries of a list or an object have names of their own."""
    kind = type(value)
    if kind is list:
        return [(f"{key}_{i}", item) for i, item in enumerate(value[:16])]
    if kind is dict:
        return [(f"{key}_{name}", item) for name, item in list(value.items())[:16]]
    return [(key, value)]


def _bytes(values: npt.NDArray[Any]) -> memoryview:
    """What `array` takes numbers from; not for an empty array."""
    return np.ascontiguousarray(values).data.cast("B")


def _column(records: Sequence[Any], attribute: str) -> Floats:
    """One attribute of all records; None becomes NaN, which JSON cannot hold."""
    get = attrgetter(attribute)
    try:
        return np.fromiter(map(get, records), dtype=np.float64, count=len(records))
    except TypeError:
        return np.array(list(map(get, records)), dtype=np.float64)


def _plain_numbers(raw: Sequence[Any]) -> Floats | None:
    """Values that are all plain numbers, as an array; None when one is not."""
    kinds = set(map(type, raw))
    if not kinds <= {float, int}:
        return None
    try:
        values = np.array(raw, dtype=np.float64)
    except OverflowError:
        return None
    if int in kinds and values.size and float(np.abs(values).max()) > MAX_STEP:
        return None
    return values


def _keep(pieces: dict[str, list[tuple[Any, Any, Any]]], name: str, at: Steps, steps: Steps, values: Floats) -> None:
    pieces.setdefault(name, []).append((at, steps, values))
