"""Folders judged without running anything: one of a trainer, or its log, inspected; two of any kind compared."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from validator.compare import Side, contrast, run_side, validation_side
from validator.diagnose import diagnose_run
from validator.errors import FolderError
from validator.files import is_file
from validator.ingest import collect_dir
from validator.ingest.table import names_in
from validator.judge import run_report
from validator.kinds.registry import load
from validator.model.contrast import ContrastReport
from validator.model.plan import RunSpec
from validator.model.readers import READERS, readers_of
from validator.model.record import RunRecord
from validator.model.result import PrintedFormat, Result
from validator.model.runbook import Runbook, TrainerMetrics
from validator.model.settings import accepted_at
from validator.model.verdict import Finding, RunReport, ValidationReport
from validator.pipeline.evaluate import stored_report
from validator.runbook import find
from validator.runs.folder import Header, RunFolder, is_run_folder, last_go
from validator.runs.replay import events_of, record_of, started_runs
from validator.secrets.masking import clean_result
from validator.text import nearest

_WARMUP_STEPS = 20
_SHOWN = 5
_MOST_WORSE = 0.1
"""A side that may be worse by more than this is no answer to the narrower question, and no reader would ask it."""

_LEVELS = 6
"""Folders above a run's own in which the validation's may be: runs/PHASE/ARM/REMEDY/rN is five below it."""


@dataclass(frozen=True)
class Inspection:
    """One trainer folder or log, measured: what `inspect` shows.

    `printed` is the print format by which a log was read for which no pattern was given.
    """

    directory: Path
    run: RunReport
    findings: tuple[Finding, ...]
    printed: PrintedFormat | None = None

    @property
    def vetoed(self) -> bool:
        """Whether a finding forbids trusting the folder's numbers."""
        return any(finding.severity == "veto" for finding in self.findings)

    @property
    def trusted(self) -> bool:
        """Whether something is measured, and no finding forbids trusting it."""
        missing = not self.run.metrics and any(finding.code == "missing-evidence" for finding in self.findings)
        return not self.vetoed and not missing

    def as_dict(self) -> dict[str, Any]:
        """The JSON that `inspect --json` prints: the same `metrics` and `findings` as result.json."""
        run = self.run.model_dump(mode="json")
        return {
            "schema_version": 1,
            "directory": str(self.directory),
            **({"printed": asdict(self.printed)} if self.printed else {}),
            **{key: run[key] for key in ("metrics", "scalars", "requested", "effective", "warmup_end_step")},
            "irregularities": run["irregularities"],
            "findings": [finding.model_dump(mode="json") for finding in self.findings],
        }


def inspect(
    path: Path,
    *,
    warmup_steps: int | None = None,
    stdout: str | None = None,
    runbook: Path | None = None,
    readers: Sequence[str] = (),
) -> Inspection:
    """Measure and diagnose one trainer folder, log or table.

    A run of a validation is read as the validation read it: by its runbook, and with how the run ended.

    Args:
        path: the folder or the file.
        warmup_steps: steps that never count as steady; by default the runbook's, else 20, of a short run a quarter.
        stdout: the pattern that its log is read by.
        runbook: the runbook that says where its measurements are.
        readers: names of readers that know what is in it.

    Raises:
        FolderError: when there is nothing of that name, `stdout` is no pattern, or there is no such reader.
        RunbookError: when the runbook is wrong.
    """
    record, accepted = _record_of(path, warmup_steps=warmup_steps, stdout=stdout, runbook=runbook, readers=readers)
    printed = record.result.evidence.printed if record.result is not None else None
    return Inspection(path, run_report(record), diagnose_run(record, accepted), printed)


