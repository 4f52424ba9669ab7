"""Running the phases in order: each call takes the state so far and returns the next one."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from validator.model.plan import PhasePlan, RunSpec
from validator.model.runbook import Phase, PreflightPhase, Setting
from validator.model.settings import remedies_of
from validator.model.verdict import Check, PhaseReport
from validator.stages.disk import pending
from validator.stages.machine import note_machine
from validator.stages.reporting import judge_latest
from validator.stages.session import Session

if TYPE_CHECKING:
    from validator.execute.progress import Progress
    from validator.model.record import PhaseRecord, PhaseState, RunRecord
    from validator.model.remedy import Remedy

__all__ = ["State", "begin", "run_phase"]

_BLOCKING = ("FAIL", "NOT_RUN", "SKIPPED")
"""Outcomes of a needed phase that keep a phase from running. An INCONCLUSIVE one does not: its successors may still
tell what the rented time was paid for, and the decision cannot become GO any more."""


@dataclass(frozen=True)
class State:
    """How far a validation has come. `adopted` are settings that a sweep chose for the phases after it."""

    records: tuple[PhaseRecord, ...] = ()
    judged: Mapping[str, PhaseReport] = field(default_factory=dict)
    adopted: Mapping[str, Setting] = field(default_factory=dict)
    stopped: str | None = None


def begin(session: Session) -> State:
    """Note the start, or that the validation is taken up again, and take the snapshot of the machine."""
    from validator.folder import runbook_was_edited, this_runner
    from validator.stages.disk import header_digest
    from validator.stages.secrets import clean_plan

    past = session.past
    if past.resumed:
        session.journal.append("resumed", runner=this_runner(), marker=session.token)
        session.observer.started(session.plan, session.folder.root)
        kept = sum(len(phase.runs) for phase in past.phases.values()) + len(past.runs)
        session.observer.note(f"resumed: {len(past.phases)} phases and {kept} runs have ended already and are kept")
        if runbook_was_edited(session.folder):
            session.observer.note(
                f"{session.folder.header.runbook_path} has changed since; what holds is how it was at the start"
            )
    else:
        run_id = session.folder.header.run_id
        plan = clean_plan(session.plan)
        sealed = header_digest(session.folder)
        session.journal.append("started", run_id=run_id, marker=session.token, header=sealed, as_it_is={"plan": plan})
        session.observer.started(session.plan, session.folder.root)
    note_machine(session)
    return State()


def run_phase(session: Session, state: State, phase: Phase) -> State:
    """Run one phase, or say why not; then judge it. The report so far is drawn beside it."""
    standing = session.past.phases.get(phase.id)
    if standing is not None:
        return _keep(session, state, standing)
    planned = _planned(session, state, phase)
    reason = _why_not(state, phase, planned)
    if reason is not None:
        record = _not_run(session, phase, planned, reason)
    else:
        session.so_far.later()
        record = _perform(session, state, phase, planned)
        session.so_far.never_mind()
    report = judge_latest(session.folder, (*state.records, record), state.judged)
    session.observer.phase_finished(report)
    return _next(session, state, record, report, _adopt(session, report))


def _keep(session: Session, state: State, record: PhaseRecord) -> State:
    """Take over a phase that an earlier runner brought to its end, and the settings that it chose then."""
    report = judge_latest(session.folder, (*state.records, record), state.judged)
    session.observer.phase_finished(report)
    chosen = session.past.adopted.get(record.phase.id)
    # The runner may have been killed between the phase's end and the choice.
    return _next(session, state, record, report, _adopt(session, report) if chosen is None else chosen)


def _next(
    session: Session, state: State, record: PhaseRecord, report: PhaseReport, adopted: Mapping[str, Setting]
) -> State:
    return replace(
        state,
        records=(*state.records, record),
        judged={**state.judged, report.id: report},
        adopted={**state.adopted, **adopted},
        stopped=state.stopped or _why_stop(session, report),
    )


def _planned(session: Session, state: State, phase: Phase) -> PhasePlan:
    """The phase's plan with the settings adopted so far and with the real run folder."""
    from validator.plan import plan_phase

    preview = next(planned for planned in session.plan.phases if planned.phase == phase.id)
    if preview.skipped is not None:
        return preview
    return plan_phase(
        session.runbook,
        phase,
        run_dir=session.folder.root,
        python=session.folder.header.python,
        adopted=state.adopted,
    )


