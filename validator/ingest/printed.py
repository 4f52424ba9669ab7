"""Series from the lines of a log, by a pattern: steps counted over the whole run, one row a step, times from clocks.

What a line prints of the whole run so far (a running time, a running mean, a date) becomes the time of a step by the
difference to the row before.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from validator.ingest.clock import Arrivals
from validator.ingest.derived import Derived, clocks, of_parts, with_derived
from validator.ingest.rows import Column, Note, rising
from validator.model.columns import OF_EVALUATION, TOTALS, contract_values, says_nothing, series_name
from validator.model.evaluation_lines import Evaluations, chosen, evaluation_instead, keep
from validator.model.loss_parts import read_parts
from validator.model.pattern import LinePattern, Printed, StepCounter, has_decimal_comma
from validator.model.recipes import BY_WORDS
from validator.model.result import Floats, PrintedPlaces, Steps

Lines = Iterable[tuple[int, str]]

_PAUSES = re.compile(
    r"(?<![a-z])(?:val|valid\w*|eval\w*|perplexity|checkpoint\w*|ckpt|sav(?:e|ed|ing)|epoch|test)(?![a-z])",
    re.IGNORECASE,
)
"""Words of lines about what a trainer does between two steps."""

_TROUBLE = re.compile(r"(?i)(?<![a-z])(?:error|exception|restart\w*|crash\w*|lost|failed|resum\w*)(?![a-z])")
"""Words of lines that are about no planned pause, whatever else they name."""

_SHOWN = 200
"""Characters of a line in which these words are looked for."""

_NOT_FINITE = re.compile(r"(?<![a-z])(?:nan|inf(?:inity)?)(?![a-z])", re.IGNORECASE)
_NAMED = re.compile(
    r"(?<![\w/.-])((?:[A-Za-z]\w{0,20} )?[A-Za-z][\w/.-]{0,60})[\"')]?\s{0,8}[:=]\s{0,8}[\"']?"
    r"([-+]?(?:\.?\d|(?:nan|inf(?:inity)?)(?![a-z])))",
    re.IGNORECASE,
)
"""A name and how its number begins."""

_MOST_NAMES = 64
"""How many of them are kept."""

_SKIPS = re.compile(
    r"(?i)(?:(?<!no )(?<![\w/.-])overflow(?:ed)?\b"
    r"|\bskip(?:ped|ping)\b(?=[^\n]{0,30}\b(?:step|update|optimi[sz]er|batch|iteration)(?:e?s)?\b)"
    r"|\b(?:step|update)s?\b[^\n]{0,20}\b(?:skipped|not applied)\b)(?!\W{0,3}(?:\d|false|no\b|none))"
)
"""A line that says of an update that it was left out, and no count of them."""

_EPOCH_BEGINS = re.compile(r"(?i)\bepoch\W{0,3}(\d{1,6})\s?(?:/|of)\s?\d")

_BAR_END = re.compile(r"(?:it/s|s/it)[^\]\r]*\]")
_GROUPED = re.compile(r"[-+]?\d{1,3},\d{3}")


@dataclass
class PrintedRows:
    """Rows of a log, as far as they were read. `bare` are rows of lines without a step. `cut`, `commas`, `odd_steps`
    and `odd_values` hold lines that match and cannot be read: line number and what is there. `losses` counts losses,
    and `doubtful` holds those that may have a decimal comma. `epochs` are the steps done before an epoch, and its first
    row."""

    pattern: LinePattern
    counter: StepCounter = field(default_factory=StepCounter)
    given: bool = True
    """Whether a user wrote the pattern: then what it takes for a step is one."""
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
    epochs: list[tuple[int, int]] = field(default_factory=list)
    last_other: str = ""
    not_finite: dict[str, array[int]] = field(default_factory=dict)
    """Rows in which a number that was finite in the first one is not, by its name."""
    evaluations: Evaluations = field(default_factory=dict)
    """Losses on lines of their own that the pattern does not read, each with the row that it comes after."""
    _announced: tuple[int, Printed] | None = None
    skips: array[int] = field(default_factory=lambda: array("q"))
    """Rows in which, or behind which, a line says that an update was skipped."""
    _epoch: int = 0
    places: PrintedPlaces | None = None

    def read(self, lines: Lines) -> PrintedRows:
        """Take in numbered lines."""
        for number, text in lines:
            self.take(number, text)
            if self.steps and _SKIPS.search(text, 0, _SHOWN):
                self.skips.append(len(self.steps) - 1)
        return self

    def take(self, number: int, text: str) -> None:
        """Take in one line, whatever it holds."""
        printed = self._of_a_step(self.pattern.read(text), text)
        behind = _BAR_END.search(text) if printed is not None and "elapsed_s" in printed.values else None
        if behind is not None and _PAUSES.search(text, behind.end(), behind.end() + _SHOWN):
            self.pauses.append(number + 1)  # what was printed behind a bar, and before the next line of bars
        if printed is None:
            self.last_other = text if text.strip() else self.last_other
            if "row" in self.pattern.names and (begins := _EPOCH_BEGINS.search(text)) is not None:
                self._begin_epoch(int(begins[1]))
            if _PAUSES.search(text, 0, _SHOWN) and not _TROUBLE.search(text, 0, _SHOWN):
                self.pauses.append(number)
            return
        if printed.odd is None and says_nothing(printed.values, self.pattern.names):
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
        if printed.of_evaluation:
            self.pauses.append(number)
        self._look_at_loss(number, printed, text)
        if not self.steps or _NOT_FINITE.search(text):
            self._look_at_names(text)
        self._add(number, printed)

    def _begin_epoch(self, epoch: int) -> None:
        """Count rows from 1 where a heading says that the first epoch begins again: another training."""
        if epoch < min(self._epoch, 2):
            self.counter.begin_again()
        self._epoch = epoch

    def _of_a_step(self, printed: Printed | None, text: str) -> Printed | None:
        """What the pattern read, unless the line is about a validation, of which the pattern may know nothing; then
        keep its loss."""
        found = None if self.given and printed is not None else evaluation_instead(printed, text)
        if found is None:
            return (
                None
                if printed is None
                else read_parts(printed, self.pattern, text, by_words=self.pattern.text in BY_WORDS)
            )
        if self.steps:
            keep(self.evaluations, len(self.steps) - 1, found)
        return None

    def _evaluated(self) -> tuple[array[int], array[float]] | None:
        """Rows and losses of the lines about a validation, where the pattern itself reads none."""
        found = () if "val_loss" in self.columns else chosen(self.evaluations)
        if not found:
            return None
        return array("q", (row for row, _ in found)), array("d", (one.loss for _, one in found))

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

    def _look_at_names(self, line: str) -> None:
        """Keep the names of the first row whose numbers are finite, and where they no longer are."""
        for name, begins in _NAMED.findall(line):
            if begins[-1].isdigit():
                if not self.steps and len(self.not_finite) < _MOST_NAMES:
                    self.not_finite.setdefault(name, array("q"))
            elif name in self.not_finite:
                self.not_finite[name].append(len(self.steps))

    @property
    def _is_bar(self) -> bool:
        """Whether the rows are those of a bar, which is drawn again with a later loss before its step moves on."""
        return "elapsed_s" in self.columns and not {"steps_total", "steps_per_epoch"}.isdisjoint(self.columns)

    @property
    def _begins_in_later_epoch(self) -> bool:
        """Whether the first line says that epochs went before it: a bar that is drawn once, when all is over."""
        if not {"epoch", "steps_per_epoch"} <= self.columns.keys():
            return False
        rows, epochs = self.columns["epoch"]
        return rows[0] == 0 and epochs[0] >= 1

    @cached_property
    def _loss_names(self) -> tuple[str, ...]:
        return tuple(name for name in self.pattern.names if series_name(name) == "loss")

    def _add(self, number: int, printed: Printed) -> None:
        """Take in one line that says something of a step."""
        before = self.counter.before_epoch
        step = self.counter.step(printed)
        if step is None:
            return
        if not abs(step) < 2**53 or step != int(step):
            self.odd_steps.append((number, printed.texts.get("step", "")))
            return
        row = len(self.steps)
        if printed.step is None and "row" not in printed.texts:
            self.bare.append(row)
        if self.counter.before_epoch != before:
            self.epochs.append((self.counter.before_epoch, row))
        self.steps.append(int(step))
        self.lines.append(number)
        for name, value in contract_values(printed.values).items():
            rows, values = self.columns.setdefault(name, (array("q"), array("d")))
            rows.append(row)
            values.append(value)

    def table(self, note: Note, *, longest: bool = False, stamps: Arrivals | None = None) -> tuple[Derived, int]:
        """Columns by name, with what follows from clocks, and how many rows were kept.

        `longest`: of several runs or stages in one log keep the longest, instead of the last. `stamps`: when its steps
        arrived. `places` say afterwards where the rows stand.
        """
        steps, lines = self._by_totals(np.array(self.steps, dtype=np.int64)), np.array(self.lines, dtype=np.int64)
        order = self._late_lines(steps, note)
        steps, lines = steps[order], lines[order]
        place = np.argsort(order)
        group = np.cumsum(np.diff(steps, prepend=steps[:1]) != 0)  # consecutive lines of one step are one row
        first = np.flatnonzero(np.diff(group, prepend=-1))
        own, where = steps[first], lines[first]
        columns, evaluated = {}, self._evaluated()
        printed = self.columns if evaluated is None else {**self.columns, "val_loss": evaluated}
        for name, (rows, values) in printed.items():
            at = np.argsort(place[np.array(rows, dtype=np.int64)], kind="stable")
            places = group[place[np.array(rows, dtype=np.int64)][at]]
            numbers = np.array(values, dtype=np.float64)[at]
            last = np.flatnonzero(np.diff(places, append=-1))
            if name == "loss" and last.size < places.size and not self._is_bar:
                _note_repeats(places, numbers, own, where, note)
            if name == "elapsed_s":  # a bar is drawn again when it is closed; its step was done when it first showed it
                last = np.flatnonzero(np.diff(places, prepend=-1))
            columns[name] = places[last], numbers[last]
        part = _longest(own, where, note) if longest else slice(0, len(own))
        kept = rising(own[part], where[part], (), note) + part.start
        position = np.full(len(own), -1, dtype=np.int64)
        position[kept] = np.arange(len(kept))
        begins = ((before, group[place[row]]) for before, row in self.epochs)
        epochs = tuple((before, int(own[at])) for before, at in begins if position[at] >= 0)
        at = position[group[place[np.array(self.skips, dtype=np.int64)]]]
        found_at = _places(own[kept], where[kept], np.array(self.pauses, dtype=np.int64), epochs)
        self.places = replace(
            found_at,
            counted=len(kept) > 1 or not self._begins_in_later_epoch,
            not_finite=dict(self._not_finite(position, group, place)),
            skipped=tuple(np.unique(at[at >= 0]).tolist()),
        )
        found: dict[str, Column] = {}
        for name, (places, numbers) in columns.items():
            there = position[places] >= 0
            if there.any():
                found[name] = own[places[there]], numbers[there]
        found |= of_parts(found)
        return with_derived(clocks(found) if "any_time" in self.pattern.names else found, stamps), len(kept)

    def _not_finite(self, position: Steps, group: Steps, place: Steps) -> Iterator[tuple[str, Steps]]:
        """Names to the kept rows in which their numbers are not finite."""
        for name, rows in self.not_finite.items():
            seen = np.array(rows, dtype=np.int64)
            if seen.size:
                at = position[group[place[seen[seen < len(place)]]]]
                yield name, np.unique(at[at >= 0])

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
        whole = (rows for name, (rows, _) in self.columns.items() if name not in OF_EVALUATION)  # one has many batches
        if not any(self._repeats(np.array(rows, dtype=np.int64), steps, bare) for rows in whole):
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


def _places(steps: Steps, lines: Steps, pauses: Steps, epochs: tuple[tuple[int, int], ...]) -> PrintedPlaces:
    """Where the rows stand, and which of them a line about a pause comes before or after."""
    if not lines.size or (np.diff(lines) < 0).any():
        return PrintedPlaces(steps, lines, pauses[:0], epochs=epochs)
    after = np.searchsorted(lines, pauses)
    after = after[(after > 0) & (after < len(lines))]
    pauses = np.unique(np.concatenate((steps[after - 1], steps[after])))
    return PrintedPlaces(steps, lines, pauses, epochs=epochs)


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
