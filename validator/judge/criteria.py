"""Criteria, judged: PASS only if the whole interval is on the right side, FAIL only if wholly on the wrong one.

Everything else is INCONCLUSIVE with a sentence that says which measurement is missing or how much more would decide.
A criterion on several arms or repeats holds when it holds for each; the worst is the one that is named.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from validator.judge.data import Known, PhaseData, is_exact
from validator.judge.estimate import LEVEL, MIN_REPEATS, SECOND_LEVEL, Estimate, TooFewSamples, combine, exact
from validator.judge.measure import NotMeasured
from validator.judge.stored import StoredPhase, run_name, without_last_go
from validator.judge.wording import number, told_apart
from validator.model.expression import (
    Binary,
    Call,
    Comparison,
    Expression,
    ExpressionError,
    Number,
    Reference,
    Text,
    parse_criterion,
    references,
)
from validator.model.record import PhaseRecord, ValidationRecord
from validator.model.resolve import LAST_GO, Resolved, UnresolvedReference, resolve
from validator.model.runbook import Criterion
from validator.model.verdict import Evidence, PhaseReport, Status, Verdict

__all__ = ["judge_criterion"]

_FLIPPED = {">=": "<=", "<=": ">=", ">": "<", "<": ">", "==": "==", "!=": "!="}
_WORDS = {">=": "at least", "<=": "at most", ">": "above", "<": "below", "==": "equal to", "!=": "different from"}
_SEVERITY: dict[Status, int] = {"FAIL": 0, "INCONCLUSIVE": 1, "PASS": 2}

_HOPELESS = 400
"""Times as much data as there is, beyond which no practical number of runs decides."""

Source = PhaseData | StoredPhase
"""A phase of this validation, or of the last GO."""

Binding = Mapping[str, tuple[str, int | None]]
"""Phase to the arm and, for exact values, the index of the run that a reference means."""


@dataclass(frozen=True)
class _Outcome:
    """A criterion under one binding."""

    status: Status
    message: str
    binding: Binding
    observed: float | str | None = None
    bound: float | str | None = None
    interval: tuple[float, float] | None = None
    margin: float | None = None
    open_for: Literal["interval", "rows"] | None = None


def judge_criterion(
    criterion: Criterion,
    *,
    id: str,
    record: PhaseRecord,
    validation: ValidationRecord,
    judged: Mapping[str, PhaseReport],
) -> Verdict:
    """The verdict on one declared criterion of a phase that has ended."""
    try:
        comparison = _oriented(parse_criterion(criterion.expr))
        resolved = {
            reference.name: resolve(reference, runbook=validation.runbook, phase=record.phase)
            for reference in references(comparison)
        }
    except (ExpressionError, UnresolvedReference) as problem:
        return _verdict(criterion, id, "", _Outcome("INCONCLUSIVE", f"The criterion means nothing: {problem}.", {}), ())
    if any(one.stored for one in resolved.values()) and validation.last_go is None:
        return without_last_go(criterion, id=id)
    data = {one.source: _data(one, validation, judged) for one in resolved.values()}
    outcomes = [
        _judge(comparison, resolved, data, binding, SECOND_LEVEL if record.extended is not None else LEVEL)
        for binding in _bindings(resolved, data, own=record.phase.id)
    ]
    worst = min(outcomes, key=lambda one: (_SEVERITY[one.status], one.margin if one.margin is not None else math.inf))
    unit = comparison.unit or _unit(comparison.left, resolved)
    evidence = tuple(
        entry
        for one in resolved.values()
        for entry in data[one.source].evidence(one, arm=worst.binding.get(one.source, ("", None))[0])
    )
    return _verdict(criterion, id, unit, _named(worst, outcomes, data), evidence)


def _data(one: Resolved, validation: ValidationRecord, judged: Mapping[str, PhaseReport]) -> Source:
    record = validation.phase(one.phase_id)
    if one.stored and validation.last_go is not None:
        return StoredPhase(record, validation, validation.last_go)
    return PhaseData(record, validation, judged.get(one.phase_id))


def _verdict(criterion: Criterion, id: str, unit: str, outcome: _Outcome, evidence: tuple[Evidence, ...]) -> Verdict:
    return Verdict(
        id=id,
        text=criterion.expr,
        required=criterion.required,
        status=outcome.status,
        observed=outcome.observed,
        unit=unit,
        ci_low=outcome.interval[0] if outcome.interval else None,
        ci_high=outcome.interval[1] if outcome.interval else None,
        bound=outcome.bound,
        margin=outcome.margin,
        message=outcome.message,
        open_for=outcome.open_for,
        evidence=evidence,
    )


def _oriented(comparison: Comparison) -> Comparison:
    """With the measurement on the left: `39 <= x` reads `x >= 39`."""
    if any(references(comparison.left)) or not any(references(comparison.right)):
        return comparison
    operator = next(op for op in (">=", "<=", ">", "<", "==", "!=") if op == _FLIPPED[comparison.operator])
    return Comparison(comparison.right, operator, comparison.left, comparison.unit, comparison.text)


def _unit(node: Expression, resolved: Mapping[str, Resolved]) -> str:
    """The unit of a lone reference, or of sums, minima and multiples of one."""
    if isinstance(node, Reference):
        return resolved[node.name].unit
    if isinstance(node, Binary) and node.operator in "*/":
        return _unit(node.left, resolved) if not any(references(node.right)) else ""
    if isinstance(node, (Binary, Call)):
        operands = (node.left, node.right) if isinstance(node, Binary) else node.arguments
        units = {_unit(operand, resolved) for operand in operands if any(references(operand))}
        return units.pop() if len(units) == 1 else ""
    return ""


def _bindings(resolved: Mapping[str, Resolved], data: Mapping[str, Source], *, own: str) -> Iterator[Binding]:
    """Every arm of the phase itself, and every run where a value belongs to one run."""
    choices = []
    for phase_id, phase in data.items():
        arms = tuple(phase.arms) if phase_id == own else phase.chosen_arms()
        single = any(one.source == phase_id and is_exact(one) for one in resolved.values())
        options: list[tuple[str, int | None]] = []
        for arm in arms:
            options += [(arm, index) for index in range(len(phase.arms[arm]))] if single else [(arm, None)]
        choices.append([(phase_id, option) for option in options or [("", None)]])
    for combination in itertools.product(*choices):
        binding = dict(combination)
        if not _crossed(binding, data, own=own):
            yield binding


def _crossed(binding: Binding, data: Mapping[str, Source], *, own: str) -> bool:
    """Whether an arm is set against another arm of the last GO, though the same one was there."""
    arm, earlier = binding.get(own), binding.get(f"{LAST_GO}.{own}")
    if arm is None or earlier is None or arm[0] not in data[f"{LAST_GO}.{own}"].arms:
        return False
    return arm[0] != earlier[0]


def _named(worst: _Outcome, outcomes: list[_Outcome], data: Mapping[str, Source]) -> _Outcome:
    """The worst outcome, told apart from the others by its arm and run."""
    if len(outcomes) == 1:
        return worst
    names = []
    for phase_id, (arm, index) in worst.binding.items():
        runs = data[phase_id].arms.get(arm, ())
        if len(data[phase_id].record.runs) > 1 and runs:
            names.append(run_name(runs[index]) if index is not None else f"{phase_id}/{arm}".rstrip("/"))
    if not names:
        return worst
    message = f"{worst.message} Decided by the worst of {len(outcomes)}: {', '.join(names)}."
    return replace(worst, message=message)


def _judge(
    comparison: Comparison,
    resolved: Mapping[str, Resolved],
    data: Mapping[str, Source],
    binding: Binding,
    level: float,
) -> _Outcome:
    try:
        left = _evaluate(comparison.left, resolved, data, binding)
        right = _evaluate(comparison.right, resolved, data, binding)
    except NotMeasured as problem:
        # From four repeats on a run need not have an interval of its own, so more runs make up for missing rows.
        rows = isinstance(problem.__cause__, TooFewSamples) and _repeats(data, binding) < MIN_REPEATS
        return _Outcome("INCONCLUSIVE", f"Not measured: {problem}.", binding, open_for="rows" if rows else None)
    except ZeroDivisionError:
        return _Outcome("INCONCLUSIVE", f"Not computable: a divisor in {comparison.text!r} is 0.", binding)
    left, right = _alike(left, right), _alike(right, left)
    if isinstance(left, str) or isinstance(right, str):
        return _judge_text(left, comparison.operator, right, binding)
    repeats = _repeats(data, binding)
    assumed = any(data[one.source].assumes_variation(one, arm=binding[one.source][0]) for one in resolved.values())
    spread = next(iter(data.values())).validation.runbook.defaults.run_cv if assumed else 0.0
    outcome = _judge_numbers(left, comparison, right, resolved, binding, repeats, spread, level)
    if outcome.status != "PASS" and any(isinstance(one, PhaseData) and one.pauses for one in data.values()):
        outcome = _apart_from_pauses(outcome, comparison, resolved, data, binding, level)
    broken = _unfinished(resolved, data, binding)
    if outcome.status == "PASS" and broken is not None:
        message = f"{outcome.message} This does not count: {broken}."
        return replace(outcome, status="INCONCLUSIVE", message=message)
    return outcome


def _apart_from_pauses(
    failed: _Outcome,
    comparison: Comparison,
    resolved: Mapping[str, Resolved],
    data: Mapping[str, Source],
    binding: Binding,
    level: float,
) -> _Outcome:
    """What does not pass through one or two pauses alone is open: they do not show how often a long run pauses."""
    plain = {name: replace(one, pauses=False) if isinstance(one, PhaseData) else one for name, one in data.items()}
    named = ((plain[one.source], one) for one in resolved.values())
    runs = [phase.few_pauses(one, arm=binding[one.source][0]) for phase, one in named if isinstance(phase, PhaseData)]
    paused = next((run for run in runs if run is not None), None)
    status = failed.status if paused is None else _judge(comparison, resolved, plain, binding, level).status
    if status in ("FAIL", failed.status):
        return failed
    message = (
        f"{failed.message} Without its pauses run {paused} would {'pass' if status == 'PASS' else 'be open'}. It holds "
        "fewer than three, so how often they come is not known: declare pause_every (steps from pause to pause) in the "
        "phase or in defaults."
    )
    return replace(failed, status="INCONCLUSIVE", message=message, open_for=None)


def _repeats(data: Mapping[str, Source], binding: Binding) -> int:
    return min((len(data[phase].arms.get(arm, ())) for phase, (arm, _) in binding.items()), default=1)


def _unfinished(resolved: Mapping[str, Resolved], data: Mapping[str, Source], binding: Binding) -> str | None:
    """A run behind a series or a config that did not end well: what it measured is no pass."""
    for one in resolved.values():
        phase = data[one.source]
        if one.name.startswith("outcome.") or isinstance(phase, StoredPhase):
            continue
        arm, _ = binding[one.source]
        for run in phase.arms.get(arm, ()):
            if run.outcome is None:
                return f"run {run.spec.id} has not ended"
            if not run.outcome.ok:
                return f"run {run.spec.id} did not end by itself with exit code 0"
    return None


def _evaluate(
    node: Expression, resolved: Mapping[str, Resolved], data: Mapping[str, Source], binding: Binding
) -> Known:
    if isinstance(node, Number):
        return exact(node.value)
    if isinstance(node, Text):
        return node.value
    if isinstance(node, Reference):
        one = resolved[node.name]
        arm, index = binding[one.source]
        phase = data[one.source]
        if arm not in phase.arms:
            raise NotMeasured(f"phase {one.phase_id} has no runs")
        return phase.value(one, arm=arm, index=index)
    operator = node.operator if isinstance(node, Binary) else node.function
    arguments = (node.left, node.right) if isinstance(node, Binary) else node.arguments
    values = [_evaluate(argument, resolved, data, binding) for argument in arguments]
    numbers = [value for value in values if isinstance(value, Estimate)]
    if len(numbers) < len(values):
        text = next(value for value in values if isinstance(value, str))
        raise NotMeasured(f"{text!r} is text, which has no {operator}")
    return combine(operator, numbers)


def _alike(value: Known, other: Known) -> Known:
    """Text that holds a number or a truth value, as a number where it is compared with one."""
    if isinstance(value, str) and isinstance(other, Estimate):
        if value in ("true", "false"):
            return exact(float(value == "true"))
        try:
            return exact(float(value))
        except ValueError:
            return value
    return value


def _shown(value: Known) -> float | str:
    return value if isinstance(value, str) else value.point


def _judge_text(left: Known, operator: str, right: Known, binding: Binding) -> _Outcome:
    observed, bound = _shown(left), _shown(right)
    if operator not in ("==", "!="):
        message = f"{observed!r} and {bound!r} cannot be ordered; compare text by == or !=."
        return _Outcome("INCONCLUSIVE", message, binding, observed, bound)
    holds = (str(observed) == str(bound)) == (operator == "==")
    message = f"{observed!r} is {'' if holds else 'not '}{_WORDS[operator]} {bound!r}."
    return _Outcome("PASS" if holds else "FAIL", message, binding, observed, bound)


def _judge_numbers(
    left: Estimate,
    comparison: Comparison,
    right: Estimate,
    resolved: Mapping[str, Resolved],
    binding: Binding,
    repeats: int,
    assumed_cv: float,
    level: float,
) -> _Outcome:
    operator, unit = comparison.operator, comparison.unit or _unit(comparison.left, resolved)
    if math.isnan(left.point) or math.isnan(right.point):
        message = "The value is not a number: the trainer wrote NaN or an infinity."
        return _Outcome("FAIL", message, binding, left.point, right.point)
    if math.isinf(left.point) and not math.isinf(right.point) and left.exact and _is_measured_infinity(comparison):
        message = f"The value is {left.point}, which no healthy run shows."
        return _Outcome("FAIL", message, binding, left.point, right.point)
    difference = combine("-", [left, right])
    margin = _margin(left.point, operator, right.point)
    digits = told_apart(left.point, right.point)
    shown = f"{digits[0]}{' ' + unit if unit else ''}"
    bound = f"{digits[1]}{' ' + unit if unit else ''}"
    if difference.exact:
        holds = _holds(left.point, operator, right.point)
        message = f"{shown} is {'' if holds else 'not '}{_WORDS[operator]} {bound}."
        return _Outcome("PASS" if holds else "FAIL", message, binding, left.point, right.point, None, margin)
    interval = difference.interval(level)
    if interval is None or not all(math.isfinite(end) for end in interval):
        message = f"{shown} has no finite interval: a divisor in {comparison.text!r} may be 0."
        return _Outcome("INCONCLUSIVE", message, binding, left.point, right.point, None, margin)
    status = _status(interval, operator)
    ends = (right.point + interval[0], right.point + interval[1])
    text = f"{shown} [{number(ends[0])}, {number(ends[1])}]"
    if status == "INCONCLUSIVE":
        message = f"The interval of {text} holds the bound {bound}; {_what_decides(difference, repeats, assumed_cv)}."
    else:
        message = f"{text} is {'' if status == 'PASS' else 'not '}{_WORDS[operator]} {bound}, with its whole interval."
    if assumed_cv and status != "INCONCLUSIVE":
        message += f" The interval allows for {100 * assumed_cv:g} % between runs, which is assumed, not measured."
    more = status == "INCONCLUSIVE" and _factor(difference) <= _HOPELESS
    return _Outcome(
        status, message, binding, left.point, right.point, ends, margin, open_for="interval" if more else None
    )


def _is_measured_infinity(comparison: Comparison) -> bool:
    """A lone reference that is infinite was written so; arithmetic may make one of healthy values."""
    return isinstance(comparison.left, Reference)


def _holds(left: float, operator: str, right: float) -> bool:
    if operator in ("==", "!="):
        return math.isclose(left, right, rel_tol=1e-9, abs_tol=1e-12) == (operator == "==")
    if operator in (">=", "<="):
        return left >= right if operator == ">=" else left <= right
    return left > right if operator == ">" else left < right


def _status(interval: tuple[float, float], operator: str) -> Status:
    """The side of 0 on which the whole interval of left minus right lies."""
    low, high = interval
    if operator in ("<", "<="):
        low, high, operator = -high, -low, ">" if operator == "<" else ">="
    if operator == "==":
        return "PASS" if low == high == 0 else "INCONCLUSIVE" if low <= 0 <= high else "FAIL"
    if operator == "!=":
        return "FAIL" if low == high == 0 else "INCONCLUSIVE" if low <= 0 <= high else "PASS"
    if operator == ">=":
        return "PASS" if low >= 0 else "FAIL" if high < 0 else "INCONCLUSIVE"
    return "PASS" if low > 0 else "FAIL" if high <= 0 else "INCONCLUSIVE"


def _margin(left: float, operator: str, right: float) -> float | None:
    """Relative distance from the bound, positive on the good side; absolute where the bound is 0."""
    distance = 0.0 + (left - right if right == 0 else (left - right) / abs(right))
    if not math.isfinite(distance):
        return None
    if operator in ("<", "<="):
        return -distance
    if operator == "==":
        return -abs(distance) if distance else 0.0
    return abs(distance) if operator == "!=" else distance


def _what_decides(difference: Estimate, repeats: int, assumed_cv: float) -> str:
    """How much more would decide, if the observed value is the true one."""
    factor = _factor(difference)
    if math.isinf(factor):
        return "the value lies on the bound, so no number of runs would decide it"
    if factor > _HOPELESS:
        return "the value is so close to the bound that no practical number of runs would decide it"
    wanted = max(MIN_REPEATS, math.ceil(repeats * factor))
    if assumed_cv:
        return (
            f"{MIN_REPEATS} repeats would measure the variation between runs, which is assumed to be "
            f"{100 * assumed_cv:g} %; at that, about {wanted} would decide it if the value is right"
        )
    if wanted > repeats:
        return f"if the value is right, about {wanted} repeats would decide it (there {_were(repeats)})"
    return f"if the value is right, a run about {max(2, math.ceil(factor))} times as long would decide it"


def _factor(difference: Estimate) -> float:
    """How many times as much data would decide, if the observed value is the true one; infinite on the bound."""
    if difference.replicates is None or difference.point == 0:
        return math.inf
    half = float(np.ptp(np.quantile(difference.replicates, [0.025, 0.975]))) / 2
    return (half / abs(difference.point)) ** 2


def _were(repeats: int) -> str:
    return "was 1" if repeats == 1 else f"were {repeats}"
