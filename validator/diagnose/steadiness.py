"""Whether the time of a step stays what it is: settled or not, pauses that come again, and steps of the rate."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from validator.diagnose.facts import RunFacts, as_number
from validator.diagnose.rule import Severity, evidence, found, percent
from validator.judge.autocorrelation import effective_size, lag1, long_run_stdev, t_quantile, with_caution
from validator.judge.window import MIN_ROWS, covered_steps
from validator.model.result import Series
from validator.model.verdict import Finding

__all__ = ["no_steady_state", "periodic_stall", "rate_shift", "too_few_rows"]

Floats = npt.NDArray[np.float64]
Steps = npt.NDArray[np.int64]

_SLOW = 1.15
"""A slow step takes this many times the median, and 6 robust standard deviations more."""

_SLOW_NOISE = 6.0
_LEAST_STALLS = 3
_LOST_WARNING = 0.01
_LOST_INFO = 0.002
_EVEN = 0.8
"""Share of the gaps between slow steps that must be one period, or a multiple of it."""

_SHIFT_WARNING, _SHIFT_INFO = 0.05, 0.03
_LEVEL_ROWS, _LEVEL_SHARE = 10, 0.05
_CRITICAL = 2.1
"""Supremum of a Brownian bridge that chance exceeds three times in ten thousand; more where the rows are worth few."""

_CERTAIN = 0.9995

_WARMUP_SHARE = 0.25
_CADENCE = re.compile(r"(val|eval|save|ckpt|checkpoint|sample|snapshot|profile)\w*")
_EVERY = re.compile(r"every|interval|freq|steps|period")


def no_steady_state(run: RunFacts) -> Iterator[Finding]:
    """The rate never settles, so no mean of it says what a long run would do."""
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
    elif run.window.steady:
        return
    shown = " → ".join(f"{v:,.0f}" if v >= 10 else f"{v:.3g}" for v in _thirds(late))
    yield found(
        "no-steady-state",
        f"{series.name} never settles: {shown} {series.unit}. No mean of it stands for a longer run.",
        confidence="low" if few else "high",
        because=[evidence(run.window.note, series.source.path, f"steps {series.steps[0]}–{series.steps[-1]}")],
        next_step="Run at least three times as many steps; if it still drifts, look at clocks, temperature, the data "
        "loader and memory over time.",
    )


def _thirds(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> list[float]:
    if values.size <= 4:
        return [float(v) for v in values]
    return [float(part.mean()) for part in np.array_split(values, 3)]


def too_few_rows(run: RunFacts) -> Iterator[Finding]:
    """A mean over a handful of rows that differ widely."""
    series = run.series("toks_per_s")
    if not run.timed or series is None:
        return
    late = series.values[(series.steps > run.spec.warmup_steps) & np.isfinite(series.values)]
    if late.size < 2:
        late = series.values[1:][np.isfinite(series.values[1:])]
    if not 2 <= late.size <= 5 or late.mean() <= 0 or late.std() / late.mean() <= 0.1:
        return
    listed = ", ".join(f"{v:,.0f}" for v in late)
    yield found(
        "not-significant",
        f"{late.mean():,.0f} ± {late.std():,.0f} tok/s over {late.size} rows ({listed}) is no measurement to "
        "compare by.",
        severity="info",
        because=[evidence(f"toks_per_s: {listed}", series.source.path)],
        next_step="Log every step (log_every 1), run at least 200 steps and repeat each setting four times.",
    )


@dataclass(frozen=True)
class _Stalls:
    """Slow rows `at [k]`, the seconds that each took beyond the median, and their share of the time."""

    at: npt.NDArray[np.int64]
    extra_s: Floats
    lost: float


def periodic_stall(run: RunFacts) -> Iterator[Finding]:
    """Slow steps that come again and again, with a period or without: what they cost, and how often they come."""
    if not run.timed or run.failed:
        return
    for steps, times, path, what in _step_clocks(run):
        stalls = _stalls(steps, times)
        if stalls is None:
            continue
        at, period = steps[stalls.at], _period(steps[stalls.at])
        if stalls.lost < (_LOST_INFO if period else _LOST_WARNING / 2) or _is_declared(run, at, period):
            continue
        rhythm = f"every {period} steps" if period is not None else f"{len(at)} times without a period"
        shown = ", ".join(map(str, at[:8])) + (" …" if len(at) > 8 else "")
        yield found(
            "periodic-stall",
            f"A step takes {float(np.median(stalls.extra_s)):.3g} s more {rhythm} (steps {shown}): "
            f"{percent(stalls.lost)} of the time{what}.",
            severity="warning" if stalls.lost >= _LOST_WARNING else "info",
            confidence="high" if period is not None else "medium",
            because=[evidence(f"median step {float(np.median(times)):.4g} s, slow at {shown}", path)],
            next_step="Look at what runs at these steps (a validation, a checkpoint, a flush, garbage collection, a "
            "loader that fills its buffer). A pause that is meant is declared: pause_every in the phase.",
        )
        return


def _step_clocks(run: RunFacts) -> Iterator[tuple[Steps, Floats, str | None, str]]:
    """Time per step as the trainer says it, then as the heartbeat's own clock has it, which holds every pause."""
    warmup = run.spec.warmup_steps
    if run.times is not None:
        steps, times = run.times
        late = steps > max(warmup, int(steps[0]))
        name = "step_time_s" if run.series("step_time_s") is not None else "toks_per_s"
        yield steps[late], times[late] * covered_steps(steps)[late], run.source(name), ""
    steps, seconds = run.result.extra.get("step_times_s", (np.empty(0, dtype=np.int64), np.empty(0)))
    if len(steps) > 2 and not run.irregular("clock-jump") and "resumed_s" not in run.result.extra:
        late = steps[1:] > warmup
        yield steps[1:][late], np.diff(seconds)[late], None, ", between the heartbeats of two steps"


