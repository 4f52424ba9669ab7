"""The report as people read it: every number already formatted, every foreign text already harmless.

HTML and Markdown are drawn from this one value, so that they cannot say different things. Templates only lay out.
Named tuples, because twenty of them are made in a fifth of the time of as many data classes, at every start.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = [
    "ArtifactRow",
    "CheckRow",
    "ConfigRow",
    "ConfigTable",
    "CriterionGroup",
    "CriterionRow",
    "DecisionView",
    "EvidenceView",
    "Fact",
    "FactGroup",
    "FindingView",
    "MetricRow",
    "Page",
    "PhaseView",
    "ProgressView",
    "RecommendedView",
    "RunSummaryRow",
    "RunView",
    "SinceView",
    "StatusView",
    "Table",
]


class StatusView(NamedTuple):
    """A status as word, sign and tone; the sign and the word alone are enough without color."""

    word: str
    sign: str
    tone: str


class DecisionView(NamedTuple):
    """The banner."""

    code: str
    word: str
    tone: str
    meaning: str
    why: str


class Fact(NamedTuple):
    """A name and its value. `href` leads to the artifact where there is one."""

    name: str
    value: str
    href: str | None = None


class FactGroup(NamedTuple):
    """Facts under a heading."""

    title: str
    facts: tuple[Fact, ...]


class EvidenceView(NamedTuple):
    """Where a claim can be checked."""

    label: str
    href: str | None
    text: str


class CriterionRow(NamedTuple):
    """One line of the criteria table. `formal` tells an expression of the runbook from a sentence."""

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


class CriterionGroup(NamedTuple):
    """A phase's lines of the criteria table. `note` sums up what is not listed line by line."""

    phase: str
    title: str
    anchor: str
    status: StatusView
    required: bool
    message: str
    rows: tuple[CriterionRow, ...]
    note: str


class CheckRow(NamedTuple):
    """One preflight check."""

    id: str
    title: str
    required: bool
    status: StatusView
    observed: str
    expected: str
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
    """A plain table. Columns whose name is in `numeric` are right-aligned."""

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numeric: frozenset[str] = frozenset()
    note: str = ""


class ConfigRow(NamedTuple):
    """One setting as requested and as it ran; `verdict` is yes, differs, or why they are not compared."""

    key: str
    requested: str
    effective: str
    verdict: str

    @property
    def differs(self) -> bool:
        """Whether it ran otherwise than requested."""
        return self.verdict == "differs"


class ConfigTable(NamedTuple):
    """Requested and effective config. `note` says what is not known."""

    rows: tuple[ConfigRow, ...]
    differing: int
    note: str


class MetricRow(NamedTuple):
    """One metric of one run."""

    name: str
    unit: str
    n: str
    mean: str
    stdev: str
    cv: str
    interval: str
    minimum: str
    p50: str
    p95: str
    p99: str
    maximum: str
    first: str
    last: str
    window: str
    source: str
    href: str | None
    note: str


class RunSummaryRow(NamedTuple):
    """One run in its phase's table of runs."""

    id: str
    arm: str
    repeat: str
    outcome: str
    tone: str
    duration: str
    steps: str
    rate: str
    rate_interval: str
    step_time: str


class RunView(NamedTuple):
    """One run in full; `detailed` is false where only its line in the table of runs is shown."""

    id: str
    anchor: str
    title: str
    summary: RunSummaryRow
    detail: str
    command: str
    config: ConfigTable
    metrics: tuple[MetricRow, ...]
    scalars: tuple[Fact, ...]
    attempts: Table | None
    irregularities: tuple[str, ...]
    links: tuple[Fact, ...]
    folder: str | None
    tables: tuple[Table, ...] = ()
    detailed: bool = True


class PhaseView(NamedTuple):
    """One phase."""

    id: str
    anchor: str
    number: int
    title: str
    kind: str
    why: str
    required: bool
    status: StatusView
    message: str
    facts: tuple[Fact, ...]
    criteria: CriterionGroup
    checks: tuple[CheckRow, ...]
    comparison: Table | None
    comparison_message: str
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
    """A validation that goes on: what runs, what is to come (name and anchor), and how long it will take."""

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
    decision: DecisionView
    facts: tuple[Fact, ...]
    counts: tuple[tuple[StatusView, int], ...]
    groups: tuple[CriterionGroup, ...]
    findings: tuple[FindingView, ...]
    recommended: RecommendedView
    phases: tuple[PhaseView, ...]
    environment: tuple[FactGroup, ...]
    artifacts: tuple[ArtifactRow, ...]
    artifacts_note: str
    version: str
    run_id: str
    timeline: Table | None = None
    since: SinceView | None = None
    progress: ProgressView | None = None
    next_step: Fact | None = None
