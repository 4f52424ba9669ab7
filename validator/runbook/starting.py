"""How the trainer is started: the words of its command fit its launcher."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from validator.model.launching import DETACHED, STARTING_RANKS
from validator.model.runbook import Runbook, TrainingPhase
from validator.model.settings import has_placeholder, nproc_of
from validator.runbook.build import Built
from validator.runbook.document import Path as Place
from validator.runbook.problems import Problem

_INTERPRETER = re.compile(r"(?:python|pypy)[\d.]*t?(?:\.exe)?")
_LAUNCHERS = {
    "torchrun": "torchrun",
    "accelerate": "accelerate",
    "deepspeed": "deepspeed",
    "mpirun": "mpirun",
    "mpiexec": "mpirun",
}
_SHELLS = frozenset({"bash", "sh", "zsh", "dash", "env", "exec", "nice", "numactl", "stdbuf", "srun", "uv", "poetry"})
_NO_SCRIPTS = frozenset({".sh", ".bash", ".exe", ".so"})
_NOT_OURS = frozenset({"--name", "--detach", "--restart", "--rm", "--tty", "--cidfile"})
_HEAD_BYTES = 4096


def check_starting(built: Built, runbook: Runbook) -> Iterator[Problem]:
    """Problems of the launcher and of what it is given."""
    trainer = runbook.trainer
    if not built.sound("trainer") or not trainer.command:
        return
    if trainer.launcher == "plain":
        yield from _started_as_is(built, runbook)
    else:
        yield from _given_to_python(built, runbook)
    if trainer.launcher == "accelerate" and "--cpu" in trainer.launcher_args:
        message = "accelerate starts one process with --cpu, however many it is to start"
        fix = "remove --cpu; several processes of a machine without GPUs are started as well"
        yield built.problem(("trainer", "launcher_args"), message, fix)
    yield from _ranks(built, runbook)
    yield from _container(built, runbook)
    metrics = trainer.metrics
    if trainer.stop == "at_steps" and not (metrics.csv or metrics.heartbeat or metrics.stdout or metrics.reader):
        message = "stop: at_steps needs to read steps while the trainer runs, and metrics names nothing that has them"
        yield built.problem(
            ("trainer", "stop"), message, "name what the trainer prints or writes, as metrics.stdout or a reader"
        )


def check_ends(built: Built, runbook: Runbook) -> Iterator[Problem]:
    """A trainer that validator ends, and that is given its steps as well: it can run, but is probably not meant."""
    trainer = runbook.trainer
    given = [*trainer.command, *map(str, trainer.args.values()), *map(str, trainer.trial_args.values())]
    if trainer.stop == "at_steps" and (trainer.bundled or any("{steps}" in text for text in given)):
        message = "stop: at_steps ends the trainer behind its steps, and {steps} asks it to end there itself"
        yield built.problem(("trainer", "stop"), message, "remove stop, so that its own end is judged, or {steps}")


def _started_as_is(built: Built, runbook: Runbook) -> Iterator[Problem]:
    trainer = runbook.trainer
    first = trainer.command[0]
    if first.startswith("-") or (Path(first).suffix == ".py" and "/" not in first):
        message = f"launcher: plain starts the command as it is, and its first word is {first!r}, no program"
        yield built.problem(("trainer", "command"), message, "name the program first, or write launcher: python")
    if trainer.launcher_args:
        message = "launcher_args has no launcher to go to with launcher: plain"
        yield built.problem(("trainer", "launcher_args"), message, "move them into the command", key=True)


def _given_to_python(built: Built, runbook: Runbook) -> Iterator[Problem]:
    first = runbook.trainer.command[0]
    name, place = Path(first).name, ("trainer", "command", 0)
    if _INTERPRETER.fullmatch(name):
        yield built.problem(
            place,
            f"the command is given to Python, and its first word is an interpreter, {first!r}, which Python cannot run",
            "leave it out (trainer.python names the interpreter), or write launcher: plain",
        )
    elif name in _LAUNCHERS:
        launcher = _LAUNCHERS[name]
        yield built.problem(
            place,
            f"the command is given to Python, and its first word is a launcher, {first!r}",
            f"write launcher: {launcher} and its options in launcher_args, and let the command begin with the script; "
            "or write launcher: plain",
        )
    elif name in _SHELLS or Path(first).suffix in _NO_SCRIPTS or _is_program(_folder(built, runbook), first):
        message = f"the command is given to Python, and its first word, {first!r}, is no Python program"
        yield built.problem(place, message, "write launcher: plain, which starts the command as it is")


def _folder(built: Built, runbook: Runbook) -> Path:
    trainer = runbook.trainer
    beside = Path(built.root.mark.file).parent
    return Path(trainer.cwd or ".") if trainer.workdir is None else beside / Path(trainer.workdir).expanduser()


def _is_program(folder: Path, first: str) -> bool:
    """Whether the file that the first word names holds machine code, or names another interpreter, on this machine."""
    if first.startswith("-") or has_placeholder(first):
        return False
    try:
        path = folder / first
        if not path.is_file():
            return False
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
    except (OSError, ValueError):
        return False
    if head.startswith(b"PK"):  # a zip archive is run as a package
        return False
    other = head.startswith(b"#!") and b"python" not in head.partition(b"\n")[0]
    return other or b"\0" in head


def _container(built: Built, runbook: Runbook) -> Iterator[Problem]:
    """Options with which a container would not be the one that is waited for and ended."""
    container = runbook.trainer.container
    if container is None or container.engine not in DETACHED:
        return
    for position, word in enumerate(container.args):
        if word.partition("=")[0] in _NOT_OURS or (word.startswith("-d") and not word.startswith("--")):
            message = f"container.args has {word!r}, with which validator could not wait for the container, or end it"
            where: Place = ("trainer", "container", "args", position)
            yield built.problem(where, message, "remove it; each container has a name, and is removed at its end")


def _ranks(built: Built, runbook: Runbook) -> Iterator[Problem]:
    """A launcher of ranks starts at least one."""
    launcher = runbook.trainer.launcher
    if launcher not in STARTING_RANKS:
        return
    for index, phase in enumerate(runbook.phases):
        if isinstance(phase, TrainingPhase) and nproc_of(runbook, phase) == 0:
            where: Place = ("defaults", "nproc") if phase.nproc is None else ("phases", index, "nproc")
            message = f"phase {phase.id} has nproc: 0, and launcher: {launcher} starts at least one rank"
            yield built.problem(where, message, "write nproc: 1, or leave launcher out, which starts python then")
