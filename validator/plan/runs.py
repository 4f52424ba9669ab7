"""The runs of one phase: its kind says which, and the planner makes them."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from validator.kinds.registry import PlannedArm, env_of, kind_of
from validator.model.cluster import Groups
from validator.model.launching import ProbeModule
from validator.model.plan import Contained, PhasePlan, Role, RunSpec, Started
from validator.model.record import RunRecord
from validator.model.remedy import Remedy
from validator.model.runbook import Phase, PhaseBase, ProcessPhase, Runbook, Setting, TrainingPhase
from validator.model.settings import (
    args_of,
    fill,
    flat_name,
    groups_of,
    launcher_of,
    nproc_of,
    pause_every_of,
    remedies_of,
    retries_of,
    timeout_of,
    tokens_of,
    warmup_of,
    watchdog_of,
)
from validator.plan.command import environment, filled, flags, values_of
from validator.plan.container import contained, passed_names
from validator.plan.launchers import launched, own_probe, trainer_python
from validator.startup import shipped


def plan_phase(
    runbook: Runbook,
    phase: Phase,
    *,
    run_dir: Path,
    python: str = sys.executable,
    adopted: Mapping[str, Setting] | None = None,
    remedy: Remedy | None = None,
) -> PhasePlan:
    """The runs of one phase, in the order in which they are started.

    Args:
        adopted: settings that earlier phases chose (`env.NAME` or `args.NAME`); they reach phases that run the trainer,
            below what the phase itself sets.
        remedy: what is tried after the phase has failed; its settings go over all others, its runs are filed apart.

    Raises:
        UnknownKind: when no kind of that name is known.
    """
    python = trainer_python(runbook.trainer, own=python)
    planner = PhasePlanner(runbook, run_dir, python, adopted or {}, remedy, groups_of(runbook, phase))
    remedies = () if remedy is not None else tuple(one.name for one in remedies_of(phase))
    return PhasePlan(
        phase=phase.id,
        kind=phase.kind,
        runs=tuple(kind_of(phase.kind).runs(phase, planner)),
        remedies=remedies,
        expected_s=_expected_s(phase, remedy),
    )


def plan_further(
    runbook: Runbook, phase: Phase, runs: Sequence[RunRecord], *, run_dir: Path, python: str = sys.executable
) -> PhasePlan:
    """What the runs of a phase call for next on a cluster: rounds of the slow-node search."""
    python = trainer_python(runbook.trainer, own=python)
    planner = PhasePlanner(runbook, run_dir, python, groups=groups_of(runbook, phase))
    return PhasePlan(phase=phase.id, kind=phase.kind, runs=tuple(kind_of(phase.kind).further(phase, planner, runs)))


def _expected_s(phase: Phase, remedy: Remedy | None) -> float | None:
    if phase.expected is None or remedy is None or remedy.steps is None or not isinstance(phase, TrainingPhase):
        return phase.expected
    return phase.expected * min(1.0, remedy.steps / phase.steps)


@dataclass(frozen=True)
class PhasePlanner:
    """What all runs of a phase share, and how each is made (`validator.kinds.base.Planner`)."""

    runbook: Runbook
    run_dir: Path
    python: str
    adopted: Mapping[str, Setting] = field(default_factory=dict)
    remedy: Remedy | None = None
    groups: Groups = ()

    @property
    def nodes(self) -> int:
        """Nodes that work together in a run; 0 without a cluster."""
        return len(self.groups[0]) if self.groups else 0

    def among(self, groups: Groups) -> PhasePlanner:
        """The same on other groups of nodes."""
        return replace(self, groups=groups)

    def values(self, phase: PhaseBase, *parts: str, nproc: int = 0) -> dict[str, object]:
        """What each placeholder means in the run `parts` of the phase; `out` is its folder."""
        place = self._place(phase, *parts)
        return values_of(phase, run_dir=self.run_dir, python=self.python, place=place, nproc=nproc, groups=self.groups)

    def probe(self, nproc: int, values: Mapping[str, object], module: ProbeModule = "probe") -> tuple[str, ...]:
        """What starts probes in `nproc` processes, on each node of a group; 0 starts one without torchrun. Their
        arguments may follow."""
        return own_probe(self.python, nproc, str(values["out"]), nodes=self.nodes, module=module)

    def flags(
        self, phase: TrainingPhase, values: Mapping[str, object], *, without: Sequence[str] = ()
    ) -> tuple[str, ...]:
        """The trainer's arguments in a run of the phase, as words of a command."""
        arguments = self._arguments(phase, {}, {**values, "steps": phase.steps})
        return tuple(flags({key: value for key, value in arguments.items() if flat_name(key) not in without}))

    def process(
        self,
        phase: PhaseBase,
        argv: Sequence[str],
        *,
        part: str = "r1",
        launcher: Started = "python",
        role: Role = "measure",
        nproc: int = 0,
        timeout_s: float | None = None,
        retries: int | None = None,
        stdout: str | None = None,
    ) -> RunSpec:
        """A run of any program, `argv` as it is started; by default with the time and the retries of the phase."""
        place = self._place(phase, part)
        env = self.runbook.defaults.env
        if isinstance(phase, ProcessPhase):
            env = self._env(phase, {})
            timeout_s = timeout_of(self.runbook, phase) if timeout_s is None else timeout_s
            retries = retries_of(self.runbook, phase) if retries is None else retries
        added = environment(env, self.values(phase, part, nproc=nproc), launcher=launcher, nodes=self.nodes)
        return RunSpec(
            id=place,
            phase=phase.id,
            kind=phase.kind,
            role=role,
            remedy=None if self.remedy is None else self.remedy.name,
            launcher=launcher,
            argv=tuple(argv) if launcher == "exec" else self._inside(argv, added, workdir=None),
            env=added,
            python=None if launcher == "exec" else self._own_python,
            container=None if launcher == "exec" else self._container(added),
            groups=self.groups if role != "smoke" else self.groups[:1] and ((self.groups[0][0],),),
            out=f"runs/{place}",
            nproc=nproc * max(1, self.nodes),
            timeout_s=self.runbook.defaults.timeout if timeout_s is None else timeout_s,
            retries=retries or 0,
            stdout_groups=stdout,
        )

    def training(
        self,
        phase: TrainingPhase,
        arm: PlannedArm,
        *,
        repeat: int,
        role: Role = "measure",
        command: Sequence[str] | None = None,
    ) -> RunSpec:
        """A run of the trainer as one arm of the phase; `command` is what starts it in place of `trainer.command`."""
        runbook, remedy = self.runbook, self.remedy
        nproc = nproc_of(runbook, phase)
        steps = phase.steps if remedy is None or remedy.steps is None else remedy.steps
        place = self._place(phase, arm.name, f"r{repeat}")
        values = values_of(
            phase,
            run_dir=self.run_dir,
            python=self.python,
            place=place,
            arm=arm.name,
            repeat=repeat,
            nproc=nproc,
            groups=self.groups,
        )
        values["steps"] = steps
        arguments = self._arguments(phase, arm.args, values)
        trainer, launcher = runbook.trainer, launcher_of(runbook, nproc)
        started = launched(
            launcher,
            tuple(fill(word, values) for word in (trainer.command if command is None else command)),
            args=tuple(fill(word, values) for word in trainer.launcher_args),
            python=self.python,
            nproc=nproc,
            out=str(values["out"]),
            nodes=self.nodes,
            bundled=trainer.bundled and command is None,
        )
        added = environment(self._env(phase, arm.env), values, launcher=launcher, nodes=self.nodes)
        cwd = None if trainer.folder is None else fill(trainer.folder, values)
        return RunSpec(
            id=place,
            phase=phase.id,
            kind=phase.kind,
            arm=arm.name,
            repeat=repeat,
            role=role,
            remedy=None if remedy is None else remedy.name,
            launcher=launcher,
            argv=self._inside((*started, *flags(arguments)), added, workdir=cwd),
            env=added,
            python=self._own_python,
            container=self._container(added),
            cwd=cwd,
            groups=self.groups,
            out=f"runs/{place}",
            nproc=nproc * max(1, self.nodes),
            steps=steps,
            stop=trainer.stop,
            max_steps=trainer.max_steps,
            warmup_steps=warmup_of(runbook, phase),
            tokens_per_step=tokens_of(runbook, phase),
            pause_every=pause_every_of(runbook, phase),
            timeout_s=timeout_of(runbook, phase),
            retries=retries_of(runbook, phase),
            requested={flat_name(key): value for key, value in arguments.items()},
            settings=arm.settings,
            metrics=trainer.metrics,
            log_contains=phase.log_contains,
            watchdog=watchdog_of(runbook, phase),
        )

    @property
    def _own_python(self) -> str | None:
        """The trainer's Python where it has one of its own on this machine."""
        trainer = self.runbook.trainer
        return self.python if trainer.python is not None and trainer.container is None else None

    def _container(self, env: Mapping[str, str]) -> Contained | None:
        declared = self.runbook.trainer.container
        return None if declared is None else Contained(engine=declared.engine, passed=passed_names(env))

    def _inside(self, argv: Sequence[str], env: Mapping[str, str], *, workdir: str | None) -> tuple[str, ...]:
        """The command in the trainer's container, where it has one."""
        declared = self.runbook.trainer.container
        if declared is None:
            return tuple(argv)
        return contained(
            declared,
            argv,
            passed=passed_names(env),
            run_dir=Path(os.path.abspath(self.run_dir)),  # noqa: PTH100 - as for {out}
            workdir=os.path.abspath(workdir or "."),  # noqa: PTH100
            read_only=(nsa,) if (nsa := str(shipped("nsa"))) in argv else (),
        )

    def _place(self, phase: PhaseBase, *parts: str | None) -> str:
        """The folder of a run, which is its id as well."""
        tried = None if self.remedy is None else f"remedy-{self.remedy.name}"
        return "/".join(part for part in (phase.id, tried, *parts) if part)

    def _arguments(
        self, phase: TrainingPhase, arm: Mapping[str, Setting], values: Mapping[str, object]
    ) -> dict[str, Setting]:
        """The trainer's arguments; a remedy's go over all others."""
        over = {} if self.remedy is None else self.remedy.args
        taken = {flat_name(key) for key in over}
        arm = {**{key: value for key, value in arm.items() if flat_name(key) not in taken}, **over}
        declared = args_of(self.runbook, phase, adopted=self.adopted, arm=arm)
        return {key: filled(value, values) for key, value in declared.items()}

    def _env(self, phase: ProcessPhase, arm: Mapping[str, Setting]) -> dict[str, Setting]:
        over = {} if self.remedy is None else self.remedy.env
        return {**env_of(self.runbook, phase, adopted=self.adopted, arm=arm), **over}
