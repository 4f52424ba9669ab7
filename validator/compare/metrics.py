"""Whether a metric is better or worse on side b than on side a, by runs and never by steps.

With four runs or more on each side the run means decide, by Welch's test, whatever interval each run has of its own.
With fewer, a rate or a time carries the interval of its run and the variation between runs that the runbook assumes;
other metrics are not decidable. A difference counts when it is significant, after Holm's correction over the phases
that show the same metric, and at least `min_effect`. There is no difference where the whole 90 % interval lies within
`min_effect` (two one-sided tests at 5 %); between the two the answer is "not decidable".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from validator.compare.side import Cell, Side
from validator.judge.autocorrelation import t_quantile
from validator.judge.estimate import LEVEL, MIN_REPEATS, REPLICATES, Estimate, combine, over_runs
from validator.judge.means import (
    ONE_SIDED,
    holm,
    pooled_cv,
    ratio,
    repeats_for_equality,
    repeats_needed,
    welch,
)
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


_Limits = Callable[[float], tuple[float, float]]
"""Error of a one-sided limit to the lower and the upper one of b over a, less 1."""


@dataclass(frozen=True)
class _Values:
    """One metric over the runs of one cell; `halves` are half widths of the runs' own intervals, None where open.

    `obstacle` says why nothing can be compared, `no_interval` why a single run says nothing of others.
    """

    points: tuple[float, ...]
    halves: tuple[float | None, ...]
    obstacle: str | None
    no_interval: str | None
    version: int = 1

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
    limits: _Limits | None = None
    assumed: bool = False
    why_open: str | None = None

    def loss(self, alpha: float = ONE_SIDED) -> tuple[float, float] | None:
        """The least and the most by which side b may be worse, as shares; each is wrong in `alpha` of cases."""
        if self.limits is None:
            return None
        low, high = self.limits(alpha)
        return (-high, -low) if self.metric.better == "higher" else (low, high)


def metric_differences(a: Side, b: Side, *, not_worse_than: float | None = None) -> tuple[MetricDifference, ...]:
    """Every metric that has a good direction, for every phase and arm that both sides have run.

    With `not_worse_than`, a share, the verdicts answer that one-sided question.
    """
    shared = [cell for cell in b.cells if cell in a.cells]
    found: list[MetricDifference] = []
    for metric in METRICS.values():
        if metric.better is None:
            continue
        tested = [_test(cell, metric, (a, b), one_sided=not_worse_than is not None) for cell in shared]
        tested = [one for one in tested if one.a.runs and one.b.runs]
        found += [_judged(one, a, b, not_worse_than, len(tested)) for one in _corrected(tested)]
    order = {cell: index for index, cell in enumerate(shared)}
    return tuple(sorted(found, key=lambda one: (order[(one.phase, one.arm)], not one.headline)))


def _values(runs: Sequence[RunReport], metric: Metric) -> _Values:
    statistic = _STATISTIC.get(metric.name, "mean")
    points: list[float] = []
    halves: list[float | None] = []
    obstacle = no_interval = None
    for run in runs:
        stats = run.metrics.get(metric.name)
        value = None if stats is None else getattr(stats, statistic)
        if stats is None or value is None:
            continue
        half = None
        if stats.ci_low is not None and stats.ci_high is not None:
            half = (stats.ci_high - stats.ci_low) / 2
        elif metric.window == "steady":
            no_interval = no_interval or f"{run.id}: {stats.note or 'it has no interval'}"
        if stats.invalid is not None:
            obstacle = f"{run.id}: {stats.invalid}"
        if not math.isfinite(value):
            obstacle = f"{run.id}: {metric.name} is not finite"
        points.append(value)
        halves.append(half)
    versions = {run.metrics[metric.name].version for run in runs if metric.name in run.metrics}
    return _Values(tuple(points), tuple(halves), obstacle, no_interval, min(versions, default=metric.version))


def _test(cell: Cell, metric: Metric, sides: tuple[Side, Side], *, one_sided: bool) -> _Tested:
    a, b = (_values(side.cells[cell], metric) for side in sides)
    run_cv = sides[1].run_cv
    tested = _Tested(cell, metric, a, b)
    if not a.runs or not b.runs:
        return tested
    if a.version != b.version:
        old, new = sorted((a.version, b.version))
        why = f"{metric.name} is by definition {old} on one side and {new} on the other, and cannot be computed anew"
        return replace(tested, why_open=why)
    effect = _effect(float(np.mean(a.points)), float(np.mean(b.points)))
    few = min(a.runs, b.runs) < MIN_REPEATS
    obstacle = a.obstacle or b.obstacle or ((a.no_interval or b.no_interval) if few else None)
    if obstacle is not None or effect is None or not math.isfinite(effect):
        return replace(tested, effect=effect, why_open=obstacle or "it is 0 on one side, which has no relative change")
    if not any(a.points) and not any(b.points):
        return _same(tested)
    if not few:
        answer = welch(b.points, a.points)
        found = ratio(b.points, a.points, assumed_cv=run_cv if one_sided else None)
        return replace(
            tested,
            effect=effect,
            low=answer.low,
            high=answer.high,
            p_value=answer.p_value,
            limits=lambda alpha: (found.low(alpha), found.high(alpha)),
        )
    if metric.window != "steady":
        if effect == 0.0:
            return _same(tested)
        why = f"it has no interval within a run, and there are fewer than {MIN_REPEATS} runs a side"
        return replace(tested, effect=effect, why_open=why)
    return _by_assumption(tested, effect, run_cv)


def _same(tested: _Tested) -> _Tested:
    return replace(tested, effect=0.0, low=0.0, high=0.0, limits=lambda _: (0.0, 0.0))


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
    replicates = combine("/", sides).replicates
    assert replicates is not None, "the variation between runs always gives replicates"

    def limits(alpha: float) -> tuple[float, float]:
        low, high = np.quantile(replicates, [alpha, 1 - alpha])
        return float(low) - 1.0, float(high) - 1.0

    low, high = limits((1 - LEVEL) / 2)
    tail = min(float((replicates <= 1.0).mean()), float((replicates >= 1.0).mean()))
    p_value = max(2 * tail, 1.0 / REPLICATES)
    return replace(tested, effect=effect, low=low, high=high, p_value=p_value, limits=limits, assumed=True)


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


def _judged(one: _Tested, a: Side, b: Side, not_worse_than: float | None, phases: int) -> MetricDifference:
    if not_worse_than is None:
        verdict, needed, message = _verdict(one, a, b)
    else:
        verdict, needed, message = _one_sided(one, b, not_worse_than, phases)
    loss = one.loss()
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
        worst=None if loss is None else loss[1],
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
    shown = _shown(one)
    if one.why_open is not None or one.effect is None or one.low is None or one.high is None or one.limits is None:
        return _open(one, shown)
    told, assumed = f"{shown}, {percent(one.effect)} [{percent(one.low)}, {percent(one.high)}]", _assumed(one, b)
    if one.effect == one.low == one.high == 0.0:
        return "no_difference", None, f"{shown}: the same."
    if _immaterial(one, a, b.min_effect):
        return "no_difference", None, f"{told}: less than {100 * b.min_effect:g} % of a step's time."
    significant = one.p_value is not None and one.p_value < 1 - LEVEL and abs(one.effect) >= b.min_effect
    if significant:
        good = (one.effect > 0) == (one.metric.better == "higher")
        return "better" if good else "worse", None, f"{told}, p = {one.p_value:.2g}{assumed}."
    low, high = one.limits(ONE_SIDED)
    inner = f"90 % interval [{percent(low)}, {percent(high)}]"
    if -b.min_effect < low and high < b.min_effect:
        return "no_difference", None, f"{told}: equal within {100 * b.min_effect:g} % ({inner}){assumed}."
    wanted = _needed(one, b)
    return "not_decidable", wanted, f"{told}: about {wanted} runs on each side would tell{assumed}."


def _one_sided(one: _Tested, b: Side, margin: float, phases: int) -> tuple[ContrastVerdict, int | None, str]:
    """Whether side b is not worse by more than the margin. That it is worse is tested in every phase, so corrected."""
    shown, most, least = _shown(one), one.loss(), one.loss(ONE_SIDED / max(1, phases))
    if one.why_open is not None or one.effect is None or most is None or least is None:
        return _open(one, shown)
    told, assumed = f"{shown}, {percent(one.effect)}", _assumed(one, b)
    bound = f"{100 * margin:g} %"
    if most[1] < margin:
        worst = f"worse by {100 * most[1]:.1f} % at most" if most[1] > 0 else "not worse at all"
        return "not_worse", None, f"{told}: {worst}, which is less than {bound}{assumed}."
    if least[0] > margin:
        return "worse", None, f"{told}: worse by {100 * least[0]:.1f} % at least, which is more than {bound}{assumed}."
    cv = pooled_cv([one.a.points, one.b.points])
    wanted = repeats_for_equality(b.run_cv if cv is None else max(cv, 1e-4), margin, two_sided=False)
    return (
        "not_decidable",
        wanted,
        f"{told}: it may be worse by {100 * most[1]:.1f} %; about {wanted} runs on each side would tell{assumed}.",
    )


def _shown(one: _Tested) -> str:
    return f"{number(float(np.mean(one.a.points)))} → {number(float(np.mean(one.b.points)))} {one.metric.unit}".strip()


def _assumed(one: _Tested, b: Side) -> str:
    return f"; {100 * b.run_cv:g} % between runs is assumed" if one.assumed else ""


def _open(one: _Tested, shown: str) -> tuple[ContrastVerdict, int | None, str]:
    """What cannot be tested, and how many runs on each side could be."""
    if one.why_open is None:
        return "not_decidable", None, f"{shown}: nothing can be said."
    lasting = one.a.obstacle or one.b.obstacle or one.a.version != one.b.version
    return "not_decidable", None if lasting else MIN_REPEATS, f"{shown}: {one.why_open}."


def _needed(one: _Tested, b: Side) -> int:
    """Runs on each side that would show the difference that is seen, or, where it is too small to count, equality."""
    cv = pooled_cv([one.a.points, one.b.points])
    assumed = b.run_cv if cv is None else max(cv, 1e-4)
    if abs(one.effect or 0.0) >= b.min_effect:
        return repeats_needed(assumed, abs(one.effect or 0.0))
    return repeats_for_equality(assumed, b.min_effect)


def _immaterial(one: _Tested, a: Side, min_effect: float) -> bool:
    """Whether a part of the step's time can differ by less than the minimum effect on the whole step."""
    scale = _TIME_UNITS.get(one.metric.unit)
    if scale is None or one.metric.name == "step_time_s":
        return False
    steps = [run.metrics["step_time_s"].mean for run in a.cells[one.cell] if "step_time_s" in run.metrics]
    known = [step for step in steps if step is not None and math.isfinite(step)]
    if not known:
        return False
    assert one.low is not None, "asked only of what has an interval"
    assert one.high is not None, "asked only of what has an interval"
    reach_s = max(abs(one.low), abs(one.high)) * abs(float(np.mean(one.a.points))) * scale
    return reach_s < min_effect * float(np.mean(known))
