"""JUnit XML for CI servers: phases as suites, criteria and checks as cases.

CI must never show green for anything but GO. So a required criterion that is not decided is an `error`, and the suite
`decision` has one case that passes on GO alone. What is not required can only be `skipped`, never a failure.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal
from xml.etree import ElementTree as ET

from validator.model.verdict import Check, Evidence, Finding, PhaseReport, Status, ValidationReport, Verdict
from validator.report.formats import clean, format_interval, format_value, one_line

__all__ = ["render_junit"]

Kind = Literal["passed", "failure", "error", "skipped"]


@dataclass(frozen=True)
class _Case:
    name: str
    kind: Kind
    message: str = ""
    detail: str = ""
    time_s: float | None = None


def render_junit(report: ValidationReport) -> str:
    """The whole document, with an XML declaration. Only characters that XML 1.0 allows are written."""
    root = ET.Element("testsuites", name=one_line(f"validator {report.runbook.name}"))
    suites = [("decision", [_decision(report)], report.duration_s)]
    suites += [(phase.id, list(_cases(phase)), phase.duration_s) for phase in report.phases]
    if report.findings:
        suites.append(("findings", [_finding(finding) for finding in report.findings], None))
    totals = {"tests": 0, "failures": 0, "errors": 0, "skipped": 0}
    for name, cases, duration_s in suites:
        counts = _suite(root, name, cases, duration_s, report.started)
        for key, count in counts.items():
            totals[key] += count
    for key, count in totals.items():
        root.set(key, str(count))
    if report.duration_s is not None:
        root.set("time", f"{report.duration_s:.3f}")
    ET.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _suite(root: ET.Element, name: str, cases: list[_Case], duration_s: float | None, started: str) -> dict[str, int]:
    counts = {
        "tests": len(cases),
        "failures": sum(case.kind == "failure" for case in cases),
        "errors": sum(case.kind == "error" for case in cases),
        "skipped": sum(case.kind == "skipped" for case in cases),
    }
    attributes = {"name": one_line(name), "timestamp": one_line(started[:19])}
    suite = ET.SubElement(root, "testsuite", attributes | {key: str(value) for key, value in counts.items()})
    if duration_s is not None:
        suite.set("time", f"{duration_s:.3f}")
    for case in cases:
        element = ET.SubElement(suite, "testcase", classname=f"validator.{one_line(name)}", name=one_line(case.name))
        if case.time_s is not None:
            element.set("time", f"{case.time_s:.3f}")
        if case.kind != "passed":
            child = ET.SubElement(element, case.kind, message=one_line(case.message, limit=500))
            child.text = clean(case.detail) or None
    return counts


def _decision(report: ValidationReport) -> _Case:
    kinds: dict[str, Kind] = {"GO": "passed", "NO_GO": "failure"}
    word = report.decision.replace("_", "-")
    return _Case("decision is GO", kinds.get(report.decision, "error"), f"{word}: {report.why}", report.why)


def _cases(phase: PhaseReport) -> Iterator[_Case]:
    yield _Case(
        "phase", _kind(phase.status, required=phase.required), f"{phase.status}: {phase.message}", phase.message,
        phase.duration_s,
    )  # fmt: skip
    for verdict in phase.criteria:
        kind = _kind(verdict.status, required=verdict.required and phase.required)
        yield _Case(f"{verdict.id}: {verdict.text}", kind, f"{verdict.status}: {verdict.message}", _told(verdict))
    for check in phase.checks:
        kind = _kind(check.status, required=check.required and phase.required)
        yield _Case(f"{check.id}: {check.title}", kind, f"{check.status}: {check.message}", _checked(check))


def _kind(status: Status, *, required: bool) -> Kind:
    """Required and not passed is never green: FAIL is a failure, all else an error. Optional is skipped at worst."""
    if status == "PASS":
        return "passed"
    if not required:
        return "skipped"
    return "failure" if status == "FAIL" else "error"


def _told(verdict: Verdict) -> str:
    lines = [verdict.message, f"observed: {format_value(verdict.observed, verdict.unit)}"]
    if interval := format_interval(verdict.ci_low, verdict.ci_high):
        lines.append(f"95 % interval: {interval}")
    if verdict.bound is not None:
        lines.append(f"bound: {format_value(verdict.bound, verdict.unit)}")
    return "\n".join([*lines, *_evidence(verdict.evidence)])


def _checked(check: Check) -> str:
    lines = [check.message, f"observed: {check.observed}", f"expected: {check.expected or '–'}"]
    return "\n".join([*lines, *_evidence(check.evidence)])


def _finding(finding: Finding) -> _Case:
    kind: Kind = "failure" if finding.severity == "veto" else "passed"
    place = f" ({finding.phase})" if finding.phase else ""
    detail = [finding.message, f"next step: {finding.next_step}", *_evidence(finding.evidence)]
    return _Case(f"{finding.code}{place}", kind, finding.message, "\n".join(detail))


def _evidence(evidence: tuple[Evidence, ...]) -> list[str]:
    return [f"evidence: {' '.join(part for part in (e.path, e.where, e.text) if part)}" for e in evidence]
