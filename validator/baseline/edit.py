"""Bounds written into the text of a runbook, which stays as its author wrote it: comments, order, quotes, spacing."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

import yaml

from validator.baseline.bounds import MetricBound
from validator.model.expression import ExpressionError, Number, OpenBound, Reference, Relation, parse_criterion

_MARK = "# from good runs: "


class CannotEdit(ValueError):
    """The text is laid out in a way that cannot be edited without rewriting it; the message names the place."""


def with_bounds(text: str, bounds: Sequence[MetricBound]) -> str:
    """The runbook's text with the bounds in it.

    A criterion on the same measurement in the same direction gets the new number; any other bound is appended to the
    phase's `accept`. Above each is a comment that says where it comes from.

    Raises:
        CannotEdit: when a phase cannot be found or edited.
    """
    for bound in bounds:
        text = _with_bound(text, bound)
    return text


def without_criterion(text: str, phase: str, expr: str, *, why: str) -> str:
    """The runbook's text with a comment in place of a criterion, which has a line of its own; as it is where none has.

    Raises:
        CannotEdit: when the phase cannot be found.
    """
    accept = value_of(_phase_node(text, phase), "accept")
    if not isinstance(accept, yaml.SequenceNode) or accept.flow_style or len(accept.value) < 2:
        return text
    for item in accept.value:
        if isinstance(item, yaml.ScalarNode) and item.value == expr:
            start, end = _line_of(text, item.start_mark.index), _end_of(item)
            end = len(text) if "\n" not in text[end:] else text.index("\n", end)
            return f"{text[:start]}{' ' * accept.start_mark.column}# {why}{text[end:]}"
    return text


def _with_bound(text: str, bound: MetricBound) -> str:
    phase = _phase_node(text, bound.phase)
    accept = value_of(phase, "accept")
    if accept is None:
        return _new_accept(text, phase, bound)
    if not isinstance(accept, yaml.SequenceNode) or accept.start_mark.index < phase.start_mark.index:
        raise CannotEdit(f"accept of phase {bound.phase} is no list of its own; write it out under the phase")
    for item in accept.value:
        scalar = value_of(item, "expr") if isinstance(item, yaml.MappingNode) else item
        if isinstance(scalar, yaml.ScalarNode) and _replaces(scalar.value, bound):
            holder = phase if phase.flow_style else accept if accept.flow_style else item
            inside = _line_of(text, holder.start_mark.index)
            text = text[: scalar.start_mark.index] + _yaml_scalar(bound.expr) + text[_end_of(scalar) :]
            return _with_comment(text, inside, bound)
    if accept.flow_style:
        return _into_flow(text, accept, phase if phase.flow_style else accept, bound)
    return _with_lines_after(text, accept, accept.start_mark.column, [f"- {_yaml_scalar(bound.expr)}"], bound)


def _phase_node(text: str, phase: str) -> yaml.MappingNode:
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    phases = value_of(root, "phases")
    for node in phases.value if isinstance(phases, yaml.SequenceNode) else ():
        found = value_of(node, "id")
        if isinstance(node, yaml.MappingNode) and isinstance(found, yaml.ScalarNode) and found.value == phase:
            return node
    raise CannotEdit(f"the runbook has no phase {phase} of its own")


def value_of(node: yaml.Node | None, key: str) -> yaml.Node | None:
    """What a mapping of a runbook's text has for a key; None where it has none, or is no mapping."""
    if not isinstance(node, yaml.MappingNode):
        return None
    return next((value for name, value in node.value if name.value == key), None)


def _replaces(expr: str, bound: MetricBound) -> bool:
    """Whether a criterion bounds the same measurement on the same side, by a number or by one still to be filled in."""
    try:
        found: Relation = parse_criterion(expr)
    except ExpressionError:
        return False
    alike = isinstance(found.left, Reference) and found.left.name == bound.reference
    bounded = isinstance(found.right, (Number, OpenBound))
    return alike and bounded and found.operator in (bound.operator, bound.operator[0])


def _yaml_scalar(expr: str) -> str:
    """Criteria have no character that would need quotes in a block; a flow list would be cut at none either."""
    return expr if re.fullmatch(r"[\w.<>= -]+", expr) else json.dumps(expr)


def _new_accept(text: str, phase: yaml.MappingNode, bound: MetricBound) -> str:
    if phase.flow_style:
        end = phase.end_mark.index - 1
        line = _line_of(text, phase.start_mark.index)
        return _with_comment(f"{text[:end]}, accept: [{_yaml_scalar(bound.expr)}]{text[end:]}", line, bound)
    column = phase.value[0][0].start_mark.column
    return _with_lines_after(text, phase, column, ["accept:", f"  - {_yaml_scalar(bound.expr)}"], bound)


def _into_flow(text: str, accept: yaml.SequenceNode, holder: yaml.Node, bound: MetricBound) -> str:
    end = accept.end_mark.index - 1
    comma = ", " if accept.value else ""
    if text[:end].rstrip().endswith(","):
        comma = " "
    line = _line_of(text, holder.start_mark.index)
    return _with_comment(f"{text[:end].rstrip()}{comma}{_yaml_scalar(bound.expr)}{text[end:]}", line, bound)


def _with_lines_after(text: str, node: yaml.Node, column: int, lines: Sequence[str], bound: MetricBound) -> str:
    """New lines behind the last line that belongs to `node`, with the comment above the last of them."""
    place = _end_of(node)
    place = len(text) if "\n" not in text[place:] else text.index("\n", place)
    indent = " " * column
    inner = indent + lines[-1][: len(lines[-1]) - len(lines[-1].lstrip())]
    added = [f"{indent}{line}" for line in lines]
    added.insert(len(added) - 1, f"{inner}{_comment(bound)}")
    return f"{text[:place]}\n" + "\n".join(added) + text[place:]


def _end_of(node: yaml.Node) -> int:
    """Index behind the last character of a node; the parser's own mark of a block lies before the next token."""
    if isinstance(node, (yaml.MappingNode, yaml.SequenceNode)) and not node.flow_style and node.value:
        last = node.value[-1]
        return _end_of(last[1] if isinstance(last, tuple) else last)
    end: int = node.end_mark.index
    text = node.end_mark.buffer
    if text is not None and isinstance(node, yaml.ScalarNode) and node.style in ("|", ">"):
        while end > node.start_mark.index and text[end - 1] in " \n":
            end -= 1
    return end


def _line_of(text: str, index: int) -> int:
    """Index of the first character of the line."""
    return text.rfind("\n", 0, index) + 1


def _with_comment(text: str, line: int, bound: MetricBound) -> str:
    """The comment above a line, in place of the one on the same measurement that an earlier edit left there."""
    before, rest = text[:line], text[line:]
    indent = rest[: len(rest) - len(rest.lstrip(" "))]
    lines = before.splitlines(keepends=True)
    first = len(lines)
    while first and lines[first - 1].strip().startswith(_MARK):
        first -= 1
    kept = [one for one in lines[first:] if not one.strip().startswith(f"{_MARK}{bound.reference}:")]
    return "".join((*lines[:first], *kept, f"{indent}{_comment(bound)}\n", rest))


def _comment(bound: MetricBound) -> str:
    careful = "".join(f"; CAREFUL: {one}" for one in bound.warnings)
    return f"{_MARK}{bound.reference}: {bound.why}{careful}"
