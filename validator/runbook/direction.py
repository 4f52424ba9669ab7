"""Which way a criterion asks each measurement to go, and criteria that bound a value on its good side alone.

`toks_per_s.mean <= 15000` accepts every slower run. It says something only beside a bound on the other side, or where
its `why` says that it is meant.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from validator.model import expression as lang
from validator.model.catalogue import COST, METRICS, Better
from validator.model.resolve import Resolved, UnresolvedReference, resolve
from validator.model.runbook import Criterion, Phase, Runbook

BEST = {"higher": ("max", "p95", "p99"), "lower": ("min",)}
"""Statistics of the best moments, by the metric's good direction."""

WAY = {"higher": 1, "lower": -1}
_LEVELS = ("mean", "min", "p50", "p95", "p99", "max", "last")
"""Statistics that are good where the metric is; `first` is how a run begins, `cv` and `stdev` how it scatters."""

_COSTS = frozenset(scalar.name for scalar in COST)
_RATES = ("tok/s", "TFLOP/s")
"""Units of a pace."""

_TURNED = {">=": "<=", "<=": ">=", ">": "<", "<": ">"}


class WrongWay(NamedTuple):
    """A criterion that bounds a value only from its good side. `name` is the value's, `better` its good direction."""

    text: str
    name: str
    better: Better
    turned: str

    @property
    def accepts(self) -> str:
        """What passes it, as a clause that follows the criterion."""
        worse = "lower" if self.better == "higher" else "higher"
        return f"accepts any {worse} {self.name}, and {self.better} is better"

    @property
    def fix(self) -> str:
        """What to write instead."""
        side = "lower" if self.better == "higher" else "upper"
        return f"write {self.turned}, or add the {side} bound; where it is meant, give the criterion a why"


def wrong_way(criterion: Criterion, phase: Phase, runbook: Runbook) -> WrongWay | None:
    """How a required criterion bounds a value on its good side alone; None where it does not, or says why.

    Silent where the direction is not certain: a comparison with another phase, values that are asked to go both ways,
    and what the machine uses (memory, power), which may show that a GPU works at all.
    """
    if not criterion.required or criterion.why:
        return None
    relation, asked = _asked(criterion, phase, runbook)
    if relation is None or not asked or any(sign != -WAY[better] for _, better, sign in asked):
        return None
    first, better, _ = asked[0]
    for other in phase.accept:
        if other is not criterion and other.required and _bounds_other_side(other, first, phase, runbook):
            return None
    name = first.name if first.statistic is None else f"{first.name}.{first.statistic}"
    turned = relation.text.replace(relation.operator, _TURNED[relation.operator], 1)
    return WrongWay(relation.text, name, better, turned)


def _asked(
    criterion: Criterion, phase: Phase, runbook: Runbook
) -> tuple[lang.Relation | None, list[tuple[Resolved, Better, int]]]:
    """The criterion, and each value of this phase that has a good direction with the way that it is asked to go; no
    relation where another phase's values are compared, or a way is not known."""
    try:
        relation = lang.parse_criterion(criterion.expr)
        resolved = {one: resolve(one, runbook=runbook, phase=phase) for one in lang.references(relation)}
    except (lang.ExpressionError, UnresolvedReference):
        return None, []
    if any(meaning.phase_id != phase.id and not meaning.stored for meaning in resolved.values()):
        return None, []
    signs = asked_ways(relation)
    found = [
        (meaning, better, signs.get(one, 0))
        for one, meaning in resolved.items()
        if not meaning.stored and (better := _good(meaning)) is not None
    ]
    return relation, found


def _good(meaning: Resolved) -> Better | None:
    """The good direction of what a reference means; None where it has none for certain."""
    if meaning.name in _COSTS:
        return "lower"
    if meaning.statistic not in _LEVELS:
        return None
    metric = METRICS.get(meaning.name)
    used = meaning.unit in ("MiB", "W") and metric is not None and metric.better == "lower"
    return None if used else meaning.better


def _bounds_other_side(other: Criterion, value: Resolved, phase: Phase, runbook: Runbook) -> bool:
    """Whether another criterion of the phase bounds the same value, or for a pace another measure of it, from its bad
    side. A bound on the last loss is not the other side of one on its largest: only of one on its least."""
    relation, asked = _asked(other, phase, runbook)
    if relation is None or any(sign != WAY[better] for _, better, sign in asked):
        return False
    for meaning, better, _ in asked:
        if _is_pace(meaning) and _is_pace(value):
            return True
        same = meaning.name == value.name and meaning.kind == value.kind
        if same and (meaning.statistic == value.statistic or value.statistic in BEST[better]):
            return True
        if same and value.window == "steady":
            return True
    return False


def _is_pace(meaning: Resolved) -> bool:
    """Whether it says how fast the steps are: a rate, the time of a step, what tokens cost."""
    return meaning.name in _COSTS or meaning.name in ("step_time_s", "wall_step_time_s") or meaning.unit in _RATES


def asked_ways(relation: lang.Relation) -> dict[lang.Reference, int]:
    """Each reference with the way in which the criterion asks it to go: 1 up, -1 down, 0 not known."""
    if relation.operator in ("==", "!="):
        return {}
    way = 1 if relation.operator in (">", ">=") else -1
    return {**dict(_signs(relation.right, -way)), **dict(_signs(relation.left, way))}


def _signs(node: lang.Expression, sign: int) -> Iterator[tuple[lang.Reference, int]]:
    if isinstance(node, lang.Reference):
        yield node, sign
    elif isinstance(node, lang.Call):
        for argument in node.arguments:
            yield from _signs(argument, 0 if node.function == "abs" else sign)
    elif isinstance(node, lang.Binary) and node.operator in "+-":
        yield from _signs(node.left, sign)
        yield from _signs(node.right, -sign if node.operator == "-" else sign)
    elif isinstance(node, lang.Binary):
        yield from _signs(node.left, sign * _sign_of(node.right))
        yield from _signs(node.right, sign * _sign_of(node.left) * (-1 if node.operator == "/" else 1))


def _sign_of(node: lang.Expression) -> int:
    """The sign of a factor: measurements count as positive; 0 where it is 0 or not known."""
    if isinstance(node, lang.Number):
        return (node.value > 0) - (node.value < 0)
    if isinstance(node, lang.Reference):
        return 1
    if isinstance(node, lang.Call):
        found = {_sign_of(argument) for argument in node.arguments}
        return 1 if node.function == "abs" else found.pop() if len(found) == 1 else 0
    if not isinstance(node, lang.Binary):
        return 0
    left, right = _sign_of(node.left), _sign_of(node.right)
    if node.operator in "*/":
        return left * right
    if node.operator == "-" and node.left == lang.Number(0.0):
        return -right
    if node.operator == "-":
        right = -right
    return left if left == right else 0


def wrong_ways(phase: Phase, runbook: Runbook) -> Mapping[int, WrongWay]:
    """Those of a phase's criteria, by their index."""
    found = {number: wrong_way(one, phase, runbook) for number, one in enumerate(phase.accept)}
    return {number: one for number, one in found.items() if one is not None}
