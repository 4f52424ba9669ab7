"""Whether single steps take longer than the others: pauses with a period or without, and what they cost."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from validator.diagnose.contention import crowding
from validator.diagnose.rule import Diagnosis, RunFacts, as_number, evidence, rule
from validator.diagnose.turns import MIN_TURNS, SLOW, Turns, turns_of_even_rows, turns_of_uneven_rows
from validator.ingest.clock import ARRIVALS_FILE
from validator.model.result import Floats, Series, Steps
from validator.stats.clock import STAMP_S, STAMP_SHARE, clock_for, step_ends, timestamps
from validator.stats.spacing import covered_steps, even_rows, joined
from validator.stats.window import MIN_ROWS, Level
from validator.text import format_duration, format_number, format_percent

_SLOW_NOISE = 6.0
"""A slow step takes SLOW times the median, and so many robust standard deviations more."""

_MIN_STALLS = 3
_LOST_WARNING, _LOST_INFO = 0.01, 0.002
"""Share of the time that slow steps with a period cost; without one a warning takes half as much again."""

_SET_PERIOD = 10
"""Trainers are set to pause every so many steps, or a multiple of that; a fault rarely keeps such a period."""

_LONG_GAP = 5.0
"""Times the usual pause that one must last to be named by itself."""

_LOST_DECLARED, _GROWN, _FEW_PAUSES = 0.05, 1.5, 6
"""Share of the time that pauses that are declared take at least to be named for their growth, times as long as the
first that the last ones take then, and how many it takes to see that."""

_MOST_OF_TIME = 0.5
"""Share of the time from which pauses that are meant are named as well."""

_MIN_STALL_S = 0.02
"""Seconds that a pause without a period, or one that came a few times only, must take."""

_EVEN = 0.8
"""Share of the gaps between slow steps that must be one period, or a multiple of it."""

_SLACKS = 5
"""How many times as long as the uncertainty of where a pause was its period must be to be seen."""

_MOST, _MIN_REGULAR = 0.6, 5
"""Share, and number, of the slow steps that must keep a period for the others to be taken for other pauses."""

_CADENCE = re.compile(r"(val|eval|save|ckpt|checkpoint|sample|snapshot|profile)\w*")  # val_every, save_interval
_EVERY = re.compile(r"every|interval|freq|steps|period")


@dataclass(frozen=True)
class _Stalls:
    """Slow rows `at [k]`, the seconds that each took beyond the median, and their share of the time; `since` is the
    first step that was looked at, and a pause may have been up to `slack` steps before the row that holds it. `between`
    is given where rows of many steps show which periods there may be, the least and the largest."""

    at: Steps
    extra_s: Floats
    lost: float
    since: int
    slack: int = 0
    between: tuple[int, int] | None = None

    def only(self, chosen: npt.NDArray[np.bool_]) -> _Stalls:
        """Those of the rows that are `chosen [k]`."""
        extra_s = self.extra_s[chosen]
        return replace(
            self, at=self.at[chosen], extra_s=extra_s, lost=self.lost * float(extra_s.sum() / self.extra_s.sum())
        )


@rule("periodic-stall", "warning", of="run")
def periodic_stall(run: RunFacts) -> Iterator[Diagnosis]:
    """Slow steps that come again and again, with a period or without: what they cost, and how often they come."""
    if not run.timed or run.failed:
        return
    for steps, times, covered, least, path, what in _step_clocks(run):
        if len(steps) < 2 * MIN_TURNS:
            continue
        usual = f"median {_timed_unit(run, path)} {format_number(float(np.median(times / covered)))} s"
        stalls = _taking_turns(turns_of_uneven_rows(steps, times, covered), steps, times, least)
        if stalls is None:
            if (groups := even_rows(covered)) is not None:
                last = np.append(groups[1:], len(steps)) - 1
                steps, least = steps[last], least[last]
                times, covered = joined(times, groups), joined(covered, groups)
            stalls = _stalls(steps, times, covered, least, run.levels)
        for some in () if stalls is None else _by_rhythm(stalls, steps):
            reach = int(np.quantile(covered[some.at], 0.9)) - 1
            cause = _stall_diagnosis(run, some, steps[some.at], path, what, reach=reach)
            if cause is not None:
                shown = _listed(steps[some.at])
                yield replace(cause, because=[evidence(f"{usual}, slow at {shown}", path)])
                return


def _by_rhythm(stalls: _Stalls, steps: Steps) -> Iterator[_Stalls]:
    """The stalls; or, where some keep a period and others none, first those and then these."""
    regular = None if stalls.between is not None else _regular(stalls, steps[stalls.at])
    if regular is None:
        yield stalls
        return
    yield stalls.only(regular)
    if (~regular).sum() >= _MIN_STALLS:
        yield stalls.only(~regular)


def _stall_diagnosis(
    run: RunFacts, stalls: _Stalls, at: Steps, path: str | None, what: str, *, reach: int
) -> Diagnosis | None:
    """What stalls at the steps `at [k]`, or up to `reach` steps before, are; None where they are declared, cost
    nothing, or are a busy machine's."""
    period = _roundest(*stalls.between) if stalls.between else _period(at, stalls.since, stalls.slack)
    # Of two stamps side by side one may be late by the time between stamps, and the next one not.
    shortest_s = 2 * STAMP_S if _by_stamps(run) else _MIN_STALL_S
    hiccups = path is None or float(np.median(stalls.extra_s)) < shortest_s
    if period is None and (hiccups or stalls.lost < _LOST_WARNING / 2):
        return None  # a busy machine delays a step, or the writing of a record, by milliseconds now and then
    if len(at) < _MIN_REGULAR and float(np.median(stalls.extra_s)) < _MIN_STALL_S:
        return None  # of a few such delays, three or four keep a period by chance in 1 to 3 runs of 100
    least, largest = stalls.between or (period or 0, period or 0)
    if stalls.lost < _LOST_INFO:
        return None
    declared = _is_declared(run, at, range(least, largest + 1))
    growth = _growth(stalls.extra_s)
    grows = growth >= _GROWN and stalls.lost >= _LOST_DECLARED
    if declared and not grows and stalls.lost < _MOST_OF_TIME:
        return None
    about = "about " if stalls.slack or least != largest else ""
    rhythm = f"{about}every {period} steps" if period is not None else f"{len(at)} times without a period"
    longest, gap = _longest(stalls, at)
    meant = _reason_if_meant(run, at, period, reach=reach)
    if declared and grows:
        meant = f" They are declared, and grow: the last ones take {growth:.2g} times as long as the first."
    elif declared:
        meant = " They are declared, or those of a validation, and take more of the time than the training."
    minimum = _LOST_WARNING if period is not None else 1.5 * _LOST_WARNING
    loud = declared or gap >= minimum or (stalls.lost >= minimum and not meant)
    unit, more = _timed_unit(run, path), f"{float(np.median(stalls.extra_s)):.3g} s more"
    return Diagnosis(
        f"A {unit} takes {more} {rhythm} (steps {_listed(at)}): "
        f"{format_percent(stalls.lost)} of the time{what}.{longest}{meant}",
        severity="warning" if loud else "info",
        confidence="high" if period is not None else "medium",
        # Slow steps at random are what other programs make, and `busy-host` says that.
        lost=None if period is None and crowding(run) else stalls.lost,
        next_step="Look at what runs at these steps (a validation, a checkpoint, a flush, garbage collection, a "
        "loader that fills its buffer). A pause that is meant is declared: pause_every in the phase.",
    )


