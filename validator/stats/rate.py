"""The rate of a run: tokens over wall time from the end of warm-up to the last row, pauses included.

A run of days pays for its validation and its checkpoints, so its rate counts them. The tokens of a step are declared,
reported by the trainer, or inferred from its rate and its time per step. The wall time of the rows is the trainer's own
where a clock confirms it, and the clock's where it does not: the stamps of the rows' arrival, else timestamps.

A rate over a window is never the mean of rates: that gives a slow step, which took most of the time, the weight of a
fast one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from validator.model.result import Floats, Result, ScalarValue, Series, Steps
from validator.stats.clock import (
    FITS,
    Claim,
    Clock,
    ClockComparison,
    OwnWord,
    best_reading,
    claims,
    clock_for,
    compare,
    meant,
    step_ends,
    timestamps,
)
from validator.stats.rows import Windowed
from validator.stats.spacing import covered_steps
from validator.text import format_number, format_percent

MODEL_RATE = "model_tflops_per_s_per_rank"
_SHARES = ("mfu_nsa", "mfu_dense_equivalent")

_AGREES, _AGREES_S, _AGREES_DELAYS = 0.01, 0.2, 1.5
"""What a clock may show beyond the trainer's time while that stays in place: relative, in seconds, and in the largest
delay that rows made up for. Rows arrive late and the next ones on time, which is no time of the run."""

_NOTED = 0.1
"""Share of the wall time beyond the trainer's times per step from which their value says so."""

_MOST_ROWS = 0.9
"""Share of the rows that a clock must know to say how long they took."""

_VARIES = 0.03
"""Variation of the inferred tokens of a step from which each row is given its own: batches of varying length."""

_PAUSE_STEPS, _PAUSE_SHARE, _PAUSE_SPREADS = 2.0, 0.2, 6.0
"""Wall time beyond a row's steps that makes a pause: in steps, as a share of the row, and in spreads of the excess."""

_AROUND = 11
"""Rows around a row, itself included, whose median is its usual time."""

_BLOCK = 1 << 16
"""Rows whose medians are taken at once: each needs a copy of the rows around it."""

_KNOWN_PAUSES = 3
"""Pauses from which a run shows how often they come."""


def as_read(result: Result, *, warmup_steps: int) -> tuple[Series | None, str | None]:
    """`step_time_s` as the validator's clock shows it to be meant; and why it cannot be believed, if so.

    Where a lasting part of the run took longer than it claims, its level there is that of the clock.
    """
    times, by_clock = result.series.get("step_time_s"), _by_clock(result, warmup_steps)
    if times is None or by_clock is None:
        return None, None
    read, clock, found = by_clock
    if found is not None and not found.fits(whole=False):
        return None, (
            f"step_time_s adds up to {found.claimed_s:,.1f} s for steps {found.first_step + 1} to {found.last_step}, "
            f"which took {found.elapsed_s:,.1f} s by {clock.name}"
        )
    if not read.reading and found is not None and (part := found.left_out) is not None:
        inside = (times.steps >= part.first_step) & (times.steps <= part.last_step)
        return replace(times, values=np.where(inside, times.values / part.ratio, times.values)), None
    if not read.reading:
        return None, None
    each = read.seconds / covered_steps(read.steps)
    return replace(times, values=np.maximum(each, 1e-9)), None


def not_in_step_times(result: Result, *, warmup_steps: int) -> str:
    """What the validator's clock shows beyond `step_time_s`, as the note of its value; empty where that is little."""
    by_clock = _by_clock(result, warmup_steps)
    found = None if by_clock is None else by_clock[2]
    if by_clock is None or found is None or found.room or not found.fits(whole=False):
        return ""
    if not by_clock[0].reading and (part := found.left_out) is not None:
        return (
            f"by {by_clock[1].name} in steps {part.first_step} to {part.last_step}, which took longer than is printed"
        )
    share = 1 - found.claimed_s / found.elapsed_s
    return f"{format_percent(share)} of the wall time is not in it (pauses)" if share >= _NOTED else ""


def _by_clock(result: Result, warmup_steps: int) -> tuple[Claim, Clock, ClockComparison | None] | None:
    """The time per step that the trainer claims as the validator's clock shows it to be meant; None without either."""
    claim = next((one for one in claims(result) if one.name == "step_time_s"), None)
    clock = None if claim is None else clock_for(result, claim.source)
    if claim is None or clock is None:
        return None
    read, found = best_reading(claim, clock, after_step=warmup_steps)
    return read, clock, found


