"""A criterion under one binding: the values of its sides, and what they are decided by."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import numpy as np

from validator.judge.data import Known, PhaseData, StoredPhase
from validator.judge.deciding import Terms
from validator.judge.needed import Share, needed, text_of
from validator.model.expression import (
    Binary,
    Call,
    Expression,
    Number,
    OpenBound,
    Reference,
    Relation,
    Text,
    references,
)
from validator.model.record import RunRecord
from validator.model.resolve import Resolved
from validator.model.runbook import TrainingPhase
from validator.model.verdict import Needed, Status
from validator.stats.estimate import NORMAL_975, Estimate, combine, exact
from validator.stats.measure import NotMeasured
from validator.stats.window import SteadyWindow

Source = PhaseData | StoredPhase
"""A phase of this validation, or of the last GO."""

Binding = Mapping[str, tuple[str, int | None]]
"""Phase to the arm and, for exact values, the index of the run that a reference means."""


@dataclass(frozen=True)
class Judgment:
    """What came out for a criterion under one binding."""

    status: Status
    message: str
    binding: Binding
    observed: float | str | None = None
    bound: float | str | None = None
    interval: tuple[float, float] | None = None
    margin: float | None = None
    open_for: Literal["interval", "rows"] | None = None
    needed: Needed | None = None


@dataclass(frozen=True)
class Question:
    """A criterion with what its references mean, and the phases behind them by name. `level` is that of intervals,
    `own` the phase whose criterion it is."""

    comparison: Relation
    resolved: Mapping[str, Resolved]
    data: Mapping[str, Source]
    level: float
    own: str


def unit_of(node: Expression, resolved: Mapping[str, Resolved]) -> str:
    """The unit of a lone reference, or of sums, minima and multiples of one."""
    if isinstance(node, Reference):
        return resolved[node.name].unit
    if isinstance(node, Binary) and node.operator in "*/":
        return unit_of(node.left, resolved) if not any(references(node.right)) else ""
    if isinstance(node, (Binary, Call)):
        operands = (node.left, node.right) if isinstance(node, Binary) else node.arguments
        units = {unit_of(operand, resolved) for operand in operands if any(references(operand))}
        return units.pop() if len(units) == 1 else ""
    return ""


def evaluate(
    node: Expression, asked: Question, binding: Binding, only: str | None = None, factor: float = 1.0
) -> Known:
    """The value of a side; with `only` as if no other phase had an interval, the values of that one times `factor`.

    Raises:
        NotMeasured: when a value is not known.
        ZeroDivisionError: when a divisor is 0.
    """
    if isinstance(node, Number):
        return exact(node.value)
    if isinstance(node, Text):
        return node.value
    if isinstance(node, OpenBound):
        raise NotMeasured("no bound is given")
    if isinstance(node, Reference):
        one = asked.resolved[node.name]
        arm, index = binding[one.source]
        phase = asked.data[one.source]
        if arm not in phase.arms:
            raise NotMeasured(f"phase {one.phase_id} has no runs")
        value = phase.value(one, arm=arm, index=index)
        if only is None or isinstance(value, str):
            return value
        return combine("*", [value, exact(factor)]) if one.source == only else exact(value.point)
    operator = node.operator if isinstance(node, Binary) else node.function
    arguments = (node.left, node.right) if isinstance(node, Binary) else node.arguments
    values = [evaluate(argument, asked, binding, only, factor) for argument in arguments]
    numbers = [value for value in values if isinstance(value, Estimate)]
    if len(numbers) < len(values):
        text = next(value for value in values if isinstance(value, str))
        raise NotMeasured(f"{text!r} is text, which has no {operator}")
    return combine(operator, numbers)


def alike(value: Known, other: Known) -> Known:
    """Text that holds a number or a truth value, as a number where it is compared with one."""
    if isinstance(value, str) and isinstance(other, Estimate):
        if value in ("true", "false"):
            return exact(float(value == "true"))
        try:
            return exact(float(value))
        except ValueError:
            return value
    return value


def plain(value: Known) -> float | str:
    return value if isinstance(value, str) else value.point


def recorded_value(node: Expression, asked: Question, binding: Binding) -> float | None:
    """What was recorded of a lone reference that decides nothing, to be shown all the same."""
    if not isinstance(node, Reference):
        return None
    one = asked.resolved[node.name]
    phase, (arm, index) = asked.data[one.source], binding[one.source]
    runs = phase.arms.get(arm, ())
    chosen = runs if index is None else runs[index : index + 1]
    if not isinstance(phase, PhaseData):
        return None
    values = [phase.recorded(run, one) for run in chosen if isinstance(run, RunRecord)]
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def terms_of(asked: Question, binding: Binding) -> Terms:
    """What a comparison of numbers is decided by."""
    comparison, data = asked.comparison, asked.data
    behind = [(data[one.source], one, binding[one.source][0]) for one in asked.resolved.values()]
    assumed = [phase.variation(one) for phase, one, arm in behind if phase.assumes_variation(one, arm=arm)]
    return Terms(
        operator=comparison.operator,
        unit=comparison.unit or unit_of(comparison.left, asked.resolved),
        text=comparison.text,
        repeats=min((len(data[phase].arms.get(arm, ())) for phase, (arm, _) in binding.items()), default=1),
        assumed_cv=max(assumed, default=0.0),
        level=asked.level,
        windows=tuple(_windows(behind)),
        needs=partial(_needs, asked, binding),
        at_end=partial(_at_end, asked, binding),
    )


def _windows(behind: Sequence[tuple[Source, Resolved, str]]) -> Iterator[SteadyWindow]:
    """The windows of all runs, and where several phases are compared, whose each is."""
    several = len({one.phase_id for _, one, _ in behind}) > 1
    for phase, one, arm in behind:
        for window in phase.windows(one, arm=arm):
            yield replace(window, note=f"in {one.phase_id}, {window.note}") if several and window.note else window


def _needs(asked: Question, binding: Binding) -> tuple[Needed, str | None] | None:
    """What would decide it, by the part that each phase has in the interval; the clause where there are several."""
    distance = _difference(asked, binding)
    if distance is None:
        return None
    shares = []
    for source, phase in asked.data.items():
        alone, moved = _difference(asked, binding, only=source), _difference(asked, binding, only=source, factor=1.001)
        interval = None if alone is None else alone.interval()
        if alone is None or moved is None or interval is None:
            continue
        arm = binding[source][0]
        named = [one for one in asked.resolved.values() if one.source == source]
        assumed = max((phase.variation(one) for one in named if phase.assumes_variation(one, arm=arm)), default=0.0)
        runs = len(phase.arms.get(arm, ()))
        half, reach = (interval[1] - interval[0]) / 2, abs(moved.point - alone.point) / 0.001
        # From four repeats on nothing is assumed: what runs differ by has both parts in it.
        between = half if not assumed else min(half, NORMAL_975 * assumed / math.sqrt(runs) * reach)
        steps = phase.record.phase.steps if isinstance(phase.record.phase, TrainingPhase) else 0
        within = math.sqrt(half**2 - between**2)
        shares.append(Share(source, 0 if isinstance(phase, StoredPhase) else steps, runs, within, between))
    if not shares:
        return None
    found = needed(distance.point, shares, own=asked.own)
    return found, text_of(found, shares, own=asked.own) if len(asked.data) > 1 else None


def _at_end(asked: Question, binding: Binding) -> Estimate | None:
    """Left minus right where of each run that became slower its end alone counts."""
    ended = {name: replace(one, at_end=True) if isinstance(one, PhaseData) else one for name, one in asked.data.items()}
    return _difference(replace(asked, data=ended), binding)


def _difference(asked: Question, binding: Binding, *, only: str | None = None, factor: float = 1.0) -> Estimate | None:
    """Left minus right; with `only` as if no other phase had an interval, its values times `factor`."""
    try:
        left, right = (
            evaluate(side, asked, binding, only, factor) for side in (asked.comparison.left, asked.comparison.right)
        )
        found = combine("-", [one for one in (left, right) if isinstance(one, Estimate)])
    except (NotMeasured, ZeroDivisionError, IndexError):
        return None
    return found if math.isfinite(found.point) else None
