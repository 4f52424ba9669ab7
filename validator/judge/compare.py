"""Which arm of a sweep or an A/B is better: by run means, never by steps.

Steps of one run share the run's placement, clocks and cache state; they are not replicates. So arms are compared by
Welch's t test on run means, with at least four runs for each arm, and a difference must also be worth having
(`min_effect`). With several arms all pairs are tested and corrected by Holm (1979). "No difference" and "not decidable"
are answers.
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
from validator.judge.wording import listed, number, percent
from validator.model.verdict import ComparedArm, Comparison

__all__ = ["ArmRuns", "Rules", "compare_arms", "holm", "pooled_cv", "repeats_needed", "welch"]

_POWER = 0.8
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


@dataclass(frozen=True)
class Welch:
    """Welch's test of a minus b: two-sided p value and 95 % interval, relative to the mean of b."""

    p_value: float
    effect: float
    low: float
    high: float


def welch(a: Sequence[float], b: Sequence[float]) -> Welch:
    """Welch's unequal-variances t test, with the effect relative to |mean(b)|.

    Two arms without any scatter are different with certainty or equal with certainty.
    """
    from scipy.special import stdtr

    first, second = np.asarray(a, dtype=float), np.asarray(b, dtype=float)
    base = abs(float(second.mean())) or 1.0
    difference = float(first.mean() - second.mean())
    parts = [float(side.var(ddof=1)) / len(side) for side in (first, second)]
    error = math.sqrt(sum(parts))
    if error <= 1e-12 * base:
        effect = difference / base
        return Welch(1.0 if abs(effect) <= 1e-12 else 0.0, effect, effect, effect)
    df = sum(parts) ** 2 / sum(part**2 / (len(side) - 1) for part, side in zip(parts, (first, second), strict=True))
    half = t_quantile((1 + LEVEL) / 2, df) * error
    p_value = 2.0 * float(stdtr(df, -abs(difference) / error))
    return Welch(p_value, difference / base, (difference - half) / base, (difference + half) / base)


def repeats_needed(cv: float, effect: float, *, comparisons: int = 1) -> int:
    """Runs per arm that find a relative difference `effect` with 80 % power when runs vary by `cv`; at least four."""
    if effect <= 0:
        return MIN_REPEATS
    for n in range(MIN_REPEATS, 1000):
        df = 2 * (n - 1)
        reach = t_quantile(1 - _ALPHA / (2 * comparisons), df) + t_quantile(_POWER, df)
        if n >= 2 * (reach * cv / effect) ** 2:
            return n
    return 1000


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
    best, runner = ranked[0], ranked[1]
    test = welch(best.values, runner.values)
    p_value = adjusted[frozenset((best.arm, runner.arm))]
    facts = _Facts(test, p_value)
    if p_value < _ALPHA and abs(test.effect) >= rules.min_effect:
        return _significant(rules, compared, best, runner, facts)
    rivals = [arm for arm in ranked[1:] if not _worse(best, arm, adjusted, rules)]
    return _no_difference(rules, compared, (best, *rivals), facts, arms)


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


def pooled_cv(groups: Sequence[Sequence[float]]) -> float | None:
    """Relative standard deviation between runs of the same group, pooled; None when no group has two runs."""
    usable = [np.asarray(group, dtype=float) for group in groups if len(group) > 1 and np.isfinite(group).all()]
    freedom = sum(len(values) - 1 for values in usable)
    if not freedom or any(values.mean() == 0 for values in usable):
        return None
    return math.sqrt(sum(((values / values.mean() - 1.0) ** 2).sum() for values in usable) / freedom)


def _holm(p_values: Mapping[frozenset[str], float]) -> dict[frozenset[str], float]:
    """Holm's adjustment of every pair's p value."""
    return dict(zip(p_values, holm(list(p_values.values())), strict=True))


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down adjustment: the smallest p value times the number of tests, and so on, never decreasing."""
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda index: p_values[index])):
        largest = max(largest, min(1.0, p_values[index] * (len(p_values) - rank)))
        adjusted[index] = largest
    return adjusted


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


def _no_difference(
    rules: Rules,
    compared: tuple[ComparedArm, ...],
    rivals: tuple[ArmRuns, ...],
    facts: _Facts,
    arms: Sequence[ArmRuns],
) -> Comparison:
    best, runner = rivals[0], rivals[1] if len(rivals) > 1 else None
    others = [arm.arm for arm in arms if arm not in rivals]
    largest = max(abs(facts.test.low), abs(facts.test.high))
    small = facts.p_value < _ALPHA  # told apart from none by the runs, and too small to matter
    kind = "difference that matters" if small else "significant difference"
    message = f"No {kind} between {listed([arm.arm for arm in rivals])} in {rules.metric}"
    if others:
        message += f"; {listed(others)} is worse" if len(others) == 1 else f"; {listed(others)} are worse"
    message += f": the best two differ by {percent(facts.test.effect)}, p = {facts.p_value:.2g}"
    message += f", and less than {100 * rules.min_effect:g} % decides nothing." if small else "."
    if largest > rules.min_effect:
        cv = _pooled_cv(arms) or 0.0
        wanted = repeats_needed(cv, rules.min_effect, comparisons=len(arms) * (len(arms) - 1) // 2)
        message += f" Up to {100 * largest:.1f} % remains possible; about {wanted} runs per arm would tell."
    recommended, why = _recommended(rules, rivals, best, runner)
    return _answer(rules, compared, "no_difference", recommended, f"{message} {why}".strip(), facts)


def _recommended(
    rules: Rules, rivals: tuple[ArmRuns, ...], best: ArmRuns, runner: ArmRuns | None
) -> tuple[str | None, str]:
    """The arm to use among equals: the preferred one if it is not worse by the margin, else by the tie's metric."""
    preferred = next((arm for arm in rivals if arm.arm == rules.prefer), None)
    if rules.prefer is not None:
        other = next((arm for arm in rivals if arm.arm != rules.prefer), None)
        if preferred is None or other is None:
            return best.arm, ""
        test = welch(preferred.values, other.values)
        loss = -test.low if rules.direction == "highest" else test.high
        if loss <= rules.min_effect:
            return (
                preferred.arm,
                f"{preferred.arm} is preferred and not worse by more than {100 * rules.min_effect:g} %.",
            )
        return other.arm, (
            f"{preferred.arm} is preferred, but it could be worse by {100 * loss:.1f} %, so {other.arm} stays."
        )
    ties = {arm.arm: float(np.mean(arm.tie_values)) for arm in rivals if arm.tie_values}
    if rules.tie is not None and len(ties) == len(rivals):
        calmest = min(ties, key=lambda name: ties[name])
        shown = ", ".join(f"{name} {number(value)}" for name, value in ties.items())
        return calmest, f"{calmest} has the lower {rules.tie} ({shown})."
    return None, "Either will do."


def _answer(
    rules: Rules,
    compared: tuple[ComparedArm, ...],
    outcome: Literal["significant", "no_difference", "not_decidable", "vacuous"],
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
