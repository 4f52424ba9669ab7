"""JUnit XML for CI servers: phases as suites, criteria and checks as cases.

CI must never show green for anything but GO. So a required criterion that is inconclusive is an `error`, and the suite
`decision` has one case that passes on GO alone. What is not required can only be `skipped`, never a failure.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from xml.etree import ElementTree as ET

from validator.model.verdict import Check, Evidence, Finding, PhaseReport, Status, ValidationReport, Verdict
from validator.text import clean, format_interval, format_value, one_line

Kind = Literal["passed", "failure", "error", "skipped"]


@dataclass(frozen=True)
class _TestCase:
    name: str
    kind: Kind
    message: str = ""
    detail: str = ""
    time_s: float | None = None


def render_junit(report: ValidationReport) -> str:
    """The whole document, with an XML declaration. Only characters that XML 1.0 allows are written."""
    root = ET.Element("testsuites", name=one_line(f"validator {report.runbook.name}"))
    suites = [("decision", [_decision_case(report)], report.duration_s)]
    suites += [(phase.id, list(_phase_cases(phase)), phase.duration_s) for phase in report.phases]
    if report.findings:
        suites.append(("findings", [_finding_case(finding) for finding in report.findings], None))
    for name, cases, duration_s in suites:
        _add_suite(root, name, cases, duration_s, report.started)
    for key, count in _counts([case for _, cases, _ in suites for case in cases]).items():
        root.set(key, count)
    if report.duration_s is not None:
        root.set("time", f"{report.duration_s:.3f}")
    ET.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _counts(cases: list[_TestCase]) -> dict[str, str]:
    kinds = Counter(case.kind for case in cases)
    found = {"failures": kinds["failure"], "errors": kinds["error"], "skipped": kinds["skipped"]}
    return {"tests": str(len(cases)), **{key: str(count) for key, count in found.items()}}


def _add_suite(root: ET.Element, name: str, cases: list[_TestCase], duration_s: float | None, started: str) -> None:
    attributes = {"name": one_line(name), "timestamp": one_line(started[:19])}
    suite = ET.SubElement(root, "testsuite", attributes | _counts(cases))
    if duration_s is not None:
        suite.set("time", f"{duration_s:.3f}")
    for case in cases:
        element = ET.SubElement(suite, "testcase", classname=f"validator.{one_line(name)}", name=one_line(case.name))
        if case.time_s is not None:
            element.set("time", f"{case.time_s:.3f}")
        if case.kind != "passed":
            child = ET.SubElement(element, case.kind, message=one_line(case.message, limit=500))
            child.text = clean(case.detail) or None


def _decision_case(report: ValidationReport) -> _TestCase:
    kinds: dict[str, Kind] = {"GO": "passed", "NO_GO": "failure"}
    word = report.decision.replace("_", "-")
    return _TestCase("decision is GO", kinds.get(report.decision, "error"), f"{word}: {report.why}", report.why)


def _phase_cases(phase: PhaseReport) -> Iterator[_TestCase]:
    yield _TestCase(
        "phase", _case_kind(phase.status, required=phase.required), f"{phase.status}: {phase.message}", phase.message,
        phase.duration_s,
    )  # fmt: skip
    for verdict in phase.criteria:
        kind = _case_kind(verdict.status, required=verdict.required and phase.required)
        yield _TestCase(
            f"{verdict.id}: {verdict.text}", kind, f"{verdict.status}: {verdict.message}", _verdict_detail(verdict)
        )
    for check in phase.checks:
        kind = _case_kind(check.status, required=check.required and phase.required)
        yield _TestCase(f"{check.id}: {check.title}", kind, f"{check.status}: {check.message}", _check_detail(check))


def _case_kind(status: Status, *, required: bool) -> Kind:
    """Required and not passed is never green: FAIL is a failure, all else an error. Optional is skipped at worst."""
    if status == "PASS":
        return "passed"
    if not required:
        return "skipped"
    return "failure" if status == "FAIL" else "error"


def _verdict_detail(verdict: Verdict) -> str:
    lines = [verdict.message, f"observed: {format_value(verdict.observed, verdict.unit)}"]
    if interval := format_interval(verdict.ci_low, verdict.ci_high):
        lines.append(f"95 % interval: {interval}")
    if verdict.bound is not None:
        lines.append(f"bound: {format_value(verdict.bound, verdict.unit)}")
    return "\n".join([*lines, *_evidence_lines(verdict.evidence)])


def _check_detail(check: Check) -> str:
    lines = [check.message, f"observed: {check.observed}", f"expected: {check.expected or '–'}"]
    return "\n".join([*lines, *_evidence_lines(check.evidence)])


def _finding_case(finding: Finding) -> _TestCase:
    kind: Kind = "failure" if finding.severity == "veto" else "passed"
    place = f" ({finding.phase})" if finding.phase else ""
    detail = [finding.message, f"next step: {finding.next_step}", *_evidence_lines(finding.evidence)]
    return _TestCase(f"{finding.code}{place}", kind, finding.message, "\n".join(detail))


def _evidence_lines(evidence: tuple[Evidence, ...]) -> list[str]:
    return [f"evidence: {' '.join(part for part in (e.path, e.where, e.text) if part)}" for e in evidence]


# `recommended.env`: the settings that the validation chose, to be sourced by a shell.

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def export_lines(env: dict[str, str]) -> tuple[str, ...]:
    """`export NAME=value` for each setting, quoted for a POSIX shell, in the order given.

    A name that no shell accepts is left out: it could only come from a damaged result.json.
    """
    return tuple(
        f"export {name}={shlex.quote(value.replace(chr(0), ''))}"
        for name, value in env.items()
        if _NAME.fullmatch(name)
    )


def render_recommended_env(report: ValidationReport) -> str:
    """The file's text: what it comes from, why each setting was chosen, and the exports."""
    recommended = report.recommended
    comments = [
        f"Recommended settings of validation {report.run_id}, runbook {report.runbook.name}.",
        f"Decision: {report.decision.replace('_', '-')}. {report.why}",
        "Use it with: . ./recommended.env",
        *recommended.because,
    ]
    if recommended.command:
        comments.append(f"Command: {recommended.command}")
    if not recommended.env:
        comments.append("No setting was chosen over another in this run.")
    lines = [f"# {one_line(comment)}" for comment in comments]
    return "\n".join([*lines, *export_lines(recommended.env)]) + "\n"


