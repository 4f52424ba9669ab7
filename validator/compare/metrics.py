"""Whether a metric is better or worse on side b than on side a, by runs and never by steps.

With four runs or more on each side the run means decide, by Welch's test. With fewer, a rate or a time carries the
interval of its run and the variation between runs that the runbook assumes; other metrics are not decidable. A
difference counts when it is significant, after Holm's correction over the phases that show the same metric, and at
least `min_effect`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from validator.compare.side import Cell, Side
from validator.judge.autocorrelation import t_quantile
from validator.judge.compare import holm, pooled_cv, repeats_needed, welch
from validator.judge.estimate import LEVEL, MIN_REPEATS, REPLICATES, Estimate, combine, over_runs
from validator.judge.wording import number, percent
from validator.model.catalogue import METRICS, Metric
from validator.model.contrast import ContrastVerdict, MetricDifference, Sample
from validator.model.verdict import RunReport

__all__ = ["HEADLINES", "metric_differences"]

HEADLINES = ("toks_per_s", "gpu_mem_reserved_mib", "loss")
"""Metrics that the verdict of the whole rests on; the others explain."""

_Z_975 = 1.959963984540054
_STATISTIC = {"loss": "last", "gpu_mem_alloc_mib": "max", "gpu_mem_reserved_mib": "max", "host_mem_mib": "max"}
_TIME_UNITS = {"s": 1.0, "ms": 1e-3}


@dataclass(frozen=True)
class _Values:
    """One metric over the runs of one cell; `halves` are half widths of the runs' own intervals, None where open."""

    points: tuple[float, ...]
    halves: tuple[float | None, ...]
    obstacle: str | None

    @property
    def runs(self) -> int:
        return len(self.points)


@dataclass(frozen=True)
class _Tested:
    """A metric of a cell before the correction for multiple tests."""

    cell: Cell
    metric: Metric
    a: _Values
    b: _Values
    effect: float | None = None
    low: float | None = None
    high: float | None = None
    p_value: float | None = None
    assumed: bool = False
    why_open: str | None = None


def metric_differences(a: Side, b: Side) -> tuple[MetricDifference, ...]:
    """Every metric that has a good direction, for every phase and arm that both sides have run."""
    shared = [cell for cell in b.cells if cell in a.cells]
    found: list[MetricDifference] = []
    for metric in METRICS.values():
        if metric.better is None:
            continue
        tested = [
            _test(cell, metric, _values(a.cells[cell], metric), _values(b.cells[cell], metric), b.run_cv)
            for cell in shared
        ]
        tested = [one for one in tested if one.a.runs and one.b.runs]
        found += [_judged(one, a, b) for one in _corrected(tested)]
    order = {cell: index for index, cell in enumerate(shared)}
    return tuple(sorted(found, key=lambda one: (order[(one.phase, one.arm)], not one.headline)))


def _values(runs: Sequence[RunReport], metric: Metric) -> _Values:
    statistic = _STATISTIC.get(metric.name, "mean")
    points: list[float] = []
    halves: list[float | None] = []
    obstacle = None
    for run in runs:
        stats = run.metrics.get(metric.name)
        value = None if stats is None else getattr(stats, statistic)
        if stats is None or value is None:
            continue
        half = None
        if stats.ci_low is not None and stats.ci_high is not None:
            half = (stats.ci_high - stats.ci_low) / 2
        elif metric.window == "steady":
            obstacle = obstacle or f"{run.id}: {stats.note or 'it has no interval'}"
        if not math.isfinite(value):
            obstacle = f"{run.id}: {metric.name} is not finite"
        points.append(value)
        halves.append(half)
    return _Values(tuple(points), tuple(halves), obstacle)


def _test(cell: Cell, metric: Metric, a: _Values, b: _Values, run_cv: float) -> _Tested:
    tested = _Tested(cell, metric, a, b)
    if not a.runs or not b.runs:
        return tested
    effect = _effect(float(np.mean(a.points)), float(np.mean(b.points)))
    obstacle = a.obstacle or b.obstacle
    if obstacle is not None or effect is None or not math.isfinite(effect):
        return replace(tested, effect=effect, why_open=obstacle or "it is 0 on one side, which has no relative change")
    if not any(a.points) and not any(b.points):
        return replace(tested, effect=0.0, low=0.0, high=0.0)
    if min(a.runs, b.runs) >= MIN_REPEATS:
        answer = welch(b.points, a.points)
        return replace(tested, effect=effect, low=answer.low, high=answer.high, p_value=answer.p_value)
    if metric.window != "steady":
        same = effect == 0.0
        why = None if same else f"it has no interval within a run, and there are fewer than {MIN_REPEATS} runs a side"
        return replace(tested, effect=effect, low=0.0 if same else None, high=0.0 if same else None, why_open=why)
    return _by_assumption(tested, effect, run_cv)


def _effect(a: float, b: float) -> float | None:
    """b over a, less 1; None where that does not exist."""
    if a == b:
        return 0.0
    return (b - a) / abs(a) if a else None


