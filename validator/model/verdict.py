"""Judgement: verdicts on criteria, findings with causes, the decision, and result.json, which holds them all."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from validator.errors import ExitCode
from validator.model.contrast import ContrastReport
from validator.model.fleet import Fleet
from validator.model.result import MetricStats, RunTable, ScalarValue
from validator.model.units import Frozen, RunId


class Extension(Frozen):
    """Which criteria were inconclusive, and the number of runs before and after the extension."""

    criteria: tuple[str, ...] = Field(description="Ids of the required criteria that were inconclusive.")
    runs_before: int
    runs_after: int


class Needed(Frozen):
    """What would decide an inconclusive criterion, if what was observed is right."""

    steps: dict[str, int] = Field(default_factory=dict, description="Phase to the steps that each of its runs needs.")
    sure: bool = Field(True, description="Whether these steps decide it if what was observed is right.")
    repeats: dict[str, int] = Field(
        default_factory=dict, description="Phase to the repeats that it needs, where no number of steps would do."
    )
    runs: int | None = Field(
        None,
        description="Runs of the criterion's own phase that would decide it; None where the others leave it open.",
    )


Status = Literal["PASS", "FAIL", "INCONCLUSIVE", "SKIPPED", "NOT_RUN", "RUNNING"]
Decision = Literal["GO", "NO_GO", "INCONCLUSIVE", "IN_PROGRESS"]


class Evidence(Frozen):
    """Where a claim can be checked: a file relative to the run folder, a place in it, and what it says."""

    path: str | None = None
    where: str | None = Field(None, description="Line, window or key within the file.")
    text: str


class Verdict(Frozen):
    """One criterion, judged. `margin` is relative distance from the bound, positive on the good side."""

    id: str = Field(description="`<phase>.<n>`, 1-based in the order of the runbook; implicit criteria carry a name.")
    text: str
    required: bool
    status: Status
    observed: float | str | None = None
    unit: str = ""
    ci_low: float | None = None
    ci_high: float | None = None
    bound: float | str | None = None
    margin: float | None = None
    message: str = Field("", description="One sentence: why it has this status.")
    open_for: Literal["interval", "rows"] | None = Field(
        None, description="What more runs would give an inconclusive verdict: a narrower interval, or one at all."
    )
    needed: Needed | None = Field(None, description="What would decide one that is open for its interval.")
    evidence: tuple[Evidence, ...] = ()


COSTLY = 0.25
"""Share of the time from which what costs it is said beside a GO, and first among the findings."""


class Finding(Frozen):
    """A cause that was found. A veto forbids GO whatever the criteria say."""

    code: str
    severity: Literal["veto", "warning", "info"]
    confidence: Literal["high", "medium", "low"]
    phase: str | None = None
    run: str | None = None
    also: tuple[str, ...] = Field((), description="Further runs that show the same.")
    message: str
    evidence: tuple[Evidence, ...] = ()
    next_step: str
    command: str = Field("", description="Helps with the next step; `{run}` is the folder of the results.")
    lost: float | None = Field(None, description="Share of the time that it costs, of a longer run where it lasts.")

    @property
    def costly(self) -> bool:
        """Whether it costs so much of the time that a GO has to say so."""
        return self.severity == "warning" and (self.lost or 0.0) >= COSTLY


class Check(Frozen):
    """One preflight check of the machine."""

    id: str
    title: str
    status: Status
    required: bool = True
    observed: str
    expected: str | None = None
    message: str = ""
    evidence: tuple[Evidence, ...] = ()


class ComparedArm(Frozen):
    """One arm of a sweep or an A/B: the run means, and their interval over runs (not over steps)."""

    arm: str
    settings: dict[str, str | int | float | bool]
    run_means: tuple[float, ...]
    mean: float | None
    ci_low: float | None
    ci_high: float | None
    stdev: float | None
    tie_value: float | None = None


class ArmComparison(Frozen):
    """The comparison of the arms of a sweep or an A/B, and which of them is recommended."""

    metric: str
    unit: str
    direction: Literal["highest", "lowest"]
    arms: tuple[ComparedArm, ...]
    outcome: Literal["significant", "no_difference", "not_worse", "not_decidable", "vacuous"] = Field(
        description="`not_worse`: the preferred arm is not worse by the minimum effect, though equality is not shown."
    )
    recommended: str | None = Field(None, description="Arm to use; None when nothing can be said.")
    adopted: bool = False
    p_value: float | None = None
    effect: float | None = Field(None, description="Best over runner-up, relative.")
    effect_ci: tuple[float, float] | None = None
    min_effect: float
    message: str


class RunReport(Frozen):
    """One run as written to result.json. `command` is what was started; `series_points` feed the charts."""

    id: str
    arm: str | None = None
    repeat: int = 1
    command: tuple[str, ...] = ()
    env: dict[str, str] = Field(default_factory=dict)
    requested: dict[str, Any] | None = None
    effective: dict[str, Any] | None = None
    outcome: dict[str, Any] | None = Field(None, description="rc, reason, duration_s, detail, attempts.")
    metrics: dict[str, MetricStats] = Field(default_factory=dict)
    scalars: dict[str, ScalarValue] = Field(default_factory=dict)
    warmup_end_step: int | None = None
    irregularities: tuple[str, ...] = ()
    out: str = ""
    log: str | None = None
    tables: tuple[RunTable, ...] = ()
    role: str = Field(
        "measure",
        description="`smoke`, `nsys` and `round` do not decide their phase; `changed` is another config.",
    )
    remedy: str | None = Field(None, description="The remedy that was tried by this run.")
    nodes: tuple[str, ...] = Field((), description="The nodes that it ran on.")


class SettingEffect(Frozen):
    """What another value of one setting changed in what the trainer does."""

    setting: str = Field(description="`args.NAME` or `env.NAME`.")
    declared: str | None = Field(description="None where neither the runbook nor the trainer's command gives a value.")
    tried: str
    status: Literal["PASS", "FAIL", "INCONCLUSIVE"] = Field(description="FAIL: nothing changed, so it was ignored.")
    message: str
    steps: tuple[int, ...] = Field((), description="The first steps that both sides logged.")
    declared_losses: tuple[float, ...] = Field((), description="Of the first run as declared, at these steps.")
    tried_losses: tuple[float, ...] = ()


class RemedyReport(Frozen):
    """An attempt at a phase that failed: as declared, or with a remedy. `decides` where the phase has its status."""

    name: str | None = Field(description="None for the phase as declared.")
    settings: dict[str, str | int | float | bool] = Field(default_factory=dict)
    keeps_config: bool = Field(description="Whether what is trained is what was declared.")
    decides: bool
    status: Status
    message: str = ""
    runs: tuple[str, ...] = Field((), description="Ids of its runs.")


class PhaseReport(Frozen):
    """One phase as written to result.json."""

    id: str
    kind: str
    title: str
    why: str | None = None
    required: bool = True
    asks: bool = Field(True, description="Whether it asks for something that could fail on what it measures.")
    status: Status
    message: str = ""
    criteria: tuple[Verdict, ...] = ()
    checks: tuple[Check, ...] = ()
    runs: tuple[RunReport, ...] = ()
    comparison: ArmComparison | None = None
    effects: tuple[SettingEffect, ...] = Field((), description="What the settings that it changes changed.")
    scalars: dict[str, ScalarValue] = Field(default_factory=dict)
    duration_s: float | None = None
    extended: Extension | None = Field(
        None, description="Runs that were added because a required criterion was inconclusive."
    )
    remedies: tuple[RemedyReport, ...] = Field(
        (), description="Every attempt at the phase where there was more than one."
    )

    @property
    def ran(self) -> bool:
        """Whether anything of the phase ran; tests that skipped themselves did."""
        return bool(self.runs or self.checks)

    @property
    def judged(self) -> tuple[Verdict | Check, ...]:
        """Its criteria, then its checks."""
        return (*self.criteria, *self.checks)

    @property
    def measured(self) -> tuple[RunReport, ...]:
        """The runs whose measurements the phase's verdicts depend on."""
        remedy = next((attempt.name for attempt in self.remedies if attempt.decides), None)
        return tuple(run for run in self.runs if run.role == "measure" and run.remedy == remedy)


