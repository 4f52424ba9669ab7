"""Whether the memory that a run's processes hold grows to the end of the run, how fast, and when it fills the machine.

What counts is what is kept: of each part of the run the least memory that was held in it or later, so that what a
garbage collection, an evaluation or a checkpoint gives back is no growth. Memory grows where every part keeps more than
the one before. A cache that fills ends in a plateau, so the end of the run is looked at by itself as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

import numpy as np

from validator.model.result import Floats, RunEvidence, Samples
from validator.text import format_duration, plural

COLUMN = "host_run_mem_mib"
"""The column of the samples that holds the memory of the run's processes."""

MIN_SAMPLES = 12
"""Samples after warm-up from which growth can be distinguished from a plateau."""

LEAST_MIB = 16.0
"""Growth that is looked at; what an interpreter and its allocator take now and then is less."""

LONG_RUN_S = 72 * 3600.0
"""Length of the run that the memory must last for where none is declared: three days."""

_LOOKS = ((1.0, 6), (1.0, 4), (1 / 2, 6), (1 / 4, 6), (1 / 8, 6))
"""Ends of the run that are looked at, as shares, and their parts: four parts see what grows at a few evaluations."""

_FINE = 6
_EVEN = {6: 0.25, 4: 0.5}
"""Share of an even rise that each part must have: memory that rises in one step has reached a plateau."""

_LAST_RISE = 0.65
"""Share of the samples after which memory must still rise: what rises in four steps or more does."""

_LEVELLING = 0.5
"""Later growth over earlier growth, below which memory reaches a plateau."""

_STEADY = 0.8
"""The same, from which nothing of a plateau is seen."""

_MANY = 30
"""Samples that it takes to show that, in six parts of half of the run or more."""


_MANY_STEPS = 30
_LONG_S = 60.0
"""Steps and seconds over which memory must grow before a start is excluded: libraries are loaded at the first use of
what is in them, and caches fill."""

_LONG_UNKNOWN_S = 300.0
"""The same where no step says when the start was over."""


@dataclass(frozen=True)
class RunMemory:
    """What a run's processes held, by samples after warm-up.

    `times_s [n]` UNIX time, `mib [n]`, `step_s` time of a step where steps are known, `left_mib` what the machine, or
    the container, had left at the end. `source` is the file that holds them, `node` the name of another node than that
    of rank 0.
    """

    times_s: Floats
    mib: Floats
    step_s: float | None
    left_mib: float | None
    source: str = ""
    node: str = ""

    @property
    def span_s(self) -> float:
        """Seconds from the first of these samples to the last."""
        return float(self.times_s[-1] - self.times_s[0]) if len(self.times_s) > 1 else 0.0

    @property
    def lacks(self) -> str | None:
        """Why these samples cannot show growth, as a clause; None where they can."""
        if len(self.mib) >= MIN_SAMPLES:
            return None
        return f"{plural(len(self.mib), 'sample')} after warm-up, and {MIN_SAMPLES} are needed"

    @property
    def shown(self) -> str:
        """What was sampled."""
        return f"{len(self.mib)} samples of {COLUMN}"

    def growth(self) -> MemoryGrowth | None:
        """Growth that lasts to the end; None where there is none, or too few samples to see it."""
        return lasting_growth(self.times_s, self.mib)

    def text(self, growth: MemoryGrowth | None) -> str:
        """A clause that says how much it is and, where it is known what is left, when that is full."""
        if growth is None:
            watched = format_duration(self.span_s)
            return f"What the run's processes hold does not grow to the end, by {LEAST_MIB:g} MiB or more in {watched}"
        per_s = growth.mib_per_s
        rate = f"{per_s:,.0f} MiB/s" if per_s >= 10 else f"{60 * per_s:,.0f} MiB/min" if per_s >= 0.1 else None
        rate = rate or f"{3600 * per_s:,.0f} MiB/h"
        text = (
            f"What the run's processes hold on {self.node or 'the host'} grows to the end, by "
            f"{growth.grown_mib:,.0f} MiB in the last {format_duration(growth.span_s)} ({rate})"
        )
        if self.left_mib is None:
            return text
        full = format_duration(self.left_mib / per_s)
        return f"{text}; at this rate the {self.left_mib:,.0f} MiB that are left are full in {full}"

    def must_last_s(self, planned_s: float | None) -> float:
        """Seconds that the memory must last for: those of the planned run, else `LONG_RUN_S`, and those of this one."""
        return max(LONG_RUN_S if planned_s is None else planned_s, self.span_s)


@dataclass(frozen=True)
class MemoryGrowth:
    """Memory that grows to the end: by `grown_mib` in the last `span_s` seconds.

    `steady` where half of the run or more shows it, and nothing of a plateau.
    """

    mib_per_s: float
    grown_mib: float
    span_s: float
    steady: bool

    def full_in_s(self, left_mib: float | None) -> float | None:
        """Seconds until so much memory is filled; None where what is left is not known."""
        return None if left_mib is None else left_mib / self.mib_per_s