def _why_not(state: State, phase: Phase, planned: PhasePlan) -> str | None:
    if planned.skipped is not None:
        return planned.skipped
    if state.stopped is not None:
        return state.stopped
    for needed in phase.needs:
        report = state.judged[needed]
        if report.status in _BLOCKING:
            return f"it needs `{needed}`, which ended {report.status}"
    return None


def _not_run(session: Session, phase: Phase, planned: PhasePlan, reason: str) -> PhaseRecord:
    from validator.model.record import PhaseRecord

    skipped = planned.skipped is not None
    session.journal.append("phase_ended", phase=phase.id, state="skipped" if skipped else "not_run", reason=reason)
    return PhaseRecord(phase=phase, state="skipped" if skipped else "not_run", reason=reason)


def _perform(session: Session, state: State, phase: Phase, planned: PhasePlan) -> PhaseRecord:
    from validator.model.record import PhaseRecord

    spent_s = session.past.phase_s.get(phase.id, 0.0)
    began = time.monotonic() - spent_s
    session.journal.append("phase_started", phase=phase.id)
    session.observer.phase_started(phase, planned, spent_s=spent_s)
    checks = _preflight(session, phase) if isinstance(phase, PreflightPhase) else ()
    runs = _carry_out(session, planned)
    record = PhaseRecord(phase=phase, state="done", runs=runs, checks=checks)
    if not session.cancel.requested:
        record = _extended(session, state, record, planned)
    if not session.cancel.requested:
        record = _remedied(session, state, record)
    ended: PhaseState = "interrupted" if session.cancel.requested else "done"
    reason = f"the user stopped the validation: {session.cancel.why}" if session.cancel.requested else None
    duration_s = round(time.monotonic() - began, 3)
    session.journal.append("phase_ended", phase=phase.id, state=ended, reason=reason, duration_s=duration_s)
    return replace(record, state=ended, reason=reason, duration_s=duration_s)


def _carry_out(session: Session, planned: PhasePlan) -> tuple[RunRecord, ...]:
    """The planned runs in order, but for those that an earlier runner brought to their end."""
    runs: list[RunRecord] = []
    for spec in planned.runs:
        if session.cancel.requested:
            break
        runs.append(session.past.runs.get(spec.id) or _run(session, spec))
        if _leaves_nothing_to_run(runs[-1]):
            break
    return tuple(runs)


def _extended(session: Session, state: State, record: PhaseRecord, planned: PhasePlan) -> PhaseRecord:
    """Once: further runs of a phase whose required criterion more runs may decide, while the decision is open."""
    from validator.diagnose import diagnose
    from validator.judge import extension_of, settled
    from validator.plan import plan_phase

    report = judge_latest(session.folder, (*state.records, record), state.judged)
    extension = extension_of(record, report, runbook=session.runbook)
    if extension is None:
        return record
    so_far = pending(session.folder, (*state.records, record))
    why = settled(tuple(state.judged.values()), diagnose(so_far, (*state.judged.values(), report)))
    if why is not None:
        session.observer.note(
            f"{record.phase.id}: {', '.join(extension.criteria)} stayed open; not extended, since {why}"
        )
        return record
    session.journal.append("phase_extended", phase=record.phase.id, extension=extension)
    session.observer.note(
        f"{record.phase.id}: {', '.join(extension.criteria)} stayed open; extended from {extension.runs_before} to "
        f"{extension.runs_after} runs"
    )
    longer = plan_phase(
        session.runbook,
        record.phase.model_copy(update={"repeats": extension.runs_after}),
        run_dir=session.folder.root,
        python=session.folder.header.python,
        adopted=state.adopted,
    )
    known = {spec.id for spec in planned.runs}
    further = tuple(spec for spec in longer.runs if spec.id not in known)
    runs = _carry_out(session, longer.model_copy(update={"runs": further}))
    return replace(record, runs=(*record.runs, *runs), extended=extension)


