"""Whether the time of a step stays what it is: settled or not, pauses that come again, and steps of the rate."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from validator.diagnose.rule import Diagnosis, RunFacts, Severity, as_number, evidence, rule
from validator.model.catalogue import METRICS
from validator.model.result import Floats, Series, Steps
from validator.stats.clock import clock_for, step_ends, timestamps
from validator.stats.rows import RATES
from validator.stats.window import MIN_ROWS, Level, covered_steps
from validator.text import format_change, format_duration, format_number, format_percent

_SLOW = 1.15
"""A slow step takes this many times the median, and 6 robust standard deviations more."""

_SLOW_NOISE = 6.0
_MIN_STALLS = 3
_LOST_WARNING, _LOST_INFO = 0.01, 0.002
"""Share of the time that slow steps with a period cost; without one a warning takes half as much again."""

_SET_PERIOD = 10
"""Trainers are set to pause every so many steps, or a multiple of that; a fault rarely keeps such a period."""

_LONG_GAP = 5.0
"""Times the usual pause that one must last to be named by itself."""

_MIN_STALL_S = 0.02
"""Seconds that a pause without a period must take."""

_TIMES = ("step_time_s", "toks_per_s")
_EVEN = 0.8
"""Share of the gaps between slow steps that must be one period, or a multiple of it."""

_MOST, _MIN_REGULAR = 0.6, 5
"""Share, and number, of the slow steps that must keep a period for the others to be taken for other pauses."""

_SHIFT_WARNING, _SHIFT_INFO = 0.05, 0.03
_GAIN_WARNING = 0.25
"""Gain of the rate that is worth a warning in a run that the validator did not start: what came before was slow."""

_PASSING = 0.2
"""Share of the rows on levels that do not last above which the rate drifts rather than steps."""

_REGULAR = 0.02
"""How far, as a share of their distance, changes that follow a schedule may be found from where they are."""

_FLAT = 0.4
"""Drift within a level, as a share of the smallest change between two, above which the changes are no schedule's."""

_CADENCE = re.compile(r"(val|eval|save|ckpt|checkpoint|sample|snapshot|profile)\w*")  # val_every, save_interval
_EVERY = re.compile(r"every|interval|freq|steps|period")

_PART = 0.1
"""Share of the change of a step's time that another time must have changed by to be named as a cause."""

_FOLLOWS = (*RATES, *(name for name, metric in METRICS.items() if metric.follows), "mfu", "tokens", "wall_s")
"""Beginnings of names of series that change with the rate, or with every step, and are no cause."""


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
    timed = run.series("step_time_s") is not None
    least_s = _PART * abs(after.mean - before.mean) if timed else 0.0
    moved = _moved(run, (before.first_step, after.first_step, after.last_step), least_s=least_s)
    minimum = _SHIFT_WARNING if run.planned or change < 0 else _GAIN_WARNING
    severity: Severity = "warning" if abs(change) >= minimum and (lasting or run.planned) else "info"
    until = "" if after is levels[-1] else f" up to step {after.last_step}"
    more = f" It is the largest of {len(shifts)} such shifts." if len(shifts) > 1 else ""
    shown = " → ".join(format_number(one.mean) for one in levels)
    yield Diagnosis(
        f"From step {after.first_step} on a step takes {format_number(after.mean)} {'s' if timed else 's a token'} "
        f"instead of {format_number(before.mean)}: the rate changes by {format_change(change)} and stays there{until}."
        f"{more}{_cause(moved, levels, run)}",
        severity=severity,
        because=[
            evidence(f"means of the levels: {shown}", run.source("step_time_s")),
            *(evidence(text, path, f"step {after.first_step}") for text, path in moved[:4]),
        ],
        next_step="Find what changed at that step, and judge the run by the level that a long run will have: repeat it "
        "for three times as many steps.",
    )


def _shifts(levels: tuple[Level, ...]) -> list[tuple[float, Level, Level]]:
    """Change of the rate from each level to the next, where it is beyond both intervals; those two levels."""
    return [
        (before.mean / after.mean - 1, before, after)
        for before, after in pairwise(levels)
        if abs(before.mean / after.mean - 1) >= _SHIFT_INFO and (before.high < after.low or after.high < before.low)
    ]


