"""What to do next: the step in the banner of the page, and the command in the last line of the terminal."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from validator.errors import ExitCode
from validator.model.expression import open_reference
from validator.model.verdict import PhaseReport, ValidationReport
from validator.report.page import FindingView, LabeledValue, anchor
from validator.text import one_line


def next_step(report: ValidationReport, findings: Sequence[FindingView]) -> LabeledValue | None:
    """Its source, the step, and its place in the page. None while the validation is in progress, or with nothing to do.

    It comes from the first finding that forbids GO; else from the first one about a required phase that failed; else
    from that phase's own criteria. A phase that was only too short needs more steps, whatever was found about its rate.
    `findings` are in the order in which the page shows them.
    """
    if report.decision == "IN_PROGRESS":
        return None
    if report.decision == "GO":
        if not report.recommended.env:
            return None
        return LabeledValue(
            "Recommended settings", "Start the long run with the settings that won here.", "#recommended"
        )
    unmet = [phase for phase in report.phases if phase.required and phase.status != "PASS"]
    anchors = {f"#{anchor('phase', phase.id)}" for phase in unmet if too_short(phase) is None}
    for number, finding in enumerate(findings, start=1):
        about = finding.anchor is not None and f"#{finding.anchor}" in anchors
        if finding.next_step and (finding.severity == "veto" or (about and finding.severity == "warning")):
            return LabeledValue(finding.code, finding.next_step, f"#finding-{number}")
    return _phase_step(unmet[0]) if unmet else None


def too_short(phase: PhaseReport) -> Literal["rows", "interval"] | None:
    """The only reason that a phase does not pass: too few rows for an answer, or an interval too wide for one."""
    unmet = [item for item in phase.criteria if item.required and item.status != "PASS"]
    unmet_checks = [check for check in phase.checks if check.required and check.status != "PASS"]
    open_for = {item.open_for for item in unmet}
    if phase.status != "INCONCLUSIVE" or not unmet or unmet_checks or None in open_for:
        return None
    return "rows" if "rows" in open_for else "interval"


def _phase_step(phase: PhaseReport) -> LabeledValue:
    """What to do where no finding has a next step."""
    status = "OPEN" if _waits_for_bounds(phase) else phase.status
    step = _LONGER.get(too_short(phase) or "") or _STEPS.get(status, _STEPS["NOT_RUN"])
    return LabeledValue(phase.id, step, f"#{anchor('phase', phase.id)}")


_LONGER = {
    "rows": "Only the length is insufficient: give this phase more steps, as many as the sentence above names, or "
    "four repeats, and validate again.",
    "interval": "What was observed is too close to its bound for so few runs: give this phase four repeats or more "
    "steps, and validate again.",
}


_STEPS = {
    "FAIL": "No known cause was recognized. Inspect the evidence of what failed, or compare this run with a good one "
    "with `validator compare`.",
    "OPEN": "Write the bound that is still open, or let this run fill it in: the last line of the terminal, and of "
    "`validator report`, is the command.",
    "INCONCLUSIVE": "Change what the sentence above names, then validate again; the same run repeated until it passes "
    "proves nothing.",
    "NOT_RUN": "Run this phase: without it there is no decision.",
}


def next_command(report: ValidationReport, run_dir: Path) -> str:
    """The command to type next.

    Interrupted: resume. GO: use the settings, or read the report. Not GO: inspect the run that prevents it, or repeat
    its phase.
    """
    runbook = shlex.quote(one_line(report.runbook.path))
    if report.decision == "IN_PROGRESS":
        return f"validator report {shell_path(run_dir)}"
    if report.exit_code == ExitCode.INTERRUPTED:
        return f"validator run --resume {shell_path(run_dir)}"
    if report.decision == "GO":
        chosen = f". {shell_path(run_dir / 'recommended.env')}"
        return chosen if report.recommended.env else f"less {shell_path(run_dir / 'report.md')}"
    phase = _blocking_phase(report)
    if phase is None:
        return f"less {shell_path(run_dir / 'report.md')}"
    if _waits_for_bounds(phase):
        written = Path(report.runbook.path).is_file()
        edit = f"validator baseline {shell_path(run_dir)} --edit {runbook} --allow-not-go"
        return edit if written else f"validator init --from-run {shell_path(run_dir)}"
    for run in phase.runs:
        outcome = run.outcome or {}
        ended_well = outcome.get("reason") == "exited" and outcome.get("rc") == 0
        if outcome and not ended_well and run.log:
            return f"tail -n 50 {shell_path(run_dir / run.log)}"
    if phase.status == "FAIL" and phase.runs and phase.runs[0].out and phase.runs[0].metrics:
        return f"validator inspect {shell_path(run_dir / phase.runs[0].out)}"
    return f"validator run {runbook} --only {shlex.quote(phase.id)}{_more_steps(phase)}"


def _waits_for_bounds(phase: PhaseReport) -> bool:
    """Whether a phase lacks nothing but bounds that are still to be filled in."""
    unmet = [item for item in phase.criteria if item.required and item.status != "PASS"]
    measured = all(item.observed is not None for item in unmet)
    return bool(unmet) and measured and all(open_reference(item.text) is not None for item in unmet)


def _more_steps(phase: PhaseReport) -> str:
    """Twice as many steps for a phase that had too few rows; as many as before would be too few again."""
    steps = [run.scalars["steps.done"].value for run in phase.runs if "steps.done" in run.scalars]
    counted = any("steps.done" in criterion.text for criterion in phase.criteria)
    if too_short(phase) is None or counted or not steps or not isinstance(steps[-1], float):
        return ""
    return f" --set {shlex.quote(phase.id)}.steps={2 * round(steps[-1])}"


def _blocking_phase(report: ValidationReport) -> PhaseReport | None:
    """The phase that prevents a GO most directly: failed before inconclusive before not run, required only."""
    for status in ("FAIL", "INCONCLUSIVE", "SKIPPED", "NOT_RUN"):
        for phase in report.phases:
            if phase.required and phase.status == status:
                return phase
    vetoed = {finding.phase for finding in report.findings if finding.severity == "veto"}
    return next((phase for phase in report.phases if phase.id in vetoed), None)


def shell_path(path: Path) -> str:
    """A path as it can be pasted: relative to the working directory when it lies below."""
    with contextlib.suppress(ValueError):
        path = path.absolute().relative_to(Path.cwd())
    text = one_line(path)
    return shlex.quote(text if not text.startswith("-") else f"./{text}")
