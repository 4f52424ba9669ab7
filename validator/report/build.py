"""ValidationReport → Page: what is shown, in the order in which it is shown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from typing import Any

from validator.model.expression import ExpressionError, parse_criterion
from validator.model.units import format_duration, format_size
from validator.model.verdict import Check, Finding, Outlook, PhaseReport, ValidationReport, Verdict
from validator.report.build_next import next_step
from validator.report.build_runs import comparison_table, phase_facts, remedies_table, run_view
from validator.report.build_since import since_view
from validator.report.formats import clean, format_interval, format_margin, format_value, one_line, plural
from validator.report.page import (
    ArtifactRow,
    CheckRow,
    CriterionGroup,
    CriterionRow,
    DecisionView,
    Fact,
    FactGroup,
    FindingView,
    Page,
    PhaseView,
    ProgressView,
    RecommendedView,
    StatusView,
)
from validator.report.parts import (
    PENDING,
    anchor,
    evidence_views,
    facts_of,
    judged_items,
    link,
    pending_phases,
    status_view,
)
from validator.report.recommended_env import export_lines
from validator.report.timeline import run_spans, timeline_table

__all__ = ["build_page", "decision_view"]

MAX_ARTIFACTS = 400

_DECISIONS = {
    "GO": ("GO", "good", "Every required criterion passed, and no finding forbids the start."),
    "NO_GO": ("NO-GO", "bad", "A required criterion failed, or a finding forbids the start."),
    "INCONCLUSIVE": ("INCONCLUSIVE", "warn", "The evidence does not decide it. This is not a GO."),
    "IN_PROGRESS": ("IN PROGRESS", "info", "The validation has not finished. Nothing is decided yet."),
}
_SEVERITY = {
    "veto": StatusView("VETO", "✕", "bad"),
    "warning": StatusView("WARNING", "!", "warn"),
    "info": StatusView("INFO", "i", "info"),
}
_SEVERITIES = tuple(_SEVERITY)
_CONFIDENCES = ("high", "medium", "low")


def build_page(report: ValidationReport) -> Page:
    """The whole page."""
    pending = pending_phases(report)
    groups = tuple(_group(phase, pending=phase.id in pending) for phase in report.phases)
    title = report.runbook.title or report.runbook.name
    findings = _findings(report)
    return Page(
        title=one_line(title, limit=200),
        description=clean(report.runbook.description or ""),
        decision=decision_view(report),
        facts=_facts(report),
        counts=_counts(report),
        groups=groups,
        findings=findings,
        recommended=_recommended(report),
        phases=tuple(
            _phase(number, phase, group)
            for number, (phase, group) in enumerate(zip(report.phases, groups, strict=True), start=1)
        ),
        environment=_environment(report.environment),
        artifacts=tuple(
            ArtifactRow(
                path=one_line(item.path, limit=400),
                href=link(item.path),
                size=format_size(item.bytes),
                bytes=f"{item.bytes:,}",
                sha256=one_line(item.sha256 or "too large to hash", limit=80),
            )
            for item in report.artifacts[:MAX_ARTIFACTS]
        ),
        artifacts_note=(
            f"{plural(len(report.artifacts) - MAX_ARTIFACTS, 'more file')} listed in result.json."
            if len(report.artifacts) > MAX_ARTIFACTS
            else ""
        ),
        version=one_line(report.validator_version),
        run_id=one_line(report.run_id),
        timeline=timeline_table(run_spans(report)),
        since=since_view(report.since),
        progress=_progress(report, pending) if report.decision == "IN_PROGRESS" else None,
        next_step=next_step(report, findings),
    )


def decision_view(report: ValidationReport) -> DecisionView:
    """The banner's word, tone and sentences."""
    word, tone, meaning = _DECISIONS[report.decision]
    return DecisionView(code=report.decision, word=word, tone=tone, meaning=meaning, why=clean(report.why))


def _progress(report: ValidationReport, pending: Collection[str]) -> ProgressView:
    """What runs, what is to come, and how long that will take as far as anybody can say."""
    named = [(phase, (one_line(phase.title, limit=200), anchor("phase", phase.id))) for phase in report.phases]
    return ProgressView(
        running=tuple(name for phase, name in named if phase.status == "RUNNING"),
        pending=tuple(name for phase, name in named if phase.id in pending),
        remaining=_remaining(report.outlook),
    )


