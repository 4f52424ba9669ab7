"""Applies every rule to every run, phase and validation, and reports the same thing only once."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from validator.diagnose import (
    bottlenecks,
    claims,
    contention,
    cross_phase,
    devices,
    divergence,
    evidence_quality,
    loss_curve,
    not_finite,
    phases,
    progress,
    provenance,
    repeated_data,
    resources,
    settings,
    stalls,
    steadiness,
    training_health,
    unknown,
)
from validator.diagnose.rule import PhaseFacts, Rule, RunFacts, Scope, ValidationFacts
from validator.judge.config import obeyed_settings, undecided_settings
from validator.model.findings import ANSWERS
from validator.model.record import PhaseRecord, RunRecord, ValidationRecord
from validator.model.runbook import Phase, PytestPhase, TrainPhase
from validator.model.settings import accepted_at
from validator.model.verdict import Finding, PhaseReport

_MODULES = (
    evidence_quality,
    settings,
    not_finite,
    divergence,
    loss_curve,
    training_health,
    repeated_data,
    progress,
    devices,
    contention,
    steadiness,
    stalls,
    claims,
    resources,
    bottlenecks,
    unknown,
    phases,
    cross_phase,
    provenance,
)
"""Findings of one severity are listed in the order of these modules, and of the rules in each."""


def _rules(of: Scope) -> tuple[Rule[Any], ...]:
    # A module may import a rule of another one.
    found = {id(one): one for module in _MODULES for one in vars(module).values() if isinstance(one, Rule)}
    return tuple(one for one in found.values() if one.of == of)


_OF_A_RUN: tuple[Rule[RunFacts], ...] = _rules("run")
_OF_A_PHASE: tuple[Rule[PhaseFacts], ...] = _rules("phase")
_OF_A_VALIDATION: tuple[Rule[ValidationFacts], ...] = _rules("validation")
_OF_A_RUN_ALONE = tuple(
    one for one in _OF_A_PHASE if one.code in ("skipped-as-pass", "selection-mismatch", "silent-audit")
)
"""Rules of a phase that the evidence of a single run satisfies, where there is no phase (`validator inspect`)."""

_RULES: tuple[Rule[Any], ...] = (*_OF_A_RUN, *_OF_A_PHASE, *_OF_A_VALIDATION)
CODES: tuple[str, ...] = tuple(dict.fromkeys(one.code for one in _RULES))
"""All codes that a finding may carry. They are a contract: result.json, `inspect` and reports use them."""

_SEVERITIES = ("veto", "warning", "info")
_MAX_EVIDENCE = 8


def diagnose(record: ValidationRecord, phases: Sequence[PhaseReport]) -> tuple[Finding, ...]:
    """Every cause that the evidence shows, most severe first.

    A veto in a phase that the decision does not depend on, or in an arm that is not recommended, is a warning.

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
    recurring: list[Finding] = []
    for phase in facts:
        own = [f for run in phase.runs for f in _demoted(_of_run(run), phase, run)]
        recurring += (f for f in own if f.severity != "veto")
        own = [f for f in own if f.severity == "veto"]
        for rule in _OF_A_PHASE:
            shown = (_placed(f, phase.record.phase.id, f.run) for f in rule.findings(phase))
            own += _demoted(shown, phase, None)
        findings += _merged(own)
    # A veto is reported for each phase that it decides; what the machine does in every phase is reported once.
    findings += _merged(recurring)
    whole = ValidationFacts(record, facts)
    for validation_rule in _OF_A_VALIDATION:
        findings += validation_rule.findings(whole)
    return _sorted(_answered(finding, record) for finding in findings)


def _answered(finding: Finding, record: ValidationRecord) -> Finding:
    """A finding that the runbook accepts is information; a veto names the field that would accept it.

    Only the runbook can accept it, never what a trainer wrote.
    """
    if finding.severity == "info":
        return finding
    phase = next((one.phase for one in record.phases if one.phase.id == finding.phase), None)
    place = accepted_at(record.runbook, phase).get(finding.code)
    if place is not None:
        return _accepted(finding, place)
    if finding.severity != "veto":
        return finding
    where = f"phase {finding.phase}" if phase is not None else "defaults"
    runbook = "the runbook that validator init -- COMMAND writes" if record.of_command else "the runbook"
    answer = f"If this is right as it is, write accept_findings: [{finding.code}] in {where} of {runbook}."
    return finding.model_copy(update={"next_step": f"{finding.next_step} {answer}"})


