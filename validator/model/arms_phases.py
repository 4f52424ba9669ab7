"""The phases that compare arms: their keys.

Field descriptions are the text of `docs/runbook-reference.md`, so keep them exact. Annotations are no texts, as in
`phases`.
"""

import re
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from validator.model.parts import Arm, Identifier, Setting
from validator.model.training_phases import ArmsPhase


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
                fix = f"write env.{key.split('.')[-1]} or args.{key.split('.')[-1]}"
                if key == "on":  # other nodes are no setting, of which one would be chosen
                    fix = "write a train phase for each number of nodes, with on: 1 and scaling_against in one of them"
                raise ValueError(f"over has {key!r}; {fix}")
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
