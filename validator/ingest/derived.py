"""Times of steps, and rates, from what a trainer writes of time: clocks, running means, dates, totals.

What says something of the whole run so far becomes the time of a step by the difference to the row before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from validator.ingest.clock import Arrivals
from validator.ingest.coarse import COARSE, Paced, apart, pace, resolution
from validator.ingest.rows import Column
from validator.model.columns import NO_SERIES, TOTALS
from validator.model.loss_parts import summed_parts
from validator.model.result import CoarseClock, Floats, Steps

_CLOCKS = ("elapsed_s", "mean_step_time_s", "timestamp")
"""Groups that describe the whole run up to the line, the best source of step times first."""

_AROUND, _PAUSE = 5, 3.0
"""Rows on either side that show the usual time of a step, and how many times that a row with a pause takes."""

_FEW, _NEAR_START, _FALLS = 5, 3.0, 0.2
"""Rows from which a time that only rises may be a running one, how many rows' growth its first value is at most, and
the share of rows at which a time falls from which it is none."""

_MANY = 8
"""Rows from which a time of unknown kind that rises in each is a running one, wherever it begins."""

_ALL_BUT = 0.8
"""Share of the clock that times of all steps fill at least."""

_EITHER = ("time", "any_time", "time_ms", "any_time_ms", "seconds", "sec", "secs", "duration", "duration_s")
"""Names that say neither whether a time is that of a step nor whether it is a date."""

_DATE = 1e8
"""A time above this is one since 1970."""

_WAIT_ROWS = 1.5
"""How many times the steps of a block of rows the next one ends at, where waits are taken from a running mean."""

_MILLISECONDS = 1e11
"""A date above this is in milliseconds since 1970, not in seconds."""


def clocks(found: Mapping[str, Column]) -> dict[str, Column]:
    """The same, with each time for what it is, whatever its name says: of a step, running since the start, or a date.

    A time that only rises, and whose first value is about what a row adds, runs since the start. One that often falls
    does not.
    """
    made = dict(found)
    for name in (*_EITHER, "step_time_s", "step_time_ms", "time_s", "wall", "wall_clock", "clock"):
        if name not in made:
            continue
        steps, values = made[name]
        seconds = steps, values * (1e-3 if name.endswith("_ms") else 1.0)
        if values.size and float(np.nanmin(values)) > _DATE:
            made.setdefault("timestamp", made.pop(name))
        elif _runs(values) or (name in _EITHER and _runs_on(values)):
            del made[name]
            made.setdefault("elapsed_s", seconds)
        elif name in _EITHER:
            del made[name]
            kind = _kind(*seconds, made.get("elapsed_s") or made.get("timestamp"))
            if kind is not None:
                made.setdefault(kind, seconds)
    if "elapsed_s" in made and "step_time_s" not in made and _falls(made["elapsed_s"][1]):
        made["step_time_s"] = made.pop("elapsed_s")
    return made


def of_parts(columns: Mapping[str, Column]) -> dict[str, Column]:
    """The loss of the training, and of the validation, where only its parts are there: the sum of those of all rows."""
    made: dict[str, Column] = {}
    for series, of in (("loss", "train"), ("val_loss", "val")):
        parts = () if series in columns or "mean_reward" in columns else summed_parts(columns, of=of)
        if not parts:
            continue
        most = max((columns[name][0] for name in parts), key=len)
        values = [columns[name][1] for name in parts if np.array_equal(columns[name][0], most)]
        if len(values) > 1:
            made[series] = most, np.sum(values, axis=0)
    return made


def _kind(steps: Steps, values: Floats, clock: Column | None) -> str | None:
    """What a time is that every so many steps have: that of all since the row before, or of one; None where no clock
    beside it says which."""
    if len(steps) < 2 or float(np.median(np.diff(steps))) <= 1:
        return "step_time_s"
    if clock is None or len(clock[0]) < 2:
        return None
    strides = (clock[0][-1] - clock[0][0]) / np.median(np.diff(steps))
    of_rows = float(np.nanmean(values)) / float((clock[1][-1] - clock[1][0]) / strides)
    if _ALL_BUT <= of_rows <= 2 - _ALL_BUT:
        return "interval_s"
    return "own_step_time_s" if of_rows * float(np.median(np.diff(steps))) < 2 - _ALL_BUT else None


def _runs(values: Floats) -> bool:
    if values.size < _FEW or not np.isfinite(values).all():
        return False
    gains = np.diff(values)
    return bool((gains > 0).all() and values[0] <= _NEAR_START * float(np.median(gains)))


def _runs_on(values: Floats) -> bool:
    """Whether it is a running time in a log that begins later: a step's own time that doubles also falls at times."""
    return values.size >= _MANY and bool((np.diff(values) > 0).all()) and bool(values[-1] > 2 * values[0])


def _falls(values: Floats) -> bool:
    known = values.size >= _FEW and bool(np.isfinite(values).all())
    return known and float((np.diff(values) < 0).mean()) > _FALLS


@dataclass(frozen=True)
class Derived:
    """The series of a log: clocks are replaced by what follows from them. `names` are of those that follow, and
    `clocks` says of which of them the clock is coarse."""

    columns: dict[str, Column]
    names: tuple[str, ...] = ()
    clocks: Mapping[str, CoarseClock] = field(default_factory=dict)