def _by_stamps(run: RunFacts) -> bool:
    """Whether the time of a step is that between the stamps of two lines."""
    times = run.series("step_time_s")
    if times is None:
        return False
    return times.source.path.endswith(ARRIVALS_FILE) or (times.clock is not None and times.clock.by_arrival)


def _growth(extra_s: Floats) -> float:
    """Times as long that the last pauses take as the first ones, by a third of them each; 1 for fewer than six."""
    third = len(extra_s) // 3
    if third < _FEW_PAUSES // 3:
        return 1.0
    return float(np.median(extra_s[-third:]) / np.median(extra_s[:third]))


def _listed(at: Steps) -> str:
    return ", ".join(map(str, at[:8])) + (" …" if len(at) > 8 else "")


def _step_clocks(run: RunFacts) -> Iterator[tuple[Steps, Floats, Floats, Floats, str | None, str]]:
    """The time of each row, the steps that it covers, and the shortest pause that it can show, as the trainer reports
    it, then by the heartbeat's own clock, which holds every pause.

    The validator takes its stamps of arrival some time apart: what comes in between looks as late as the next one.
    """
    warmup = run.spec.warmup_steps
    if run.times is not None:
        steps, times = run.times
        late = steps > max(warmup, int(steps[0]))
        timed = run.paced[1] == "step"
        seconds = times if timed else times * (_seconds_per_unit(run, steps, times) or 1.0)
        covered, source = covered_steps(steps), run.paced[0].source.path if run.paced[0] else None
        least = _stamp_spacing(np.cumsum(seconds * covered)) if timed and _by_stamps(run) else np.zeros(len(steps))
        yield steps[late], (seconds * covered)[late], covered[late], least[late], source, ""
    steps, seconds = step_ends(run.result)
    if len(steps) > 2 and not run.irregular("clock-jump") and not run.evidence.resumed_s:
        late = steps[1:] > warmup
        gaps = _without_delays(np.diff(seconds)[late])
        covered = np.diff(steps)[late].astype(np.float64)
        yield steps[1:][late], gaps, covered, np.zeros(len(gaps)), None, ", between the heartbeats of two steps"
    clock = clock_for(run.result)
    if clock is not None and not run.evidence.resumed_s:  # what a printed time leaves out
        late = clock.steps[1:] > warmup
        gaps = _without_delays(np.diff(clock.seconds)[late])
        covered = np.diff(clock.steps)[late].astype(np.float64)
        least = _stamp_spacing(clock.seconds)[1:][late]
        yield clock.steps[1:][late], gaps, covered, least, None, ", between the arrival of two lines"


