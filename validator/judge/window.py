"""Where warm-up ends and the steady window begins.

A run's first steps compile, fill caches and ramp clocks; they say nothing about the days that follow. The window begins
after the declared warm-up and, if the time per step still changes after that, behind the last change.

Method: a CUSUM test for a change of the mean (Page 1954; Ploberger and Krämer 1992) with an autocorrelation-robust
scale, repeated on what lies right of each change, which is located by least squares (Bai 1994). A change counts when
it is both significant and material. What remains must be long enough to be called steady; this follows Barrett et al.,
"Virtual Machine Warmup Blows Hot and Cold" (OOPSLA 2017), who tell warm-up, steady and no steady state apart.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from validator.judge.autocorrelation import effective_size, lag1, long_run_stdev, t_quantile
from validator.model.measure import Span

__all__ = [
    "MATERIAL_CHANGE",
    "MIN_ROWS",
    "MIN_SETTLED_ROWS",
    "UNSEEN_CHANGE",
    "SteadyWindow",
    "covered_steps",
    "steady_window",
]

Floats = npt.NDArray[np.float64]
Steps = npt.NDArray[np.int64]

MIN_ROWS = 10
"""Rows below which no statement about steadiness is made."""

MIN_SHARE = 1.0 / 3.0
"""Least share of the steps after the declared warm-up that must be steady."""

MIN_SETTLED_ROWS = 30
"""Rows that must be left behind a change. Fewer cannot show that the change was the last: a start that fades over 15
steps, cut at its steepest, leaves a tail that looks flat in 20 noisy rows and still is several per cent."""

MATERIAL_CHANGE = 0.01
"""Relative change of the mean that makes a run unsteady; a smaller one does no harm to a decision."""


@dataclass(frozen=True)
class _Test:
    """Which changes of the mean count: at least `material`, relative, and beyond what chance does at `level`.

    `critical` is the value of the supremum of a Brownian bridge that chance exceeds at that level.
    """

    material: float
    level: float
    critical: float


UNSEEN_CHANGE = MATERIAL_CHANGE / 4
"""Relative change of the mean that is never searched for, so that a mean may be wrong by as much."""

_FINE = _Test(material=UNSEEN_CHANGE, level=0.05, critical=1.36)
"""For cutting warm-up: the tail of a settling run biases the mean by more than its interval shows."""

_COARSE = _Test(material=MATERIAL_CHANGE, level=0.01, critical=1.63)
"""For calling a run never steady, which costs it its verdict."""


@dataclass(frozen=True)
class SteadyWindow:
    """The rows that count.

    `after_step` is the last step that belongs to warm-up (in the trainer's own numbering), None when nothing is left
    out; `span` the steps of the window; `steady` whether they may stand for a long run; `note` says why not, or what
    was found. `comparable` is whether the mean may stand beside those of other runs, whose scatter is the interval: a
    change too small to be material harms no comparison, though it forbids an interval from this run alone.
    """

    after_step: int | None
    span: Span | None
    rows: int
    steady: bool
    note: str
    comparable: bool = False

    def contains(self, steps: Steps) -> npt.NDArray[np.bool_]:
        """Which rows, by their step, lie in the window."""
        if self.span is None:
            return np.zeros(len(steps), dtype=np.bool_)
        inside = steps <= self.span.last_step
        return inside if self.after_step is None else inside & (steps > self.after_step)


def covered_steps(steps: Steps) -> npt.NDArray[np.float64]:
    """Optimizer steps that each row stands for: those since the row before it.

    The first row stands for all steps up to it; a file whose first step is 0 counts from 0.
    """
    if len(steps) == 0:
        return np.zeros(0)
    base = min(1, int(steps[0]))
    return np.diff(steps, prepend=base - 1).astype(np.float64)


def steady_window(steps: Steps, times: Floats, *, warmup_steps: int, of: str = "time per step") -> SteadyWindow:
    """The steady window of a run.

    Args:
        steps: `[n]`, strictly increasing.
        times: `[n]`, wall time per step of each row, in any unit; rows that are not finite or not positive are kept in
            the window and left out of the search.
        warmup_steps: steps that never count, whatever the search finds.
        of: what `times` are, for the note.
    """
    if len(steps) == 0:
        return SteadyWindow(None, None, 0, False, "no steps were recorded")
    # The step that was done when the row's interval began: a row that holds warm-up steps is left out whole.
    started_after = steps - covered_steps(steps).astype(np.int64)
    base = min(1, int(steps[0]))
    first = int(np.searchsorted(started_after, warmup_steps + base - 1))
    rows = len(steps) - first
    if rows < MIN_ROWS:
        note = f"{rows} rows after {warmup_steps} warm-up steps; {MIN_ROWS} are needed to tell if a rate is steady"
        return _window(steps, min(first, len(steps)), steady=False, note=note)
    usable = np.flatnonzero(np.isfinite(times[first:]) & (times[first:] > 0)) + first
    if len(usable) < MIN_ROWS:
        return _window(steps, first, steady=False, note=f"only {len(usable)} of {rows} rows hold a usable {of}")
    search = _search(times[usable], _FINE)
    if not search.settled and len(usable) >= 2 * MIN_SETTLED_ROWS:
        search = _search(times[usable], _COARSE)
    found = _classify(steps, times, usable, first=first, search=search, of=of)
    comparable = found.steady or _search(times[usable], _COARSE).cuts == 0
    return replace(found, comparable=comparable)


def _window(steps: Steps, first: int, *, steady: bool, note: str) -> SteadyWindow:
    if first >= len(steps):
        return SteadyWindow(int(steps[-1]), None, 0, steady, note)
    base = min(1, int(steps[0]))
    after = int(steps[first - 1]) if first else base - 1
    span = Span(first_step=after + 1, last_step=int(steps[-1]))
    return SteadyWindow(after if first else None, span, len(steps) - first, steady, note)


@dataclass(frozen=True)
class _Search:
    """Row from which nothing changes any more, after how many cuts, and whether what is left is long enough."""

    start: int
    cuts: int
    settled: bool


def _classify(
    steps: Steps, times: Floats, usable: npt.NDArray[np.int64], *, first: int, search: _Search, of: str
) -> SteadyWindow:
    """Warm-up, a passing disturbance, or never steady."""
    if not search.settled:
        return _window(steps, first, steady=False, note=_trend(steps, times, usable, of=of))
    if search.cuts == 0:
        return _window(steps, first, steady=True, note="steady after the declared warm-up")
    start = search.start
    level, early = float(times[usable[start:]].mean()), float(times[usable[: max(1, start // 4)]].mean())
    if start >= 12 and abs(early / level - 1.0) <= MATERIAL_CHANGE:
        # The level before the change is the level after it: a disturbance in between, which the run paid for.
        note = f"steady, with a passing change of the {of} before step {int(steps[usable[start]])}, which is included"
        return _window(steps, first, steady=True, note=note)
    after = int(steps[usable[start] - 1])
    note = f"warm-up ended at step {after}: the {of} changed by {100 * (level / early - 1):+.1f} % and held"
    return _window(steps, int(usable[start]), steady=True, note=note)


def _least_rows(rows: int) -> int:
    return max(MIN_ROWS, math.ceil(MIN_SHARE * rows))


def _trend(steps: Steps, times: Floats, usable: npt.NDArray[np.int64], *, of: str) -> str:
    third = max(1, len(usable) // 3)
    parts = (usable[:third], usable[third:-third], usable[-third:])
    means = [float(times[part].mean()) for part in parts if len(part)]
    change = 100 * (means[-1] / means[0] - 1)
    shown = " → ".join(f"{mean:.4g}" for mean in means)
    short = len(usable) < 3 * MIN_SETTLED_ROWS
    return (
        f"never steady: the {of} keeps changing from step {int(steps[usable[0]])} to {int(steps[usable[-1]])} "
        f"(means of its thirds {shown}, {change:+.1f} %)"
        + (f"; a run with {4 * MIN_SETTLED_ROWS} rows after warm-up would tell if that is warm-up" if short else "")
    )


def _search(times: Floats, test: _Test) -> _Search:
    """Cut at the last change again and again, until the rest shows none or is too short to be called steady."""
    series, start, cuts, least = _clipped(times), 0, 0, _least_rows(len(times))
    while (change := _change_point(series[start:], test)) is not None:
        start, cuts = start + change, cuts + 1
        if len(series) - start < least:
            return _Search(start, cuts, settled=False)
    if cuts > 1:
        # Several cuts mean that it settled gradually; the end of that is below what any test sees, and still a bias.
        start = min(start + start // 2, len(series) - least)
    return _Search(start, cuts, settled=cuts == 0 or len(series) - start >= MIN_SETTLED_ROWS)


def _clipped(values: Floats) -> Floats:
    """Values with outliers pulled in, so that one long pause neither makes nor hides a change.

    A quarter of the median always stays in range: in a quiet series a ramp is far beyond five spreads, and no outlier.
    """
    center = float(np.median(values))
    reach = max(5 * 1.4826 * float(np.median(np.abs(values - center))), 0.25 * abs(center))
    return np.clip(values, center - reach, center + reach)


def _change_point(values: Floats, test: _Test) -> int | None:
    """First index of the right side of a significant and material change of the mean; None if there is none."""
    n = len(values)
    sums = np.cumsum(values - values.mean())[:-1]
    lefts = np.arange(1, n)
    split = int(np.argmax(np.abs(sums) / np.sqrt(lefts * (n - lefts)))) + 1
    left, right = float(values[:split].mean()), float(values[split:].mean())
    if left == right or abs(right / left - 1.0) < test.material:
        return None
    jump = float(np.abs(sums).max()) / math.sqrt(n) > test.critical * _noise(values, split)
    return split if jump or _slopes(values, test) else None


def _slopes(values: Floats, test: _Test) -> bool:
    """Whether the values follow a slope: the end of a settling run is gentler than any jump that the CUSUM sees."""
    n = len(values)
    x = np.arange(n) - (n - 1) / 2
    rise = n * float(x @ values) / float(x @ x)
    residuals = _detrended(values)
    phi = lag1(residuals, fitted=2)
    freedom = effective_size(n, phi) - 2.0
    if freedom < 1.0 or abs(rise) / 2 < test.material * abs(float(values.mean())):
        return False
    error = long_run_stdev(residuals, phi) * math.sqrt(12.0 / n)
    return abs(rise) > t_quantile(1 - test.level / 2, freedom) * error


def _noise(values: Floats, split: int) -> float:
    """Long-run standard deviation of what is left when each side's straight line is removed.

    Scales estimated under "no change" grow with the change itself and would hide a ramp.
    """
    residuals = np.concatenate([_detrended(values[:split]), _detrended(values[split:])])
    phi = lag1(residuals, fitted=4 if min(split, len(values) - split) > 2 else 2)
    return long_run_stdev(residuals, phi)


def _detrended(values: Floats) -> Floats:
    centered: Floats = values - values.mean()
    if len(values) < 3:
        return centered
    x = np.arange(len(values)) - (len(values) - 1) / 2
    straight: Floats = centered - x * float(x @ centered) / float(x @ x)
    return straight
