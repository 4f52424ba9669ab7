"""`env.json`: what was asked for, what really runs, and on what."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

from nsa.telemetry.files import write_json

__all__ = ["SCHEMA_VERSION", "git_state", "software", "toggles", "write_env_json"]

SCHEMA_VERSION = 1
TOGGLE_PREFIXES = (
    *("NSA_", "NCCL_", "TORCH_", "CUDA_", "OMP_", "PYTORCH_", "TRITON_", "GLOO_"),
    *("CUBLAS_", "NVIDIA_TF32_OVERRIDE"),  # which kernels a product runs, and in what precision
)
SECRET_WORDS = ("TOKEN", "SECRET", "PASSWORD", "KEY", "CREDENTIAL")


def toggles(env: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variables that steer torch, NCCL, Triton and this trainer; anything named like a secret is left out."""
    names = (n for n in env if n.startswith(TOGGLE_PREFIXES) or n == "CONFIG")
    return {n: env[n] for n in sorted(names) if not any(word in n for word in SECRET_WORDS)}


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=Path(__file__).parent, capture_output=True, text=True, timeout=5, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def git_state() -> dict[str, Any]:
    """Commit, branch and whether tracked files were changed, of the checkout this code runs from; else nulls."""
    tracked = _git("ls-files", "--error-unmatch", Path(__file__).name)
    if not tracked:  # installed from a wheel, perhaps inside someone else's repository
        return {"sha": None, "branch": None, "dirty": None}
    sha, _, branch = (_git("rev-parse", "HEAD", "--abbrev-ref", "HEAD") or "").partition("\n")
    status = _git("status", "--porcelain", "--untracked-files=no")
    return {"sha": sha or None, "branch": branch or None, "dirty": None if status is None else bool(status)}


def software(device: torch.device) -> dict[str, Any]:
    """Versions and the accelerator's name."""
    on_cuda = device.type == "cuda"
    nccl = torch.cuda.nccl.version() if on_cuda else None
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "nccl": ".".join(map(str, nccl)) if nccl else None,
        "gpu_name": torch.cuda.get_device_name(device) if on_cuda else None,
        "cuda_capability": ".".join(map(str, torch.cuda.get_device_capability(device))) if on_cuda else None,
        "hostname": platform.node(),
        "platform": platform.platform(),
        "cpu_count": os.cpu_count(),
        "cpu_threads": torch.get_num_threads(),
    }


def write_env_json(out: Path, device: torch.device, facts: Mapping[str, Any]) -> None:
    """Write `env.json` from the software found and the run's own `facts` (requested, effective, params, …)."""
    now = time.time()
    write_json(
        out / "env.json",
        {
            "schema_version": SCHEMA_VERSION,
            "time": datetime.fromtimestamp(now, timezone.utc).isoformat(timespec="seconds"),
            "time_unix_s": now,
            **software(device),
            "git": git_state(),
            "env": toggles(),
            **facts,
        },
    )
