"""The machine and the software at the start of a validation: what every figure of the report was measured on."""

from __future__ import annotations

import os
import platform
import socket
import sys
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from validator.files import Tree
from validator.observe.host import HostFacts, read_host
from validator.observe.nvml import GpuReport, read_gpus
from validator.observe.redact import redact_env
from validator.observe.software import git_facts, package_versions, python_version

__all__ = ["KEPT_PREFIXES", "PACKAGES", "snapshot"]

PACKAGES = ("torch", "triton", "numpy", "scipy", "pydantic", "pytest", "psutil", "nvidia-ml-py", "training-validator")

KEPT_PREFIXES = (
    *("NCCL_", "TORCH", "PYTORCH_", "CUDA_", "CUBLAS_", "CUDNN_", "NVIDIA_", "NSA_", "TRITON_", "OMP_", "MKL_"),
    *("GLOO_", "KMP_", "OPENBLAS_", "PYTHON", "LD_", "UCX_", "FI_", "SLURM_", "HF_", "TOKENIZERS_"),
)
"""Variables that bear on speed or on what runs; all others stay out of the report."""

_GIB = 2**30


def snapshot(run_dir: Path, *, trainer_python: str = sys.executable) -> dict[str, Any]:
    """Facts for `environment.json`, as plain values, secrets redacted; writes `preflight/git_sha.txt` as well.

    Costs some ten milliseconds: nothing is imported to be asked for its version. The long captures are `preflight`'s.
    """
    git = git_facts(Path.cwd())
    if git.sha is not None:
        with Tree(run_dir) as tree:
            tree.write("preflight/git_sha.txt", f"{git.sha}\n", sync=False)
    return {
        "schema_version": 1,
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "host": socket.gethostname(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "container": _container(),
        "python": _python(trainer_python),
        "packages": {k: v for k, v in package_versions(trainer_python, PACKAGES).items() if v is not None},
        **_host(read_host(run_dir)),
        "git": git.as_json(),
        **_gpus(read_gpus()),
        "env": _kept(os.environ),
    }


def _python(trainer_python: str) -> dict[str, Any]:
    return {
        "version": python_version(trainer_python),
        "executable": trainer_python,
        "implementation": platform.python_implementation(),
    }


def _container() -> bool:
    return Path("/.dockerenv").exists() or Path("/run/.containerenv").exists() or "container" in os.environ


def _gib(value: int | None) -> float | None:
    return None if value is None else round(value / _GIB, 2)


def _host(facts: HostFacts) -> dict[str, Any]:
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
    }


def _gpus(report: GpuReport) -> dict[str, Any]:
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


def _kept(environment: Mapping[str, str]) -> dict[str, str]:
    return redact_env({name: environment[name] for name in sorted(environment) if name.startswith(KEPT_PREFIXES)})
