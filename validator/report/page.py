"""The report as people read it: every number already formatted, every text of the trainer already harmless.

HTML and Markdown are drawn from this one value, so that they cannot say different things. Templates only lay out.
Named tuples, because twenty of them are made in a fifth of the time of as many data classes, at every start.
"""

from __future__ import annotations

from typing import NamedTuple


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
    """One criterion, or one check of the machine. `formal` marks an expression of the runbook; others are sentences.

    `routine` marks what every phase is asked without its runbook saying so and what passed: it is shown folded.
    """

    id: str
    anchor: str
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
    routine: bool = False


class OpenItem(NamedTuple):
    """What failed or could not be decided: a criterion, a check, a veto, or a phase that did not run.

    `place` is the phase, `href` leads to the full row; `required` is false for what the decision does not need.
    """

    status: StatusView
    text: str
    formal: bool
    required: bool
    place: str
    href: str
    observed: str
    bound: str
    message: str


SPARK_WIDTH, SPARK_HEIGHT = 120, 28
"""The box of a spark line; it is stretched to the width of its tile."""


class Spark(NamedTuple):
    """A small drawing of a series over its window, as SVG coordinates in a box of `SPARK_WIDTH` by `SPARK_HEIGHT`.

    `bound` is the height of the bound's line, empty where it is too far away to be drawn; `text` says it in words.
    """

    points: str
    bound: str
    text: str


class Tile(NamedTuple):
    """One value that decides, or a group of settings (`lines`): what was measured, its bound, and where to see more.

    `metric` is the name as criteria have it; `status` is None where no criterion asks for the value. `value` has no
    unit, so that a rendering can set the unit smaller; `quantity` is both. `phase` is the id, `place` the title.
    """

    label: str
    metric: str
    status: StatusView | None
    value: str
    unit: str
    interval: str
    bound: str
    margin: str
    phase: str
    place: str
    href: str
    lines: tuple[LabeledValue, ...] = ()
    spark: Spark | None = None

    @property
    def quantity(self) -> str:
        """The value with its unit."""
        return f"{self.value} {self.unit}" if self.unit else self.value

    @property
    def limit(self) -> str:
        """The bound with the distance to it; empty where there is none."""
        return ", ".join(filter(None, (self.bound, self.margin and f"margin {self.margin}")))


class NextStep(NamedTuple):
    """What to do: the step, the name of its source and the link to it.

    `reasons` are what is missing to decide and the cause, where the decision's sentence does not say it. `phase` is the
    id of the phase that the step is about; None where it is about the whole validation. `command` is the finding's own,
    empty where the command follows from the phase.
    """

    name: str
    value: str
    href: str
    reasons: tuple[LabeledValue, ...] = ()
    phase: str | None = None
    command: str = ""


class FindingView(NamedTuple):
    """One finding. `also` are the anchors of further phases that show it."""

    code: str
    severity: str
    status: StatusView
    confidence: str
    place: str
    anchor: str | None
    also: tuple[str, ...]
    message: str
    next_step: str
    evidence: tuple[EvidenceView, ...]
    command: str = ""
    costly: bool = False


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

    `exceptions` counts what did not pass though the phase did, since it is not required. `summary` has a row for each
    of `runs`.
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
    effects: Table | None = None
    exceptions: tuple[tuple[StatusView, int], ...] = ()


class SinceView(NamedTuple):
    """What changed since the last GO of the same runbook on the same class of machine."""

    status: StatusView
    earlier: str
    started: str
    message: str
    caveats: tuple[str, ...]
    tables: tuple[Table, ...]


class MapCell(NamedTuple):
    """A number with its tone and sign; `words` say the same to who sees neither."""

    text: str
    tone: str = ""
    sign: str = ""
    words: str = ""


class MapView(NamedTuple):
    """Nodes × measures, or nodes × GPUs: a name, its status where it has one, and a cell for each column."""

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, StatusView | None, tuple[MapCell, ...]], ...]
    note: str


class OutlierView(NamedTuple):
    """A subject that may be slow, and what its confirmation gave."""

    status: StatusView
    subject: str
    measure: str
    effect: str
    interval: str
    mads: str
    p_value: str
    repeats: str
    message: str


class FleetView(NamedTuple):
    """The nodes of a cluster. `scaling` and `differences` are None where there are none."""

    summary: str
    facts: tuple[LabeledValue, ...]
    maps: tuple[MapView, ...]
    legend: str
    outliers: tuple[OutlierView, ...]
    more: str
    together: tuple[str, ...]
    scaling: Table | None
    differences: Table | None
    hand_over: tuple[LabeledValue, ...]


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
    next_step: NextStep | None = None
    tiles: tuple[Tile, ...] = ()
    open_items: tuple[OpenItem, ...] = ()
    fleet: FleetView | None = None
    ticket: str = ""
    undecided: tuple[LabeledValue, ...] = ()
    """Comparisons without an answer: the phase's title, what follows, and the link to the phase."""