def _remedied(session: Session, state: State, record: PhaseRecord) -> PhaseRecord:
    """Try what the runbook allows after a failure: each remedy once, until one helps.

    One that leaves the declared config as it is then decides the phase; what any other shows is kept beside it.
    """
    from validator.judge import trigger_of
    from validator.model.record import Tried

    remedies = remedies_of(record.phase)
    told = {one.name: one for one in remedies_of(session.folder.header.runbook.phase(record.phase.id))}
    if not remedies or judge_latest(session.folder, (*state.records, record), state.judged).status != "FAIL":
        return record
    trigger, tried = trigger_of(record), list[Tried]()
    for remedy in (one for one in remedies if trigger in one.on):
        session.observer.note(f"{record.phase.id} failed; trying remedy {remedy.name}")
        go = Tried(told[remedy.name], _carry_out(session, _plan_again(session, state, record.phase, remedy)))
        if session.cancel.requested:
            break
        judged = judge_latest(session.folder, (*state.records, replace(record, runs=go.runs)), state.judged)
        helped = judged.status == "PASS"
        decides = helped and remedy.keeps_config(record.phase.kind)
        session.journal.append(
            "remedy_ended", phase=record.phase.id, remedy=remedy.name, status=judged.status, decides=decides
        )
        if decides:
            declared = Tried(None, record.runs)
            return replace(record, runs=go.runs, remedy=go.remedy, tried=(declared, *tried))
        tried.append(go)
        if helped:
            break
    return replace(record, tried=tuple(tried))


def _plan_again(session: Session, state: State, phase: Phase, remedy: Remedy) -> PhasePlan:
    from validator.plan import plan_phase

    return plan_phase(
        session.runbook,
        session.runbook.phase(phase.id),
        run_dir=session.folder.root,
        python=session.folder.header.python,
        adopted=state.adopted,
        remedy=remedy,
    )


def _leaves_nothing_to_run(run: RunRecord) -> bool:
    """A loader that gives nothing when it is tried alone gives nothing to a trainer, which would only wait for it."""
    return run.spec.role == "smoke" and run.outcome is not None and not run.outcome.ok


def _preflight(session: Session, phase: PreflightPhase) -> tuple[Check, ...]:
    from validator.observe import preflight

    header = session.folder.header
    checks = preflight(phase, runbook=header.runbook, run_dir=session.folder.root, python=header.python)
    session.journal.append("phase_checks", phase=phase.id, checks=checks)
    return checks


def _run(session: Session, spec: RunSpec) -> RunRecord:
    from validator.execute.supervisor import set_aside, supervise
    from validator.execute.words import is_full
    from validator.stages.disk import record_of
    from validator.stages.secrets import clean_spec, mask_of

    told, mask = clean_spec(spec), mask_of(spec)

    def tell(progress: Progress) -> None:
        session.observer.run_progress(progress)
        session.so_far.look()

    # Before the sampler starts: its first row must not fall into the folder of an attempt that is over.
    before = session.past.attempts.get(spec.id, ())
    earlier = set_aside(spec, run_dir=session.folder.root, earlier=before, mask=mask.block)
    with _sampled(session, spec):
        outcome = supervise(
            spec,
            run_dir=session.folder.root,
            journal=session.journal,
            on_progress=tell,
            cancel=session.cancel,
            token=session.token,
            guardian=session.guardian,
            redact=mask.sentence,
            mask=mask.block,
            earlier=earlier,
            told=told,
        )
    if outcome.last.disk_full and is_full(session.folder.root / spec.out):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(session.folder.root / spec.out))
    record = record_of(session.folder, told, outcome)
    if record.result is not None:
        session.journal.append("run_read", run=spec.id, sources={one.path: one.sha256 for one in record.result.sources})
    return record


def _sampled(session: Session, spec: RunSpec) -> AbstractContextManager[object]:
    """Sample the machine beside a training run, and often beside the probes, whose transfers are over in a moment;
    other runs are over before a sample would say anything."""
    if spec.steps is None and spec.kind != "preflight":
        return nullcontext()
    from validator.observe.sampler import Sampler

    path = session.folder.root / spec.out / "logs" / "telemetry.csv"
    return Sampler(path, interval_s=0.1 if spec.kind == "preflight" else 1.0, token=session.token)


def _adopt(session: Session, report: PhaseReport) -> dict[str, Setting]:
    settings = _adopted_settings(report)
    if settings and report.comparison is not None:
        session.journal.append("adopted", phase=report.id, arm=report.comparison.recommended, settings=settings)
    return settings


def _adopted_settings(report: PhaseReport) -> dict[str, Setting]:
    compared = report.comparison
    if compared is None or not compared.adopted or compared.recommended is None:
        return {}
    return dict(next(arm.settings for arm in compared.arms if arm.arm == compared.recommended))


def _why_stop(session: Session, report: PhaseReport) -> str | None:
    if session.cancel.requested:
        return f"the user stopped the validation: {session.cancel.why}"
    if session.fail_fast and report.required and report.status == "FAIL":
        return f"`{report.id}` failed and --fail-fast was given"
    return None
