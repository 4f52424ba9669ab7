"""The pipeline, readable as a table of contents: a runbook becomes a plan, processes, results, verdicts, a report."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from validator.files import Tree
from validator.folder import RunFolder, interpreter, require_made_from
from validator.model.contrast import Contrast
from validator.model.plan import Plan
from validator.model.runbook import TrainerMetrics, Watchdog
from validator.model.verdict import Finding, RunReport, ValidationReport
from validator.observe.redact import declare_secrets
from validator.plan import make_plan
from validator.runbook import LoadedRunbook, find, load
from validator.stages.baselining import Baseline, make_baseline
from validator.stages.comparing import compare_folders
from validator.stages.disk import ending, events_of, lacked_room
from validator.stages.doctor import examine
from validator.stages.inspecting import inspect_path, printed_metrics
from validator.stages.looking_back import History, look_back, set_pin, update_index
from validator.stages.machine import require_same_machine
from validator.stages.phases import State, begin, run_phase
from validator.stages.reporting import finish, rerender
from validator.stages.secrets import clean_loaded, clean_plan, with_secrets
from validator.stages.session import (
    Session,
    Unable,
    disk_errors,
    locked,
    open_session,
    require_hardware,
    require_idle,
    working_folder,
)
from validator.stages.share import Shared, require_original
from validator.stages.share import share as make_shared
from validator.stages.watching import Watched, watch_directory

if TYPE_CHECKING:
    from validator.execute.watch import WatchEvent
    from validator.report.write import ReportPaths

__all__ = [
    "Finished",
    "History",
    "Inspection",
    "Request",
    "Shared",
    "Unable",
    "baseline",
    "compare",
    "examine",
    "execute",
    "history",
    "inspect",
    "pin",
    "preview",
    "printed_metrics",
    "report",
    "resume",
    "share",
    "watch",
]


@dataclass(frozen=True)
class Request:
    """What the user asked `validator run` for."""

    runbook: str
    only: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()
    parent: Path = Path("reports")
    fail_fast: bool = False
    lock: bool = True


@dataclass(frozen=True)
class Finished:
    """A judged validation: its folder, its report, and where the report was written."""

    folder: Path
    report: ValidationReport
    paths: ReportPaths
    had_ended: bool = False
    """Whether it had come to its end before: there was nothing to resume."""

    @property
    def text(self) -> str:
        """result.json."""
        return _written(self.paths.result)

    @property
    def markdown(self) -> str:
        """report.md."""
        return _written(self.paths.markdown)

    @property
    def exit_code(self) -> int:
        """The exit code that says the decision; an unfinished validation is INCONCLUSIVE."""
        return 3 if self.report.exit_code is None else self.report.exit_code


def _written(path: Path) -> str:
    with Tree(path.parent) as tree:
        return tree.text(path.name)


def execute(request: Request, *, quiet: bool = False) -> Finished:
    """Run a runbook to a decision.

    Raises:
        RunbookError: when the runbook or an override is wrong; nothing has been started or written.
        Unable: when this machine cannot run it, or another validation holds it.
    """
    loaded = load(find(request.runbook), overrides=request.overrides)
    plan = _plan(loaded, only=request.only, skip=request.skip)
    require_hardware(loaded.runbook)
    with locked(loaded.runbook, enabled=request.lock) as lock:
        with disk_errors(request.parent, command=f"validator run {request.runbook}"):
            folder = RunFolder.create(
                clean_loaded(loaded),
                parent=request.parent,
                python=interpreter(),
                only=request.only,
                skip=request.skip,
                fail_fast=request.fail_fast,
            )
        lock.name(folder.root)
        with (
            disk_errors(folder.root, command=f"validator run --resume {folder.root}"),
            open_session(
                folder, runbook=loaded.runbook, plan=plan, quiet=quiet, fail_fast=request.fail_fast
            ) as session,
        ):
            result, paths = finish(session, _phases(session))
    update_index(folder.root.parent)
    return Finished(folder.root, result, paths)


def resume(
    run_dir: Path,
    *,
    runbook: str | None = None,
    overrides: Sequence[str] = (),
    fail_fast: bool = False,
    lock: bool = True,
    quiet: bool = False,
) -> Finished:
    """Bring a validation whose runner was killed or interrupted to its decision, repeating nothing that has ended.

    Everything that was decided at the start still holds: the runbook as it was read then, the overrides, `only` and
    `skip`, the interpreter and the working folder. A validation that has come to its end is only judged again, unless a
    run of it found the disk full: that run is repeated.

    Args:
        runbook: what the user takes the runbook to be; it must have the name of the one that the folder was made from.
        overrides: `KEY=VALUE` for those that were given at the start and held secrets, which are not stored.

    Raises:
        FolderError: when `run_dir` is no run folder, or was made from another runbook.
        Unable: when its runner still lives, or this machine is not the one, or cannot do it.
    """
    folder = RunFolder.open(run_dir)
    header = folder.header
    if runbook is not None:
        require_made_from(folder, load(find(runbook)))
    require_idle(folder)
    events = events_of(folder)
    ended = ending(events)
    if ended is not None and ended.event == "finished" and not lacked_room(events):
        return replace(report(run_dir), had_ended=True)
    with working_folder(folder):
        declared = with_secrets(folder, overrides)
    plan = make_plan(declared, run_dir=folder.root, python=header.python, only=header.only, skip=header.skip)
    require_hardware(header.runbook)
    with working_folder(folder):
        require_same_machine(folder, header.runbook)
    with locked(header.runbook, enabled=lock) as machine:
        machine.name(folder.root)
        with (
            disk_errors(folder.root, command=f"validator run --resume {folder.root}"),
            open_session(
                folder,
                runbook=declared,
                plan=plan,
                quiet=quiet,
                fail_fast=fail_fast or header.fail_fast,
                resume=True,
            ) as session,
        ):
            with working_folder(folder):
                state = _phases(session)
            result, paths = finish(session, state)
    update_index(folder.root.parent)
    return Finished(folder.root, result, paths)


def _phases(session: Session) -> State:
    state = begin(session)
    for phase in session.runbook.phases:
        state = run_phase(session, state, phase)
    return state


def preview(
    runbook: str, *, overrides: Sequence[str], only: Sequence[str], skip: Sequence[str]
) -> tuple[LoadedRunbook, Plan]:
    """What `execute` would start, without starting it."""
    loaded = load(find(runbook), overrides=overrides)
    return loaded, clean_plan(_plan(loaded, only=only, skip=skip))


def report(run_dir: Path) -> Finished:
    """Judge a run folder again from disk and write its reports anew.

    Raises:
        FolderError: when `run_dir` is not a run folder.
        Unable: when the reports cannot be written.
    """
    folder = RunFolder.open(run_dir)
    with disk_errors(folder.root, command=f"validator report {folder.root}"):
        result, paths = rerender(folder)
    return Finished(folder.root, result, paths)


def share(run_dir: Path, *, out: Path | None = None) -> Shared:
    """Judge a run folder again and write a copy of it that is fit for strangers.

    Raises:
        FolderError: when `run_dir` is not a run folder or still being run, or `out` holds something already.
        Unable: when the disk refuses.
    """
    require_original(RunFolder.open(run_dir))
    judged = report(run_dir)
    with disk_errors(out or run_dir.parent, command=f"validator report {run_dir} --share"):
        return make_shared(RunFolder.open(run_dir), judged.report, out=out)


@dataclass(frozen=True)
class Inspection:
    """One trainer folder or log, measured: what `inspect` shows. `printed` says by which print format a log was read
    for which nobody gave a pattern."""

    directory: Path
    run: RunReport
    findings: tuple[Finding, ...]
    printed: Mapping[str, str] | None = None

    @property
    def vetoed(self) -> bool:
        """Whether a finding forbids trusting the folder's numbers."""
        return any(finding.severity == "veto" for finding in self.findings)

    def as_dict(self) -> dict[str, Any]:
        """The JSON that `inspect --json` prints: the same `metrics` and `findings` as result.json."""
        run = self.run.model_dump(mode="json")
        return {
            "schema_version": 1,
            "directory": str(self.directory),
            **({"printed": dict(self.printed)} if self.printed else {}),
            **{key: run[key] for key in ("metrics", "scalars", "requested", "effective", "warmup_end_step")},
            "irregularities": run["irregularities"],
            "findings": [finding.model_dump(mode="json") for finding in self.findings],
        }


