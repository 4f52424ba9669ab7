"""What a phase asks of what it measures. A runbook that asks for nothing decides nothing.

A criterion carries a GO if it is required, could fail, and is about what its own phase measures. What every run is
asked anyway (exit code, number of steps) does not carry, and neither does the best moment of a rate or a time, which a
run reaches that is slow for the rest. Nor does a bound on the good side of a value alone, which a worse run meets.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from validator.model import expression as lang
from validator.model.catalogue import CURRENCY, METRICS
from validator.model.resolve import Resolved, UnresolvedReference, resolve
from validator.model.runbook import Criterion, Phase, Runbook, TrainingPhase
from validator.model.schemas import SCALARS
from validator.runbook.build import Built
from validator.runbook.direction import BEST, WAY, asked_ways, wrong_way
from validator.runbook.problems import Problem

_Reach = tuple[float, float]
_ANYTHING: _Reach = (-math.inf, math.inf)

_NEVER_NEGATIVE = frozenset({"tok/s", "TFLOP/s", "s", "ms", "MiB", "blocks", "rows", "steps", "tests"})
"""Units of what is counted or takes time."""

_RISING = ("min", "p50", "p95", "p99", "max")
_WITHIN = ("mean", "first", "last")
"""Statistics of one metric between its least and its largest."""


def always_holds(comparison: lang.Relation, resolved: Mapping[lang.Reference, Resolved]) -> bool:
    """Whether no measurement could make the criterion fail."""
    left, operator, right = comparison.left, comparison.operator, comparison.right
    if operator in ("<", "<="):
        left, right, operator = right, left, ">" if operator == "<" else ">="
    if operator == ">=" and _is_ordered(left, right, resolved):
        return True
    low, high = _difference_reach(left, right, resolved)
    if operator == ">=":
        return low >= 0
    if operator == ">":
        return low > 0
    return operator == "==" and low == high == 0


def never_negative(meaning: Resolved) -> bool:
    """Whether a value cannot be below 0. What a runbook declares of its own may be an offset, whatever its unit."""
    if meaning.statistic in ("stdev", "n"):
        return True
    if meaning.kind == "scalar" and meaning.name in SCALARS and SCALARS[meaning.name].unit == CURRENCY:
        return True
    known = meaning.name in METRICS or meaning.name in SCALARS
    return known and meaning.unit in _NEVER_NEGATIVE and "growth" not in meaning.name


def _is_ordered(left: lang.Expression, right: lang.Expression, resolved: Mapping[lang.Reference, Resolved]) -> bool:
    """Whether two statistics of the same rows are asked to be in the order that they have by definition."""
    if not isinstance(left, lang.Reference) or not isinstance(right, lang.Reference):
        return False
    upper, lower = resolved[left], resolved[right]
    if (upper.source, upper.name, upper.kind) != (lower.source, lower.name, lower.kind) or upper.kind != "series":
        return False
    above, below = str(upper.statistic), str(lower.statistic)
    if above in _RISING and below in _RISING:
        return _RISING.index(above) >= _RISING.index(below)
    return (above == "max" and below in _WITHIN) or (below == "min" and above in _WITHIN)


def _difference_reach(
    left: lang.Expression, right: lang.Expression, resolved: Mapping[lang.Reference, Resolved]
) -> _Reach:
    """What `left` less `right` can come to."""
    one, other = _multiple(left), _multiple(right)
    if one is not None and other is not None and one[1].name == other[1].name:
        factor = one[0] - other[0]
        return (0.0, 0.0) if factor == 0 else _times((factor, factor), _reach(one[1], resolved))
    (low, high), (least, most) = _reach(left, resolved), _reach(right, resolved)
    return _without_nan(low - most), _without_nan(high - least, high=True)


def _multiple(node: lang.Expression) -> tuple[float, lang.Reference] | None:
    """A reference times a number, as these two."""
    if isinstance(node, lang.Reference):
        return 1.0, node
    if isinstance(node, lang.Binary) and node.operator in "*/":
        for number, rest in ((node.right, node.left), (node.left, node.right)):
            inner = _multiple(rest) if isinstance(number, lang.Number) else None
            if isinstance(number, lang.Number) and inner is not None and (node.operator == "*" or number is node.right):
                factor = number.value if node.operator == "*" else (1 / number.value if number.value else math.nan)
                return (inner[0] * factor, inner[1]) if math.isfinite(factor) else None
    return None


def _reach(node: lang.Expression, resolved: Mapping[lang.Reference, Resolved]) -> _Reach:
    """The least and the most that an expression can come to."""
    if isinstance(node, lang.Number):
        return node.value, node.value
    if isinstance(node, lang.Reference):
        return (0.0, math.inf) if never_negative(resolved[node]) else _ANYTHING
    if isinstance(node, lang.Call):
        return _reach_of_call(node, [_reach(argument, resolved) for argument in node.arguments])
    if isinstance(node, (lang.Text, lang.OpenBound)):
        return _ANYTHING
    if node.operator == "-":
        return _difference_reach(node.left, node.right, resolved)
    one, other = _reach(node.left, resolved), _reach(node.right, resolved)
    if node.operator == "+":
        return _without_nan(one[0] + other[0]), _without_nan(one[1] + other[1], high=True)
    if node.operator == "*":
        return _times(one, other)
    left, right = _multiple(node.left), _multiple(node.right)
    if left is not None and right is not None and left[1].name == right[1].name and right[0] != 0:
        return left[0] / right[0], left[0] / right[0]
    return _ANYTHING if other[0] <= 0 <= other[1] else _times(one, (1 / other[1], 1 / other[0]))


def _reach_of_call(node: lang.Call, reaches: list[_Reach]) -> _Reach:
    if node.function == "abs":
        low, high = reaches[0]
        return (0.0 if low <= 0 <= high else min(abs(low), abs(high))), max(abs(low), abs(high))
    choose = min if node.function == "min" else max
    return choose(low for low, _ in reaches), choose(high for _, high in reaches)


def _times(one: _Reach, other: _Reach) -> _Reach:
    products = [0.0 if 0.0 in (a, b) else a * b for a in one for b in other]
    return min(products), max(products)


def _without_nan(value: float, *, high: bool = False) -> float:
    """Infinity less infinity is anything."""
    return value if not math.isnan(value) else math.inf if high else -math.inf


# What a phase asks of what it measures. A runbook that asks for nothing decides nothing.

_ASKED_ANYWAY = ("outcome.rc", "steps.done")


def idle(criterion: Criterion, phase: Phase, runbook: Runbook) -> str | None:
    """Why a criterion carries no GO, as a clause that follows it; None where it does."""
    if not criterion.required:
        return "is not required"
    try:
        comparison = lang.parse_criterion(criterion.expr)
        resolved = {one: resolve(one, runbook=runbook, phase=phase) for one in lang.references(comparison)}
    except (lang.ExpressionError, UnresolvedReference):
        return "cannot be evaluated"
    if isinstance(comparison.right, lang.OpenBound):
        return "has no bound yet"
    if always_holds(comparison, resolved):
        return "holds whatever is measured"
    own = {one: meaning for one, meaning in resolved.items() if meaning.phase_id == phase.id and not meaning.stored}
    if not own:
        return "is not about what this phase measures"
    anyway = _ASKED_ANYWAY if isinstance(phase, TrainingPhase) else _ASKED_ANYWAY[1:]
    measured = {
        one: meaning
        for one, meaning in own.items()
        if not (meaning.name in anyway or meaning.name.startswith("requested.") or meaning.statistic == "n")
    }
    if not measured:
        return "asks what every run is asked anyway"
    backwards = wrong_way(criterion, phase, runbook)
    if backwards is not None:
        return backwards.accepts
    best = _best_moments(comparison, measured)
    names = {measured[one].name for one in best}
    if best and all(meaning.name in names for meaning in measured.values()):
        return "asks only for the best moment of the run"
    return None


def _best_moments(comparison: lang.Relation, measured: Mapping[lang.Reference, Resolved]) -> list[lang.Reference]:
    """The references to the best moments of a rate or a time that are asked to be good."""
    signs = asked_ways(comparison)
    return [one for one, meaning in measured.items() if _is_best(meaning, signs.get(one, 0))]


def _is_best(meaning: Resolved, sign: int) -> bool:
    better = meaning.better
    if better is None or meaning.window != "steady":
        return False
    return meaning.statistic in BEST[better] and sign == WAY[better]


def check_observing(built: Built, runbook: Runbook, index: int) -> Iterator[Problem]:
    """A phase that is declared to observe must not ask for something at the same time."""
    phase = runbook.phases[index]
    if phase.observe and any(criterion.required for criterion in phase.accept):
        yield built.problem(
            ("phases", index, "observe"),
            f"phase {phase.id} is declared to observe, and has required criteria",
            "remove observe: true, or write required: false on its criteria",
            key=True,
        )