def rates_of(
    base: Windowed,
    result: Result,
    series: Mapping[str, Series],
    *,
    warmup_steps: int,
    world_size: int,
    doubt: str | None,
) -> tuple[dict[str, Windowed], dict[str, ScalarValue]]:
    """Every rate that follows from `toks_per_s`, by name; and scalars that say what the pauses are.

    Args:
        base: `toks_per_s` as read, within its window.
        series: all series, steps rising.
        doubt: why the time per step cannot be believed, if so.
    """
    built = _Rate(base, result, series, warmup_steps, doubt)
    rate = built.honest()
    scalars: dict[str, ScalarValue] = {}
    if built.in_seconds:
        rate, scalars = _with_pauses(rate, *built.normal(rate.denominator), result.evidence.pause_every)
    found = {"toks_per_s": rate, "toks_per_s_per_rank": _scaled(rate, 1 / world_size, "toks_per_s_per_rank", "tok/s")}
    found["toks_per_s_per_rank"] = replace(found["toks_per_s_per_rank"], note=f"toks_per_s over {world_size} ranks")
    if (flops := flops_per_token(result.environment)) is not None:
        model = _scaled(rate, flops / world_size / 1e12, MODEL_RATE, "TFLOP/s")
        note = f"toks_per_s × {format_number(flops)} FLOP per token over {world_size} ranks"
        found[MODEL_RATE] = replace(model, note=note)
    if (step_rate := built.step_rate()) is not None:
        found["step_rate"] = step_rate
    for name in _SHARES:
        if name in series and (share := _share_of(series[name], base)) is not None:
            found[name] = replace(_scaled(rate, share, name, ""), source=series[name].source.path)
    return found, scalars


def flops_per_token(environment: Mapping[str, Any] | None) -> float | None:
    """The model's arithmetic for a token, forward and backward, by the trainer's own account."""
    reported = (environment or {}).get("flops_per_token")
    found = reported.get("nsa") if isinstance(reported, Mapping) else reported
    known = isinstance(found, (int, float)) and not isinstance(found, bool) and math.isfinite(found) and found > 0
    return float(found) if known and isinstance(found, (int, float)) else None


