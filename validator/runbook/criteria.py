"""Criteria: each must parse, name what its phase or an earlier one measures, and compare like with like."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from validator.model import expression as lang
from validator.model.resolve import Resolved, UnresolvedReference, resolve
from validator.model.runbook import ArmsPhase, Phase, Runbook, TrainingPhase
from validator.model.settings import warmup_of
from validator.runbook.asking import always_holds, never_negative
from validator.runbook.build import Built
from validator.runbook.document import Path, node_at, position
from validator.runbook.problems import Problem

_ProblemAt = Callable[[int, str, str], Problem]
"""Makes a problem at a column of a criterion's text, from its message and its fix."""

_Meanings = dict[lang.Reference, Resolved]
"""What each reference of a criterion means."""

_SCALES: dict[str, tuple[str, float]] = {
    "ms": ("s", 1e-3),
    "s": ("ms", 1e3),
    "GiB": ("MiB", 1024.0),
    "MiB": ("GiB", 1 / 1024),
}
"""Unit to the unit that a value may be written in instead, and the factor."""


def check_criteria(built: Built, runbook: Runbook, index: int) -> Iterator[Problem]:
    """Problems of every criterion of the phase at `index`."""
    phase = runbook.phases[index]
    for number, criterion in enumerate(phase.accept):
        path: Path = ("phases", index, "accept", number)
        at = _problem_at(built, path)
        try:
            comparison = lang.parse_criterion(criterion.expr)
        except lang.ExpressionError as error:
            message, _, fix = str(error).partition("; ")
            yield at(error.column, message, fix or "write it as metric.statistic >= value")
            continue
        yield from _check_comparison(comparison, built=built, runbook=runbook, phase=phase, at=at)


def _problem_at(built: Built, path: Path) -> _ProblemAt:
    """Problems of the criterion at `path`, by the column in its text."""
    node = node_at(built.root, (*path, "expr")) or node_at(built.root, path)
    if node is None:
        return lambda _, message, fix: built.problem(path, message, fix)
    return lambda column, message, fix: Problem.at(position(node, column), message, fix)


def _check_comparison(
    comparison: lang.Relation, *, built: Built, runbook: Runbook, phase: Phase, at: _ProblemAt
) -> Iterator[Problem]:
    found = list(lang.references(comparison))
    if not found:
        message = f"criterion {comparison.text!r} names no measurement, so it says nothing about the run"
        yield at(0, message, "write it as metric.statistic >= value")
    resolved: _Meanings = {}
    for reference in found:
        try:
            resolved[reference] = resolve(reference, runbook=runbook, phase=phase)
        except UnresolvedReference as error:
            if _is_noise(error, reference, built):
                return
            yield at(error.column, error.message, error.fix)
    if len(resolved) < len(set(found)):
        return
    yield from _check_windows(resolved, runbook=runbook, at=at)
    yield from _check_can_fail(comparison, resolved, at)
    yield from _check_kinds(comparison, resolved, at)
    yield from _check_units(comparison, resolved, at)


def _is_noise(error: UnresolvedReference, reference: lang.Reference, built: Built) -> bool:
    """Whether a reference may be unknown only because something it rests on had to be repaired."""
    if reference.name.split(".")[0] in built.lost:
        return True
    if "declares no" in error.message or "does not record" in error.message or "no metric called" in error.message:
        return not built.sound("trainer")
    return "hardware." in error.message and not built.sound("hardware")


def _check_windows(resolved: _Meanings, *, runbook: Runbook, at: _ProblemAt) -> Iterator[Problem]:
    """A declared warm-up of more than half of the run leaves too little to represent it."""
    for reference, meaning in resolved.items():
        target = runbook.phase(meaning.phase_id)
        if meaning.window != "steady" or not isinstance(target, TrainingPhase):
            continue
        warmup = warmup_of(runbook, target)
        if 2 * warmup > target.steps:
            source = "" if target.warmup_steps is not None else ", from defaults"
            lack = "has no step" if warmup >= target.steps else "has less than half of the steps"
            yield at(
                reference.column,
                f"{reference.name} {lack} to be taken from: phase {target.id} has {target.steps} steps "
                f"and warmup_steps is {warmup}{source}",
                f"set warmup_steps of {target.id} to {target.steps // 2} or less, or give it {2 * warmup} steps",
            )