def inspect(
    path: Path, *, warmup_steps: int | None = None, stdout: str | None = None, runbook: Path | None = None
) -> Inspection:
    """Measure and diagnose one folder that a trainer wrote, or one log.

    Raises:
        FolderError: when there is no such folder or file, or `stdout` is no pattern.
        RunbookError: when the runbook is wrong.
    """
    record, run, findings = inspect_path(path, warmup_steps=warmup_steps, stdout=stdout, runbook=runbook)
    printed = record.result.extra.get("printed") if record.result is not None else None
    return Inspection(directory=path, run=run, findings=findings, printed=printed)


def baseline(
    runs: Sequence[Path],
    *,
    runbook: Path | None,
    out: Path | None,
    margin: float,
    allow_not_go: bool,
    phases: Sequence[str],
) -> Baseline:
    """A runbook whose bounds come from good runs, written to `out` if given, and checked.

    Raises:
        FolderError: when the runs are no baseline, or the runbook's text cannot be edited.
        RunbookError: when the runbook is wrong; nothing is written then.
        Unable: when `out` cannot be written.
    """
    made = make_baseline(runs, runbook=runbook, margin=margin, allow_not_go=allow_not_go, phases=phases)
    if out is not None:
        with disk_errors(out, command="validator baseline"):
            part = out.with_name(f".{out.name}.part")
            part.write_text(made.text, encoding="utf-8")
            try:
                load(part)
            except BaseException:
                part.unlink()
                raise
            part.replace(out)
    return made


