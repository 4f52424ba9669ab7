"""The phases that run the trainer: their keys, and the numbers that their criteria may name.

Field descriptions are the text of `docs/runbook-reference.md`, so keep them exact. Annotations are no texts, as in
`phases`.
"""

import re
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from validator.model.catalogue import AUDIT, COST, NODES, PROFILE, SMOKE, TRAINING
from validator.model.cluster import On
from validator.model.parts import (
    Argument,
    Arm,
    Choose,
    Count,
    Hardware,
    Identifier,
    Setting,
    Trainer,
    Watchdog,
)
from validator.model.phases import ProcessPhase
from validator.model.units import Duration


class TrainingPhase(ProcessPhase):
    """A phase that runs the trainer."""

    scalars = TRAINING
    on_cluster: ClassVar[On] = "all"
    filled: ClassVar[tuple[str, ...]] = ("args",)
    substitutes: ClassVar[Mapping[str, Any]] = {"steps": 10**9}

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

    def obstacle(self, name: str, hardware: Hardware, trainer: Trainer) -> tuple[str, str] | None:
        if not name.startswith("cost."):
            return None
        if hardware.price_per_gpu_hour is None:
            fix = "declare hardware.price_per_gpu_hour, such as 2.5, and hardware.currency"
            return "hardware.price_per_gpu_hour is not declared", fix
        if name != "cost.planned_run" or trainer.planned_tokens is not None:
            return None
        if trainer.planned_steps is None:
            fix = "declare trainer.planned_tokens, such as 10000000000, or trainer.planned_steps"
            return "the length of the planned run is not declared", fix
        declared = self.tokens_per_step or trainer.tokens_per_step
        if declared is None and trainer.metrics.env is None:
            fix = "declare trainer.tokens_per_step, or trainer.planned_tokens in place of planned_steps"
            return "nothing says how many tokens a planned step has", fix
        return None


class TrainPhase(TrainingPhase):
    """One configuration of the trainer."""

    scalars = (*COST, *NODES)
    one_config = compared = True

    kind: Literal["train"]
    scaling_against: Identifier | None = Field(
        None,
        description="A phase with more processes; gives `scaling.efficiency`, its per-rank rate over this one's.",
    )
    extend: bool | None = Field(
        None,
        description="Whether the phase is run again, to four runs or twice as many, when a required criterion is "
        "inconclusive because its interval contains the bound; once, and not where another phase leaves it open.",
    )

    def obstacle(self, name: str, hardware: Hardware, trainer: Trainer) -> tuple[str, str] | None:
        if name == "nodes.min" and self.on != "each":
            return "it compares nodes that train alone", f"add on: each to {self.id}, on a cluster"
        if name != "scaling.efficiency" or self.scaling_against is not None:
            return super().obstacle(name, hardware, trainer)
        return (
            f"phase {self.id} is not compared with another",
            f"add scaling_against: PHASE, a phase with more processes, to {self.id}",
        )


class ArmsPhase(TrainingPhase):
    """A phase that compares its arms."""

    substitutes: ClassVar[Mapping[str, Any]] = {"choose": {"highest": "toks_per_s.mean"}}
    compared = True

    choose: Choose = Field(description="How the winner is chosen.")


class SweepPhase(ArmsPhase):
    """Every combination of the given settings, repeats interleaved."""

    filled: ClassVar[tuple[str, ...]] = ("over",)
    substitutes: ClassVar[Mapping[str, Any]] = {"over": {"env.UNKNOWN": [1, 2]}}

    kind: Literal["sweep"]
    over: dict[str, tuple[Setting, ...]] = Field(description="`env.NAME` or `args.NAME` to the values to try.")

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


class AbPhase(ArmsPhase):
    """Two configurations, interleaved ABBA so that drift of the machine affects both equally."""

    filled: ClassVar[tuple[str, ...]] = ("arms",)
    substitutes: ClassVar[Mapping[str, Any]] = {"arms": {"present": {}, "changed": {"env": {"UNKNOWN": 1}}}}

    kind: Literal["ab"]
    arms: dict[Identifier, Arm] = Field(min_length=2, max_length=2, description="The two sides, the present one first.")

    @model_validator(mode="after")
    def _prefer_is_an_arm(self) -> "AbPhase":
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
    instrumented = True

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
    instrumented = True

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
    def _fits(self) -> "ProfilePhase":
        if self.profile_steps >= self.steps:
            raise ValueError(
                f"profile_steps is {self.profile_steps} of {self.steps} steps, which leaves none to warm up; "
                f"write profile_steps: {max(1, self.steps // 2)} or raise steps"
            )
        return self


class SoakPhase(TrainingPhase):
    """A long run under the watchdog: rate, memory and gates must stay steady to the end."""

    scalars = COST
    one_config = compared = True

    kind: Literal["soak"]
    extend: bool | None = Field(
        None,
        description="Whether the phase is run once more when a required criterion is inconclusive because its interval "
        "contains the bound, and one more run would decide it if what was observed is right.",
    )


class SettingsPhase(TrainingPhase):
    """Does the trainer obey its settings? A few steps as declared, twice, and once for each setting with another value.

    A setting that changes the arithmetic of a step must change the losses. Where the runs as declared agree in every
    digit, and the changed one agrees with them, the trainer ignores it.
    """

    instrumented = True
    filled: ClassVar[tuple[str, ...]] = ("change", "confirm")
    substitutes: ClassVar[Mapping[str, Any]] = {"change": {"env.UNKNOWN": 1}}

    kind: Literal["settings"]
    steps: Count = Field(ge=3, description="Optimizer steps of each run: about five rows of what the trainer logs.")
    repeats: Count = Field(2, ge=2, description="Runs as declared.")
    warmup_steps: Count | None = Field(0, ge=0, description="Steps that never count as steady.")
    change: dict[str, Setting] = Field(
        min_length=1,
        description="`args.NAME` or `env.NAME` to another value than the declared one. A number in the trainer's "
        "command is replaced where it is; a setting that is not in it is added, as the others are written.",
    )
    confirm: dict[str, Setting] = Field(
        default_factory=dict,
        description="Settings with the values that a config file gives them. One run has all of them in its command, "
        "and must do the same as the runs as declared.",
    )
    seed: Count | None = Field(
        None,
        ge=0,
        description="Set in Python, NumPy and torch before the trainer's first line, for a trainer that sets none "
        "itself: a folder in front of PYTHONPATH does it.",
    )
    decide_all: bool = Field(
        True,
        description="Whether a setting on which the runs do not decide keeps the phase from passing; else it is "
        "reported only.",
    )

    @field_validator("change", "confirm")
    @classmethod
    def _named(cls, value: dict[str, Setting]) -> dict[str, Setting]:
        for key in value:
            if not re.fullmatch(r"(env\.[A-Za-z_]\w*|args\.[A-Za-z_][\w.-]*)", key):
                name = key.lstrip("-")
                raise ValueError(f"{key!r} names no setting; write args.{name} or env.{name}")
        return value


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


class DeterminismPhase(TrainingPhase):
    """Do the same steps give the same losses, on each GPU alone, twice, and on all GPUs alike?

    Losses are compared digit by digit. A GPU whose losses differ from those of the others, or from its own, is named; a
    trainer that differs from itself everywhere says nothing of GPUs. The bundled trainer runs with `deterministic`.
    """

    instrumented = of_machine = True

    kind: Literal["determinism"]
    nproc: Count | None = Field(1, ge=0, le=1, description="1 under torchrun, 0 by plain python.")
