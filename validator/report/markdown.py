"""The report as Markdown for a pull request: GitHub's tables, long parts folded away, foreign text inert.

Foreign text is escaped for Markdown and for HTML, and cannot notify anybody, link anywhere or leave its table cell.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from validator.model.verdict import ValidationReport
from validator.report.build import build_page
from validator.report.page import (
    CheckRow,
    CriterionGroup,
    CriterionRow,
    EvidenceView,
    FactGroup,
    FindingView,
    Page,
    PhaseView,
    RunView,
    StatusView,
    Table,
)

__all__ = ["escape", "render_markdown"]

_SPECIAL = re.compile(r"[\\`*_\[\]!|~]")
_BLOCK_START = re.compile(r"^([-+](?=\s|$)|\d{1,9}[.)](?=\s|$)|[-=]{2,}(?=\s*$))")
_ACTIVE = re.compile(r"(?i)([@#$])|((?:https?|ftp|mailto|xmpp):|www\.)")
_MOST_ATTEMPTS = 60
_MOST_DIFFERENCES = 25
MAX_LENGTH = 60_000
"""GitHub refuses comments above 65,536 characters; details are dropped from the end until the text fits."""


def render_markdown(report: ValidationReport) -> str:
    """The whole report. When it would be too long for a pull request, phases' details give way, never the verdicts."""
    page = build_page(report)
    head = "\n".join(_head(page))
    tail = "\n".join(_tail(page))
    room = MAX_LENGTH - len(head) - len(tail)
    phases, left_out = [], 0
    for phase in page.phases:
        text = "\n".join(_phase(phase))
        if len(text) > room:
            left_out += 1
            continue
        room -= len(text)
        phases.append(text)
    note = (
        f"\n_Details of {left_out} phases are in report.html only: they would be too long here._\n" if left_out else ""
    )
    return "\n".join(["\n".join([head, "", "## Phases", "", *phases]).rstrip(), note, tail]).rstrip() + "\n"


def escape(text: str) -> str:
    """Foreign text as plain Markdown text on one line, fit for a table cell.

    GitHub turns `@name`, `#1` and addresses into links after Markdown is done, so an empty element keeps them apart.
    """
    flat = text.strip().replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    flat = _BLOCK_START.sub(lambda m: m[1][:-1] + "\\" + m[1][-1], _SPECIAL.sub(lambda m: "\\" + m[0], flat))
    flat = _ACTIVE.sub(lambda m: m[1] + "<span></span>" if m[1] else m[2][:-1] + "<span></span>" + m[2][-1], flat)
    return re.sub(r"[ \t]*\n\s*", "<br>", flat)


def code(text: str) -> str:
    """Foreign text as inline code, fit for a table cell. Backticks and pipes cannot end it."""
    flat = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("\n", "<br>")
    flat = re.sub(r"([\\`*_{}\[\]()#+!|~$@:^=-])", lambda m: f"&#{ord(m[1])};", flat)
    return f"<code>{flat}</code>" if flat else ""