def _record_of(
    path: Path,
    *,
    warmup_steps: int | None,
    stdout: str | None,
    runbook: Path | None = None,
    readers: Sequence[str] = (),
) -> tuple[RunRecord, Mapping[str, str]]:
    """One trainer folder or log, by what is said of it, else as the validation read it that it is of; and the codes of
    findings that its runbook accepts, with the place in it."""
    if not path.exists():
        raise FolderError(f"{path} is not there; give the folder that holds the trainer's files, or its log")
    known = _of_validation(path) if stdout is None and runbook is None and not readers else None
    if known is None:
        declared = None if runbook is None else load(find(str(runbook))).runbook
        metrics = _metrics(path, stdout, declared, readers)
        record = inspect_record(path, warmup_steps=warmup_steps, metrics=metrics)
        return record, {} if declared is None else accepted_at(declared, None)
    record, accepted = known
    if warmup_steps is None:
        return record, accepted
    spec = record.spec.model_copy(update={"warmup_steps": warmup_steps})
    return RunRecord(spec, record.outcome, record.result), accepted


def printed_metrics(stdout: str) -> TrainerMetrics:
    """Measurements that are read from what is printed.

    Raises:
        FolderError: when the text is no pattern.
    """
    try:
        return TrainerMetrics(stdout=stdout)
    except ValidationError as error:
        message = str(error.errors()[0]["msg"]).removeprefix("Value error, ")
        raise FolderError(f"--stdout: {message}") from None


def reader_metrics(readers: Sequence[str], *, file: str | None = None) -> TrainerMetrics:
    """Measurements that readers find; with `file` in this file alone.

    Raises:
        FolderError: when there is no reader of a name.
    """
    for name in readers:
        if name not in READERS:
            fix = nearest(name, READERS, f"readers: {', '.join(READERS)}")
            raise FolderError(f"there is no reader called {name}; {fix}")
    named = readers_of(readers)
    files = {reader.name: file for reader in named if reader.files} if file is not None else {}
    return TrainerMetrics(reader=tuple(reader.name for reader in named), files=files)


def _metrics(path: Path, stdout: str | None, runbook: Runbook | None, readers: Sequence[str]) -> TrainerMetrics | None:
    """Where the measurements are, as far as anybody says so."""
    if readers:
        return reader_metrics(readers, file=None if path.is_dir() else path.name)
    if stdout is not None:
        return printed_metrics(stdout)
    if runbook is not None:
        declared = runbook.trainer.metrics
        if path.is_dir():
            return declared
        files = {reader.name: path.name for reader in declared.readers if reader.files}
        update = {"csv": None, "heartbeat": None, "env": None, "metrics": None, "files": files}
        return declared.model_copy(update=update)
    return TrainerMetrics(csv=path.name, names=names_in(path) or {}) if path.suffix == ".csv" else None


def _of_validation(path: Path) -> tuple[RunRecord, Mapping[str, str]] | None:
    """The record of a run folder within a validation's folder, or of its log, and what its runbook accepts of it; None
    for any other folder.

    Raises:
        FolderError: for a folder of several runs, which is no trainer's.
    """
    own = path.resolve()
    if own.name == "stdout.log" and own.parent.name == "logs":
        own = own.parent.parent
    for root in [own, *own.parents][: _LEVELS + 1]:
        if not is_file(root / "run.json") or not is_file(root / "journal.jsonl"):
            continue
        try:
            folder = RunFolder.open(root)
            runs = list(started_runs(events_of(folder)))
        except (FolderError, ValueError, KeyError):
            return None
        found = next(((spec, outcome) for spec, outcome in runs if (root / spec.out).resolve() == own), None)
        if found is None:
            _refuse_several(path, [root / spec.out for spec, _ in runs if spec.trains])
        if found is None or not found[0].trains:
            return None
        phase = next((one for one in folder.header.runbook.phases if one.id == found[0].phase), None)
        return record_of(folder, *found), accepted_at(folder.header.runbook, phase)
    return None


def _refuse_several(path: Path, runs: Sequence[Path]) -> None:
    """A validation's own folder, or that of a phase, would be measured as if one trainer had written all of it."""
    own = path.resolve()
    inside = [path / run.resolve().relative_to(own) for run in runs if own in run.resolve().parents]
    if inside:
        lines = "\n".join(f"  validator inspect {shlex.quote(str(run))}" for run in inside[:_SHOWN])
        more = f"\n  and {len(inside) - _SHOWN} more" if len(inside) > _SHOWN else ""
        raise FolderError(f"{path} holds runs of a validation and is none itself; inspect one of them:\n{lines}{more}")


