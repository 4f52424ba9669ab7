"""Whether the time of a step stays what it is: settled or not, and steps of the rate."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from validator.diagnose.contention import ALONE, explained
from validator.diagnose.rule import Diagnosis, RunFacts, Severity, evidence, rule
from validator.model.catalogue import METRICS
from validator.model.result import Floats, Series, Steps
from validator.model.verdict import Evidence
from validator.stats.crowding import Stretch
from validator.stats.rows import RATES
from validator.stats.spacing import covered_steps
from validator.stats.window import MIN_ROWS, Level
from validator.text import format_change, format_number, format_percent

_SHIFT_WARNING, _SHIFT_INFO = 0.05, 0.03
_GAIN_WARNING = 0.25
"""Gain of the rate that is worth a warning in a run that the validator did not start: what came before was slow."""

_PASSING = 0.2
"""Share of the rows on levels that do not last above which the rate drifts rather than steps."""

_REGULAR = 0.02
"""How far, as a share of their distance, changes that follow a schedule may be found from where they are."""

_FLAT = 0.4
"""Drift within a level, as a share of the smallest change between two, above which the changes are no schedule's."""

_PART = 0.1
"""Share of the change of a step's time that another time must have changed by to be named as a cause."""

_PER_S = {"token": "tok/s", "sample": "samples/s"}

_FOLLOWS = (
    *RATES,
    "samples_per_s",
    *(name for name, metric in METRICS.items() if metric.follows),
    "mfu",
    "tokens",
    "wall_s",
)
"""Beginnings of names of series that change with the rate, or with every step, and are no cause."""


class _Moved(NamedTuple):
    """What else changed at a step, in words, and the file that says so; a `setting` does not vary on either side."""

    text: str
    path: str
    setting: bool


@rule("rate-shift", "warning", of="run")
def rate_shift(run: RunFacts) -> Iterator[Diagnosis]:
    """The rate steps to another level and stays there: when, by how much, and what else moved at that step."""
    if not run.timed or run.window is None or _drifts(run):
        return
    levels = run.window.levels
    lasting = [] if run.planned else _shifts(run.levels)
    shifts = lasting or _shifts(levels)
    if not shifts:
        return
    change, before, after = max(shifts, key=lambda shift: abs(shift[0]))
    least_s = _PART * abs(after.mean - before.mean) if run.paced[1] == "step" else 0.0
    moved = _moved(run, (before.first_step, after.first_step, after.last_step), least_s=least_s)
    minimum = _SHIFT_WARNING if run.planned or change < 0 else _GAIN_WARNING
    severity: Severity = "warning" if abs(change) >= minimum and (lasting or run.planned) else "info"
    until = "" if after is levels[-1] else f" up to step {after.last_step}"
    more = f" It is the largest of {len(shifts)} such shifts." if len(shifts) > 1 else ""
    others = _others_between(run, before, after)
    yield Diagnosis(
        f"From step {after.first_step} on {_levels_text(before, after, run.paced[1])} by {format_change(change)} and "
        f"stays there{until}.{more}{'' if others and not moved else _cause(moved, levels, run)}{others}",
        severity=severity,
        because=[
            _means(levels, run),
            *(evidence(one.text, one.path, f"step {after.first_step}") for one in moved[:4]),
        ],
        lost=None if others or any(one.setting for one in moved) else _lost(run, shifts),
        next_step=ALONE
        if others
        else "Find what changed at that step, and judge the run by the level that a long run will have: repeat it "
        "for three times as many steps.",
    )


def _lost(run: RunFacts, shifts: Sequence[tuple[float, Level, Level]]) -> float | None:
    """The largest share of the time that a fall costs, of a longer run where it lasts to the end, else of this one.

    None where the rate only rises.
    """
    assert run.window is not None
    assert run.times is not None
    steps, times = run.times
    took = times * covered_steps(steps)
    lost = []
    for change, _, after in shifts:
        within = (steps >= after.first_step) & (steps <= after.last_step)
        stays = after is run.window.levels[-1]
        lost.append(-change if stays else -change * float(took[within].sum() / took.sum()))
    return max((one for one in lost if one > 0), default=None)


def _levels_text(before: Level, after: Level, unit: str) -> str:
    """The two levels in a sentence: times of a step, else rates."""
    if unit == "step":
        was, now = format_number(before.mean), format_number(after.mean)
        return f"a step takes {now} s instead of {was}: the rate changes"
    was, now = format_number(1 / before.mean), format_number(1 / after.mean)
    return f"the rate is {now} {_PER_S[unit]} instead of {was}: it changes"


