"""Two folders read back and compared: run folders, or output folders of a trainer; also with the last GO."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from validator.compare import Side, contrast, run_side, validation_side
from validator.diagnose import diagnose_run
from validator.judge import run_report
from validator.model.contrast import Contrast
from validator.model.verdict import ValidationReport
from validator.pipeline.evaluate import stored_report
from validator.pipeline.inspect import inspect_record
from validator.runs.folder import FolderError, RunFolder, is_run_folder, last_go

_COMPARED = (
    "host",
    "system",
    "python.",
    "packages.",
    "cpu.",
    "memory.total_gib",
    "git.",
    "gpu_driver.",
    "gpus.",
    "env.",
)
_PASSING = ("cpu.load_1m", "git.changed", "git.why_none")
_GPU_FACTS = ("name", "uuid", "memory_total_mib", "index")


def facts_of(environment: Mapping[str, Any]) -> dict[str, str]:
    """The facts of a snapshot that affect results, by dotted name."""
    return {name: value for name, value in _flat(environment) if name.startswith(_COMPARED) and name not in _PASSING}


def _flat(facts: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in facts.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        elif value is not None and (not prefix.startswith("gpus.") or key in _GPU_FACTS):
            yield f"{prefix}{key}", str(value)


def compare(a: Path, b: Path, *, warmup_steps: int = 20, not_worse_than: float | None = None) -> Contrast:
    """Folder `b` against folder `a`: two run folders, or two folders that a trainer wrote.

    `not_worse_than` is a share: the one-sided question whether b is worse by less than that.

    Raises:
        FolderError: when one is neither, or when they are of different kinds.
    """
    kinds = [is_run_folder(path) for path in (a, b)]
    if kinds[0] != kinds[1]:
        run, trainer = (a, b) if kinds[0] else (b, a)
        raise FolderError(
            f"{run} is a run folder and {trainer} is not; compare two run folders, or two trainer folders such as "
            f"{run}/runs/PHASE/r1"
        )
    if kinds[0]:
        sides = [_side_of_validation(RunFolder.open(path)) for path in (a, b)]
    else:
        sides = [_side_of_trainer(path, warmup_steps=warmup_steps) for path in (a, b)]
    return contrast(sides[0], sides[1], not_worse_than=not_worse_than)


def _side_of_trainer(path: Path, *, warmup_steps: int) -> Side:
    record = inspect_record(path, warmup_steps=warmup_steps)
    environment = record.result.environment if record.result is not None else None
    return run_side(
        run_report(record), diagnose_run(record), name=path.name, path=str(path), facts=_trainer_facts(environment)
    )


def _trainer_facts(environment: Mapping[str, Any] | None) -> dict[str, str]:
    """What env.json reports besides the config: software, GPU and toggles."""
    found = environment or {}
    facts = {
        name: str(found[name])
        for name in ("python", "torch", "cuda", "nccl", "gpu_name", "world_size", "compute_dtype")
        if found.get(name) is not None
    }
    git = found.get("git")
    if isinstance(git, Mapping) and git.get("sha"):
        facts["git.sha"] = str(git["sha"])
    toggles = found.get("env")
    if isinstance(toggles, Mapping):
        facts |= {f"env.{name}": str(value) for name, value in toggles.items() if value is not None}
    return facts


def _side_of_validation(folder: RunFolder, report: ValidationReport | None = None) -> Side:
    found = report or stored_report(folder)
    facts = facts_of(found.environment) | {
        "runbook.name": found.runbook.name,
        "runbook.sha256": found.runbook.sha256[:12],
        "runbook.overrides": " ".join(found.runbook.overrides) or "none",
    }
    return validation_side(found, runbook=folder.header.runbook, path=str(folder.root), facts=facts)


def since_last_go(folder: RunFolder, report: ValidationReport) -> Contrast | None:
    """The validation against the last GO of the same runbook on the same class of machine; None if there is none."""
    if report.decision == "IN_PROGRESS":
        return None
    earlier = last_go(folder, report.environment)
    if earlier is None:
        return None
    try:
        return contrast(_side_of_validation(earlier), _side_of_validation(folder, report))
    except FolderError:
        return None
