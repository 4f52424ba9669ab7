"""What is started: arguments with a free port, the environment, the log files, and checksums of the code.

The checksums are taken at the start of each run: files may be edited during a validation, or before it is resumed, and
then its runs are not of one trainer.
"""

from __future__ import annotations

import hashlib
import os
import re
import socket
import subprocess
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from validator.files import replace_file
from validator.model.cluster import Allocation
from validator.model.launching import STARTING_RANKS
from validator.model.nodes import Step
from validator.model.plan import Contained, RunSpec
from validator.startup import call_argv
from validator.supervise.containers import NamedContainer, container_name, named_container
from validator.supervise.termination import RUNNER_VARIABLE
from validator.system.packages import source_lacks
from validator.system.processes import TOKEN_VARIABLE

_SUFFIXES = frozenset({".py", ".sh", ".yaml", ".yml", ".json", ".toml", ".cfg", ".ini", ".conf"})
_MAX_BYTES = 4 << 20
"""Code and configuration are small; what is larger is data."""


def named_files(argv: Sequence[str], *, cwd: Path, out: Path) -> dict[str, str]:
    """SHA-256 of each file of code or configuration that a command names, by the argument that names it.

    Arguments are looked up from `cwd`, `--config=FILE` and `-m MODULE` too. A file below `out` is the run's own.
    """
    found = {}
    for before, argument in zip(("", *argv), argv, strict=False):
        name = argument.partition("=")[2] if argument.startswith("-") else argument
        if before == "-m":
            name = f"{argument.replace('.', '/')}.py"
        digest = _digest(cwd / name, out) if Path(name).suffix in _SUFFIXES else None
        if digest is not None:
            found[name] = digest
    return found


def _digest(path: Path, out: Path) -> str | None:
    try:
        if path.resolve().is_relative_to(out) or not path.is_file() or path.stat().st_size > _MAX_BYTES:
            return None
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except (OSError, ValueError):
        return None


