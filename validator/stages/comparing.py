"""Two folders read back for comparison, and the last GO that a validation can be compared with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from validator.files import Tree
from validator.folder import FolderError, RunFolder
from validator.model.catalogue import METRICS, version_of
from validator.model.contrast import Contrast
from validator.model.machine import machine_class
from validator.model.verdict import ValidationReport
from validator.stages.disk import end_of, reconstruct
from validator.stages.inspecting import inspect_record
from validator.stages.machine import facts_of

if TYPE_CHECKING:
    from validator.compare import Side

__all__ = ["compare_folders", "last_go", "since_last_go", "stored_report"]

_MOST_FOLDERS = 500
"""Run folders that are looked through for the last GO; the newest come first."""


def compare_folders(a: Path, b: Path, *, warmup_steps: int = 20, not_worse_than: float | None = None) -> Contrast:
    """Two run folders, or two folders that a trainer wrote. `not_worse_than` is a share.

    Raises:
        FolderError: when one is neither, or when they are of different kinds.
    """
    from validator.compare import contrast

    kinds = [_is_run_folder(path) for path in (a, b)]
    if kinds[0] != kinds[1]:
        run, trainer = (a, b) if kinds[0] else (b, a)
        raise FolderError(
            f"{run} is a run folder and {trainer} is not; compare two run folders, or two trainer folders such as "
            f"{run}/runs/PHASE/r1"
        )
    if kinds[0]:
        sides = [_validation(RunFolder.open(path)) for path in (a, b)]
    else:
        sides = [_trainer(path, warmup_steps=warmup_steps) for path in (a, b)]
    return contrast(sides[0], sides[1], not_worse_than=not_worse_than)


def _is_run_folder(path: Path) -> bool:
    with suppress(OSError), Tree(path) as tree:
        return tree.has_file("run.json")
    return False


def _validation(folder: RunFolder, report: ValidationReport | None = None) -> Side:
    from validator.compare import validation_side

    found = report or stored_report(folder)
    facts = facts_of(found.environment) | {
        "runbook.name": found.runbook.name,
        "runbook.sha256": found.runbook.sha256[:12],
        "runbook.overrides": " ".join(found.runbook.overrides) or "none",
    }
    return validation_side(found, runbook=folder.header.runbook, path=str(folder.root), facts=facts)


def _trainer(path: Path, *, warmup_steps: int) -> Side:
    from validator.compare import run_side
    from validator.diagnose import diagnose_run
    from validator.judge import run_report

    record = inspect_record(path, warmup_steps=warmup_steps)
    environment = record.result.environment if record.result is not None else None
    return run_side(
        run_report(record), diagnose_run(record), name=path.name, path=str(path), facts=_trainer_facts(environment)
    )


def _trainer_facts(environment: Mapping[str, Any] | None) -> dict[str, str]:
    """What env.json says beside the config: software, GPU and toggles."""
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


def stored_report(folder: RunFolder) -> ValidationReport:
    """The report of a run folder: result.json as it stands, or judged from disk where there is none that can be read.

    It is judged from disk as well where a metric has another definition since, so that no comparison crosses one; as
    it stands where the evidence for that is gone.

    Raises:
        FolderError: when the folder holds neither a result nor a journal.
    """
    try:
        with folder.tree() as tree:
            found = ValidationReport.model_validate(tree.json("result.json"))
    except (OSError, ValueError):
        return _judged_anew(folder)
    if not _outdated(found):
        return found
    try:
        anew = _judged_anew(folder)
    except FolderError:
        return found
    return found if _outdated(anew) or _measured(anew) != _measured(found) else anew


def _judged_anew(folder: RunFolder) -> ValidationReport:
    from validator.stages.reporting import assemble, judge
    from validator.stages.share import readable

    with readable(folder) as unpacked:
        record, (finished, duration_s) = reconstruct(unpacked), end_of(folder)
    return assemble(folder, record, judge(record), finished=finished, duration_s=duration_s)


def _outdated(report: ValidationReport) -> bool:
    """Whether a metric was computed by another definition than today's."""
    runs = (run for phase in report.phases for run in phase.runs)
    return any(stats.version != version_of(name) for run in runs for name, stats in run.metrics.items())


def _measured(report: ValidationReport) -> set[tuple[str, str]]:
    """Run and metric of everything that was measured under today's names."""
    runs = (run for phase in report.phases for run in phase.runs)
    return {(run.id, name) for run in runs for name, stats in run.metrics.items() if name in METRICS and stats.n}


def since_last_go(folder: RunFolder, report: ValidationReport) -> Contrast | None:
    """The validation against the last GO of the same runbook on the same class of machine; None if there is none."""
    from validator.compare import contrast

    if report.decision == "IN_PROGRESS":
        return None
    earlier = last_go(folder, report.environment)
    if earlier is None:
        return None
    try:
        return contrast(_validation(earlier), _validation(folder, report))
    except FolderError:
        return None


def last_go(folder: RunFolder, environment: Mapping[str, Any]) -> RunFolder | None:
    """The newest run folder beside this one that began earlier, ended GO, and can be compared with it.

    Comparable means the same runbook by name, the same machine class, and nothing overridden or left out that was not
    so in the other. Overrides and `--only` make another experiment of the same runbook.
    """
    wanted = machine_class(environment)
    for other in _earlier(folder):
        header = other.header
        same = header.runbook.name == folder.header.runbook.name
        alike = (header.overrides, header.only, header.skip) == (
            folder.header.overrides,
            folder.header.only,
            folder.header.skip,
        )
        if same and alike and _decision(other) == "GO" and machine_class(other.load_environment()) == wanted:
            return other
    return None


def _earlier(folder: RunFolder) -> Iterator[RunFolder]:
    """Readable run folders beside this one that began before it, the newest first. Names begin with the UTC time."""
    try:
        names = sorted((path for path in folder.root.parent.iterdir() if path.name < folder.root.name), reverse=True)
    except OSError:
        return
    for path in names[:_MOST_FOLDERS]:
        if not _is_run_folder(path):
            continue
        try:
            found = RunFolder.open(path)
        except (FolderError, OSError):
            continue
        if found.header.started < folder.header.started:
            yield found


def _decision(folder: RunFolder) -> str | None:
    try:
        with folder.tree() as tree:
            found = tree.json("result.json")
    except (OSError, ValueError):
        return None
    return found.get("decision") if isinstance(found, dict) else None
