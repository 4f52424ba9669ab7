"""Going on with a run: the same checkpoint on every rank, the same run in it, and files that end where it does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from nsa.checkpoint import CheckpointError, find_newest, load_checkpoint
from nsa.config import Config, ConfigError, field_specs, flatten
from nsa.data import Sources
from nsa.outdir import ANOMALY_FILE
from nsa.parallel import World
from nsa.sharded import load_whole_state
from nsa.telemetry import cut_csv_after

__all__ = ["Restored", "restore"]


def _agree_on_checkpoint(out: Path, world: World) -> Path | None:
    """Rank 0 finds the newest sound checkpoint and broadcasts it, so that all ranks start from the same one."""
    chosen: list[str | None] = [None]
    if world.is_main:
        found = find_newest(out, say=lambda text: print(text, flush=True))  # noqa: T201
        chosen = [str(found) if found else None]
    if world.backend:
        dist.broadcast_object_list(chosen, src=0, device=world.device if world.on_cuda else None)
    return Path(chosen[0]) if chosen[0] else None


def _refuse_other_run(path: Path, state: Mapping[str, Any], config: Config, sources: Sources) -> None:
    """Raise ConfigError when the data, or a setting that shapes weights or sample order, is not the saved one."""
    saved, now = state["config"], flatten(config)
    product = {"global_batch_size": " (batch_size × accum × processes)"}
    problems = [
        f"{name}={now[name]}{product.get(name, '')} but {path.name} was trained with {name}={saved[name]}: resume with "
        "the same value, or choose another out"
        for name, spec in field_specs().items()
        if spec.fixed and name in saved and saved[name] != now[name]
    ]
    # A trainer of later may know more about its data than the one that saved; what both know has to agree.
    if any(sources.info.get(name) != value for name, value in state["data"].items()):
        problems.append(
            f"data_path={config.data.data_path}: the data is no longer what {path.name} was trained on "
            f"({state['data']} then, {dict(sources.info)} now): restore it, or choose another out"
        )
    if problems:
        raise ConfigError(problems)


def _changes(state: Mapping[str, Any], config: Config) -> list[str]:
    """The settings that may differ from those of the checkpoint, and do."""
    saved, now = state["config"], flatten(config)
    return [
        f"{name}={now[name]} (was {saved[name]})"
        for name, spec in field_specs().items()
        if not spec.fixed and name not in ("out", "resume") and name in saved and saved[name] != now[name]
    ]


@dataclass(frozen=True)
class Restored:
    """Where a run starts: from a checkpoint's step, wall time and place in a stream, or, by default, from nothing."""

    step: int = 0
    wall_s: float = 0.0
    checkpoint: str | None = None
    data_position: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)


def restore(
    out: Path,
    world: World,
    config: Config,
    sources: Sources,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
) -> Restored:
    """Load the newest sound checkpoint into model and optimizer and cut the CSVs back to its step."""
    path = _agree_on_checkpoint(out, world)
    restored, changes = Restored(), list[str]()
    if path is not None:
        state = load_checkpoint(path)
        _refuse_other_run(path, state, config, sources)
        try:
            load_whole_state(model, optimizer, model_state=state["model"], optimizer_state=state["optimizer"])
        except (KeyError, RuntimeError, ValueError) as error:
            raise CheckpointError(f"{path} does not fit this model: {error}") from error
        changes = _changes(state, config)
        restored = Restored(state["step"], state["wall_s"], path.name, state.get("data_position", {}))
    if world.is_main:
        where = f"step {restored.step} of {path.name}" if path else "the beginning: no sound checkpoint was found"
        print(f"[resume] going on from {where}", flush=True)  # noqa: T201
        if changes:
            print(f"[resume] other settings than before: {', '.join(changes)}", flush=True)  # noqa: T201
        for name in (ANOMALY_FILE, "metrics.json"):  # how the last start ended is not how this one will
            (out / name).unlink(missing_ok=True)
        for name in ("training.csv", "val.csv", "k_stats.csv", "fallback_counters.csv"):
            cut = cut_csv_after(out / name, restored.step)
            if cut:
                print(f"[resume] {name}: {cut} rows after step {restored.step} dropped", flush=True)  # noqa: T201
    return restored
