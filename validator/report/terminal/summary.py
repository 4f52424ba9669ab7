"""The summary at the end of a run, and the answer of `compare`."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from validator.model.contrast import Contrast, MetricDifference
from validator.model.units import format_duration
from validator.model.verdict import Check, Finding, PhaseReport, ValidationReport, Verdict
from validator.report.advice import next_command, shell_path
from validator.report.contrast import VERDICTS, difference_tables, phase_and_arm, verdict_text
from validator.report.page import decision_status, judged_items, status_view
from validator.report.terminal.lines import paint, text_table, wrap
from validator.text import clean, format_change, format_interval, format_number, format_value, one_line, plural

if TYPE_CHECKING:
    from validator.report.write import ReportPaths


def contrast_lines(contrast: Contrast, *, width: int = 80, color: bool = False) -> list[str]:
    """The comparison as lines of about `width` columns."""
    view = VERDICTS[contrast.verdict]
    lines = [paint(view.word, f"{view.tone} bold", color=color), *wrap(contrast.message, width=width)]
    for letter, subject in (("A", contrast.a), ("B", contrast.b)):
        about = ", ".join(part for part in (subject.decision, subject.machine) if part)
        lines.append(f"{letter}  {one_line(subject.path or subject.name)}{f'  ({one_line(about)})' if about else ''}")
    for caveat in contrast.caveats:
        lines += wrap(f"! {caveat}", width=width, indent="  ", first="")
    lines += _metric_lines(contrast, width=width, color=color)
    for table in difference_tables(contrast, ("A", "B")):
        lines += ["", paint(table.caption, "bold", color=color)]
        lines += text_table(table.columns, table.rows, width=width, color=color)
        lines += [f"… {table.note.replace('result.json', '--json')}"] if table.note else []
    return lines if contrast.settings else [*lines, "", "No setting differs."]


def _metric_lines(contrast: Contrast, *, width: int, color: bool) -> list[str]:
    """The metrics in fewer columns than on the page, and what would decide those that the verdict rests on."""
    if not contrast.metrics:
        return ["", "No metric was measured on both sides."]
    rows = [
        (
            phase_and_arm(one),
            one.metric,
            format_number(one.a.value),
            format_number(one.b.value),
            _change_text(one),
            verdict_text(one),
        )
        for one in contrast.metrics
    ]
    styles = [("", "", "", "", "", VERDICTS[one.verdict].tone) for one in contrast.metrics]
    columns = ("Phase", "Metric", "A", "B", "Change, 95 %", "Verdict")
    lines = ["", *text_table(columns, rows, width=width, numeric=("A", "B"), styles=styles, color=color)]
    for one in contrast.metrics:
        if one.headline and one.verdict == "not_decidable":
            name = " ".join(part for part in (one.phase, one.arm, one.metric) if part)
            lines += wrap(f"{name}: {one.message}", width=width, indent="  ", first="")
    return lines


def _change_text(one: MetricDifference) -> str:
    interval = format_interval(one.change_low, one.change_high, format_change)
    return f"{format_change(one.change)} {interval}".rstrip()


# The summary at the end of a run, and the answer of `compare`.

MAX_OPEN = 12
"""Criteria that are listed; the report has them all."""

MAX_FINDINGS = 8

_FINDING_STYLE = {"veto": "bad bold", "warning": "warn", "info": "info"}


def summary_lines(report: ValidationReport, paths: ReportPaths, *, width: int = 80, color: bool = False) -> list[str]:
    """The summary as lines of about `width` columns."""
    view = decision_status(report.decision)
    lines = ["", paint(f"{view.word}  {one_line(report.runbook.name, limit=48)}", f"{view.tone} bold", color=color)]
    lines += wrap(clean(report.why), width=width)
    lines.append(paint(_counts_text(report), "muted", color=color))
    lines += _open_items(report, width=width, color=color)
    lines += _report_findings(report, width=width, color=color)
    if report.recommended.env:
        settings = " ".join(f"{k}={shlex.quote(v)}" for k, v in report.recommended.env.items())
        lines += ["", *wrap(f"Recommended: {settings}", width=width, indent="  ", first="")]
    if report.since is not None:
        since = f"Since   {report.since.a.name}, the last GO that compares: {report.since.message}"
        lines += ["", *wrap(since, width=width, indent="  ", first="")]
    lines += ["", f"Report  {shell_path(paths.html)}", f"Next    {next_command(report, paths.result.parent)}"]
    return lines


def _counts_text(report: ValidationReport) -> str:
    required = Counter(
        item.status for phase in report.phases if phase.required for item in judged_items(phase) if item.required
    )
    words = [
        f"{count} {status_view(status).word.lower()}" for status, count in sorted(required.items(), key=lambda p: -p[1])
    ]
    text = f"{plural(sum(required.values()), 'required criterion', 'required criteria')}: {', '.join(words) or 'none'}"
    text += f"; {plural(len(report.phases), 'phase')}"
    return text + (f" in {format_duration(report.duration_s)}" if report.duration_s is not None else "")


def _open_items(report: ValidationReport, *, width: int, color: bool) -> list[str]:
    """What has not passed: required before optional, failed before inconclusive, each with its sentence."""
    items = [
        (phase, item)
        for phase in report.phases
        for item in judged_items(phase)
        if item.status != "PASS" and (phase.ran or phase.status not in ("NOT_RUN", "SKIPPED"))
    ]
    order = ("FAIL", "INCONCLUSIVE", "SKIPPED", "NOT_RUN", "RUNNING")
    items.sort(key=lambda pair: (not (pair[0].required and pair[1].required), order.index(pair[1].status)))
    lines: list[str] = [""] if items else []
    for phase, item in items[:MAX_OPEN]:
        lines += _item_lines(phase, item, width=width, color=color)
    if len(items) > MAX_OPEN:
        lines.append(f"  … {len(items) - MAX_OPEN} more in the report")
    lines += _phases_not_run(report, width=width, color=color)
    return lines


def _item_lines(phase: PhaseReport, item: Verdict | Check, *, width: int, color: bool) -> list[str]:
    view = status_view(item.status)
    optional = "" if phase.required and item.required else " (not required)"
    text = item.text if isinstance(item, Verdict) else item.title
    lines = _marked(f"{view.sign} {view.word}", view.tone, f"{phase.id}: {text}{optional}", width=width, color=color)
    if isinstance(item, Verdict) and item.observed is not None and not item.message:
        observed = f"observed {format_value(item.observed, item.unit)} {format_interval(item.ci_low, item.ci_high)}"
        lines += wrap(observed, width=width, indent="    ")
    lines += wrap(item.message, width=width, indent="    ")
    return lines


def _marked(mark: str, style: str, text: str, *, width: int, color: bool) -> list[str]:
    """A sentence behind a painted mark, its further lines indented."""
    lines = wrap(text, width=width, indent="    ", first=f"  {mark} ")
    lines[0] = lines[0].replace(mark, paint(mark, style, color=color), 1)
    return lines


def _phases_not_run(report: ValidationReport, *, width: int, color: bool) -> list[str]:
    lines = []
    for phase in report.phases:
        if report.decision != "IN_PROGRESS" and not phase.ran and phase.status in ("NOT_RUN", "SKIPPED"):
            view = status_view(phase.status)
            why = f"{phase.id}: {phase.message}" if phase.message else phase.id
            why_lines = wrap(why, width=width, indent="    ", first=f"  {view.sign} {view.word} ")
            lines += [paint(why_lines[0], view.tone, color=color), *why_lines[1:]]
    return lines


def _report_findings(report: ValidationReport, *, width: int, color: bool) -> list[str]:
    findings = by_severity(report.findings)
    lines = ["", paint("Findings", "bold", color=color)] if findings else []
    for finding in findings[:MAX_FINDINGS]:
        lines += finding_lines(finding, width=width, color=color)
    if len(findings) > MAX_FINDINGS:
        lines.append(f"  … {len(findings) - MAX_FINDINGS} more in the report")
    return lines


def by_severity(findings: Sequence[Finding]) -> list[Finding]:
    """Vetoes first, then warnings, then information."""
    order = tuple(_FINDING_STYLE)
    return sorted(findings, key=lambda finding: order.index(finding.severity))


def finding_lines(finding: Finding, *, width: int, color: bool) -> list[str]:
    """One finding: severity, code, place, confidence, what it says and the next step."""
    place = finding.run or finding.phase
    head = f"{finding.code}{f' ({place})' if place else ''}, {finding.confidence} confidence: {finding.message}"
    lines = _marked(finding.severity.upper(), _FINDING_STYLE[finding.severity], head, width=width, color=color)
    return lines + wrap(f"→ {finding.next_step}", width=width, indent="    ")
