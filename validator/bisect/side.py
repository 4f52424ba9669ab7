"""One end of a bisection: everything that is needed to start its run again, read from what the user names.

A run folder, a trainer's folder inside or outside one, a runbook, or a config file of the bundled trainer.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import Field

from validator.documents import parse_yaml
from validator.errors import FolderError
from validator.files import Tree
from validator.judge.config import same_value
from validator.kinds.registry import env_of, load
from validator.model.plan import RunSpec
from validator.model.runbook import Hardware, Phase, Runbook, Setting, Trainer, TrainingPhase, Watchdog
from validator.model.settings import args_of, flat_name, nproc_of, warmup_of, watchdog_of
from validator.model.units import Frozen
from validator.plan import plan_phase
from validator.runbook import find
from validator.runs.folder import RunFolder
from validator.runs.replay import events_of, started_runs
from validator.secrets.masking import clean_settings
from validator.secrets.redact import REDACTED, redact, redact_words

_STEPS = 60
_WARMUP = 10
_NOT_CONFIG = frozenset({"steps", "out", "run_name", "config", "resume"})
"""Entries of a trainer's env.json that say how long and where it ran, not what."""


class End(Frozen):
    """How one end is run: the trainer, its arguments and environment, its processes."""

    name: str
    trainer: Trainer
    secrets: tuple[str, ...] = ()
    args: dict[str, Setting] = Field(default_factory=dict, description="As declared; `{steps}` and `{out}` stay.")
    env: dict[str, Setting] = Field(default_factory=dict)
    nproc: int = 0
    steps: int = _STEPS
    warmup_steps: int = _WARMUP
    hardware: Hardware = Field(default_factory=Hardware)
    watchdog: Watchdog = Field(default_factory=Watchdog)
    run_cv: float = 0.02
    min_effect: float = 0.02


def read_end(source: Path, *, phase: str | None = None) -> End:
    """The end that `source` describes.

    Args:
        source: a run folder, a trainer's folder, a runbook, or a YAML config of the bundled trainer.
        phase: which phase of a run folder or a runbook; the first that trains by default.

    Raises:
        FolderError: when it is none of these, or says too little to be run again.
    """
    if source.is_dir():
        run_folder = next((at for at in (source, *source.resolve().parents) if (at / "run.json").is_file()), None)
        if run_folder is not None:
            return _of_run(RunFolder.open(run_folder), source, phase=phase)
        return _of_trainer_folder(source)
    if source.suffix in (".yaml", ".yml") and source.is_file():
        return _of_yaml(source, phase=phase)
    return _of_runbook(str(source), phase=phase)


def _of_run(folder: RunFolder, source: Path, *, phase: str | None) -> End:
    """A run that the journal knows, with the settings it was started with, adopted ones included."""
    specs = [spec for spec, _ in started_runs(events_of(folder)) if spec.steps is not None]
    if source.resolve() != folder.root:
        inside = source.resolve().relative_to(folder.root).as_posix()
        specs = [spec for spec in specs if spec.out == inside]
    elif phase is not None:
        specs = [spec for spec in specs if spec.phase == phase]
    if not specs:
        what = f"of phase {phase} " if phase else ""
        raise FolderError(f"{source} holds no run {what}of a trainer; name a run folder, or runs/PHASE/r1 inside one")
    return _of_spec(folder.header.runbook, specs[0], name=str(source))


def _of_runbook(source: str, *, phase: str | None) -> End:
    """A phase of a runbook, as it would be planned."""
    runbook = load(find(source)).runbook
    chosen = _phase(runbook, phase, source)
    (spec, *_) = plan_phase(runbook, chosen, run_dir=Path()).runs
    return _of_spec(runbook, spec, name=source)


def _phase(runbook: Runbook, phase: str | None, source: str) -> Phase:
    training = [one for one in runbook.phases if isinstance(one, TrainingPhase)]
    found = next((one for one in training if phase in (None, one.id)), None)
    if found is None:
        names = ", ".join(one.id for one in training) or "none"
        raise FolderError(f"{source} has no phase {phase or ''} that trains; those that do: {names}")
    return found


