"""What the Trainer of Hugging Face prints: a progress bar on standard error, dictionaries on standard output.

A dictionary names an epoch and no step. To write it, tqdm clears the bar at the step that it is about, and draws it
again: the n-th clearing of the bar belongs to the n-th dictionary. The epoch, rounded as it is, says whether the two
streams fit.
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from validator.ingest.read_log import FaultLog, printable
from validator.ingest.readers.rows import LoggedRow, as_number
from validator.model.pattern import parse_number

_BAR = re.compile(r"^ *\d+%\|[^|]*\| (\d+)/(\d+) \[([\d:]+)<")
"""A bar without a name; those of an evaluation are drawn a line below, behind which the cursor moves up (ESC[A)."""

_UP = "\x1b[A"
_DICTIONARY = re.compile(r"\{'[^']+': .*'epoch': .*\}\s*$")
_PAIR = re.compile(r"'([^']{1,100})': '?([^',{}\[\]]{1,40})'?")
_CLEARED = 8
"""Blanks, at least, that clear a bar."""

_OF_RUN = "train_runtime"
_EPOCH_DIGITS, _EPOCH_SHARE = 0.0051, 6e-4
"""An epoch is printed with two decimals, or with four digits."""


def _slack(epoch: float) -> float:
    """How far an epoch that is printed may lie from the true one."""
    return max(_EPOCH_DIGITS, 2 * _EPOCH_SHARE * epoch)


@dataclass
class TwoStreams:
    """Pairs dictionaries and steps as they are printed. `unmatched` counts dictionaries of a loss that fit no step."""

    faults: FaultLog = field(default_factory=FaultLog)
    _dictionaries: deque[tuple[int, int, dict[str, float]]] = field(default_factory=deque)
    _marks: deque[int] = field(default_factory=deque)
    _cleared: bool = False
    _per_epoch: tuple[float, float] = (0.0, math.inf)
    """Fewest and most steps of an epoch that fit the pairs so far."""

    _drawn: int = 0

    def take(self, line: int, text: str, end: int = 0) -> Iterator[LoggedRow]:
        """The rows that a line completes, of either stream, without its end; `line` is its number.

        A row of the bar holds `elapsed_s` alone.
        """
        text = text.rstrip("\r\n")
        bar = _BAR.match(text)
        if bar is not None and _UP not in text:
            yield from self._bar(int(bar[1]), bar[3], end)
        elif len(text) >= _CLEARED and text.isspace():
            self._cleared = True
        elif (found := _DICTIONARY.search(text)) is not None:
            values = {key: number for key, shown in _PAIR.findall(found[0]) if (number := as_number(shown)) is not None}
            self._dictionaries.append((line, end, values))
            yield from self._pairs()

    def _bar(self, step: int, elapsed: str, end: int) -> Iterator[LoggedRow]:
        if self._cleared:
            self._cleared = False
            self._marks.append(step)
        seconds = parse_number(elapsed)
        if step > 0 and step != self._drawn:  # a bar that is drawn again says when that was, not when its step was done
            yield LoggedRow(step, {} if seconds is None else {"elapsed_s": seconds}, end=end)
        self._drawn = step
        yield from self._pairs()

    def _pairs(self) -> Iterator[LoggedRow]:
        while self._dictionaries and self._marks:
            line, end, values = self._dictionaries[0]
            step = self._marks[0]
            distance = self._distance(step, values.get("epoch"))
            if distance < 0 or (not step and "loss" in values):  # a clearing for another text
                self._marks.popleft()
                continue
            self._dictionaries.popleft()
            if distance > 0:
                self._lose(line, values)
                continue
            self._marks.popleft()
            epoch = values.pop("epoch", None)
            if epoch and step:
                self._learn(step, epoch)
            if _OF_RUN not in values:
                yield LoggedRow(step, values, end=end)

    def _learn(self, step: int, epoch: float) -> None:
        """Narrow the steps of an epoch. What contradicts all before begins again: those pairs were wrong."""
        slack = _slack(epoch)
        low, high = step / (epoch + slack), step / (epoch - slack) if epoch > slack else math.inf
        both = max(low, self._per_epoch[0]), min(high, self._per_epoch[1])
        self._per_epoch = both if both[0] <= both[1] else (low, high)

    def _distance(self, step: int, epoch: float | None) -> int:
        """Whether a step lies before the one of an epoch (-1), is it (0), or lies behind it (1)."""
        if epoch is None:
            return 0
        low, high = self._per_epoch
        if step > (epoch + _slack(epoch)) * high + 0.5:
            return 1
        return -1 if step < max(0.0, epoch - _slack(epoch)) * low - 0.5 else 0

    def _lose(self, line: int, values: dict[str, float]) -> None:
        if "loss" in values:
            self.faults.add("missing-step", line, printable(str(values), limit=60))

    def close(self) -> None:
        """Dictionaries that no clearing of the bar belongs to have no step."""
        while self._dictionaries:
            line, _, values = self._dictionaries.popleft()
            self._lose(line, values)
