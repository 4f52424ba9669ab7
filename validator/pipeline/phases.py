"""Running the phases in order: each call takes the state so far and returns the next one."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace

from validator.diagnose import diagnose
from validator.judge import extension_of, settled, trigger_of
from validator.kinds.registry import kind_of
from validator.model.plan import PhasePlan, RunSpec
from validator.model.record import PhaseRecord, PhaseState, RunRecord, Tried
from validator.model.remedy import Remedy
from validator.model.runbook import Phase, Setting
from validator.model.settings import remedies_of
from validator.model.verdict import Check, PhaseReport
from validator.pipeline.evaluate import judge_latest
from validator.pipeline.nodes import Nodes, node_checks
from validator.pipeline.resume_state import read_resume_state
from validator.pipeline.session import Session, record_machine
from validator.plan import plan_further, plan_phase
from validator.plan.launchers import trainer_python
from validator.runs.folder import runbook_was_edited, this_runner
from validator.runs.replay import header_digest, pending, record_of
from validator.secrets.masking import clean_plan, clean_spec, mask_of
from validator.supervise.monitor import Progress
from validator.supervise.outcome_text import is_full
from validator.supervise.supervisor import set_aside
from validator.system.sampler import Sampler
from validator.text import plural

_BLOCKING = ("FAIL", "NOT_RUN", "SKIPPED")
"""Outcomes of a needed phase that keep a phase from running. An INCONCLUSIVE one does not: its successors may still
give the results that the rented time was paid for, and the decision cannot become GO any more."""


@dataclass(frozen=True)
class State:
    """How far a validation has come. `adopted` are settings that a sweep chose for the phases after it."""

    records: tuple[PhaseRecord, ...] = ()
    judged: Mapping[str, PhaseReport] = field(default_factory=dict)
    adopted: Mapping[str, Setting] = field(default_factory=dict)
    stopped: str | None = None


class Reopened(Exception):
    """Phases that had ended ran on nodes that are not used any more; `first` is the index of the first of them."""

    def __init__(self, first: int) -> None:
        super().__init__(first)
        self.first = first


def begin(session: Session) -> State:
    """Record the start or the resumption, and the snapshot of the machine."""
    if session.resume_state.resumed:
        session.journal.append("resumed", runner=this_runner(), marker=session.runner.token)
        session.observer.started(session.plan, session.folder.root)
        if session.nodes is not None:
            session.nodes.begin()
            _reopen(session)
        earlier = session.resume_state
        kept = sum(len(phase.runs) for phase in earlier.phases.values()) + len(earlier.runs)
        session.observer.note(f"resumed: {len(earlier.phases)} phases and {kept} runs have ended already and are kept")
        if runbook_was_edited(session.folder):
            session.observer.note(
                f"{session.folder.header.runbook_path} has changed since; the runbook as read at the start applies"
            )
    else:
        run_id = session.folder.header.run_id
        plan = clean_plan(session.plan)
        digest, marker = header_digest(session.folder), session.runner.token
        session.journal.append("started", run_id=run_id, marker=marker, header=digest, as_it_is={"plan": plan})
        session.observer.started(session.plan, session.folder.root)
        if session.nodes is not None:
            session.nodes.begin()
    record_machine(session)
    return State()


def _reopen(session: Session) -> int | None:
    """Take back what ran on other nodes than it would run on now, so that no decision rests on two sets of nodes.

    The runs are started again, and what they left is kept beside. Returns the index of the first phase concerned.
    """
    nodes, first = session.nodes, None
    if nodes is None:
        return None
    known = read_resume_state(session.folder)
    for index, phase in enumerate(session.runbook.phases):
        done = known.phases.get(phase.id)
        runs = [run for run in known.runs.values() if run.spec.phase == phase.id] if done is None else done.every_run
        others = [run for run in runs if not nodes.fits(run)]
        if others:
            ran = dict.fromkeys(node.node for run in others for node in run.evidence.nodes)
            why = f"set aside, for it ran on {', '.join(ran) or 'unknown nodes'}; the nodes are now {nodes.described}"
            session.journal.append("phase_reopened", phase=phase.id, runs=[run.spec.id for run in others], why=why)
            session.observer.note(f"{phase.id} runs again: {plural(len(others), 'run')} {why}")
            first = index if first is None else first
    nodes.again = frozenset()
    session.resume_state = read_resume_state(session.folder)
    return first


def run_phase(session: Session, state: State, phase: Phase) -> State:
    """Run one phase and judge it, or say why it does not run. The live report is drawn by another process meanwhile.

    Raises:
        Reopened: when nodes were replaced, and a phase that has ended, or this one, ran on others.
    """
    kept = session.resume_state.phases.get(phase.id)
    if kept is not None:
        return _keep(session, state, kept)
    planned = _planned(session, state, phase)
    reason = _why_not(state, phase, planned)
    if reason is None and session.nodes is not None:
        reason = session.nodes.missing(planned)
    if reason is not None:
        record = _not_run(session, phase, planned, reason)
        report = _judge_record(session, state, record)
    else:
        session.live_report.schedule()
        record, report = _perform(session, state, phase, planned)
        session.live_report.unschedule()
    session.observer.phase_finished(report)
    return _next(session, state, record, report, _adopt(session, report))


def _judge_record(session: Session, state: State, record: PhaseRecord) -> PhaseReport:
    return judge_latest(session.folder, (*state.records, record), state.judged)


def _keep(session: Session, state: State, record: PhaseRecord) -> State:
    """Take over a phase that an earlier runner finished, and the settings that it chose then."""
    report = _judge_record(session, state, record)
    session.observer.phase_finished(report)
    if session.nodes is not None:
        _choose(session, session.nodes, record.phase, record.runs)
    chosen = session.resume_state.adopted.get(record.phase.id)
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
    preview = next(planned for planned in session.plan.phases if planned.phase == phase.id)
    planned = preview if preview.skipped is not None else _plan(session, state, phase)
    return planned if session.nodes is None else session.nodes.usable(planned)


def _plan(session: Session, state: State, phase: Phase, *, remedy: Remedy | None = None) -> PhasePlan:
    return plan_phase(
        session.runbook,
        phase,
        run_dir=session.folder.root,
        python=session.folder.header.python,
        adopted=state.adopted,
        remedy=remedy,
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
    state: PhaseState = "not_run" if planned.skipped is None else "skipped"
    session.journal.append("phase_ended", phase=phase.id, state=state, reason=reason)
    return PhaseRecord(phase=phase, state=state, reason=reason)


def _perform(session: Session, state: State, phase: Phase, planned: PhasePlan) -> tuple[PhaseRecord, PhaseReport]:
    """Carry out a phase, and judge what its runs left: once, and once more when it was extended or remedied."""
    spent_s = session.resume_state.phase_s.get(phase.id, 0.0)
    began = time.monotonic() - spent_s
    session.journal.append("phase_started", phase=phase.id)
    session.observer.phase_started(phase, planned, spent_s=spent_s)
    checks = _checks(session, phase)

    def judged(record: PhaseRecord) -> tuple[PhaseRecord, PhaseReport]:
        reason = _why_interrupted(session)
        ended: PhaseState = "done" if reason is None else "interrupted"
        record = replace(record, state=ended, reason=reason, duration_s=round(time.monotonic() - began, 3))
        return record, _judge_record(session, state, record)

    runs = _carry_out(session, planned)
    if session.nodes is not None:
        checks = node_checks(runs)
        _keep_checks(session, phase, checks)
        runs = _search(session, session.nodes, phase, runs)
    record, report = judged(PhaseRecord(phase=phase, state="done", runs=runs, checks=checks))
    for follow_up in (_extended, _remedied):
        further = None if session.cancel.requested else follow_up(session, state, record, report)
        if further is not None:
            record, report = judged(further)
    session.journal.append(
        "phase_ended", phase=phase.id, state=record.state, reason=record.reason, duration_s=record.duration_s
    )
    return record, report


def _search(session: Session, nodes: Nodes, phase: Phase, runs: tuple[RunRecord, ...]) -> tuple[RunRecord, ...]:
    """The runs with the rounds that they call for; the best nodes are used from then on."""
    root, python = session.folder.root, session.folder.header.python
    while not session.cancel.requested:
        planned = nodes.usable(plan_further(session.runbook, phase, runs, run_dir=root, python=python))
        if not planned.runs:
            break
        runs = (*runs, *_carry_out(session, planned))
    _choose(session, nodes, phase, runs)
    return runs


def _choose(session: Session, nodes: Nodes, phase: Phase, runs: tuple[RunRecord, ...]) -> None:
    """Use the nodes that the runs of a phase found to be the best ones, where it looked."""
    best = kind_of(phase.kind).good_nodes(phase, session.runbook, runs)
    if best and nodes.choose(best, why=f"{phase.id} found better ones"):
        _go_back(session)


def _go_back(session: Session) -> None:
    """Back to the first phase that ran on nodes which are not used any more, if there is one."""
    first = _reopen(session)
    if first is not None:
        session.live_report.close()
        raise Reopened(first)


def _why_interrupted(session: Session) -> str | None:
    return f"the user stopped the validation: {session.cancel.why}" if session.cancel.requested else None


def _carry_out(session: Session, planned: PhasePlan) -> tuple[RunRecord, ...]:
    """The planned runs in order, but for those that an earlier runner brought to their end."""
    runs: list[RunRecord] = []
    for spec in planned.runs:
        if session.cancel.requested:
            break
        runs.append(session.resume_state.runs.get(spec.id) or _run(session, spec))
        if _leaves_nothing_to_run(runs[-1]):
            break
    return tuple(runs)


def _extended(session: Session, state: State, record: PhaseRecord, report: PhaseReport) -> PhaseRecord | None:
    """Once: further runs of a phase whose required criterion more runs may decide, while the decision is open.

    None where the phase is not extended.
    """
    extension = extension_of(record, report, runbook=session.runbook)
    if extension is None:
        return None
    phase, names = record.phase, ", ".join(extension.criteria)
    reports = (*state.judged.values(), report)
    why = settled(reports[:-1], diagnose(pending(session.folder, (*state.records, record)), reports))
    if why is not None:
        session.observer.note(f"{phase.id}: {names} inconclusive; not extended, since {why}")
        return None
    session.journal.append("phase_extended", phase=phase.id, extension=extension)
    session.observer.note(
        f"{phase.id}: {names} inconclusive; extended from {extension.runs_before} to {extension.runs_after} runs"
    )
    longer = _plan(session, state, phase.model_copy(update={"repeats": extension.runs_after}))
    known = {run.spec.id for run in record.runs}
    further = tuple(spec for spec in longer.runs if spec.id not in known)
    runs = _carry_out(session, longer.model_copy(update={"runs": further}))
    return replace(record, runs=(*record.runs, *runs), extended=extension)


def _remedied(session: Session, state: State, record: PhaseRecord, report: PhaseReport) -> PhaseRecord | None:
    """Try what the runbook allows after a failure: each remedy once, until one helps. None where nothing is tried.

    One that leaves the declared config as it is then decides the phase; what any other shows is only reported.
    """
    if report.status != "FAIL":
        return None
    trigger = trigger_of(record)
    remedies = [one for one in remedies_of(record.phase) if trigger in one.on]
    if not remedies:
        return None
    cleaned = {one.name: one for one in remedies_of(session.folder.header.runbook.phase(record.phase.id))}
    tried: list[Tried] = []
    for remedy in remedies:
        session.observer.note(f"{record.phase.id} failed; trying remedy {remedy.name}")
        runs = _carry_out(session, _plan(session, state, record.phase, remedy=remedy))
        attempt = Tried(cleaned[remedy.name], runs)
        if session.cancel.requested:
            break
        status = _judge_record(session, state, replace(record, runs=attempt.runs)).status
        helped = status == "PASS"
        decides = helped and remedy.keeps_config(kind_of(record.phase.kind).free)
        session.journal.append(
            "remedy_ended", phase=record.phase.id, remedy=remedy.name, status=status, decides=decides
        )
        if decides:
            declared = Tried(None, record.runs)
            return replace(record, runs=attempt.runs, remedy=attempt.remedy, tried=(declared, *tried))
        tried.append(attempt)
        if helped:
            break
    return replace(record, tried=tuple(tried))


def _leaves_nothing_to_run(run: RunRecord) -> bool:
    """A loader that gives nothing when it is tried alone gives nothing to a trainer, which would only wait for it."""
    return run.spec.role == "smoke" and run.outcome is not None and not run.outcome.ok


def _checks(session: Session, phase: Phase) -> tuple[Check, ...]:
    if session.nodes is not None:
        return ()  # agents look at their own nodes
    header = session.folder.header
    kind, python = kind_of(phase.kind), trainer_python(header.runbook.trainer, own=header.python)
    checks = kind.checks(phase, runbook=header.runbook, run_dir=session.folder.root, python=python)
    _keep_checks(session, phase, checks)
    return checks


def _keep_checks(session: Session, phase: Phase, checks: tuple[Check, ...]) -> None:
    if checks:
        session.journal.append("phase_checks", phase=phase.id, checks=checks)


def _run(session: Session, spec: RunSpec) -> RunRecord:
    mask, root = mask_of(spec), session.folder.root

    def show(progress: Progress) -> None:
        session.observer.run_progress(progress)
        session.live_report.poll()

    # Before the sampler starts: its first row must not fall into the folder of an attempt that is over.
    before = session.resume_state.attempts.get(spec.id, ())
    earlier = set_aside(spec, run_dir=root, earlier=before, mask=mask.block)
    nodes, runbook = session.nodes, session.folder.header.runbook
    with _sampled(session, spec):
        place = nodes.place(spec, runbook) if nodes is not None and spec.groups else None
        outcome = session.runner.carry_out(spec, mask=mask, earlier=earlier, on_progress=show, place=place)
    if nodes is not None and outcome.reason == "node_lost" and nodes.take_spare(spec, root / spec.out):
        _go_back(session)
    if outcome.last.disk_full and is_full(root / spec.out):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(root / spec.out))
    record = record_of(session.folder, clean_spec(spec), outcome)
    if record.result is not None:
        session.journal.append("run_read", run=spec.id, sources={one.path: one.sha256 for one in record.result.sources})
    return record


def _sampled(session: Session, spec: RunSpec) -> AbstractContextManager[object]:
    """Sample the machine during the run, as often as its kind needs."""
    interval_s = kind_of(spec.kind).sample_s(spec)
    if interval_s is None or spec.groups:  # agents sample their own nodes
        return nullcontext()
    path = session.folder.root / spec.out / "logs" / "telemetry.csv"
    return Sampler(path, interval_s=interval_s, token=session.runner.token)


def _adopt(session: Session, report: PhaseReport) -> dict[str, Setting]:
    """The settings that the phases after this one run with, from now on; empty where it chose none."""
    compared = report.comparison
    if compared is None or not compared.adopted or compared.recommended is None:
        return {}
    settings = dict(next(arm.settings for arm in compared.arms if arm.arm == compared.recommended))
    if settings:
        session.journal.append("adopted", phase=report.id, arm=compared.recommended, settings=settings)
    return settings


def _why_stop(session: Session, report: PhaseReport) -> str | None:
    if session.cancel.requested:
        return _why_interrupted(session)
    if session.fail_fast and report.required and report.status == "FAIL":
        return f"`{report.id}` failed and --fail-fast was given"
    return None
