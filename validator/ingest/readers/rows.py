"""Rows of a logger's file: what every format yields, and how rows become series."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from validator.ingest.clock import Arrivals
from validator.ingest.derived import Derived, clocks, of_parts, with_derived
from validator.ingest.read_log import FaultLog
from validator.ingest.rows import Column, Note, rising
from validator.model.columns import contract_values
from validator.model.logged_names import STEP_KEYS, logged_name, plain_key, record_name, step_key
from validator.model.pattern import parse_number
from validator.model.result import Floats, Steps

MAX_KEYS = 512
MAX_STEP = 2**53


@dataclass(frozen=True)
class LoggedRow:
    """Numbers of one step under the names that the file has. `time_s` is when it was logged, in Unix seconds; `end` the
    byte behind it; `keyed` says that the step is one that the trainer logged, and not the logger's own count."""

    step: int
    values: Mapping[str, float]
    time_s: float | None = None
    end: int = 0
    keyed: bool = True


class Decoder(Protocol):
    """Reads one file, as it grows or at once. Flaws are counted in `faults`, by the codes of irregularities."""

    faults: FaultLog

    def feed(self, data: bytes) -> Iterator[LoggedRow]:
        """The rows that are complete with these bytes, which follow those before."""
        ...

    def close(self) -> None:
        """Note what is left of a file that has ended."""
        ...


class WholeFile(Protocol):
    """Reads a file that is replaced, or that can only be read as a whole."""

    faults: FaultLog

    def rows(self, data: bytes) -> Iterator[LoggedRow]:
        """The rows of the whole file."""
        ...


FAULTS = {
    "garbage-line": "lines are no JSON object and were left out",
    "garbage-row": "records are damaged; what follows them was left out",
    "garbage-cell": "values are no numbers where one belongs",
    "missing-step": "records with a loss have no step and were left out",
    "truncated-line": "record at the end is incomplete and was left out",
    "too-large": "records are larger than any that holds numbers and were left out",
    "too-many-columns": f"keys beyond the first {MAX_KEYS} were left out",
}