def _stamp_spacing(seconds: Floats) -> Floats:
    """Time between two stamps of arrival `seconds [n]` after the start of an attempt."""
    return np.maximum(STAMP_S, STAMP_SHARE * seconds)


def _timed_unit(run: RunFacts, path: str | None) -> str:
    """What the times of a clock are of: of a token where they are a rate's and nothing says how many a step has."""
    if path is None or run.times is None or run.paced[1] == "step":
        return "step"
    return "step" if _seconds_per_unit(run, *run.times) is not None else run.paced[1]


def _seconds_per_unit(run: RunFacts, steps: Steps, times: Floats) -> float | None:
    """Seconds of a step over its time per token, by a clock or by the tokens of a step; None where neither is known."""
    series, unit = run.paced
    own = clock_for(run.result, series.source.path if series is not None else "")
    for clock in (*((own,) if own is not None else ()), *timestamps(run.result)):
        if clock.steps[-1] > clock.steps[0] and clock.seconds[-1] > clock.seconds[0]:
            covered = covered_steps(steps)
            mean = float((times * covered).sum() / covered.sum())
            return float((clock.seconds[-1] - clock.seconds[0]) / (clock.steps[-1] - clock.steps[0])) / mean
    return run.tokens_per_step if unit == "token" else None


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


