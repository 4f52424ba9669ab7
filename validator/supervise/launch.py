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
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from validator.model.launching import STARTING_RANKS
from validator.model.plan import RunSpec
from validator.supervise.containers import NamedContainer, container_name, named_container
from validator.supervise.termination import RUNNER_VARIABLE
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
    argv = tuple(_CONTAINER.sub(name, _PORT.sub(str(port), argument)) for argument in spec.argv)
    env = {name: _PORT.sub(str(port), value) for name, value in spec.env.items()}
    return Launch(
        argv=argv,
        environment=_environment(spec, env, out=out, token=token),
        cwd=spec.cwd,
        out=out,
        port=port,
        container=None if spec.container is None else named_container(spec.container.engine, name, token=token),
        code=named_files(argv, cwd=Path(spec.cwd or Path.cwd()), out=run_dir.resolve()),
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


def _environment(spec: RunSpec, env: Mapping[str, str], *, out: Path, token: str) -> dict[str, str]:
    environment = {
        name: value
        for name, value in os.environ.items()
        # A validator that is itself started by a launcher must not hand that launcher's ranks down.
        if name not in _LAUNCHER_VARIABLES and name != RUNNER_VARIABLE and not name.startswith("TORCHELASTIC_")
    }
    if spec.python is not None:
        _enter(environment, Path(spec.python))
    environment.update(env)
    environment[TOKEN_VARIABLE] = token
    environment.setdefault("PYTHONUNBUFFERED", "1")
    if spec.launcher != "exec":
        environment.setdefault("PYTHONFAULTHANDLER", "1")  # a crash in C code leaves its stack in the log
    if spec.launcher in STARTING_RANKS:
        for name, value in _FLIGHT_RECORDER.items():
            environment.setdefault(name, value)
        _point_flight_recorder(environment, out)
    if spec.container is not None and spec.container.engine == "apptainer":
        passed = [name for name in spec.container.passed if name in environment]
        environment.update((f"APPTAINERENV_{name}", environment[name]) for name in passed)
    return environment


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