def inspect_record(path: Path, *, warmup_steps: int | None = None, metrics: TrainerMetrics | None = None) -> RunRecord:
    """A record of one trainer folder, log or table that no runbook led to.

    Raises:
        FolderError: when there is no such folder.
    """
    if not path.exists():
        raise FolderError(f"{path} is not there; give the folder that holds the trainer's files")
    result = clean_result(collect_dir(path, metrics=metrics))
    world = max(1, len(result.rank_series))
    spec = RunSpec(
        id=path.name or "run",
        phase="inspect",
        kind="train",
        launcher="python",
        argv=(),
        env={},
        out=".",
        nproc=world,
        warmup_steps=_usual_warmup(result) if warmup_steps is None else warmup_steps,
        timeout_s=0.0,
        metrics=metrics or TrainerMetrics(),
    )
    return RunRecord(spec=spec, outcome=None, result=result)


def _usual_warmup(result: Result) -> int:
    """Warm-up steps where none are declared: twenty, of a short run a quarter."""
    done = result.scalars.get("steps.done")
    steps = float(done.value) if done is not None and isinstance(done.value, (int, float)) else 0.0
    return min(_WARMUP_STEPS, int(steps / 4))


# Two folders read back and compared: run folders, or output folders of a trainer; also with the last GO.

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


def compare(
    a: Path,
    b: Path,
    *,
    warmup_steps: int | None = None,
    not_worse_than: float | None = None,
    stdout: str | None = None,
) -> ContrastReport:
    """Folder `b` against folder `a`: two run folders, or two folders or logs that a trainer wrote.

    Trainers' folders and logs are read as `inspect` reads them.

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
        sides = [_side_of_trainer(path, warmup_steps=warmup_steps, stdout=stdout) for path in (a, b)]
    found = contrast(sides[0], sides[1], not_worse_than=not_worse_than)
    if found.verdict != "not_decidable":
        return found
    return found.model_copy(update={"commands": tuple(_deciding(found, a, b))})


def _deciding(found: ContrastReport, a: Path, b: Path) -> Iterator[str]:
    """Commands that would decide it: more runs of both sides, and the narrower question that these runs answer."""
    open_ = [one for one in found.metrics if one.headline and one.verdict == "not_decidable"]
    wanted: dict[str, int] = {}
    for one in open_:
        if one.phase is not None and one.repeats_needed is not None:
            wanted[one.phase] = max(one.repeats_needed, wanted.get(one.phase, 0))
    if wanted and is_run_folder(a):
        again = [repeated(RunFolder.open(path).header, wanted) for path in (a, b)]
        if again[0] == again[1]:
            yield f"{again[0]}  # once as A was, once as B was"
        else:
            yield from (f"{line}  # {side}" for line, side in zip(again, "AB", strict=True))
        yield "validator compare reports/NEW_A reports/NEW_B"
    worst = [one.worst for one in found.metrics if one.headline]
    if worst and found.not_worse_than is None and all(one is not None and one < _MOST_WORSE for one in worst):
        percent = max(1, math.floor(100 * max(filter(None, worst), default=0.0)) + 1)
        paths = " ".join(shlex.quote(str(path)) for path in (a, b))
        yield f"validator compare {paths} --not-worse-than {percent}%"


def repeated(header: Header, wanted: Mapping[str, int]) -> str:
    """A validation again, of these phases alone, with so many runs of each."""
    changes = [*header.overrides, *(f"{phase}.repeats={runs}" for phase, runs in wanted.items())]
    words = [word for one in changes for word in ("--set", one)]
    words += [word for phase in wanted for word in ("--only", phase)]
    return shlex.join(["validator", "run", header.runbook_path, *words])


def _side_of_trainer(path: Path, *, warmup_steps: int | None, stdout: str | None) -> Side:
    record, accepted = _record_of(path, warmup_steps=warmup_steps, stdout=stdout)
    environment = record.result.environment if record.result is not None else None
    return run_side(
        run_report(record),
        diagnose_run(record, accepted),
        name=path.name,
        path=str(path),
        facts=_trainer_facts(environment),
        declared=record.spec.metrics.declared,
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


def since_last_go(folder: RunFolder, report: ValidationReport) -> ContrastReport | None:
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
