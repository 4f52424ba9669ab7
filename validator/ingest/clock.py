"""`arrivals.jsonl`: when the supervisor saw each step reach the trainer's files, by its own monotonic clock."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from validator.documents import parse_json
from validator.ingest.read_log import ReadLog, read_blocks
from validator.ingest.rows import below_all_later
from validator.model.result import Floats, InvalidWindow, Series, Steps

ARRIVALS_FILE = "arrivals.jsonl"

Arrivals = tuple[Steps, Floats]
"""Steps `[n]`, rising, and the seconds `[n]` after the attempt's start at which each had arrived."""

NO_ARRIVALS: Mapping[str, Arrivals] = {}


def read_arrivals(path: Path, read_log: ReadLog, *, out: Path) -> dict[str, Arrivals]:
    """Stamps by source, named as results name files. Other lines are passed over and noted once."""
    odd = 0
    found: dict[str, tuple[array[int], array[float]]] = {}

    def take(block: bytes, _: int) -> int:
        nonlocal odd
        for line in filter(None, block.splitlines()):
            try:
                entry = parse_json(line)
                steps, seconds = found.setdefault(str(entry["source"]), (array("q"), array("d")))
                step, at = int(entry["step"]), float(entry["s"])
                steps.append(step)
                seconds.append(at)
            except (ValueError, KeyError, TypeError, OverflowError):
                odd += 1
        return 0

    if read_blocks(path, read_log, take, what="the arrival stamps") is None:
        return {}
    if odd:
        read_log.note("garbage-line", f"{odd} lines are no arrival stamps and were left out", path)
    return {read_log.name(out / source): _rising(*columns) for source, columns in found.items()}


def _rising(steps: array[int], seconds: array[float]) -> Arrivals:
    """Steps that a trainer repeats after a restart count from their repetition."""
    at, when = np.array(steps, dtype=np.int64), np.array(seconds, dtype=np.float64)
    if len(at) > 2:  # a late line of an earlier step, as of a second kind of row, is no restart
        highest = np.maximum.accumulate(at)
        late = np.r_[False, (at[1:-1] < highest[:-2]) & (at[2:] > highest[:-2]), False]
        at, when = at[~late], when[~late]
    kept = below_all_later(at) & np.isfinite(when)
    at, when = at[kept], when[kept]
    sound = not len(when) or bool((np.diff(when) >= 0).all() and when[0] >= 0)
    return (at, when) if sound else (at[:0], when[:0])


# Spans of wall-clock time between records: which are silence, and which only show that the clock was set.

_SET_BACK_S = 1.0
"""A clock that jumps back by more than this was set; less is how two threads of a process write."""


def longest_s(duration_s: float | None) -> float:
    """Longest span of time that can lie within an attempt; a second is allowed for rounding."""
    return float("inf") if duration_s is None else duration_s + 1.0


_FAR_OFF = 10.0
"""Times the usual length of a step from which a time that cannot be is a jump of the clock."""


@dataclass
class Gaps:
    """Seconds between the records of one rank, taken in as they are read.

    A span longer than `limit_s`, what the whole attempt took by the monotonic clock, is a jump of the wall clock and no
    gap; so is a negative one.
    """

    limit_s: float = float("inf")
    first: float | None = None
    last: float | None = None
    longest: float | None = None
    back: int = 0
    furthest_back_s: float = 0.0

    def add(self, times: Floats) -> None:
        """Further times, Unix seconds `[n]`, in the order of the file."""
        if not times.size:
            return
        if self.first is None or self.last is None:
            self.first = float(times[0])
            spans = np.diff(times)
        else:
            spans = np.diff(times, prepend=self.last)
        self.last = float(times[-1])
        self.longest = self.with_span(spans)
        back = spans[spans < -_SET_BACK_S]
        if back.size:
            self.back += int(back.size)
            self.furthest_back_s = max(self.furthest_back_s, float(-back.min()))

    def with_span(self, spans: Floats) -> float | None:
        """The longest gap so far, `spans` in seconds counted in."""
        spans = spans[(spans >= 0) & (spans <= self.limit_s)]
        if not spans.size:
            return self.longest
        longest = float(spans.max())
        return longest if self.longest is None else max(longest, self.longest)

    def until(self, end_s: float | None) -> float | None:
        """The longest gap, the one from the last record to `end_s` counted in where that is given; None without any."""
        if end_s is None or self.last is None:
            return self.longest
        return self.with_span(np.array([end_s - self.last]))


def clock_jumps(steps: Steps, seconds: Floats, *, limit_s: float) -> list[InvalidWindow]:
    """Steps between which the wall clock was set: windows that are not valid.

    Back by more than a second, or forth by more than the whole attempt took by the monotonic clock.
    """
    spans = np.diff(seconds)
    windows = []
    for at in np.flatnonzero((spans < -_SET_BACK_S) | (spans > limit_s)):
        way = "back" if spans[at] < 0 else "forth"
        reason = f"the wall clock was set {way} by {abs(spans[at]):.0f} s"
        windows.append(InvalidWindow(int(steps[at]), int(steps[at + 1]), reason))
    return windows


def jumps_in_rows(
    series: Mapping[str, Series], tokens_per_step: float | None, *, limit_s: float
) -> list[InvalidWindow]:
    """Rows whose time per step, or whose rate, holds a jump of the wall clock.

    A trainer that times its steps by the wall clock shows the jump itself: a time far below zero, or one longer than
    the whole attempt. Values below zero of the usual size are no jump.
    """
    found: dict[int, str] = {}
    for one, tokens in ((series.get("step_time_s"), None), (series.get("toks_per_s"), tokens_per_step or 1.0)):
        if one is None or not len(one.steps):
            continue
        exact = tokens is None or tokens_per_step is not None
        with np.errstate(divide="ignore", invalid="ignore"):
            seconds = np.asarray(one.values if tokens is None else tokens / one.values, dtype=np.float64)
        spans = seconds * np.diff(one.steps, prepend=one.steps[0] - 1)
        beyond = np.isfinite(seconds) & (np.abs(seconds) > _FAR_OFF * float(np.median(np.abs(seconds))))
        back = beyond & (spans < (-_SET_BACK_S if exact else 0.0))
        for at in np.flatnonzero(back | (beyond & (spans > limit_s) if exact else back)):
            amount = f" by {abs(spans[at]):.0f} s" if exact else ""
            text = f"the wall clock was set {'back' if back[at] else 'forth'}{amount}, by {one.name}"
            found.setdefault(int(one.steps[at]), text)
    return [InvalidWindow(step, step, text) for step, text in sorted(found.items())]