def _means(levels: Sequence[Level], run: RunFacts) -> Evidence:
    series, unit = run.paced
    shown = " → ".join(format_number(one.mean if unit == "step" else 1 / one.mean) for one in levels)
    return evidence(
        f"means of the levels: {shown} {_PER_S.get(unit, 's')}", None if series is None else series.source.path
    )


def _others_between(run: RunFacts, before: Level, after: Level) -> str:
    """A sentence, after a space: other programs explain the slower of two levels. Empty where they do not."""
    spans = [(float(one.first_step), float(one.last_step)) for one in (before, after)]
    fast, slow = spans if after.mean > before.mean else reversed(spans)
    return explained(run, slow=slow, fast=fast)


def _shifts(levels: tuple[Level, ...]) -> list[tuple[float, Level, Level]]:
    """Change of the rate from each level to the next, where it is beyond both intervals; those two levels."""
    return [
        (before.mean / after.mean - 1, before, after)
        for before, after in pairwise(levels)
        if abs(before.mean / after.mean - 1) >= _SHIFT_INFO and (before.high < after.low or after.high < before.low)
    ]


def _moved(run: RunFacts, span: tuple[int, int, int], *, least_s: float) -> list[_Moved]:
    """What else changed between the stretch before the shift and the one after it.

    A time that changed by less than `least_s` seconds explains nothing.
    """
    first, at, last = span
    moved = []
    for name, series in run.result.series.items():
        known = name.startswith(_FOLLOWS) or name in run.evidence.derived
        if known or not np.isfinite(series.values).all():
            continue
        one = series.values[(series.steps >= first) & (series.steps < at)]
        other = series.values[(series.steps >= at) & (series.steps <= last)]
        if min(one.size, other.size) < 5:
            continue
        was, now = float(np.median(one)), float(np.median(other))
        spread = 1.4826 * max(float(np.median(np.abs(one - was))), float(np.median(np.abs(other - now))))
        minimum = max(4 * spread, 0.05 * abs(was), least_s / {"s": 1.0, "ms": 1e-3}.get(series.unit, np.inf))
        if abs(now - was) > minimum and _is_cause(series):
            text = f"{name} {format_number(was)} → {format_number(now)} {series.unit}".strip()
            sampled = name.startswith("telemetry.") or series.unit in ("s", "ms")  # a clock speed may not vary either
            moved.append(_Moved(text, series.source.path, setting=spread == 0 and not sampled))
    return moved


def _is_cause(series: Series) -> bool:
    """Whether a series may explain a rate: one that rises or falls at every step only counts steps."""
    strides = np.diff(series.values)
    return not (strides.size > 20 and ((strides > 0).all() or (strides < 0).all()))


def _cause(moved: list[_Moved], levels: tuple[Level, ...], run: RunFacts) -> str:
    """What moved at the same step; else what the shape of the rate suggests."""
    if moved:
        return f" At the same step: {'; '.join(one.text for one in moved[:4])}."
    watched = any(name.startswith("telemetry.gpu") for name in run.result.series)
    falls = [i for i in range(1, len(levels)) if levels[i].mean > levels[i - 1].mean * (1 + _SHIFT_INFO)]
    recovers = [i for i in falls if i + 1 < len(levels) and levels[i + 1].mean < levels[i].mean]
    if recovers and not watched:
        return " It falls at once and recovers slowly, as hardware does that throttles; no clocks were recorded."
    return "" if watched else " No clocks, temperatures or loader times were recorded during the run."


