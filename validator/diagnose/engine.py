"""Puts every rule to every run, phase and validation, and says the same thing only once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from validator.diagnose.facts import PhaseFacts, RunFacts, ValidationFacts
from validator.diagnose.table import PHASE_RULES, RUN_RULES, SINGLE_RULES, VALIDATION_RULES
from validator.model.record import PhaseRecord, RunRecord, ValidationRecord
from validator.model.runbook import Phase, PytestPhase, TrainPhase
from validator.model.settings import accepted_at
from validator.model.verdict import Finding, PhaseReport

__all__ = ["diagnose", "diagnose_run"]

_ORDER = {"veto": 0, "warning": 1, "info": 2}
_EVIDENCE = 8


def diagnose(record: ValidationRecord, phases: Sequence[PhaseReport]) -> tuple[Finding, ...]:
    """Every cause that the evidence shows, most severe first.

    A veto in a phase that the decision does not depend on, or in an arm that nobody is advised to use, is a warning.

    Args:
        record: the validation as far as it has come.
        phases: its judged phases; those that are missing have not been judged yet.
    """
    with np.errstate(all="ignore"):  # absurd values overflow; what they lead to is judged, not warned of
        return _diagnose(record, phases)


def _diagnose(record: ValidationRecord, phases: Sequence[PhaseReport]) -> tuple[Finding, ...]:
    reports = {report.id: report for report in phases}
    facts = tuple(_phase_facts(one, reports.get(one.phase.id), record) for one in record.phases)
    findings: list[Finding] = []
    habits: list[Finding] = []
    for phase in facts:
        own = [f for run in phase.runs for f in _demoted(_of_run(run), phase, run)]
        habits += (f for f in own if f.severity != "veto")
        own = [f for f in own if f.severity == "veto"]
        for rule in PHASE_RULES:
            own += _demoted((_placed(f, phase.record.phase.id, f.run) for f in rule.look(phase)), phase, None)
        findings += _merged(own)
    # A veto is told for each phase that it decides; what a machine does in every phase is told once.
    findings += _merged(habits)
    whole = ValidationFacts(record, facts)
    for validation_rule in VALIDATION_RULES:
        findings += validation_rule.look(whole)
    return _sorted(_answered(finding, record) for finding in findings)


def _answered(finding: Finding, record: ValidationRecord) -> Finding:
    """A finding that the runbook accepts is information; a veto says by which field it can be accepted.

    Only the runbook is asked, never what a trainer wrote.
    """
    if finding.severity == "info":
        return finding
    phase = next((one.phase for one in record.phases if one.phase.id == finding.phase), None)
    place = accepted_at(record.runbook, phase).get(finding.code)
    if place is not None:
        said = f"{finding.message} Accepted by the runbook (accept_findings of {place})."
        return finding.model_copy(update={"severity": "info", "message": said})
    if finding.severity != "veto":
        return finding
    where = f"phase {finding.phase}" if phase is not None else "defaults"
    answer = f"If this is right as it is, write accept_findings: [{finding.code}] in {where} of the runbook."
    return finding.model_copy(update={"next_step": f"{finding.next_step} {answer}"})


def diagnose_run(record: RunRecord) -> tuple[Finding, ...]:
    """Every cause that one run's own evidence shows, most severe first."""
    facts = RunFacts.of(record, {})
    if facts is None:
        return ()
    with np.errstate(all="ignore"):
        alone = _alone(facts)
        shown = (_placed(f, facts.spec.phase, facts.spec.id) for rule in SINGLE_RULES for f in rule.look(alone))
        return _sorted([*_of_run(facts), *shown])


def _alone(run: RunFacts) -> PhaseFacts:
    """A run without a runbook as a phase of its own: of tests where it left a report of tests, else of training."""
    phase: Phase = TrainPhase(id="inspect", kind="train", steps=1)
    if "tests" in run.result.extra:
        phase = PytestPhase(id="inspect", kind="pytest", targets=("tests",))
    return PhaseFacts(PhaseRecord(phase=phase, state="done"), None, (run,))


def _phase_facts(record: PhaseRecord, report: PhaseReport | None, whole: ValidationRecord) -> PhaseFacts:
    runs = (RunFacts.of(run, whole.environment) for run in record.runs)
    return PhaseFacts(record, report, tuple(run for run in runs if run is not None))


def _of_run(run: RunFacts) -> list[Finding]:
    return [_placed(f, run.spec.phase, run.spec.id) for rule in RUN_RULES for f in rule.look(run)]


def _placed(finding: Finding, phase: str | None, run: str | None) -> Finding:
    return finding.model_copy(update={"phase": finding.phase or phase, "run": finding.run or run})


def _demoted(findings: Iterable[Finding], phase: PhaseFacts, run: RunFacts | None) -> Iterator[Finding]:
    """Lower a veto where the decision does not rest on what it is about."""
    comparison = phase.report.comparison if phase.report is not None else None
    advised = comparison.recommended if comparison is not None else None
    rejected = run is not None and advised is not None and run.spec.arm not in (None, advised)
    rejected = rejected or (run is not None and run.spec.role == "nsys")
    for finding in findings:
        if finding.severity == "veto" and (rejected or not phase.record.phase.required):
            yield finding.model_copy(update={"severity": "warning"})
        else:
            yield finding


def _merged(findings: list[Finding]) -> list[Finding]:
    """One finding for all runs that show the same cause with the same severity and ask for the same next step."""
    groups: dict[tuple[str, str, str], list[Finding]] = {}
    for finding in findings:
        groups.setdefault((finding.code, finding.severity, finding.next_step), []).append(finding)
    merged = []
    for same in groups.values():
        runs = list(dict.fromkeys(f.run for f in same if f.run is not None))
        if len(same) == 1 or len(runs) < 2:
            merged += same
            continue
        shown = ", ".join(runs[1:6]) + (" …" if len(runs) > 6 else "")
        gathered = tuple(dict.fromkeys(e for f in same for e in f.evidence))[:_EVIDENCE]
        message = f"{same[0].message} The same holds for {shown}."
        merged.append(same[0].model_copy(update={"message": message, "evidence": gathered}))
    return merged


def _sorted(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    return tuple(sorted(findings, key=lambda f: _ORDER[f.severity]))
