"""Whether a metric is better or worse on side b than on side a, by runs and never by steps.

With four runs or more on each side the run means decide, by Welch's test, whatever interval each run has of its own.
With fewer, a rate or a time carries the interval of its run and the variation between runs that the runbook assumes;
other metrics are inconclusive. A difference counts when it is significant, after Holm's correction over the phases
that show the same metric, and at least `min_effect`. There is no difference where the whole 90 % interval lies within
`min_effect` (two one-sided tests at 5 %); between the two it is inconclusive.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from validator.judge.cost import PER_MILLION, cost_stats
from validator.model.catalogue import METRICS, MIN_REPEATS, Metric, headlines
from validator.model.contrast import ContrastSide, ContrastVerdict, MetricDifference, Sample
from validator.model.machine import machine_class
from validator.model.runbook import Runbook
from validator.model.schemas import reported
from validator.model.settings import ranks_of
from validator.model.verdict import Finding, PhaseReport, RunReport, ValidationReport, Verdict
from validator.stats.distributions import t_quantile
from validator.stats.estimate import LEVEL, NORMAL_975, REPLICATES, Estimate, combine, over_runs
from validator.stats.means import ONE_SIDED, holm, pooled_cv, ratio, repeats_for_equality, repeats_needed, welch
from validator.text import format_change, format_interval, format_number, format_p_value, format_percent

Cell = tuple[str | None, str | None]
"""Phase and arm; (None, None) for a trainer folder, which knows neither."""


@dataclass(frozen=True)
class Side:
    """What is compared. `facts` are machine and software, flat; `min_effect`, `run_cv` and what `metrics` adds to the
    catalogue are the runbook's.
    """

    subject: ContrastSide
    cells: Mapping[Cell, tuple[RunReport, ...]]
    criteria: Mapping[str, Verdict] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    facts: Mapping[str, str] = field(default_factory=dict)
    min_effect: float = 0.02
    run_cv: float = 0.02
    metrics: Mapping[str, Metric] = field(default_factory=lambda: METRICS)


def validation_side(
    report: ValidationReport, *, runbook: Runbook, path: str | None = None, facts: Mapping[str, str] | None = None
) -> Side:
    """A validation: every phase that trains, arm by arm."""
    cells: dict[Cell, list[RunReport]] = {}
    for phase in report.phases:
        for run in phase.measured if reported(phase.kind).compared else ():
            cells.setdefault((phase.id, run.arm), []).append(_with_cost(run, phase, runbook))
    subject = ContrastSide(
        kind="validation",
        name=report.run_id,
        path=path,
        decision=report.decision,
        runbook=report.runbook.name,
        machine=machine_class(report.environment),
        started=report.started,
    )
    return Side(
        subject=subject,
        cells={cell: tuple(runs) for cell, runs in cells.items()},
        criteria={verdict.id: verdict for phase in report.phases for verdict in phase.criteria},
        findings=report.findings,
        facts=facts or {},
        min_effect=runbook.defaults.min_effect,
        run_cv=runbook.defaults.run_cv,
        metrics={**METRICS, **runbook.trainer.metrics.declared, PER_MILLION: _cost_in(runbook.hardware.currency)},
    )


def _cost_in(currency: str) -> Metric:
    """The cost per million tokens as a metric. Its price is the side's, so it can change where the rate does not."""
    return Metric(PER_MILLION, currency, "steady", "lower", "cost per million tokens", follows=True)


def _with_cost(run: RunReport, phase: PhaseReport, runbook: Runbook) -> RunReport:
    """A run with what its tokens cost among its metrics, where the runbook declares a price for its phase."""
    price, rate = runbook.hardware.price_per_gpu_hour, run.metrics.get("toks_per_s")
    if price is None or rate is None or not reported(phase.kind).one_config:
        return run
    declared = next((one for one in runbook.phases if one.id == phase.id), None)
    nproc = 0 if declared is None else ranks_of(runbook, declared)
    per_rank, unit = run.metrics.get("toks_per_s_per_rank"), runbook.hardware.currency
    known = phase.scalars.get(PER_MILLION)
    judged = known.value if known is not None and isinstance(known.value, float) else None
    cost = cost_stats(rate, per_rank, price=price, nproc=nproc, unit=unit, judged=judged)
    return run.model_copy(update={"metrics": {**run.metrics, PER_MILLION: cost}})


def run_side(
    run: RunReport,
    findings: tuple[Finding, ...],
    *,
    name: str,
    path: str,
    facts: Mapping[str, str] | None = None,
    declared: Mapping[str, Metric] | None = None,
) -> Side:
    """A trainer's folder, which is one run; `declared` are the metrics that its runbook adds to the catalogue."""
    subject, metrics = ContrastSide(kind="run", name=name, path=path), {**METRICS, **(declared or {})}
    return Side(subject=subject, cells={(None, None): (run,)}, findings=findings, facts=facts or {}, metrics=metrics)


