"""Where warm-up ends, and which levels the time per step has after it.

A run's first steps compile, fill caches and ramp clocks; they say nothing about the days that follow. So rows at the
start that are slower than what follows are left out, but never more than the declared warm-up or a quarter of the run:
what is slow for longer, or becomes slow, is how the run is. Everything behind the warm-up counts, on whatever level.

Method: binary segmentation by a CUSUM test for a change of the mean (Page 1954; Ploberger and Krämer 1992), or by a
test for a slope, both with an autocorrelation-robust scale; a change is located by least squares (Bai 1994). It counts
when it is both significant and material.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from validator.model.result import Floats, Span, Steps
from validator.stats.autocorrelation import effective_size, lag1, long_run_stdev, mean_half_width
from validator.stats.distributions import t_quantile
from validator.stats.spacing import LASTING, covered_steps, even_rows, joined
from validator.text import format_change, format_number

MIN_ROWS = 10
"""Rows below which no statement about steadiness is made, and of which a lasting level has as many."""

MAX_WARMUP = 0.25
"""Share of a run that may be left out as warm-up beyond what was declared."""

LATE = 0.5
"""Share of a run after which a gain in speed is no end of a warm-up."""

FADING = 1.5
"""Excess of the first half of a slow stretch over that of its second half, from which it fades."""

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


_FINE = _Test(material=MATERIAL_CHANGE / 4, level=0.05, critical=1.36)
"""For cutting warm-up: the tail of a settling run biases the mean by more than its interval shows."""

_COARSE = _Test(material=MATERIAL_CHANGE, level=0.01, critical=1.63)
"""For calling a run unsteady, of which people are warned."""


@dataclass(frozen=True)
class Level:
    """A stretch over which the time per step keeps its mean: `mean` and its 95 % interval, in the unit of the times."""

    first_step: int
    last_step: int
    rows: int
    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class SteadyWindow:
    """The rows that count, and whether they are of one kind.

    `after_step` is the last step that belongs to warm-up (in the trainer's own numbering), None when nothing is left
    out; `span` the steps of the window; `steady` whether its mean changes by nothing that matters; `note` what was
    found. `levels` cover the window, one where nothing changed, none where no time is known. `slow_start` says that
    slow steps at the start outlast the declared warm-up; `settling` that they outlast what may be left out, so the run
    may yet be faster; `slowed` that it lastingly became slower.
    """

    after_step: int | None
    span: Span | None
    rows: int
    steady: bool
    note: str
    levels: tuple[Level, ...] = ()
    slow_start: bool = False
    settling: bool = False
    slowed: bool = False

    def contains(self, steps: Steps) -> npt.NDArray[np.bool_]:
        """Which rows, by their step, lie in the window."""
        if self.span is None:
            return np.zeros(len(steps), dtype=np.bool_)
        inside = steps <= self.span.last_step
        return inside if self.after_step is None else inside & (steps > self.after_step)


def steady_window(steps: Steps, times: Floats, *, warmup_steps: int, of: str = "time per step") -> SteadyWindow:
    """The window of a run, and the levels within it.

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
        note = f"{rows} rows after {warmup_steps} warm-up steps; {MIN_ROWS} are needed to decide if a rate is steady"
        return _window(steps, min(first, len(steps)), steady=False, note=note)
    steps, times = _evened(steps, times, first)
    usable = np.flatnonzero(np.isfinite(times[first:]) & (times[first:] > 0)) + first
    if len(usable) < MIN_ROWS:
        return _window(steps, first, steady=False, note=f"only {len(usable)} of {rows} rows hold a usable {of}")
    run = _LevelRun(steps, times, usable, base, warmup_steps, of)
    return _classify(run, first, _warm_up(run))


def _evened(steps: Steps, times: Floats, first: int) -> tuple[Steps, Floats]:
    """The rows, from `first` on joined to cover alike; a time that is not usable is left out of its group's."""
    covered = covered_steps(steps)
    groups = even_rows(covered[first:])
    if groups is None:
        return steps, times
    usable = np.isfinite(times) & (times > 0)
    known, spent = np.where(usable, covered, 0.0)[first:], np.where(usable, covered * times, 0.0)[first:]
    with np.errstate(invalid="ignore"):
        means = joined(spent, groups) / joined(known, groups)
    ends = np.append(groups[1:], len(covered) - first) - 1 + first
    return np.concatenate([steps[:first], steps[ends]]), np.concatenate([times[:first], means])


@dataclass(frozen=True, eq=False)
class _LevelRun:
    """What is searched: `usable [m]` are indices of rows behind the declared warm-up whose time is known."""

    steps: Steps
    times: Floats
    usable: Steps
    base: int
    warmup_steps: int
    of: str

    @property
    def length(self) -> int:
        """Steps of the whole run."""
        return int(self.steps[-1]) - self.base + 1

    def declared(self) -> Floats:
        """Times of the rows of the declared warm-up, where they are known."""
        times: Floats = self.times[: self.usable[0]]
        return times[np.isfinite(times) & (times > 0)]

    def done_before(self, index: int) -> int:
        """Steps that were done before the usable row of this index."""
        row = int(self.usable[index])
        return int(self.steps[row - 1]) - self.base + 1 if row else 0


def _window(steps: Steps, first: int, *, steady: bool, note: str) -> SteadyWindow:
    if first >= len(steps):
        return SteadyWindow(int(steps[-1]), None, 0, steady, note)
    base = min(1, int(steps[0]))
    after = int(steps[first - 1]) if first else base - 1
    span = Span(first_step=after + 1, last_step=int(steps[-1]))
    return SteadyWindow(after if first else None, span, len(steps) - first, steady, note)


@dataclass(frozen=True)
class _WarmUp:
    """Usable rows that are left out, and whether those at the start are slow, other than for a few long ones.

    `slow_until` counts the steps of a slow start that is too long to be left out.
    """

    rows: int
    slow: bool
    slow_until: int | None = None


def _warm_up(run: _LevelRun) -> _WarmUp:
    """The rows at the start that are slower than what follows, within the bounds."""
    values = run.times[run.usable]
    cap = max(run.warmup_steps, math.ceil(MAX_WARMUP * run.length))
    lead = _leading_pauses(values)
    edges = [0, *([lead] if lead else []), *(lead + cut for cut in _cuts(values[lead:], _FINE)), len(values)]
    end = next((one for one in reversed(_slow_starts(values, edges)) if _may_be_start(run, values, one, cap)), 0)
    gradual = edges.index(end) > 1 + bool(lead)
    # Several cuts mean that it settled gradually; the end of that is below what any test sees, and still a bias.
    wanted = end + end // 2 if gradual else end
    allowed = (rows for rows in range(min(wanted, len(values) - 1), 0, -1) if run.done_before(rows) <= cap)
    left_out = next(allowed, 0)
    if left_out >= end:
        return _WarmUp(left_out, end > lead)
    # What is left of a slow start matters if the mean over the rest of the run feels it.
    settling = float(values[left_out:].mean()) > (1 + _FINE.material) * float(values[end:].mean())
    return _WarmUp(left_out, end > lead, run.done_before(end) if settling else None)


def _may_be_start(run: _LevelRun, values: Floats, end: int, cap: int) -> bool:
    """Whether what ends there can be a start.

    The rows of the declared warm-up are slow as well, and it lies in the first half or its excess over what follows
    fades.
    """
    series, declared = _clipped(values), run.declared()
    early, rest = float(series[:end].mean()), float(series[end:].mean())
    if len(declared) and float(np.median(declared)) < (early + rest) / 2:
        return False
    if run.done_before(end) <= max(cap, LATE * run.length):
        return True
    half = end // 2  # a single row does not show whether it fades
    return half > 0 and float(series[:half].mean()) - rest > FADING * (float(series[half:end].mean()) - rest)


def _leading_pauses(values: Floats) -> int:
    """How many rows at the very start are far beyond all ordinary ones: a compilation, the first batch."""
    center, reach = center_and_reach(values)
    ordinary = np.flatnonzero(values <= center + reach)
    return int(ordinary[0]) if len(ordinary) and ordinary[0] < MAX_WARMUP * len(values) else 0


def _slow_starts(values: Floats, edges: list[int]) -> list[int]:
    """The edges up to which every stretch is slower than what follows, and to whose pace nothing lasting returns."""
    series, found = _clipped(values), []
    for k, end in enumerate(edges[1:-1], start=1):
        rest, early = float(series[end:].mean()), float(series[:end].mean())
        stretches = [float(series[a:b].mean()) for a, b in pairwise(edges[: k + 1])]
        later = [float(series[a:b].mean()) for a, b in pairwise(edges[k:]) if b - a >= end / 2]
        slower = min(stretches) > (1 + _FINE.material) * rest
        if slower and max(later, default=rest) < (early + rest) / 2:
            found.append(end)
    return found


def _classify(run: _LevelRun, first: int, warm_up: _WarmUp) -> SteadyWindow:
    """The window behind the warm-up, with its levels."""
    inside = run.usable[warm_up.rows :]
    values, weights = run.times[inside], covered_steps(run.steps)[inside]
    edges = [0, *_cuts(values, _COARSE, least=MIN_ROWS // 2), len(values)]
    levels = tuple(
        _level(run, inside[a], inside[b] if b < len(inside) else len(run.steps), values[a:b], weights[a:b])
        for a, b in pairwise(edges)
    )
    window = _window(run.steps, int(inside[0]) if warm_up.rows else first, steady=len(levels) == 1, note="")
    slowed = _slowed(levels)
    note = _note(run, window, levels, warm_up, slowed=slowed)
    settling = warm_up.slow_until is not None
    steady = window.steady and not settling
    return replace(
        window,
        steady=steady,
        note=note,
        levels=levels,
        slow_start=warm_up.slow,
        settling=settling,
        slowed=slowed,
    )


def _level(run: _LevelRun, first: int, behind: int, values: Floats, weights: Floats) -> Level:
    mean, half = float((values * weights).sum() / weights.sum()), mean_half_width(values)
    before = int(run.steps[first - 1]) if first else run.base - 1
    return Level(before + 1, int(run.steps[behind - 1]), len(values), mean, mean - half, mean + half)


def _slowed(levels: tuple[Level, ...]) -> bool:
    """Whether the run ends with lasting levels that are slower than all before them, but for a slow start."""
    while len(levels) > 1 and levels[0].mean > levels[1].mean:
        levels = levels[1:]
    lasting = max(MIN_ROWS, LASTING * sum(level.rows for level in levels))
    return any(
        sum(level.rows for level in levels[k:]) >= lasting
        and min(one.low for one in levels[k:]) > max(one.mean for one in levels[:k])
        and min(one.mean for one in levels[k:])
        > max(max(one.high, one.mean * (1 + MATERIAL_CHANGE)) for one in levels[:k])
        for k in range(1, len(levels))
    )


def _note(run: _LevelRun, window: SteadyWindow, levels: tuple[Level, ...], warm_up: _WarmUp, *, slowed: bool) -> str:
    """What was found, in words."""
    notes = []
    if warm_up.slow_until is not None:
        notes.append(
            f"slow until step {warm_up.slow_until + run.base - 1}, which is too late to be left out as warm-up; "
            f"{math.ceil(warm_up.slow_until / MAX_WARMUP)} steps would show the rate after it"
        )
    if warm_up.rows:
        notes.append(f"warm-up ended at step {window.after_step}: the {run.of} was higher up to there")
    if len(levels) > 1:
        scale, unit = (1e6, " µs") if run.of == "time per token" else (1.0, "")
        shown = " → ".join(format_number(scale * level.mean) for level in levels) + unit
        change = f"not steady: the {run.of} changes at step " + ", ".join(str(one.first_step) for one in levels[1:])
        notes.append(f"{change} (means {shown}, {format_change(levels[-1].mean / levels[0].mean - 1)})")
    if slowed:
        notes.append("it lastingly became slower")
    return "; ".join(notes) or "steady after the declared warm-up"


def _cuts(values: Floats, test: _Test, *, least: int = 1) -> list[int]:
    """First rows of every level but the first, each at least `least` rows long."""
    found, open_stretches = [], [(0, len(values))]
    while open_stretches:
        begin, end = open_stretches.pop()
        if end - begin < max(MIN_ROWS, 2 * least):
            continue
        stretch = _clipped(values[begin:end])
        split = best_split(np.cumsum(stretch - stretch.mean())[:-1], len(stretch), least)
        if _changes(stretch, split, test):
            found.append(begin + split)
            open_stretches += [(begin, begin + split), (begin + split, end)]
    return sorted(found)


def center_and_reach(values: Floats) -> tuple[float, float]:
    """The median, and how far ordinary values lie from it.

    A quarter of the median always is in range: in a quiet series a ramp is far beyond five spreads, and no outlier.
    """
    center = float(np.median(values))
    return center, max(5 * 1.4826 * float(np.median(np.abs(values - center))), 0.25 * abs(center))


def _clipped(values: Floats) -> Floats:
    """Values with outliers pulled in, so that one long pause neither makes nor hides a change."""
    center, reach = center_and_reach(values)
    return np.clip(values, center - reach, center + reach)


def _changes(values: Floats, split: int, test: _Test) -> bool:
    """Whether the mean changes there, significantly and materially."""
    left, right = float(values[:split].mean()), float(values[split:].mean())
    if left == right or abs(right / left - 1.0) < test.material:
        return False
    noise, sums = _noise(values, split), np.cumsum(values - values.mean())
    jump = float(np.abs(sums).max()) / math.sqrt(len(values)) > test.critical * noise
    return jump or _slopes(values, test, noise)


def best_split(sums: Floats, n: int, least: int) -> int:
    """The least-squares place of a change, from the partial sums `[n - 1]` of the centered values."""
    lefts = np.arange(1, n)
    score = np.abs(sums) / np.sqrt(lefts * (n - lefts))
    return int(np.argmax(score[least - 1 : n - least])) + least


def _slopes(values: Floats, test: _Test, noise: float) -> bool:
    """Whether the values follow a slope: the end of a settling run is gentler than any jump that the CUSUM sees."""
    n = len(values)
    x = np.arange(n) - (n - 1) / 2
    rise = n * float(x @ values) / float(x @ x)
    residuals = _detrended(values)
    phi = lag1(residuals, fitted=2)
    freedom = effective_size(n, phi) - 2.0
    if freedom < 1.0 or abs(rise) / 2 < test.material * abs(float(values.mean())):
        return False
    error = max(long_run_stdev(residuals, phi), noise) * math.sqrt(12.0 / n)
    return abs(rise) > t_quantile(1 - test.level / 2, freedom) * error


def _noise(values: Floats, split: int) -> float:
    """Long-run standard deviation of what is left when a straight line is removed on each side of up to three changes.

    Scales estimated under "no change" grow with the change itself and would hide a ramp; those estimated under a single
    one would hide a level that passes.
    """
    pieces = [piece for side in (values[:split], values[split:]) for piece in _halved(side)]
    phi = lag1(residuals := np.concatenate([_detrended(piece) for piece in pieces]), fitted=4 * len(pieces))
    return long_run_stdev(residuals, phi)


def _halved(values: Floats) -> tuple[Floats, ...]:
    """The values left and right of their likeliest change; whole where there are few."""
    n = len(values)
    if n < 2 * MIN_ROWS:
        return (values,)
    split = best_split(np.cumsum(values - values.mean())[:-1], n, MIN_ROWS // 2)
    return values[:split], values[split:]


def _detrended(values: Floats) -> Floats:
    centered: Floats = values - values.mean()
    if len(values) < 3:
        return centered
    x = np.arange(len(values)) - (len(values) - 1) / 2
    straight: Floats = centered - x * float(x @ centered) / float(x @ x)
    return straight
