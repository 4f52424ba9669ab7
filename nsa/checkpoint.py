"""Checkpoints that are whole or not there, and the search for the newest one that can be trusted.

`checkpoints/step_00000100.pt` holds the state, `step_00000100.json` its size and SHA-256. The second is written
last: a state without its manifest, or one that does not match it, is passed over in favor of the one before.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from nsa.config import SetupError
from nsa.telemetry.files import write_json

__all__ = ["CheckpointError", "find_newest", "load_checkpoint", "newest_step", "save_checkpoint"]

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
    """Write the state of `step` by temp, fsync and rename, then its manifest; all but the newest `keep` go.

    Raises CheckpointError when it cannot be written, as on a full disk; the checkpoints before are untouched then, and
    what was written of this one is removed.
    """
    folder = checkpoint_dir(out)
    path = folder / f"step_{step:08d}.pt"
    temp = path.with_suffix(f".tmp{os.getpid()}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _write_whole(path, temp, state, step)
    except (OSError, RuntimeError) as error:  # torch's writer raises RuntimeError when the disk is full
        if not path.with_suffix(".json").exists():  # its manifest could not be written any more
            path.unlink(missing_ok=True)
        raise CheckpointError(
            f"{path}: the checkpoint of step {step} could not be written: {error}; make room or choose a smaller "
            "keep_checkpoints, then go on from the one before by --resume"
        ) from error
    finally:
        with contextlib.suppress(OSError):
            temp.unlink(missing_ok=True)
    _delete_old(folder, newest=path, keep=keep)
    return path


def _write_whole(path: Path, temp: Path, state: Mapping[str, Any], step: int) -> None:
    with temp.open("wb") as handle:
        torch.save(dict(state), handle)
        handle.flush()
        os.fsync(handle.fileno())
    manifest = {"schema_version": SCHEMA_VERSION, "step": step, "bytes": temp.stat().st_size, "sha256": _sha256(temp)}
    path.with_suffix(".json").unlink(missing_ok=True)  # an older manifest never describes a newer state
    temp.replace(path)
    write_json(path.with_suffix(".json"), manifest)


def _delete_old(folder: Path, *, newest: Path, keep: int) -> None:
    """Delete what is older than the `keep` newest, and what claims to be newer than `newest`, which was just written.

    The latter was passed over when this run began. Left there, it would count as one of those to keep, and the one
    just written would have to go for it.
    """
    found = sorted(folder.glob("step_*.pt"))
    complete = [p for p in found if p <= newest and p.with_suffix(".json").exists()]
    for path in [*complete[:-keep], *(p for p in found if p > newest)]:
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


def newest_step(out: Path) -> int:
    """The step of the newest checkpoint that was written whole, 0 where there is none. Unlike `find_newest` it reads
    nothing, so the checkpoint may yet turn out damaged."""
    manifests = sorted(path.stem for path in checkpoint_dir(out).glob("step_*.json"))
    return int(manifests[-1].removeprefix("step_")) if manifests else 0


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