def _reason_if_meant(run: RunFacts, at: Steps, period: int | None, *, reach: int = 0) -> str:
    """As text, why these pauses are the trainer's own: the log names them, or they keep a period that looks set. A
    pause may have been up to `reach` steps before the row that holds it.

    A period explains nothing in a run of a runbook, which can declare it.
    """
    places = run.evidence.places
    if places is not None:
        usual = np.setdiff1d(places.steps, at)
        # The stamps of arrival leave steps out: what is slow in one looks slow in the next one that has a stamp.
        behind = np.unique(np.add.outer(np.arange(reach + 2), places.pauses))
        for named in (places.pauses, behind):
            here, elsewhere = (np.isin(some, named).mean() if some.size else 0.0 for some in (at, usual))
            if here >= _EVEN and elsewhere <= _EVEN / 2:
                return " The log names a validation, a checkpoint or the end of an epoch there."
        if at.size and np.isin(at, [first for _, first in places.epochs]).mean() >= _EVEN:
            return " They are where one epoch ends and the next begins."
    if _beside_evaluations(run, at):
        return " The trainer writes what a validation found there."
    if period is not None and period % _SET_PERIOD == 0 and not run.planned:
        return " A period like that is set: by a validation, a checkpoint or a part of the update."
    return ""


def _beside_evaluations(run: RunFacts, at: Steps) -> bool:
    """Whether pauses `at [k]` lie in the rows that a validation falls into, or up to two rows behind it, and few other
    rows do."""
    evaluated, loss = _recorded(run), run.series("loss")
    if evaluated is None or loss is None or len(loss.steps) < 2 or not len(evaluated.steps):
        return False
    rows = loss.steps[1:]
    within = np.searchsorted(evaluated.steps, rows) > np.searchsorted(evaluated.steps, loss.steps[:-1])
    slow = np.isin(rows, at)
    if slow.any() and within[slow].mean() >= _EVEN and within[~slow].mean() <= _EVEN / 2:
        return True
    near = 2 * float(np.median(np.diff(loss.steps)))

    def share(of: Steps) -> float:
        behind = np.searchsorted(evaluated.steps, of, side="right") - 1
        return float(((behind >= 0) & (of - evaluated.steps[behind] <= near)).mean())

    return share(at) >= _EVEN and share(loss.steps) <= _EVEN / 2


def _stalls(
    steps: Steps, times: Floats, covered: Floats, least: Floats, levels: tuple[Level, ...] = ()
) -> _Stalls | None:
    """The rows that are slow for the steps that they cover, where there are three or more and they are few.

    On each lasting level its own median counts. `least` are the shortest pauses that rows can show.
    """
    turns = _taking_turns(turns_of_even_rows(steps, times, covered), steps, times, least)
    if turns is not None:
        return turns
    each = times / covered
    if len(times) < 2 * MIN_ROWS:
        return None
    usual, spread = covered * np.median(each), np.empty(len(times))
    spread.fill(1.4826 * float(np.median(np.abs(times - usual))))
    for level in levels if len(levels) > 1 else ():
        own = (steps >= level.first_step) & (steps <= level.last_step)
        if own.sum() >= MIN_ROWS:
            usual[own] = covered[own] * np.median(each[own])
            spread[own] = 1.4826 * np.median(np.abs(times[own] - usual[own]))
    at = np.flatnonzero(times > np.maximum(SLOW * usual, usual + np.maximum(_SLOW_NOISE * spread, least)))
    if not _MIN_STALLS <= len(at) <= len(times) // 2 or usual.min() <= 0:
        return None
    if _adjoin(at):  # a stretch of slow steps is a level of its own, and long pauses may stand out of it
        extra = times[at] - usual[at]
        at = at[extra >= extra.max() / 2]
        if len(at) < _MIN_STALLS or _adjoin(at):
            return None
    extra = times[at] - usual[at]
    lost = float(extra.sum() / times.sum())
    whole = _Stalls(at, extra, lost, int(steps[0]))
    even = (covered == np.median(covered)).mean() >= _EVEN  # but for the last row, or those at the ends of epochs
    if even and (np.median(covered) == 1 or _period(steps[at], whole.since, 0) is not None):
        return whole
    first = np.flatnonzero(np.diff(at, prepend=-2) > 1)  # a pause across two rows is one
    if len(first) < _MIN_STALLS:
        return None
    at, extra, slack = at[first], np.add.reduceat(extra, first), int(np.quantile(covered[at], 0.9))
    return replace(whole, at=at, extra_s=extra, slack=slack)