def _stalls(steps: Steps, times: Floats) -> _Stalls | None:
    """The slow rows, where there are three or more and they are few."""
    if len(times) < 4 * MIN_ROWS // 2 or len(np.unique(np.diff(steps))) > 2:
        return None
    usual = float(np.median(times))
    spread = 1.4826 * float(np.median(np.abs(times - usual)))
    at = np.flatnonzero(times > max(_SLOW * usual, usual + _SLOW_NOISE * spread))
    if not _LEAST_STALLS <= len(at) <= len(times) // 2 or usual <= 0:
        return None
    if (np.diff(at) == 1).sum() > len(at) // 2:
        return None  # a stretch of slow steps is a level of its own
    extra = times[at] - usual
    return _Stalls(at, extra, float(extra.sum() / times.sum()))


def _period(steps: Steps) -> int | None:
    """Steps from one slow step to the next, where most gaps are that or a multiple of it."""
    gaps = np.diff(steps)
    period = int(np.median(gaps))
    if period < 2 or len(gaps) < 2:
        return None
    off = np.abs(gaps - period * np.maximum(1, np.rint(gaps / period)))
    return period if float((off == 0).mean()) >= _EVEN else None


def _is_declared(run: RunFacts, steps: Steps, period: int | None) -> bool:
    """Whether the pauses are those of a validation or a checkpoint, by val.csv, or by a setting that gives a cadence."""
    recorded = run.result.series.get("val.loss") or next(
        (one for name, one in run.result.series.items() if name.startswith(("val.", "val_"))), None
    )
    # A step's own row may hold the pause before it or after it.
    if (
        recorded is not None
        and np.isin(steps, [recorded.steps - 1, recorded.steps, recorded.steps + 1]).mean() >= _EVEN
    ):
        return True
    settings = {**run.asked, **run.ran}
    cadences = [
        as_number(value) for name, value in settings.items() if _CADENCE.match(name.lower()) and _EVERY.search(name)
    ]
    return period is not None and any(one and period % int(one) == 0 for one in cadences if one is None or one >= 1)


@dataclass(frozen=True)
class _Level:
    """A stretch in which the time per step stays at `mean`; rows `start` to `end`, the last left out."""

    start: int
    end: int
    mean: float


