"""Spans of wall-clock time between records: which are silence, and which only show that the clock was set."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Gaps", "clock_jumps", "longest_s"]

_BACK_S = 1.0
"""A clock that goes back by more than this was set; less is how two threads of a process write."""


def longest_s(duration_s: float | None) -> float:
    """Longest span of time that can lie within an attempt; a second is allowed for rounding."""
    return float("inf") if duration_s is None else duration_s + 1.0


@dataclass
class Gaps:
    """Seconds between the records of one rank, taken in as they are read.

    A span longer than `limit_s`, what the whole attempt took by the monotonic clock, is a jump of the wall clock and no
    gap; so is one that goes back.
    """

    limit_s: float = float("inf")
    first: float | None = None
    last: float | None = None
    longest: float | None = None
    back: int = 0
    furthest_back_s: float = 0.0

    def add(self, times: npt.NDArray[np.float64]) -> None:
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
        back = spans[spans < -_BACK_S]
        if back.size:
            self.back += int(back.size)
            self.furthest_back_s = max(self.furthest_back_s, float(-back.min()))

    def with_span(self, spans: npt.NDArray[np.float64]) -> float | None:
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


def clock_jumps(
    steps: npt.NDArray[np.int64], seconds: npt.NDArray[np.float64], *, limit_s: float
) -> list[dict[str, Any]]:
    """Steps between which the wall clock was set: `{first_step, last_step, reason}`, windows that are not valid.

    Back by more than a second, or forth by more than the whole attempt took by the monotonic clock.
    """
    spans = np.diff(seconds)
    windows = []
    for at in np.flatnonzero((spans < -_BACK_S) | (spans > limit_s)):
        way = "back" if spans[at] < 0 else "forth"
        reason = f"the wall clock was set {way} by {abs(spans[at]):.0f} s"
        windows.append({"first_step": int(steps[at]), "last_step": int(steps[at + 1]), "reason": reason})
    return windows
