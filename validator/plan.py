"""A runbook becomes a plan: every process that will be started, with its exact command, folder and budget.

Pure: the plan of the same runbook, folder, interpreter and environment is always the same, so that `--dry-run` shows
what `run` does. Arms of a sweep or an A/B are interleaved (forwards, backwards, forwards …), so that a drift of the
machine hits every arm alike.
"""

from __future__ import annotations

import difflib
import hashlib
import itertools
import os
import re
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from validator.model.placeholders import fill, sole_placeholder
from validator.model.plan import Launcher, PhasePlan, Plan, RunSpec
from validator.model.runbook import (
    AbPhase,
    CommandPhase,
    Phase,
    ProcessPhase,
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
    repeats_of,
    retries_of,
    setting_text,
    timeout_of,
    warmup_of,
    watchdog_of,
)

__all__ = ["PlanError", "launch_words", "make_plan", "plan_phase", "selected"]

FLIGHT_RECORDER = {
    "TORCH_FR_BUFFER_SIZE": "2000",
    "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
}
"""Keep the last collectives of each rank, so that a stall names the one that hangs. Older torch reads the second."""

_MAX_ARM_CHARS = 80

_Training = TrainPhase | SweepPhase | AbPhase | SoakPhase


class PlanError(ValueError):
    """A phase that was asked for does not exist; the message names the nearest one."""


@dataclass(frozen=True)
class _Arm:
    """One configuration of a phase: what it adds, and the name under which it is filed."""

    name: str | None = None
    env: Mapping[str, Setting] = field(default_factory=dict)
    args: Mapping[str, Setting] = field(default_factory=dict)

    @property
    def settings(self) -> dict[str, Setting]:
        return {**{f"env.{k}": v for k, v in self.env.items()}, **{f"args.{k}": v for k, v in self.args.items()}}


def make_plan(
    runbook: Runbook,
    *,
    run_dir: Path,
    python: str = sys.executable,
    only: Sequence[str] = (),
    skip: Sequence[str] = (),
) -> Plan:
    """The plan of a whole runbook, as far as it is known before anything has run (no winner adopted yet).

    Args:
        run_dir: folder of the validation; runs are filed below it.
        python: interpreter that starts the trainer.
        only: phases to run, with those that they need; every phase when empty.
        skip: phases to leave out.

    Raises:
        PlanError: when `only` or `skip` names a phase that does not exist.
    """
    reasons = selected(runbook, only=only, skip=skip)
    return Plan(
        runbook=runbook.name,
        phases=tuple(
            PhasePlan(phase=phase.id, kind=phase.kind, runs=(), skipped=reasons[phase.id])
            if phase.id in reasons
            else plan_phase(runbook, phase, run_dir=run_dir, python=python)
            for phase in runbook.phases
        ),
    )


def selected(runbook: Runbook, *, only: Sequence[str] = (), skip: Sequence[str] = ()) -> dict[str, str]:
    """Phases that will not run because of `only` and `skip`: id to reason.

    Raises:
        PlanError: when either names a phase that does not exist.
    """
    ids = [phase.id for phase in runbook.phases]
    for option, names in (("--only", only), ("--skip", skip)):
        for name in names:
            if name not in ids:
                close = difflib.get_close_matches(name, ids, n=1, cutoff=0.5)
                fix = f"did you mean {close[0]}?" if close else f"phases: {', '.join(ids)}"
                raise PlanError(f"{option} {name}: the runbook has no such phase; {fix}")
    wanted = _with_needs(runbook, only) if only else set(ids)
    reasons = {phase_id: f"not among --only {' '.join(only)}" for phase_id in ids if phase_id not in wanted}
    reasons.update((name, "left out by --skip") for name in skip)
    return reasons


def _with_needs(runbook: Runbook, names: Sequence[str]) -> set[str]:
    found: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += runbook.phase(name).needs
    return found


def plan_phase(
    runbook: Runbook,
    phase: Phase,
    *,
    run_dir: Path,
    python: str = sys.executable,
    adopted: Mapping[str, Setting] | None = None,
) -> PhasePlan:
    """The runs of one phase, in the order in which they are started.

    Args:
        adopted: settings that earlier phases chose (`env.NAME` or `args.NAME`); they reach phases that run the trainer,
            below what the phase itself sets.
    """
    specs: Iterator[RunSpec]
    if isinstance(phase, TrainingPhase):
        specs = _training_runs(runbook, phase, run_dir=run_dir, python=python, adopted=adopted or {})
    elif isinstance(phase, CommandPhase):
        specs = iter((_command_run(runbook, phase, run_dir=run_dir, python=python),))
    elif isinstance(phase, PytestPhase):
        specs = iter((_pytest_run(runbook, phase, run_dir=run_dir, python=python),))
    else:
        specs = iter(())
    return PhasePlan(phase=phase.id, kind=phase.kind, runs=tuple(specs))