def _remaining(outlook: Outlook | None) -> str:
    if outlook is None or outlook.remaining_s is None:
        return "How long it will still take is not known: no phase to come has an expectation or a pace."
    at = _time(outlook.as_of)
    text = f"About {format_duration(outlook.remaining_s)} remained at {at}"
    try:
        end = datetime.fromisoformat(outlook.as_of.replace("Z", "+00:00")) + timedelta(seconds=outlook.remaining_s)
    except (ValueError, OverflowError):
        end = None
    text += f", which makes it end about {_time(end.isoformat(timespec='seconds'))}." if end else "."
    return text + (" Phases without an expectation come on top." if outlook.at_least else "")


def _facts(report: ValidationReport) -> tuple[Fact, ...]:
    runbook = report.runbook
    facts = [
        Fact("Run", one_line(report.run_id)),
        Fact("Runbook", f"{one_line(runbook.path)} (sha256 {one_line(runbook.sha256)[:12]})"),
    ]
    if runbook.overrides:
        facts.append(Fact("Overrides", "; ".join(one_line(text) for text in runbook.overrides)))
    facts.append(Fact("Started", _time(report.started)))
    facts.append(Fact("Finished", _time(report.finished) if report.finished else "not yet"))
    if report.duration_s is not None:
        facts.append(Fact("Duration", format_duration(report.duration_s)))
    facts += _machine(report.environment)
    if report.exit_code is not None and report.decision != "IN_PROGRESS":
        facts.append(Fact("Exit code", str(report.exit_code)))
    return tuple(facts)


def _machine(environment: Mapping[str, Any]) -> list[Fact]:
    """Which machine and which commit, in a line each, as far as the snapshot tells."""
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
    facts = [Fact("Machine", one_line(text, limit=200))] if text else []
    if isinstance(git, dict) and git.get("sha"):
        dirty = ", with uncommitted changes" if git.get("dirty") else ""
        branch = f" on {git['branch']}" if git.get("branch") else ""
        facts.append(Fact("Commit", one_line(f"{str(git['sha'])[:12]}{branch}{dirty}", limit=120)))
    return facts


def _time(iso: str) -> str:
    """`2025-08-27 14:03:11 UTC` from ISO 8601; anything else as it is."""
    text = one_line(iso, limit=60)
    if text.endswith(("Z", "+00:00")) and "T" in text:
        return text.replace("T", " ")[:19] + " UTC"
    return text


def _counts(report: ValidationReport) -> tuple[tuple[StatusView, int], ...]:
    """How many required criteria and checks of required phases have which status; a phase without any counts once."""
    pending = pending_phases(report)
    found: Counter[StatusView] = Counter()
    for phase in report.phases:
        if phase.required:
            statuses = [item.status for item in judged_items(phase) if item.required]
            if not judged_items(phase):
                statuses = [phase.status]
            found.update(status_view(status, pending=phase.id in pending) for status in statuses)
    order = [status_view(s) for s in ("PASS", "FAIL", "INCONCLUSIVE", "SKIPPED", "NOT_RUN", "RUNNING")]
    return tuple((view, found[view]) for view in (*order, PENDING) if found[view])


def _group(phase: PhaseReport, *, pending: bool) -> CriterionGroup:
    open_checks = [check for check in phase.checks if check.status != "PASS"]
    passed = len(phase.checks) - len(open_checks)
    rows, message = _once(
        (
            *(_criterion(verdict, phase_required=phase.required, pending=pending) for verdict in phase.criteria),
            *(_check_criterion(check, phase_required=phase.required) for check in open_checks),
        ),
        clean(phase.message),
    )
    return CriterionGroup(
        phase=one_line(phase.id),
        title=one_line(phase.title, limit=200),
        anchor=anchor("phase", phase.id),
        status=status_view(phase.status, pending=pending),
        required=phase.required,
        message=message,
        rows=rows,
        note=f"{plural(passed, 'check')} of the machine passed." if passed else "",
    )


def _once(rows: tuple[CriterionRow, ...], message: str) -> tuple[tuple[CriterionRow, ...], str]:
    """Rows and the phase's message, with each sentence said once: for all rows above them, for one row beside it."""
    shared = tuple(row._replace(message="") if row.message == message else row for row in rows)
    said = any(row.message and row.message in message and row.status.word != "PASS" for row in shared)
    return shared, "" if said else message