class _Rate:
    """`toks_per_s` in the making: tokens and wall time of each row of the window."""

    def __init__(
        self, base: Windowed, result: Result, series: Mapping[str, Series], warmup_steps: int, doubt: str | None
    ) -> None:
        self.base, self.result, self.warmup_steps, self.doubt = base, result, warmup_steps, doubt
        every = self.series = series["toks_per_s"]
        self.word: OwnWord | None = None
        self.every, self.rows = every.steps, np.searchsorted(every.steps, base.steps)
        self.covered = covered_steps(every.steps)
        self.times = _matched(every.steps, series.get("step_time_s"))
        self.sound = bool((np.isfinite(every.values) & (every.values > 0)).all())
        self.clock = clock_for(result, base.source)
        self.declared = result.evidence.tokens_per_step
        self.times_are_claim = "step_time_s" not in result.evidence.derived
        tokens = self._tokens(every.values)
        self.in_seconds = tokens is not None
        self.tokens: Floats = self.covered if tokens is None else tokens
        with np.errstate(divide="ignore", invalid="ignore"):
            self.own: Floats = np.asarray(self.tokens / every.values, dtype=np.float64)

    def _tokens(self, rates: Floats) -> Floats | None:
        """Tokens of each row; None where nothing says how many a step has."""
        if self.declared is not None:
            return self.covered * self.declared
        seconds = self.times if self.times is not None and self.times_are_claim else None
        if seconds is None and self.clock is not None and self.sound:
            self.word = meant(self.series, self.clock, after_step=self.warmup_steps)
            return None if self.word is None else self.covered * self.word.tokens
        if seconds is None:
            return None
        with np.errstate(invalid="ignore"):
            each = rates * seconds
        usable = each[np.isfinite(each) & (each > 0)]
        if not usable.size:
            return None
        middle = float(np.median(usable))
        spread = 1.4826 * float(np.median(np.abs(usable - middle)))
        if self.times is not None and spread > _VARIES * middle:
            low = ~np.isfinite(each) | (each < middle / 3)  # a pause, which the time per step leaves out
            return self.covered * np.where(low, middle, each)
        return np.asarray(self.covered * middle, dtype=np.float64)

    def honest(self) -> Windowed:
        """The rows with their tokens and their wall time."""
        tokens, own = self.tokens[self.rows], self.own[self.rows]
        said = "" if self.in_seconds else "harmonic mean of toks_per_s weighted by steps; step_time_s is not known"
        note, doubt = f"tokens over wall time ({said or 'pauses included'})", None
        wall = own
        if self.in_seconds and self.sound:
            for clock in self._clocks():
                found = self._by(clock, own)
                if found is None:
                    continue
                wall, agrees = found
                note = f"tokens over wall time by {'the trainer and ' if agrees else ''}{clock.name}, pauses included"
                break
            if self.word is not None:
                note += f", at the {format_number(self.word.tokens, digits=3)} tokens a step that the rate itself means"
            if self.doubt is not None and self.declared is None:
                doubt = f"{self.doubt}, so the tokens of a step are not known; declare trainer.tokens_per_step"
        values = self.base.values if wall is own else tokens / wall
        notes = "; ".join(text for text in (note, self.base.note) if text)
        return replace(
            self.base,
            values=values,
            numerator=tokens,
            denominator=wall,
            note=notes,
            invalid=self.base.invalid or doubt,
        )

    def _clocks(self) -> Iterator[Clock]:
        """What may say how much time passed, the validator's own clock first."""
        if self.clock is not None and (self.clock.steps <= self.every[-1]).sum() > 1:
            yield self.clock
        claim = Claim("toks_per_s", self.base.source, self.every, self.own, whole=False)
        for clock in timestamps(self.result):
            met = np.isin(self.base.steps, clock.steps).mean() if len(self.base.steps) else 0.0
            found = compare(claim, clock, after_step=self.warmup_steps) if met > 0.9 else None
            if found is not None and found.fits(whole=False):  # else of another unit, or of another meaning
                yield clock

    def _by(self, clock: Clock, own: Floats) -> tuple[Floats, bool] | None:
        """Wall time of the window's rows by a clock, and whether the trainer's own agrees and so is kept; None where
        the clock knows too few of them.

        Rows that share a stamp share its time in proportion to what the trainer claims of each.
        """
        done = np.cumsum(self.own)
        inside = (self.every >= clock.steps[0]) & (self.every <= clock.steps[-1])
        ends = np.where(inside, np.interp(done, np.interp(clock.steps, self.every, done), clock.seconds), np.nan)
        passed = np.diff(ends, prepend=np.nan)
        passed[self._resumed()] = np.nan
        passed = passed[self.rows]
        known = np.isfinite(passed) & (passed > 0)
        if not known.size or known.mean() < _MOST_ROWS:
            return None
        elapsed, claimed = float(passed[known].sum()), float(own[known].sum())
        if elapsed < FITS[0] * claimed:
            return np.where(known, passed, own), False
        behind = np.cumsum(np.where(known, passed - own, 0.0))
        delay = float((np.maximum.accumulate(behind) - behind).max())
        if elapsed - claimed <= max(_AGREES * elapsed, _AGREES_S, _AGREES_DELAYS * delay):
            return own, True
        # Only what later rows do not make up for is time that the trainer left out.
        lasting = np.minimum.accumulate(behind[::-1])[::-1]
        return own + np.maximum(np.diff(lasting, prepend=min(0.0, float(lasting[0]))), 0.0), False

    def _resumed(self) -> npt.NDArray[np.bool_]:
        """Rows in which another process of the trainer took over: its rest is no time of this rate."""
        found = np.zeros(len(self.every), dtype=np.bool_)
        steps, seconds = step_ends(self.result)
        for at in self.result.evidence.resumed_s:
            place = int(np.searchsorted(seconds, at))
            if place < len(steps):
                found |= (self.every >= steps[place]) & (self.every - self.covered < steps[place])
        return found

    def normal(self, wall: Floats) -> tuple[Floats, Floats]:
        """What the window's rows, which took `wall`, take without a pause, and the steps that each covers.

        That is the time of the rows around, or less where the time per step says so.
        """
        covered = self.covered[self.rows]
        normal = covered * _running_median(wall / covered)
        if self.times is not None and self.times_are_claim and self.doubt is None:
            normal = np.fmin(normal, covered * self.times[self.rows])
        return np.asarray(normal, dtype=np.float64), covered

    def step_rate(self) -> Windowed | None:
        """Tokens over `step_time_s`, pauses left out; None where the trainer reports no time per step."""
        if not self.in_seconds or self.times is None or not self.times_are_claim:
            return None
        tokens, seconds = self.tokens[self.rows], (self.covered * self.times)[self.rows]
        with np.errstate(divide="ignore", invalid="ignore"):
            values = tokens / seconds
        note = "tokens over step_time_s, pauses left out"
        return replace(
            self.base,
            name="step_rate",
            values=np.asarray(values, dtype=np.float64),
            numerator=tokens,
            denominator=seconds,
            note=note,
            invalid=self.base.invalid or self.doubt,
        )


