"""The rows of a series that statistics are taken from: in order, within the window, as numerator and denominator."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from validator.model.catalogue import METRICS, Metric
from validator.model.result import Floats, InvalidWindow, RunEvidence, Series, Span, Steps
from validator.stats.spacing import covered_steps, even_rows, joined, next_due, thins_out
from validator.stats.timing import Timing, timing_of
from validator.stats.window import SteadyWindow, steady_window
from validator.text import format_percent

RATES = frozenset(name for name, metric in METRICS.items() if metric.unit.endswith("/s"))

_FEW_ROWS = 12
"""Rows of a run below which no gap between series is judged."""

_HOLE_STRIDES, _HOLE_SHARE = 10.0, 0.25

_MAX_DISTURBED = 0.1
"""Share of the window's steps that may be left out because something else disturbed them."""


@dataclass(frozen=True, eq=False)
class Windowed:
    """One metric's rows within its window.

    `numerator [n]` over `denominator [n]`, summed, is the mean. `sampled` says whether the rows are a sample of a
    longer run.
    """

    name: str
    unit: str
    steps: Steps
    values: Floats
    numerator: Floats
    denominator: Floats
    covered: Floats
    """Steps that each row covers, `[n]`."""

    sampled: bool
    span: Span | None
    source: str
    sha256: str
    note: str | None = None
    invalid: str | None = None
    """Why not even the seen values of these rows are reported, but for the statistics in `still_valid`."""

    still_valid: tuple[str, ...] = ("n",)

    without_pauses: Windowed | None = None
    """The same rows less their pauses, where they hold so few that how often they come is not known; see
    `validator.stats.rate`."""

    timing: Timing | None = None
    """What a coarse clock leaves open of these rows' times."""

    def since(self, step: int) -> Windowed:
        """The rows of this step and later ones, of rows that are a sample."""
        kept = self.steps >= step
        if not self.sampled or kept.all():
            return self
        parts = {name: getattr(self, name)[kept] for name in ("steps", "values", "numerator", "denominator", "covered")}
        plain = None if self.without_pauses is None else self.without_pauses.since(step)
        timing = None if self.timing is None else replace(self.timing, spans_s=self.timing.spans_s[kept])
        return replace(self, **parts, without_pauses=plain, timing=timing)

    def evened(self) -> Windowed:
        """The same with rows of few steps joined where others have many, so that each counts alike."""
        groups = even_rows(self.covered) if self.sampled else None
        if groups is None:
            return self
        numerator, denominator, covered = (
            joined(one, groups) for one in (self.numerator, self.denominator, self.covered)
        )
        plain = None if self.without_pauses is None else self.without_pauses.evened()
        timing = None if self.timing is None else replace(self.timing, spans_s=joined(self.timing.spans_s, groups))
        return replace(
            self,
            steps=self.steps[np.append(groups[1:], len(self.steps)) - 1],
            values=numerator / denominator,
            numerator=numerator,
            denominator=denominator,
            covered=covered,
            without_pauses=plain,
            timing=timing,
        )

    def mean(self) -> float:
        """The weighted mean; NaN if a value is not finite."""
        if not np.isfinite(self.values).all():
            return math.nan
        total = float(self.denominator.sum())
        return float(self.numerator.sum()) / total if total > 0 else math.nan


def is_restarted(series: Series) -> bool:
    """Whether the step decreases somewhere, as written."""
    return bool((np.diff(series.steps) < 0).any())


def ordered(series: Series) -> Series:
    """The series with strictly increasing steps: what follows the last step back, the last row of a repeated step."""
    steps, values = series.steps, series.values
    back = np.flatnonzero(np.diff(steps) < 0)
    if len(back):
        steps, values = steps[back[-1] + 1 :], values[back[-1] + 1 :]
    last_of_step = np.append(np.diff(steps) > 0, True)
    if last_of_step.all() and not len(back):
        return series  # as it nearly always is; a copy of each column is memory
    return replace(series, steps=steps[last_of_step], values=values[last_of_step])


PACES = {"step_time_s": "step", "toks_per_s": "token", "samples_per_s": "sample"}
"""Series that show the time, the most direct first: a time, or a rate and what it is one of."""


def window_of(series: Mapping[str, Series], warmup_steps: int) -> SteadyWindow:
    """The run's steady window, searched in the most direct series of time that there is."""
    for name, unit in PACES.items():
        if name in series:
            chosen = series[name]
            times = chosen.values if unit == "step" else _reciprocal(chosen.values)
            return steady_window(chosen.steps, times, warmup_steps=warmup_steps, of=f"time per {unit}")
    steps = max((one.steps for one in series.values()), key=len, default=np.zeros(0, np.int64))
    found = steady_window(steps, np.ones(len(steps)), warmup_steps=warmup_steps)
    note = "no step_time_s and no rate, so whether the run was steady is unknown"
    return replace(found, steady=False, note=note, levels=())


def _reciprocal(values: Floats) -> Floats:
    with np.errstate(divide="ignore"):
        return np.asarray(1.0 / values, dtype=np.float64)


def obstacle_of(window: SteadyWindow, restarted: list[str], evidence: RunEvidence) -> str | None:
    """Why nothing about a longer run may be concluded, if so."""
    if restarted:
        return f"the step decreases in {', '.join(sorted(restarted))}: the file mixes runs"
    disturbed = _disturbed(evidence)
    if window.span is not None and disturbed:
        first, last = window.span.first_step, window.span.last_step
        inside = [
            (max(one.first_step, first), min(one.last_step, last), one.reason)
            for one in disturbed
            if one.first_step <= last and one.last_step >= first
        ]
        share = len(set().union(*(range(low, high + 1) for low, high, _ in inside))) / (last - first + 1)
        if share > _MAX_DISTURBED:
            low, high, why = inside[0]
            also = f" and {len(inside) - 1} more times" if len(inside) > 1 else ""
            return f"{format_percent(share)} of the window is invalid: {why} in steps {low}–{high}{also}"
    return None