def with_derived(found: Mapping[str, Column], stamps: Arrivals | None = None) -> Derived:
    """The series of these columns. `stamps`: when steps of the same file arrived, where that was seen."""
    clock = next((name for name in _CLOCKS if name in found), None)
    wall = None if clock is None else _by_clock(clock, *found[clock], _epoch_starts(found, clock), stamps)
    own = found.get("step_time_s") or _by_interval(found)
    derived = dict(_derived(found, own, None if wall is None else (wall.steps, wall.values)))
    measured = {name: column for name, column in found.items() if name not in NO_SERIES}
    coarse = {} if wall is None or wall.clock is None else dict.fromkeys(derived, wall.clock)
    waits = _waits(found)
    if waits is not None and waits[0].size:
        derived["dt_fetch_s"] = waits
    if own is not None:
        coarse.pop("step_time_s", None)
    return Derived({**measured, **derived}, tuple(derived), coarse)


def _derived(found: Mapping[str, Column], own: Column | None, wall: Column | None) -> Iterator[tuple[str, Column]]:
    """Times of a step, and rates, where only clocks and totals are printed.

    Rates are per second of the log's own clock, pauses included, where it prints one.
    """
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
    rows, lengths = found.get(clock), found.get("steps_per_epoch")
    if rows is None or lengths is None:
        return None
    length = int(np.median(lengths[1]))
    if "epoch" not in found:  # a bar, which counts from 1
        return (rows[0] - 1) // length * length
    return rows[0] // length * length - int((rows[0] % length == 0).any())


def _by_clock(name: str, steps: Steps, seconds: Floats, starts: Steps | None, stamps: Arrivals | None) -> Paced:
    if name == "mean_step_time_s":
        return pace(steps, seconds * steps) if starts is None else Paced(*_by_mean_of_epoch(steps, seconds, starts))
    late = name == "timestamp" and seconds.size and float(np.nanmax(seconds)) > _MILLISECONDS
    return pace(steps, seconds / 1e3 if late else seconds, stamps)


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
        kept = apart(clock, COARSE * resolution(means[own]) * float(done[-1]))
        made.append((at[kept][1:], np.diff(clock[kept]) / np.diff(at[kept])))
    return np.concatenate([one[0] for one in made]), np.concatenate([one[1] for one in made])


def _waits(found: Mapping[str, Column]) -> Column | None:
    """Waits for data, from their running mean or from those of the steps that have a line; None where neither, or the
    waits of all steps, are printed."""
    if "dt_fetch_s" in found:
        return None
    if "mean_dt_fetch_s" in found:
        starts = _epoch_starts(found, "mean_dt_fetch_s")
        steps, means = found["mean_dt_fetch_s"]
        return _waits_by_mean(steps, means, np.full_like(steps, min(0, steps[0] - 1)) if starts is None else starts)
    if "own_dt_fetch_s" not in found or found["own_dt_fetch_s"][0].size < 2:
        return None
    steps, seconds = found["own_dt_fetch_s"]
    return steps, _spread_pauses(seconds, np.diff(steps, prepend=2 * steps[0] - steps[1]))


def _waits_by_mean(steps: Steps, means: Floats, starts: Steps) -> Column:
    """Waits of the steps between rows, from a running mean that restarts at `starts`.

    The rounding of a mean counts for all of its steps, so rows are taken in blocks, each of which ends at half as many
    steps again as the one before: what a block has by rounding stays below three units of the mean. The sum of a
    healthy loader hardly moves, so unlike that of times no block may wait until it has. The rows of a block share its
    mean. The first row of the run, in which the loader starts, is only where the others begin. Steps behind the last
    row of an epoch waited as those before it.
    """
    usable = np.isfinite(means)
    steps, means, starts = steps[usable], means[usable], starts[usable]
    waits = np.zeros(len(steps))
    for start in np.unique(starts):
        rows = np.flatnonzero(starts == start)
        done = steps[rows] - start
        waited = np.maximum.accumulate(means[rows] * done)
        begin = 0 if rows[0] == 0 else -1
        last, last_s = (done[0], waited[0]) if rows[0] == 0 else (0, 0.0)
        for end in _block_ends(done, begin):
            waits[rows[begin + 1 : end + 1]] = (waited[end] - last_s) / (done[end] - last)
            begin, last, last_s = end, done[end], waited[end]
        if rows[0] > 0:
            covered = steps[rows[0]] - steps[rows[0] - 1]
            share = min(1.0, float(done[0] / covered))
            waits[rows[0]] = share * waits[rows[0]] + (1 - share) * waits[rows[0] - 1]
    return steps[1:], waits[1:]


def _block_ends(done: Steps, begin: int) -> list[int]:
    """The last row of each block of the rows behind row `begin`, which is -1 where the first row is one of them.

    The rest of an epoch, too short for a block, belongs to its last one.
    """
    ends: list[int] = []
    last = done[begin] if begin >= 0 else 0
    for row in range(begin + 1, len(done)):
        if done[row] >= _WAIT_ROWS * last:
            ends.append(row)
            last = done[row]
    rest = len(done) - 1
    if rest > begin and (not ends or ends[-1] != rest):
        ends[-1:] = [rest]
    return ends


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
