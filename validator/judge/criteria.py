"""Criteria, judged: their values taken from the phases, and decided by `validator.judge.deciding`.

What is missing or open is INCONCLUSIVE with a sentence that says which measurement is missing or what would decide it.
A criterion on several arms or repeats holds when it holds for each; the worst is the one that is named.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

from validator.judge.data import Known, PhaseData, StoredPhase, is_exact, measured, run_name
from validator.judge.deciding import WORDS, Terms, decide
from validator.judge.question import (
    Binding,
    Judgment,
    Question,
    Source,
    alike,
    evaluate,
    plain,
    recorded_value,
    terms_of,
    unit_of,
)
from validator.model.expression import (
    ExpressionError,
    Number,
    OpenBound,
    Reference,
    Relation,
    parse_criterion,
    references,
)
from validator.model.record import PhaseRecord, RunRecord, ValidationRecord
from validator.model.resolve import LAST_GO, Resolved, UnresolvedReference, resolve
from validator.model.runbook import Criterion
from validator.model.verdict import Evidence, Needed, PhaseReport, Status, Verdict
from validator.stats.estimate import LEVEL, SECOND_LEVEL, Estimate, without_negatives
from validator.stats.means import within_noise
from validator.stats.measure import NotMeasured
from validator.text import format_interval, format_value, listed

_FLIPPED = {">=": "<=", "<=": ">=", ">": "<", "<": ">", "==": "==", "!=": "!="}
_SEVERITY: dict[Status, int] = {"FAIL": 0, "INCONCLUSIVE": 1, "PASS": 2}
_MANY_ROWS = 30
"""Rows from which a loss that falls shows it in all of them together, if a trainer learns at all in them."""


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
        return _verdict(criterion, id, "", Judgment("INCONCLUSIVE", f"The criterion means nothing: {problem}.", {}), ())
    if any(one.stored for one in resolved.values()) and validation.last_go is None:
        return _without_last_go(criterion, id=id)
    data = {one.source: _data(one, validation, judged) for one in resolved.values()}
    asked = Question(
        comparison, resolved, data, SECOND_LEVEL if record.extended is not None else LEVEL, record.phase.id
    )
    judgments = [_judge(asked, binding) for binding in _bindings(asked, own=record.phase.id)]
    worst = min(judgments, key=lambda one: (_SEVERITY[one.status], one.margin if one.margin is not None else math.inf))
    unit = comparison.unit or unit_of(comparison.left, resolved)
    evidence = tuple(
        entry
        for one in resolved.values()
        for entry in data[one.source].evidence(one, arm=worst.binding.get(one.source, ("", None))[0])
    )
    sources = ((one, data[one.source], worst.binding.get(one.source, ("", None))[0]) for one in resolved.values())
    remarks = (source.remark(one, arm=arm) for one, source, arm in sources if isinstance(source, PhaseData))
    named = _named(worst, judgments, data)
    return _verdict(
        criterion, id, unit, replace(named, message=named.message + "".join(dict.fromkeys(remarks))), evidence
    )


def _data(one: Resolved, validation: ValidationRecord, judged: Mapping[str, PhaseReport]) -> Source:
    record = validation.phase(one.phase_id)
    if one.stored and validation.last_go is not None:
        return StoredPhase(record, validation, validation.last_go)
    return PhaseData(record, validation, judged.get(one.phase_id))


def _verdict(criterion: Criterion, id: str, unit: str, judgment: Judgment, evidence: tuple[Evidence, ...]) -> Verdict:
    return Verdict(
        id=id,
        text=criterion.expr,
        required=criterion.required,
        status=judgment.status,
        observed=judgment.observed,
        unit=unit,
        ci_low=judgment.interval[0] if judgment.interval else None,
        ci_high=judgment.interval[1] if judgment.interval else None,
        bound=judgment.bound,
        margin=judgment.margin,
        message=judgment.message,
        open_for=judgment.open_for,
        needed=judgment.needed,
        evidence=evidence,
    )


def _without_last_go(criterion: Criterion, *, id: str) -> Verdict:
    """The verdict where there is nothing to compare with: never PASS, and SKIPPED only if the runbook says so."""
    skip = criterion.without_last_go == "skip"
    lack = "No earlier GO of this runbook on this machine class was available when the run started"
    rest = (
        "the criterion is left out, as without_last_go: skip has it."
        if skip
        else "a first GO needs without_last_go: skip, or required: false."
    )
    asked = criterion.model_copy(update={"required": criterion.required and not skip})
    return _verdict(asked, id, "", Judgment("SKIPPED" if skip else "INCONCLUSIVE", f"{lack}; {rest}", {}), ())


def _oriented(comparison: Relation) -> Relation:
    """With the measurement on the left: `39 <= x` reads `x >= 39`."""
    if any(references(comparison.left)) or not any(references(comparison.right)):
        return comparison
    operator = next(op for op in (">=", "<=", ">", "<", "==", "!=") if op == _FLIPPED[comparison.operator])
    return Relation(comparison.right, operator, comparison.left, comparison.unit, comparison.text)


def _bindings(asked: Question, *, own: str) -> Iterator[Binding]:
    """Every arm of the phase itself, and every run where a value belongs to one run."""
    choices = []
    for phase_id, phase in asked.data.items():
        arms = tuple(phase.arms) if phase_id == own else phase.chosen_arms()
        single = any(one.source == phase_id and is_exact(one) for one in asked.resolved.values())
        options: list[tuple[str, int | None]] = []
        for arm in arms:
            options += [(arm, index) for index in range(len(phase.arms[arm]))] if single else [(arm, None)]
        choices.append([(phase_id, option) for option in options or [("", None)]])
    for combination in itertools.product(*choices):
        binding = dict(combination)
        if not _crossed(binding, asked.data, own=own):
            yield binding


def _crossed(binding: Binding, data: Mapping[str, Source], *, own: str) -> bool:
    """Whether an arm is compared with another arm of the last GO, although the same one was there."""
    arm, earlier = binding.get(own), binding.get(f"{LAST_GO}.{own}")
    if arm is None or earlier is None or arm[0] not in data[f"{LAST_GO}.{own}"].arms:
        return False
    return arm[0] != earlier[0]


def _named(worst: Judgment, judgments: list[Judgment], data: Mapping[str, Source]) -> Judgment:
    """The worst judgment, identified by its arm and run."""
    if len(judgments) == 1:
        return worst
    names = []
    for phase_id, (arm, index) in worst.binding.items():
        runs = data[phase_id].arms.get(arm, ())
        if len(data[phase_id].record.runs) > 1 and runs:
            names.append(run_name(runs[index]) if index is not None else f"{phase_id}/{arm}".rstrip("/"))
    if not names:
        return worst
    message = f"{worst.message} Decided by the worst of {len(judgments)}: {', '.join(names)}."
    return replace(worst, message=message)


def _judge(asked: Question, binding: Binding) -> Judgment:
    comparison = asked.comparison
    if isinstance(comparison.right, OpenBound):
        return _open(asked, binding)
    try:
        left, right = (evaluate(side, asked, binding) for side in (comparison.left, comparison.right))
    except NotMeasured as problem:
        seen = recorded_value(comparison.left, asked, binding)
        return Judgment("INCONCLUSIVE", f"Not measured: {problem}.", binding, seen)
    except ZeroDivisionError:
        return Judgment("INCONCLUSIVE", f"Not computable: a divisor in {comparison.text!r} is 0.", binding)
    left, right = alike(left, right), alike(right, left)
    if isinstance(left, str) or isinstance(right, str):
        return _judge_text(left, comparison.operator, right, binding)
    judgment = _judge_numbers(left, right, terms_of(asked, binding), comparison, binding)
    judgment = _beside_others(judgment, asked, binding)
    if judgment.status != "PASS" and any(isinstance(one, PhaseData) and one.pauses for one in asked.data.values()):
        judgment = _apart_from_pauses(judgment, asked, binding)
    broken = _unfinished(asked, binding)
    if broken is not None and (
        judgment.status == "PASS" or (judgment.status == "FAIL" and _machine_cut(asked, binding))
    ):
        message = f"{judgment.message} This does not count: {broken}."
        return replace(judgment, status="INCONCLUSIVE", message=message)
    return _end_of_a_shorter_run(_within_noise(judgment, asked, binding), asked)


def _beside_others(judgment: Judgment, asked: Question, binding: Binding) -> Judgment:
    """A bound of pace that is missed while other programs hold the CPU is open, if without them it may be met."""
    if judgment.status != "FAIL":
        return judgment
    assert isinstance(judgment.observed, float)
    assert isinstance(judgment.bound, float)
    few, many = sorted((abs(judgment.observed), abs(judgment.bound)))
    missed_by = many / few if few else math.inf
    for name in {one.name for one in references(asked.comparison.left)}:
        one = asked.resolved[name]
        phase, (arm, index) = asked.data[one.source], binding[one.source]
        if one.source != asked.own or not isinstance(phase, PhaseData):
            continue
        runs = phase.arms.get(arm, ())[slice(None) if index is None else slice(index, index + 1)]
        taken = {run.spec.id: phase.slowed_by_others(run, one, operator=asked.comparison.operator) for run in runs}
        known = {run: others for run, others in taken.items() if others is not None and missed_by <= others.gain}
        if known and 2 * len(known) >= len(runs):
            message = (
                f"{judgment.message} Other programs used {max(known.values()).pct:.0f} % of the machine's CPU "
                f"in most of {listed(list(known))}, and hardly any was left: run it again without them."
            )
            return replace(judgment, status="INCONCLUSIVE", message=message, open_for=None, needed=None)
    return judgment


def _within_noise(judgment: Judgment, asked: Question, binding: Binding) -> Judgment:
    """What fails because the last row does not lie beyond the first is open where single rows vary by as much; what
    passes too, where many rows together show no fall."""
    left, right = asked.comparison.left, asked.comparison.right
    if judgment.status not in ("FAIL", "PASS") or not isinstance(left, Reference) or not isinstance(right, Reference):
        return judgment
    if asked.comparison.operator in ("==", "!="):
        return judgment
    one, other = asked.resolved[left.name], asked.resolved[right.name]
    phase, (arm, index) = asked.data[one.source], binding[one.source]
    ends = {one.statistic, other.statistic} == {"first", "last"}
    if (
        not ends
        or (one.source, one.name) != (other.source, other.name)
        or not isinstance(phase, PhaseData)
        or index is None
    ):
        return judgment
    run = phase.arms[arm][index]
    found, rows = measured(run), run.result.series.get(one.name) if run.result is not None else None
    stats = None if found is None else found.metrics.get(one.name)
    if judgment.status == "PASS" and (stats is None or stats.fell is not False or stats.n < _MANY_ROWS):
        return judgment
    if rows is not None and len(rows.values) == 1 and math.isfinite(rows.values[0]):
        message = f"{judgment.message} The run has one row of {one.name}, its first and its last: more steps show more."
        return replace(judgment, status="INCONCLUSIVE", message=message)
    noise = None if stats is None else stats.noise
    values = [side for side in (judgment.observed, judgment.bound) if isinstance(side, float)]
    if noise is None or len(values) < 2 or not within_noise(values[0] - values[1], noise, rows=2):
        return judgment
    together = f", and {stats.n} rows together show no fall" if judgment.status == "PASS" and stats is not None else ""
    message = (
        f"{judgment.message} One row varies by {format_value(noise, one.unit)}{together}, so the difference may be "
        f"chance: more steps show whether {one.name} falls or rises."
    )
    return replace(judgment, status="INCONCLUSIVE", message=message)


def _end_of_a_shorter_run(judgment: Judgment, asked: Question) -> Judgment:
    """A bound on the end of a curve holds for as many steps as the runbook has: what fewer steps miss is open."""
    value = judgment.observed
    if judgment.status != "FAIL" or not isinstance(asked.comparison.right, Number) or not isinstance(value, float):
        return judgment
    for one in asked.resolved.values():
        phase = asked.data[one.source]
        if one.statistic != "last" or not isinstance(phase, PhaseData) or not math.isfinite(value):
            continue
        written = phase.validation.written_steps.get(one.phase_id, 0)
        steps = getattr(phase.validation.runbook.phase(one.phase_id), "steps", written)
        if steps < written:
            message = (
                f"{judgment.message} The bound is for the {written:,} steps that the runbook has, and this run had "
                f"{steps:,}: run {one.phase_id} with all of them."
            )
            needed = Needed(steps={one.phase_id: written})
            return replace(judgment, status="INCONCLUSIVE", message=message, open_for="rows", needed=needed)
    return judgment


def _open(asked: Question, binding: Binding) -> Judgment:
    """What was measured where the bound is still to be filled in."""
    comparison = asked.comparison
    try:
        value = evaluate(comparison.left, asked, binding)
    except (NotMeasured, ZeroDivisionError) as problem:
        seen = recorded_value(comparison.left, asked, binding)
        return Judgment("INCONCLUSIVE", f"Not measured: {problem}, and the bound is still open.", binding, seen)
    if isinstance(value, Estimate) and not math.isfinite(value.point):
        return Judgment("FAIL", f"The value is {value.point}, which no healthy run shows.", binding, value.point, "?")
    unit = comparison.unit or unit_of(comparison.left, asked.resolved)
    interval = None if isinstance(value, str) else value.interval(asked.level)
    if interval is not None and isinstance(value, Estimate):
        interval = without_negatives(interval, value.reach[0])
    ends = f" {format_interval(*interval)}" if interval is not None else ""
    shown = format_value(plain(value), unit) + ends
    message = f"{shown} was observed, and the bound is still open."
    return Judgment("INCONCLUSIVE", message, binding, plain(value), "?", interval)


def _apart_from_pauses(failed: Judgment, asked: Question, binding: Binding) -> Judgment:
    """What does not pass through one or two pauses alone is open: they do not show how often a long run pauses."""
    plain = {
        name: replace(one, pauses=False) if isinstance(one, PhaseData) else one for name, one in asked.data.items()
    }
    named = ((plain[one.source], one) for one in asked.resolved.values())
    runs = [phase.few_pauses(one, arm=binding[one.source][0]) for phase, one in named if isinstance(phase, PhaseData)]
    paused = next((run for run in runs if run is not None), None)
    status = failed.status if paused is None else _judge(replace(asked, data=plain), binding).status
    if status in ("FAIL", failed.status):
        return failed
    message = (
        f"{failed.message} Without its pauses run {paused} would {'pass' if status == 'PASS' else 'be open'}. It holds "
        "fewer than three, so how often they come is not known: declare pause_every (steps from pause to pause) in the "
        "phase or in defaults."
    )
    return replace(failed, status="INCONCLUSIVE", message=message, open_for=None)


def _unfinished(asked: Question, binding: Binding) -> str | None:
    """A run behind a series or a config that did not end well: what it measured is no pass."""
    for run in _behind(asked, binding):
        if run.outcome is None:
            return f"run {run.spec.id} has not ended"
        if not run.outcome.ok:
            return f"run {run.spec.id} did not end by itself with exit code 0"
    return None


def _machine_cut(asked: Question, binding: Binding) -> bool:
    """Whether the machine, or a node, ended a run behind it: what that did not reach is no failure of the trainer."""
    return any(run.outcome is not None and run.outcome.cut for run in _behind(asked, binding))


def _behind(asked: Question, binding: Binding) -> Iterator[RunRecord]:
    """The runs behind series and configs."""
    for one in asked.resolved.values():
        phase = asked.data[one.source]
        if not one.name.startswith("outcome.") and not isinstance(phase, StoredPhase):
            yield from phase.arms.get(binding[one.source][0], ())


def _judge_text(left: Known, operator: str, right: Known, binding: Binding) -> Judgment:
    observed, bound = plain(left), plain(right)
    if operator not in ("==", "!="):
        message = f"{observed!r} and {bound!r} cannot be ordered; compare text by == or !=."
        return Judgment("INCONCLUSIVE", message, binding, observed, bound)
    holds = (str(observed) == str(bound)) == (operator == "==")
    message = f"{observed!r} is {'' if holds else 'not '}{WORDS[operator]} {bound!r}."
    return Judgment("PASS" if holds else "FAIL", message, binding, observed, bound)


def _judge_numbers(left: Estimate, right: Estimate, terms: Terms, comparison: Relation, binding: Binding) -> Judgment:
    if math.isnan(left.point) or math.isnan(right.point):
        message = "The value is not a number: the trainer wrote NaN or an infinity."
        return Judgment("FAIL", message, binding, left.point, right.point)
    # A lone reference that is infinite was written so; arithmetic may make one of healthy values.
    written = left.exact and isinstance(comparison.left, Reference)
    if math.isinf(left.point) and not math.isinf(right.point) and written:
        message = f"The value is {left.point}, which no healthy run shows."
        return Judgment("FAIL", message, binding, left.point, right.point)
    found = decide(left, right, terms)
    return Judgment(
        status=found.status,
        message=found.message,
        binding=binding,
        observed=left.point,
        bound=right.point,
        interval=found.interval,
        margin=found.margin,
        open_for=found.open_for,
        needed=found.needed,
    )
