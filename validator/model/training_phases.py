"""What every phase that runs the trainer has, and the models of kinds that others name: keys, and numbers of criteria.

Field descriptions are the text of `docs/runbook-reference.md`, so keep them exact. Annotations are no texts, as in
`phases`.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from validator.model.catalogue import COST, NODES, SMOKE, TRAINING
from validator.model.cluster import On
from validator.model.parts import (
    Argument,
    Choose,
    Count,
    Hardware,
    Identifier,
    Setting,
    Trainer,
    Watchdog,
)
from validator.model.phases import ProcessPhase
from validator.model.units import Duration, Flag


class TrainingPhase(ProcessPhase):
    """A phase that runs the trainer."""

    scalars = TRAINING
    on_cluster: ClassVar[On] = "all"
    filled: ClassVar[tuple[str, ...]] = ("args",)
    substitutes: ClassVar[Mapping[str, Any]] = {"steps": 10**9}

    steps: Count = Field(ge=1, description="Optimizer steps of each run.")
    steps_open: Flag = Field(
        False,
        description="Whether nothing says how many steps the trainer does by itself, and `steps` is a guess. A run "
        "that ends by itself before, with exit code 0, is INCONCLUSIVE then, not a failure. "
        "`validator run -- COMMAND` sets it.",
    )
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
    extend: Flag | None = Field(
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


class SoakPhase(TrainingPhase):
    """A long run under the watchdog: rate, memory and gates must stay steady to the end."""

    scalars = COST
    one_config = compared = True

    kind: Literal["soak"]
    extend: Flag | None = Field(
        None,
        description="Whether the phase is run once more when a required criterion is inconclusive because its interval "
        "contains the bound, and one more run would decide it if what was observed is right.",
    )


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
