"""The launcher at the head of a command: which one, what it is given, how many processes it starts, by which Python."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from validator.errors import UserError
from validator.system.nvml import Gpus

LauncherName = Literal["python", "torchrun", "accelerate", "deepspeed", "mpirun", "plain"]

_MODULES: Mapping[str, LauncherName] = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "nsa.launch": "torchrun",
    "accelerate.commands.launch": "accelerate",
    "deepspeed.launcher.runner": "deepspeed",
}
_PROGRAMS: Mapping[str, LauncherName] = {
    "torchrun": "torchrun",
    "accelerate": "accelerate",
    "deepspeed": "deepspeed",
    "mpirun": "mpirun",
    "mpiexec": "mpirun",
}
_PYTHON = re.compile(r"python(?:\d+(?:\.\d+)?)?")  # python | python3 | python3.11
_VARIABLE = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)

_FLAGS: Mapping[LauncherName, frozenset[str]] = {
    "torchrun": frozenset({"standalone", "no-python", "run-path", "virtual-local-rank"}),
    "accelerate": frozenset(
        {"cpu", "multi-gpu", "tpu", "quiet", "q", "debug", "no-python", "use-deepspeed", "use-fsdp", "use-megatron-lm"}
        | {"use-mps-device", "use-xpu", "dynamo-use-fullgraph", "dynamo-use-dynamic", "multi-cpu", "rdzv-standalone"}
    ),
    "deepspeed": frozenset({"no-python", "no-local-rank", "no-ssh", "no-ssh-check", "force-multi", "save-pid"}),
    "mpirun": frozenset({"allow-run-as-root", "oversubscribe", "tag-output", "use-hwthread-cpus", "verbose", "v", "q"}),
    "python": frozenset("uBEIOPqsSvx"),
}
"""Options of each launcher that take no value, without their dashes."""

_COUNTS: Mapping[LauncherName, tuple[str, ...]] = {
    "torchrun": ("nproc-per-node",),
    "accelerate": ("num-processes",),
    "deepspeed": ("num-gpus", "num-accelerators"),
    "mpirun": ("np", "n", "c"),
}
"""The option that says how many processes are started."""

_OURS: Mapping[LauncherName, tuple[str, ...]] = {
    "torchrun": ("standalone", "master-addr", "master-port", "log-dir", "redirects", "r", "tee", "t", "rdzv-endpoint"),
    "accelerate": ("main-process-port", "main-process-ip"),
    "deepspeed": ("master-port", "master-addr"),
}
"""Options that validator gives itself: a free port for each run, and a log for each rank."""

_NODES = ("nnodes", "num-machines", "num-nodes")


@dataclass(frozen=True)
class CommandLaunch:
    """A command, cut behind its launcher.

    `words` is what the launcher starts, `python` the program that runs Python, None where that is validator's own.
    `nproc` is None where the launcher alone knows.
    """

    launcher: LauncherName
    words: tuple[str, ...]
    args: tuple[str, ...] = ()
    nproc: int | None = None
    python: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()

    @property
    def script(self) -> Path | None:
        """The file of the Python program that is started, if it is one of the working folder's."""
        if self.launcher == "plain" or not self.words:
            return None
        if self.words[0] == "-m" and len(self.words) > 1:
            path = Path(self.words[1].replace(".", "/"))
            return next((one for one in (path.with_suffix(".py"), path / "__main__.py") if one.is_file()), None)
        path = Path(self.words[0])
        return path if path.suffix == ".py" and path.is_file() else None


def launch_of(command: Sequence[str]) -> CommandLaunch:
    """What a person's command starts, and how.

    Raises:
        UserError: when it starts nothing, a program that does not exist, or processes on several machines.
    """
    env, words = _variables(command)
    if not words:
        raise UserError("there is no command; write it behind --: validator init -- torchrun train.py")
    head, *rest = words
    if head == "-m" or (head.endswith(".py") and Path(head).is_file()):
        return CommandLaunch("python", tuple(words), nproc=0, env=env)
    program = shutil.which(head)
    if program is None:
        raise UserError(
            f"{head} is no program on PATH, and no file that may be executed; give the command as you type it"
        )
    name = Path(head).name
    if name in _PROGRAMS:
        python = _beside(program) if name not in ("mpirun", "mpiexec") else None
        return _launched(_PROGRAMS[name], rest, python=python, env=env, plain=tuple(words))
    if _PYTHON.fullmatch(name):
        return _by_python(program, rest, env=env, plain=tuple(words))
    return CommandLaunch("plain", tuple(words), nproc=0, env=env)


