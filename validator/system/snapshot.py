"""The machine and the software at the start of a validation, and slow tools whose output is kept as files.

The tools (`collect_env`, `nvidia-smi`) run in the background at the lowest priority while nothing is timed. Each has a
time limit, and ends with this process however that ends.
"""

from __future__ import annotations

import atexit
import os
import platform
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from validator.files import Tree
from validator.secrets.redact import redact, redact_env
from validator.system.gpu_facts import GpuReport
from validator.system.host import HostFacts, read_host
from validator.system.nvml import read_gpus
from validator.system.software import git_facts, package_versions, python_version
from validator.system.sysfs import read_paths
from validator.times import iso_now

TIMEOUT_S = 60.0
_MAX_BYTES = 8 << 20

_LOW_PRIORITY = """
import ctypes, os, sys
try:
    ctypes.CDLL(None).prctl(1, 9)
except Exception:
    pass
os.nice(19)
os.execvp(sys.argv[1], sys.argv[1:])
"""
"""PR_SET_PDEATHSIG with SIGKILL survives exec: the tool cannot outlive the thread that waits for it."""


@dataclass(frozen=True)
class Capture:
    """A command whose standard output becomes a file."""

    file: str
    command: tuple[str, ...]


def start_captures(captures: Sequence[Capture], folder: Path, *, timeout_s: float = TIMEOUT_S) -> threading.Thread:
    """Run the commands one after the other in a background thread, each into `folder`/`file`.

    A command that fails or takes too long leaves a file that says so. The thread may be joined; it need not be.
    """
    worker = _CaptureWorker(tuple(captures), folder, timeout_s)
    thread = threading.Thread(target=worker.run, name="captures", daemon=True)
    atexit.register(worker.stop)
    thread.start()
    return thread


@dataclass
class _CaptureWorker:
    """Runs the captures; `stop` may be called from another thread."""

    captures: Sequence[Capture]
    folder: Path
    timeout_s: float
    stopped: bool = False
    process: subprocess.Popen[bytes] | None = None

    def run(self) -> None:
        try:
            for capture in self.captures:
                if not self.stopped:
                    self.write(capture.file, self.output(capture))
        finally:
            atexit.unregister(self.stop)

    def output(self, capture: Capture) -> str:
        """What the command printed, or a sentence on why it printed nothing."""
        try:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _LOW_PRIORITY, *capture.command],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            return f"{capture.command[0]} could not be started: {error.strerror}\n"
        self.process = process
        try:
            data, _ = process.communicate(timeout=self.timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            process.communicate()
            return f"{capture.command[0]} was stopped: it took more than {self.timeout_s:.0f} s\n"
        if process.returncode != 0 and not data:
            return f"{capture.command[0]} exited with code {process.returncode} and printed nothing\n"
        return redact(data[:_MAX_BYTES].decode("utf-8", "replace"))

    def write(self, file: str, text: str) -> None:
        """The whole file or none. The run folder may be gone or full: that must not end a validation."""
        if self.stopped:
            return
        with suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True)
            with Tree(self.folder) as tree:
                tree.write(file, text, sync=False)

    def kill(self) -> None:
        if self.process is not None and self.process.poll() is None:
            with suppress(OSError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def stop(self) -> None:
        """Before the interpreter exits: no command may stay behind."""
        self.stopped = True
        self.kill()


PACKAGES = (
    *("torch", "triton", "numpy", "scipy", "pydantic", "pytest", "psutil", "nvidia-ml-py", "training-validator"),
    *("nvidia-nccl-cu12", "nvidia-nccl-cu13"),
)

KEPT_PREFIXES = (
    *("NCCL_", "TORCH", "PYTORCH_", "CUDA_", "CUBLAS_", "CUDNN_", "NVIDIA_", "NSA_", "TRITON_", "OMP_", "MKL_"),
    *("GLOO_", "KMP_", "OPENBLAS_", "PYTHON", "LD_", "UCX_", "FI_", "SLURM_", "HF_", "TOKENIZERS_"),
)
"""Variables that change speed or behaviour; all others stay out of the report."""

_CONTAINER_MARKS = ("/.dockerenv", "/run/.containerenv")
_GIB = 2**30


def snapshot(run_dir: Path, *, trainer_python: str = sys.executable, repository: Path | None = None) -> dict[str, Any]:
    """Facts for `environment.json`, as plain values, secrets redacted; writes `preflight/git_sha.txt` as well.

    Costs some ten milliseconds: no package is imported for its version. `preflight` starts the slow captures.
    """
    git = git_facts(repository or Path.cwd())
    if git.sha is not None:
        with Tree(run_dir) as tree:
            tree.write("preflight/git_sha.txt", f"{git.sha}\n", sync=False)
    facts = machine_facts(run_dir, trainer_python=trainer_python)
    env = redact_env({k: v for k, v in sorted(os.environ.items()) if k.startswith(KEPT_PREFIXES)})
    return {"schema_version": 1, **facts, "git": git.as_json(), "env": env}


def machine_facts(folder: Path, *, trainer_python: str = sys.executable) -> dict[str, Any]:
    """The part of a snapshot that is of the machine and the software on it; `folder` says which disk counts."""
    gpus = read_gpus()
    return {
        "time": iso_now("seconds"),
        "host": socket.gethostname(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "container": any(Path(mark).exists() for mark in _CONTAINER_MARKS) or "container" in os.environ,
        "python": {
            "version": python_version(trainer_python),
            "executable": trainer_python,
            "implementation": platform.python_implementation(),
        },
        "packages": {k: v for k, v in package_versions(trainer_python, PACKAGES).items() if v is not None},
        **_host_section(read_host(folder)),
        **_gpu_section(gpus),
        "paths": read_paths(tuple(gpu.pci_bus_id or "" for gpu in gpus.gpus)).as_json(),
    }


def _gib(value: int | None) -> float | None:
    return None if value is None else round(value / _GIB, 2)


def _host_section(facts: HostFacts) -> dict[str, Any]:
    return {
        "cpu": {
            "model": facts.cpu_model,
            "cores_logical": facts.cores_logical,
            "cores_allowed": facts.cores_allowed,
            "cores_quota": facts.cores_quota,
            "cores_usable": facts.usable_cores,
            "load_1m": facts.load_1m,
        },
        "memory": {
            "total_gib": _gib(facts.memory_total_bytes),
            "available_gib": _gib(facts.memory_available_bytes),
            "limit_left_gib": _gib(facts.memory_limit_bytes),
        },
        "disk": {
            "path": facts.disk_path,
            "total_gib": _gib(facts.disk_total_bytes),
            "free_gib": _gib(facts.disk_free_bytes),
        },
        "mounts": facts.mounts,
    }


def _gpu_section(report: GpuReport) -> dict[str, Any]:
    driver = {
        "driver": report.driver,
        "cuda_of_driver": report.cuda_driver,
        "nvml": report.nvml,
        "hidden_gpus": report.hidden or None,
        "none_because": report.why_none,
    }
    return {
        "gpu_driver": {key: value for key, value in driver.items() if value is not None},
        "gpus": {f"gpu{gpu.index}": gpu.as_json() for gpu in report.gpus},
    }