def _taking_turns(turns: Turns | None, steps: Steps, times: Floats, least: Floats) -> _Stalls | None:
    """The rows with pauses that take turns with rows without, where most of the pauses can be seen."""
    if turns is None or (turns.extra_s > least[turns.at]).mean() <= 1 / 2:
        return None
    lost = float(turns.extra_s.sum() / times.sum())
    return _Stalls(turns.at, turns.extra_s, lost, int(steps[0]), between=turns.between)


def _roundest(least: int, largest: int) -> int:
    """The number of these that a setting most likely has."""
    for unit in (1000, 500, 100, 50, 25, 10, 5):
        if (found := largest // unit * unit) >= least:
            return found
    return (least + largest) // 2


def _adjoin(at: npt.NDArray[np.intp]) -> bool:
    """Whether most of these rows follow one another."""
    return bool((np.diff(at) == 1).sum() > len(at) // 2)


def _regular(stalls: _Stalls, at: Steps) -> npt.NDArray[np.bool_] | None:
    """Which slow steps `at [k]` keep a period that not all of them keep: most of them, else the long ones alone."""
    if _period(at, stalls.since, stalls.slack) is not None:
        return None
    long = stalls.extra_s >= stalls.extra_s.max() / 2
    share = float(stalls.extra_s[long].sum() / stalls.extra_s.sum())
    alone = long.sum() >= _MIN_STALLS and share >= _EVEN and _period(at[long], stalls.since, stalls.slack) is not None
    most = _most_regular(at)
    from_start = _from_start(at[long], stalls.since, stalls.slack) is not None
    return most if most is not None or not (alone or from_start) else long


def _period(steps: Steps, since: int, slack: int) -> int | None:
    """Steps from one slow step to the next, where most gaps are that or a multiple of it, give or take `slack`."""
    gaps = np.diff(steps)
    period = int(np.median(gaps)) if len(gaps) else 0
    if period >= max(2, _SLACKS * slack) and len(gaps) >= 2:
        times = np.maximum(1, np.rint(gaps / period))
        even = float((np.abs(gaps - period * times) <= slack).mean()) >= _EVEN
        if even and len(gaps) >= _MOST * times.sum():  # what misses most of its turns keeps a period by chance
            return period if not slack else round(float(gaps.sum() / times.sum()))
    return _from_start(steps, since, slack)


def _from_start(steps: Steps, since: int, slack: int) -> int | None:
    """Steps from one slow step to the next, where all stand at its multiples, counted from 0 or 1, and none is missing
    after the step `since`: a validation every 250 steps in a run of 600, of which two say enough where the steps are
    known exactly."""
    if len(steps) < (3 if slack else 2):
        return None
    gaps = np.diff(steps)
    period, first = int(gaps[0]), int(steps[0])
    even = bool((np.abs(gaps - period) <= slack).all()) and period >= max(_SET_PERIOD, _SLACKS * slack)
    whole = even and (first + slack) % period <= 1 + 2 * slack
    return period if whole and first - period < since + slack else None


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


def _recorded(run: RunFacts) -> Series | None:
    """What a validation found: its loss, or else whatever is written of it."""
    series = run.result.series
    return series.get("val.loss") or next((series[name] for name in series if name.startswith(("val.", "val_"))), None)


def _is_declared(run: RunFacts, steps: Steps, periods: Collection[int]) -> bool:
    """Whether the pauses are those of a validation or a checkpoint, by val.csv or by a setting with a cadence."""
    recorded = _recorded(run)
    # A step's own row may hold the pause before it or after it.
    beside = [] if recorded is None else [recorded.steps - 1, recorded.steps, recorded.steps + 1]
    if recorded is not None and np.isin(steps, beside).mean() >= _EVEN:
        return True
    settings = {**run.requested, **run.effective}
    cadences = [
        as_number(value) for name, value in settings.items() if _CADENCE.match(name.lower()) and _EVERY.search(name)
    ]
    cadences.append(run.spec.pause_every)
    asked = [int(one) for one in cadences if one is not None and one >= 1]
    return any(period and period % one == 0 for period in periods for one in asked)