def fenced(text: str, language: str = "sh") -> list[str]:
    """Foreign text as a block of code, with a fence longer than any in it."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return [f"{fence}{language}", text, fence]


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, numeric: Iterable[str] = ()) -> list[str]:
    """A table of cells that are Markdown already."""
    right = set(numeric)
    rule = ["---:" if name in right else "---" for name in columns]
    return [_line(columns), _line(rule), *(_line(row) for row in rows), ""]


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _status(view: StatusView) -> str:
    return f"{view.sign} **{view.word}**"


def _head(page: Page) -> Iterator[str]:
    decision = page.decision
    yield f"# {_icon(decision.tone)} {decision.word}: {escape(page.title)}"
    yield ""
    yield f"**{escape(decision.why)}**"
    yield ""
    yield decision.meaning
    if page.next_step:
        yield ""
        yield f"**Next step:** {escape(page.next_step.value)} ({escape(page.next_step.name)})"
    yield ""
    yield from _progress(page)
    if page.description:
        yield escape(page.description)
        yield ""
    yield from table(("", ""), ([escape(fact.name), escape(fact.value)] for fact in page.facts))
    yield "Required criteria: " + (", ".join(f"{n} {view.word}" for view, n in page.counts) or "none") + "."
    yield ""
    yield "## Criteria"
    yield ""
    for group in page.groups:
        yield from _group(group)
    if page.findings:
        yield "## Findings"
        yield ""
        for finding in page.findings:
            yield from _finding(finding)
    yield from _recommended(page)
    yield from _timeline(page)


def _icon(tone: str) -> str:
    return {"good": "✅", "bad": "⛔", "warn": "⚠️", "info": "⏳"}[tone]


def _group(group: CriterionGroup) -> Iterator[str]:
    optional = "" if group.required else " (not required)"
    yield f"**{escape(group.title)}** {_status(group.status)}{optional}" + (
        f" {escape(group.message)}" if group.message else ""
    )
    yield ""
    if group.rows:
        columns = ("Status", "Criterion", "Required", "Observed", "95 % interval", "Bound", "Margin", "Why, evidence")
        rows = (_criterion(row) for row in group.rows)
        yield from table(columns, rows, numeric=("Observed", "95 % interval", "Bound", "Margin"))
    if group.note:
        yield f"{group.note}"
        yield ""


def _criterion(row: CriterionRow) -> list[str]:
    why = [escape(row.message)] if row.message else []
    why += [_evidence(item) for item in row.evidence]
    return [
        _status(row.status),
        code(row.text) if row.formal else escape(row.text),
        "yes" if row.required else "no",
        escape(row.observed),
        escape(row.interval),
        escape(row.bound),
        escape(row.margin),
        "<br>".join(why),
    ]


def _evidence(item: EvidenceView) -> str:
    label = f"{code(item.label)} " if item.label else ""
    return label + escape(item.text)


def _finding(finding: FindingView) -> Iterator[str]:
    yield (
        f"- {_status(finding.status)} {code(finding.code)} ({escape(finding.place)}, "
        f"{finding.confidence} confidence): {escape(finding.message)}"
    )
    for item in finding.evidence:
        yield f"  - Evidence: {_evidence(item)}"
    yield f"  - Next step: {escape(finding.next_step)}"
    yield ""


def _recommended(page: Page) -> Iterator[str]:
    recommended = page.recommended
    yield "## Recommended settings"
    yield ""
    for reason in recommended.because:
        yield f"- {escape(reason)}"
    if recommended.because:
        yield ""
    if recommended.exports:
        yield from fenced(recommended.exports)
        yield ""
    else:
        yield "No setting was chosen over another in this run."
        yield ""
    if recommended.command:
        yield from fenced(recommended.command)
        yield ""


def _phase(phase: PhaseView) -> Iterator[str]:
    facts = ", ".join(f"{escape(fact.name)}: {escape(fact.value)}" for fact in phase.facts)
    yield (
        f"<details><summary>{phase.number}. <b>{escape(phase.title)}</b> "
        f"{phase.status.sign} {phase.status.word}</summary>"
    )
    yield ""
    if phase.why:
        yield escape(phase.why)
        yield ""
    yield facts
    yield ""
    if phase.checks:
        rows = (_check(row) for row in phase.checks)
        yield from table(("Status", "Check", "Observed", "Expected", "Message"), rows)
    if phase.comparison:
        yield f"**{escape(phase.comparison_message)}**"
        yield ""
        yield from _plain_table(phase.comparison)
    if phase.remedies:
        yield from _plain_table(phase.remedies)
    yield from _runs(phase)
    yield "</details>"
    yield ""


def _check(row: CheckRow) -> list[str]:
    return [_status(row.status), escape(row.title), escape(row.observed), escape(row.expected), escape(row.message)]


def _plain_table(value: Table) -> Iterator[str]:
    yield escape(value.caption)
    yield ""
    rows = ([escape(cell) for cell in row] for row in value.rows)
    yield from table([escape(name) for name in value.columns], rows, numeric=[escape(name) for name in value.numeric])
    if value.note:
        yield escape(value.note)
        yield ""


def _runs(phase: PhaseView) -> Iterator[str]:
    if not phase.runs:
        return
    rated = phase.has_rates
    columns = ["Run", "Arm", "Outcome", "Duration"]
    columns += ["Steps", "Rate (tok/s)", "95 % interval", "Step time (s)"] if rated else []
    rows = []
    for run in phase.runs:
        summary = run.summary
        row = [code(summary.id), escape(summary.arm), escape(summary.outcome), summary.duration]
        row += [summary.steps, summary.rate, escape(summary.rate_interval), summary.step_time] if rated else []
        rows.append(row)
    yield from table(columns, rows, numeric=columns[3:])
    for run in phase.runs:
        yield from _run(run)


def _run(run: RunView) -> Iterator[str]:
    if run.detail and run.summary.tone != "good":
        yield f"- {code(run.id)}: {escape(run.detail)}"
    for text in run.irregularities:
        yield f"- {code(run.id)}: {escape(text)}"
    if run.detail or run.irregularities:
        yield ""
    if run.config.differing:
        rows = [[code(row.key), code(row.requested), code(row.effective)] for row in run.config.rows if row.differs]
        yield f"{code(run.id)} ran with other settings than requested:"
        yield ""
        yield from table(("Setting", "Requested", "Effective"), rows)
    if run.metrics:
        columns = ("Metric", "Unit", "Mean", "Stdev", "95 % interval", "p50", "p95", "First", "Last", "n", "Window")
        metrics = (
            [
                code(m.name),
                escape(m.unit),
                m.mean,
                m.stdev,
                escape(m.interval),
                m.p50,
                m.p95,
                m.first,
                m.last,
                m.n,
                m.window,
            ]
            for m in run.metrics
        )
        yield f"{code(run.id)}:"
        yield ""
        yield from table(columns, metrics, numeric=columns[2:])
    if run.scalars:
        yield ", ".join(f"{code(fact.name)}: {escape(fact.value)}" for fact in run.scalars)
        yield ""
    for told in run.tables:
        yield from _plain_table(told)
    if run.command:
        yield from fenced(run.command)
        yield ""


def _progress(page: Page) -> Iterator[str]:
    """What runs, what is to come, and how long that will take."""
    if page.progress is None:
        return
    for name, items in (("Running", page.progress.running), ("Pending", page.progress.pending)):
        if items:
            yield f"- {name}: {', '.join(escape(title) for title, _ in items)}"
    yield f"- {page.progress.remaining}"
    yield ""


def _timeline(page: Page) -> Iterator[str]:
    if page.timeline is None:
        return
    shown = page.timeline._replace(rows=page.timeline.rows[:_MOST_ATTEMPTS])
    yield f"<details><summary>Timeline: {len(page.timeline.rows)} attempts at runs</summary>"
    yield ""
    yield from _plain_table(shown)
    if len(page.timeline.rows) > len(shown.rows):
        yield f"{len(page.timeline.rows) - len(shown.rows)} more in report.html."
        yield ""
    yield "</details>"
    yield ""


def _since(page: Page) -> Iterator[str]:
    """What changed since the last GO; the tables are folded away."""
    if page.since is None:
        return
    yield "## What changed since the last GO"
    yield ""
    yield f"{_status(page.since.status)} {escape(page.since.message)}"
    yield ""
    for caveat in page.since.caveats:
        yield f"- {escape(caveat)}"
    if page.since.caveats:
        yield ""
    yield f"<details><summary>Compared with {escape(page.since.earlier)}</summary>"
    yield ""
    for one in page.since.tables:
        left = len(one.rows) - _MOST_DIFFERENCES
        note = f"{left} more in report.html. {one.note}".rstrip() if left > 0 else one.note
        yield from _plain_table(one._replace(rows=one.rows[:_MOST_DIFFERENCES], note=note))
    yield "</details>"
    yield ""


def _tail(page: Page) -> Iterator[str]:
    yield from _since(page)
    if page.environment:
        yield "## Environment"
        yield ""
        yield "<details><summary>Machine, software, settings</summary>"
        yield ""
        for group in page.environment:
            yield from _facts(group)
        yield "</details>"
        yield ""
    if page.artifacts:
        yield "## Artifacts"
        yield ""
        yield f"<details><summary>{len(page.artifacts)} files</summary>"
        yield ""
        shown = page.artifacts[:60]
        rows = ([code(item.path), item.size, code(item.sha256[:16])] for item in shown)
        yield from table(("File", "Size", "sha256 (first 16)"), rows, numeric=("Size",))
        if len(page.artifacts) > len(shown):
            yield f"{len(page.artifacts) - len(shown)} more in result.json."
            yield ""
        yield "</details>"
        yield ""
    origin = f"validator {escape(page.version)}, run {escape(page.run_id)}"
    yield f"<sub>{origin}. result.json holds every number in full.</sub>"


def _facts(group: FactGroup) -> Iterator[str]:
    yield f"**{escape(group.title)}**"
    yield ""
    rows = ([escape(fact.name), escape(fact.value)] for fact in group.facts[:60])
    yield from table(("", ""), rows)