def as_number(value: object) -> float | None:
    """A logged value as a number; texts such as `NaN` and durations (`0:01:02`) too. None for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    if isinstance(value, str):
        return parse_number(value) if len(value) <= 64 else None
    try:
        return float(value)
    except OverflowError:
        return None


def record_row(
    record: Mapping[str, object], *, end: int, fallback: str | None = None, step: str | None = None
) -> LoggedRow | None:
    """The row of a record of keys and values, nested ones as `outer/inner`; None where it has no step.

    Args:
        record: as the logger wrote it.
        end: the byte behind it.
        fallback: the logger's own count, which is the step where the trainer logs none.
        step: the key that the runbook names for it.
    """
    flat = dict(leaves(record))
    found = step_key(flat) if step is None else step if step in flat else None
    key = found if found is not None else fallback
    count = None if key is None else as_number(flat.get(key))
    if key is None or count is None or not abs(count) < MAX_STEP or count != int(count):
        return None
    values = {
        name: number
        for name, value in flat.items()
        if name not in (key, fallback) and plain_key(name) not in STEP_KEYS and (number := as_number(value)) is not None
    }
    return LoggedRow(int(count), values, end=end, keyed=found is not None)


_DEPTH = 4


def leaves(record: Mapping[str, object], prefix: str = "", depth: int = 0) -> Iterator[tuple[str, object]]:
    """Keys and values of a record, nested ones as `outer/inner`."""
    for key, value in record.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict):
            if depth < _DEPTH:
                yield from leaves(value, f"{name}/", depth + 1)
        else:
            yield name, value


def live_values(row: LoggedRow, names: Mapping[str, str]) -> dict[str, float]:
    """A row's numbers by the contract's names; `names` are those that the runbook gives, key to series."""
    values: dict[str, float] = {}
    for raw in sorted(row.values, key=lambda raw: record_name(raw).doubt):
        values.setdefault(names.get(raw) or record_name(raw).name, row.values[raw])
    return contract_values(values)


@dataclass
class LoggedColumns:
    """The rows of one run, key by key, as far as they were read."""

    columns: dict[str, tuple[array[int], array[float], array[float]]] = field(default_factory=dict)
    surplus: int = 0
    keyed: bool = False
    rows: int = 0

    def add(self, row: LoggedRow) -> None:
        """Add a row's numbers. Once one has a step of the trainer's own, those with the logger's count are dropped."""
        if row.keyed and not self.keyed:
            self.columns.clear()
            self.keyed = True
        elif not row.keyed and self.keyed:
            return
        self.rows += 1
        for key, value in row.values.items():
            if key not in self.columns and len(self.columns) >= MAX_KEYS:
                self.surplus += 1
                continue
            steps, values, times = self.columns.setdefault(key, (array("q"), array("d"), array("d")))
            steps.append(row.step)
            values.append(value)
            times.append(float("nan") if row.time_s is None else row.time_s)

    def table(self, names: Mapping[str, str], note: Note, stamps: Arrivals | None = None) -> Derived:
        """Series by the contract's names, with what follows from clocks. `names` are those that the runbook gives, key
        to series; `stamps`: when the steps arrived."""
        noted: set[str] = set()

        def once(code: str, text: str, line: int | None) -> None:
            if code not in noted:
                noted.add(code)
                note(code, text, None)

        found: dict[str, Column] = {}
        raw_of: dict[str, str] = {}
        for raw in sorted(self.columns, key=lambda raw: (raw not in names, record_name(raw).doubt)):
            steps, values, times = self.columns[raw]
            meant = record_name(raw)
            name = names.get(raw) or meant.name
            if meant.doubt and raw not in names and name in found:
                name = logged_name(raw)
            at, numbers = np.array(steps, dtype=np.int64), np.array(values, dtype=np.float64)
            news = _without_repeats(at, numbers)
            kept = news[rising(at[news], news, (), once)]
            if name in found:
                text = f"the keys {raw_of[name]!r} and {raw!r} both mean {name}; the first counts: name the right one"
                once("several-keys", f"{text} in names of trainer.metrics", None)
                continue
            raw_of[name] = raw
            found[name] = at[kept], numbers[kept]
            if name == "loss" and "timestamp" not in found:
                self._add_times(found, at[kept], np.array(times, dtype=np.float64)[kept])
        if "timestamp" not in found and self.columns:
            longest = max(self.columns.values(), key=lambda column: len(column[0]))
            self._add_times(found, *(np.array(longest[place]) for place in (0, 2)))
        made = _contract(clocks(found))
        return with_derived(_unhidden(made | of_parts(made)), stamps)

    @staticmethod
    def _add_times(found: dict[str, Column], steps: Steps, times: Floats) -> None:
        if len(steps) and np.isfinite(times).all() and (np.diff(steps) > 0).all():
            found["timestamp"] = steps, times


def _without_repeats(steps: Steps, values: Floats) -> Steps:
    """Rows but for those that say the same of the same step as the row behind them."""
    same = (np.diff(steps) == 0) & ((np.diff(values) == 0) | (np.isnan(values[1:]) & np.isnan(values[:-1])))
    return np.flatnonzero(np.append(~same, True))[: len(steps)]


def _unhidden(found: dict[str, Column]) -> dict[str, Column]:
    """The same, with a loss of NaN where a logger wrote 0 in its place: the norm of its gradients is NaN there."""
    if not {"loss", "grad_norm"} <= found.keys():
        return found
    (steps, losses), (at, norms) = found["loss"], found["grad_norm"]
    hidden = (losses == 0) & np.isin(steps, at[np.isnan(norms)])
    return {**found, "loss": (steps, np.where(hidden, np.nan, losses))}


def _contract(found: dict[str, Column]) -> dict[str, Column]:
    """The contract's units: milliseconds become seconds."""
    made: dict[str, Column] = {}
    for name, (steps, values) in found.items():
        converted = contract_values({name: 1.0})
        (own,) = converted
        if own == name:
            made[name] = steps, values
        elif own not in found:
            with np.errstate(divide="ignore", invalid="ignore"):
                made[own] = steps, np.array([contract_values({name: float(one)}).get(own, np.nan) for one in values])
    return made
