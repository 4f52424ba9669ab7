"""The runbook: what a person declares.

`docs/runbook-reference.md` and the JSON Schema are generated from these models; field descriptions are the
reference's text, so keep them exact.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from validator.model.base import Frozen
from validator.model.units import Duration, Size

__all__ = [
    "AbPhase",
    "Arm",
    "Choose",
    "CommandPhase",
    "Criterion",
    "Defaults",
    "Hardware",
    "Phase",
    "PhaseKind",
    "PreflightPhase",
    "ProcessPhase",
    "PytestPhase",
    "Runbook",
    "Setting",
    "SoakPhase",
    "SweepPhase",
    "TrainPhase",
    "Trainer",
    "TrainerMetrics",
    "TrainingPhase",
    "Watchdog",
]

Setting = str | int | float | bool
"""A value that a runbook may give to an environment variable or a trainer argument."""

PhaseKind = Literal["preflight", "command", "pytest", "train", "sweep", "ab", "soak"]

Count = Annotated[int, Field(strict=True)]
"""A whole number written as one: `true` and `"300"` are mistakes, not 1 and 300."""


def _as_text(value: Any) -> Any:
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(value) if isinstance(value, (int, float)) else value


Argument = Annotated[str, BeforeValidator(_as_text, json_schema_input_type=str | int | float | bool)]
"""A word of a command line; numbers may be written without quotes."""

Identifier = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]
"""Lower case letters, digits and underscores, so that a criterion can name it."""


class Criterion(Frozen):
    """One acceptance criterion. As plain text it is required."""

    expr: str = Field(description="`metric.statistic operator value [unit]`, see the grammar of criteria.")
    required: bool = Field(True, description="Whether failing it makes the decision NO-GO.")
    why: str | None = Field(None, description="Why the bound is what it is; shown beside the verdict.")


def _criterion(value: Any) -> Any:
    return {"expr": value} if isinstance(value, str) else value


CriterionField = Annotated[Criterion, BeforeValidator(_criterion, json_schema_input_type=str | Criterion)]


class Hardware(Frozen):
    """What the runbook was written for. Preflight checks it; a machine without the GPUs ends in exit 4."""

    gpus: Count = Field(0, ge=0, description="GPUs needed; 0 means that the runbook runs on the CPU.")
    name: str | None = Field(None, description="Regular expression that every GPU's name must contain.")
    interconnect: Literal["pcie", "nvlink", "any"] = Field("any", description="How the GPUs are linked.")
    gpu_memory: Size | None = Field(None, description="Least memory of each GPU.")
    cpu_cores: Count | None = Field(None, ge=1, description="Least CPU cores that this process may use.")
    memory: Size | None = Field(None, description="Least host memory available at the start.")
    disk_free: Size | None = Field(None, description="Least free space where results are written.")

    @field_validator("name")
    @classmethod
    def _compiles(cls, value: str | None) -> str | None:
        if value is not None:
            try:
                re.compile(value)
            except re.error as error:
                raise ValueError(
                    f"name {value!r} is not a regular expression: {error}; escape special characters with \\"
                ) from error
        return value


class TrainerMetrics(Frozen):
    """Where a trainer's measurements are read from, relative to its output folder."""

    csv: str | None = Field(None, description="CSV of `step,loss,lr,toks_per_s,…`, with or without a header.")
    heartbeat: str | None = Field(None, description="JSON lines, one file per rank; `{rank}` stands for the rank.")
    env: str | None = Field(None, description="JSON with the environment and the requested and effective config.")
    metrics: str | None = Field(None, description="JSON with final scalars; referred to as `metrics.<key>`.")
    stdout: str | None = Field(
        None,
        description="Regular expression with named groups, searched in each line that rank 0 prints; `step` is needed.",
    )
    extra: dict[str, str] = Field(
        default_factory=dict, description="Further series that the trainer writes: name to unit."
    )

    @field_validator("stdout")
    @classmethod
    def _has_step(cls, value: str | None) -> str | None:
        if value is None:
            return None
        try:
            groups = re.compile(value).groupindex
        except re.error as error:
            raise ValueError(f"stdout {value!r} is not a regular expression: {error}") from error
        if "step" not in groups:
            raise ValueError("stdout has no group named `step`; add (?P<step>\\d+) where the step is printed")
        return value


BUNDLED_METRICS = TrainerMetrics(
    csv="training.csv", heartbeat="heartbeat_rank{rank}.jsonl", env="env.json", metrics="metrics.json"
)


class Trainer(Frozen):
    """The program under validation. Leave it out for the bundled one."""

    command: tuple[Argument, ...] = Field(
        ("-m", "nsa.train"), description="What torchrun (nproc of 1 or more) or python (nproc of 0) is given."
    )
    args: dict[str, Setting] = Field(
        default_factory=lambda: dict[str, Setting](steps="{steps}", out="{out}"),
        description="Passed as `--key value`; true becomes `--key`, false leaves it out. Placeholders are filled in.",
    )
    metrics: TrainerMetrics = Field(BUNDLED_METRICS, description="Where its measurements are read from.")
    cwd: str | None = Field(None, description="Working directory; default is where `validator` was started.")

    @property
    def bundled(self) -> bool:
        """Whether this is the trainer that comes with the project."""
        return self.command == ("-m", "nsa.train")


