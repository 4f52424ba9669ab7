"""The phases of a runbook, one model for each kind.

Field descriptions are the text of `docs/runbook-reference.md`, so keep them exact.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from validator.model.base import Frozen
from validator.model.findings import FindingCode
from validator.model.parts import Argument, Count, CriterionField, Identifier, Setting, Watchdog
from validator.model.remedy import MAX_REMEDIES, RemedyField
from validator.model.units import Duration

__all__ = [
    "AbPhase",
    "Arm",
    "AuditPhase",
    "AuditVariant",
    "Choose",
    "CommandPhase",
    "DataPhase",
    "Phase",
    "PhaseBase",
    "PhaseKind",
    "PreflightPhase",
    "ProcessPhase",
    "ProfilePhase",
    "PytestPhase",
    "SoakPhase",
    "SweepPhase",
    "TRAINING_KINDS",
    "TrainPhase",
    "TrainingPhase",
]

PhaseKind = Literal["preflight", "command", "pytest", "train", "sweep", "ab", "audit", "profile", "soak", "data"]

TRAINING_KINDS: tuple[PhaseKind, ...] = ("train", "sweep", "ab", "audit", "profile", "soak", "data")
"""Kinds whose runs are runs of the trainer."""


class PhaseBase(Frozen):
    """What every phase has."""

    id: Identifier = Field(
        description="Name of the phase, unique in the runbook: lower case letters, digits, underscores; a letter first."
    )
    title: str | None = Field(None, description="Heading in the report; default is the id.")
    why: str | None = Field(None, description="What the phase is for; shown in the report.")
    needs: tuple[Identifier, ...] = Field((), description="Phases that must have passed before this one runs.")
    accept: tuple[CriterionField, ...] = Field((), description="What must hold.")
    required: bool = Field(True, description="Whether the decision depends on this phase.")
    accept_findings: tuple[FindingCode, ...] = Field(
        (),
        description="Codes of findings that are right for this phase; they become information and forbid no GO. Added "
        "to those of `defaults`.",
    )
    observe: bool = Field(
        False,
        description="Whether the phase asks for nothing on purpose. It carries no GO, and forbids none that others "
        "carry.",
    )
    expected: Duration | None = Field(
        None, description="How long the phase takes as a rule, all its runs together; for the remaining time shown."
    )


class PreflightPhase(PhaseBase):
    """Is the machine what the runbook was written for, and healthy?"""

    kind: Literal["preflight"]
    packages: tuple[str, ...] = Field(
        (),
        description="Packages that the trainer's interpreter must have, with a bound if wanted: `torch>=2.6`.",
    )
    git_clean: bool = Field(False, description="Whether uncommitted changes fail the phase instead of being noted.")
    git_branch: str | None = Field(None, description="Branch that must be checked out.")
    probe: bool | None = Field(
        None,
        description="Whether to measure what the machine can do (matrix products, copies, transfers, all-reduce); "
        "by default where `hardware.gpus` is above 0.",
    )


class ProcessPhase(PhaseBase):
    """A phase that starts processes."""

    timeout: Duration | None = Field(None, gt=0, description="Longest time of one run.")
    retries: Count | None = Field(
        None, ge=0, le=3, description="Further attempts after a stall or a failure of the infrastructure."
    )
    env: dict[str, Setting] = Field(default_factory=dict, description="Added to the environment.")
    on_failure: tuple[RemedyField, ...] = Field(
        (),
        max_length=MAX_REMEDIES,
        description="What is tried when the phase fails: each once, in order, until one helps.",
    )


class CommandPhase(ProcessPhase):
    """Any program. It passes with exit code 0 and with every criterion."""

    kind: Literal["command"]
    run: str | tuple[Argument, ...] = Field(
        description="A shell line, or a list of arguments started without a shell. A line is carried out by bash with "
        "`pipefail`, so that a program that fails in a pipe fails the phase (by sh where there is no bash)."
    )
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
    tokens_per_step: Count | None = Field(
        None, ge=1, description="Tokens of an optimizer step, where it differs from `trainer.tokens_per_step`."
    )
    pause_every: Count | None = Field(
        None, ge=1, description="Steps from one pause (validation, checkpoint) to the next in the long run."
    )
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
    extend: bool | None = Field(
        None,
        description="Whether the phase is run again, to four runs or twice as many, when a required criterion stays "
        "open because its interval holds the bound; once.",
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


AuditVariant = Literal["plain", "flash_only", "no_flash"]
"""How `scaled_dot_product_attention` may be served: as the trainer has it, by flash alone, by anything but flash."""


class AuditPhase(TrainingPhase):
    """Which kernel did each branch of the attention run, by the profiler's evidence?

    Each variant is a run with `NSA_SDPA_AUDIT=1`, restricted by `NSA_SDPA_FLASH_ONLY=1` or `NSA_SDPA_NO_FLASH=1`. A run
    that reports nothing proves nothing; one that fell back to another path than the requested one fails the phase.
    """

    kind: Literal["audit"]
    variants: tuple[AuditVariant, ...] = Field(
        ("plain", "flash_only", "no_flash"), min_length=1, description="The runs; each is an arm of its own."
    )

    @field_validator("variants")
    @classmethod
    def _once(cls, value: tuple[AuditVariant, ...]) -> tuple[AuditVariant, ...]:
        twice = next((name for name in value if value.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"variants names {twice} twice; keep one of the two")
        return value


class ProfilePhase(TrainingPhase):
    """Where does the time of a step go? A trace of some steps, with named ranges on.

    The trainer runs with `NSA_NVTX=1`, `NSA_PROFILE_STEPS`, and TensorBoard and gate statistics off.
    """

    kind: Literal["profile"]
    profile_steps: Count = Field(8, ge=1, description="Steps that are traced.")
    ranges: tuple[str, ...] = Field(
        (), description="Ranges that the trace must hold, each a required criterion; `*` stands for any text."
    )
    nsys: bool = Field(
        False,
        description="Run once more under Nsight Systems where `nsys` is installed, and keep its report as an artifact. "
        "That run decides nothing.",
    )

    @field_validator("ranges")
    @classmethod
    def _named(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if any(not name.strip() for name in value):
            raise ValueError("ranges has an empty name, which every trace would hold; write ranges: [nsa.cmp]")
        return value

    @model_validator(mode="after")
    def _fits(self) -> ProfilePhase:
        if self.profile_steps >= self.steps:
            raise ValueError(
                f"profile_steps is {self.profile_steps} of {self.steps} steps, which leaves none to warm up; "
                f"write profile_steps: {max(1, self.steps // 2)} or raise steps"
            )
        return self


class DataPhase(TrainingPhase):
    """Does the loader keep up with real data? First the loader alone, then a run of the trainer on it.

    Where the data cannot be reached the phase is SKIPPED, which is not a pass.
    """

    kind: Literal["data"]
    first_batch: Duration = Field(60.0, description="Longest wait for the first batch, alone and in the run.")
    smoke: tuple[Argument, ...] | None = Field(
        None,
        description="What python is given to try the loader alone; prints JSON. Default is `[-m, nsa.data]` with the "
        "arguments of the run for the bundled trainer, and no such run for another. `[]` leaves it out.",
    )


Phase = Annotated[
    PreflightPhase
    | CommandPhase
    | PytestPhase
    | TrainPhase
    | SweepPhase
    | AbPhase
    | AuditPhase
    | ProfilePhase
    | SoakPhase
    | DataPhase,
    Field(discriminator="kind"),
]