def _moved(run: RunFacts, span: tuple[int, int, int], *, least_s: float) -> list[tuple[str, str]]:
    """What else changed between the stretch before the shift and the one after it, and the file that says so.

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
            moved.append(
                (f"{name} {format_number(was)} → {format_number(now)} {series.unit}".strip(), series.source.path)
            )
    return moved


def _is_cause(series: Series) -> bool:
    """Whether a series may explain a rate: one that rises or falls at every step only counts steps."""
    strides = np.diff(series.values)
    return not (strides.size > 20 and ((strides > 0).all() or (strides < 0).all()))


def _cause(moved: list[tuple[str, str]], levels: tuple[Level, ...], run: RunFacts) -> str:
    """What moved at the same step; else what the shape of the rate suggests."""
    if moved:
        return f" At the same step: {'; '.join(text for text, _ in moved[:4])}."
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
    series = run.series("toks_per_s") or run.series("step_time_s")
    assert series is not None  # times came from one of them
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
    yield Diagnosis(
        f"{series.name} never settles: {shown} {series.unit}.{'' if few else _change_text(run)} No mean of it "
        "represents a longer run."
        if stride is None
        else f"{series.name} changes every {stride} steps or so and is constant in between, as by a schedule or with "
        f"each pass over the data: {' → '.join(format_number(one.mean) for one in run.levels)}. A mean holds for this "
        "length of run only.",
        severity="info" if not run.planned and (few or stride is not None or _gains(run)) else "warning",
        confidence="low" if few else "high",
        because=[evidence(run.window.note, series.source.path, f"steps {series.steps[0]}–{series.steps[-1]}")],
        next_step="Run at least three times as many steps; if it still drifts, look at clocks, temperature, the data "
        "loader and memory over time.",
    )


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


@dataclass(frozen=True)
class _Stalls:
    """Slow rows `at [k]`, the seconds that each took beyond the median, and their share of the time."""

    at: Steps
    extra_s: Floats
    lost: float

    def only(self, chosen: npt.NDArray[np.bool_]) -> _Stalls:
        """Those of the rows that are `chosen [k]`."""
        extra_s = self.extra_s[chosen]
        return _Stalls(self.at[chosen], extra_s, self.lost * float(extra_s.sum() / self.extra_s.sum()))


@rule("periodic-stall", "warning", of="run")
def periodic_stall(run: RunFacts) -> Iterator[Diagnosis]:
    """Slow steps that come again and again, with a period or without: what they cost, and how often they come."""
    if not run.timed or run.failed:
        return
    for steps, times, path, what in _step_clocks(run):
        stalls = _stalls(steps, times, run.levels)
        for some in () if stalls is None else _by_rhythm(stalls, steps):
            cause = _stall_diagnosis(run, some, steps[some.at], path, what)
            if cause is not None:
                usual = f"median step {format_number(float(np.median(times)))} s"
                shown = _listed(steps[some.at])
                yield replace(cause, because=[evidence(f"{usual}, slow at {shown}", path)])
                return


def _by_rhythm(stalls: _Stalls, steps: Steps) -> Iterator[_Stalls]:
    """The stalls; or, where most keep a period and others none, first those and then these."""
    at = steps[stalls.at]
    regular = None if _period(at) is not None else _most_regular(at)
    if regular is None:
        yield stalls
        return
    yield stalls.only(regular)
    if (~regular).sum() >= _MIN_STALLS:
        yield stalls.only(~regular)


def _stall_diagnosis(run: RunFacts, stalls: _Stalls, at: Steps, path: str | None, what: str) -> Diagnosis | None:
    """What stalls at the steps `at [k]` are; None where they are declared, cost nothing, or are a busy machine's."""
    period = _period(at)
    hiccups = path is None or float(np.median(stalls.extra_s)) < _MIN_STALL_S
    if period is None and (hiccups or stalls.lost < _LOST_WARNING / 2):
        return None  # a busy machine delays a step, or the writing of a record, by milliseconds now and then
    if stalls.lost < _LOST_INFO or _is_declared(run, at, period):
        return None
    rhythm = f"every {period} steps" if period is not None else f"{len(at)} times without a period"
    longest, gap = _longest(stalls, at)
    meant = _reason_if_meant(run, at, period)
    minimum = _LOST_WARNING if period is not None else 1.5 * _LOST_WARNING
    loud = gap >= minimum or (stalls.lost >= minimum and not meant)
    return Diagnosis(
        f"A step takes {float(np.median(stalls.extra_s)):.3g} s more {rhythm} (steps {_listed(at)}): "
        f"{format_percent(stalls.lost)} of the time{what}.{longest}{meant}",
        severity="warning" if loud else "info",
        confidence="high" if period is not None else "medium",
        next_step="Look at what runs at these steps (a validation, a checkpoint, a flush, garbage collection, a "
        "loader that fills its buffer). A pause that is meant is declared: pause_every in the phase.",
    )