@rule("no-steady-state", "warning", of="run")
def no_steady_state(run: RunFacts) -> Iterator[Diagnosis]:
    """The rate never settles, so no mean of it predicts a long run."""
    if not run.timed or run.times is None or run.window is None:
        return
    series = run.series("toks_per_s") or run.paced[0]
    assert series is not None  # times came from it
    late = series.values[(series.steps > run.spec.warmup_steps) & np.isfinite(series.values) & (series.values > 0)]
    few = late.size < MIN_ROWS
    if few:
        late = series.values[np.isfinite(series.values) & (series.values > 0)]
        if late.size < 3 or late.size >= MIN_ROWS or (late.max() < 1.5 * late[-1] and late.max() < 1.5 * late[0]):
            return
    elif not _drifts(run):
        return
    shown = " → ".join(f"{v:,.0f}" if v >= 10 else f"{v:.3g}" for v in _thirds(late))
    stride = None if few or run.planned else _schedule(run)
    slow, fast = _slowest_and_fastest(run.times)
    others = explained(run, slow=slow, fast=fast)
    yield Diagnosis(
        f"{series.name} never settles: {shown} {series.unit}.{'' if few else _change_text(run)} No mean of it "
        f"represents a longer run.{others}"
        if stride is None
        else f"{series.name} changes every {stride} steps or so and is constant in between, as by a schedule or with "
        f"each pass over the data: {' → '.join(format_number(one.mean) for one in run.levels)}. A mean holds for this "
        "length of run only.",
        severity="info" if not run.planned and (few or stride is not None or _gains(run)) else "warning",
        confidence="low" if few else "high",
        because=[evidence(run.window.note, series.source.path, f"steps {series.steps[0]}–{series.steps[-1]}")],
        lost=None if few or others or _change(run) <= 0 else 1 - 1 / (1 + _change(run)),
        next_step=ALONE
        if others
        else "Run at least three times as many steps; if it still drifts, look at clocks, temperature, the data "
        "loader and memory over time.",
    )


def _slowest_and_fastest(times: tuple[Steps, Floats]) -> tuple[Stretch, Stretch]:
    """Of thirds of the rows, or of each of a few, the steps of the slowest and of the fastest."""
    steps, each = times
    ends = np.array_split(np.arange(len(steps)), 3 if len(steps) > 4 else len(steps))
    means = [float(each[part].mean()) for part in ends]
    before = np.append(min(0, int(steps[0]) - 1), steps)
    slow, fast = (ends[int(place)] for place in (np.argmax(means), np.argmin(means)))
    return (before[slow[0]] + 1, steps[slow[-1]]), (before[fast[0]] + 1, steps[fast[-1]])


def _drifts(run: RunFacts) -> bool:
    """Whether the run ends far from where it began, by way of three levels or more or of a slow start that is too long
    to be left out. A single step between two lasting levels is a `rate-shift`, and so is one that comes back."""
    window = run.window
    if window is None or not window.levels:
        return False
    rows = sum(level.rows for level in window.levels)
    passing = rows - sum(level.rows for level in run.levels)
    several = len(run.levels) > 2 or (len(window.levels) > 2 and passing > _PASSING * rows)
    return (several or window.settling) and abs(_change(run)) >= _SHIFT_WARNING


def _change(run: RunFacts) -> float:
    """How much longer a step takes in the last tenth of the window than in the first, pauses pulled in."""
    assert run.times is not None
    assert run.window is not None
    own = run.times[1][run.window.contains(run.times[0])]
    part = max(1, len(own) // 10)
    first, last = (np.minimum(some, 1.5 * np.median(some)).mean() for some in (own[:part], own[-part:]))
    return float(last / first) - 1


def _change_text(run: RunFacts) -> str:
    change = _change(run)
    way = "more" if change > 0 else "less"
    return f" In its last tenth a step takes {format_percent(abs(change))} {way} than in its first."


def _gains(run: RunFacts) -> bool:
    """Whether the run becomes a little faster to the end, which is no loss."""
    return 1 / (1 + _GAIN_WARNING) - 1 < _change(run) < 0


def _schedule(run: RunFacts) -> int | None:
    """Steps from one change of the rate to the next, where all changes lie equally far apart and nothing drifts in
    between: which neither a rising temperature nor a leak does."""
    changes = np.array([level.first_step for level in run.levels[1:]])
    if changes.size < 2 or run.times is None:
        return None
    stride = float(np.median(np.diff(changes)))
    near = np.maximum(3.0, _REGULAR * stride)
    apart = np.diff(changes if changes.size > 2 else np.concatenate(([1], changes)))
    regular = bool((np.abs(apart - stride) <= near).all())
    jumps = [abs(after.mean - before.mean) for before, after in pairwise(run.levels)]
    if not regular or any(_drift(run, level) > _FLAT * min(jumps) for level in run.levels[1:-1]):
        return None
    return round(stride)


def _drift(run: RunFacts, level: Level) -> float:
    """How far the last third of a level lies from its first third, pauses left out."""
    assert run.times is not None
    steps, times = run.times
    own = times[(steps >= level.first_step) & (steps <= level.last_step)]
    own = np.minimum(own, 1.5 * float(np.median(own)))
    first, _, last = np.array_split(own, 3)
    return abs(float(last.mean()) - float(first.mean()))


def _thirds(values: Floats) -> list[float]:
    if values.size <= 4:
        return [float(v) for v in values]
    return [float(part.mean()) for part in np.array_split(values, 3)]
