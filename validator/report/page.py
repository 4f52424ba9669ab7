"""The report as people read it: every number already formatted, every text of the trainer already harmless.

HTML and Markdown are drawn from this one value, so that they cannot say different things. Templates only lay out.
Named tuples, because twenty of them are made in a fifth of the time of as many data classes, at every start.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple
from urllib.parse import quote

from validator.model.expression import open_reference
from validator.text import clean, format_value, one_line

if TYPE_CHECKING:
    from validator.model.verdict import Check, Evidence, PhaseReport, Status, ValidationReport, Verdict


class StatusView(NamedTuple):
    """A status as word, sign and tone; the sign and the word alone are enough without color."""

    word: str
    sign: str
    tone: str


class LabeledValue(NamedTuple):
    """A name and its value. `href` leads to the artifact where there is one."""

    name: str
    value: str
    href: str | None = None


class ValueGroup(NamedTuple):
    """Facts under a heading."""

    title: str
    facts: tuple[LabeledValue, ...]


class EvidenceView(NamedTuple):
    """Where a claim can be checked."""

    label: str
    href: str | None
    text: str


class CriterionRow(NamedTuple):
    """One criterion, or one check of the machine. `formal` marks an expression of the runbook; others are sentences."""

    id: str
    text: str
    formal: bool
    required: bool
    status: StatusView
    observed: str
    interval: str
    bound: str
    margin: str
    message: str
    evidence: tuple[EvidenceView, ...]


class FindingView(NamedTuple):
    """One finding."""

    code: str
    severity: str
    status: StatusView
    confidence: str
    place: str
    anchor: str | None
    message: str
    next_step: str
    evidence: tuple[EvidenceView, ...]


class RecommendedView(NamedTuple):
    """Settings to copy. `exports` is shell text, empty when nothing was chosen."""

    exports: str
    command: str
    because: tuple[str, ...]


class Table(NamedTuple):
    """A plain table. Columns in `numeric` are right-aligned."""

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numeric: frozenset[str] = frozenset()
    note: str = ""
    links: tuple[LabeledValue, ...] = ()
    """For each row, where its last cell leads (`href`) and a remark behind it (`name`)."""


class ConfigRow(NamedTuple):
    """One setting, requested and effective; `verdict` is yes, differs, or why they are not compared."""

    key: str
    requested: str
    effective: str
    verdict: str

    @property
    def differs(self) -> bool:
        """Whether the effective value differs from the requested one."""
        return self.verdict == "differs"


class ConfigTable(NamedTuple):
    """Requested and effective config. `note` says what is not known."""

    rows: tuple[ConfigRow, ...]
    differing: int
    note: str


class RunView(NamedTuple):
    """One run in full; `detailed` is false where only its line in the table of runs is shown."""

    id: str
    anchor: str
    title: str
    repeat: int
    tone: str
    detail: str
    command: str
    config: ConfigTable
    metrics: Table
    scalars: tuple[LabeledValue, ...]
    attempts: Table | None
    irregularities: tuple[str, ...]
    links: tuple[LabeledValue, ...]
    folder: str | None
    tables: tuple[Table, ...] = ()
    detailed: bool = True


class PhaseView(NamedTuple):
    """One phase. `rows` are its lines of the criteria table, `note` sums up the checks that are not listed there.

    `summary` has a row for each of `runs`.
    """

    id: str
    anchor: str
    number: int
    title: str
    kind: str
    why: str
    required: bool
    status: StatusView
    message: str
    facts: tuple[LabeledValue, ...]
    rows: tuple[CriterionRow, ...]
    note: str
    checks: tuple[CriterionRow, ...]
    comparison: Table | None
    comparison_message: str
    summary: Table
    runs: tuple[RunView, ...]
    has_rates: bool
    remedies: Table | None = None


class SinceView(NamedTuple):
    """What changed since the last GO of the same runbook on the same class of machine."""

    status: StatusView
    earlier: str
    started: str
    message: str
    caveats: tuple[str, ...]
    tables: tuple[Table, ...]


class ProgressView(NamedTuple):
    """A validation in progress: what is running, what is pending (name and anchor), and the remaining time."""

    running: tuple[tuple[str, str], ...]
    pending: tuple[tuple[str, str], ...]
    remaining: str


class ArtifactRow(NamedTuple):
    """One file of the run folder."""

    path: str
    href: str | None
    size: str
    bytes: str
    sha256: str


class Page(NamedTuple):
    """The whole report."""

    title: str
    description: str
    decision: StatusView
    meaning: str
    why: str
    facts: tuple[LabeledValue, ...]
    counts: tuple[tuple[StatusView, int], ...]
    findings: tuple[FindingView, ...]
    recommended: RecommendedView
    phases: tuple[PhaseView, ...]
    environment: tuple[ValueGroup, ...]
    artifacts: tuple[ArtifactRow, ...]
    artifacts_note: str
    version: str
    run_id: str
    timeline: Table | None = None
    since: SinceView | None = None
    progress: ProgressView | None = None
    next_step: LabeledValue | None = None


# Small pieces shared by all parts of the page: statuses, links, evidence, nested facts.

MAX_DEPTH = 8

_STATUS: dict[str, StatusView] = {
    "PASS": StatusView("PASS", "✓", "good"),
    "FAIL": StatusView("FAIL", "✕", "bad"),
    "INCONCLUSIVE": StatusView("INCONCLUSIVE", "?", "warn"),
    "SKIPPED": StatusView("SKIPPED", "–", "muted"),
    "NOT_RUN": StatusView("NOT RUN", "○", "muted"),
    "RUNNING": StatusView("RUNNING", "…", "info"),
}


PENDING = StatusView("PENDING", "○", "muted")


def status_view(status: Status, *, pending: bool = False) -> StatusView:
    """How a status is shown. A phase of a validation in progress that has not run yet is pending."""
    return PENDING if pending and status == "NOT_RUN" else _STATUS[status]


_DECISION: dict[str, StatusView] = {
    "GO": StatusView("GO", "✓", "good"),
    "NO_GO": StatusView("NO-GO", "✕", "bad"),
    "INCONCLUSIVE": StatusView("INCONCLUSIVE", "?", "warn"),
    "IN_PROGRESS": StatusView("IN PROGRESS", "…", "info"),
}


def decision_status(decision: str) -> StatusView:
    """How a decision is shown in a list of runs."""
    return _DECISION.get(decision, StatusView(one_line(decision), "?", "muted"))


def pending_phases(report: ValidationReport) -> frozenset[str]:
    """Ids of the phases that are still to come: those at the end that have not run, while it is in progress."""
    found = set()
    if report.decision == "IN_PROGRESS":
        for phase in reversed(report.phases):
            if phase.status != "NOT_RUN":
                break
            found.add(phase.id)
    return frozenset(found)


def judged_items(phase: PhaseReport) -> tuple[Verdict | Check, ...]:
    """A phase's criteria and checks, in this order."""
    items: list[Verdict | Check] = [*phase.criteria, *phase.checks]
    return tuple(items)