_PORT = re.compile(r"(?<!\$)\{port\}")  # `${port}` is the shell's own
_CONTAINER = re.compile(r"(?<!\$)\{container\}")
_LAUNCHER_VARIABLES = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "ROLE_RANK",
    "ROLE_WORLD_SIZE",
    "ROLE_NAME",
    "MASTER_ADDR",
    "MASTER_PORT",
)
_FLIGHT_RECORDER = {
    # Both names: torch 2.6 to 2.8 read the first, later ones the second.
    "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000",
    "TORCH_FR_BUFFER_SIZE": "2000",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
}
_DUMP_FILES = {
    "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": "nccl_pipe_rank_",
    **dict.fromkeys(("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "TORCH_FR_DUMP_TEMP_FILE"), "nccl_trace_rank_"),
}


STEP_FILE = "step.json"
"""What the step of a run across nodes reads, in the run's folder."""

_PASSED = (
    *("NCCL_", "TORCH", "PYTORCH_", "CUDA_", "CUBLAS_", "CUDNN_", "NVIDIA_", "NSA_", "TRITON_", "OMP_", "MKL_"),
    *("GLOO_", "UCX_", "FI_", "HF_", "TOKENIZERS_"),
)
"""Variables of the head that a node without them gets: they change what a trainer does."""

_KEPT = frozenset({"CUDA_VISIBLE_DEVICES"})
"""A node's own business."""


@dataclass(frozen=True)
class Place:
    """Where runs across nodes go: the allocation, and its nodes by the index that a plan has for them."""

    allocation: Allocation
    nodes: tuple[str, ...]
    start_s: float = 60.0
    lost_s: float = 20.0
    sample_s: float | None = None
    checks: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Launch:
    """One start, ready: `out` is absolute, `port` the one that replaced `{port}` (None where no argument holds it)."""

    argv: tuple[str, ...]
    environment: Mapping[str, str]
    cwd: str | None
    out: Path
    port: int | None
    container: NamedContainer | None
    """What must be ended by its name, beside the processes."""
    code: Mapping[str, str]
    """The files that the command names, and their SHA-256 at the start."""


def free_port(*, avoid: Collection[int] = ()) -> int:
    """A TCP port of this machine that no process listens on now, other than those in `avoid`."""
    while True:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        if port not in avoid:
            return port


def prepare(spec: RunSpec, *, run_dir: Path, token: str, number: int = 1, used_ports: Collection[int] = ()) -> Launch:
    """Fill in the port, the container's name and the environment of a run, and make its folders.

    Raises:
        OSError: when a folder cannot be made.
    """
    out = (run_dir / spec.out).resolve()
    (out / "logs").mkdir(parents=True, exist_ok=True)
    wants_port = any(_PORT.search(text) for text in (*spec.argv, *spec.env.values()))
    port = free_port(avoid=used_ports) if wants_port else None
    name = container_name(token, spec.id, number)
    words, given = _with_log_folder(spec)
    argv = tuple(_CONTAINER.sub(name, _PORT.sub(str(port), argument)) for argument in words)
    env = {name: _PORT.sub(str(port), value) for name, value in given.items()}
    environment = run_environment(env, launcher=spec.launcher, python=spec.python, token=token, out=out)
    return Launch(
        argv=argv,
        environment=_inside(environment, spec.container),
        cwd=spec.cwd,
        out=out,
        port=port,
        container=None if spec.container is None else named_container(spec.container.engine, name, token=token),
        code=named_files(argv, cwd=Path(spec.cwd or Path.cwd()), out=run_dir.resolve()),
    )


def _with_log_folder(spec: RunSpec) -> tuple[tuple[str, ...], Mapping[str, str]]:
    """The arguments and the environment of a run; an accelerate without `--log_dir`, which came with its version 0.31,
    gets the folder of the ranks' logs by the variable of torch's launcher behind it."""
    module, option = "accelerate.commands.launch", "--log_dir"
    if spec.launcher != "accelerate" or spec.container is not None or option not in spec.argv:
        return spec.argv, spec.env
    path = spec.env.get("PYTHONPATH")
    if not source_lacks(f'"{option}"', module=module, python=spec.argv[0], cwd=spec.cwd, path=path):
        return spec.argv, spec.env
    at = spec.argv.index(option)
    return (*spec.argv[:at], *spec.argv[at + 2 :]), {"PET_LOG_DIR": spec.argv[at + 1], **spec.env}


def prepare_step(spec: RunSpec, place: Place, *, run_dir: Path, token: str, grace_s: float) -> Launch:
    """The program that carries out a run across nodes, which its `step.json` describes; makes the run's folders.

    Raises:
        OSError: when a folder or the file cannot be made.
    """
    out = (run_dir / spec.out).resolve()
    (out / "logs").mkdir(parents=True, exist_ok=True)
    probe = out / "shared"
    probe.write_text("A node that sees this file shares the folder.\n", encoding="ascii")
    cwd = spec.cwd or str(Path.cwd())
    step = Step(
        run=spec.id,
        token=token,
        allocation=place.allocation,
        groups=tuple(tuple(place.nodes[index] for index in group) for group in spec.groups),
        launcher=spec.launcher,
        argv=spec.argv,
        env=spec.env,
        passed={name: value for name, value in os.environ.items() if name.startswith(_PASSED) and name not in _KEPT},
        cwd=cwd,
        python=spec.python,
        out=str(out),
        follow=spec.model_dump(mode="json", by_alias=True) if spec.trains else None,
        began=time.monotonic(),
        probe=str(probe),
        start_s=place.start_s,
        lost_s=place.lost_s,
        grace_s=grace_s,
        sample_s=place.sample_s,
        checks=place.checks,
    )
    replace_file(out / STEP_FILE, step.model_dump_json(indent=1) + "\n")
    return Launch(
        argv=(*call_argv("validator.supervise.step", "main"), str(out)),
        environment={**os.environ, TOKEN_VARIABLE: token},
        cwd=None,
        out=out,
        port=None,
        container=None,
        code=named_files(spec.argv, cwd=Path(cwd), out=run_dir.resolve()),
    )


def start(launch: Launch) -> subprocess.Popen[bytes]:
    """Start the process in a session of its own, its output going straight to its log files.

    Raises:
        OSError: when the program or the working directory does not exist or may not be used.
    """
    # Append mode: a writer's position stays the file's end whatever the supervisor does to the middle of it.
    logs = launch.out / "logs"
    with (logs / "stdout.log").open("ab") as stdout, (logs / "stderr.log").open("ab") as stderr:
        return subprocess.Popen(
            launch.argv,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            env=dict(launch.environment),
            cwd=launch.cwd,
            start_new_session=True,
        )


def run_environment(
    env: Mapping[str, str], *, launcher: str, python: str | None, token: str, out: Path
) -> dict[str, str]:
    """The environment of what is started with `launcher`: this process's own, `env`, and the validation's marks."""
    environment = {
        name: value
        for name, value in os.environ.items()
        # A validator that is itself started by a launcher must not hand that launcher's ranks down.
        if name not in _LAUNCHER_VARIABLES and name != RUNNER_VARIABLE and not name.startswith("TORCHELASTIC_")
    }
    if python is not None:
        _enter(environment, Path(python))
    environment.update(env)
    environment[TOKEN_VARIABLE] = token
    environment.setdefault("PYTHONUNBUFFERED", "1")
    if launcher != "exec":
        environment.setdefault("PYTHONFAULTHANDLER", "1")  # a crash in C code leaves its stack in the log
    if launcher in STARTING_RANKS:
        for name, value in _FLIGHT_RECORDER.items():
            environment.setdefault(name, value)
        _point_flight_recorder(environment, out)
    return environment


def _inside(environment: dict[str, str], contained: Contained | None) -> dict[str, str]:
    """With the variables by other names that apptainer takes into the container."""
    if contained is None or contained.engine != "apptainer":
        return environment
    passed = {f"APPTAINERENV_{name}": environment[name] for name in contained.passed if name in environment}
    return environment | passed


def _enter(environment: dict[str, str], python: Path) -> None:
    """Change the environment as `activate` of a virtual environment does, and out of validator's own."""
    for name in ("VIRTUAL_ENV", "PYTHONHOME"):
        environment.pop(name, None)
    if not python.is_absolute():
        return
    environment["PATH"] = os.pathsep.join(filter(None, (str(python.parent), environment.get("PATH", os.defpath))))
    if (python.parents[1] / "pyvenv.cfg").is_file():
        environment["VIRTUAL_ENV"] = str(python.parents[1])


def _point_flight_recorder(environment: dict[str, str], out: Path) -> None:
    """Let NCCL's flight recorder write into the run's own dump folder, on demand through a pipe.

    Only where there is a GPU driver, and only where pipes can be made: torch refuses to start when it cannot.
    """
    if not Path("/proc/driver/nvidia/version").exists() and not Path("/dev/nvidiactl").exists():
        return
    dump = out / "dump"
    dump.mkdir(exist_ok=True)
    probe = dump / ".pipe"
    try:
        os.mkfifo(probe)
        probe.unlink()
    except OSError:
        return
    for name, file in _DUMP_FILES.items():
        environment.setdefault(name, str(dump / file))
