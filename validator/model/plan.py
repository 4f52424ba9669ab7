"""The plan: exactly what will be started, where and with what timeout."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from validator.model.cluster import Groups
from validator.model.launching import Engine, Launcher, Stop
from validator.model.runbook import PhaseBase, Setting, TrainerMetrics, TrainingPhase, Watchdog
from validator.model.schemas import KindName, schema_of
from validator.model.units import Frozen, PathBelow

Started = Literal["exec", Launcher]
"""`exec` is a program of a phase that runs no trainer; the others are launchers of the trainer."""

Role = Literal["measure", "smoke", "nsys", "round", "changed"]
"""`measure` decides the phase, `smoke` is the data-loader smoke test, `nsys` only leaves evidence, `round` belongs to
the slow-node search, `changed` runs another config on purpose, to be compared with the declared one."""


class Contained(Frozen):
    """The container that the command of a run starts."""

    engine: Engine
    passed: tuple[str, ...] = Field(description="Names of the variables that are passed into it.")


class RunSpec(Frozen):
    """One process tree to be started.

    `argv` may hold `{port}` and `{container}`, which the supervisor replaces at each attempt by a free port and a name.
    `out` is relative to the run folder, so that a moved folder can be judged again.
    """

    id: str = Field(description="Unique in the plan and fit for a path: `buckets/25/r1`.")
    phase: str
    kind: KindName
    arm: str | None = None
    repeat: int = Field(1, ge=1, description="1-based.")
    role: Role = "measure"
    remedy: str | None = Field(None, description="The remedy that is tried by this run, after the phase had failed.")
    launcher: Started
    argv: tuple[str, ...]
    env: dict[str, str] = Field(description="Added to the environment, never replacing it.")
    python: str | None = Field(
        None, description="The trainer's own interpreter, where that is not validator's: its folder is first in PATH."
    )
    container: Contained | None = None
    cwd: str | None = None
    groups: Groups = Field((), description="Nodes, by their index, that work at the same time; none: this machine.")
    out: PathBelow
    nproc: int = Field(0, ge=0, description="Ranks of a group, by the launcher or the trainer itself; 0 where unknown.")
    steps: int | None = None
    stop: Stop = Field("trainer", description="What ends it.")
    max_steps: int | None = Field(None, description="Steps that the trainer does at most, as declared.")
    warmup_steps: int = 0
    tokens_per_step: int | None = Field(None, description="Tokens of an optimizer step, all ranks, as declared.")
    pause_every: int | None = Field(None, description="Steps from one pause to the next, as declared.")
    timeout_s: float
    retries: int = 0
    requested: dict[str, Setting] = Field(
        default_factory=dict, description="Trainer arguments by flat name, placeholders filled in."
    )
    settings: dict[str, Setting] = Field(
        default_factory=dict, description="What distinguishes this arm: `env.NAME` or `args.NAME` to value."
    )
    metrics: TrainerMetrics = Field(default_factory=TrainerMetrics)
    log_contains: tuple[str, ...] = Field((), description="Texts that rank 0 must print.")
    stdout_groups: str | None = Field(
        None, description="For a command: regular expression whose groups' last matches become `metrics.<group>`."
    )
    watchdog: Watchdog | None = None

    @property
    def trains(self) -> bool:
        """Whether it is a run of the trainer."""
        return self.role != "smoke" and issubclass(self.phase_model, TrainingPhase)

    @property
    def phase_model(self) -> type[PhaseBase]:
        """The model of its kind of phase."""
        return schema_of(self.kind)

    @property
    def ends_there_itself(self) -> bool:
        """Whether validator ends the run behind steps that are all the trainer does, so that it may end by itself."""
        return self.ended_at is not None and self.ended_at == self.max_steps

    @property
    def ended_at(self) -> int | None:
        """The steps behind which validator ends the run; None where the trainer ends it."""
        return self.steps if self.stop == "at_steps" else None

    @property
    def ranks(self) -> int | None:
        """Ranks of the run; None for a process of which no number is known: it may start any number of workers."""
        return self.nproc or None

    @property
    def world_size(self) -> int:
        """Ranks of the run as far as the plan says: 1 for a plain process."""
        return self.ranks or 1


class PhasePlan(Frozen):
    """A phase and its runs, in the order in which they are started (arms interleaved)."""

    phase: str
    kind: KindName
    runs: tuple[RunSpec, ...]
    skipped: str | None = Field(None, description="Why the phase will not run (`--only`, `--skip`), if so.")
    remedies: tuple[str, ...] = Field((), description="What is tried when it fails, each once, in this order.")
    expected_s: float | None = Field(None, description="How long all its runs take as a rule, if declared.")


class Plan(Frozen):
    """All phases of a runbook, in order."""

    runbook: str
    phases: tuple[PhasePlan, ...]

    @property
    def runs(self) -> tuple[RunSpec, ...]:
        """Every run of every phase, in order."""
        return tuple(run for phase in self.phases for run in phase.runs)
