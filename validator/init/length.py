"""How many steps a trainer does by itself, by what it prints of its total and of its epochs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np

from validator.ingest.log_files import find_logs, log_lines
from validator.ingest.read_log import ReadLog
from validator.ingest.stated import stated_settings
from validator.init.reading import TrialReading, logs_of
from validator.init.settings import EPOCHS_ALONE
from validator.model.pattern import LinePattern, line_pattern
from validator.model.print_tables import with_rows
from validator.model.readers import READERS
from validator.model.result import PrintedPlaces

_MAX_LINE = 500
_OF_TOTAL = re.compile(r"(?<![\w.,/:-])(\d+) *(?:/|of) *(\d+)(?![\w.,/:-])")  # step 12/600, iter 12 of 600; no date
# Epoch 3/10, Epoch [3/10]
_OF_EPOCHS = re.compile(r"\bepochs?\W{1,3}(\d+) ?(?:/|of) ?(\d+)(?![\w.,/:-])", re.IGNORECASE)
_FEW = 3


def printed_total(reading: TrialReading, out: Path) -> int | None:
    """Steps of the whole run, where the trainer prints them behind most of its steps, as in 12/600; None elsewhere.

    Behind the number of an epoch it is what that epoch has, unless a step is an epoch.
    """
    steps = {int(step) for one in reading.series.values() for step in one.steps}
    seen: dict[int, set[int]] = {}
    for path in dict.fromkeys((*logs_of(reading, out), *find_logs(out).printed)):  # a bar beside a text file says it
        for _, text in log_lines(path):
            for found in _OF_TOTAL.finditer(text[:_MAX_LINE]):
                step, total = map(int, found.groups())
                of_epoch = "epoch" in text[: found.start()].lower() and not reading.by_epochs
                if step in steps and total >= max(steps) and not of_epoch:
                    seen.setdefault(total, set()).add(step)
    counts = Counter({total: len(shown) for total, shown in seen.items()})
    return next((total for total, count in counts.most_common(1) if 2 * count > len(steps)), None)


def total_of_epochs(reading: TrialReading, out: Path, epochs: int | None, configs: Sequence[Path] = ()) -> int | None:
    """Steps of all epochs of the command, less those behind the last row; None where either number is unknown.

    Args:
        reading: how the output is read.
        out: the output folder.
        epochs: those that the command asks for; where it names none they are the printed ones, as in `Epoch 3/10` or
            `max_epochs: 10` before the first row, else those of a config file.
        configs: config files that the command names.
    """
    if reading.by_epochs:
        return None
    lines = [text[:_MAX_LINE] for path in logs_of(reading, out) for _, text in with_rows(log_lines(path))]
    shown = Counter(int(found[2]) for found in map(_OF_EPOCHS.search, lines) if found is not None)
    count = epochs or next((total for total, _ in shown.most_common(1)), None)
    count = count or _stated_epochs(logs_of(reading, out), reading.result.evidence.places)
    count = count or _stated_epochs(configs, None)
    if count is None:
        return None
    pattern = _pattern(reading)
    if pattern is not None and "row" in pattern.names:
        rows = _rows_of_epoch(pattern, lines)
        return None if rows is None else count * rows
    if pattern is None or "steps_per_epoch" not in pattern.names:
        return None
    printed = [(found.step, found.values.get("steps_per_epoch")) for found in map(pattern.read, lines) if found]
    length = next((total for total, _ in Counter(total for _, total in printed if total).most_common(1)), None)
    if length is None:
        return None
    shown_steps = [step for step, total in printed if step is not None and total == length]
    ends = Counter(step for step, following in pairwise(shown_steps) if following < step)
    last = next((step for step, _ in ends.most_common(1)), length - reading.stride)
    return max(1, (count - 1) * int(length) + int(last))


def _stated_epochs(paths: Sequence[Path], places: PrintedPlaces | None) -> int | None:
    """The epochs that these files name as a setting, before the first row of `places`; None where they differ."""
    stated = [
        one
        for path in paths
        for one in stated_settings((path,), EPOCHS_ALONE, places, ReadLog(path.parent))
        if not one.text.lstrip().startswith(("#", "//"))
    ]
    counts = {int(one.value) for one in stated if one.value.isdecimal()} - {0}
    return counts.pop() if len(counts) == 1 else None


def _pattern(reading: TrialReading) -> LinePattern | None:
    """The pattern by which lines are read, also that of a reader; None where files alone are read."""
    own = reading.metrics.get("stdout")
    named = (READERS[name].pattern for name in reading.metrics.get("reader", ()) if name in READERS)
    text = own or next(filter(None, named), None)
    return None if text is None else line_pattern(text)


def _rows_of_epoch(pattern: LinePattern, lines: list[str]) -> int | None:
    """Rows of an epoch, at least, where each line counts as a step and prints samples or batches of the epoch's."""
    seen: dict[int, list[int]] = {}
    for text in lines:
        found = _OF_TOTAL.search(text) if pattern.read(text) is not None else None
        if found is not None:
            seen.setdefault(int(found[2]), []).append(int(found[1]))
    total, done = max(seen.items(), key=lambda one: len(one[1]), default=(0, []))
    strides = np.diff(done)
    strides = strides[strides > 0]
    if strides.size < _FEW or done[0] >= total:
        return None
    return int((total - 1 - min(done)) // int(np.median(strides))) + 1
