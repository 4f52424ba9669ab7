"""The time of steps from a clock that a trainer prints in whole seconds, as a progress bar does.

The supervisor stamped when most of these lines arrived, to the millisecond. A stamp is believed as far as the printed
clock confirms it: what lies between the two is the time at which that clock started, and the part of a second that it
does not print. Output that came late, or in clumps, shows by more than that, and then the printed seconds count, with
their rounding.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from validator.ingest.clock import Arrivals
from validator.model.result import CoarseClock, Floats, Steps

COARSE = 10
"""A clock of whole seconds is read at rows this many seconds apart, so that its rounding stays below a tenth."""

_UNITS_S = (60.0, 6.0, 1.0, 0.6, 0.1, 0.01, 0.001)
_COARSE_S, _STAMPED_S = 0.1, 0.5
"""Units from which a clock's rounding is in the interval of what follows from it, and from which stamps are finer."""

_LAG_S = 0.25
"""How much later than others a line may arrive, and its stamp still be that of its step."""

_AGREE, _FEWEST = 0.9, 10
"""Share of the stamps that the printed clock must confirm, and how many there must be."""

_SPACING_S, _SPACING_SHARE = 0.05, 1e-4
"""Delay of a stamp after another one: see `validator.supervise.monitor`."""


class Paced(NamedTuple):
    """Mean times `values [n]`, in seconds, of the steps up to each of `steps [n]`; and their clock, if it is coarse."""

    steps: Steps
    values: Floats
    clock: CoarseClock | None = None


def pace(steps: Steps, seconds: Floats, stamps: Arrivals | None = None) -> Paced:
    """Mean time of the steps between rows, from a clock that is set back where a run begins again.

    Args:
        steps: `[n]`, rising.
        seconds: `[n]`, the trainer's clock when each was done.
        stamps: when steps of the same file arrived.
    """
    usable = np.isfinite(seconds)
    steps, seconds = steps[usable], seconds[usable]
    unit = resolution(seconds) if len(steps) > 1 else 0.0
    if stamps is not None and unit >= _STAMPED_S:
        stamped = _by_arrival(steps, seconds, unit, stamps)
        if stamped is not None:
            return stamped
    clock, least_s = None, COARSE * unit
    if len(steps) > 1:
        ticks = _ticks(seconds, unit)
        exact = unit
        if ticks.size > 2:
            # Between rows more frequent than its ticks a clock is as exact as they are.
            exact = unit * ticks.size / len(steps)
            steps, seconds = _to_the_end(steps, seconds, ticks, unit)
            least_s = COARSE * exact
        kept = apart(seconds, least_s)
        steps, seconds = steps[kept], seconds[kept]
        clock = CoarseClock(unit, unit, exact, by_arrival=False) if unit >= _COARSE_S else None
    spans, strides = np.diff(seconds), np.diff(steps)
    forward = spans > 0
    return Paced(steps[1:][forward], (spans / strides)[forward], clock)


def _by_arrival(steps: Steps, seconds: Floats, unit: float, stamps: Arrivals) -> Paced | None:
    """The same from the stamps; None where the printed clock does not confirm them, or they are too few.

    Rows that arrived together have one stamp, that of the last. A row across which the clock was set back has no time.
    """
    at, rows, places = np.intersect1d(steps, stamps[0], return_indices=True)
    shown, arrived = seconds[rows], stamps[1][places]
    moved = int((np.diff(seconds) > 0).sum())
    if len(at) < max(_FEWEST, moved / 2):
        return None
    bars = np.cumsum(np.diff(shown, prepend=shown[:1]) < 0)
    behind, kept, spread = arrived - shown, np.zeros(len(at), dtype=np.bool_), 0.0
    for own in np.split(np.arange(len(at)), np.flatnonzero(np.diff(bars)) + 1):
        agreeing = own[_together(behind[own], unit + _LAG_S)]
        kept[agreeing] = True
        spread = max(spread, float(np.ptp(behind[agreeing])) - unit)
    if kept.mean() < _AGREE:
        return None
    at, shown, arrived, bars = at[kept], shown[kept], arrived[kept], bars[kept]
    if abs(shown[0] - seconds[0]) > unit or abs(seconds[-1] - shown[-1]) > unit:
        return None  # what is not confirmed is the start or the end of the run
    spans = np.diff(arrived)
    forward = (spans > 0) & (np.diff(bars) == 0)
    delay = max(_SPACING_S, _SPACING_SHARE * float(arrived[-1]))
    clock = CoarseClock(unit, spread + delay, 0.0, by_arrival=True)
    return Paced(at[1:][forward], (spans / np.diff(at))[forward], clock)


def _together(values: Floats, width: float) -> npt.NDArray[np.bool_]:
    """Which values lie within `width` of each other: those of the largest such set."""
    ordered = np.sort(values)
    counts = np.searchsorted(ordered, ordered + width, side="right") - np.arange(len(ordered))
    low = ordered[int(np.argmax(counts))]
    return np.asarray((values >= low) & (values <= low + width))


def _to_the_end(steps: Steps, seconds: Floats, ticks: npt.NDArray[np.intp], unit: float) -> tuple[Steps, Floats]:
    """The rows at which a clock ticks, the last of them moved to the last row, less than a tick later by their pace."""
    first, last = ticks[0], ticks[-1]
    each = (seconds[last] - seconds[first]) / (steps[last] - steps[first])
    at, when = steps[ticks], seconds[ticks].astype(np.float64)
    at[-1], when[-1] = steps[-1], when[-1] + min(unit, each * (steps[-1] - steps[last]))
    return at, when


def _ticks(seconds: Floats, unit: float) -> npt.NDArray[np.intp]:
    """Rows at which a clock that mostly stands still has just moved by one unit, and the last at which it moved.

    A row behind a pause of more than a unit may be late by one, so the next one counts for it.
    """
    moved = np.flatnonzero(np.diff(seconds) > 0) + 1
    if unit == 0 or not moved.size or 2 * moved.size > len(seconds):
        return moved[:0]
    strides = seconds[moved] - seconds[moved - 1]
    return np.asarray(moved[(strides < 1.5 * unit) | (moved == moved[-1])])


def resolution(seconds: Floats) -> float:
    """The coarsest unit, in seconds, of which all readings are whole multiples; 0 for a fine clock."""
    for unit in _UNITS_S:
        counts = seconds / unit
        if np.abs(counts - np.round(counts)).max() < 1e-6 * max(1.0, float(np.abs(counts).max()) ** 0.5):
            return unit
    return 0.0


def apart(seconds: Floats, least_s: float) -> list[int]:
    """Rows at least so many seconds apart; the last one takes the place of a nearer neighbor."""
    kept = [0]
    for row in range(1, len(seconds)):
        if seconds[row] < seconds[kept[-1]] or seconds[row] - seconds[kept[-1]] >= least_s:
            kept.append(row)
    if kept[-1] != len(seconds) - 1 and seconds[-1] > seconds[kept[-1]]:
        kept[-1 if len(kept) > 1 else 1 :] = [len(seconds) - 1]
    return kept
