"""Which keys may stand where: the models of the runbook, found by path.

Used to name the nearest valid key, to tell where a misplaced key belongs, and to check the paths of overrides.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import get_args

from pydantic import BaseModel

from validator.model.remedy import Remedy
from validator.model.runbook import (
    Arm,
    Choose,
    Criterion,
    Defaults,
    Hardware,
    Phase,
    PhaseBase,
    Runbook,
    Trainer,
    TrainerMetrics,
    Watchdog,
)
from validator.runbook.document import Node, Path, node_at

__all__ = ["FREE_MAPPINGS", "PHASE_MODELS", "homes", "key_names", "model_at", "spell"]

PHASE_MODELS: dict[str, type[PhaseBase]] = {
    get_args(model.model_fields["kind"].annotation)[0]: model for model in get_args(get_args(Phase)[0])
}
"""Kind of phase to its model."""

FREE_MAPPINGS = ("env", "args", "trial_args", "extra", "over", "arms")
"""Mappings whose keys the user chooses."""

_NESTED: dict[str, type[BaseModel]] = {
    "hardware": Hardware,
    "trainer": Trainer,
    "defaults": Defaults,
    "metrics": TrainerMetrics,
    "watchdog": Watchdog,
    "choose": Choose,
}


def key_names(model: type[BaseModel]) -> list[str]:
    """The keys of a model as they are written in YAML."""
    return [field.alias or name for name, field in model.model_fields.items()]


def model_at(root: Node, path: Path) -> type[BaseModel] | None:
    """The model of the mapping at `path`; None for lists, scalars and mappings with free keys."""
    if not path:
        return Runbook
    last, parent = path[-1], path[-2] if len(path) > 1 else None
    if path[0] == "phases" and len(path) == 2:
        kind = node_at(root, (*path, "kind"))
        return PHASE_MODELS.get(str(kind.value)) if kind is not None else None
    if parent == "accept" and isinstance(last, int):
        return Criterion
    if parent == "arms" and len(path) == 4:
        return Arm
    if parent == "on_failure" and isinstance(last, int):
        return Remedy
    if isinstance(last, str) and last in _NESTED:
        owner = model_at(root, path[:-1])
        return _NESTED[last] if owner is not None and last in key_names(owner) else None
    return None


def homes(key: str) -> str | None:
    """Where a key that is misplaced belongs, in words; None for a key that exists nowhere."""
    kinds = [kind for kind, model in PHASE_MODELS.items() if key in key_names(model)]
    places = [f"`{name}`" for name, model in _NESTED.items() if key in key_names(model)]
    if kinds and len(kinds) < len(PHASE_MODELS):
        places.insert(0, f"phases of kind {', '.join(kinds)}")
    elif kinds:
        places.insert(0, "phases")
    return " and ".join(places) if places else None


def spell(root: Node, path: Path) -> str:
    """A path as people write it, and as `--set` takes it: `phases.baseline.accept[0]`."""
    text = ""
    for index, step in enumerate(path):
        if isinstance(step, str):
            text += f".{step}" if text else step
            continue
        name = node_at(root, (*path[: index + 1], "id")) if path[:index] == ("phases",) else None
        text += f".{name.value}" if name is not None and _is_unique(root, name.value) else f"[{step}]"
    return text


def _is_unique(root: Node, name: object) -> bool:
    phases = node_at(root, ("phases",))
    items = phases.value if phases is not None and isinstance(phases.value, list) else []
    ids = [item.value["id"].value for item in items if isinstance(item.value, Mapping) and "id" in item.value]
    return isinstance(name, str) and ids.count(name) == 1
