"""Bounds from good runs: what a runbook should ask of the next run, and the edit that writes it there.

Pure: it is given judged reports and the text of a runbook. A bound is so far below the good runs that the next good run
passes it, and no further.

Three distances add up. The next run differs from the mean of the good ones: a prediction interval. Its verdict needs
the whole interval on the right side: half of the width that the interval will have. And a margin that the user states.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import yaml

from validator.model.catalogue import METRICS, STATISTICS, Better, Metric, headlines
from validator.model.expression import (
    ExpressionError,
    Number,
    OpenBound,
    Reference,
    Relation,
    open_reference,
    parse_criterion,
)
from validator.model.runbook import Runbook, TrainingPhase
from validator.model.settings import repeats_of
from validator.model.verdict import RunReport, ValidationReport
from validator.stats.distributions import t_quantile
from validator.stats.estimate import LEVEL, MIN_REPEATS, NORMAL_975
from validator.stats.means import pooled_cv
from validator.text import format_number, format_percent, plural

_LEARNED = 0.1
"""Share of what the good runs learned that the next one must learn, however much a single row may vary."""


@dataclass(frozen=True)
class MetricBound:
    """One criterion: `phase`, `reference operator value`, and a sentence that says where it comes from."""

    phase: str
    reference: str
    operator: str
    value: float
    unit: str
    why: str

    @property
    def expr(self) -> str:
        """The criterion as a runbook has it."""
        return f"{self.reference} {self.operator} {_decimal_text(self.value)}"


def bounds_of(reports: Sequence[ValidationReport], *, runbook: Runbook, margin: float) -> tuple[MetricBound, ...]:
    """The bounds for every phase of `runbook` that runs one config and that the good runs have carried out.

    Args:
        reports: the good validations, of this runbook on one class of machine.
        runbook: the one that receives the bounds; its repeats decide how wide the next interval will be.
        margin: share of the mean by which each bound is eased further.
    """
    return tuple(
        bound
        for phase in runbook.phases
        if isinstance(phase, TrainingPhase) and phase.one_config
        for bound in _phase_bounds(phase, reports, runbook, margin)
    )


def _phase_bounds(
    phase: TrainingPhase, reports: Sequence[ValidationReport], runbook: Runbook, margin: float
) -> Iterator[MetricBound]:
    runs: list[RunReport] = []
    names: list[str] = []
    for report in reports:
        found = next((one for one in report.phases if one.id == phase.id), None)
        good = [run for run in found.measured if _ended_well(run)] if found is not None else []
        if good:
            runs += good
            names.append(report.run_id)
    measured = {name for run in runs for name in run.metrics}
    for metric in _asked_metrics(phase, runbook, measured):
        values = [_usable_value(run, metric) for run in runs]
        known = [value for value in values if value is not None and math.isfinite(value) and value > 0]
        if known:
            yield _metric_bound(phase, metric, known, runs, names, runbook, margin)


def _asked_metrics(phase: TrainingPhase, runbook: Runbook, measured: set[str]) -> Iterator[Metric]:
    """What a verdict on these measurements rests on; and what the phase leaves open, by the statistic that it names."""
    left_open = {}
    for criterion in phase.accept:
        found = open_reference(criterion.expr)
        name, _, statistic = found[0].name.rpartition(".") if found is not None else ("", "", "")
        left_open[name] = (statistic, found[1] if found is not None else None)
    metrics = {**METRICS, **runbook.trainer.metrics.declared}
    rests = headlines(measured, metrics)
    for metric in metrics.values():
        statistic, operator = left_open.get(metric.name, ("", None))
        if operator is not None and statistic in STATISTICS:
            better: Better = "higher" if operator in (">=", ">") else "lower"
            yield metric._replace(statistic=statistic, better=better)
        elif metric.name in rests:
            yield metric


def _ended_well(run: RunReport) -> bool:
    outcome = run.outcome or {}
    return outcome.get("reason") == "at_steps" or (outcome.get("rc") == 0 and outcome.get("reason") == "exited")


def _usable_value(run: RunReport, metric: Metric) -> float | None:
    stats = run.metrics.get(metric.name)
    if stats is None or stats.version != metric.version or (metric.window == "steady" and stats.ci_low is None):
        return None  # of another definition, or without an interval: nothing to ask of others
    found = getattr(stats, metric.statistic)
    return None if found is None else float(found)


def _metric_bound(
    phase: TrainingPhase,
    metric: Metric,
    values: Sequence[float],
    runs: Sequence[RunReport],
    names: Sequence[str],
    runbook: Runbook,
    margin: float,
) -> MetricBound:
    operator = ">=" if metric.better == "higher" else "<="
    mean, n = float(np.mean(values)), len(values)
    repeats = repeats_of(runbook, phase)
    cv, measured = _variation(values, runbook.defaults.run_cv)
    reach = t_quantile((1 + LEVEL) / 2, n - 1) if measured else NORMAL_975
    noise = 0.0 if measured else _noise(runs, metric) / abs(mean)  # what enough runs differ by has it in it
    next_run = math.hypot(reach * cv, NORMAL_975 * noise) * math.sqrt(1 / repeats + 1 / n)
    own = _interval(runs, metric.name, cv, repeats, runbook.defaults.run_cv) if metric.window == "steady" else 0.0
    sign = -1.0 if operator == ">=" else 1.0
    value = mean
    for distance in (next_run, own, margin):
        value *= 1.0 + sign * min(distance, 0.9)
    parts = [f"{format_percent(next_run)} for the next run"]
    parts += [f"{format_percent(own)} for its interval"] if own else []
    parts += [f"{format_percent(margin)} margin"]
    value = _rounded(value, up=operator == "<=")
    first = _first(runs, metric)
    if first is not None and sign * mean < sign * first and sign * _between(mean, first) < sign * value:
        value = _between(mean, first)
        side = "below" if operator == "<=" else "above"
        parts += [f"but {side} the first value of {format_number(first)}, where a run ends that learned nothing"]
    known_by = "measured" if measured else "seen in few" if cv > runbook.defaults.run_cv else "assumed"
    source = f"{format_percent(cv)} between runs, {known_by}"
    source += f"; {format_percent(noise)} of noise in one row" if noise else ""
    return MetricBound(
        phase=phase.id,
        reference=f"{metric.name}.{metric.statistic}",
        operator=operator,
        value=value,
        unit=metric.unit,
        why=f"{plural(n, 'good run')} gave {format_number(mean)} {metric.unit} ({source}); "
        f"{', '.join(parts)}; from {', '.join(names)}",
    )


def _variation(values: Sequence[float], assumed: float) -> tuple[float, bool]:
    """Relative standard deviation between runs, and whether enough runs measured it."""
    cv = pooled_cv([values])
    if cv is None:
        return assumed, False
    return (cv, True) if len(values) >= MIN_REPEATS else (max(cv, assumed), False)


def _noise(runs: Sequence[RunReport], metric: Metric) -> float:
    """Standard deviation of the one row that a statistic takes; 0 for one of many rows, and where it is unknown."""
    seen = [stats.noise for run in runs if (stats := run.metrics.get(metric.name)) and stats.noise is not None]
    return float(np.mean(seen)) if seen and metric.statistic in ("first", "last") else 0.0


def _first(runs: Sequence[RunReport], metric: Metric) -> float | None:
    """Where the curve began of which a bound takes the last value; None for another statistic."""
    seen = [stats.first for run in runs if (stats := run.metrics.get(metric.name)) and stats.first is not None]
    return float(np.mean(seen)) if seen and metric.statistic == "last" else None


def _between(last: float, first: float) -> float:
    """A bound that the last value passes and the first one fails, of as few digits as that takes."""
    value = first + _LEARNED * (last - first)
    rounded = (_rounded(value, up=last > first, digits=digits) for digits in range(3, 12))
    return next((one for one in rounded if min(last, first) < one < max(last, first)), value)


def _interval(runs: Sequence[RunReport], metric: str, cv: float, repeats: int, run_cv: float) -> float:
    """Half of the relative width that the next verdict's interval will have."""
    if repeats >= MIN_REPEATS:
        return t_quantile((1 + LEVEL) / 2, repeats - 1) * cv / math.sqrt(repeats)
    within = [
        (stats.ci_high - stats.ci_low) / 2 / stats.mean
        for run in runs
        if (stats := run.metrics.get(metric)) and stats.ci_low is not None and stats.ci_high is not None and stats.mean
    ]
    own = float(np.mean(within)) / math.sqrt(repeats) if within else 0.0
    return math.hypot(NORMAL_975 * run_cv / math.sqrt(repeats), own)


def _rounded(value: float, *, up: bool, digits: int = 3) -> float:
    """So many significant digits, rounded to one side: for a bound to the one that is easier to pass."""
    if value == 0 or not math.isfinite(value):
        return value
    scale = 10.0 ** (math.floor(math.log10(abs(value))) - digits + 1)
    return (math.ceil if up else math.floor)(value / scale + (-1e-9 if up else 1e-9)) * scale


def _decimal_text(value: float) -> str:
    """Without exponent and without the noise of binary fractions: `612000`, `38.4`, `0.0123`."""
    text = f"{value:.12f}".rstrip("0").rstrip(".")
    return text or "0"


# Bounds written into the text of a runbook, which stays as its author wrote it: comments, order, quotes, spacing.

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
    return f"{_MARK}{bound.reference}: {bound.why}"