class Watchdog(Frozen):
    """When a run is stopped before its time. Slow is not stalled: predicted progress and activity decide."""

    first_step: Duration = Field(900.0, description="Longest silence before the first step (compilation, data).")
    stall: Duration = Field(180.0, description="Least silence after the first step that counts as a stall.")
    stall_factor: float = Field(
        10.0,
        gt=1,
        description="Silence in multiples of the observed step time; the longer of both limits holds.",
    )
    interval: Duration = Field(5.0, description="Time between looks at the run's files.")
    frozen_rows: Count = Field(4, ge=2, description="Rows in a row with a rate of zero or less that stop the run.")
    gate_entropy_min: float = Field(0.2, description="Gate entropy below this counts as a collapse.")
    gate_max: float = Field(0.9, description="Largest gate above this counts as a collapse.")
    gate_collapse_frac: float = Field(0.5, description="Collapsed share above this counts as a collapse.")
    gate_strikes: Count = Field(3, ge=1, description="Records in a row with a collapse that stop the run.")
    halt: bool = Field(True, description="Write `.HALT` and stop the run; false only records the anomaly.")


class Defaults(Frozen):
    """Values for every phase that does not set its own."""

    nproc: Count = Field(1, ge=0, description="Processes under torchrun; 0 runs the trainer by python alone.")
    timeout: Duration = Field(1800.0, description="Longest time of one run.")
    warmup_steps: Count = Field(20, ge=0, description="Steps that never count as steady.")
    repeats: Count = Field(1, ge=1, description="Runs of each arm.")
    retries: Count = Field(
        0,
        ge=0,
        le=3,
        description="Further attempts, on another master port, after a stall or a failure of the infrastructure.",
    )
    env: dict[str, Setting] = Field(default_factory=dict, description="Added to the environment of every run.")
    args: dict[str, Setting] = Field(default_factory=dict, description="Added to the arguments of the trainer.")
    watchdog: Watchdog = Field(default_factory=Watchdog, description="When a run is stopped before its time.")
    min_effect: float = Field(0.02, gt=0, lt=1, description="Smallest relative difference that is worth a decision.")
    run_cv: float = Field(
        0.02,
        ge=0,
        lt=1,
        description="Variation between runs (standard deviation over mean) assumed of rates and times "
        "until four repeats measure it.",
    )


class PhaseBase(Frozen):
    """What every phase has."""

    id: Identifier = Field(description="Name of the phase, unique in the runbook.")
    title: str | None = Field(None, description="Heading in the report; default is the id.")
    why: str | None = Field(None, description="What the phase is for; shown in the report.")
    needs: tuple[Identifier, ...] = Field((), description="Phases that must have passed before this one runs.")
    accept: tuple[CriterionField, ...] = Field((), description="What must hold.")
    required: bool = Field(True, description="Whether the decision depends on this phase.")


class PreflightPhase(PhaseBase):
    """Is the machine what the runbook was written for, and healthy?"""

    kind: Literal["preflight"]
    packages: tuple[str, ...] = Field(
        (),
        description="Packages that the trainer's interpreter must have, with a bound if wanted: `torch>=2.6`.",
    )
    git_clean: bool = Field(False, description="Whether uncommitted changes fail the phase instead of being noted.")
    git_branch: str | None = Field(None, description="Branch that must be checked out.")


class ProcessPhase(PhaseBase):
    """A phase that starts processes."""

    timeout: Duration | None = Field(None, description="Longest time of one run.")
    retries: Count | None = Field(
        None, ge=0, le=3, description="Further attempts after a stall or a failure of the infrastructure."
    )
    env: dict[str, Setting] = Field(default_factory=dict, description="Added to the environment.")


class CommandPhase(ProcessPhase):
    """Any program. It passes with exit code 0 and with every criterion."""

    kind: Literal["command"]
    run: str | tuple[Argument, ...] = Field(description="A shell line, or a list of arguments started without a shell.")
    stdout: str | None = Field(
        None,
        description="Regular expression with named groups; each group's last match becomes `metrics.<group>`.",
    )


class PytestPhase(ProcessPhase):
    """Tests as a gate. At least one must pass, none may fail, and a skipped one is not a pass."""

    kind: Literal["pytest"]
    targets: tuple[Argument, ...] = Field(
        min_length=1, description="Paths or importable packages, as `pytest --pyargs` takes them."
    )
    keyword: str | None = Field(None, description="Selects tests as `pytest -k` does.")
    args: tuple[Argument, ...] = Field((), description="Further arguments for pytest.")
    allow_skipped: bool = Field(
        False, description="Whether skipped tests are acceptable; they are listed all the same."
    )