def _matched(steps: Steps, times: Series | None) -> Floats | None:
    """The time per step at these steps; None where some row has none."""
    if times is None:
        return None
    place = np.minimum(np.searchsorted(times.steps, steps), len(times.steps) - 1)
    return times.values[place] if (times.steps[place] == steps).all() else None


def _scaled(rate: Windowed, factor: float, name: str, unit: str) -> Windowed:
    """A multiple of a rate, under another name."""
    plain = rate.without_pauses
    return replace(
        rate,
        name=name,
        unit=unit,
        values=rate.values * factor,
        numerator=rate.numerator * factor,
        without_pauses=None if plain is None else _scaled(plain, factor, name, unit),
    )


def _share_of(share: Series, rate: Windowed) -> float | None:
    """What `toks_per_s` is multiplied by to give a share of the peak; None where the two do not go together."""
    here = np.isin(share.steps, rate.steps)
    values = share.values[here]
    if len(values) != len(rate.values) or not len(values) or not np.isfinite(values).all():
        return None
    factors = values / rate.values
    middle = float(np.median(factors))
    alike = np.isfinite(factors).all() and middle > 0 and np.abs(factors / middle - 1).max() < 0.1
    return middle if alike else None


def _with_pauses(
    rate: Windowed, normal: Floats, covered: Floats, pause_every: int | None
) -> tuple[Windowed, dict[str, ScalarValue]]:
    """The rate with what is known of its pauses.

    A run with three pauses or more shows how often they come. One with fewer is judged by the declared cadence; without
    one, `without_pauses` says what the rate is apart from them.
    """
    wall = rate.denominator
    if not len(wall) or not (np.isfinite(wall) & np.isfinite(normal) & (wall > 0)).all():
        return rate, {}
    excess = wall - normal
    middle = float(np.median(excess))
    spread = 1.4826 * float(np.median(np.abs(excess - middle)))
    least = np.maximum(_PAUSE_STEPS * float(np.median(normal / covered)), _PAUSE_SHARE * normal)
    paused = excess - middle > np.maximum(least, _PAUSE_SPREADS * spread)
    count, cost = int(paused.sum()), np.where(paused, excess - middle, 0.0)
    scalars = {"pause.count": ScalarValue(value=float(count), unit="pauses", source=rate.source)}
    if count:
        scalars["pause.cost_s"] = ScalarValue(value=float(cost.sum()) / count, unit="s", source=rate.source)
    if count > 1:
        period = float(np.median(np.diff(rate.steps[paused])))
        scalars["pause.period_steps"] = ScalarValue(value=period, unit="steps", source=rate.source)
    if not 0 < count < _KNOWN_PAUSES:
        return rate, scalars
    return _few_pauses(rate, wall - cost, covered, count, float(cost.sum()), pause_every), scalars


def _few_pauses(
    rate: Windowed, busy: Floats, covered: Floats, count: int, cost_s: float, pause_every: int | None
) -> Windowed:
    """The rate with its one or two pauses, which took `cost_s` in all beyond the rows' `busy` time, spread evenly.

    Where a pause happened to fall says nothing; its weight is that of the declared cadence, else of this run.
    """
    seen = f"{count} pause{'s' if count > 1 else ''} of {cost_s / count:.3g} s"
    if pause_every is not None:
        note = f"{rate.note}; {seen}, counted once in {pause_every} steps as pause_every declares"
        wall = busy + covered * (cost_s / count / pause_every)
        return replace(rate, denominator=wall, values=rate.numerator / wall, note=note)
    plain = replace(rate, denominator=busy, values=rate.numerator / busy, note=f"{seen} left out")
    note = f"{rate.note}; {seen}, {plain.mean():.6g} without; declare pause_every, for so few do not show how often"
    even = busy + covered * (cost_s / float(covered.sum()))
    return replace(rate, denominator=even, note=note, without_pauses=plain)


def _running_median(values: Floats) -> Floats:
    """The median of the `_AROUND` values around each one; beyond an end the outermost value repeats."""
    if not values.size:
        return values
    around = np.pad(values, _AROUND // 2, mode="edge")
    windows = np.lib.stride_tricks.sliding_window_view(around, _AROUND)
    blocks = [np.median(windows[at : at + _BLOCK], axis=1) for at in range(0, len(windows), _BLOCK)]
    return np.concatenate(blocks)