def _listed(at: Steps) -> str:
    return ", ".join(map(str, at[:8])) + (" …" if len(at) > 8 else "")


def _step_clocks(run: RunFacts) -> Iterator[tuple[Steps, Floats, str | None, str]]:
    """Time per step as the trainer reports it, then by the heartbeat's own clock, which holds every pause."""
    warmup = run.spec.warmup_steps
    if run.times is not None:
        steps, times = run.times
        late = steps > max(warmup, int(steps[0]))
        timed = run.series("step_time_s") is not None
        seconds = times if timed else times * _seconds_per_unit(run, steps, times)
        yield steps[late], seconds[late] * covered_steps(steps)[late], run.source(_TIMES[not timed]), ""
    steps, seconds = step_ends(run.result)
    if len(steps) > 2 and not run.irregular("clock-jump") and not run.evidence.resumed_s:
        late = steps[1:] > warmup
        gaps = _without_delays(np.diff(seconds)[late])
        yield steps[1:][late], gaps, None, ", between the heartbeats of two steps"


def _seconds_per_unit(run: RunFacts, steps: Steps, times: Floats) -> float:
    """Seconds of a step over its time per token, by a clock or by the tokens of a step; 1 where neither is known."""
    own = clock_for(run.result, run.source("toks_per_s") or "")
    for clock in (*((own,) if own is not None else ()), *timestamps(run.result)):
        if clock.steps[-1] > clock.steps[0] and clock.seconds[-1] > clock.seconds[0]:
            covered = covered_steps(steps)
            mean = float((times * covered).sum() / covered.sum())
            return float((clock.seconds[-1] - clock.seconds[0]) / (clock.steps[-1] - clock.steps[0])) / mean
    return run.tokens_per_step or 1.0


def _without_delays(gaps: Floats) -> Floats:
    """Times between records `[n]`, less what the next two make up for: a record that was late, not a step."""
    if len(gaps) < 3:
        return gaps
    excess = gaps - float(np.median(gaps))
    noise = _SLOW_NOISE * 1.4826 * float(np.median(np.abs(excess)))
    made_up = np.where(-excess > noise, -excess, 0.0)
    following = np.concatenate([made_up[1:], [0.0]]) + np.concatenate([made_up[2:], [0.0, 0.0]])
    return np.asarray(gaps - np.minimum(np.maximum(excess, 0.0), following), dtype=np.float64)


def _longest(stalls: _Stalls, at: Steps) -> tuple[str, float]:
    """The longest pause as text, where it is no pause like the others, and its share of the time; else 0."""
    worst = int(np.argmax(stalls.extra_s))
    longest, usual = float(stalls.extra_s[worst]), float(np.median(stalls.extra_s))
    if longest < _LONG_GAP * usual:
        return "", 0.0
    share = stalls.lost * longest / float(stalls.extra_s.sum())
    took = f"{format_duration(longest)}, {format_percent(share)} of the time"
    return f" The longest alone, at step {at[worst]}, takes {took}.", share


