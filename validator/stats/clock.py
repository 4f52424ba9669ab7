"""What the trainer claims of time, compared with a clock: the validator's own, else the timestamps in the rows.

The supervisor stamps each row on arrival. Gaps between stamps show how long steps took, whatever the trainer prints.
A single gap may hold a pause, so only the median over many stretches says that a claim is of another clock or unit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from validator.model.result import Floats, Result, Series, Steps
from validator.stats.spacing import covered_steps

FITS = (0.8, 1.25)
"""Median of claim over elapsed time outside of which a claim is not of this run."""

_MIN_STAMPS, _MIN_SPAN_S, _MIN_STRETCHES = 10, 5.0, 5
"""What a comparison needs to be exact. Of fewer stamps, or less time, it shows large factors alone."""

_DELAY_S, _FEW = 1.0, 0.5
"""How late a busy machine may stamp a row, and the room that fewer stamps than `_MIN_STAMPS` leave at least."""

STAMP_S, STAMP_SHARE = 0.05, 1e-4
"""Minimum time between two of the validator's stamps, and the same as a share of the attempt's duration: some 60,000
stamps in a day."""

_STRETCH = 5
"""Shortest stretch between stamps that is compared, in times of the distance at which they are taken."""

_AGREEING = 0.1
"""Share of the stretches that agree with a time per step from which the others hold pauses, which it may leave out."""

_OFF, _EXPLAINED = 0.08, 1 / 3
"""How far parts of a run differ in claimed over elapsed time from which a claim is looked at as a running mean, and the
share of that which may be left when it is read as one."""

_PARTS, _MIN_PART = 8, 8
"""Parts of a run in which a claim is compared by itself, and stretches that each has at least."""

_LASTING = 1 / 4
"""Share of the stretches, one behind the other, from which a part that takes longer than claimed is no pause."""

_RISES = 0.9
"""Share of the rows in which a time since the start rises; it falls where a trainer starts again."""

HEARTBEAT = "the heartbeat's clock"

_ELAPSED = ("wall_s", "elapsed_s", "wall_time_s", "elapsed", "wall_time", "timestamp", "time_unix_s", "unix_time_s")
"""Columns that hold the time since the start, or since 1970, in seconds."""


@dataclass(frozen=True, eq=False)
class Clock:
    """When each of some steps was over: `seconds [n]` at `steps [n]`, both rising. `own` is the validator's clock."""

    name: str
    steps: Steps
    seconds: Floats
    own: bool


@dataclass(frozen=True, eq=False)
class Claim:
    """Time that a series claims: `seconds [n]` for the steps of each row, up to `steps [n]`.

    `whole` says that it counts whatever ran in between, as a rate does; a time per step may leave out validation.
    `reading` is how the values were understood, empty where each is of one step.
    """

    name: str
    source: str
    steps: Steps
    seconds: Floats
    whole: bool
    reading: str = ""


@dataclass(frozen=True)
class SlowerPart:
    """A lasting part of a run whose steps `first_step` to `last_step` took longer than was claimed of them.

    `ratio` is the median over its stretches of claimed over elapsed time, below `FITS`; both times are in seconds.
    """

    first_step: int
    last_step: int
    claimed_s: float
    elapsed_s: float
    ratio: float


@dataclass(frozen=True)
class ClockComparison:
    """A claim compared with a clock: the median over `stretches` of claimed over elapsed time, and both in all.

    `agreeing` is the share of the stretches in which they agree, `lowest` and `highest` are the ratios over the eighths
    of them in which they are that. `room` is what the elapsed time may be off by, as a share of it: 0 where the
    comparison is exact. Where it is not, `lowest` and `highest` are the medians of the first and the second half.
    `left_out` is the longest part in which hardly a stretch agrees, though the run as a whole may.
    """

    ratio: float
    lowest: float
    highest: float
    agreeing: float
    claimed_s: float
    elapsed_s: float
    stamps: int
    first_step: int
    last_step: int
    room: float = 0.0
    left_out: SlowerPart | None = None

    def keeps(self) -> bool:
        """Whether each part of the run agrees, pauses included."""
        return FITS[0] <= self.lowest and self.highest <= FITS[1]

    def fits(self, *, whole: bool) -> bool:
        """Whether the claim can be of this run. A factor that is seen in a short time must hold in both its halves."""
        seen = (self.ratio, self.lowest, self.highest) if self.room else (self.ratio,)
        if max(seen) >= FITS[0] * (1 - self.room) and min(seen) <= FITS[1] * (1 + self.room):
            return True
        return not whole and self.ratio < FITS[0] and self.agreeing >= _AGREEING