class TrainingPhase(ProcessPhase):
    """A phase that runs the trainer."""

    steps: Count = Field(ge=1, description="Optimizer steps of each run.")
    nproc: Count | None = Field(None, ge=0, description="Processes under torchrun; 0 runs the trainer by python alone.")
    args: dict[str, Setting] = Field(default_factory=dict, description="Added to the arguments of the trainer.")
    warmup_steps: Count | None = Field(None, ge=0, description="Steps that never count as steady.")
    repeats: Count | None = Field(None, ge=1, description="Runs of each arm, interleaved.")
    watchdog: Watchdog | None = Field(None, description="When a run is stopped before its time.")
    log_contains: tuple[str, ...] = Field((), description="Texts that rank 0 must print; each is a required criterion.")


class TrainPhase(TrainingPhase):
    """One configuration of the trainer."""

    kind: Literal["train"]
    scaling_against: Identifier | None = Field(
        None,
        description="A phase with more processes; gives `scaling.efficiency`, its per-rank rate over this one's.",
    )


class SoakPhase(TrainingPhase):
    """A long run under the watchdog: rate, memory and gates must stay steady to the end."""

    kind: Literal["soak"]


class Choose(Frozen):
    """How the arms of a sweep or an A/B are compared. "Not decidable" and "no difference" are answers."""

    highest: str | None = Field(None, description="`metric.statistic` to maximize.")
    lowest: str | None = Field(None, description="`metric.statistic` to minimize.")
    tie: str | None = Field(
        None, description="`metric.statistic` whose lower value is recommended when the arms do not differ."
    )
    prefer: str | None = Field(None, description="Arm that is recommended when it is not worse (A/B).")
    adopt: bool = Field(False, description="Whether later phases run with the recommended arm.")
    min_effect: float | None = Field(
        None, gt=0, lt=1, description="Smallest relative difference that is worth a decision."
    )

    @model_validator(mode="after")
    def _one_direction(self) -> Choose:
        if (self.highest is None) == (self.lowest is None):
            raise ValueError("choose needs exactly one of `highest` and `lowest`; write highest: toks_per_s.mean")
        return self


class SweepPhase(TrainingPhase):
    """Every combination of the given settings, repeats interleaved."""

    kind: Literal["sweep"]
    over: dict[str, tuple[Setting, ...]] = Field(description="`env.NAME` or `args.NAME` to the values to try.")
    choose: Choose = Field(description="How the winner is chosen.")

    @field_validator("over")
    @classmethod
    def _targets(cls, value: dict[str, tuple[Setting, ...]]) -> dict[str, tuple[Setting, ...]]:
        if not value:
            raise ValueError("over is empty; write over: {env.NAME: [value, value]}")
        for key, values in value.items():
            if not re.fullmatch(r"(env|args)\.[A-Za-z_][A-Za-z0-9_-]*", key):
                raise ValueError(f"over has {key!r}; write env.{key.split('.')[-1]} or args.{key.split('.')[-1]}")
            if len(values) < 2 or len({str(v) for v in values}) != len(values):
                raise ValueError(
                    f"over.{key} needs at least two different values, got {list(values)}; "
                    f"write over: {{{key}: [value, value]}}"
                )
        return value


class Arm(Frozen):
    """One side of an A/B."""

    env: dict[str, Setting] = Field(default_factory=dict, description="Added to the environment.")
    args: dict[str, Setting] = Field(default_factory=dict, description="Added to the arguments of the trainer.")


class AbPhase(TrainingPhase):
    """Two configurations, interleaved ABBA so that drift of the machine hits both alike."""

    kind: Literal["ab"]
    arms: dict[Identifier, Arm] = Field(min_length=2, max_length=2, description="The two sides, the present one first.")
    choose: Choose = Field(description="How the winner is chosen.")

    @model_validator(mode="after")
    def _prefer_is_an_arm(self) -> AbPhase:
        if self.choose.prefer is not None and self.choose.prefer not in self.arms:
            raise ValueError(
                f"choose.prefer is {self.choose.prefer!r}, which is not an arm; arms: {', '.join(self.arms)}"
            )
        return self


Phase = Annotated[
    PreflightPhase | CommandPhase | PytestPhase | TrainPhase | SweepPhase | AbPhase | SoakPhase,
    Field(discriminator="kind"),
]


class Runbook(Frozen):
    """A whole runbook."""

    schema_version: Literal[1] = Field(alias="schema", description="Version of this format.")
    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]*$", description="Short name, used in folder names.")
    title: str | None = Field(None, description="Heading of the report; default is the name.")
    description: str | None = Field(None, description="What the runbook decides, in a sentence or two.")
    hardware: Hardware = Field(default_factory=Hardware, description="What the runbook was written for.")
    trainer: Trainer = Field(default_factory=Trainer, description="The program under validation.")
    defaults: Defaults = Field(default_factory=Defaults, description="Values for every phase that sets none.")
    phases: tuple[Phase, ...] = Field(min_length=1, description="What runs, in this order.")

    def phase(self, phase_id: str) -> Phase:
        """The phase of that id; KeyError if there is none."""
        for phase in self.phases:
            if phase.id == phase_id:
                return phase
        raise KeyError(phase_id)