def _arms(phase: _Training) -> tuple[_Arm, ...]:
    if isinstance(phase, AbPhase):
        return tuple(_Arm(name, arm.env, arm.args) for name, arm in phase.arms.items())
    if isinstance(phase, SweepPhase):
        combinations = [
            dict(zip(phase.over, values, strict=True)) for values in itertools.product(*phase.over.values())
        ]
        return tuple(
            _Arm(
                _arm_name(settings),
                {key[4:]: value for key, value in settings.items() if key.startswith("env.")},
                {key[5:]: value for key, value in settings.items() if key.startswith("args.")},
            )
            for settings in combinations
        )
    return (_Arm(),)


def _arm_name(settings: Mapping[str, Setting]) -> str:
    """A name fit for a folder: the value alone when one setting is swept, `name=value` pairs otherwise."""
    texts = {key.split(".", 1)[1]: _value_text(value) for key, value in settings.items()}
    name = next(iter(texts.values())) if len(texts) == 1 else ",".join(f"{k}={v}" for k, v in texts.items())
    safe = re.sub(r"[^A-Za-z0-9._=,+-]", "_", name)
    if safe == name and 0 < len(safe) <= _MAX_ARM_CHARS and not safe.startswith("."):
        return safe
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]  # two values may look alike once made safe
    return f"{safe[:_MAX_ARM_CHARS].lstrip('.')}-{digest}"


def _value_text(value: Setting) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return setting_text(value)


def _training_runs(
    runbook: Runbook, phase: _Training, *, run_dir: Path, python: str, adopted: Mapping[str, Setting]
) -> Iterator[RunSpec]:
    arms = _arms(phase)
    for repeat in range(1, repeats_of(runbook, phase) + 1):
        for arm in arms if repeat % 2 else arms[::-1]:
            yield _training_run(runbook, phase, arm, repeat=repeat, run_dir=run_dir, python=python, adopted=adopted)


def _training_run(
    runbook: Runbook,
    phase: _Training,
    arm: _Arm,
    *,
    repeat: int,
    run_dir: Path,
    python: str,
    adopted: Mapping[str, Setting],
) -> RunSpec:
    nproc = nproc_of(runbook, phase)
    place = "/".join(part for part in (phase.id, arm.name, f"r{repeat}") if part)
    values = _values(phase, run_dir=run_dir, python=python, place=place, arm=arm.name, repeat=repeat, nproc=nproc)
    values["steps"] = phase.steps
    arguments = {
        key: _filled(value, values) for key, value in args_of(runbook, phase, adopted=adopted, arm=arm.args).items()
    }
    launch = _torchrun(python, nproc, str(values["out"])) if nproc else (python,)
    command = tuple(fill(word, values) for word in runbook.trainer.command)
    env = env_of(runbook, phase, adopted=adopted, arm=arm.env)
    cwd = runbook.trainer.cwd
    return RunSpec(
        id=place,
        phase=phase.id,
        kind=phase.kind,
        arm=arm.name,
        repeat=repeat,
        launcher="torchrun" if nproc else "python",
        argv=(*launch, *command, *_flags(arguments)),
        env=_environment(env, values, launcher="torchrun" if nproc else "python"),
        cwd=None if cwd is None else fill(cwd, values),
        out=f"runs/{place}",
        nproc=nproc,
        steps=phase.steps,
        warmup_steps=warmup_of(runbook, phase),
        timeout_s=timeout_of(runbook, phase),
        retries=retries_of(runbook, phase),
        requested={flat_name(key): value for key, value in arguments.items()},
        settings=arm.settings,
        metrics=runbook.trainer.metrics,
        log_contains=phase.log_contains,
        watchdog=watchdog_of(runbook, phase),
    )


def _values(
    phase: ProcessPhase,
    *,
    run_dir: Path,
    python: str,
    place: str,
    arm: str | None = None,
    repeat: int = 1,
    nproc: int = 0,
) -> dict[str, object]:
    """What each placeholder stands for in one run."""
    folder = Path(os.path.abspath(run_dir))  # noqa: PTH100 - resolve() would follow links that people chose
    return {
        "steps": "",
        "out": folder / "runs" / place,
        "nproc": nproc,
        "run_dir": folder,
        "python": python,
        "stdlib": sysconfig.get_path("stdlib"),
        "phase": phase.id,
        "arm": arm or "",
        "repeat": repeat,
    }