# Whether a metric is better or worse on side b than on side a, by runs and never by steps.

_TIME_UNITS = {"s": 1.0, "ms": 1e-3}


_LimitsOf = Callable[[float], tuple[float, float]]
"""Error of a one-sided limit to the lower and the upper one of b over a, less 1."""


@dataclass(frozen=True)
class _MetricValues:
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
    a: _MetricValues
    b: _MetricValues
    effect: float | None = None
    low: float | None = None
    high: float | None = None
    p_value: float | None = None
    limits: _LimitsOf | None = None
    assumed: bool = False
    why_open: str | None = None

    def loss(self, alpha: float = ONE_SIDED) -> tuple[float, float] | None:
        """The minimum and the maximum by which side b may be worse, as shares; each is wrong in `alpha` of cases."""
        if self.limits is None:
            return None
        low, high = self.limits(alpha)
        return (-high, -low) if self.metric.better == "higher" else (low, high)


def metric_differences(a: Side, b: Side, *, not_worse_than: float | None = None) -> tuple[MetricDifference, ...]:
    """Every metric that has a good direction, for every phase and arm that both sides have run.

    With `not_worse_than`, a share, the verdicts answer that one-sided question.
    """
    shared = [cell for cell in b.cells if cell in a.cells]
    rests = {cell: headlines(_metric_names(a.cells[cell]) & _metric_names(b.cells[cell]), b.metrics) for cell in shared}
    found: list[MetricDifference] = []
    for metric in b.metrics.values():
        if metric.better is None:
            continue
        tested = [_test(cell, metric, (a, b), one_sided=not_worse_than is not None) for cell in shared]
        tested = [one for one in tested if one.a.runs and one.b.runs]
        found += [_metric_difference(one, a, b, not_worse_than, len(tested)) for one in _corrected(tested)]
    found = [
        one.model_copy(update={"headline": one.metric.rpartition(".")[0] in rests[one.phase, one.arm]}) for one in found
    ]
    order = {cell: index for index, cell in enumerate(shared)}
    return tuple(sorted(found, key=lambda one: (order[(one.phase, one.arm)], not one.headline)))


def _metric_names(runs: Sequence[RunReport]) -> set[str]:
    return {name for run in runs for name in run.metrics}


def _metric_values(runs: Sequence[RunReport], metric: Metric) -> _MetricValues:
    points: list[float] = []
    halves: list[float | None] = []
    obstacle = no_interval = None
    for run in runs:
        stats = run.metrics.get(metric.name)
        value = None if stats is None else getattr(stats, metric.statistic)
        if stats is None or value is None:
            continue
        half = stats.half_width
        if half is None and metric.window == "steady":
            no_interval = no_interval or f"{run.id}: {stats.note or 'it has no interval'}"
        if stats.invalid is not None:
            obstacle = f"{run.id}: {stats.invalid}"
        if metric.name == PER_MILLION and stats.unit != metric.unit:
            obstacle = f"{run.id}: it is in {stats.unit or 'no currency'} there, in {metric.unit or 'none'} here"
        if not math.isfinite(value):
            obstacle = f"{run.id}: {metric.name} is not finite"
        points.append(value)
        halves.append(half)
    versions = {run.metrics[metric.name].version for run in runs if metric.name in run.metrics}
    return _MetricValues(tuple(points), tuple(halves), obstacle, no_interval, min(versions, default=metric.version))


def _test(cell: Cell, metric: Metric, sides: tuple[Side, Side], *, one_sided: bool) -> _Tested:
    a, b = (_metric_values(side.cells[cell], metric) for side in sides)
    run_cv = sides[1].run_cv
    tested = _Tested(cell, metric, a, b)
    if not a.runs or not b.runs:
        return tested
    if a.version != b.version:
        old, new = sorted((a.version, b.version))
        why = f"{metric.name} is by definition {old} on one side and {new} on the other, and cannot be recomputed"
        return replace(tested, why_open=why)
    effect = _effect(float(np.mean(a.points)), float(np.mean(b.points)))
    few = min(a.runs, b.runs) < MIN_REPEATS
    obstacle = a.obstacle or b.obstacle or ((a.no_interval or b.no_interval) if few else None)
    if obstacle is not None or effect is None or not math.isfinite(effect):
        return replace(tested, effect=effect, why_open=obstacle or "it is 0 on one side, which has no relative change")
    if not any(a.points) and not any(b.points):
        return _equal(tested)
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
            return _equal(tested)
        why = f"it has no interval within a run, and there are fewer than {MIN_REPEATS} runs a side"
        return replace(tested, effect=effect, why_open=why)
    return _by_assumption(tested, effect, run_cv)