def _disturbed(evidence: RunEvidence) -> list[InvalidWindow]:
    """Steps that say nothing of this trainer: another process used the GPUs, or the clock was set.

    Throttled steps are not among them: a long run throttles too.
    """
    return [one for one in evidence.invalid_windows if not one.throttled]


def windowed(
    series: Series,
    others: Mapping[str, Series],
    window: SteadyWindow,
    obstacle: str | None,
    known: Metric | None,
    *,
    warmup_steps: int,
    evidence: RunEvidence,
) -> Windowed:
    """One series within its window, with what its mean is made of. What is sampled may begin behind the warm-up.

    `known` says which window a series has; without it every step counts.

    Of what is sampled, rows in which something else disturbed the run are left out.
    """
    sampled = known is not None and known.window == "steady"
    steps, values, weights = series.steps, series.values, covered_steps(series.steps)
    if sampled:
        inside = _kept(steps, weights, window, _disturbed(evidence))
        steps, values, weights = steps[inside], values[inside], weights[inside]
        span = window.span if len(steps) else None
    else:
        weights = np.ones(1)
        span = Span(first_step=int(steps[0]), last_step=int(steps[-1]))
    if (weights == 1).all():  # a row for each step: the values are their own numerator
        weights, numerator = np.broadcast_to(np.ones(1), len(steps)), values
    else:
        numerator = values * weights
    denominator = weights
    by_time = series.name.startswith("telemetry.") or (known is not None and known.across is not None)
    hole = None if by_time else _hole(series, others, skipped=warmup_steps if sampled else 0)
    unsound = obstacle if sampled else None
    timing = timing_of(series, others, steps) if sampled else None
    left_out = sampled and int(window.contains(series.steps).sum()) - len(steps)
    return Windowed(
        name=series.name,
        unit=known.unit if known is not None and known.unit else series.unit,
        steps=steps,
        values=values,
        numerator=numerator,
        denominator=denominator,
        covered=weights,
        sampled=sampled,
        span=span,
        source=series.source.path,
        sha256=series.source.sha256,
        note=_joined(
            f"{left_out} rows in which something else disturbed the run are left out" if left_out else "",
            "" if timing is None else timing.note(),
        ),
        timing=timing,
        invalid=unsound or (hole.text if hole is not None else None),
        still_valid=("first", "n") if hole is not None and hole.after_first and unsound is None else ("n",),
    )


def _joined(*texts: str) -> str | None:
    return "; ".join(filter(None, texts)) or None


@dataclass(frozen=True)
class _Hole:
    """A stretch without rows, in words; and whether it lies behind the first row, which is then the run's first."""

    text: str
    after_first: bool


def _hole(series: Series, others: Mapping[str, Series], *, skipped: int) -> _Hole | None:
    """Where a series leaves out most of a run that others cover: its extremes, and its end, are not known.

    Rows may be rare, and the last one may be due only after the end; but a stretch without any, of a quarter of the
    run and ten times their own pace, is one of which nothing is known. Among rows at increasing intervals by a rule
    such a stretch is meant, but not behind the last one. Up to step
    `skipped` no rows are expected.
    """
    steps, rows = series.steps, max(len(one.steps) for one in others.values())
    if rows < _FEW_ROWS or len(steps) == rows:
        return None
    begin = min(int(one.steps[0]) for one in others.values())
    end = max(int(one.steps[-1]) for one in others.values())
    by_rule = thins_out(steps) and steps[0] <= max(begin, 1) + _FEW_ROWS and next_due(steps) > end
    if by_rule and end - int(steps[-1]) <= _HOLE_SHARE * (end - begin):
        return None
    strides = np.diff(steps, prepend=min(begin, 1) - 1)
    usual, longest = float(np.median(strides[1:] if len(strides) > 1 else strides)), int(strides[1:].max(initial=0))
    if by_rule or int(steps[-1]) + 2 * max(longest, int(strides[0]) if len(steps) == 1 else 0) <= end:
        noun = "row" if len(steps) == 1 else "rows"
        text = f"{series.name} has {len(steps)} {noun}, the last at step {steps[-1]}, where others continue to {end}"
        return _Hole(text, after_first=int(steps[0]) <= _HOLE_SHARE * (end - begin))
    expected = steps - np.maximum(steps - strides, skipped)
    wide = np.flatnonzero(expected > max(_HOLE_STRIDES * usual, _HOLE_SHARE * (end - begin)))
    if wide.size and len(steps) > 1:
        low, high = int(steps[wide[0]] - strides[wide[0]]), int(steps[wide[0]])
        text = f"{series.name} has no row between steps {low} and {high}, where others have"
        return _Hole(text, after_first=bool(wide[0] > 0))
    return None


def _kept(
    steps: Steps, covered: Floats, window: SteadyWindow, disturbed: list[InvalidWindow]
) -> slice | npt.NDArray[np.bool_]:
    """The window's rows, less those that hold a disturbed step."""
    inside = window.contains(steps)
    clean = inside.copy()
    for one in disturbed:
        clean &= (steps < one.first_step) | (steps - covered >= one.last_step)
    return _slice(inside) if clean.sum() == inside.sum() else clean


def _slice(inside: npt.NDArray[np.bool_]) -> slice:
    """The rows that are inside, which lie together since steps rise: as a slice they need no copy."""
    rows = np.flatnonzero(inside)
    return slice(int(rows[0]), int(rows[-1]) + 1) if rows.size else slice(0, 0)