def _criterion(verdict: Verdict, *, phase_required: bool, pending: bool) -> CriterionRow:
    return CriterionRow(
        id=one_line(verdict.id),
        text=one_line(verdict.text, limit=500),
        formal=_is_expression(verdict.text),
        required=verdict.required and phase_required,
        status=status_view(verdict.status, pending=pending),
        observed=format_value(verdict.observed, verdict.unit),
        interval=format_interval(verdict.ci_low, verdict.ci_high),
        bound=format_value(verdict.bound, verdict.unit),
        margin=format_margin(verdict.margin),
        message=clean(verdict.message),
        evidence=evidence_views(verdict.evidence),
    )


def _is_expression(text: str) -> bool:
    try:
        parse_criterion(text)
    except ExpressionError:
        return False
    return True


def _check_criterion(check: Check, *, phase_required: bool) -> CriterionRow:
    return CriterionRow(
        id=one_line(check.id),
        text=one_line(check.title, limit=500),
        formal=False,
        required=check.required and phase_required,
        status=status_view(check.status),
        observed=clean(check.observed, limit=500),
        interval="",
        bound=clean(check.expected or "–", limit=500),
        margin="–",
        message=clean(check.message),
        evidence=evidence_views(check.evidence),
    )


def _findings(report: ValidationReport) -> tuple[FindingView, ...]:
    """Vetoes first, then by confidence, then in the order found."""
    known = {phase.id for phase in report.phases}
    ordered = sorted(report.findings, key=lambda f: (_SEVERITIES.index(f.severity), _CONFIDENCES.index(f.confidence)))
    return tuple(_finding(finding, known) for finding in ordered)


def _finding(finding: Finding, known: set[str]) -> FindingView:
    return FindingView(
        code=one_line(finding.code),
        severity=finding.severity,
        status=_SEVERITY[finding.severity],
        confidence=finding.confidence,
        place=one_line(finding.run or finding.phase or "whole validation"),
        anchor=anchor("phase", finding.phase) if finding.phase in known and finding.phase else None,
        message=clean(finding.message),
        next_step=clean(finding.next_step),
        evidence=evidence_views(finding.evidence),
    )


def _recommended(report: ValidationReport) -> RecommendedView:
    recommended = report.recommended
    return RecommendedView(
        exports=clean("\n".join(export_lines(recommended.env)), limit=20_000),
        command=clean(recommended.command or "", limit=20_000),
        because=tuple(clean(text) for text in recommended.because),
    )


def _phase(number: int, phase: PhaseReport, group: CriterionGroup) -> PhaseView:
    return PhaseView(
        id=one_line(phase.id),
        anchor=group.anchor,
        number=number,
        title=group.title,
        kind=one_line(phase.kind),
        why=clean(phase.why or ""),
        required=phase.required,
        status=group.status,
        message=group.message,
        facts=phase_facts(phase),
        criteria=group,
        checks=tuple(_check(check) for check in phase.checks),
        comparison=comparison_table(phase.comparison),
        comparison_message=clean(phase.comparison.message) if phase.comparison else "",
        runs=tuple(run_view(run, phase=phase.id) for run in phase.runs),
        has_rates=any("toks_per_s" in run.metrics or "step_time_s" in run.metrics for run in phase.runs),
        remedies=remedies_table(phase),
    )


def _check(check: Check) -> CheckRow:
    return CheckRow(
        id=one_line(check.id),
        title=one_line(check.title, limit=300),
        required=check.required,
        status=status_view(check.status),
        observed=clean(check.observed, limit=1000),
        expected=clean(check.expected or "–", limit=1000),
        message=clean(check.message),
        evidence=evidence_views(check.evidence),
    )


def _environment(environment: Mapping[str, Any]) -> tuple[FactGroup, ...]:
    """Single values first under one heading, then each nested part under its own."""
    single = {key: value for key, value in environment.items() if not isinstance(value, (dict, list))}
    groups = [FactGroup("General", facts_of(single))] if single else []
    for key, value in environment.items():
        if key not in single and value:
            title = one_line(key, limit=80).replace("_", " ")
            groups.append(
                FactGroup(title[:1].upper() + title[1:], facts_of(value if isinstance(value, dict) else {key: value}))
            )
    return tuple(groups)