def _filled(value: Setting, values: Mapping[str, object]) -> Setting:
    """A setting with its placeholders filled in; a number that stands alone stays a number."""
    if not isinstance(value, str):
        return value
    name = sole_placeholder(value)
    if name is not None and isinstance(number := values.get(name), int):
        return number
    return fill(value, values)


def _torchrun(python: str, nproc: int, out: str) -> tuple[str, ...]:
    return (
        *(python, "-m", "torch.distributed.run"),
        *("--nproc-per-node", str(nproc)),
        *("--master-addr", "127.0.0.1", "--master-port", "{port}"),
        *("--log-dir", f"{out}/logs/ranks", "--redirects", "3"),
    )


def _flags(arguments: Mapping[str, Setting]) -> Iterator[str]:
    """`--key value`; true is `--key` alone, false is left out. A key that brings its own dashes keeps them."""
    for key, value in arguments.items():
        flag = key if key.startswith("-") else f"--{key}"
        if value is True:
            yield flag
        elif value is not False:
            yield flag
            yield setting_text(value)


def _environment(env: Mapping[str, Setting], values: Mapping[str, object], *, launcher: Launcher) -> dict[str, str]:
    """What is added to the environment. The flight recorder is on unless the user set its variables already."""
    added = {"PYTHONUNBUFFERED": "1"}
    if launcher == "torchrun":
        added.update((name, value) for name, value in FLIGHT_RECORDER.items() if name not in os.environ)
    added.update((name, fill(setting_text(value), values)) for name, value in env.items())
    return added


def _process_run(
    runbook: Runbook, phase: ProcessPhase, argv: Sequence[str], *, launcher: Launcher, values: Mapping[str, object]
) -> RunSpec:
    place = f"{phase.id}/r1"
    return RunSpec(
        id=place,
        phase=phase.id,
        kind="command" if isinstance(phase, CommandPhase) else "pytest",
        launcher=launcher,
        argv=tuple(argv),
        env=_environment(env_of(runbook, phase), values, launcher=launcher),
        out=f"runs/{place}",
        timeout_s=timeout_of(runbook, phase),
        retries=retries_of(runbook, phase),
        stdout_groups=phase.stdout if isinstance(phase, CommandPhase) else None,
    )


def _command_run(runbook: Runbook, phase: CommandPhase, *, run_dir: Path, python: str) -> RunSpec:
    values = _values(phase, run_dir=run_dir, python=python, place=f"{phase.id}/r1")
    words = ("/bin/sh", "-c", phase.run) if isinstance(phase.run, str) else phase.run
    return _process_run(runbook, phase, [fill(word, values) for word in words], launcher="exec", values=values)


def _pytest_run(runbook: Runbook, phase: PytestPhase, *, run_dir: Path, python: str) -> RunSpec:
    """Tests run with none of the options of whatever project the user happens to stand in."""
    values = _values(phase, run_dir=run_dir, python=python, place=f"{phase.id}/r1")
    argv = [python, "-m", "pytest", "-p", "no:cacheprovider", "--junitxml", f"{values['out']}/junit.xml"]
    argv += ["-o", "addopts=", *(fill(word, values) for word in phase.args)]
    argv += ["--pyargs", *(fill(word, values) for word in phase.targets)]
    argv += ["-k", phase.keyword] if phase.keyword is not None else []
    return _process_run(runbook, phase, argv, launcher="python", values=values)


def launch_words(runbook: Runbook, phase: _Training, spec: RunSpec) -> tuple[str, ...]:
    """The command that a person would type to train with the settings of `spec`, on and on.

    What only the validation needs is left out: its log folder, and arguments that hold `{steps}` or `{out}`.
    """
    declared = args_of(runbook, phase)
    spelled = {flat_name(key): key for key in declared}
    ours = {flat_name(key) for key, value in declared.items() if "{steps}" in str(value) or "{out}" in str(value)}
    arguments = {spelled.get(name, name): value for name, value in spec.requested.items() if name not in ours}
    launch = ("torchrun", f"--nproc-per-node={spec.nproc}") if spec.nproc else ("python",)
    return (*launch, *runbook.trainer.command, *_flags(arguments))