def anchor(*names: str) -> str:
    """An id for a heading: letters, digits, `-` and `.` only, so that it can be a link's target anywhere."""
    return "-".join(re.sub(r"[^A-Za-z0-9.]+", "-", name).strip("-") or "x" for name in names)


def link(path: str | None) -> str | None:
    """A relative link to a file of the run folder; None for anything that could lead out of it."""
    if not path or path.startswith(("/", "~", "\\")) or ".." in path.split("/") or ":" in path.split("/")[0]:
        return None
    return quote(path, safe="/-_.~=+,@", errors="replace")


def evidence_views(evidence: tuple[Evidence, ...]) -> tuple[EvidenceView, ...]:
    """Each piece of evidence with its link, once."""
    views = (
        EvidenceView(
            label=one_line(", ".join(part for part in (item.path, item.where) if part), limit=300),
            href=link(item.path),
            text=clean(item.text),
        )
        for item in evidence
    )
    return tuple(dict.fromkeys(views))


def flatten(value: Any, prefix: str = "", *, depth: int = 0) -> Iterator[tuple[str, Any]]:
    """A nested mapping as dotted keys, in order; lists of mappings are numbered, other lists kept whole."""
    if isinstance(value, dict) and value and depth < MAX_DEPTH:
        for key, item in value.items():
            yield from flatten(item, f"{prefix}.{key}" if prefix else str(key), depth=depth + 1)
    elif isinstance(value, list) and any(isinstance(item, dict) for item in value) and depth < MAX_DEPTH:
        for index, item in enumerate(value):
            yield from flatten(item, f"{prefix}[{index}]", depth=depth + 1)
    else:
        yield prefix, value


def facts_of(value: Any, *, limit: int = 400) -> tuple[LabeledValue, ...]:
    """A nested mapping as facts, at most `limit` of them."""
    facts = [LabeledValue(one_line(name, limit=120), clean(format_value(item))) for name, item in flatten(value)]
    if len(facts) > limit:
        return (*facts[:limit], LabeledValue("…", f"{len(facts) - limit:,} more in environment.json"))
    return tuple(facts)


# What to do next, for the banner of the page.


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


def waits_for_bounds(phase: PhaseReport) -> bool:
    """Whether a phase lacks nothing but bounds that are still to be filled in."""
    unmet = [item for item in phase.criteria if item.required and item.status != "PASS"]
    measured = all(item.observed is not None for item in unmet)
    return bool(unmet) and measured and all(open_reference(item.text) is not None for item in unmet)


def _phase_step(phase: PhaseReport) -> LabeledValue:
    """What to do where no finding has a next step."""
    status = "OPEN" if waits_for_bounds(phase) else phase.status
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
