"""The pipeline, readable as a table of contents: a runbook becomes a plan, processes, results, verdicts, a report."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from validator.errors import disk_errors
from validator.history.store import update_index
from validator.kinds.registry import load
from validator.model.plan import Plan
from validator.model.runbook import Runbook
from validator.model.verdict import ValidationReport
from validator.pipeline import session as effects
from validator.pipeline.phases import Reopened, State, begin, run_phase
from validator.pipeline.resume_state import clean_loaded, clean_words, with_secrets
from validator.pipeline.write import Finished, render, report
from validator.plan import first_plan, make_plan
from validator.runbook import find
from validator.runbook.load import LoadedRunbook
from validator.runbook.places import absent
from validator.runs.folder import ReportPaths, RunFolder, require_made_from, utc_now
from validator.runs.replay import RunEnd, ending, events_of, lacked_room, pending


@dataclass(frozen=True)
class RunRequest:
    """What the user asked `validator run` for."""

    runbook: str
    only: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()
    parent: Path = Path("reports")
    fail_fast: bool = False
    lock: bool = True
    loaded: LoadedRunbook | None = None
    """The runbook itself, where it is in no file."""
    command: tuple[str, ...] = ()
    """Then also the options, `--` and the command that it was made for."""


def execute(request: RunRequest, *, quiet: bool = False) -> Finished:
    """Run a runbook to a decision.

    Raises:
        RunbookError: when the runbook or an override is wrong; nothing has been started or written.
        Unable: when this machine cannot run it, or another validation holds it.
    """
    loaded = request.loaded or load(find(request.runbook), overrides=request.overrides)
    plan = first_plan(loaded.runbook, only=request.only, skip=request.skip)
    effects.require_start(f"{one.message}; {one.fix}" for one in loaded.absent)
    here = loaded.runbook.cluster is None
    if here:
        effects.require_hardware(loaded.runbook)
        effects.require_packages(plan.runs, runbook=loaded.runbook.name)
    with effects.locked(loaded.runbook, enabled=request.lock and here) as lock:
        with disk_errors(request.parent, command=f"validator run {request.runbook}"):
            folder = RunFolder.create(
                clean_loaded(loaded),
                parent=request.parent,
                python=sys.executable,
                only=request.only,
                skip=request.skip,
                fail_fast=request.fail_fast,
                command=clean_words(request.command),
            )
        lock.name(folder.root)
        result, paths = _carry_out(folder, loaded.runbook, plan, quiet=quiet, fail_fast=request.fail_fast)
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

    The settings of the start apply: the runbook as it was read then, the overrides, `only` and `skip`, the interpreter
    and the working folder. A finished validation is only judged again, unless a run of it found the disk full: that run
    is repeated.

    Args:
        runbook: what the user takes the runbook to be; it must have the name of the one that the folder was made from.
        overrides: `KEY=VALUE` for those of the start that held secrets, which are not stored.

    Raises:
        FolderError: when `run_dir` is no run folder, or was made from another runbook.
        Unable: when its runner still lives, or this machine is not the one, or cannot do it.
    """
    folder = RunFolder.open(run_dir)
    header = folder.header
    if runbook is not None:
        require_made_from(folder, load(find(runbook)))
    effects.require_idle(folder)
    events = events_of(folder)
    ended = ending(events)
    if ended is not None and ended.event == "finished" and not lacked_room(events):
        return replace(report(run_dir), had_ended=True)
    with effects.working_folder(cwd=header.cwd, python=header.python):
        declared = with_secrets(folder, overrides)
    plan = make_plan(declared, run_dir=folder.root, python=header.python, only=header.only, skip=header.skip)
    effects.require_start(f"{message}; {fix}" for _, message, fix in absent(declared))
    here = header.runbook.cluster is None
    if here:
        effects.require_hardware(header.runbook)
    with effects.working_folder(cwd=header.cwd, python=header.python):
        if here:
            effects.require_packages(plan.runs, runbook=header.runbook.name)
            effects.require_same_machine(folder, header.runbook)
    with effects.locked(header.runbook, enabled=lock and here) as machine:
        machine.name(folder.root)
        fail_fast = fail_fast or header.fail_fast
        result, paths = _carry_out(folder, declared, plan, quiet=quiet, fail_fast=fail_fast, resume=True)
    update_index(folder.root.parent)
    return Finished(folder.root, result, paths)


def _carry_out(
    folder: RunFolder, runbook: Runbook, plan: Plan, *, quiet: bool, fail_fast: bool, resume: bool = False
) -> tuple[ValidationReport, ReportPaths]:
    """Run the phases of a new folder, or with `resume` what is left of them, and write the reports."""
    header = folder.header
    # A new run is in its folder already, and may end there although somebody removes that folder meanwhile.
    work = effects.working_folder(cwd=header.cwd, python=header.python) if resume else nullcontext()
    with (
        disk_errors(folder.root, command=f"validator run --resume {folder.root}"),
        effects.open_session(
            folder, runbook=runbook, plan=plan, quiet=quiet, fail_fast=fail_fast, resume=resume
        ) as session,
    ):
        with work:
            states = [begin(session)]
            while len(states) <= len(runbook.phases):
                try:
                    states.append(run_phase(session, states[-1], runbook.phases[len(states) - 1]))
                except Reopened as reopened:
                    del states[reopened.first + 1 :]
        return finish(session, states[-1])


def finish(session: effects.Session, state: State) -> tuple[ValidationReport, ReportPaths]:
    """Diagnose and decide, write the reports, and show the decision. Each phase was judged when it ended."""
    session.live_report.close()  # what is written from here on is final
    record = pending(session.folder, state.records)
    end = RunEnd(utc_now(), round(time.monotonic() - session.began, 3))
    session.journal.append("interrupted" if session.cancel.requested else "finished", **end._asdict())
    report, paths = render(session.folder, record, tuple(state.judged.values()), end)
    try:
        session.observer.finished(report, paths)
    except Exception as error:  # noqa: BLE001 -- the decision is written, even if it cannot be displayed
        sys.stderr.write(f"{report.decision}; it cannot be shown here: {type(error).__name__}: {error}\n")
    return report, paths
