"""One phase, judged: its runs measured, its criteria decided, its arms compared, its status drawn from all of these."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from validator.judge.compare import compare_phase
from validator.judge.cost import COSTS
from validator.judge.criteria import judge_criterion
from validator.judge.data import PhaseData, measured, scaling_efficiency
from validator.judge.decision import with_remedies
from validator.judge.implicit import implicit_criteria, implicit_verdicts, out_of_reach
from validator.kinds.registry import asks, kind_of, unasked
from validator.model.catalogue import version_of
from validator.model.expression import open_reference
from validator.model.record import PhaseRecord, RunRecord, ValidationRecord
from validator.model.resolve import Resolved
from validator.model.result import Result, ScalarValue
from validator.model.runbook import TrainPhase
from validator.model.verdict import ArmComparison, Check, PhaseReport, RunReport, Status, Verdict
from validator.stats.estimate import Estimate
from validator.stats.measure import NotMeasured, RunMeasurement
from validator.text import brief, format_value, plural

_NAMED = 3
"""Criteria that a sentence names beside the first."""

_WORST: tuple[Status, ...] = ("FAIL", "INCONCLUSIVE", "RUNNING", "NOT_RUN", "SKIPPED")


@np.errstate(all="ignore")
def judge_phase(record: PhaseRecord, *, validation: ValidationRecord, judged: Mapping[str, PhaseReport]) -> PhaseReport:
    """The report of one phase.

    Args:
        record: the phase, in any state.
        validation: all phases as far as known, for criteria that refer to others.
        judged: reports of the phases before this one, for the arms that they recommend.
    """
    report = _judge(record, validation, judged)
    return with_remedies(report, record, lambda go: _judge(go, _swapped(validation, go), judged))


def _swapped(validation: ValidationRecord, record: PhaseRecord) -> ValidationRecord:
    """The validation with another go at one of its phases in place of the one that decides."""
    phases = tuple(record if one.phase.id == record.phase.id else one for one in validation.phases)
    return replace(validation, phases=phases)


def _judge(record: PhaseRecord, validation: ValidationRecord, judged: Mapping[str, PhaseReport]) -> PhaseReport:
    phase = record.phase
    data = PhaseData(record, validation)
    criteria: tuple[Verdict, ...]
    comparison: ArmComparison | None = None
    gone = out_of_reach(record)
    if gone is not None:
        criteria = _skipped(record, validation)
    elif record.state in ("done", "interrupted"):
        comparison = compare_phase(data)
        implicit = implicit_verdicts(record, validation=validation)
        criteria = (*implicit, *_declared(record, validation, judged), *_unasked(record, validation))
        if comparison is not None:
            criteria = (*criteria, _choice(record, comparison))
        if record.state == "interrupted":
            final = {one.name for one in implicit_criteria(phase, validation.runbook) if one.final}
            criteria = tuple(_as_far_as_it_came(verdict, record, final) for verdict in criteria)
    else:
        criteria = _unjudged(record, validation)
    status, message = _status(record, criteria) if gone is None else ("SKIPPED", _out_of_reach(record, gone))
    if phase.observe and status == "PASS":
        message += " It observes: nothing was asked of what it measured."
    if record.extended is not None:
        extended, verb = record.extended, "was" if len(record.extended.criteria) == 1 else "were"
        texts = [_short(one) for one in criteria if one.id in extended.criteria]
        message += (
            f" Extended from {extended.runs_before} to {extended.runs_after} runs, since "
            f"{'; '.join(texts)} {verb} inconclusive."
        )
    return PhaseReport(
        id=phase.id,
        kind=phase.kind,
        title=phase.title or phase.id,
        why=phase.why,
        required=phase.required,
        asks=asks(phase, validation.runbook),
        status=status,
        message=message,
        criteria=criteria,
        checks=record.checks,
        runs=tuple(run_report(run) for run in record.every_run),
        comparison=comparison,
        effects=kind_of(phase.kind).effects(phase, record.runs) if record.runs else (),
        scalars=_phase_scalars(data),
        duration_s=record.duration_s,
        extended=record.extended,
    )


def _declared(
    record: PhaseRecord, validation: ValidationRecord, judged: Mapping[str, PhaseReport]
) -> tuple[Verdict, ...]:
    return tuple(
        judge_criterion(criterion, id=f"{record.phase.id}.{n}", record=record, validation=validation, judged=judged)
        for n, criterion in enumerate(record.phase.accept, start=1)
    )


def _unasked(record: PhaseRecord, validation: ValidationRecord) -> tuple[Verdict, ...]:
    """That nothing is asked of what the phase measures is an open question of its own, and has a name.

    A bound that is still to be filled in is one already: filled in, it asks.
    """
    phase = record.phase
    if any(one.required and open_reference(one.expr) is not None for one in phase.accept):
        return ()
    why = unasked(phase, validation.runbook) if phase.required else None
    if why is None:
        return ()
    fix = "give it a required criterion, or declare observe: true"
    return (
        Verdict(
            id=f"{phase.id}.asks",
            text="the phase asks for something that could fail on what it measures",
            required=True,
            status="INCONCLUSIVE",
            message=f"As it is, {why}; {fix}.",
        ),
    )


def _as_far_as_it_came(verdict: Verdict, record: PhaseRecord, final: Collection[str]) -> Verdict:
    """A bound that an interrupted phase does not meet yet is open: the steps that are missing may still meet it.

    `final` are the names of implicit criteria whose failure no further step can undo.
    """
    name = verdict.id.removeprefix(f"{record.phase.id}.")
    if verdict.status != "FAIL" or name in final:
        return verdict
    if all(run.outcome is not None and run.outcome.reason != "interrupted" for run in record.runs):
        return verdict
    message = f"The phase was interrupted, so this is open. So far: {verdict.message}"
    return verdict.model_copy(update={"status": "INCONCLUSIVE", "message": message})


def _choice(record: PhaseRecord, comparison: ArmComparison) -> Verdict:
    """Whether the comparison was answered. It never decides the phase: a runbook that needs an answer states it."""
    answered = comparison.outcome in ("significant", "no_difference", "not_worse")
    return Verdict(
        id=f"{record.phase.id}.choice",
        text=f"the arms differ significantly in the {comparison.direction} {comparison.metric}, or are equivalent",
        required=False,
        status="PASS" if answered else "INCONCLUSIVE",
        observed=comparison.recommended or comparison.outcome,
        message=comparison.message,
    )


def _unjudged(record: PhaseRecord, validation: ValidationRecord) -> tuple[Verdict, ...]:
    """The criteria of a phase that has not ended, each with the reason in place of a judgement."""
    status, reason = _unjudged_status(record)
    implicit = implicit_criteria(record.phase, validation.runbook)
    named = [(f"{record.phase.id}.{one.name}", one.text, True) for one in implicit]
    named += [
        (f"{record.phase.id}.{n}", criterion.expr, criterion.required)
        for n, criterion in enumerate(record.phase.accept, start=1)
    ]
    return tuple(
        Verdict(id=id, text=text, required=required, status=status, message=reason) for id, text, required in named
    )


def _skipped(record: PhaseRecord, validation: ValidationRecord) -> tuple[Verdict, ...]:
    """The criteria of a phase that cannot be carried out from here."""
    short = {"status": "SKIPPED", "message": "Skipped: what it needs cannot be reached from here."}
    return tuple(verdict.model_copy(update=short) for verdict in _unjudged(record, validation))


def _out_of_reach(record: PhaseRecord, why: str) -> str:
    """Why a phase was skipped, and what that leaves unproven."""
    cost = "so the decision cannot be GO" if record.phase.required else "and the decision does not depend on it"
    return f"Skipped, unreachable: {why}, {cost}."


def _unjudged_status(record: PhaseRecord) -> tuple[Status, str]:
    if record.state == "running":
        return "RUNNING", "The phase is running."
    if record.state == "skipped":
        return "SKIPPED", _sentence(record.reason or "the phase was skipped")
    return "NOT_RUN", _sentence(record.reason or "the phase has not run yet")


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."


def _status(record: PhaseRecord, criteria: tuple[Verdict, ...]) -> tuple[Status, str]:
    """The worst required verdict or check; a phase without any proof of its own is not passed."""
    if record.state not in ("done", "interrupted"):
        return _unjudged_status(record)
    everything: list[Verdict | Check] = [*record.checks, *criteria]
    counted = [one for one in everything if one.required]
    for status in _WORST:
        found = [one for one in counted if one.status == status]
        if found:
            return status, _why(found, status)
    if record.state == "interrupted":
        return "INCONCLUSIVE", "The phase was interrupted before it ended."
    if not counted:
        return "INCONCLUSIVE", "The phase has nothing that could pass or fail; give it a criterion."
    checks = sum(check.required for check in record.checks)
    verdicts = sum(verdict.required for verdict in criteria)
    parts = [plural(checks, "check")] if checks else []
    parts += [plural(verdicts, "criterion", "criteria")] if verdicts else []
    return "PASS", f"{' and '.join(parts)} passed."


def _why(found: Iterable[Verdict | Check], status: Status) -> str:
    first, *others = found
    texts = [_short(one) for one in others]
    more = [f"{len(texts) - _NAMED} more"] if len(texts) > _NAMED else []
    name = first.title if isinstance(first, Check) else first.text
    detail = first.message or (first.observed if isinstance(first, Check) else "")
    also = f" Also: {'; '.join([*texts[:_NAMED], *more])}." if others else ""
    return f"{name}: {detail}{also}" if detail else f"{name}: {status.lower()}.{also}"


def _short(one: Verdict | Check) -> str:
    return brief(one.title if isinstance(one, Check) else one.text)


def _phase_scalars(data: PhaseData) -> dict[str, ScalarValue]:
    """Numbers that belong to the phase and not to one of its runs."""
    if not any(run.result is not None for run in data.record.runs):
        return {}
    return {**_scaling(data), **_costs(data)}


def _costs(data: PhaseData) -> dict[str, ScalarValue]:
    """What its tokens and the planned run cost, as far as the runbook declares prices and lengths."""
    phase, runbook = data.record.phase, data.validation.runbook
    found: dict[str, ScalarValue] = {}
    for scalar in phase.known_scalars().values():
        if scalar.name not in COSTS or phase.obstacle(scalar.name, runbook.hardware, runbook.trainer) is not None:
            continue
        resolved = Resolved(phase.id, "scalar", scalar.name, None, runbook.hardware.currency, None)
        try:
            cost = data.value(resolved, arm="", index=None)
        except (NotMeasured, KeyError) as problem:
            found[scalar.name] = ScalarValue(value=None, unit=resolved.unit, note=f"not measured: {problem}")
            continue
        if isinstance(cost, Estimate):
            low, high = cost.interval() or (None, None)
            note = f"{format_value(runbook.hardware.price_per_gpu_hour, resolved.unit)} per GPU and hour"
            found[scalar.name] = ScalarValue(value=cost.point, unit=resolved.unit, ci_low=low, ci_high=high, note=note)
    return found


def _scaling(data: PhaseData) -> dict[str, ScalarValue]:
    phase = data.record.phase
    if not isinstance(phase, TrainPhase) or phase.scaling_against is None:
        return {}
    against = f"per-rank rate of {phase.scaling_against} over that of {phase.id}"
    try:
        efficiency = scaling_efficiency(data)
    except (NotMeasured, KeyError) as problem:
        return {"scaling.efficiency": ScalarValue(value=None, note=f"not measured: {problem}")}
    low, high = efficiency.interval() or (None, None)
    version = version_of("scaling.efficiency")
    value = ScalarValue(value=efficiency.point, ci_low=low, ci_high=high, note=against, version=version)
    return {"scaling.efficiency": value}


def run_report(run: RunRecord) -> RunReport:
    """One run as in result.json and in `inspect`: what was requested, how it ended, what was measured."""
    measurement, result = measured(run), run.result
    return RunReport(
        id=run.spec.id,
        arm=run.spec.arm,
        repeat=run.spec.repeat,
        command=run.outcome.last.command if run.outcome is not None else run.spec.argv,
        env=run.spec.env,
        requested=dict(result.requested)
        if result is not None and result.requested is not None
        else dict(run.spec.requested),
        effective=dict(result.effective) if result is not None and result.effective is not None else None,
        outcome=_outcome(run),
        metrics=dict(measurement.metrics) if measurement is not None else {},
        scalars=_run_scalars(measurement, result),
        warmup_end_step=measurement.warmup_end_step if measurement is not None else None,
        irregularities=tuple(one.message for one in result.irregularities) if result is not None else (),
        out=run.spec.out,
        log=result.log_path if result is not None else None,
        tables=result.evidence.tables if result is not None else (),
        role=run.spec.role,
        remedy=run.spec.remedy,
        nodes=tuple(node.node for node in run.evidence.nodes),
    )


def _run_scalars(measurement: RunMeasurement | None, result: Result | None) -> dict[str, ScalarValue]:
    """The run's scalars; its settings are in `requested` and `effective` already."""
    found = {**(measurement.scalars if measurement else {}), **(result.scalars if result else {})}
    return {name: value for name, value in found.items() if not name.startswith(("requested.", "effective."))}


def _outcome(run: RunRecord) -> dict[str, Any] | None:
    if run.outcome is None:
        return None
    last = run.outcome.last
    return {
        "rc": last.rc,
        "reason": last.reason,
        "duration_s": last.duration_s,
        "detail": last.detail,
        "attempts": [attempt.model_dump(mode="json") for attempt in run.outcome.attempts],
    }