def _accepted(finding: Finding, place: str) -> Finding:
    said = f"{finding.message} Accepted by the runbook (accept_findings of {place})."
    return finding.model_copy(update={"severity": "info", "message": said})


def diagnose_run(record: RunRecord, accepted: Mapping[str, str] | None = None) -> tuple[Finding, ...]:
    """Every cause that one run's own evidence shows, most severe first.

    `accepted` are the codes that a runbook accepts, with the place in it.
    """
    facts = RunFacts.of(record, {})
    if facts is None:
        return ()
    with np.errstate(all="ignore"):
        alone = _alone(facts)
        shown = (_placed(f, facts.spec.phase, facts.spec.id) for rule in _OF_A_RUN_ALONE for f in rule.findings(alone))
        found = [*_of_run(facts), *shown]
    places = accepted or {}
    return _sorted(
        _accepted(one, places[one.code]) if one.code in places and one.severity != "info" else one for one in found
    )


def _alone(run: RunFacts) -> PhaseFacts:
    """A run without a runbook as a phase of its own: of tests where it left a report of tests, else of training."""
    phase: Phase = TrainPhase(id="inspect", kind="train", steps=1)
    if run.scalar("tests.total") is not None:
        phase = PytestPhase(id="inspect", kind="pytest", targets=("tests",))
    return PhaseFacts(PhaseRecord(phase=phase, state="done"), None, (run,))


def _phase_facts(record: PhaseRecord, report: PhaseReport | None, whole: ValidationRecord) -> PhaseFacts:
    """A phase without the runs that were given another config on purpose: what they show is no fault."""
    obeyed = obeyed_settings(whole)
    undecided = undecided_settings(whole)
    runs = (RunFacts.of(run, whole.environment) for run in record.runs if run.spec.role != "changed")
    facts = (replace(run, obeyed=obeyed, undecided=undecided) for run in runs if run is not None)
    return PhaseFacts(record, report, tuple(facts))


def _of_run(run: RunFacts) -> list[Finding]:
    return [_placed(f, run.spec.phase, run.spec.id) for rule in _OF_A_RUN for f in rule.findings(run)]


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
        gathered = tuple(dict.fromkeys(e for f in same for e in f.evidence))[:_MAX_EVIDENCE]
        message = f"{same[0].message} The same holds for {shown}."
        merged.append(same[0].model_copy(update={"message": message, "evidence": gathered, "also": tuple(runs[1:])}))
    return merged


def _sorted(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    return tuple(sorted(findings, key=lambda finding: (_SEVERITIES.index(finding.severity), not finding.costly)))


# The table of docs/findings.md, which `make reference` writes.

_EFFECT = {"veto": "no GO", "warning": "none", "info": "none"}
_SCOPES: dict[Scope, str] = {"run": "a run", "phase": "a phase", "validation": "several runs"}


def findings_table() -> str:
    """Every code with its severity, its effect on the decision, the runbook fields that answer it, and its causes."""
    rows = ["| code | severity, at most | effect on the decision | answered by | cause |", "|---|---|---|---|---|"]
    for code in sorted(CODES):
        own = [rule for rule in _RULES if rule.code == code]
        severity = min((rule.severity for rule in own), key=_SEVERITIES.index)
        answers = ", ".join(filter(None, (ANSWERS[code], "`accept_findings`" if severity != "info" else "")))
        causes = " · ".join(dict.fromkeys(f"{_meaning(rule)} ({_SCOPES[rule.of]})" for rule in own))
        rows.append(f"| `{code}` | {severity} | {_EFFECT[severity]} | {answers or '–'} | {causes} |")
    return "\n".join(rows) + "\n"


def _meaning(rule: Rule[Any]) -> str:
    """First paragraph of a rule's docstring, on one line."""
    return " ".join((inspect.getdoc(rule.look) or "").split("\n\n")[0].split()).rstrip(".").replace("|", "\\|")
