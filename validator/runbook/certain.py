"""Criteria that hold whatever is measured: they prove nothing, and look as if they did.

What an expression can come to is bounded by interval arithmetic, in which a value takes the same away from itself. The
bounds are wide where little is known, so whatever is called certain is; not all that is certain is found.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from validator.model.catalogue import METRICS, SCALARS
from validator.model.expression import Binary, Call, Comparison, Expression, Number, Reference, Text
from validator.model.resolve import Resolved

__all__ = ["always_holds", "never_negative"]

_Reach = tuple[float, float]
_ANYTHING: _Reach = (-math.inf, math.inf)

_NEVER_NEGATIVE = frozenset({"tok/s", "TFLOP/s", "s", "ms", "MiB", "blocks", "rows", "steps", "tests"})
"""Units of what is counted or takes time."""

_RISING = ("min", "p50", "p95", "p99", "max")
_WITHIN = ("mean", "first", "last")
"""Statistics of one metric between its least and its largest."""


def always_holds(comparison: Comparison, resolved: Mapping[Reference, Resolved]) -> bool:
    """Whether no measurement could make the criterion fail."""
    left, operator, right = comparison.left, comparison.operator, comparison.right
    if operator in ("<", "<="):
        left, right, operator = right, left, ">" if operator == "<" else ">="
    if operator == ">=" and _is_ordered(left, right, resolved):
        return True
    low, high = _difference(left, right, resolved)
    if operator == ">=":
        return low >= 0
    if operator == ">":
        return low > 0
    return operator == "==" and low == high == 0


def never_negative(meaning: Resolved) -> bool:
    """Whether a value cannot be below 0. What a runbook declares of its own may be an offset, whatever its unit."""
    if meaning.statistic in ("stdev", "n"):
        return True
    known = meaning.name in METRICS or meaning.name in SCALARS
    return known and meaning.unit in _NEVER_NEGATIVE and "growth" not in meaning.name


def _is_ordered(left: Expression, right: Expression, resolved: Mapping[Reference, Resolved]) -> bool:
    """Whether two statistics of the same rows are asked to be in the order that they have by definition."""
    if not isinstance(left, Reference) or not isinstance(right, Reference):
        return False
    upper, lower = resolved[left], resolved[right]
    if (upper.source, upper.name, upper.kind) != (lower.source, lower.name, lower.kind) or upper.kind != "series":
        return False
    above, below = str(upper.statistic), str(lower.statistic)
    if above in _RISING and below in _RISING:
        return _RISING.index(above) >= _RISING.index(below)
    return (above == "max" and below in _WITHIN) or (below == "min" and above in _WITHIN)


def _difference(left: Expression, right: Expression, resolved: Mapping[Reference, Resolved]) -> _Reach:
    """What `left` less `right` can come to."""
    one, other = _multiple(left), _multiple(right)
    if one is not None and other is not None and one[1].name == other[1].name:
        factor = one[0] - other[0]
        return (0.0, 0.0) if factor == 0 else _times((factor, factor), _reach(one[1], resolved))
    (low, high), (least, most) = _reach(left, resolved), _reach(right, resolved)
    return _plain(low - most), _plain(high - least, high=True)


def _multiple(node: Expression) -> tuple[float, Reference] | None:
    """A reference times a number, as these two."""
    if isinstance(node, Reference):
        return 1.0, node
    if isinstance(node, Binary) and node.operator in "*/":
        for number, rest in ((node.right, node.left), (node.left, node.right)):
            inner = _multiple(rest) if isinstance(number, Number) else None
            if isinstance(number, Number) and inner is not None and (node.operator == "*" or number is node.right):
                factor = number.value if node.operator == "*" else (1 / number.value if number.value else math.nan)
                return (inner[0] * factor, inner[1]) if math.isfinite(factor) else None
    return None


def _reach(node: Expression, resolved: Mapping[Reference, Resolved]) -> _Reach:
    """The least and the most that an expression can come to."""
    if isinstance(node, Number):
        return node.value, node.value
    if isinstance(node, Reference):
        return (0.0, math.inf) if never_negative(resolved[node]) else _ANYTHING
    if isinstance(node, Call):
        return _reach_of_call(node, [_reach(argument, resolved) for argument in node.arguments])
    if isinstance(node, Text):
        return _ANYTHING
    if node.operator == "-":
        return _difference(node.left, node.right, resolved)
    one, other = _reach(node.left, resolved), _reach(node.right, resolved)
    if node.operator == "+":
        return _plain(one[0] + other[0]), _plain(one[1] + other[1], high=True)
    if node.operator == "*":
        return _times(one, other)
    left, right = _multiple(node.left), _multiple(node.right)
    if left is not None and right is not None and left[1].name == right[1].name and right[0] != 0:
        return left[0] / right[0], left[0] / right[0]
    return _ANYTHING if other[0] <= 0 <= other[1] else _times(one, (1 / other[1], 1 / other[0]))


def _reach_of_call(node: Call, reaches: list[_Reach]) -> _Reach:
    if node.function == "abs":
        low, high = reaches[0]
        return (0.0 if low <= 0 <= high else min(abs(low), abs(high))), max(abs(low), abs(high))
    choose = min if node.function == "min" else max
    return choose(low for low, _ in reaches), choose(high for _, high in reaches)


def _times(one: _Reach, other: _Reach) -> _Reach:
    products = [0.0 if 0.0 in (a, b) else a * b for a in one for b in other]
    return min(products), max(products)


def _plain(value: float, *, high: bool = False) -> float:
    """Infinity less infinity is anything."""
    return value if not math.isnan(value) else math.inf if high else -math.inf