def _check_can_fail(comparison: lang.Relation, resolved: _Meanings, at: _ProblemAt) -> Iterator[Problem]:
    """A criterion that every measurement meets proves nothing."""
    left, operator, right = comparison.left, comparison.operator, comparison.right
    if operator in ("<", "<="):
        left, right, operator = right, left, ">" if operator == "<" else ">="
    lowest = 0.0 if right == lang.Number(0.0) else _negative(right)
    counted = isinstance(left, lang.Reference) and lowest is not None and never_negative(resolved[left])
    if isinstance(left, lang.Reference) and isinstance(right, lang.Reference) and left.name == right.name:
        message = f"criterion {comparison.text!r} compares a value with itself, so it says nothing about the run"
        yield at(0, message, "compare it with a bound or with another measurement")
    elif counted and isinstance(left, lang.Reference) and lowest is not None and (operator == ">=" or lowest < 0):
        message = f"{left.name} is never below 0, so {comparison.text!r} can never fail"
        yield at(left.column, message, f"give a bound that a bad run would miss: {left.name} >= 1")
    elif resolved and always_holds(comparison, resolved):
        message = f"criterion {comparison.text!r} holds whatever is measured, so it can never fail"
        yield at(0, message, "compare the measurement with a bound that a bad run would miss")


def _negative(node: lang.Expression) -> float | None:
    """The value of a literal below zero, which is parsed as a difference from 0."""
    if (
        isinstance(node, lang.Binary)
        and node.operator == "-"
        and node.left == lang.Number(0.0)
        and isinstance(node.right, lang.Number)
    ):
        return -node.right.value if node.right.value > 0 else None
    return None


def _check_kinds(comparison: lang.Relation, resolved: _Meanings, at: _ProblemAt) -> Iterator[Problem]:
    """A measured number is never equal to a text."""
    for text, other in ((comparison.left, comparison.right), (comparison.right, comparison.left)):
        if isinstance(text, lang.Text) and isinstance(other, lang.Reference) and resolved[other].unit_known:
            message = f"{other.name} is a number and is compared with the text {text.value!r}"
            yield at(other.column, message, "compare it with a number, without quotes")
        if isinstance(text, lang.Number) and isinstance(other, lang.Reference) and resolved[other].text:
            message = f"{other.name} is a text and is compared with the number {text.value:g}"
            yield at(other.column, message, f"compare it with a text: {other.name} == 'triton'")


def _check_units(comparison: lang.Relation, resolved: _Meanings, at: _ProblemAt) -> Iterator[Problem]:
    left, right = _unit(comparison.left, resolved), _unit(comparison.right, resolved)
    column = next((reference.column for reference in lang.references(comparison)), 0)
    measured = left if left is not None else right
    if left is not None and right is not None and left != right:
        message = f"criterion {comparison.text!r} compares {left or 'a plain number'} with {right or 'a plain number'}"
        yield at(column, message, "compare two measurements of the same unit")
    elif comparison.unit is not None and measured is not None and comparison.unit != measured:
        written = comparison.text.rfind(comparison.unit)
        name = next(lang.references(comparison)).name
        unit = measured or "a plain number"
        yield at(
            written,
            f"the criterion is written in {comparison.unit}, but {name} is {'in ' if measured else ''}{unit}",
            _unit_fix(comparison, measured),
        )


