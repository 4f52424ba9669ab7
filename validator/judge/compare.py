"""Which arm of a sweep or an A/B is better: by run means, never by steps.

Steps of one run share the run's placement, clocks and cache state; they are not replicates. So arms are compared by
Welch's t test on run means, with at least four runs for each arm, and a difference must also be worth having
(`min_effect`). With several arms all pairs are tested and corrected by Holm (1979). "No difference" is an answer that
has to be shown, by two one-sided tests (Schuirmann 1987): the whole 90 % interval of the ratio lies within the minimum
effect. What is neither different nor equal is inconclusive, and changes no setting.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from validator.judge.config import identical_arms, same_value
from validator.judge.data import PhaseData
from validator.model.arguments import declared_value
from validator.model.catalogue import MIN_REPEATS
from validator.model.expression import parse_reference
from validator.model.record import RunRecord
from validator.model.resolve import Resolved, resolve
from validator.model.runbook import ArmsPhase, Runbook
from validator.model.settings import min_effect_of
from validator.model.verdict import ArmComparison, ComparedArm
from validator.stats.distributions import t_quantile
from validator.stats.estimate import LEVEL, Estimate
from validator.stats.means import Welch, holm, pooled_cv, ratio, repeats_for_equality, repeats_needed, welch
from validator.stats.measure import NotMeasured
from validator.text import (
    format_change,
    format_interval,
    format_number,
    format_p_value,
    format_percent,
    format_size,
    listed,
    plural,
)

_ALPHA = 1.0 - LEVEL


@dataclass(frozen=True)
class ArmRuns:
    """One arm: its settings, one value per run of the compared metric, and of the metric that breaks ties.

    `missing` says why fewer values than runs are there.
    """

    arm: str
    settings: Mapping[str, str | int | float | bool]
    values: tuple[float, ...]
    tie_values: tuple[float, ...] = ()
    missing: str | None = None


@dataclass(frozen=True)
class ComparisonRules:
    """How arms are compared, from the phase's `choose`."""

    metric: str
    unit: str
    direction: Literal["highest", "lowest"]
    min_effect: float
    prefer: str | None = None
    tie: str | None = None
    declared: str | None = None
    """The arm whose settings are those of the runbook."""
    adopt: bool = False


def compare_arms(arms: Sequence[ArmRuns], *, rules: ComparisonRules, vacuous: str | None = None) -> ArmComparison:
    """The answer of a sweep or an A/B.

    Args:
        arms: in the order of the runbook.
        rules: metric, direction and minimum effect.
        vacuous: why the setting cannot have made a difference, if so.
    """
    if vacuous is not None:
        return _comparison(rules, arms, ("vacuous", None, f"The comparison is vacuous: {vacuous}."))
    short = _too_few(arms, rules)
    if short is not None:
        return _comparison(rules, arms, ("not_decidable", None, short))
    sign = 1.0 if rules.direction == "highest" else -1.0
    ranked = sorted(arms, key=lambda arm: -sign * float(np.mean(arm.values)))
    pairs = {frozenset((a.arm, b.arm)): welch(a.values, b.values).p_value for a, b in itertools.combinations(ranked, 2)}
    adjusted = dict(zip(pairs, holm(list(pairs.values())), strict=True))
    best = ranked[0]
    rivals = (best, *(arm for arm in ranked[1:] if not _worse(best, arm, adjusted, rules)))
    runner = rivals[1] if len(rivals) > 1 else ranked[1]
    test, p_value = welch(best.values, runner.values), adjusted[frozenset((best.arm, runner.arm))]
    if len(rivals) == 1:
        answer = _significant(rules, best, runner, test, p_value)
    elif all(_equal(best, arm, rules) for arm in rivals[1:]):
        answer = _no_difference(rules, rivals, arms, test)
    else:
        answer = _undecided(rules, rivals, arms, test, p_value)
    return _comparison(rules, arms, answer, test, p_value)


_Answer = tuple[Literal["significant", "no_difference", "not_worse", "not_decidable", "vacuous"], str | None, str]
"""The outcome, the arm that it recommends, and the sentence that says so."""


def _compared_arm(arm: ArmRuns) -> ComparedArm:
    values = np.asarray(arm.values, dtype=float)
    n = len(values)
    mean = float(values.mean()) if n else None
    half = None
    if n >= 2:
        half = t_quantile((1 + LEVEL) / 2, n - 1) * float(values.std(ddof=1)) / math.sqrt(n)
    return ComparedArm(
        arm=arm.arm,
        settings=dict(arm.settings),
        run_means=arm.values,
        mean=mean,
        ci_low=None if mean is None or half is None else mean - half,
        ci_high=None if mean is None or half is None else mean + half,
        stdev=float(values.std()) if n else None,
        tie_value=float(np.mean(arm.tie_values)) if arm.tie_values else None,
    )


