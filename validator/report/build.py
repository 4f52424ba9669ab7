"""ValidationReport → Page: what is shown, in the order in which it is shown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any

from validator.model.verdict import Finding, PhaseReport, RemainingTime, ValidationReport
from validator.report import page as views
from validator.report.advice import next_step
from validator.report.build_criteria import VETO, check_row, criterion_row, exceptions, open_items, without_repeats
from validator.report.build_runs import (
    comparison_table,
    effects_table,
    has_rates,
    phase_facts,
    remedies_table,
    run_view,
    runs_table,
)
from validator.report.contrast import since_view
from validator.report.elements import (
    PENDING,
    anchor,
    decision_status,
    evidence_views,
    facts_of,
    link,
    pending_phases,
    status_view,
)
from validator.report.exports import export_lines
from validator.report.fleet import fleet_view
from validator.report.machine_ticket import machine_ticket, recognized_causes
from validator.report.specs import ChartData
from validator.report.tiles import tiles_of
from validator.report.timeline import run_spans, timeline_table
from validator.text import clean, format_duration, format_size, format_time, format_value, one_line, plural
from validator.times import parse_time

MAX_ARTIFACTS = 400

_MEANINGS = {
    "INCONCLUSIVE": "The evidence does not decide. This is not a GO.",
    "IN_PROGRESS": "The validation has not finished. Nothing is decided yet.",
}
_SEVERITY = {
    "veto": VETO,
    "warning": views.StatusView("WARNING", "!", "warn"),
    "info": views.StatusView("INFO", "i", "info"),
}
_SEVERITIES = tuple(_SEVERITY)
_CONFIDENCES = ("high", "medium", "low")


def build_page(report: ValidationReport, charts: ChartData | None = None) -> views.Page:
    """The whole page. The tiles have small drawings of the series that `charts` holds."""
    pending = pending_phases(report)
    title = report.runbook.title or report.runbook.name
    findings = _finding_views(report)
    return views.Page(
        title=one_line(title, limit=200),
        description=clean(report.runbook.description or ""),
        decision=decision_status(report.decision),
        meaning=_MEANINGS.get(report.decision, ""),
        why=clean(report.why),
        facts=_report_facts(report),
        counts=_status_counts(report),
        findings=findings,
        recommended=_recommended_view(report),
        phases=tuple(
            _phase_view(number, phase, pending=phase.id in pending)
            for number, phase in enumerate(report.phases, start=1)
        ),
        environment=_environment_groups(report.environment),
        artifacts=_artifact_rows(report),
        artifacts_note=(
            f"{plural(len(report.artifacts) - MAX_ARTIFACTS, 'more file')} listed in result.json."
            if len(report.artifacts) > MAX_ARTIFACTS
            else ""
        ),
        version=one_line(report.validator_version),
        run_id=one_line(report.run_id),
        timeline=timeline_table(run_spans(report)),
        since=since_view(report.since),
        progress=_progress_view(report, pending) if report.decision == "IN_PROGRESS" else None,
        next_step=next_step(report, findings),
        tiles=tiles_of(report, charts or ChartData()),
        open_items=open_items(report, findings, pending),
        fleet=None if report.fleet is None else fleet_view(report.fleet, report.run_id, recognized_causes(report)),
        ticket=machine_ticket(report),
        undecided=_undecided(report),
    )


def _artifact_rows(report: ValidationReport) -> tuple[views.ArtifactRow, ...]:
    """The files of the run folder, as many as are listed."""
    return tuple(
        views.ArtifactRow(
            path=one_line(item.path, limit=400),
            href=link(item.path),
            size=format_size(item.bytes),
            bytes=f"{item.bytes:,}",
            sha256=one_line(item.sha256 or "too large to hash", limit=80),
        )
        for item in report.artifacts[:MAX_ARTIFACTS]
    )


def _undecided(report: ValidationReport) -> tuple[views.LabeledValue, ...]:
    """The comparisons that chose nothing, so that a GO does not read as if they had."""
    follows = {"not_decidable": "no arm is chosen, and the declared setting is kept", "vacuous": "nothing was compared"}
    return tuple(
        views.LabeledValue(
            one_line(phase.title, limit=200), follows[phase.comparison.outcome], f"#{anchor('phase', phase.id)}"
        )
        for phase in report.phases
        if phase.comparison is not None and phase.comparison.outcome in follows
    )


def _progress_view(report: ValidationReport, pending: Collection[str]) -> views.ProgressView:
    """What is running, what is pending, and how long that will take as far as it is known."""
    named = [(phase, (one_line(phase.title, limit=200), anchor("phase", phase.id))) for phase in report.phases]
    return views.ProgressView(
        running=tuple(name for phase, name in named if phase.status == "RUNNING"),
        pending=tuple(name for phase, name in named if phase.id in pending),
        remaining=_remaining_text(report.outlook),
    )


def _remaining_text(outlook: RemainingTime | None) -> str:
    if outlook is None or outlook.remaining_s is None:
        return "The remaining time is not known: no pending phase has an expected duration or a rate."
    at = format_time(outlook.as_of)
    text = f"About {format_duration(outlook.remaining_s)} remained at {at}"
    began, end = parse_time(outlook.as_of), None
    with suppress(OverflowError):  # a remaining time beyond the year 9999
        end = began + timedelta(seconds=outlook.remaining_s) if began else None
    text += f"; the expected end is about {format_time(end)}." if end else "."
    return text + (" Phases without an expected duration are not included." if outlook.at_least else "")


def _report_facts(report: ValidationReport) -> tuple[views.LabeledValue, ...]:
    runbook = report.runbook
    facts = [
        views.LabeledValue("Run", one_line(report.run_id)),
        views.LabeledValue("Runbook", f"{one_line(runbook.path)} (sha256 {one_line(runbook.sha256)[:12]})"),
    ]
    if runbook.overrides:
        facts.append(views.LabeledValue("Overrides", "; ".join(one_line(text) for text in runbook.overrides)))
    facts.append(views.LabeledValue("Started", format_time(report.started)))
    facts.append(views.LabeledValue("Finished", format_time(report.finished) if report.finished else "not yet"))
    if report.duration_s is not None:
        facts.append(views.LabeledValue("Duration", format_duration(report.duration_s)))
    facts += _machine_facts(report.environment)
    if report.exit_code is not None and report.decision != "IN_PROGRESS":
        facts.append(views.LabeledValue("Exit code", str(report.exit_code)))
    return tuple(facts)


def _machine_facts(environment: Mapping[str, Any]) -> list[views.LabeledValue]:
    """Which machine and which commit, in a line each, as far as the snapshot has them."""
    cpu, gpus, git = (environment.get(key) for key in ("cpu", "gpus", "git"))
    found = list(gpus.values()) if isinstance(gpus, dict) else gpus if isinstance(gpus, list) else []
    names = Counter(str(gpu.get("name")) for gpu in found if isinstance(gpu, dict) and gpu.get("name"))
    parts = [f"{count} × {name}" for name, count in names.items()]
    if isinstance(cpu, dict):
        cores = cpu.get("cores_usable") or cpu.get("cores_logical")
        parts.append(
            f"{cpu.get('model') or 'CPU'}, {format_value(cores)} cores" if cores else str(cpu.get("model") or "")
        )
    named = [str(environment[key]) for key in ("host", "hostname") if environment.get(key)]
    text = ": ".join(part for part in ("".join(named[:1]), "; ".join(filter(None, parts))) if part)
    facts = [views.LabeledValue("Machine", one_line(text, limit=200))] if text else []
    if isinstance(git, dict) and git.get("sha"):
        dirty = ", with uncommitted changes" if git.get("dirty") else ""
        branch = f" on {git['branch']}" if git.get("branch") else ""
        facts.append(views.LabeledValue("Commit", one_line(f"{str(git['sha'])[:12]}{branch}{dirty}", limit=120)))
    return facts


def _status_counts(report: ValidationReport) -> tuple[tuple[views.StatusView, int], ...]:
    """How many required criteria and checks of required phases have which status; a phase without any counts once."""
    pending = pending_phases(report)
    found: Counter[views.StatusView] = Counter()
    for phase in report.phases:
        if phase.required:
            statuses = [item.status for item in phase.judged if item.required]
            if not phase.judged:
                statuses = [phase.status]
            found.update(status_view(status, pending=phase.id in pending) for status in statuses)
    order = [status_view(s) for s in ("PASS", "FAIL", "INCONCLUSIVE", "SKIPPED", "NOT_RUN", "RUNNING")]
    return tuple((view, found[view]) for view in (*order, PENDING) if found[view])


def _finding_views(report: ValidationReport) -> tuple[views.FindingView, ...]:
    """Vetoes first, then what costs much, then by confidence, then in the order found."""
    known = {phase.id for phase in report.phases}
    ordered = sorted(
        report.findings,
        key=lambda one: (_SEVERITIES.index(one.severity), not one.costly, _CONFIDENCES.index(one.confidence)),
    )
    return tuple(_finding_view(finding, known) for finding in ordered)


def _finding_view(finding: Finding, known: set[str]) -> views.FindingView:
    also = {run.partition("/")[0] for run in finding.also}
    return views.FindingView(
        code=one_line(finding.code),
        severity=finding.severity,
        status=_SEVERITY[finding.severity],
        confidence=finding.confidence,
        place=one_line(finding.run or finding.phase or "whole validation"),
        anchor=anchor("phase", finding.phase) if finding.phase in known and finding.phase else None,
        also=tuple(sorted(anchor("phase", one) for one in also & known if one != finding.phase)),
        message=clean(finding.message),
        next_step=clean(finding.next_step),
        evidence=evidence_views(finding.evidence),
        command=one_line(finding.command, limit=300),
        costly=finding.costly,
    )


def _recommended_view(report: ValidationReport) -> views.RecommendedView:
    recommended = report.recommended
    return views.RecommendedView(
        exports=clean("\n".join(export_lines(recommended.env)), limit=20_000),
        command=clean(recommended.command or "", limit=20_000),
        because=tuple(clean(text) for text in recommended.because),
    )


def _phase_view(number: int, phase: PhaseReport, *, pending: bool) -> views.PhaseView:
    open_checks = [check for check in phase.checks if check.status != "PASS"]
    passed = len(phase.checks) - len(open_checks)
    rows, message = without_repeats(
        (
            *(criterion_row(verdict, phase, pending=pending) for verdict in phase.criteria),
            *(check_row(check, phase) for check in open_checks),
        ),
        clean(phase.message),
    )
    return views.PhaseView(
        id=one_line(phase.id),
        anchor=anchor("phase", phase.id),
        number=number,
        title=one_line(phase.title, limit=200),
        kind=one_line(phase.kind),
        why=clean(phase.why or ""),
        required=phase.required,
        status=status_view(phase.status, pending=pending),
        message=message,
        facts=phase_facts(phase),
        rows=rows,
        note=f"{plural(passed, 'check')} of the machine passed." if passed else "",
        checks=tuple(check_row(check, phase) for check in phase.checks),
        comparison=comparison_table(phase.comparison),
        comparison_message=clean(phase.comparison.message) if phase.comparison else "",
        summary=runs_table(phase),
        runs=tuple(run_view(run, phase=phase.id) for run in phase.runs),
        has_rates=has_rates(phase),
        remedies=remedies_table(phase),
        effects=effects_table(phase),
        exceptions=exceptions(phase),
    )


def _environment_groups(environment: Mapping[str, Any]) -> tuple[views.ValueGroup, ...]:
    """Single values first under one heading, then each nested part under its own."""
    single = {key: value for key, value in environment.items() if not isinstance(value, (dict, list))}
    groups = [views.ValueGroup("General", facts_of(single))] if single else []
    for key, value in environment.items():
        if key not in single and value:
            title = one_line(key, limit=80).replace("_", " ")
            groups.append(
                views.ValueGroup(
                    title[:1].upper() + title[1:], facts_of(value if isinstance(value, dict) else {key: value})
                )
            )
    return tuple(groups)