def rate_shift(run: RunFacts) -> Iterator[Finding]:
    """The rate steps to another level and stays there: when, by how much, and what else moved at that step."""
    if not run.timed or run.times is None:
        return
    steps, times = run.times
    late = steps > run.spec.warmup_steps
    steps, times = steps[late], times[late]
    levels = _levels(times)
    shifts = [
        (float(before.mean / after.mean - 1), before, after)
        for before, after in zip(levels, levels[1:], strict=False)
        if after.mean > before.mean or after.start > _WARMUP_SHARE * len(times)  # a slow start is warm-up
    ]
    big = [shift for shift in shifts if abs(shift[0]) >= _SHIFT_INFO]
    if not big:
        return
    change, before, after = max(big, key=lambda shift: abs(shift[0]))
    at = int(steps[after.start])
    seconds = abs(after.mean - before.mean) if run.series("step_time_s") is not None else 0.0
    moved = _moved(run, (int(steps[before.start]), at, int(steps[after.end - 1])), least_s=_PART * seconds)
    severity: Severity = "warning" if abs(change) >= _SHIFT_WARNING else "info"
    more = f" It is the largest of {len(big)} such shifts." if len(big) > 1 else ""
    yield found(
        "rate-shift",
        f"From step {at} on a step takes {after.mean:.4g} {_unit(run)} instead of {before.mean:.4g}: the rate changes by "
        f"{100 * change:+.3g} % and stays there{'' if after.end == len(times) else f' to step {steps[after.end - 1]}'}."
        f"{more}{_cause(moved, levels, run)}",
        severity=severity,
        because=[
            evidence(
                f"means of the levels: {' → '.join(f'{one.mean:.4g}' for one in levels)}", run.source("step_time_s")
            ),
            *(evidence(text, path, f"step {at}") for text, path in moved[:4]),
        ],
        next_step="Find what changed at that step, and judge the run by the level that a long run will have: repeat it "
        "for three times as many steps.",
    )


def _unit(run: RunFacts) -> str:
    return "s" if run.series("step_time_s") is not None else "s a token"


def _levels(times: Floats) -> list[_Level]:
    """Stretches of constant mean: split at the best place for as long as the two sides differ beyond chance.

    CUSUM with an autocorrelation-robust scale; a single long step is pulled in first, so that it makes no level.
    """
    if len(times) < 2 * _LEVEL_ROWS:
        return [_Level(0, len(times), float(times.mean()))] if len(times) else []
    center = float(np.median(times))
    values = np.minimum(times, 3.0 * center)
    least = max(_LEVEL_ROWS, int(_LEVEL_SHARE * len(times)))
    cuts, open_parts = [0, len(times)], [(0, len(times))]
    while open_parts and len(cuts) < 12:
        start, end = open_parts.pop()
        split = _place(values[start:end], least)
        if split is not None:
            cuts.append(start + split)
            open_parts += [(start, start + split), (start + split, end)]
    cuts.sort()
    parts = [_Level(a, b, float(times[a:b].mean())) for a, b in zip(cuts, cuts[1:], strict=False)]
    return _joined(parts, times)


def _joined(parts: list[_Level], times: Floats) -> list[_Level]:
    """Neighbors that differ by less than is worth telling are one level."""
    joined = parts[:1]
    for part in parts[1:]:
        last = joined[-1]
        if abs(part.mean / last.mean - 1) < _SHIFT_INFO / 2:
            joined[-1] = _Level(last.start, part.end, float(times[last.start : part.end].mean()))
        else:
            joined.append(part)
    return joined


