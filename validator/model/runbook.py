"""The runbook: what a person declares.

`docs/runbook-reference.md` and the JSON Schema are generated from these models. The parts are in
`validator.model.parts`, the phases in `validator.model.phases`; those that others need can be imported from here.
"""

from typing import Any, Literal

from pydantic import Field, model_validator

from validator.model.cluster import Cluster as Cluster
from validator.model.metrics import BUNDLED_METRICS as BUNDLED_METRICS
from validator.model.metrics import ExtraSeries as ExtraSeries
from validator.model.metrics import TrainerMetrics as TrainerMetrics
from validator.model.parts import Arm as Arm
from validator.model.parts import Choose as Choose
from validator.model.parts import Criterion as Criterion
from validator.model.parts import Defaults as Defaults
from validator.model.parts import Hardware as Hardware
from validator.model.parts import Setting as Setting
from validator.model.parts import Trainer as Trainer
from validator.model.parts import Watchdog as Watchdog
from validator.model.phases import CommandPhase as CommandPhase
from validator.model.phases import PhaseBase as PhaseBase
from validator.model.phases import PreflightPhase as PreflightPhase
from validator.model.phases import ProcessPhase as ProcessPhase
from validator.model.phases import PytestPhase as PytestPhase
from validator.model.schemas import Phase as Phase
from validator.model.training_phases import ArmsPhase as ArmsPhase
from validator.model.training_phases import DataPhase as DataPhase
from validator.model.training_phases import SoakPhase as SoakPhase
from validator.model.training_phases import TrainingPhase as TrainingPhase
from validator.model.training_phases import TrainPhase as TrainPhase
from validator.model.units import Frozen


class Runbook(Frozen):
    """A whole runbook."""

    schema_version: Literal[1] = Field(alias="schema", description="Version of this format.")
    name: str = Field(
        pattern=r"^[a-z0-9][a-z0-9-]*$",
        description="Short name, used in folder names: lower case letters, digits and hyphens.",
    )
    title: str | None = Field(None, description="Heading of the report; default is the name.")
    description: str | None = Field(None, description="What the runbook decides, in a sentence or two.")
    hardware: Hardware = Field(default_factory=Hardware, description="What the runbook was written for.")
    cluster: Cluster | None = Field(None, description="Several machines; without it everything runs on this one.")
    trainer: Trainer = Field(default_factory=Trainer, description="The program under validation.")
    defaults: Defaults = Field(default_factory=Defaults, description="Values for every phase that sets none.")
    secrets: tuple[str, ...] = Field(
        (),
        description="Names of variables and arguments whose values are secret although their names do not say so.",
    )
    phases: tuple[Phase, ...] = Field(min_length=1, description="What runs, in this order.")

    @model_validator(mode="before")
    @classmethod
    def _own_ranks(cls, data: Any) -> Any:
        """How many ranks a trainer starts itself is not known unless the runbook says so."""
        if not isinstance(data, dict):
            return data
        trainer, defaults = data.get("trainer"), data.get("defaults", {})
        if not isinstance(trainer, dict) or not isinstance(defaults, dict):
            return data
        if trainer.get("launcher") not in ("python", "plain") or "nproc" in defaults:
            return data
        return {**data, "defaults": {**defaults, "nproc": 0}}

    def phase(self, phase_id: str) -> Phase:
        """The phase of that id; KeyError if there is none."""
        for phase in self.phases:
            if phase.id == phase_id:
                return phase
        raise KeyError(phase_id)
