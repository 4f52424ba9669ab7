"""The phases that look inside the steps of the trainer: their keys, and the numbers that their criteria may name.

Field descriptions are the text of `docs/runbook-reference.md`, so keep them exact. Annotations are no texts, as in
`phases`.
"""

from typing import Literal

from pydantic import Field, field_validator, model_validator

from validator.model.catalogue import AUDIT, PROFILE
from validator.model.parts import Count
from validator.model.training_phases import TrainingPhase
from validator.model.units import Flag

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
    nsys: Flag = Field(
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
