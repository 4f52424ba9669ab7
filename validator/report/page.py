"""The report as people read it: every number already formatted, every foreign text already harmless.

HTML and Markdown are drawn from this one value, so that they cannot say different things. Templates only lay out.
"""

from __future__ import annotations

from dataclasses import dataclass

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
    "RecommendedView",
    "RunSummaryRow",
    "RunView",
    "StatusView",
    "Table",
]


@dataclass(frozen=True)
class StatusView:
    """A status as word, sign and tone; the sign and the word alone are enough without color."""

    word: str
    sign: str
    tone: str


@dataclass(frozen=True)
class DecisionView:
    """The banner."""

    code: str
    word: str
    tone: str
    meaning: str
    why: str


@dataclass(frozen=True)
class Fact:
    """A name and its value. `href` leads to the artifact where there is one."""

    name: str
    value: str
    href: str | None = None


@dataclass(frozen=True)
class FactGroup:
    """Facts under a heading."""

    title: str
    facts: tuple[Fact, ...]


@dataclass(frozen=True)
class EvidenceView:
    """Where a claim can be checked."""

    label: str
    href: str | None
    text: str


@dataclass(frozen=True)
class CriterionRow:
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


@dataclass(frozen=True)
class CriterionGroup:
    """A phase's lines of the criteria table. `note` sums up what is not listed line by line."""

    phase: str
    title: str
    anchor: str
    status: StatusView
    required: bool
    message: str
    rows: tuple[CriterionRow, ...]
    note: str


@dataclass(frozen=True)
class CheckRow:
    """One preflight check."""

    id: str
    title: str
    required: bool
    status: StatusView
    observed: str
    expected: str
    message: str
    evidence: tuple[EvidenceView, ...]


@dataclass(frozen=True)
class FindingView:
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


@dataclass(frozen=True)
class RecommendedView:
    """Settings to copy. `exports` is shell text, empty when nothing was chosen."""

    exports: str
    command: str
    because: tuple[str, ...]


@dataclass(frozen=True)
class Table:
    """A plain table. Columns whose name is in `numeric` are right-aligned."""

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numeric: frozenset[str] = frozenset()
    note: str = ""


@dataclass(frozen=True)
class ConfigRow:
    """One setting as requested and as it ran."""

    key: str
    requested: str
    effective: str
    differs: bool


@dataclass(frozen=True)
class ConfigTable:
    """Requested and effective config. `note` says what is not known."""

    rows: tuple[ConfigRow, ...]
    differing: int
    note: str


@dataclass(frozen=True)
class MetricRow:
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


@dataclass(frozen=True)
class RunSummaryRow:
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


@dataclass(frozen=True)
class RunView:
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
    detailed: bool = True


@dataclass(frozen=True)
class PhaseView:
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


@dataclass(frozen=True)
class ArtifactRow:
    """One file of the run folder."""

    path: str
    href: str | None
    size: str
    bytes: str
    sha256: str


@dataclass(frozen=True)
class Page:
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
