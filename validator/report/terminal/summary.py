"""The last thing that a run prints: the decision, what stands against it, where the report is, what to type next."""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from validator.model.units import format_duration
from validator.model.verdict import Check, Finding, PhaseReport, ValidationReport, Verdict
from validator.report.build import decision_view
from validator.report.build_next import too_short
from validator.report.formats import format_interval, format_value, one_line, plural
from validator.report.parts import judged_items, status_view
from validator.report.terminal.lines import paint, stream_width, wrap
from validator.report.terminal.observer import wants_color

if TYPE_CHECKING:
    from validator.report.write import ReportPaths

__all__ = ["by_severity", "finding_lines", "next_command", "print_summary", "summary_lines"]

MAX_OPEN = 12
"""Criteria that are listed; the report has them all."""

MAX_FINDINGS = 8

_FINDING_STYLE = {"veto": "bad bold", "warning": "warn", "info": "info"}


def print_summary(report: ValidationReport, paths: ReportPaths, *, stream: TextIO | None = None) -> None:
    """Print the summary, on stdout unless told otherwise."""
    out = stream or sys.stdout
    lines = summary_lines(report, paths, width=stream_width(out), color=wants_color(out))
    text = "\n".join(lines) + "\n"
    encoding = getattr(out, "encoding", None) or "utf-8"
    out.write(text.encode(encoding, "backslashreplace").decode(encoding))
    out.flush()


def summary_lines(report: ValidationReport, paths: ReportPaths, *, width: int = 80, color: bool = False) -> list[str]:
    """The summary as lines of about `width` columns."""
    view = decision_view(report)
    lines = ["", paint(f"{view.word}  {one_line(report.runbook.name, limit=48)}", f"{view.tone} bold", color=color)]
    lines += wrap(view.why, width=width)
    lines.append(paint(_counts(report), "muted", color=color))
    lines += _open_items(report, width=width, color=color)
    lines += _findings(report, width=width, color=color)
    if report.recommended.env:
        settings = " ".join(f"{k}={shlex.quote(v)}" for k, v in report.recommended.env.items())
        lines += ["", *wrap(f"Recommended: {settings}", width=width, indent="  ", first="")]
    if report.since is not None:
        told = f"Since   {report.since.a.name}, the last GO that compares: {report.since.message}"
        lines += ["", *wrap(told, width=width, indent="  ", first="")]
    lines += ["", f"Report  {_path(paths.html)}", f"Next    {next_command(report, paths)}"]
    return lines


def _counts(report: ValidationReport) -> str:
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
    """What is not passed: required before optional, failed before undecided, each with its sentence."""
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
        lines += _item(phase, item, width=width, color=color)
    if len(items) > MAX_OPEN:
        lines.append(f"  … {len(items) - MAX_OPEN} more in the report")
    lines += _phases_not_run(report, width=width, color=color)
    return lines


def _item(phase: PhaseReport, item: Verdict | Check, *, width: int, color: bool) -> list[str]:
    view = status_view(item.status)
    optional = "" if phase.required and item.required else " (not required)"
    text = item.text if isinstance(item, Verdict) else item.title
    lines = wrap(f"{phase.id}: {text}{optional}", width=width, indent="    ", first=f"  {view.sign} {view.word} ")
    lines[0] = lines[0].replace(
        f"{view.sign} {view.word}", paint(f"{view.sign} {view.word}", view.tone, color=color), 1
    )
    if isinstance(item, Verdict) and item.observed is not None and not item.message:
        observed = f"observed {format_value(item.observed, item.unit)} {format_interval(item.ci_low, item.ci_high)}"
        lines += wrap(observed, width=width, indent="    ")
    lines += wrap(item.message, width=width, indent="    ")
    return lines


def _phases_not_run(report: ValidationReport, *, width: int, color: bool) -> list[str]:
    lines = []
    for phase in report.phases:
        if report.decision != "IN_PROGRESS" and not phase.ran and phase.status in ("NOT_RUN", "SKIPPED"):
            view = status_view(phase.status)
            why = f"{phase.id}: {phase.message}" if phase.message else phase.id
            told = wrap(why, width=width, indent="    ", first=f"  {view.sign} {view.word} ")
            lines += [paint(told[0], view.tone, color=color), *told[1:]]
    return lines


def _findings(report: ValidationReport, *, width: int, color: bool) -> list[str]:
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
    lines = wrap(head, width=width, indent="    ", first=f"  {finding.severity.upper()} ")
    word = finding.severity.upper()
    lines[0] = lines[0].replace(word, paint(word, _FINDING_STYLE[finding.severity], color=color), 1)
    return lines + wrap(f"→ {finding.next_step}", width=width, indent="    ")


def next_command(report: ValidationReport, paths: ReportPaths) -> str:
    """The one command that is worth typing now.

    Interrupted: go on. GO: use the settings, or read the report. Not GO: look into the run that stands in the way, or
    repeat its phase.
    """
    runbook = shlex.quote(one_line(report.runbook.path))
    if report.decision == "IN_PROGRESS":
        return f"validator report {_path(paths.result.parent)}"
    if report.exit_code == 130:
        return f"validator run --resume {_path(paths.result.parent)}"
    if report.decision == "GO":
        return f". {_path(paths.recommended_env)}" if report.recommended.env else f"less {_path(paths.markdown)}"
    culprit = _culprit(report)
    if culprit is None:
        return f"less {_path(paths.markdown)}"
    for run in culprit.runs:
        outcome = run.outcome or {}
        ended_well = outcome.get("reason") == "exited" and outcome.get("rc") == 0
        if outcome and not ended_well and run.log:
            return f"tail -n 50 {_path(paths.result.parent / run.log)}"
    if culprit.status == "FAIL" and culprit.runs and culprit.runs[0].out and culprit.runs[0].metrics:
        return f"validator inspect {_path(paths.result.parent / culprit.runs[0].out)}"
    return f"validator run {runbook} --only {shlex.quote(culprit.id)}{_longer(culprit)}"


def _longer(phase: PhaseReport) -> str:
    """A phase that is open for want of rows is asked for twice as many; the same once more would be open again."""
    steps = [run.scalars["steps.done"].value for run in phase.runs if "steps.done" in run.scalars]
    counted = any("steps.done" in criterion.text for criterion in phase.criteria)
    if too_short(phase) is None or counted or not steps or not isinstance(steps[-1], float):
        return ""
    return f" --set {shlex.quote(phase.id)}.steps={2 * round(steps[-1])}"


def _culprit(report: ValidationReport) -> PhaseReport | None:
    """The phase that most stands in the way: failed before undecided before not run, required only."""
    for status in ("FAIL", "INCONCLUSIVE", "SKIPPED", "NOT_RUN"):
        for phase in report.phases:
            if phase.required and phase.status == status:
                return phase
    vetoed = {finding.phase for finding in report.findings if finding.severity == "veto"}
    return next((phase for phase in report.phases if phase.id in vetoed), None)


def _path(path: Path) -> str:
    """A path as it can be pasted: relative to where we are when it lies below."""
    with contextlib.suppress(ValueError):
        path = path.absolute().relative_to(Path.cwd())
    text = one_line(path)
    return shlex.quote(text if not text.startswith("-") else f"./{text}")
