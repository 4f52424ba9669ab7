"""What is passed to processes: placeholders exist, settings reach the runs that they are meant for, GPUs suffice."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from validator.model.pattern import PatternError, line_pattern, narrow_groups
from validator.model.placeholders import PLACEHOLDERS, unknown_placeholders
from validator.model.runbook import (
    AbPhase,
    CommandPhase,
    PreflightPhase,
    Runbook,
    Setting,
    SweepPhase,
    TrainingPhase,
)
from validator.model.settings import flat_name, nproc_of
from validator.runbook.build import Built
from validator.runbook.document import Node, Path, mark_at, node_at, position
from validator.runbook.problems import Problem, nearest

__all__ = ["check_groups", "check_launch"]

_REQUIREMENT = re.compile(
    r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?\s*(\[[^\]]*\])?\s*"
    r"((===|==|~=|!=|<=|>=|<|>)\s*[A-Za-z0-9.*+!_-]+\s*(,\s*(?=[=~!<>])|$))*"
)
"""The part of a requirement that a runbook may use: name and version bounds (PEP 508 without markers and URLs)."""

LAUNCHER_VARIABLES = (
    "LOCAL_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
    "RANK",
    "VALIDATOR_RUN_TOKEN",
    "WORLD_SIZE",
)
"""Set by the launcher for each process, whatever the runbook says."""


def check_launch(built: Built, runbook: Runbook) -> Iterator[Problem]:
    """Problems of commands, arguments, environment and process counts."""
    yield from _placeholders(built)
    yield from _trainer(built, runbook)
    for index, phase in enumerate(runbook.phases):
        if isinstance(phase, TrainingPhase):
            yield from _processes(built, runbook, index, phase)
            yield from _fixed_args(built, runbook, ("phases", index, "args"), phase.args)
            yield from _arms(built, runbook, index)
            yield from _log_texts(built, index, phase)
        if isinstance(phase, CommandPhase):
            yield from _command(built, index, phase)
        if isinstance(phase, PreflightPhase):
            yield from _packages(built, index, phase)
    yield from _fixed_args(built, runbook, ("defaults", "args"), runbook.defaults.args)
    yield from _fixed_args(built, runbook, ("trainer", "trial_args"), runbook.trainer.trial_args)


def _placeholders(built: Built) -> Iterator[Problem]:
    for path, node in _texts(built.root):
        for name, column in unknown_placeholders(str(node.value)):
            fix = nearest(
                name,
                PLACEHOLDERS,
                otherwise=f"write {{{{{name}}}}} for literal braces; placeholders: {', '.join(PLACEHOLDERS)}",
            )
            yield Problem.at(position(node, column), f"there is no placeholder {{{name}}}", fix)
        phase = _phase_kind(built.root, path)
        if phase in ("command", "pytest") and "{steps}" in str(node.value):
            message = f"{{steps}} has no value in a phase of kind {phase}"
            yield Problem.at(position(node, str(node.value).index("{steps}")), message, "write the number itself")


def _phase_kind(root: Node, path: Path) -> str | None:
    node = node_at(root, (*path[:2], "kind")) if path[:1] == ("phases",) else None
    return str(node.value) if node is not None else None


def _texts(root: Node) -> Iterator[tuple[Path, Node]]:
    """Every text in which placeholders are filled in."""
    wanted: list[Path] = [("trainer", "command"), ("trainer", "args"), ("trainer", "trial_args")]
    wanted += [("trainer", "cwd")]
    wanted += [("defaults", "env"), ("defaults", "args")]
    phases = node_at(root, ("phases",))
    for index, _ in enumerate(phases.value if phases is not None and isinstance(phases.value, list) else []):
        wanted += [
            ("phases", index, key) for key in ("env", "args", "over", "arms", "run", "targets", "smoke", "on_failure")
        ]
    for path in wanted:
        node = node_at(root, path)
        if node is not None:
            yield from _leaves(path, node)


def _leaves(path: Path, node: Node) -> Iterator[tuple[Path, Node]]:
    if isinstance(node.value, dict):
        for key, child in node.value.items():
            yield from _leaves((*path, key), child)
    elif isinstance(node.value, list):
        for index, child in enumerate(node.value):
            yield from _leaves((*path, index), child)
    elif isinstance(node.value, str):
        yield path, node


def _trainer(built: Built, runbook: Runbook) -> Iterator[Problem]:
    trainer = runbook.trainer
    if not trainer.command and built.sound("trainer"):
        mark = mark_at(built.root, ("trainer", "command"))
        yield Problem.at(mark, "trainer.command is empty", "write trainer: {command: [train.py]}")
    heartbeat = trainer.metrics.heartbeat
    if heartbeat is not None and "{rank}" not in heartbeat:
        mark = mark_at(built.root, ("trainer", "metrics", "heartbeat"))
        message = f"trainer.metrics.heartbeat is {heartbeat!r} without {{rank}}, so every rank would share one file"
        yield Problem.at(mark, message, 'write heartbeat: "heartbeat_rank{rank}.jsonl"')
    if trainer.bundled or not built.sound("trainer"):
        return
    metrics = trainer.metrics
    files = [path for path in (metrics.csv, metrics.heartbeat, metrics.env, metrics.metrics) if path is not None]
    told = [str(node.value) for _, node in _texts(built.root)]
    if files and runbook.trainer.command and not any("{out}" in text or "{run_dir}" in text for text in told):
        if any("{out}" in str(value) for value in trainer.args.values()):
            return  # as the default arguments do
        mark = mark_at(built.root, ("trainer", "args"))
        message = f"the trainer is never told where to write, so {files[0]} can never be read"
        yield Problem.at(mark, message, 'pass "{out}" in trainer.args, trainer.command or the environment')


def _processes(built: Built, runbook: Runbook, index: int, phase: TrainingPhase) -> Iterator[Problem]:
    nproc, gpus = nproc_of(runbook, phase), runbook.hardware.gpus
    if 0 < gpus < nproc and built.sound("hardware"):
        own = phase.nproc is not None
        path: Path = ("phases", index, "nproc") if own else ("defaults", "nproc")
        message = f"phase {phase.id} starts {nproc} processes, but hardware.gpus is {gpus}"
        yield Problem.at(mark_at(built.root, path), message, f"lower nproc to {gpus}, or raise hardware.gpus")


def _fixed_args(built: Built, runbook: Runbook, path: Path, args: Mapping[str, Setting]) -> Iterator[Problem]:
    """The bundled trainer's steps and folder come from the phase; a second source would be ignored in silence."""
    if not runbook.trainer.bundled:
        return
    for key, value in args.items():
        name = flat_name(key)
        if name in ("steps", "out") and value != f"{{{name}}}":
            fix = "set `steps` of the phase" if name == "steps" else "remove it; every run gets a folder of its own"
            mark = mark_at(built.root, (*path, key), key=True)
            yield Problem.at(mark, f"args.{key} would be ignored: {name} is set for each run", fix)