def _variables(command: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """The variables in front of a command, with or without `env`, and the command."""
    words = list(command)
    if words[:1] == ["env"] and len(words) > 1 and _VARIABLE.fullmatch(words[1]):
        words.pop(0)
    env = {}
    while words and (found := _VARIABLE.fullmatch(words[0])) is not None:
        env[found[1]] = found[2]
        words.pop(0)
    return env, words


def _by_python(program: str, rest: list[str], *, env: Mapping[str, str], plain: tuple[str, ...]) -> CommandLaunch:
    """A program of Python, or a launcher that is started as a module."""
    python = _other(program)
    options, words = _launcher_options("python", rest)
    if words[:1] == ["-m"] and len(words) > 1 and words[1] in _MODULES:
        return _launched(_MODULES[words[1]], words[2:], python=python, env=env, plain=plain)
    if any(name not in ("u", "-") for name, _ in options) or not words:
        return CommandLaunch("plain", plain, nproc=0, env=env)  # -X, -W, -O: only the command itself says them all
    return CommandLaunch("python", tuple(words), nproc=0, python=python, env=env)


def _launched(
    launcher: LauncherName,
    rest: list[str],
    *,
    python: str | None,
    env: Mapping[str, str],
    plain: tuple[str, ...],
) -> CommandLaunch:
    if launcher == "accelerate" and rest[:1] == ["launch"]:
        rest = rest[1:]
    options, words = _launcher_options(launcher, rest)
    if not words:
        raise UserError(f"{launcher} is given no program to start; give the command as you type it")
    nproc: int | None = None
    args: list[str] = []
    left_out: list[str] = []
    for name, given in options:
        value = given[-1].partition("=")[2] if len(given) == 1 else given[-1]
        if name in _NODES:
            _require_one_node(value, given)
        elif name in _COUNTS.get(launcher, ()):
            nproc = _count(value)
        elif launcher == "accelerate" and name == "cpu":
            if visible_gpus():
                return CommandLaunch("plain", plain, nproc=0, env=env)
            nproc = nproc or 1  # without GPUs it means nothing else, and with it only one process would be started
        elif name in _OURS.get(launcher, ()):
            left_out += given
        elif name in ("no-python", "run-path"):
            return CommandLaunch("plain", plain, nproc=0, env=env)
        elif name in ("m", "module"):
            words = ["-m", *words]
        else:
            args += given
    if launcher == "torchrun" and nproc is None:
        nproc = 1
    if launcher == "mpirun" and _PYTHON.fullmatch(Path(words[0]).name):
        python, words = _other(shutil.which(words[0]) or words[0]), words[1:]
    elif launcher == "mpirun":
        return CommandLaunch("plain", plain, nproc=nproc or 0, env=env)
    return CommandLaunch(launcher, tuple(words), tuple(args), nproc, python, env, tuple(left_out))


def _launcher_options(launcher: LauncherName, words: list[str]) -> tuple[list[tuple[str, list[str]]], list[str]]:
    """The options at the head, each as its name and its words; and what is started."""
    options: list[tuple[str, list[str]]] = []
    rest = list(words)
    while rest and rest[0].startswith("-") and rest[0] != "-":
        word = rest.pop(0)
        name = word.lstrip("-").partition("=")[0].replace("_", "-")
        if launcher == "python" and word == "-m":
            return options, ["-m", *rest]
        if name in ("m", "module"):
            options.append(("m", [word]))
            continue
        given = [word]
        takes = name not in _FLAGS.get(launcher, frozenset()) and "=" not in word
        for _ in range(2 if launcher == "mpirun" and name in ("mca", "gmca") else 1):
            if takes and rest and not rest[0].endswith(".py") and not rest[0].startswith("--"):
                given.append(rest.pop(0))
        options.append((name, given))
    return options, rest


def _count(value: str) -> int:
    """Processes; `gpu` and `auto` are as many as there are GPUs."""
    if value.isdecimal():
        return max(1, int(value))
    return max(1, visible_gpus()) if value in ("gpu", "auto") else os.cpu_count() or 1


def _require_one_node(value: str, given: Sequence[str]) -> None:
    if value not in ("1", "1:1"):
        raise UserError(
            f"{' '.join(given)} starts processes on several machines, and validator validates one; give the command "
            "for one of them"
        )


def visible_gpus() -> int:
    """GPUs that a process started here would see."""
    return len(Gpus.open(os.environ).states())


def _beside(program: str) -> str | None:
    """The Python of the environment that a launcher is installed in."""
    python = Path(os.path.abspath(program)).with_name("python")  # noqa: PTH100 -- a link names its environment
    return _other(str(python)) if python.exists() else None


def _other(program: str) -> str | None:
    """A Python by its absolute path, links kept, since a virtual environment is known by its own; None for this one."""
    path = os.path.abspath(program)  # noqa: PTH100
    return None if Path(path).parent == Path(os.path.abspath(sys.executable)).parent else path  # noqa: PTH100