def clock_for(result: Result, source: str = "") -> Clock | None:
    """The validator's stamps of a file, or of the file with most of them; None where the run has none."""
    arrivals = result.evidence.arrivals
    steps, seconds = arrivals.get(source) or max(arrivals.values(), key=lambda one: len(one[0]), default=(None, None))
    if steps is None or seconds is None or len(steps) < 2:
        return None
    return Clock("the validator's clock", steps, seconds, own=True)


def step_ends(result: Result) -> tuple[Steps, Floats]:
    """Steps `[n]`, and the Unix time `[n]` at which each ended by the heartbeat; empty without one."""
    return result.evidence.step_times_s or (np.empty(0, np.int64), np.empty(0))


def timestamps(result: Result) -> Iterator[Clock]:
    """The trainer's own timestamps, which say how much time passed where the validator did not see it."""
    steps, seconds = step_ends(result)
    if len(steps) >= 2:
        yield Clock(HEARTBEAT, steps, np.asarray(seconds, dtype=np.float64), own=False)
    for name in _ELAPSED:
        column = result.series.get(name)
        if column is not None and len(column.steps) >= 2 and np.isfinite(column.values).all():
            yield Clock(f"the column {name}", column.steps, column.values, own=False)


def dates(result: Result) -> Clock | None:
    """The clock that the log prints in its lines, beside a time per step of the trainer's own; None where not both."""
    column = result.series.get("wall_step_time_s")
    if column is None or "wall_step_time_s" not in result.evidence.derived or len(column.steps) < 2:
        return None
    return Clock("the log's own clock", column.steps, np.cumsum(covered_steps(column.steps) * column.values), own=False)


def compare(claim: Claim, clock: Clock, *, after_step: int = 0, exact: bool = True) -> ClockComparison | None:
    """The claim compared with the clock, behind step `after_step` where enough is left; None with too few stamps.

    Unless it must be `exact`, too few are those that cannot show any factor.
    """
    usable = np.isfinite(claim.seconds)
    steps, claimed = claim.steps[usable], np.cumsum(claim.seconds[usable])
    if len(steps) < 2:
        return None
    inside = (clock.steps >= steps[0]) & (clock.steps <= steps[-1])
    parts = [(clock.steps[one], clock.seconds[one]) for one in (inside & (clock.steps >= after_step), inside)]
    for at, when in parts:
        if len(at) >= _MIN_STAMPS and when[-1] - when[0] >= _MIN_SPAN_S:
            return _over_stretches(at, when, np.interp(at, steps, claimed), exact=True)
    few = [] if exact else [(at, when) for at, when in parts if len(at) > _MIN_STRETCHES]
    found = (_over_stretches(at, when, np.interp(at, steps, claimed), exact=False) for at, when in few)
    return next((one for one in found if one is not None), None)


def _over_stretches(at: Steps, when: Floats, claimed: Floats, *, exact: bool) -> ClockComparison | None:
    """Stamps `when [n]` of the steps `at [n]` compared with the time that was `claimed [n]` up to each."""
    ends = _stretches(when)
    gaps, claimed_gaps = np.diff(when[ends]), np.diff(claimed[ends])
    sound = gaps > 0  # a wall clock that was set back
    if sound.sum() < _MIN_STRETCHES:
        return None
    gaps, claimed_gaps, until = gaps[sound], claimed_gaps[sound], at[ends[1:]][sound]
    ratios, elapsed_s = claimed_gaps / gaps, float(gaps.sum())
    halves = [float(np.median(half)) for half in np.array_split(ratios, 2)]
    parts = _of_parts(claimed_gaps, gaps) if exact else halves
    room = max(_DELAY_S / elapsed_s, 0.0 if len(at) >= _MIN_STAMPS else _FEW)
    return ClockComparison(
        ratio=float(np.median(ratios)),
        lowest=min(parts),
        highest=max(parts),
        agreeing=float(((ratios >= FITS[0]) & (ratios <= FITS[1])).mean()),
        claimed_s=float(claimed_gaps.sum()),
        elapsed_s=elapsed_s,
        stamps=len(at),
        first_step=int(at[0]),
        last_step=int(at[-1]),
        room=0.0 if exact else room,
        left_out=_left_out(claimed_gaps, gaps, at[ends[:-1]][sound], until) if exact else None,
    )


