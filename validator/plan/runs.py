"""The runs of one phase, in the order in which they are started."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from validator.model.placeholders import fill
from validator.model.plan import Launcher, PhasePlan, RunSpec
from validator.model.remedy import Remedy
from validator.model.runbook import (
    AbPhase,
    AuditPhase,
    CommandPhase,
    DataPhase,
    Phase,
    PhaseBase,
    PreflightPhase,
    ProcessPhase,
    ProfilePhase,
    PytestPhase,
    Runbook,
    Setting,
    SoakPhase,
    SweepPhase,
    TrainingPhase,
    TrainPhase,
)
from validator.model.settings import (
    args_of,
    env_of,
    flat_name,
    nproc_of,
    pause_every_of,
    probes,
    remedies_of,
    repeats_of,
    retries_of,
    smoke_of,
    timeout_of,
    tokens_of,
    warmup_of,
    watchdog_of,
)
from validator.plan.arms import Arm, arms_of
from validator.plan.words import environment, filled, flags, torchrun, values_of

__all__ = ["plan_phase"]

_Training = TrainPhase | SweepPhase | AbPhase | AuditPhase | ProfilePhase | SoakPhase | DataPhase


@dataclass(frozen=True)
class _Setup:
    """What all runs of a phase share."""

    runbook: Runbook
    run_dir: Path
    python: str
    adopted: Mapping[str, Setting] = field(default_factory=dict)
    remedy: Remedy | None = None

    def place(self, phase: PhaseBase, *parts: str | None) -> str:
        """The folder of a run, which is its id as well."""
        tried = None if self.remedy is None else f"remedy-{self.remedy.name}"
        return "/".join(part for part in (phase.id, tried, *parts) if part)


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
    """
    setup = _Setup(runbook, run_dir, python, adopted or {}, remedy)
    specs: Iterator[RunSpec]
    if isinstance(phase, TrainingPhase):
        specs = _training_runs(setup, phase)
    elif isinstance(phase, CommandPhase):
        specs = iter((_command_run(setup, phase),))
    elif isinstance(phase, PytestPhase):
        specs = iter((_pytest_run(setup, phase),))
    elif probes(runbook, phase):
        specs = iter((_probe_run(setup, phase),))
    else:
        specs = iter(())
    remedies = () if remedy is not None else tuple(one.name for one in remedies_of(phase))
    return PhasePlan(
        phase=phase.id, kind=phase.kind, runs=tuple(specs), remedies=remedies, expected_s=_expected_s(phase, remedy)
    )


def _expected_s(phase: Phase, remedy: Remedy | None) -> float | None:
    if phase.expected is None or remedy is None or remedy.steps is None or not isinstance(phase, TrainingPhase):
        return phase.expected
    return phase.expected * min(1.0, remedy.steps / phase.steps)


def _training_runs(setup: _Setup, phase: _Training) -> Iterator[RunSpec]:
    if isinstance(phase, DataPhase) and (words := smoke_of(setup.runbook, phase)):
        yield _smoke_run(setup, phase, words)
    arms = arms_of(phase)
    for repeat in range(1, repeats_of(setup.runbook, phase) + 1):
        for arm in arms if repeat % 2 else arms[::-1]:
            yield _training_run(setup, phase, arm, repeat=repeat)
    if isinstance(phase, ProfilePhase) and phase.nsys and (program := shutil.which("nsys")):
        yield _nsys_run(setup, phase, program)


def _training_run(setup: _Setup, phase: _Training, arm: Arm, *, repeat: int) -> RunSpec:
    runbook, remedy = setup.runbook, setup.remedy
    nproc = nproc_of(runbook, phase)
    steps = phase.steps if remedy is None or remedy.steps is None else remedy.steps
    place = setup.place(phase, arm.name, f"r{repeat}")
    values = values_of(
        phase, run_dir=setup.run_dir, python=setup.python, place=place, arm=arm.name, repeat=repeat, nproc=nproc
    )
    values["steps"] = steps
    arguments = _arguments(setup, phase, arm.args, values)
    launcher: Launcher = "torchrun" if nproc else "python"
    launch = torchrun(setup.python, nproc, str(values["out"])) if nproc else (setup.python,)
    command = tuple(fill(word, values) for word in runbook.trainer.command)
    cwd = runbook.trainer.cwd
    return RunSpec(
        id=place,
        phase=phase.id,
        kind=phase.kind,
        arm=arm.name,
        repeat=repeat,
        remedy=None if remedy is None else remedy.name,
        launcher=launcher,
        argv=(*launch, *command, *flags(arguments)),
        env=environment(_env(setup, phase, arm.env), values, launcher=launcher),
        cwd=None if cwd is None else fill(cwd, values),
        out=f"runs/{place}",
        nproc=nproc,
        steps=steps,
        warmup_steps=warmup_of(runbook, phase),
        tokens_per_step=tokens_of(runbook, phase),
        pause_every=pause_every_of(runbook, phase),
        timeout_s=timeout_of(runbook, phase),
        retries=retries_of(runbook, phase),
        requested={flat_name(key): value for key, value in arguments.items()},
        settings=arm.settings,
        metrics=runbook.trainer.metrics,
        log_contains=phase.log_contains,
        watchdog=watchdog_of(runbook, phase),
    )


def _arguments(
    setup: _Setup, phase: TrainingPhase, arm: Mapping[str, Setting], values: Mapping[str, object]
) -> dict[str, Setting]:
    """The trainer's arguments; a remedy's go over all others."""
    over = {} if setup.remedy is None else setup.remedy.args
    taken = {flat_name(key) for key in over}
    arm = {**{key: value for key, value in arm.items() if flat_name(key) not in taken}, **over}
    declared = args_of(setup.runbook, phase, adopted=setup.adopted, arm=arm)
    return {key: filled(value, values) for key, value in declared.items()}