def run_memories(evidence: RunEvidence, warmup_steps: int) -> list[RunMemory]:
    """The memory of a run after warm-up, on each node where it was sampled."""
    sampled = {"": evidence.samples, **evidence.node_samples}
    found = (run_memory(samples, warmup_steps, node=name) for name, samples in sampled.items())
    return [one for one in found if one is not None]


def run_memory(samples: Samples | None, warmup_steps: int, *, node: str = "") -> RunMemory | None:
    """The memory of a run on one node after warm-up; None where it was not sampled.

    Where less than half of the samples have a step, the first quarter is the warm-up. The last tenth is left out, and
    what is far below the level before it: processes end there, and the last step is known to a fraction of a second.
    """
    if samples is None or COLUMN not in samples.columns:
        return None
    mib = samples.columns[COLUMN]
    held = np.flatnonzero(np.isfinite(samples.times_s) & np.isfinite(mib) & (mib >= 0))
    if not held.size:
        return None
    steps = samples.steps
    if steps is not None and 2 * (steps[held] >= 0).sum() >= held.size:
        held = held[steps[held] >= 0]
        begin = int(np.searchsorted(steps[held], warmup_steps, side="right"))
    else:
        steps, begin = None, held.size // 4
    level = np.median(mib[held[held.size // 2 :]])
    end = int(np.flatnonzero(mib[held] >= level / 2)[-1]) + 1
    late = held[begin : end - -(-end // 10)]
    times = samples.times_s[late]
    if (np.diff(times) <= 0).any():  # the clock was set: samples are taken at even times
        interval_s = max(float(np.median(np.diff(times))), 1e-3)
        times = np.arange(len(times), dtype=np.float64) * interval_s
    step_s = None
    if steps is not None and times.size and steps[late][-1] > steps[late][0] >= 0:
        step_s = float((times[-1] - times[0]) / (steps[late][-1] - steps[late][0]))
    available = samples.columns.get("host_mem_available_mib", np.empty(0))
    left = available[late] if available.size else available
    left = left[np.isfinite(left)]
    left_mib = float(left[-1]) if left.size else None
    return RunMemory(times, mib[late], step_s, left_mib, samples.source.path, node)


def lasting_growth(times_s: Floats, mib: Floats) -> MemoryGrowth | None:
    """Growth that lasts to the end of these samples; None where there is none, or too few samples to see it.

    Args:
        times_s: `[n]`, rising.
        mib: `[n]`, finite.
    """
    for share, parts in _LOOKS:
        first = len(mib) - round(share * len(mib))
        many = len(mib) - first
        if many < MIN_SAMPLES:
            return None
        found = _growth_of(times_s[first:], mib[first:], parts)
        # What was held before and given back, as by a garbage collection, may be held again.
        if found is not None and (not first or found.kept_mib > mib[:first].max()):
            even = found.evenness >= _STEADY and parts == _FINE
            span_s = float(times_s[-1] - times_s[first])
            return MemoryGrowth(found.mib_per_s, found.grown_mib, span_s, even and share >= 1 / 2 and many >= _MANY)
    return None


def outlasts_start(memory: RunMemory, growth: MemoryGrowth) -> bool:
    """Whether memory grew for longer than a start takes, which no leak needs to explain."""
    if memory.step_s is None:
        return growth.span_s >= _LONG_UNKNOWN_S
    return growth.span_s >= _MANY_STEPS * memory.step_s and (growth.steady or growth.span_s >= _LONG_S)


class _Rise(NamedTuple):
    """`kept_mib` is what is kept at the end, `evenness` later growth over earlier growth."""

    mib_per_s: float
    grown_mib: float
    kept_mib: float
    evenness: float


def _growth_of(times_s: Floats, mib: Floats, count: int) -> _Rise | None:
    """How what is kept rises through each of so many parts; None where it does not, or levels off."""
    parts = np.array_split(np.arange(len(mib)), count)
    kept = np.minimum.accumulate(np.array([mib[part].min() for part in parts])[::-1])[::-1]
    rises, grown = np.diff(kept), float(kept[-1] - kept[0])
    least = _EVEN[count] * grown / len(rises)
    if grown < LEAST_MIB or rises.min() < least or _level_from(mib, least) < _LAST_RISE:
        return None
    side = len(rises) // 2
    evenness = float(rises[-side:].sum() / rises[:side].sum())
    if evenness < _LEVELLING:
        return None
    begin = [float(times_s[part[0]]) for part in parts]  # where memory that only rises is least
    slopes = [(kept[b] - kept[a]) / (begin[b] - begin[a]) for a, b in combinations(range(count), 2)]
    return _Rise(float(np.median(slopes)), grown, float(kept[-1]), evenness)


def _level_from(mib: Floats, least: float) -> float:
    """The share of the samples after which what is kept rises no more by `least`."""
    end = mib[-max(2, len(mib) // 10) :].min()
    return float(np.flatnonzero(mib <= end - least).max(initial=-1) + 1) / len(mib)