def _of_spec(runbook: Runbook, spec: RunSpec, *, name: str) -> End:
    phase = next((one for one in runbook.phases if one.id == spec.phase), None)
    if not isinstance(phase, TrainingPhase):
        raise FolderError(f"{name} holds a run of phase {spec.phase!r}, which is none that trains in its runbook")
    declared = args_of(runbook, phase)
    args = {key: value for key, value in declared.items() if _has_placeholder(value)}
    spelled = {flat_name(key): key for key in declared}
    args |= {spelled.get(key, key): value for key, value in spec.requested.items() if spelled.get(key, key) not in args}
    if runbook.trainer.bundled:
        args = _expanded(args)
    env = {**env_of(runbook, phase), **{k[4:]: v for k, v in spec.settings.items() if k.startswith("env.")}}
    env = {key: spec.env.get(key, value) for key, value in env.items()}
    return End(
        name=name,
        trainer=runbook.trainer,
        secrets=runbook.secrets,
        args=args,
        env=env,
        nproc=nproc_of(runbook, phase),
        steps=min(spec.steps or _STEPS, _STEPS),
        warmup_steps=min(warmup_of(runbook, phase), _WARMUP),
        hardware=runbook.hardware,
        watchdog=watchdog_of(runbook, phase),
        run_cv=runbook.defaults.run_cv,
        min_effect=runbook.defaults.min_effect,
    )


