"""What the banner tells a reader to do: the step that answers what stands against a GO, or what follows one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from validator.model.verdict import PhaseReport, ValidationReport
from validator.report.page import Fact, FindingView
from validator.report.parts import anchor

__all__ = ["next_step", "too_short"]


def next_step(report: ValidationReport, findings: Sequence[FindingView]) -> Fact | None:
    """Its source, the step, and where in the page it stands. None while the validation goes on, or with nothing to say.

    The first finding that forbids GO says it; else the first one about a required phase that did not pass; else
    that phase's own criteria. A phase that was only too short needs more of the same, whatever was noticed of its pace.
    `findings` are in the order in which the page shows them.
    """
    if report.decision == "IN_PROGRESS":
        return None
    if report.decision == "GO":
        if not report.recommended.env:
            return None
        return Fact("Recommended settings", "Start the long run with the settings that won here.", "#recommended")
    against = [phase for phase in report.phases if phase.required and phase.status != "PASS"]
    places = {f"#{anchor('phase', phase.id)}" for phase in against if too_short(phase) is None}
    for place, finding in enumerate(findings, start=1):
        about = finding.anchor is not None and f"#{finding.anchor}" in places
        if finding.next_step and (finding.severity == "veto" or (about and finding.severity == "warning")):
            return Fact(finding.code, finding.next_step, f"#finding-{place}")
    return _of_phase(against[0]) if against else None


def too_short(phase: PhaseReport) -> Literal["rows", "interval"] | None:
    """What alone keeps a phase from passing: too few rows for an answer, or an interval that is too wide for one."""
    against = [item for item in phase.criteria if item.required and item.status != "PASS"]
    against_checks = [check for check in phase.checks if check.required and check.status != "PASS"]
    open_for = {item.open_for for item in against}
    if phase.status != "INCONCLUSIVE" or not against or against_checks or None in open_for:
        return None
    return "rows" if "rows" in open_for else "interval"


def _of_phase(phase: PhaseReport) -> Fact:
    """What to do where no finding says it."""
    step = _LONGER.get(too_short(phase) or "") or _STEPS.get(phase.status, _STEPS["NOT_RUN"])
    return Fact(phase.id, step, f"#{anchor('phase', phase.id)}")


_LONGER = {
    "rows": "Nothing is wrong but the length: give this phase more steps, as many as the sentence above asks for, or "
    "four repeats, and validate again.",
    "interval": "What was observed is too close to its bound for so few runs: give this phase four repeats or more "
    "steps, and validate again.",
}


_STEPS = {
    "FAIL": "No known cause was recognized. Look at the evidence of what failed, or set this run against a good one "
    "with `validator compare`.",
    "INCONCLUSIVE": "Change what the sentence above names, then validate again; the same run repeated until it passes "
    "proves nothing.",
    "NOT_RUN": "Let this phase run: without it nothing is decided.",
}
