"""Series from the lines of a log, by a pattern: steps counted over the whole run, one row a step, times from clocks.

What a line prints of the whole run so far (a running time, a running mean, a date) becomes the time of a step by the
difference to the row before.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from validator.collect.order import rising
from validator.model.columns import contract_values
from validator.model.pattern import LinePattern, StepCounter

__all__ = ["CLOCKS", "PrintedRows", "usual_total"]

Steps = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Column = tuple[Steps, Floats]
Note = Callable[[str, str, "int | None"], None]
Lines = Iterable[tuple[int, str]]

CLOCKS = ("elapsed_s", "mean_step_time_s", "timestamp")
"""Groups that tell of the whole run so far, the best source of step times first."""

_NOT_SERIES = frozenset({*CLOCKS, "interval_s", "epoch", "steps_per_epoch", "steps_total", "row"})
_COARSE = 10
"""A clock of whole seconds is read at rows this many seconds apart, so that its rounding stays below a tenth."""


@dataclass
class PrintedRows:
    """Rows of a log, as far as they were read. `cut` and `odd` hold lines that match and cannot be read: line number
    and what stands there."""

    pattern: LinePattern
    counter: StepCounter = field(default_factory=StepCounter)
    steps: array[int] = field(default_factory=lambda: array("q"))
    lines: array[int] = field(default_factory=lambda: array("q"))
    columns: dict[str, tuple[array[int], array[float]]] = field(default_factory=dict)
    odd_steps: list[tuple[int, str]] = field(default_factory=list)
    odd_values: list[tuple[int, str]] = field(default_factory=list)
    cut: list[tuple[int, str]] = field(default_factory=list)
    last_other: str = ""

    def read(self, lines: Lines) -> PrintedRows:
        """Take in numbered lines."""
        for number, text in lines:
            self.take(number, text)
        return self

    def take(self, number: int, text: str) -> None:
        """Take in one line, whatever it holds."""
        printed = self.pattern.read(text)
        if printed is None:
            self.last_other = text if text.strip() else self.last_other
            return
        if printed.odd is not None:
            name, shown = printed.odd
            if name == "step":
                self.odd_steps.append((number, shown))
                return
            if shown != printed.texts[name]:
                self.cut.append((number, f"{name}={printed.texts[name]!r} in {shown!r}"))
                return
            self.odd_values.append((number, f"{name}={shown}"))
        step = self.counter.step(printed)
        if step is None:
            return
        if not abs(step) < 2**53 or step != int(step):
            self.odd_steps.append((number, printed.texts.get("step", "")))
            return
        row = len(self.steps)
        self.steps.append(int(step))
        self.lines.append(number)
        for name, value in contract_values(printed.values).items():
            rows, values = self.columns.setdefault(name, (array("q"), array("d")))
            rows.append(row)
            values.append(value)

    def table(self, note: Note) -> tuple[dict[str, Column], tuple[str, ...], int]:
        """Columns by name, each `(steps [n], values [n])`; the names of those that follow from clocks; rows kept."""
        steps, lines = np.array(self.steps, dtype=np.int64), np.array(self.lines, dtype=np.int64)
        group = np.cumsum(np.diff(steps, prepend=steps[:1]) != 0)  # consecutive lines of one step are one row
        first = np.flatnonzero(np.diff(group, prepend=-1))
        own, where = steps[first], lines[first]
        columns = {}
        for name, (rows, values) in self.columns.items():
            places, numbers = group[np.array(rows, dtype=np.int64)], np.array(values, dtype=np.float64)
            last = np.flatnonzero(np.diff(places, append=-1))
            if name == "loss" and last.size < places.size:
                _note_repeats(places, numbers, own, where, note)
            columns[name] = places[last], numbers[last]
        kept = rising(own, where, (), note)
        position = np.full(len(own), -1, dtype=np.int64)
        position[kept] = np.arange(len(kept))
        found: dict[str, Column] = {}
        for name, (places, numbers) in columns.items():
            there = position[places] >= 0
            if there.any():
                found[name] = own[places[there]], numbers[there]
        derived = dict(_derived(found))
        told = {name: column for name, column in found.items() if name not in _NOT_SERIES}
        return {**told, **derived}, tuple(derived), len(kept)


def usual_total(lines: Lines, pattern: LinePattern) -> float | None:
    """The `steps_total` of training, where a log holds several progress bars; None where the pattern has no such
    group."""
    if "steps_total" not in pattern.names:
        return None
    counter = StepCounter()
    for _, text in lines:
        printed = pattern.read(text)
        if printed is not None:
            counter.step(printed)
    return counter.usual_total


def _note_repeats(places: Steps, numbers: Floats, steps: Steps, lines: Steps, note: Note) -> None:
    again = np.flatnonzero((np.diff(places) == 0) & (np.diff(numbers) != 0))
    if again.size:
        at = places[again[0]]
        text = f"{again.size} lines repeat the step before them, first step {steps[at]}; the later line counts"
        note("duplicate-step", text, int(lines[at]))


def _derived(found: Mapping[str, Column]) -> Iterator[tuple[str, Column]]:
    """Times of a step, and rates, where only clocks and totals are printed."""
    times = found.get("step_time_s")
    if times is None and "interval_s" in found:
        steps, seconds = found["interval_s"]
        strides = np.diff(steps)
        if strides.size:
            times = steps, seconds / np.concatenate((strides[:1], strides))
    if times is None:
        name = next((name for name in CLOCKS if name in found), None)
        if name is not None:
            steps, seconds = found[name]
            times = _pace(steps, seconds * steps if name == "mean_step_time_s" else seconds)
    if times is None or not times[0].size:
        return
    if "step_time_s" not in found:
        yield "step_time_s", times
    if "tokens_seen" in found and "toks_per_s" not in found:
        steps, tokens = found["tokens_seen"]
        at, here, there = np.intersect1d(steps[1:], times[0], return_indices=True)
        per_step = (np.diff(tokens) / np.diff(steps))[here]
        usable = (per_step > 0) & (times[1][there] > 0)
        if usable.any():
            yield "toks_per_s", (at[usable], per_step[usable] / times[1][there][usable])


def _pace(steps: Steps, seconds: Floats) -> Column:
    """Mean time of the steps between rows, from a clock that is set back where a run begins again."""
    usable = np.isfinite(seconds)
    steps, seconds = steps[usable], seconds[usable]
    whole = next((unit for unit in (60.0, 1.0) if (np.mod(seconds, unit) == 0).all()), 0.0)
    if whole and len(steps) > 1:
        kept = _apart(seconds, _COARSE * whole)
        steps, seconds = steps[kept], seconds[kept]
    spans, strides = np.diff(seconds), np.diff(steps)
    forward = spans > 0
    return steps[1:][forward], (spans / strides)[forward]


def _apart(seconds: Floats, least_s: float) -> list[int]:
    """Rows at least so many seconds apart; the last one takes the place of a nearer neighbor."""
    kept = [0]
    for row in range(1, len(seconds)):
        if seconds[row] < seconds[kept[-1]] or seconds[row] - seconds[kept[-1]] >= least_s:
            kept.append(row)
    if len(kept) > 1 and kept[-1] != len(seconds) - 1 and seconds[-1] > seconds[kept[-1]]:
        kept[-1] = len(seconds) - 1
    return kept
