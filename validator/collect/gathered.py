"""A result in the making, and what all readers of a run's folder ask of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from validator.collect.heartbeat import Heartbeat
from validator.collect.intake import Intake, age_before
from validator.files import is_file
from validator.model.catalogue import METRICS
from validator.model.measure import ScalarValue
from validator.model.outcome import Outcome
from validator.model.result import Series
from validator.model.runbook import TrainerMetrics

__all__ = ["Gathered", "check_age", "declared", "duration_s", "unit_of"]


@dataclass
class Gathered:
    """A result in the making. `texts` are the logs of a folder that no validation led to; `lenient`: nothing is
    declared."""

    run: str
    out: Path
    intake: Intake
    metrics: TrainerMetrics
    warmup_steps: int = 0
    world_size: int | None = None
    started_s: float | None = None
    outcome: Outcome | None = None
    lenient: bool = False
    texts: tuple[Path, ...] | None = None
    tokens_declared: int | None = None
    series: dict[str, Series] = field(default_factory=dict)
    rank_series: dict[int, dict[str, Series]] = field(default_factory=dict)
    heartbeats: dict[int, Heartbeat] = field(default_factory=dict)
    scalars: dict[str, ScalarValue] = field(default_factory=dict)
    env: dict[str, Any] | None = None
    requested: dict[str, Any] | None = None
    effective: dict[str, Any] | None = None
    extra: dict[str, Any] = field(default_factory=dict)


def declared(state: Gathered, name: str | None, what: str) -> Path | None:
    """The file of that name if it is there; its absence and its age are noted."""
    if name is None:
        return None
    path = state.out / name
    if not is_file(path):
        if note_link(state, path, what):
            return None
        if not state.lenient:
            state.intake.note("missing-file", f"{what} {name} was not written", path)
        return None
    check_age(state, path, what)
    return path


def check_age(state: Gathered, path: Path, what: str) -> None:
    """A file from before the process started, or from elsewhere, is not this run's."""
    age_s = age_before(path, state.started_s)
    if age_s is not None:
        state.intake.note("foreign-results", f"{what} was last written {age_s:.0f} s before this run was started", path)


def note_link(state: Gathered, path: Path, what: str) -> bool:
    """Whether a declared file is a link, which is then noted: what it leads to is not read."""
    if not path.is_symlink():
        return False
    state.intake.note(
        "missing-file",
        f"{what} is a link, which is not followed; let the trainer write the file itself, or name the folder that the "
        "link leads to in link_roots of trainer.metrics",
        path,
    )
    return True


def duration_s(state: Gathered) -> float | None:
    """Seconds that the run took by the monotonic clock; None while nobody knows."""
    return state.outcome.duration_s if state.outcome else None


def unit_of(state: Gathered, name: str) -> str:
    """The unit of a series: as catalogued, as the runbook declares it, or by its name's ending."""
    known = METRICS.get(name)
    return known.unit if known else state.metrics.extra.get(name, _unit_by_suffix(name))


def _unit_by_suffix(name: str) -> str:
    """Names carry their unit by convention: `_s`, `_ms`, `_mib`, `_pct`."""
    for suffix, unit in (("_per_s", ""), ("_ms", "ms"), ("_s", "s"), ("_mib", "MiB"), ("_gib", "GiB"), ("_pct", "%")):
        if name.endswith(suffix):
            return unit
    return ""
