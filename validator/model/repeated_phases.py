"""The phases that run the same steps again and compare the losses digit by digit: their keys.

Field descriptions are the text of `docs/runbook-reference.md`, so keep them exact. Annotations are no texts, as in
`phases`.
"""

import re
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator

from validator.model.parts import Count, Setting
from validator.model.training_phases import TrainingPhase
from validator.model.units import Flag


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
    decide_all: Flag = Field(
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


class DeterminismPhase(TrainingPhase):
    """Do the same steps give the same losses, on each GPU alone, twice, and on all GPUs alike?

    Losses are compared digit by digit. A GPU whose losses differ from those of the others, or from its own, is named; a
    trainer that differs from itself everywhere says nothing of GPUs. The bundled trainer runs with `deterministic`.
    """

    instrumented = of_machine = True

    kind: Literal["determinism"]
    nproc: Count | None = Field(1, ge=0, le=1, description="1 under torchrun, 0 by plain python.")
