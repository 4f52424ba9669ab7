"""What the banner tells a reader to do: the step that answers what stands against a GO, or what follows one."""

from __future__ import annotations

from collections.abc import Sequence

from validator.model.verdict import PhaseReport, ValidationReport
from validator.report.page import Fact, FindingView
from validator.report.parts import anchor

__all__ = ["next_step"]


def next_step(report: ValidationReport, findings: Sequence[FindingView]) -> Fact | None:
    """Its source, the step, and where in the page it stands. None while the validation goes on, or with nothing to say.

    The first finding that forbids GO says it; else the first one about a required phase that did not pass; else
    that phase's own criteria. `findings` are in the order in which the page shows them.
    """
    if report.decision == "IN_PROGRESS":
        return None
    if report.decision == "GO":
        if not report.recommended.env:
            return None
        return Fact("Recommended settings", "Start the long run with the settings that won here.", "#recommended")
    against = [phase for phase in report.phases if phase.required and phase.status != "PASS"]
    places = {f"#{anchor('phase', phase.id)}" for phase in against}
    for place, finding in enumerate(findings, start=1):
        about = finding.anchor is not None and f"#{finding.anchor}" in places
        if finding.next_step and (finding.severity == "veto" or (about and finding.severity == "warning")):
            return Fact(finding.code, finding.next_step, f"#finding-{place}")
    return _of_phase(against[0]) if against else None


def _of_phase(phase: PhaseReport) -> Fact:
    """What to do where no finding says it."""
    return Fact(phase.id, _STEPS.get(phase.status, _STEPS["NOT_RUN"]), f"#{anchor('phase', phase.id)}")


_STEPS = {
    "FAIL": "No known cause was recognized. Look at the evidence of what failed, or set this run against a good one "
    "with `validator compare`.",
    "INCONCLUSIVE": "Change what the sentence above names, then validate again; the same run repeated until it passes "
    "proves nothing.",
    "NOT_RUN": "Let this phase run: without it nothing is decided.",
}