def _by_assumption(tested: _Tested, effect: float, run_cv: float) -> _Tested:
    """Too few runs to know how they vary: each side has its runs' intervals and the assumed variation."""
    sign = -1 if tested.metric.better == "higher" else 1
    sides = [
        over_runs(_estimates(values, salt), run_cv=run_cv, sign=sign, seed=f"{tested.metric.name}/{salt}")
        for values, salt in ((tested.b, "b"), (tested.a, "a"))
    ]
    ratio = combine("/", sides)
    assert ratio.replicates is not None, "the variation between runs always gives replicates"
    low, high = (float(end) - 1.0 for end in np.quantile(ratio.replicates, [(1 - LEVEL) / 2, (1 + LEVEL) / 2]))
    tail = min(float((ratio.replicates <= 1.0).mean()), float((ratio.replicates >= 1.0).mean()))
    p_value = max(2 * tail, 1.0 / REPLICATES)
    return replace(tested, effect=effect, low=low, high=high, p_value=p_value, assumed=True)


def _estimates(values: _Values, salt: str) -> list[Estimate]:
    rng = np.random.default_rng([ord(salt), values.runs])
    return [
        Estimate(point, point + (half or 0.0) / _Z_975 * rng.standard_normal(REPLICATES))
        for point, half in zip(values.points, values.halves, strict=True)
    ]


def _corrected(tested: Sequence[_Tested]) -> list[_Tested]:
    """With p values adjusted for the number of cells in which the same metric was tested."""
    known = [index for index, one in enumerate(tested) if one.p_value is not None]
    adjusted = holm([float(tested[index].p_value or 0.0) for index in known])
    result = list(tested)
    for index, p_value in zip(known, adjusted, strict=True):
        result[index] = replace(tested[index], p_value=p_value)
    return result


def _judged(one: _Tested, a: Side, b: Side) -> MetricDifference:
    verdict, needed, message = _verdict(one, a, b)
    phase, arm = one.cell
    return MetricDifference(
        phase=phase,
        arm=arm,
        metric=f"{one.metric.name}.{_STATISTIC.get(one.metric.name, 'mean')}",
        unit=one.metric.unit,
        better=one.metric.better or "higher",
        a=_sample(one.a),
        b=_sample(one.b),
        change=one.effect,
        change_low=one.low,
        change_high=one.high,
        p_value=one.p_value,
        verdict=verdict,
        repeats_needed=needed,
        headline=one.metric.name in HEADLINES,
        message=message,
    )


def _sample(values: _Values) -> Sample:
    points, mean = np.asarray(values.points), float(np.mean(values.points))
    half = values.halves[0] if values.runs == 1 else None
    if values.runs >= 2:
        half = t_quantile((1 + LEVEL) / 2, values.runs - 1) * float(points.std(ddof=1)) / math.sqrt(values.runs)
    known = half is not None and math.isfinite(half)
    return Sample(
        value=mean,
        ci_low=mean - half if known and half is not None else None,
        ci_high=mean + half if known and half is not None else None,
        runs=values.runs,
    )


def _verdict(one: _Tested, a: Side, b: Side) -> tuple[ContrastVerdict, int | None, str]:
    min_effect = b.min_effect
    shown = f"{number(float(np.mean(one.a.points)))} → {number(float(np.mean(one.b.points)))} {one.metric.unit}".strip()
    if one.why_open is not None:
        return "not_decidable", None if one.a.obstacle or one.b.obstacle else MIN_REPEATS, f"{shown}: {one.why_open}."
    if one.effect is None or one.low is None or one.high is None:
        return "not_decidable", None, f"{shown}: nothing can be said."
    told = f"{shown}, {percent(one.effect)} [{percent(one.low)}, {percent(one.high)}]"
    if one.effect == one.low == one.high == 0.0:
        return "no_difference", None, f"{shown}: the same."
    assumed = f"; {100 * b.run_cv:g} % between runs is assumed" if one.assumed else ""
    if _immaterial(one, a, min_effect):
        return "no_difference", None, f"{told}: less than {100 * min_effect:g} % of a step's time."
    significant = one.p_value is not None and one.p_value < 1 - LEVEL and abs(one.effect) >= min_effect
    if significant:
        good = (one.effect > 0) == (one.metric.better == "higher")
        return "better" if good else "worse", None, f"{told}, p = {one.p_value:.2g}{assumed}."
    reach = max(abs(one.low), abs(one.high))
    if reach <= min_effect or (not one.assumed and one.p_value is not None):
        open_end = f"; up to {100 * reach:.1f} % remains possible" if reach > min_effect else ""
        return "no_difference", None, f"{told}: no significant difference{open_end}{assumed}."
    needed = _needed(one, b)
    return "not_decidable", needed, f"{told}: about {needed} runs on each side would tell{assumed}."


def _needed(one: _Tested, b: Side) -> int:
    cv = pooled_cv([one.a.points, one.b.points])
    assumed = b.run_cv if cv is None else max(cv, 1e-4)
    return repeats_needed(assumed, max(b.min_effect, abs(one.effect or 0.0)))


def _immaterial(one: _Tested, a: Side, min_effect: float) -> bool:
    """Whether a part of the step's time differs by less than the minimum effect on the whole step."""
    scale = _TIME_UNITS.get(one.metric.unit)
    if scale is None or one.metric.name == "step_time_s":
        return False
    steps = [run.metrics["step_time_s"].mean for run in a.cells[one.cell] if "step_time_s" in run.metrics]
    known = [step for step in steps if step is not None and math.isfinite(step)]
    if not known:
        return False
    difference_s = abs(float(np.mean(one.b.points)) - float(np.mean(one.a.points))) * scale
    return difference_s < min_effect * float(np.mean(known))
