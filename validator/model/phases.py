"""The phases of a runbook, one model for each kind: its keys, and the numbers that its criteria may name.

What a kind does is in `validator/kinds`. Field descriptions are the text of `docs/runbook-reference.md`, so keep them
exact.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from validator.model.catalogue import AUDIT, OUTCOME, PROBE, PROFILE, SMOKE, TESTS, TRAINING, Scalar
from validator.model.findings import FindingCode
from validator.model.parts import (
    Argument,
    Count,
    CriterionField,
    Hardware,
    Identifier,
    Setting,
    Trainer,
    Watchdog,
)
from validator.model.remedy import MAX_REMEDIES, RemedyField
from validator.model.units import Duration, Frozen


class PhaseBase(Frozen):
    """What every phase has."""

    if TYPE_CHECKING:  # each kind declares it, as a literal behind its common keys
        kind: str

    scalars: ClassVar[tuple[Scalar, ...]] = ()
    """The numbers that the class adds to those of its bases."""

    filled: ClassVar[tuple[str, ...]] = ()
    """The keys that the class adds in which placeholders are filled in."""

    id: Identifier = Field(
        description="Name of the phase, unique in the runbook: lower-case letters, digits, underscores; a letter first."
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
        description="Whether the phase intentionally has no required criterion. It carries no GO, and forbids none "
        "that others carry.",
    )
    expected: Duration | None = Field(
        None, description="How long the phase takes as a rule, all its runs together; for the remaining time shown."
    )

    @classmethod
    def known_scalars(cls) -> dict[str, Scalar]:
        """The numbers that criteria of such a phase may name, those of its bases first."""
        every = [scalar for base in reversed(cls.__mro__) for scalar in vars(base).get("scalars", ())]
        return {one.name: one for one in every if one.key is None or one.key in cls.model_fields}

    @classmethod
    def filled_keys(cls) -> tuple[str, ...]:
        """The keys in which placeholders are filled in, those of its bases first."""
        return tuple(key for base in reversed(cls.__mro__) for key in vars(base).get("filled", ()))

    def unmeasured(self, name: str, hardware: Hardware, *, scalar: bool) -> tuple[str, str] | None:
        """Why the phase measures nothing called `name`, a scalar of some kind or not, and what to write; None where
        it may."""
        return None

    def obstacle(self, name: str, hardware: Hardware, trainer: Trainer) -> tuple[str, str] | None:
        """Why a scalar of the phase could not be known, as a clause, and what to write; None where it can be."""
        return None


class PreflightPhase(PhaseBase):
    """Is the machine what the runbook was written for, and healthy?"""

    scalars = PROBE

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

    def probes(self, hardware: Hardware) -> bool:
        """Whether the phase runs the probes."""
        return hardware.gpus > 0 if self.probe is None else self.probe

    def unmeasured(self, name: str, hardware: Hardware, *, scalar: bool) -> tuple[str, str] | None:
        if scalar and self.probes(hardware):
            return None
        return (
            f"phase {self.id} is a preflight: it has checks, not measurements, so {name} can never be known",
            "declare what the machine must have under `hardware`, or name another phase; with probe: true "
            "it measures probe.gemm_tflops and the like",
        )

    def obstacle(self, name: str, hardware: Hardware, trainer: Trainer) -> tuple[str, str] | None:
        on_gpu = ("probe.host_to_device_gb_s", "probe.device_to_host_gb_s", "probe.pcie_gen", "probe.pcie_width")
        if name in on_gpu and hardware.gpus == 0:
            return "it is measured on a GPU, and hardware.gpus is 0", "set hardware.gpus, or drop the criterion"
        if name.startswith(("probe.peer", "probe.all_reduce")) and hardware.gpus < 2:
            why = f"it needs two GPUs, and hardware.gpus is {hardware.gpus}"
            return why, "set hardware.gpus, or drop the criterion"
        return None


class ProcessPhase(PhaseBase):
    """A phase that starts processes."""

    scalars = OUTCOME
    filled: ClassVar[tuple[str, ...]] = ("env", "on_failure")

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

    filled: ClassVar[tuple[str, ...]] = ("run",)

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

    scalars = TESTS
    filled: ClassVar[tuple[str, ...]] = ("targets",)

    kind: Literal["pytest"]
    targets: tuple[Argument, ...] = Field(
        min_length=1, description="Paths or importable packages, as `pytest --pyargs` takes them."
    )
    keyword: str | None = Field(None, description="Selects tests as `pytest -k` does.")
    args: tuple[Argument, ...] = Field((), description="Further arguments for pytest.")
    allow_skipped: bool = Field(False, description="Whether skipped tests are acceptable; they are still listed.")


class TrainingPhase(ProcessPhase):
    """A phase that runs the trainer."""

    scalars = TRAINING
    filled: ClassVar[tuple[str, ...]] = ("args",)

    steps: Count = Field(ge=1, description="Optimizer steps of each run.")
    nproc: Count | None = Field(None, ge=0, description="Ranks, as `defaults.nproc`.")
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
        description="Whether the phase is run again, to four runs or twice as many, when a required criterion is "
        "inconclusive because its interval contains the bound; once.",
    )

    def obstacle(self, name: str, hardware: Hardware, trainer: Trainer) -> tuple[str, str] | None:
        if name != "scaling.efficiency" or self.scaling_against is not None:
            return None
        return (
            f"phase {self.id} is not compared with another",
            f"add scaling_against: PHASE, a phase with more processes, to {self.id}",
        )


class SoakPhase(TrainingPhase):
    """A long run under the watchdog: rate, memory and gates must stay steady to the end."""

    kind: Literal["soak"]


class Choose(Frozen):
    """How the arms of a sweep or an A/B are compared. "Inconclusive" and "no difference" are answers."""

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

    filled: ClassVar[tuple[str, ...]] = ("over",)

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
    """Two configurations, interleaved ABBA so that drift of the machine affects both equally."""

    filled: ClassVar[tuple[str, ...]] = ("arms",)

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

    scalars = AUDIT

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

    scalars = PROFILE

    kind: Literal["profile"]
    profile_steps: Count = Field(8, ge=1, description="Steps that are traced.")
    ranges: tuple[str, ...] = Field(
        (), description="Ranges that the trace must contain, each a required criterion; `*` matches any text."
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
            raise ValueError("ranges has an empty name, which every trace contains; write ranges: [nsa.cmp]")
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
    """Does the loader keep up with real data? First a data-loader smoke test, then a run of the trainer on the data.

    Where the data cannot be reached the phase is SKIPPED, which is not a pass.
    """

    scalars = SMOKE
    filled: ClassVar[tuple[str, ...]] = ("smoke",)

    kind: Literal["data"]
    first_batch: Duration = Field(
        60.0, description="Longest wait for the first batch, in the smoke test and in the run."
    )
    smoke: tuple[Argument, ...] | None = Field(
        None,
        description="Arguments of python for the data-loader smoke test, which prints JSON. The default for the "
        "bundled trainer is `[-m, nsa.data]` with the arguments of the run; another has none. `[]` leaves it out.",
    )

    def smoke_words(self, trainer: Trainer) -> tuple[str, ...]:
        """Arguments of python for the data-loader smoke test; empty where there is none."""
        if self.smoke is not None:
            return self.smoke
        return ("-m", "nsa.data", "--json") if trainer.bundled else ()

    def obstacle(self, name: str, hardware: Hardware, trainer: Trainer) -> tuple[str, str] | None:
        if not name.startswith("smoke.") or self.smoke_words(trainer):
            return None
        return (
            f"phase {self.id} runs no data-loader smoke test",
            "give it smoke: [ARGUMENTS], which prints JSON, or use startup.first_batch_s",
        )