def _unit_fix(comparison: lang.Relation, measured: str) -> str:
    scale = _SCALES.get(comparison.unit or "")
    if isinstance(comparison.right, lang.Number) and scale is not None and scale[0] == measured:
        return f"write {comparison.right.value * scale[1]:g} {measured}"
    times = lang.meant_number(f"1{comparison.unit}")
    if isinstance(comparison.right, lang.Number) and times is not None:
        return f"write {comparison.right.value * times:.15g}"
    if not measured and next(lang.references(comparison)).name.split(".")[-2:-1] == ["cost"]:
        return f"declare hardware.currency: {comparison.unit}, or leave the unit out"
    return f"give the value in {measured}, or leave the unit out" if measured else "leave the unit out"


def _unit(node: lang.Expression, resolved: _Meanings) -> str | None:
    """The unit of an expression; None where it goes with anything (a literal) or is not known."""
    if isinstance(node, lang.Reference):
        meaning = resolved[node]
        return meaning.unit if meaning.unit_known else None
    if isinstance(node, lang.Call):
        return next((unit for unit in (_unit(part, resolved) for part in node.arguments) if unit is not None), None)
    if isinstance(node, lang.Binary):
        return _unit_of_binary(node, resolved)
    return None


def _unit_of_binary(node: lang.Binary, resolved: _Meanings) -> str | None:
    left, right = _unit(node.left, resolved), _unit(node.right, resolved)
    if node.operator in "+-":
        return left if left is not None else right
    if node.operator == "*":
        if left is None or left == "":
            return right if right != "" or left == "" else None
        return left if right in (None, "") else None
    if right in (None, ""):
        return left
    return "" if left == right else None


def check_unknown_units(built: Built, runbook: Runbook) -> Iterator[Problem]:
    """Units of criteria that nothing declares the measurement's unit for, so that a wrong one is not noticed."""
    for index, phase in enumerate(runbook.phases):
        for number, criterion in enumerate(phase.accept):
            comparison = lang.parse_criterion(criterion.expr)
            meanings = {one: resolve(one, runbook=runbook, phase=phase) for one in lang.references(comparison)}
            if comparison.unit is None or any(_unit(one, meanings) is not None for one in meanings):
                continue
            unknown = next((one for one in meanings.values() if one.kind == "series"), None)
            if unknown is not None:
                at = _problem_at(built, ("phases", index, "accept", number))
                message = f"nothing declares the unit of {unknown.name}, so {comparison.unit!r} is not checked"
                fix = f"declare trainer.metrics.extra: {{{unknown.name}: '{comparison.unit}'}}, or leave the unit out"
                yield at(comparison.text.rfind(comparison.unit), message, fix)


def check_choose(built: Built, runbook: Runbook, index: int) -> Iterator[Problem]:
    """Problems of how a sweep or an A/B chooses its winner."""
    phase = runbook.phases[index]
    if not isinstance(phase, ArmsPhase):
        return
    for key in ("highest", "lowest", "tie"):
        text = getattr(phase.choose, key)
        if text is None:
            continue
        at = _problem_at(built, ("phases", index, "choose", key))
        try:
            reference = lang.parse_reference(text)
            meaning = resolve(reference, runbook=runbook, phase=phase)
        except lang.ExpressionError as error:
            yield at(error.column, str(error), f"write {key}: toks_per_s.mean")
        except UnresolvedReference as error:
            if not _is_noise(error, lang.parse_reference(text), built):
                yield at(error.column, error.message, error.fix)
        else:
            yield from _check_chosen(key, text, meaning, phase=phase, at=at)
            yield from _check_windows({reference: meaning}, runbook=runbook, at=at)


def _check_chosen(key: str, text: str, meaning: Resolved, *, phase: ArmsPhase, at: _ProblemAt) -> Iterator[Problem]:
    if meaning.kind == "scalar":
        fix = f"write {key}: metric.statistic, such as toks_per_s.mean"
        yield at(0, f"choose.{key} is {text}, which is no series of steps", fix)
    elif meaning.phase_id != phase.id or text.count(".") == 2:
        message = f"choose.{key} names phase {meaning.phase_id}, but compares the arms of {phase.id}"
        yield at(0, message, f"write {key}: {meaning.name}.{meaning.statistic}")