def _env(setup: _Setup, phase: ProcessPhase, arm: Mapping[str, Setting]) -> dict[str, Setting]:
    over = {} if setup.remedy is None else setup.remedy.env
    return {**env_of(setup.runbook, phase, adopted=setup.adopted, arm=arm), **over}


def _smoke_run(setup: _Setup, phase: DataPhase, words: Sequence[str]) -> RunSpec:
    """The loader alone, in one process: it is given what the trainer is given, apart from steps and folder."""
    place = setup.place(phase, "smoke")
    values = values_of(phase, run_dir=setup.run_dir, python=setup.python, place=place)
    arguments: Mapping[str, Setting] = {}
    if phase.smoke is None:
        arguments = {
            key: value
            for key, value in _arguments(setup, phase, {}, {**values, "steps": phase.steps}).items()
            if flat_name(key) not in ("steps", "out")
        }
    return RunSpec(
        id=place,
        phase=phase.id,
        kind=phase.kind,
        role="smoke",
        remedy=None if setup.remedy is None else setup.remedy.name,
        launcher="python",
        argv=(setup.python, *(fill(word, values) for word in words), *flags(arguments)),
        env=environment(_env(setup, phase, {}), values, launcher="python"),
        out=f"runs/{place}",
        timeout_s=timeout_of(setup.runbook, phase),
    )


_PROBE_TIMEOUT_S = 300.0


def _probe_run(setup: _Setup, phase: PreflightPhase) -> RunSpec:
    """What the machine can do, measured by one process a GPU, under the variables that every run has."""
    gpus = setup.runbook.hardware.gpus
    nproc = gpus if gpus > 1 else 0
    place = setup.place(phase, "probe")
    values = values_of(phase, run_dir=setup.run_dir, python=setup.python, place=place, nproc=nproc)
    launcher: Launcher = "torchrun" if nproc else "python"
    launch = torchrun(setup.python, nproc, str(values["out"])) if nproc else (setup.python,)
    words = ("-m", "nsa.probe", "--device", "cuda" if gpus else "cpu", "--out", f"{values['out']}/probe.json")
    return RunSpec(
        id=place,
        phase=phase.id,
        kind=phase.kind,
        launcher=launcher,
        argv=(*launch, *words),
        env=environment(setup.runbook.defaults.env, values, launcher=launcher),
        out=f"runs/{place}",
        nproc=nproc,
        timeout_s=_PROBE_TIMEOUT_S,
    )


def _nsys_run(setup: _Setup, phase: ProfilePhase, program: str) -> RunSpec:
    """The run once more under Nsight Systems, without torch's profiler: both use the same interface of the GPU."""
    plain = _training_run(setup, phase, Arm("nsys", {"NSA_PROFILE_STEPS": 0}), repeat=1)
    report = Path(os.path.abspath(setup.run_dir)) / plain.out / "nsys"  # noqa: PTH100 - as for {out}
    recorder = (program, "profile", "--output", str(report), "--force-overwrite", "true")
    options = ("--trace", "cuda,nvtx,osrt", "--sample", "none")
    return plain.model_copy(update={"role": "nsys", "argv": (*recorder, *options, *plain.argv)})


def _process_run(
    setup: _Setup, phase: ProcessPhase, argv: Sequence[str], *, launcher: Launcher, values: Mapping[str, object]
) -> RunSpec:
    place = setup.place(phase, "r1")
    return RunSpec(
        id=place,
        phase=phase.id,
        kind="command" if isinstance(phase, CommandPhase) else "pytest",
        remedy=None if setup.remedy is None else setup.remedy.name,
        launcher=launcher,
        argv=tuple(argv),
        env=environment(_env(setup, phase, {}), values, launcher=launcher),
        out=f"runs/{place}",
        timeout_s=timeout_of(setup.runbook, phase),
        retries=retries_of(setup.runbook, phase),
        stdout_groups=phase.stdout if isinstance(phase, CommandPhase) else None,
    )


def _process_values(setup: _Setup, phase: ProcessPhase) -> dict[str, object]:
    return values_of(phase, run_dir=setup.run_dir, python=setup.python, place=setup.place(phase, "r1"))


def _command_run(setup: _Setup, phase: CommandPhase) -> RunSpec:
    values = _process_values(setup, phase)
    words = (*_shell(), phase.run) if isinstance(phase.run, str) else phase.run
    return _process_run(setup, phase, [fill(word, values) for word in words], launcher="exec", values=values)


def _shell() -> tuple[str, ...]:
    """What carries out a shell line: bash, where a program that fails fails its pipe (`bench | tee log`), else sh."""
    bash = shutil.which("bash")
    return (bash, "-o", "pipefail", "-c") if bash is not None else ("/bin/sh", "-c")


def _pytest_run(setup: _Setup, phase: PytestPhase) -> RunSpec:
    """Tests run with none of the options of whatever project the user happens to stand in."""
    values = _process_values(setup, phase)
    argv = [setup.python, "-m", "pytest", "-p", "no:cacheprovider", "--junitxml", f"{values['out']}/junit.xml"]
    argv += ["-o", "addopts=", *(fill(word, values) for word in phase.args)]
    argv += ["--pyargs", *(fill(word, values) for word in phase.targets)]
    argv += ["-k", phase.keyword] if phase.keyword is not None else []
    return _process_run(setup, phase, argv, launcher="python", values=values)