def _log_texts(built: Built, index: int, phase: TrainingPhase) -> Iterator[Problem]:
    for number, text in enumerate(phase.log_contains):
        if not text.strip():
            mark = mark_at(built.root, ("phases", index, "log_contains", number))
            yield Problem.at(mark, "log_contains has an empty text, which every log contains", "write the text to find")


def _packages(built: Built, index: int, phase: PreflightPhase) -> Iterator[Problem]:
    for number, text in enumerate(phase.packages):
        if _REQUIREMENT.fullmatch(text.strip()) is None:
            mark = mark_at(built.root, ("phases", index, "packages", number))
            message = f"package {text!r} cannot be read"
            yield Problem.at(mark, message, "write a name, with bounds if wanted: 'torch>=2.6,<3'")


def check_groups(built: Built, runbook: Runbook) -> Iterator[Problem]:
    """Groups of the trainer's pattern that miss some numbers: they are read all the same, but what they say is not what
    is meant."""
    for name, missed in narrow_groups(runbook.trainer.metrics.stdout or "").items():
        mark = mark_at(built.root, ("trainer", "metrics", "stdout"))
        message = f"the group {name} of stdout does not match {missed}; it is widened when a log is read"
        yield Problem.at(mark, message, f"write {{{name}}}, which matches any number")


def _command(built: Built, index: int, phase: CommandPhase) -> Iterator[Problem]:
    if not phase.run or (isinstance(phase.run, str) and not phase.run.strip()):
        mark = mark_at(built.root, ("phases", index, "run"))
        yield Problem.at(mark, f"run of phase {phase.id} is empty", "write run: nvidia-smi")
    if phase.stdout is not None:
        try:
            line_pattern(phase.stdout)
        except PatternError as error:
            mark = mark_at(built.root, ("phases", index, "stdout"))
            message = f"stdout of phase {phase.id} is not a regular expression: {error}"
            yield Problem.at(mark, message, "escape special characters with \\")


def _arms(built: Built, runbook: Runbook, index: int) -> Iterator[Problem]:
    phase = runbook.phases[index]
    if isinstance(phase, SweepPhase):
        for key in phase.over:
            path: Path = ("phases", index, "over", key)
            yield from _reaches(built, runbook, index, path, key)
    if isinstance(phase, AbPhase):
        arms = list(phase.arms.items())
        if arms[0][1].env == arms[1][1].env and arms[0][1].args == arms[1][1].args:
            mark = mark_at(built.root, ("phases", index, "arms"))
            message = f"the arms {arms[0][0]} and {arms[1][0]} are the same, so there is nothing to compare"
            yield Problem.at(mark, message, "give one of them an env or args of its own")
        for name, arm in arms:
            for key in (*(f"env.{k}" for k in arm.env), *(f"args.{k}" for k in arm.args)):
                path = ("phases", index, "arms", name, *key.split(".", 1))
                yield from _reaches(built, runbook, index, path, key)


def _reaches(built: Built, runbook: Runbook, index: int, path: Path, key: str) -> Iterator[Problem]:
    """A setting that something stronger overrides reaches no run: all arms would be alike."""
    phase = runbook.phases[index]
    if not isinstance(phase, TrainingPhase):
        return
    family, name = key.split(".", 1)
    mark = mark_at(built.root, path, key=True)
    if family == "env" and name in LAUNCHER_VARIABLES:
        yield Problem.at(mark, f"{key} reaches no run: the launcher sets {name} itself", "remove it")
    elif runbook.trainer.bundled and family == "args" and flat_name(name) in ("steps", "out"):
        yield Problem.at(mark, f"{key} reaches no run: {name} is set for each run", "remove it")
    elif runbook.trainer.bundled and family == "env" and name.startswith("NSA_"):
        field = name.removeprefix("NSA_").lower()
        trainer = runbook.trainer
        layers = (trainer.args, trainer.trial_args, runbook.defaults.args, phase.args)
        if any(flat_name(given) == field for layer in layers for given in layer):
            message = f"{key} reaches no run: {field} is also given in args, and the command line wins"
            yield Problem.at(mark, message, f"write args.{field} here, or remove {field} from args")
