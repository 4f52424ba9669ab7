"""Series from the lines of a log, by a pattern: steps counted over the whole run, one row a step, times from clocks.

What a line prints of the whole run so far (a running time, a running mean, a date) becomes the time of a step by the
difference to the row before.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from validator.ingest.rows import rising
from validator.model.columns import NO_SERIES, PACES, TOTALS, contract_values, series_name
from validator.model.pattern import LinePattern, Printed, StepCounter, has_decimal_comma
from validator.model.result import Floats, PrintedPlaces, Steps

Column = tuple[Steps, Floats]
Note = Callable[[str, str, "int | None"], None]
Lines = Iterable[tuple[int, str]]

_CLOCKS = ("elapsed_s", "mean_step_time_s", "timestamp")
"""Groups that describe the whole run up to the line, the best source of step times first."""

_COARSE = 10
"""A clock of whole seconds is read at rows this many seconds apart, so that its rounding stays below a tenth."""


_AROUND, _PAUSE = 5, 3.0
"""Rows on either side that show the usual time of a step, and how many times that a row with a pause takes."""

_UNITS_S = (60.0, 6.0, 1.0, 0.6, 0.1, 0.01, 0.001)
_MILLISECONDS = 1e11
"""A date above this is in milliseconds since 1970, not in seconds."""

_PAUSES = re.compile(
    r"(?<![a-z])(?:val|valid\w*|eval\w*|perplexity|checkpoint\w*|ckpt|sav(?:e|ed|ing)|epoch|test)(?![a-z])",
    re.IGNORECASE,
)
"""Words of lines about what a trainer does between two steps."""

_SHOWN = 200
"""Characters of a line in which these words are looked for."""

_GROUPED = re.compile(r"[-+]?\d{1,3},\d{3}")

_NO_MEASURE = NO_SERIES - PACES | {"timestamp"}
"""Groups of a line without others that says nothing of a step: that a file was saved."""


@dataclass
class PrintedRows:
    """Rows of a log, as far as they were read. `bare` are rows of lines without a step. `cut`, `commas`, `odd_steps`
    and `odd_values` hold lines that match and cannot be read: line number and what is there. `losses` counts losses,
    and `doubtful` holds those that may have a decimal comma."""

    pattern: LinePattern
    counter: StepCounter = field(default_factory=StepCounter)
    steps: array[int] = field(default_factory=lambda: array("q"))
    lines: array[int] = field(default_factory=lambda: array("q"))
    bare: array[int] = field(default_factory=lambda: array("q"))
    columns: dict[str, tuple[array[int], array[float]]] = field(default_factory=dict)
    odd_steps: list[tuple[int, str]] = field(default_factory=list)
    odd_values: list[tuple[int, str]] = field(default_factory=list)
    cut: list[tuple[int, str]] = field(default_factory=list)
    commas: list[tuple[int, str]] = field(default_factory=list)
    doubtful: list[tuple[int, str]] = field(default_factory=list)
    losses: int = 0
    pauses: array[int] = field(default_factory=lambda: array("q"))
    last_other: str = ""
    _announced: tuple[int, Printed] | None = None
    places: PrintedPlaces | None = None

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
            if _PAUSES.search(text, 0, _SHOWN):
                self.pauses.append(number)
            return
        if printed.odd is None and self._measures_more and _NO_MEASURE.issuperset(printed.values):
            self._announced = (number, printed) if printed.step is not None else self._announced
            return
        if printed.odd is not None:
            name, shown = printed.odd
            if name == "step":
                self.odd_steps.append((number, shown))
                return
            comma = has_decimal_comma(shown)
            if shown != printed.texts[name] and not comma:
                self.cut.append((number, f"{name}={printed.texts[name]!r} in {shown!r}"))
                return
            (self.commas if comma else self.odd_values).append((number, f"{name}={shown}"))
        if printed.step is None and self._announced is not None:
            self._add(*self._announced)  # a box of several lines begins with one that holds the step alone
        self._announced = None
        self._look_at_loss(number, printed, text)
        self._add(number, printed)

    def _look_at_loss(self, number: int, printed: Printed, line: str) -> None:
        """Count losses, and those that are thousands only if their comma is no decimal one."""
        for name in self._loss_names:
            if name in printed.values:
                self.losses += 1
                shown = printed.texts[name]
                if _GROUPED.fullmatch(shown) or (
                    shown.isdigit() and re.search(rf"(?<![\d.,]){shown},\d+(?!\d|[.,]\d)", line)
                ):
                    self.doubtful.append((number, shown))

    @cached_property
    def _loss_names(self) -> tuple[str, ...]:
        return tuple(name for name in self.pattern.names if series_name(name) == "loss")

    def _add(self, number: int, printed: Printed) -> None:
        """Take in one line that says something of a step."""
        step = self.counter.step(printed)
        if step is None:
            return
        if not abs(step) < 2**53 or step != int(step):
            self.odd_steps.append((number, printed.texts.get("step", "")))
            return
        row = len(self.steps)
        if printed.step is None and "row" not in printed.texts:
            self.bare.append(row)
        self.steps.append(int(step))
        self.lines.append(number)
        for name, value in contract_values(printed.values).items():
            rows, values = self.columns.setdefault(name, (array("q"), array("d")))
            rows.append(row)
            values.append(value)

    @cached_property
    def _measures_more(self) -> bool:
        """Whether lines of training hold more than a step and a date."""
        return not _NO_MEASURE.issuperset(map(series_name, self.pattern.names))

    def table(self, note: Note, *, longest: bool = False) -> tuple[dict[str, Column], tuple[str, ...], int]:
        """Columns by name, each `(steps [n], values [n])`; the names of those that follow from clocks; rows kept.

        `longest`: of several runs or stages in one log keep the longest, instead of the last. `places` say afterwards
        where the rows stand.
        """
        steps, lines = self._by_totals(np.array(self.steps, dtype=np.int64)), np.array(self.lines, dtype=np.int64)
        order = self._late_lines(steps, note)
        steps, lines = steps[order], lines[order]
        place = np.argsort(order)
        group = np.cumsum(np.diff(steps, prepend=steps[:1]) != 0)  # consecutive lines of one step are one row
        first = np.flatnonzero(np.diff(group, prepend=-1))
        own, where = steps[first], lines[first]
        columns = {}
        for name, (rows, values) in self.columns.items():
            at = np.argsort(place[np.array(rows, dtype=np.int64)], kind="stable")
            places = group[place[np.array(rows, dtype=np.int64)][at]]
            numbers = np.array(values, dtype=np.float64)[at]
            last = np.flatnonzero(np.diff(places, append=-1))
            if name == "loss" and last.size < places.size:
                _note_repeats(places, numbers, own, where, note)
            columns[name] = places[last], numbers[last]
        part = _longest(own, where, note) if longest else slice(0, len(own))
        kept = rising(own[part], where[part], (), note) + part.start
        self.places = _places(own[kept], where[kept], np.array(self.pauses, dtype=np.int64))
        position = np.full(len(own), -1, dtype=np.int64)
        position[kept] = np.arange(len(kept))
        found: dict[str, Column] = {}
        for name, (places, numbers) in columns.items():
            there = position[places] >= 0
            if there.any():
                found[name] = own[places[there]], numbers[there]
        derived = dict(_derived(found))
        measured = {name: column for name, column in found.items() if name not in NO_SERIES}
        return {**measured, **derived}, tuple(derived), len(kept)

    def _by_totals(self, steps: Steps) -> Steps:
        """Steps of counted lines by the tokens or samples seen: the fewest between two lines are one step, so that a
        line that is missing is no step that was never done."""
        name = next((name for name in TOTALS if name in self.columns), None)
        if (
            name is None
            or "row" not in self.pattern.names
            or len(self.columns[name][0]) != len(steps)
            or len(steps) < 2
        ):
            return steps
        seen = np.array(self.columns[name][1], dtype=np.float64)
        strides = np.diff(seen)
        if not np.isfinite(seen).all() or (strides < 0).any() or not (strides > 0).any():
            return steps
        counts = seen / strides[strides > 0].min()
        whole = np.rint(counts)
        return whole.astype(np.int64) if np.abs(counts - whole).max() < 1e-6 * whole.max() else steps

    def _late_lines(self, steps: Steps, note: Note) -> npt.NDArray[np.intp]:
        """The order of the rows by step, where lines without a step come in bunches: then what they complete is not
        the line before, as of a log into which two streams were written with a buffer. They are spread evenly."""
        bare = np.array(self.bare, dtype=np.int64)
        if not any(self._repeats(np.array(rows, dtype=np.int64), steps, bare) for rows, _ in self.columns.values()):
            return np.arange(len(steps))
        stride = max(1, int(steps.max()) // bare.size)
        steps[bare] = stride * np.arange(1, bare.size + 1)
        text = f"{bare.size} lines print no step and come in bunches; they are taken for one every {stride} steps"
        note("no-step", text, self.lines[int(bare[0])])
        return np.argsort(steps, kind="stable")

    @staticmethod
    def _repeats(rows: Steps, steps: Steps, bare: Steps) -> bool:
        """Whether lines without a step say the same thing of one step twice, in one bunch."""
        own = np.flatnonzero(np.isin(bare, rows))
        at = bare[own]
        return bool(((np.diff(steps[at]) == 0) & (np.diff(at) == np.diff(own))).any())


def _places(steps: Steps, lines: Steps, pauses: Steps) -> PrintedPlaces:
    """Where the rows stand, and which of them a line about a pause comes before or after."""
    if not lines.size or (np.diff(lines) < 0).any():
        return PrintedPlaces(steps, lines, pauses[:0])
    after = np.searchsorted(lines, pauses)
    after = after[(after > 0) & (after < len(lines))]
    return PrintedPlaces(steps, lines, np.unique(np.concatenate((steps[after - 1], steps[after]))))


def _longest(steps: Steps, lines: Steps, note: Note) -> slice:
    """The longest part of a log in which several runs, or stages of one, count from the start. A run that was resumed
    from an earlier step is one part."""
    starts = [0]
    for fall in np.flatnonzero(np.diff(steps) < 0) + 1:
        further = steps[fall:].max() > steps[starts[-1] : fall].max()
        if not (further and steps[fall] > steps[starts[-1]]):
            starts.append(int(fall))
    if len(starts) == 1:
        return slice(0, len(steps))
    ends = [*starts[1:], len(steps)]
    begin, end = max(zip(starts, ends, strict=True), key=lambda part: part[1] - part[0])
    second = starts[1]
    text = (
        f"the step falls from {steps[second - 1]} to {steps[second]}: the log holds {len(starts)} parts, and "
        f"the longest, from line {lines[begin]} to {lines[end - 1]}, is judged"
    )
    note("several-parts", text, int(lines[second]))
    return slice(begin, end)


def _note_repeats(places: Steps, numbers: Floats, steps: Steps, lines: Steps, note: Note) -> None:
    again = np.flatnonzero((np.diff(places) == 0) & (np.diff(numbers) != 0))
    if again.size:
        at = places[again[0]]
        text = f"{again.size} lines repeat the step before them, first step {steps[at]}; the later line counts"
        note("duplicate-step", text, int(lines[at]))


def _derived(found: Mapping[str, Column]) -> Iterator[tuple[str, Column]]:
    """Times of a step, and rates, where only clocks and totals are printed.

    Rates are per second of the log's own clock, pauses included, where it prints one.
    """
    clock = next((name for name in _CLOCKS if name in found), None)
    wall = None if clock is None else _by_clock(clock, *found[clock], _epoch_starts(found, clock))
    own = found.get("step_time_s") or _by_interval(found)
    times = own or wall
    if times is None or not times[0].size:
        return
    if "step_time_s" not in found:
        yield "step_time_s", times
    if own is not None and wall is not None and wall[0].size:
        yield "wall_step_time_s", wall
    for total, rate in TOTALS.items():
        if total in found and rate not in found:
            made = _rate(found[total], times if wall is None else wall)
            if made[0].size:
                yield rate, made


def _epoch_starts(found: Mapping[str, Column], clock: str) -> Steps | None:
    """Steps done before the epoch of each row of this clock, less one where steps are counted from 0; None where the
    log does not say how many steps an epoch has."""
    rows, lengths, epochs = (found.get(name) for name in (clock, "steps_per_epoch", "epoch"))
    if rows is None or lengths is None or epochs is None or not len(rows[0]) == len(lengths[0]) == len(epochs[0]):
        return None
    length = int(np.median(lengths[1]))
    return rows[0] // length * length - int((rows[0] % length == 0).any())


def _by_clock(name: str, steps: Steps, seconds: Floats, starts: Steps | None) -> Column:
    if name == "mean_step_time_s":
        return _pace(steps, seconds * steps) if starts is None else _by_mean_of_epoch(steps, seconds, starts)
    late = name == "timestamp" and seconds.size and float(np.nanmax(seconds)) > _MILLISECONDS
    return _pace(steps, seconds / 1e3 if late else seconds)


def _by_mean_of_epoch(steps: Steps, means: Floats, starts: Steps) -> Column:
    """Mean times from a running mean that restarts in each epoch, which excludes the pause between two.

    Its rounding grows with the steps that it is a mean of, so an epoch gives few rows.
    """
    made: list[Column] = []
    for start in np.unique(starts):
        own = starts == start
        done = steps[own] - start
        clock = np.concatenate(([0.0], means[own] * done))
        at = np.concatenate(([start], steps[own]))
        kept = _apart(clock, _COARSE * _resolution(means[own]) * float(done[-1]))
        made.append((at[kept][1:], np.diff(clock[kept]) / np.diff(at[kept])))
    return np.concatenate([one[0] for one in made]), np.concatenate([one[1] for one in made])


def _by_interval(found: Mapping[str, Column]) -> Column | None:
    """Mean times from the time since the line before, or from the time of the one step that each line is about."""
    name = next((name for name in ("interval_s", "own_step_time_s") if name in found), None)
    if name is None or found[name][0].size < 2:
        return None
    steps, seconds = found[name]
    strides = np.diff(steps, prepend=2 * steps[0] - steps[1])
    return steps, seconds / strides if name == "interval_s" else _spread_pauses(seconds, strides)


def _spread_pauses(seconds: Floats, strides: Steps) -> Floats:
    """Mean times over the steps since the line before, of lines that each hold the time of one step.

    A line that took far longer than its neighbors holds a pause, such as a validation: the steps without a line had
    none, so it counts once and not for all of them.
    """
    around = np.pad(seconds, _AROUND, mode="reflect" if seconds.size > _AROUND else "edge")
    usual = np.nanmedian(np.lib.stride_tricks.sliding_window_view(around, 2 * _AROUND + 1), axis=1)
    return np.where(seconds > _PAUSE * usual, usual + (seconds - usual) / strides, seconds)


def _rate(totals: Column, times: Column) -> Column:
    """What was added to a total since the row before, per second."""
    steps, seen = totals
    at, here, there = np.intersect1d(steps[1:], times[0], return_indices=True)
    spans = (times[1][there] * np.diff(steps, prepend=0)[1:][here]) if at.size else times[1][:0]
    added = np.diff(seen)[here]
    usable = (added > 0) & (spans > 0)
    return at[usable], added[usable] / spans[usable]


def _pace(steps: Steps, seconds: Floats) -> Column:
    """Mean time of the steps between rows, from a clock that is set back where a run begins again."""
    usable = np.isfinite(seconds)
    steps, seconds = steps[usable], seconds[usable]
    if len(steps) > 1:
        unit = _resolution(seconds)
        ticks = _ticks(seconds, unit)
        if ticks.size > 2:
            # Between rows more frequent than its ticks a clock is as exact as they are.
            unit *= ticks.size / len(steps)
            steps, seconds = steps[ticks], seconds[ticks]
        kept = _apart(seconds, _COARSE * unit)
        steps, seconds = steps[kept], seconds[kept]
    spans, strides = np.diff(seconds), np.diff(steps)
    forward = spans > 0
    return steps[1:][forward], (spans / strides)[forward]


def _ticks(seconds: Floats, unit: float) -> npt.NDArray[np.intp]:
    """Rows at which a clock that mostly stands still has just moved by one unit, and the last at which it moved.

    A row behind a pause of more than a unit may be late by one, so the next one counts for it.
    """
    moved = np.flatnonzero(np.diff(seconds) > 0) + 1
    if unit == 0 or not moved.size or 2 * moved.size > len(seconds):
        return moved[:0]
    strides = seconds[moved] - seconds[moved - 1]
    return np.asarray(moved[(strides < 1.5 * unit) | (moved == moved[-1])])


def _resolution(seconds: Floats) -> float:
    """The coarsest unit, in seconds, of which all readings are whole multiples; 0 for a fine clock."""
    for unit in _UNITS_S:
        counts = seconds / unit
        if np.abs(counts - np.round(counts)).max() < 1e-6 * max(1.0, float(np.abs(counts).max()) ** 0.5):
            return unit
    return 0.0


def _apart(seconds: Floats, least_s: float) -> list[int]:
    """Rows at least so many seconds apart; the last one takes the place of a nearer neighbor."""
    kept = [0]
    for row in range(1, len(seconds)):
        if seconds[row] < seconds[kept[-1]] or seconds[row] - seconds[kept[-1]] >= least_s:
            kept.append(row)
    if kept[-1] != len(seconds) - 1 and seconds[-1] > seconds[kept[-1]]:
        kept[-1 if len(kept) > 1 else 1 :] = [len(seconds) - 1]
    return kept