def _reason_if_meant(run: RunFacts, at: Steps, period: int | None) -> str:
    """As text, why these pauses are the trainer's own: the log names them, or they keep a period that looks set.

    A period explains nothing in a run of a runbook, which can declare it.
    """
    places = run.evidence.places
    if places is not None:
        usual = np.setdiff1d(places.steps, at)
        here, elsewhere = (np.isin(some, places.pauses).mean() if some.size else 0.0 for some in (at, usual))
        if here >= _EVEN and elsewhere <= _EVEN / 2:
            return " The log names a validation, a checkpoint or the end of an epoch there."
    if period is not None and period % _SET_PERIOD == 0 and not run.planned:
        return " A period like that is set: by a validation, a checkpoint or a part of the update."
    return ""


def _stalls(steps: Steps, times: Floats, levels: tuple[Level, ...] = ()) -> _Stalls | None:
    """The slow rows, where there are three or more and they are few. On each lasting level its own median counts."""
    if len(times) < 4 * MIN_ROWS // 2 or len(np.unique(np.diff(steps))) > 2:
        return None
    usual, spread = np.full(len(times), np.median(times)), np.empty(len(times))
    spread.fill(1.4826 * float(np.median(np.abs(times - usual))))
    for level in levels if len(levels) > 1 else ():
        own = (steps >= level.first_step) & (steps <= level.last_step)
        if own.sum() >= MIN_ROWS:
            usual[own] = np.median(times[own])
            spread[own] = 1.4826 * np.median(np.abs(times[own] - usual[own]))
    at = np.flatnonzero(times > np.maximum(_SLOW * usual, usual + _SLOW_NOISE * spread))
    if not _MIN_STALLS <= len(at) <= len(times) // 2 or usual.min() <= 0:
        return None
    if (np.diff(at) == 1).sum() > len(at) // 2:
        return None  # a stretch of slow steps is a level of its own
    extra = times[at] - usual[at]
    return _Stalls(at, extra, float(extra.sum() / times.sum()))


def _period(steps: Steps) -> int | None:
    """Steps from one slow step to the next, where most gaps are that or a multiple of it."""
    gaps = np.diff(steps)
    period = int(np.median(gaps))
    if period < 2 or len(gaps) < 2:
        return None
    off = np.abs(gaps - period * np.maximum(1, np.rint(gaps / period)))
    return period if float((off == 0).mean()) >= _EVEN else None


def _most_regular(steps: Steps) -> npt.NDArray[np.bool_] | None:
    """Which slow steps `[k]` keep one period to the step, where most do; a busy machine or a validation adds others."""
    if len(steps) < _MIN_REGULAR:
        return None
    for period in np.unique(np.concatenate([steps[n:] - steps[:-n] for n in (1, 2, 3)]))[::-1]:
        for phase in np.unique(steps % period) if period > 1 else ():
            regular = np.asarray(steps % period == phase)
            own = steps[regular]
            expected = (own[-1] - own[0]) / period + 1
            if len(own) >= max(_MIN_REGULAR, _MOST * len(steps), _EVEN * expected):
                return regular
    return None


def _is_declared(run: RunFacts, steps: Steps, period: int | None) -> bool:
    """Whether the pauses are those of a validation or a checkpoint, by val.csv or by a setting with a cadence."""
    recorded = run.result.series.get("val.loss") or next(
        (one for name, one in run.result.series.items() if name.startswith(("val.", "val_"))), None
    )
    # A step's own row may hold the pause before it or after it.
    beside = [] if recorded is None else [recorded.steps - 1, recorded.steps, recorded.steps + 1]
    if recorded is not None and np.isin(steps, beside).mean() >= _EVEN:
        return True
    settings = {**run.requested, **run.effective}
    cadences = [
        as_number(value) for name, value in settings.items() if _CADENCE.match(name.lower()) and _EVERY.search(name)
    ]
    cadences.append(run.spec.pause_every)
    return period is not None and any(one is not None and one >= 1 and period % int(one) == 0 for one in cadences)