def _eighths(stretches: int) -> list[npt.NDArray[np.intp]]:
    """Places of the stretches in each part of the run; the parts have as many of them."""
    return np.array_split(np.arange(stretches), min(_PARTS, max(1, stretches // _MIN_PART)))


def _of_parts(claimed: Floats, elapsed: Floats) -> list[float]:
    """Claimed over elapsed time in each part of the run."""
    return [float(claimed[part].sum() / elapsed[part].sum()) for part in _eighths(len(elapsed))]


def _left_out(claimed: Floats, elapsed: Floats, since: Steps, until: Steps) -> SlowerPart | None:
    """The longest part of the run that took longer than was claimed: `claimed [n]` and `elapsed [n]` are of the
    stretches behind the steps `since [n]` up to `until [n]`. Pauses leave some stretches between them that agree."""
    ratios = claimed / elapsed
    parts, best, here = _eighths(len(ratios)), np.empty(0, np.intp), np.empty(0, np.intp)
    for part in parts:
        agreeing = float((ratios[part] >= FITS[0]).mean())
        here = np.append(here, part) if agreeing < _AGREEING else here[:0]
        best = max(best, here, key=len)
    if len(parts) < 2 or len(best) < _LASTING * len(ratios):
        return None
    agrees = np.flatnonzero(ratios >= FITS[0])  # the part ends where they do, not at the border of an eighth
    first, last = (agrees[agrees < best[0]], agrees[agrees > best[-1]])
    best = np.arange(first[-1] + 1 if first.size else 0, last[0] if last.size else len(ratios))
    return SlowerPart(
        first_step=int(since[best[0]]) + 1,
        last_step=int(until[best[-1]]),
        claimed_s=float(claimed[best].sum()),
        elapsed_s=float(elapsed[best].sum()),
        ratio=float(np.median(ratios[best])),
    )


def _stretches(when: Floats) -> npt.NDArray[np.intp]:
    """Places of the stamps between which claims are compared, so far apart that the delay of a stamp hardly matters."""
    ends, last = [0], float(when[0])
    for place, moment in enumerate(when.tolist()):
        if moment - last >= _STRETCH * max(STAMP_S, STAMP_SHARE * (moment - float(when[0]))) or moment < last:
            ends.append(place)
            last = moment
    return np.array(ends, dtype=np.intp)


def claims(result: Result, *, tokens: float | None = None) -> Iterator[Claim]:
    """What the trainer's rate, at `tokens` a step where they are known, and its time per step say that rows took."""
    derived, tokens = result.evidence.derived, tokens or result.evidence.tokens_per_step
    rate, times = result.series.get("toks_per_s"), result.series.get("step_time_s")
    if rate is not None and tokens and "toks_per_s" not in derived and _sound(rate):
        seconds = covered_steps(rate.steps) * (tokens / rate.values)
        yield Claim(rate.name, rate.source.path, rate.steps, seconds, whole=True)
    if times is not None and _sound(times):  # also where it is derived: the trainer's clock may be another's
        seconds = covered_steps(times.steps) * times.values
        yield Claim(times.name, times.source.path, times.steps, seconds, whole=False)


OWN_WORD = "The level is the trainer's own word: nothing says how many tokens a step has."
"""What a verdict on such a rate says."""


@dataclass(frozen=True)
class OwnWord:
    """A rate whose level rests on the trainer's word, since nothing says how many tokens a step has.

    `tokens` are those of a step that it means where it leaves out least of the validator's time, `usual` those of the
    median stretch. The two are the same unless they differ by more than a clock may.
    """

    tokens: float
    usual: float

    @property
    def changes(self) -> bool:
        """Whether the trainer's timer leaves out more of the time in most of the run than in its best part."""
        return self.usual > FITS[1] * self.tokens


def own_word(result: Result, *, after_step: int) -> OwnWord | None:
    """What `toks_per_s` means of a step at the pace of its arrival; None where the tokens of a step are known, by
    number, by the time per step beside the rate or by the effective batch and length, or where too few stamps are."""
    rate, derived = result.series.get("toks_per_s"), result.evidence.derived
    timed = "step_time_s" in result.series and "step_time_s" not in derived
    sized = result.effective is not None and {"batch_size", "seq_len"} <= result.effective.keys()
    if rate is None or "toks_per_s" in derived or timed or sized or result.evidence.tokens_per_step is not None:
        return None
    clock = clock_for(result, rate.source.path)
    return None if clock is None or not _sound(rate) else meant(rate, clock, after_step=after_step)


def meant(rate: Series, clock: Clock, *, after_step: int) -> OwnWord | None:
    """The same of a rate, whatever else says how many tokens a step has; None with too few stamps."""
    # At one token a step the rate claims too little time by as much as a step has tokens.
    claim = Claim(rate.name, rate.source.path, rate.steps, covered_steps(rate.steps) / rate.values, whole=True)
    if is_running_mean(claim, clock):
        claim = replace(claim, seconds=_of_running_mean(claim))
    found = compare(claim, clock, after_step=after_step)
    if found is None or not found.ratio > 0 or not found.highest > 0:
        return None
    word = OwnWord(tokens=1 / found.highest, usual=1 / found.ratio)
    # A trainer's timer may leave out time, and counts none that did not pass: the fewest tokens are the likeliest.
    return word if word.changes else OwnWord(tokens=word.usual, usual=word.usual)


def _sound(series: Series) -> bool:
    return len(series.steps) > 1 and bool((np.isfinite(series.values) & (series.values > 0)).all())


def best_reading(claim: Claim, clock: Clock, *, after_step: int = 0) -> tuple[Claim, ClockComparison | None]:
    """The claim as the clock shows it to be meant, and how it then compares.

    Trainers print a time per step, but also the time of all steps since the last row, the mean since the start, or
    the time since the start; and a name such as `dt` says neither seconds nor milliseconds. The first of these that
    fits all along is taken; where none does, the claim stays as it is.
    """
    plain = compare(claim, clock, after_step=after_step, exact=False)
    if plain is None or (plain.fits(whole=claim.whole) and (claim.whole or plain.left_out is None)):
        return claim, plain
    for reading, seconds in _readings(claim):
        other = replace(claim, seconds=seconds, reading=reading)
        found = compare(other, clock, after_step=after_step, exact=False)
        level = plain.left_out is None or (found is not None and found.keeps())
        if found is not None and level and found.fits(whole=True):
            return other, found
    return claim, plain


def is_running_mean(claim: Claim, clock: Clock) -> bool:
    """Whether what a claim says of each row is the mean since the start: as such it keeps to the clock all along, and
    as the time of the row's own steps it does not. A run whose rate never changes shows neither."""
    plain, read = compare(claim, clock), compare(replace(claim, seconds=_of_running_mean(claim)), clock)
    if plain is None or read is None or plain.lowest <= 0 or read.lowest <= 0:
        return False
    off, left = plain.highest / plain.lowest - 1, read.highest / read.lowest - 1
    return off > _OFF and left < _EXPLAINED * off


def _of_running_mean(claim: Claim) -> Floats:
    covered = covered_steps(claim.steps)
    return np.diff(np.cumsum(covered) * (claim.seconds / covered), prepend=0.0)


def _readings(claim: Claim) -> Iterator[tuple[str, Floats]]:
    covered = covered_steps(claim.steps)
    each = claim.seconds / covered
    if not claim.whole and (covered[1:] > 1).any():
        yield "the time of all steps since the row before", each
    yield "the mean since the start", _of_running_mean(claim)
    if not claim.whole and (np.diff(each) >= 0).mean() >= _RISES:
        yield "the time since the start", np.diff(each, prepend=0.0)
    if not claim.whole:
        yield "milliseconds", claim.seconds / 1e3