def compare(a: Path, b: Path, *, warmup_steps: int, not_worse_than: float | None = None) -> Contrast:
    """Folder `b` against folder `a`: two validations, or two folders that a trainer wrote.

    `not_worse_than` is a share: the one-sided question whether b is worse by less than that.

    Raises:
        FolderError: when one of them is neither, or they are of different kinds.
    """
    return compare_folders(a, b, warmup_steps=warmup_steps, not_worse_than=not_worse_than)


def history(reports: Path, *, runbook: str | None = None, rebuild: bool = False) -> History:
    """Past validations below a folder, in groups that may be compared; their page is written on the way.

    Raises:
        FolderError: when there is no such folder, or no run of that runbook.
    """
    return look_back(reports, runbook=runbook, rebuild=rebuild)


def pin(reports: Path, run: str, *, keep: bool) -> None:
    """Keep a run folder whatever retention says, or no longer.

    Raises:
        FolderError: when there is no such run folder.
    """
    set_pin(reports, run, keep=keep)


def watch(
    directory: Path,
    *,
    interval_s: float,
    halt: bool,
    limits: Watchdog,
    metrics: TrainerMetrics,
    tell: Callable[[WatchEvent], None],
) -> Watched:
    """Watch the folder of a trainer that somebody else started, and `tell` what is worth telling.

    Raises:
        FolderError: when there is no such folder.
    """
    return watch_directory(directory, interval_s=interval_s, halt=halt, limits=limits, metrics=metrics, tell=tell)


def _plan(loaded: LoadedRunbook, *, only: Sequence[str], skip: Sequence[str]) -> Plan:
    """The plan with the run folder, which has no name yet, written as `reports/RUN`."""
    declare_secrets(loaded.runbook.secrets)
    return make_plan(loaded.runbook, run_dir=Path("reports/RUN"), python=interpreter(), only=only, skip=skip)
