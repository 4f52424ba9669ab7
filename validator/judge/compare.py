"""Which arm of a sweep or an A/B is better: by run means, never by steps.

Steps of one run share the run's placement, clocks and cache state; they are not replicates. So arms are compared by
Welch's t test on run means, with at least four runs for each arm, and a difference must also be worth having
(`min_effect`). With several arms all pairs are tested and corrected by Holm (1979). "No difference" is an answer that
has to be shown, by two one-sided tests (Schuirmann 1987): the whole 90 % interval of the ratio lies within the minimum
effect. What is neither different nor equal is not decidable, and changes no setting.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from validator.judge.autocorrelation import t_quantile
from validator.judge.estimate import LEVEL, MIN_REPEATS
from validator.judge.means import Welch, holm, pooled_cv, ratio, repeats_for_equality, repeats_needed, welch
from validator.judge.wording import listed, number, percent
from validator.model.verdict import ComparedArm, Comparison

__all__ = ["ArmRuns", "Rules", "compare_arms"]

_ALPHA = 1.0 - LEVEL


@dataclass(frozen=True)
class ArmRuns:
    """One arm: its settings, one value per run of the compared metric, and of the metric that breaks ties.

    `planned` counts the runs that were to be; `missing` says why fewer values are there.
    """

    arm: str
    settings: Mapping[str, str | int | float | bool]
    values: tuple[float, ...]
    planned: int
    tie_values: tuple[float, ...] = ()
    missing: str | None = None


@dataclass(frozen=True)
class Rules:
    """How arms are compared, from the phase's `choose`."""

    metric: str
    unit: str
    direction: Literal["highest", "lowest"]
    min_effect: float
    prefer: str | None = None
    tie: str | None = None
    adopt: bool = False


def compare_arms(arms: Sequence[ArmRuns], *, rules: Rules, vacuous: str | None = None) -> Comparison:
    """The answer of a sweep or an A/B.

    Args:
        arms: in the order of the runbook.
        rules: metric, direction and minimum effect.
        vacuous: why the setting cannot have made a difference, if so.
    """
    compared = tuple(_compared(arm) for arm in arms)
    if vacuous is not None:
        return _answer(rules, compared, "vacuous", None, f"The comparison is vacuous: {vacuous}.")
    short = _too_few(arms, rules)
    if short is not None:
        return _answer(rules, compared, "not_decidable", None, short)
    sign = 1.0 if rules.direction == "highest" else -1.0
    ranked = sorted(arms, key=lambda arm: -sign * float(np.mean(arm.values)))
    pairs = {frozenset((a.arm, b.arm)): welch(a.values, b.values).p_value for a, b in itertools.combinations(ranked, 2)}
    adjusted = _holm(pairs)
    best = ranked[0]
    rivals = (best, *(arm for arm in ranked[1:] if not _worse(best, arm, adjusted, rules)))
    runner = rivals[1] if len(rivals) > 1 else ranked[1]
    facts = _Facts(welch(best.values, runner.values), adjusted[frozenset((best.arm, runner.arm))])
    if len(rivals) == 1:
        return _significant(rules, compared, best, runner, facts)
    if all(_equal(best, arm, rules) for arm in rivals[1:]):
        return _no_difference(rules, compared, rivals, facts, arms)
    return _undecided(rules, compared, rivals, facts, arms)


@dataclass(frozen=True)
class _Facts:
    test: Welch
    p_value: float


def _compared(arm: ArmRuns) -> ComparedArm:
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