def _place(values: Floats, least: int) -> int | None:
    """Where the values are best split: by the whole, else by halves and quarters, which see a level between two others."""
    for parts in (1, 2, 4):
        size = len(values) // parts
        if size < 2 * least:
            return None
        splits = [
            (start + split[0], split[1])
            for start in range(0, len(values) - size + 1, max(1, size // 2))
            if (split := _split(values[start : start + size], least)) is not None
        ]
        if splits:
            return max(splits, key=lambda split: split[1])[0]
    return None


def _split(values: Floats, least: int) -> tuple[int, float] | None:
    """First row of the right side and how far the means differ, in units of what chance does; None within chance."""
    n = len(values)
    sums = np.cumsum(values - values.mean())[:-1]
    lefts = np.arange(1, n)
    weight = np.abs(sums) / np.sqrt(lefts * (n - lefts))
    split = int(weight[least - 1 : n - least].argmax()) + least
    left, right = values[:split], values[split:]
    means = float(left.mean()), float(right.mean())
    if min(means) <= 0 or max(means) / min(means) - 1 < _SHIFT_INFO / 2:
        return None
    residuals = np.concatenate([_straightened(left), _straightened(right)])
    phi = with_caution(lag1(residuals, fitted=4), n)
    freedom, noise = effective_size(n, phi) - 4.0, long_run_stdev(residuals, phi)
    if freedom < 3:
        return None
    critical = _CRITICAL * t_quantile(_CERTAIN, freedom) / t_quantile(_CERTAIN, 1e6)
    reach = abs(float(sums[split - 1])) / np.sqrt(n)
    return (split, reach / noise if noise > 0 else np.inf) if reach > critical * noise else None


def _straightened(values: Floats) -> Floats:
    """What is left of values behind their straight line: a level that recovers slowly is no noise."""
    x = np.arange(len(values)) - (len(values) - 1) / 2
    centered = values - values.mean()
    rest: Floats = centered - x * float(x @ centered) / float(x @ x)
    return rest


def _moved(run: RunFacts, span: tuple[int, int, int], *, least_s: float) -> list[tuple[str, str]]:
    """What else changed between the stretch before the shift and the one after it, and the file that says so.

    A time that changed by less than `least_s` seconds explains nothing.
    """
    first, at, last = span
    moved = []
    for name, series in run.result.series.items():
        if name.startswith(_FOLLOWS) or not np.isfinite(series.values).all():
            continue
        one = series.values[(series.steps >= first) & (series.steps < at)]
        other = series.values[(series.steps >= at) & (series.steps <= last)]
        if min(one.size, other.size) < 5:
            continue
        was, now = float(np.median(one)), float(np.median(other))
        spread = 1.4826 * max(float(np.median(np.abs(one - was))), float(np.median(np.abs(other - now))))
        least = max(4 * spread, 0.05 * abs(was), least_s / {"s": 1.0, "ms": 1e-3}.get(series.unit, np.inf))
        if abs(now - was) > least and _is_cause(series):
            moved.append((f"{name} {was:.4g} → {now:.4g} {series.unit}".strip(), series.source.path))
    return moved


_PART = 0.1
"""Share of the change of a step's time that another time must have changed by to be named beside it."""

_FOLLOWS = ("toks_per_s", "step_time_s", "compute_time_s", "mfu", "loss", "lr", "tokens", "wall_s", "grad_norm")
"""Series that change with the rate, or with every step, and are no cause."""


def _is_cause(series: Series) -> bool:
    """Whether a series may explain a rate: one that rises or falls at every step only counts steps."""
    strides = np.diff(series.values)
    return not (strides.size > 20 and ((strides > 0).all() or (strides < 0).all()))


def _cause(moved: list[tuple[str, str]], levels: list[_Level], run: RunFacts) -> str:
    """What moved at the same step; else what the shape of the rate suggests."""
    if moved:
        return f" At the same step: {'; '.join(text for text, _ in moved[:4])}."
    watched = any(name.startswith("telemetry.gpu") for name in run.result.series)
    falls = [i for i in range(1, len(levels)) if levels[i].mean > levels[i - 1].mean * (1 + _SHIFT_INFO)]
    recovers = [i for i in falls if i + 1 < len(levels) and levels[i + 1].mean < levels[i].mean]
    if recovers and not watched:
        return " It falls at once and recovers slowly, as hardware does that throttles; no clocks were recorded."
    return "" if watched else " No clocks, temperatures or loader times were recorded beside it."
