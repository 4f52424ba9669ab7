"""The decision: computed from verdicts and findings, never authored; and the settings that the evidence recommends."""

from __future__ import annotations

from collections.abc import Sequence

from validator.judge.remedies import told_settings
from validator.judge.wording import listed
from validator.model.placeholders import has_placeholder
from validator.model.runbook import Runbook
from validator.model.settings import setting_text
from validator.model.verdict import Decision, Finding, PhaseReport, Recommendation, Status

__all__ = ["decide", "exit_code", "recommend", "settled"]

_EXIT_CODES: dict[Decision, int] = {"GO": 0, "NO_GO": 1, "INCONCLUSIVE": 3, "IN_PROGRESS": 3}


def decide(
    phases: Sequence[PhaseReport], findings: Sequence[Finding] = (), *, pending: bool | Sequence[str] = False
) -> tuple[Decision, str]:
    """The decision and one sentence that says why.

    GO only if every required phase passed, which needs every required criterion of it, if one of them asked for
    something that could fail, and no veto stands. NO-GO only
    if something required failed: a veto says that the evidence cannot be trusted, not that it is bad. `pending`
    names the phases that are still to come, or says that some are.
    """
    if pending:
        names = [] if isinstance(pending, bool) else list(pending)
        return "IN_PROGRESS", f"Still pending: {listed(names)}." if names else "The validation has not finished."
    required = [phase for phase in phases if phase.required]
    vetoes = [finding for finding in findings if finding.severity == "veto"]
    failed = _with_status(required, "FAIL")
    if failed:
        return "NO_GO", _because(failed, "failed")
    if vetoes:
        more = f" ({len(vetoes)} vetoes in all)" if len(vetoes) > 1 else ""
        return "INCONCLUSIVE", f"{vetoes[0].code}: {vetoes[0].message.rstrip('.')}{more}."
    if not required:
        return "INCONCLUSIVE", "No phase of the runbook is required, so nothing was decided."
    open_phases = [phase for phase in required if phase.status != "PASS"]
    if open_phases:
        words = {"INCONCLUSIVE": "is inconclusive", "NOT_RUN": "did not run", "SKIPPED": "was skipped"}
        first = open_phases[0]
        told = "is not proven" if first.ran and first.status == "SKIPPED" else words.get(first.status, "did not finish")
        return "INCONCLUSIVE", _because(open_phases, told)
    if not any(phase.asks for phase in required):
        return "INCONCLUSIVE", (
            "No required phase asks for anything that could fail on what it measures, so nothing was decided; give one "
            "a criterion."
        )
    count = sum(verdict.required for phase in required for verdict in phase.criteria)
    checks = sum(check.required for phase in required for check in phase.checks)
    noun = "phase" if len(required) == 1 else "phases"
    return "GO", f"All {count + checks} required criteria and checks of {len(required)} {noun} passed; no veto stands."


def _with_status(phases: Sequence[PhaseReport], status: Status) -> list[PhaseReport]:
    return [phase for phase in phases if phase.status == status]


def _because(phases: Sequence[PhaseReport], words: str) -> str:
    """The first phase's own reason, and the names of the others."""
    first = phases[0]
    others = [phase.id for phase in phases[1:]]
    also = f" Also not passed: {listed(others)}." if others else ""
    return f"Phase {first.id} {words}: {first.message}{also}" if first.message else f"Phase {first.id} {words}.{also}"


def settled(phases: Sequence[PhaseReport], findings: Sequence[Finding]) -> str | None:
    """Why no further run of a phase could make the decision GO, as a clause; None where one could.

    Args:
        phases: those that were judged before the phase at hand.
        findings: what is known of the validation so far.
    """
    failed = next((phase for phase in phases if phase.required and phase.status == "FAIL"), None)
    if failed is not None:
        return f"{failed.id} failed"
    veto = next((finding for finding in findings if finding.severity == "veto"), None)
    return None if veto is None else f"the veto {veto.code} forbids GO"


def exit_code(decision: Decision) -> int:
    """0 GO, 1 NO-GO, 3 INCONCLUSIVE; a validation in progress counts as inconclusive, never as success."""
    return _EXIT_CODES[decision]


def recommend(phases: Sequence[PhaseReport], *, runbook: Runbook, command: str | None = None) -> Recommendation:
    """The settings worth using: the runbook's own environment, overlaid by the arms that won.

    `because` holds one sentence for each comparison, whether or not it recommends anything, and for each remedy after
    which a phase passed that had failed as declared. A variable that names the run's own folder, or the like, is none
    of the settings.
    """
    env = {name: setting_text(value) for name, value in runbook.defaults.env.items()}
    because: list[str] = []
    for phase in phases:
        env |= _remedied(phase, because)
        comparison = phase.comparison
        if comparison is None:
            continue
        because.append(f"{phase.id}: {comparison.message}")
        arm = next((one for one in comparison.arms if one.arm == comparison.recommended), None)
        if arm is None:
            continue
        env |= {
            name.removeprefix("env."): setting_text(value)
            for name, value in arm.settings.items()
            if name.startswith("env.")
        }
        arguments = [
            f"{name.removeprefix('args.')}={value}" for name, value in arm.settings.items() if name.startswith("args.")
        ]
        if arguments:
            because.append(f"{phase.id}: pass {', '.join(arguments)} to the trainer.")
    env = {name: value for name, value in env.items() if not has_placeholder(value)}
    return Recommendation(env=env, command=command, because=tuple(because))


def _remedied(phase: PhaseReport, because: list[str]) -> dict[str, str]:
    """The environment of the remedy that helped a phase which fails as declared.

    One of a phase that is not required stays a sentence: beside a GO, settings that were not declared have no place.
    """
    helped = next((go for go in phase.remedies if go.name is not None and go.status == "PASS"), None)
    if helped is None or helped.decides:
        return {}
    told = told_settings(helped.settings)
    because.append(f"{phase.id}: passes with remedy {helped.name} ({told}), not as declared; validate again with it.")
    if not phase.required:
        return {}
    return {
        name.removeprefix("env."): setting_text(value)
        for name, value in helped.settings.items()
        if name.startswith("env.")
    }
