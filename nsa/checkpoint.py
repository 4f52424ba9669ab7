"""Checkpoints that are whole or not there, and the search for the newest one that can be trusted.

`checkpoints/step_00000100.pt` holds the state, `step_00000100.json` its size and SHA-256. The second is written
last: a state without its manifest, or one that does not match it, is passed over in favor of the one before.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from nsa.config import SetupError
from nsa.telemetry.files import write_json

__all__ = ["CheckpointError", "find_newest", "load_checkpoint", "save_checkpoint"]

SCHEMA_VERSION = 1


class CheckpointError(SetupError):
    """A checkpoint does not fit this run, or none can be read; the message says which and what to do."""


def checkpoint_dir(out: Path) -> Path:
    """Where a run keeps its checkpoints."""
    return out / "checkpoints"


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as handle:
        while chunk := handle.read(1 << 22):
            digest.update(chunk)
    return digest.hexdigest()


def save_checkpoint(out: Path, state: Mapping[str, Any], *, step: int, keep: int) -> Path:
    """Write the state of `step` by temp, fsync and rename, then its manifest; all but the newest `keep` go."""
    folder = checkpoint_dir(out)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"step_{step:08d}.pt"
    temp = path.with_suffix(f".tmp{os.getpid()}")
    with temp.open("wb") as handle:
        torch.save(dict(state), handle)
        handle.flush()
        os.fsync(handle.fileno())
    manifest = {"schema_version": SCHEMA_VERSION, "step": step, "bytes": temp.stat().st_size, "sha256": _sha256(temp)}
    path.with_suffix(".json").unlink(missing_ok=True)  # an older manifest never describes a newer state
    temp.replace(path)
    write_json(path.with_suffix(".json"), manifest)
    _delete_old(folder, keep)
    return path


def _delete_old(folder: Path, keep: int) -> None:
    complete = sorted(p for p in folder.glob("step_*.pt") if p.with_suffix(".json").exists())
    for path in complete[:-keep]:
        path.with_suffix(".json").unlink(missing_ok=True)
        path.unlink(missing_ok=True)
    for leftover in folder.glob("*.tmp*"):
        leftover.unlink(missing_ok=True)


def _fault(path: Path) -> str | None:
    """Why a checkpoint cannot be trusted, or None."""
    try:
        manifest = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
        size, sha256 = manifest["bytes"], manifest["sha256"]
    except (OSError, ValueError, KeyError, TypeError):
        return "its manifest is missing or unreadable (the writer was probably killed)"
    if path.stat().st_size != size:
        return f"it has {path.stat().st_size} bytes, its manifest says {size}"
    return None if _sha256(path) == sha256 else "its SHA-256 differs from its manifest's"


def find_newest(out: Path, *, say: Callable[[str], None]) -> Path | None:
    """The newest sound checkpoint, or None; every one passed over is said, with the reason."""
    for path in sorted(checkpoint_dir(out).glob("step_*.pt"), reverse=True):
        fault = _fault(path)
        if fault is None:
            return path
        say(f"[checkpoint] {path.name} is passed over: {fault}")
    return None


def load_checkpoint(path: Path) -> dict[str, Any]:
    """The saved state, on the CPU. Only tensors and plain values are unpickled.

    Raises CheckpointError when the file cannot be read or has another schema.
    """
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise CheckpointError(f"{path} cannot be read as a checkpoint: {error}") from error
    if not isinstance(state, dict) or state.get("schema_version") != SCHEMA_VERSION:
        raise CheckpointError(f"{path} is not a checkpoint of schema {SCHEMA_VERSION} of this trainer")
    return state