class RunbookRef(Frozen):
    """Which runbook was run."""

    name: str
    path: str
    sha256: str
    title: str | None = None
    description: str | None = None
    overrides: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    command: tuple[str, ...] = Field((), description="Of `run -- COMMAND`, in no file: the options, `--`, the command.")
    max_steps: int | None = Field(None, description="Steps that the trainer does at most, as declared.")


class Recommendation(Frozen):
    """Settings worth using, and why."""

    env: dict[str, str] = Field(default_factory=dict)
    command: str | None = None
    because: tuple[str, ...] = ()


class Artifact(Frozen):
    """A file of the run folder."""

    path: str
    bytes: int
    sha256: str | None = Field(description="None for files above the hashing limit; their size is given.")


class RemainingTime(Frozen):
    """Remaining time of a validation in progress, estimated at `as_of`."""

    as_of: str = Field(description="UTC, ISO 8601.")
    remaining_s: float | None = Field(
        description="None when no remaining phase has a declared duration or a measured rate."
    )
    at_least: bool = Field(description="Whether some remaining phase has neither and is not counted.")


class ValidationReport(Frozen):
    """result.json: everything that is known of a validation. Reports are renderings of it."""

    schema_version: Literal[1] = 1
    run_id: RunId
    runbook: RunbookRef
    started: str
    finished: str | None
    duration_s: float | None = None
    decision: Decision
    why: str
    exit_code: int | None
    phases: tuple[PhaseReport, ...]
    findings: tuple[Finding, ...] = ()
    recommended: Recommendation = Field(default_factory=Recommendation)
    environment: dict[str, Any] = Field(default_factory=dict)
    artifacts: tuple[Artifact, ...] = ()
    since: ContrastReport | None = Field(
        None, description="Compared with the last GO of the same runbook on the same class of machine, if there is one."
    )
    fleet: Fleet | None = Field(None, description="The nodes of a cluster, where the runbook has one.")
    outlook: RemainingTime | None = Field(None, description="Remaining time, while it is in progress.")
    validator_version: str

    @property
    def exits_with(self) -> int:
        """What a command that shows it ends with: `exit_code`, or that of INCONCLUSIVE where it has none."""
        return ExitCode.INCONCLUSIVE if self.exit_code is None else self.exit_code