def _expanded(args: dict[str, Setting]) -> dict[str, Setting]:
    """With the settings of a config file in place of its path: two files differ by settings, not by name."""
    path = Path(str(args.get("config", "")))
    if path.suffix not in (".yaml", ".yml") or not path.is_file():
        return args
    try:
        found = parse_yaml(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return args
    spelled = {flat_name(key) for key in args}
    inherited = _trainer_args(dict(_leaves(found))) if isinstance(found, dict) else {}
    own = {key: value for key, value in args.items() if key != "config"}
    return {**{key: value for key, value in inherited.items() if key not in spelled}, **own}


def _has_placeholder(value: Setting) -> bool:
    """Whether it is the number of steps or the folder of each run: `{steps}`, `{out}/log`."""
    return "{steps}" in str(value) or "{out}" in str(value)


def _of_trainer_folder(source: Path) -> End:
    """A folder that a trainer wrote on its own: what env.json calls requested, run by the bundled trainer."""
    path = source / "env.json"
    try:
        with Tree(source) as tree:
            found = tree.json(path.name)
    except (OSError, ValueError) as error:
        raise FolderError(
            f"{path} cannot be read ({error}), so what ran there is not known; name a run folder, a runbook or a config"
        ) from error
    requested = found.get("requested") if isinstance(found, dict) else None
    if not isinstance(requested, dict):
        raise FolderError(f"{path} has no `requested`, so its config is not known; name a runbook or a config")
    toggles = found.get("env") if isinstance(found.get("env"), dict) else {}
    world = found.get("world_size")
    return End(
        name=str(source),
        trainer=Trainer(),
        args={**_trainer_args(requested), "steps": "{steps}", "out": "{out}"},
        # The bundled trainer's own variables are in its config already.
        env={key: value for key, value in toggles.items() if _is_setting(value) and not key.startswith("NSA_")},
        nproc=world if isinstance(world, int) and world > 1 else 0,
        hardware=Hardware(gpus=1 if found.get("gpu_name") else 0),
    )


def _of_yaml(source: Path, *, phase: str | None) -> End:
    try:
        found = parse_yaml(source.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise FolderError(f"{source} cannot be read as YAML: {error}") from error
    if isinstance(found, dict) and "phases" in found:
        return _of_runbook(str(source), phase=phase)
    if not isinstance(found, dict):
        raise FolderError(f"{source} is neither a runbook nor a config; a config is a mapping of sections")
    flat = dict(_leaves(found))
    gpus = 0 if str(flat.get("device", "")).startswith("cpu") else 1
    return End(
        name=str(source),
        trainer=Trainer(),
        args={**_trainer_args(flat), "steps": "{steps}", "out": "{out}"},
        hardware=Hardware(gpus=gpus),
    )


def _leaves(found: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in found.items():
        if isinstance(value, dict):
            yield from _leaves(value)
        else:
            yield str(key), value


def _is_setting(value: object) -> bool:
    return isinstance(value, (str, int, float)) and value != ""


def _trainer_args(found: Mapping[str, Any]) -> dict[str, Setting]:
    """Arguments for the bundled trainer; a false switch is written out, since it may be on by default."""
    kept = {flat_name(key): value for key, value in found.items() if flat_name(key) not in _NOT_CONFIG}
    return {
        key: ("true" if value else "false") if isinstance(value, bool) else value
        for key, value in kept.items()
        if _is_setting(value)
    }


def differences(good: End, bad: End) -> dict[str, tuple[Setting | None, Setting | None]]:
    """What differs: `args.NAME`, `env.NAME` or `nproc` to (good, bad), None where a side leaves it out.

    Variables first, then arguments, each in the order of the good side: the search finds early ones in fewer runs.

    Raises:
        FolderError: when the two are runs of different trainers.
    """
    if _started(good.trainer) != _started(bad.trainer):
        raise FolderError(
            f"{good.name} runs {' '.join(good.trainer.command)} and {bad.name} runs {' '.join(bad.trainer.command)}; "
            "a bisection needs one trainer with two configs"
        )
    found: dict[str, tuple[Setting | None, Setting | None]] = {}
    for scope, left, right in (("env", good.env, bad.env), ("args", _flat(good.args), _flat(bad.args))):
        for key in dict.fromkeys((*left, *right)):
            a, b = left.get(key), right.get(key)
            if (a is None) != (b is None) or not same_value(a, b):
                found[f"{scope}.{key}"] = (a, b)
    if good.nproc != bad.nproc:
        found["nproc"] = (good.nproc, bad.nproc)
    return found


def _started(trainer: Trainer) -> tuple[object, ...]:
    """How a trainer is started, but for its arguments and variables."""
    return (trainer.command, trainer.folder, trainer.launcher, trainer.launcher_args, trainer.python, trainer.container)


def _flat(args: Mapping[str, Setting]) -> dict[str, Setting]:
    return {flat_name(key): value for key, value in args.items() if not _has_placeholder(value)}


def with_settings(good: End, bad: End, names: frozenset[str]) -> End:
    """The good end with the settings of `names` taken from the bad one."""
    spelled = {flat_name(key): key for key in (*bad.args, *good.args)}  # a good spelling wins: it must be replaced
    args, env, nproc = dict(good.args), dict(good.env), good.nproc
    for name in names:
        scope, _, key = name.partition(".")
        if scope == "nproc":
            nproc = bad.nproc
            continue
        value = bad.env.get(key) if scope == "env" else _flat(bad.args).get(key)
        target, written = (env, key) if scope == "env" else (args, spelled.get(key, key))
        target.pop(written, None)
        if value is not None:
            target[written] = value
    return good.model_copy(update={"args": args, "env": env, "nproc": nproc})


def without_secrets(end: End) -> End:
    """The end as it is written and shown."""
    trainer = end.trainer
    shown = {
        "args": {},  # the runs have those of the end
        "trial_args": clean_settings(trainer.trial_args),
        "command": redact_words(trainer.command, redact),
        "launcher_args": redact_words(trainer.launcher_args, redact),
    }
    settings = {"args": clean_settings(end.args), "env": clean_settings(end.env)}
    return end.model_copy(update={**settings, "trainer": trainer.model_copy(update=shown)})


def with_secrets(end: End) -> End:
    """The end that `without_secrets` made this of, with its secrets from the environment.

    Raises:
        FolderError: when one is not there, or was an argument.
    """
    env = dict(end.env)
    for key, value in end.env.items():
        if REDACTED in str(value):
            if key not in os.environ:
                raise FolderError(f"{key} was redacted and is not stored; set it in the environment")
            env[key] = os.environ[key]
    settings = {**end.args, **end.trainer.trial_args, "command": (*end.trainer.command, *end.trainer.launcher_args)}
    secret = next((key for key, value in settings.items() if REDACTED in str(value)), None)
    if secret is not None:
        raise FolderError(
            f"the argument {secret} was redacted and is not stored; start a new bisection with runbooks as GOOD and BAD"
        )
    return end.model_copy(update={"env": env})