def _too_few(arms: Sequence[ArmRuns], rules: Rules) -> str | None:
    """Why nothing can be decided, if so, and how many repeats would decide it."""
    if len(arms) < 2:
        return "Not decidable: there is only one arm to compare."
    missing = [arm for arm in arms if arm.missing is not None]
    if missing and any(len(arm.values) < MIN_REPEATS for arm in missing):
        return f"Not decidable: {missing[0].missing}."
    fewest = min(arms, key=lambda arm: (len(arm.values), -float(np.std(arm.values)) if arm.values else 0.0))
    if len(fewest.values) >= MIN_REPEATS:
        broken = next((arm for arm in arms if not np.isfinite(arm.values).all()), None)
        return None if broken is None else f"Not decidable: {rules.metric} of {broken.arm} is not finite in every run."
    cv = _pooled_cv(arms)
    if cv is None:
        advice = f"at least {MIN_REPEATS} are needed"
    else:
        wanted = repeats_needed(cv, rules.min_effect, comparisons=len(arms) * (len(arms) - 1) // 2)
        advice = (
            f"at least {MIN_REPEATS} are needed, and with the variation seen between runs ({100 * cv:.1f} %) "
            f"about {wanted} would find a difference of {100 * rules.min_effect:g} %"
        )
    shown = _spread(fewest)
    return f"Not decidable: {fewest.arm} has {_runs(len(fewest.values))}{shown}; {advice}."


def _runs(count: int) -> str:
    return "1 run" if count == 1 else f"{count} runs"


def _spread(arm: ArmRuns) -> str:
    if len(arm.values) < 2 or not np.isfinite(arm.values).all():
        return ""
    values = ", ".join(number(value) for value in arm.values)
    return f" ({values}: {number(float(np.mean(arm.values)))} ± {number(float(np.std(arm.values)))})"


def _pooled_cv(arms: Sequence[ArmRuns]) -> float | None:
    return pooled_cv([arm.values for arm in arms])


def _holm(p_values: Mapping[frozenset[str], float]) -> dict[frozenset[str], float]:
    """Holm's adjustment of every pair's p value."""
    return dict(zip(p_values, holm(list(p_values.values())), strict=True))


def _worse(best: ArmRuns, arm: ArmRuns, adjusted: Mapping[frozenset[str], float], rules: Rules) -> bool:
    effect = abs(welch(best.values, arm.values).effect)
    return adjusted[frozenset((best.arm, arm.arm))] < _ALPHA and effect >= rules.min_effect


def _significant(
    rules: Rules, compared: tuple[ComparedArm, ...], best: ArmRuns, runner: ArmRuns, facts: _Facts
) -> Comparison:
    low, high = sorted((facts.test.low, facts.test.high))
    message = (
        f"{best.arm} is best: {rules.metric} {number(float(np.mean(best.values)))} {rules.unit} against "
        f"{number(float(np.mean(runner.values)))} of {runner.arm}, {percent(facts.test.effect)} "
        f"[{percent(low)}, {percent(high)}], p = {facts.p_value:.2g} over {_runs(len(best.values))} each."
    )
    if rules.prefer is not None and best.arm != rules.prefer:
        message += f" {rules.prefer}, which is preferred if it is not worse, is worse."
    return _answer(rules, compared, "significant", best.arm, message, facts)


def _equal(best: ArmRuns, arm: ArmRuns, rules: Rules) -> bool:
    """Whether the whole interval of their ratio lies within the minimum effect."""
    found = ratio(arm.values, best.values)
    return -rules.min_effect < found.low() and found.high() < rules.min_effect


def _rest(rivals: Sequence[ArmRuns], arms: Sequence[ArmRuns]) -> str:
    """`; c is worse` of the arms that are no rivals of the best."""
    others = [arm.arm for arm in arms if arm not in rivals]
    return f"; {listed(others)} {'is' if len(others) == 1 else 'are'} worse" if others else ""


def _no_difference(
    rules: Rules,
    compared: tuple[ComparedArm, ...],
    rivals: tuple[ArmRuns, ...],
    facts: _Facts,
    arms: Sequence[ArmRuns],
) -> Comparison:
    message = f"No difference that matters between {listed([arm.arm for arm in rivals])} in {rules.metric}"
    message += (
        f"{_rest(rivals, arms)}: the best two differ by {percent(facts.test.effect)}, and by less than "
        f"{100 * rules.min_effect:g} % with its whole 90 % interval."
    )
    recommended, why = _recommended(rules, rivals)
    return _answer(rules, compared, "no_difference", recommended, f"{message} {why}".strip(), facts)


def _undecided(
    rules: Rules,
    compared: tuple[ComparedArm, ...],
    rivals: tuple[ArmRuns, ...],
    facts: _Facts,
    arms: Sequence[ArmRuns],
) -> Comparison:
    """Neither different nor equal. An arm that is preferred if it is not worse needs to be shown only that."""
    preferred = next((arm for arm in rivals if arm.arm == rules.prefer), None)
    loss = None
    if preferred is not None:
        loss = max(_loss(preferred, arm, rules) for arm in rivals if arm is not preferred)
        if loss <= rules.min_effect:
            message = (
                f"{preferred.arm} is preferred and not worse in {rules.metric} by more than "
                f"{100 * rules.min_effect:g} %: by {100 * max(loss, 0.0):.1f} % at most."
            )
            return _answer(rules, compared, "not_worse", preferred.arm, message, facts)
    found = [ratio(arm.values, rivals[0].values) for arm in rivals[1:]]
    largest = max(max(abs(one.low()), abs(one.high())) for one in found)
    wanted = repeats_for_equality(_pooled_cv(arms) or 0.0, rules.min_effect, two_sided=preferred is None)
    message = f"Not decidable between {listed([arm.arm for arm in rivals])} in {rules.metric}"
    message += (
        f"{_rest(rivals, arms)}: the best two differ by {percent(facts.test.effect)}, p = {facts.p_value:.2g}, and a "
        f"difference of {100 * largest:.1f} % remains possible."
    )
    if loss is not None and preferred is not None:
        message += f" {preferred.arm} is preferred, but it could be worse by {100 * loss:.1f} %."
    message += f" About {wanted} runs per arm would tell; until then the declared setting stays."
    return _answer(rules, compared, "not_decidable", None, message, facts)


def _loss(arm: ArmRuns, other: ArmRuns, rules: Rules) -> float:
    """The largest share by which the arm may be worse than the other."""
    found = ratio(arm.values, other.values)
    return -found.low() if rules.direction == "highest" else found.high()


def _recommended(rules: Rules, rivals: tuple[ArmRuns, ...]) -> tuple[str | None, str]:
    """The arm to use among equals: the preferred one, else by the tie's metric."""
    if any(arm.arm == rules.prefer for arm in rivals):
        return rules.prefer, f"{rules.prefer} is preferred and not worse by more than {100 * rules.min_effect:g} %."
    ties = {arm.arm: float(np.mean(arm.tie_values)) for arm in rivals if arm.tie_values}
    if rules.tie is not None and len(ties) == len(rivals):
        calmest = min(ties, key=lambda name: ties[name])
        shown = ", ".join(f"{name} {number(value)}" for name, value in ties.items())
        return calmest, f"{calmest} has the lower {rules.tie} ({shown})."
    return None, "Either will do."


def _answer(
    rules: Rules,
    compared: tuple[ComparedArm, ...],
    outcome: Literal["significant", "no_difference", "not_worse", "not_decidable", "vacuous"],
    recommended: str | None,
    message: str,
    facts: _Facts | None = None,
) -> Comparison:
    return Comparison(
        metric=rules.metric,
        unit=rules.unit,
        direction=rules.direction,
        arms=compared,
        outcome=outcome,
        recommended=recommended,
        adopted=rules.adopt and recommended is not None,
        p_value=None if facts is None else facts.p_value,
        effect=None if facts is None else facts.test.effect,
        effect_ci=None if facts is None else (facts.test.low, facts.test.high),
        min_effect=rules.min_effect,
        message=message,
    )