def _too_few(arms: Sequence[ArmRuns], rules: ComparisonRules) -> str | None:
    """Why nothing can be decided, if so, and how many repeats would decide it."""
    if len(arms) < 2:
        return "Inconclusive: there is only one arm to compare."
    missing = [arm for arm in arms if arm.missing is not None]
    if missing and any(len(arm.values) < MIN_REPEATS for arm in missing):
        return f"Inconclusive: {missing[0].missing}."
    fewest = min(arms, key=lambda arm: (len(arm.values), -float(np.std(arm.values)) if arm.values else 0.0))
    if len(fewest.values) >= MIN_REPEATS:
        broken = next((arm for arm in arms if not np.isfinite(arm.values).all()), None)
        return None if broken is None else f"Inconclusive: {rules.metric} of {broken.arm} is not finite in every run."
    cv = pooled_cv([arm.values for arm in arms])
    if cv is None:
        advice = f"at least {MIN_REPEATS} are needed"
    else:
        wanted = repeats_needed(cv, rules.min_effect, comparisons=len(arms) * (len(arms) - 1) // 2)
        advice = (
            f"at least {MIN_REPEATS} are needed, and with the variation seen between runs ({format_percent(cv)}) "
            f"about {wanted} would find a difference of {format_percent(rules.min_effect)}"
        )
    shown = _spread(fewest)
    return f"Inconclusive: {fewest.arm} has {plural(len(fewest.values), 'run')}{shown}; {advice}."


def _spread(arm: ArmRuns) -> str:
    if len(arm.values) < 2 or not np.isfinite(arm.values).all():
        return ""
    values = ", ".join(format_number(value) for value in arm.values)
    return f" ({values}: {format_number(float(np.mean(arm.values)))} ± {format_number(float(np.std(arm.values)))})"


def _worse(best: ArmRuns, arm: ArmRuns, adjusted: Mapping[frozenset[str], float], rules: ComparisonRules) -> bool:
    effect = abs(welch(best.values, arm.values).effect)
    return adjusted[frozenset((best.arm, arm.arm))] < _ALPHA and effect >= rules.min_effect


def _significant(rules: ComparisonRules, best: ArmRuns, runner: ArmRuns, test: Welch, p_value: float) -> _Answer:
    low, high = sorted((test.low, test.high))
    message = (
        f"{best.arm} is best: {rules.metric} {format_number(float(np.mean(best.values)))} {rules.unit} against "
        f"{format_number(float(np.mean(runner.values)))} of {runner.arm}, {format_change(test.effect)} "
        f"{format_interval(low, high, format_change)}, {format_p_value(p_value)} over "
        f"{plural(len(best.values), 'run')} each."
    )
    if rules.prefer is not None and best.arm != rules.prefer:
        message += f" {rules.prefer}, which is preferred if it is not worse, is worse."
    return "significant", best.arm, message


def _equal(best: ArmRuns, arm: ArmRuns, rules: ComparisonRules) -> bool:
    """Whether the whole interval of their ratio lies within the minimum effect."""
    found = ratio(arm.values, best.values)
    return -rules.min_effect < found.low() and found.high() < rules.min_effect


def _rest(rivals: Sequence[ArmRuns], arms: Sequence[ArmRuns]) -> str:
    """`; c is worse` of the arms that are no rivals of the best."""
    others = [arm.arm for arm in arms if arm not in rivals]
    return f"; {listed(others)} {'is' if len(others) == 1 else 'are'} worse" if others else ""


def _no_difference(rules: ComparisonRules, rivals: Sequence[ArmRuns], arms: Sequence[ArmRuns], test: Welch) -> _Answer:
    message = f"No difference that matters between {listed([arm.arm for arm in rivals])} in {rules.metric}"
    message += (
        f"{_rest(rivals, arms)}: the best two differ by {format_change(test.effect)}, and by less than "
        f"{format_percent(rules.min_effect)} with its whole 90 % interval."
    )
    recommended, why = _recommended(rules, rivals)
    return "no_difference", recommended, f"{message} {why}".strip()


def _undecided(
    rules: ComparisonRules, rivals: Sequence[ArmRuns], arms: Sequence[ArmRuns], test: Welch, p_value: float
) -> _Answer:
    """Neither different nor equal. An arm that is preferred if it is not worse needs to be shown only that."""
    preferred = next((arm for arm in rivals if arm.arm == rules.prefer), None)
    loss = None
    if preferred is not None:
        loss = max(_loss(preferred, arm, rules) for arm in rivals if arm is not preferred)
        if loss <= rules.min_effect:
            message = (
                f"{preferred.arm} is preferred and not worse in {rules.metric} by more than "
                f"{format_percent(rules.min_effect)}: by {format_percent(max(loss, 0.0))} at most."
            )
            return "not_worse", preferred.arm, message
    found = [ratio(arm.values, rivals[0].values) for arm in rivals[1:]]
    largest = max(max(abs(one.low()), abs(one.high())) for one in found)
    wanted = repeats_for_equality(
        pooled_cv([arm.values for arm in arms]) or 0.0, rules.min_effect, two_sided=preferred is None
    )
    message = f"Inconclusive between {listed([arm.arm for arm in rivals])} in {rules.metric}"
    message += (
        f"{_rest(rivals, arms)}: the best two differ by {format_change(test.effect)}, "
        f"{format_p_value(p_value)}, and a difference of {format_percent(largest)} remains possible."
    )
    if loss is not None and preferred is not None:
        message += f" {preferred.arm} is preferred, but it could be worse by {format_percent(loss)}."
    message += f" About {wanted} runs per arm are needed; until then the declared setting is kept."
    return "not_decidable", None, message


def _loss(arm: ArmRuns, other: ArmRuns, rules: ComparisonRules) -> float:
    """The largest share by which the arm may be worse than the other."""
    found = ratio(arm.values, other.values)
    return -found.low() if rules.direction == "highest" else found.high()


def _recommended(rules: ComparisonRules, rivals: Sequence[ArmRuns]) -> tuple[str | None, str]:
    """The arm to use among equals: the preferred one, else the declared one unless the tie's metric is significantly
    lower in another, else by that metric."""
    if any(arm.arm == rules.prefer for arm in rivals):
        return (
            rules.prefer,
            f"{rules.prefer} is preferred and not worse by more than {format_percent(rules.min_effect)}.",
        )
    if rules.tie is None or not all(arm.tie_values for arm in rivals):
        return None, "Either will do."
    shown = ", ".join(f"{arm.arm} {format_number(float(np.mean(arm.tie_values)))}" for arm in rivals)
    calmest = min(rivals, key=lambda arm: float(np.mean(arm.tie_values)))
    declared = next((arm for arm in rivals if arm.arm == rules.declared), None)
    if declared is None or (calmest is not declared and _calmer(calmest, declared, len(rivals) - 1)):
        return calmest.arm, f"{calmest.arm} has the lower {rules.tie} ({shown})."
    return declared.arm, f"{declared.arm} is declared, and {rules.tie} is not clearly lower in any other ({shown})."


def _calmer(arm: ArmRuns, declared: ArmRuns, others: int) -> bool:
    """Whether the tie's metric is significantly lower, as one of `others` arms that might be."""
    return welch(arm.tie_values, declared.tie_values).p_value * others < 1 - LEVEL


def _comparison(
    rules: ComparisonRules,
    arms: Sequence[ArmRuns],
    answer: _Answer,
    test: Welch | None = None,
    p_value: float | None = None,
) -> ArmComparison:
    outcome, recommended, message = answer
    return ArmComparison(
        metric=rules.metric,
        unit=rules.unit,
        direction=rules.direction,
        arms=tuple(map(_compared_arm, arms)),
        outcome=outcome,
        recommended=recommended,
        adopted=rules.adopt and recommended is not None,
        p_value=p_value,
        effect=None if test is None else test.effect,
        effect_ci=None if test is None else (test.low, test.high),
        min_effect=rules.min_effect,
        message=message,
    )


# The arms of a sweep or an A/B: their run values, and whether the setting can have made a difference at all.


def compare_phase(data: PhaseData) -> ArmComparison | None:
    """The comparison of a sweep or an A/B; None for other phases."""
    phase, runbook = data.record.phase, data.validation.runbook
    if not isinstance(phase, ArmsPhase):
        return None
    choose = phase.choose
    metric = choose.highest or choose.lowest or ""
    resolved = resolve(parse_reference(metric), runbook=runbook, phase=phase)
    tie = None if choose.tie is None else resolve(parse_reference(choose.tie), runbook=runbook, phase=phase)
    rules = ComparisonRules(
        metric=metric,
        unit=resolved.unit,
        direction="highest" if choose.highest else "lowest",
        min_effect=min_effect_of(runbook, phase),
        prefer=choose.prefer,
        tie=choose.tie,
        declared=next((arm for arm, runs in data.arms.items() if _declared(runs[0], runbook, phase)), None),
        adopt=choose.adopt,
    )
    arms = [_arm(arm, runs, resolved, tie, data) for arm, runs in data.arms.items()]
    return compare_arms(arms, rules=rules, vacuous=_vacuous(data))


def _declared(run: RunRecord, runbook: Runbook, phase: ArmsPhase) -> bool:
    """Whether every setting of an arm is the one that the runbook has without it."""
    settings = run.spec.settings
    return bool(settings) and all(
        (declared := declared_value(key, runbook, phase)) is not None and same_value(declared, value)
        for key, value in settings.items()
    )


def _arm(arm: str, runs: tuple[RunRecord, ...], metric: Resolved, tie: Resolved | None, data: PhaseData) -> ArmRuns:
    values: list[float] = []
    ties: list[float] = []
    missing: str | None = None
    for run in runs:
        if run.outcome is not None and not run.outcome.ok:
            missing = missing or f"run {run.spec.id} did not end by itself with exit code 0"
            continue
        try:
            value = data.of_run(run, metric, alone=False)
        except NotMeasured as problem:
            missing = missing or str(problem)
            continue
        if isinstance(value, Estimate):
            values.append(value.point)
        if tie is not None:
            ties += _tie_point(run, tie, data)
    return ArmRuns(
        arm=arm,
        settings=runs[0].spec.settings,
        values=tuple(values),
        tie_values=tuple(ties) if len(ties) == len(values) else (),
        missing=missing,
    )


def _tie_point(run: RunRecord, resolved: Resolved, data: PhaseData) -> list[float]:
    try:
        value = data.of_run(run, resolved, alone=False)
    except NotMeasured:
        return []
    return [value.point] if isinstance(value, Estimate) and np.isfinite(value.point) else []


def _vacuous(data: PhaseData) -> str | None:
    """Why the compared setting cannot have made a difference, if so."""
    arms = {arm: [(run.spec, run.result) for run in runs] for arm, runs in data.arms.items()}
    twins = next((pair for pair in identical_arms(arms) if pair.arithmetic), None)
    if twins is not None:
        return twins.text
    names = {name for runs in data.arms.values() for run in runs for name in run.spec.settings}
    varied = [name for name in names if len({str(runs[0].spec.settings.get(name)) for runs in data.arms.values()}) > 1]
    reasons = [_ignored(name, data) or _one_bucket(name, data) for name in sorted(varied)]
    # One setting that took effect is enough for the arms to differ.
    return reasons[0] if reasons and all(reasons) else None


def _one_bucket(name: str, data: PhaseData) -> str | None:
    """All gradients fit the smallest bucket of the sweep, so every arm reduces them in one piece."""
    if re.search(r"bucket.*_?(mb|mib)$", name, re.IGNORECASE) is None:
        return None
    sizes, gradients = [], []
    for runs in data.arms.values():
        for run in runs:
            environment = {} if run.result is None else run.result.environment or {}
            size, grad = _float(run.spec.settings.get(name)), _float(environment.get("grad_bytes"))
            if size is None or grad is None:
                return None
            sizes.append(size * 2**20)
            gradients.append(grad)
    if not sizes or max(gradients) > min(sizes):
        return None
    return f"all gradients ({format_size(max(gradients))}) fit the smallest bucket ({format_size(min(sizes))})"


def _ignored(name: str, data: PhaseData) -> str | None:
    """The setting never reached the trainer: by its own account it ran with the same value in every arm."""
    wanted: list[object] = []
    ran: list[object] = []
    key = None
    for runs in data.arms.values():
        for run in runs:
            effective = None if run.result is None else run.result.effective
            key = None if effective is None else _effective_key(name, effective)
            if key is None or effective is None or name not in run.spec.settings:
                return None
            wanted.append(run.spec.settings[name])
            ran.append(effective[key])
    if len(wanted) < 2 or not all(same_value(ran[0], other) for other in ran):
        return None
    return f"{name} never reached the trainer, whose effective {key} is {ran[0]} in every arm"


def _effective_key(name: str, effective: Mapping[str, object]) -> str | None:
    """The effective setting that `env.NSA_DDP_BUCKET_MB` or `args.ddp-bucket-mb` sets."""
    scope, _, rest = name.partition(".")
    flat = rest.lower().replace("-", "_")
    if scope == "env" and flat not in effective:
        flat = flat.partition("_")[2]
    return flat if flat in effective else None


def _float(value: object) -> float | None:
    try:
        return float(str(value))
    except ValueError:
        return None