def _equal(tested: _Tested) -> _Tested:
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


def _estimates(values: _MetricValues, salt: str) -> list[Estimate]:
    rng = np.random.default_rng([ord(salt), values.runs])
    return [
        Estimate(point, point + (half or 0.0) / NORMAL_975 * rng.standard_normal(REPLICATES))
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


def _metric_difference(one: _Tested, a: Side, b: Side, not_worse_than: float | None, phases: int) -> MetricDifference:
    if not_worse_than is None:
        verdict, needed, message = _two_sided(one, a, b)
    else:
        verdict, needed, message = _one_sided(one, b, not_worse_than, phases)
    loss = one.loss()
    phase, arm = one.cell
    return MetricDifference(
        phase=phase,
        arm=arm,
        metric=PER_MILLION if one.metric.name == PER_MILLION else f"{one.metric.name}.{one.metric.statistic}",
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
        message=message,
    )


def _sample(values: _MetricValues) -> Sample:
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


def _two_sided(one: _Tested, a: Side, b: Side) -> tuple[ContrastVerdict, int | None, str]:
    means = _means_text(one)
    if one.why_open is not None or one.effect is None or one.low is None or one.high is None or one.limits is None:
        return _inconclusive(one, means)
    shown = f"{means}, {format_change(one.effect)} {format_interval(one.low, one.high, format_change)}"
    assumed = _assumption_text(one, b)
    if one.effect == one.low == one.high == 0.0:
        return "no_difference", None, f"{means}: the same."
    if _immaterial(one, a, b.min_effect):
        return "no_difference", None, f"{shown}: less than {format_percent(b.min_effect)} of a step's time."
    if one.p_value is not None and one.p_value < 1 - LEVEL and abs(one.effect) >= b.min_effect:
        good = (one.effect > 0) == (one.metric.better == "higher")
        return "better" if good else "worse", None, f"{shown}, {format_p_value(one.p_value)}{assumed}."
    low, high = one.limits(ONE_SIDED)
    inner = f"90 % interval {format_interval(low, high, format_change)}"
    if -b.min_effect < low and high < b.min_effect:
        return "no_difference", None, f"{shown}: equal within {format_percent(b.min_effect)} ({inner}){assumed}."
    wanted = _runs_needed(one, b)
    return "not_decidable", wanted, f"{shown}: about {wanted} runs per side are needed{assumed}."


def _one_sided(one: _Tested, b: Side, margin: float, phases: int) -> tuple[ContrastVerdict, int | None, str]:
    """Whether side b is not worse by more than the margin. That it is worse is tested in every phase, so corrected."""
    means, loss, corrected = _means_text(one), one.loss(), one.loss(ONE_SIDED / max(1, phases))
    if one.why_open is not None or one.effect is None or loss is None or corrected is None:
        return _inconclusive(one, means)
    shown, assumed = f"{means}, {format_change(one.effect)}", _assumption_text(one, b)
    bound, at_most, at_least = format_percent(margin), format_percent(loss[1]), format_percent(corrected[0])
    if loss[1] < margin:
        worst = f"worse by {at_most} at most" if loss[1] > 0 else "not worse at all"
        return "not_worse", None, f"{shown}: {worst}, which is less than {bound}{assumed}."
    if corrected[0] > margin:
        return "worse", None, f"{shown}: worse by {at_least} at least, which is more than {bound}{assumed}."
    cv = pooled_cv([one.a.points, one.b.points])
    wanted = repeats_for_equality(b.run_cv if cv is None else max(cv, 1e-4), margin, two_sided=False)
    needed = f"about {wanted} runs per side are needed"
    return "not_decidable", wanted, f"{shown}: it may be worse by {at_most}; {needed}{assumed}."


def _means_text(one: _Tested) -> str:
    means = (format_number(float(np.mean(side.points))) for side in (one.a, one.b))
    return f"{' → '.join(means)} {one.metric.unit}".strip()


def _assumption_text(one: _Tested, b: Side) -> str:
    return f"; {format_percent(b.run_cv)} between runs is assumed" if one.assumed else ""


def _inconclusive(one: _Tested, means: str) -> tuple[ContrastVerdict, int | None, str]:
    """What cannot be tested, and how many runs on each side could be."""
    if one.why_open is None:
        return "not_decidable", None, f"{means}: nothing can be said."
    lasting = one.a.obstacle or one.b.obstacle or one.a.version != one.b.version
    return "not_decidable", None if lasting else MIN_REPEATS, f"{means}: {one.why_open}."


def _runs_needed(one: _Tested, b: Side) -> int:
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