# The Markdown on the page of a GitHub Actions job: appended to the file that the job names for its step's summary.

VARIABLE = "GITHUB_STEP_SUMMARY"
"""Names the file; unset outside of a job."""

LIMIT_BYTES = 2**20
"""What one step may write, everything in the file together."""

_CUT = "_The rest is left out: a step's summary may hold 1 MiB. report.html in the run folder has all of it._\n"


def append_step_summary(markdown: str, environment: Mapping[str, str], *, limit: int = LIMIT_BYTES) -> Path | None:
    """Append a report to the step's summary, as much of it as there is room for.

    Returns the file; None where there is no summary to write, or no room in it.

    Raises:
        OSError: when the file cannot be written.
    """
    named = environment.get(VARIABLE)
    if not named:
        return None
    path = Path(named)
    before = path.read_bytes() if path.is_file() else b""
    gap = "" if not before else "\n" if before.endswith(b"\n") else "\n\n"
    text = cut(markdown, limit - len(before) - len(gap))
    if not text:
        return None
    with path.open("a", encoding="utf-8", errors="backslashreplace") as file:
        file.write(gap + text)
    return path


def cut(markdown: str, limit: int) -> str:
    """At most `limit` bytes of a report: whole paragraphs, folded parts closed, and a sentence that says so.

    Empty when not even the first paragraph has room.
    """
    if len(markdown.encode(errors="backslashreplace")) <= limit:
        return markdown
    kept, room, folded, closed_at = [], limit - len(_CUT.encode()), 0, 0
    for block in _paragraphs(markdown):
        room -= len(block.encode(errors="backslashreplace"))
        folded += block.count("<details>") - block.count("</details>")
        if room < folded * len("</details>\n\n"):
            break
        kept.append(block)
        closed_at = folded
    if not kept:
        return ""
    return "".join(kept).rstrip("\n") + "\n\n" + "</details>\n\n" * closed_at + _CUT


def _paragraphs(markdown: str) -> list[str]:
    """The text in pieces that can be parted: paragraphs, tables, blocks of code, each with its blank line."""
    pieces, open_fence = [""], ""
    for line in markdown.splitlines(keepends=True):
        pieces[-1] += line
        fence = re.match(r"`{3,}", line)
        if fence and not open_fence:
            open_fence = fence[0]
        elif open_fence and line.strip() == open_fence:
            open_fence = ""
        if not open_fence and not line.strip():
            pieces.append("")
    return [piece for piece in pieces if piece]
