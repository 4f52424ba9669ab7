"""The effects of a running validation: machine and its lock, journal, guardian, signals, terminal.

They are opened together and closed in reverse order, so that nothing outlives a run however it ends.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from validator.errors import Unable
from validator.kinds.registry import kind_of
from validator.model.plan import Plan, RunSpec
from validator.model.record import Attempt, Outcome
from validator.model.resolve import LAST_GO
from validator.model.runbook import Runbook
from validator.pipeline.evaluate import stored_report
from validator.pipeline.inspect import facts_of
from validator.pipeline.live_report import LiveReport
from validator.pipeline.nodes import Nodes, open_nodes
from validator.pipeline.resume_state import ResumeState, read_resume_state
from validator.pipeline.write import render_json
from validator.plan.launchers import trainer_python
from validator.report.terminal import make_observer
from validator.report.terminal.observer import Observer
from validator.runs.folder import JOURNAL, RunFolder, last_go
from validator.runs.journal import Event, Journal, JournalBusy, read, sound
from validator.runs.replay import events_of, last_go_digest, last_runner
from validator.secrets.masking import Mask
from validator.secrets.redact import redact
from validator.supervise.attempt import AttemptContext
from validator.supervise.containers import named_container
from validator.supervise.guardian import Guardian
from validator.supervise.launch import Place
from validator.supervise.lock import MachineLock, lock_names
from validator.supervise.monitor import Progress
from validator.supervise.supervisor import supervise
from validator.supervise.termination import end_marked
from validator.supervise.wait import CancelToken, cancel_on_signals
from validator.system.packages import lacking
from validator.system.preflight import missing_hardware, repository_of
from validator.system.snapshot import snapshot


@dataclass
class Session:
    """The effects of a running validation, opened and closed by `open_session`."""

    folder: RunFolder
    runbook: Runbook
    plan: Plan
    runner: RunContext
    resume_state: ResumeState
    observer: Observer
    fail_fast: bool
    began: float
    live_report: LiveReport
    nodes: Nodes | None = None

    @property
    def journal(self) -> Journal:
        """The journal of the run folder."""
        return self.runner.journal

    @property
    def cancel(self) -> CancelToken:
        """Set when the user asks to stop."""
        return self.runner.cancel


def require_hardware(runbook: Runbook) -> None:
    """Raises Unable with a sentence when the machine lacks what the runbook was written for."""
    missing = missing_hardware(runbook)
    if missing is not None:
        raise Unable(missing)


def require_start(absent: Iterable[str]) -> None:
    """Raises Unable when something that the trainer is started with is absent: sentences, each with its fix."""
    missing = "; ".join(absent)
    if missing:
        raise Unable(missing)


def require_packages(runs: Iterable[RunSpec], *, runbook: str) -> None:
    """Raises Unable with the line to type when the Python of a run lacks torch, pytest or the bundled trainer."""
    missing = lacking(runs, runbook=runbook)
    if missing is not None:
        raise Unable(missing)


def require_idle(folder: RunFolder) -> None:
    """Raises Unable, naming it, when a runner still works on the folder."""
    if last_runner(folder, events_of(folder)).alive():
        raise Unable(_being_run(folder))


@contextmanager
def working_folder(*, cwd: str, python: str) -> Iterator[None]:
    """Work in the directory that the run was started in: commands may name relative paths. Its interpreter must exist.

    Raises:
        Unable: when either is gone.
    """
    if not Path(python).exists():
        raise Unable(
            f"{python}, the interpreter of the trainer, does not exist any more; "
            "restore it, or start a new run without --resume"
        )
    here = Path.cwd()
    try:
        os.chdir(cwd)
    except (OSError, ValueError) as error:  # ValueError: a NUL, as no directory has
        raise Unable(
            f"{cwd!r}, the working directory of the run, cannot be entered: {getattr(error, 'strerror', error)}; "
            "restore it, or start a new run without --resume"
        ) from error
    try:
        yield
    finally:
        os.chdir(here)


@contextmanager
def locked(runbook: Runbook, *, enabled: bool) -> Iterator[MachineLock]:
    """Hold the machine (its GPUs, or its CPU) for the length of the context, so that no two validations disturb each
    other's timings. With `enabled` false nothing is held.

    Raises:
        LockHeld: naming the holder.
        Unable: when the lock's file cannot be opened.
    """
    names = lock_names(runbook.hardware.gpus) if enabled else ()
    lock = MachineLock(names, redact=redact)
    try:
        lock.acquire()
    except OSError as error:
        raise Unable(f"the machine's lock cannot be taken: {error}; fix it or pass --no-lock") from error
    try:
        yield lock
    finally:
        lock.release()


@dataclass(frozen=True)
class RunContext(AttemptContext):
    """What every run of one runner is carried out with, opened and closed by `open_runner`.

    `earlier` are the events that earlier runners left in the journal; `ended` counts processes of theirs that were
    still there.
    """

    earlier: tuple[Event, ...] = ()
    ended: int = 0

    def carry_out(
        self,
        spec: RunSpec,
        *,
        mask: Mask,
        earlier: Sequence[Attempt] = (),
        on_progress: Callable[[Progress], None] | None = None,
        place: Place | None = None,
    ) -> Outcome:
        """Carry out a run to its end; its secrets reach its processes alone. `earlier` are attempts made before."""
        context = replace(self, on_progress=on_progress, redact=mask.sentence, mask=mask.block, place=place)
        return supervise(spec, context, earlier=earlier)


@contextmanager
def open_runner(root: Path, *, busy: Callable[[], str]) -> Iterator[RunContext]:
    """Journal, signals and guardian of one runner in the folder `root`, closed in reverse order whatever happens.

    Once the journal is held, processes that killed runners left behind, where their guardians could not, are ended.

    Args:
        busy: the sentence for the user when another process works on the folder.

    Raises:
        Unable: when another process does.
    """
    token, cancel = secrets.token_hex(16), CancelToken()
    with ExitStack() as stack:
        stack.callback(cancel.close)
        try:
            journal = stack.enter_context(Journal.open(root / JOURNAL, redact=redact))
        except JournalBusy as error:
            raise Unable(busy()) from error
        earlier = sound(read(journal.path))
        stack.enter_context(cancel_on_signals(cancel))
        ended = _end_leftovers(journal, earlier)
        guardian = stack.enter_context(Guardian.start(token=token, report=root / "guardian.txt"))
        yield RunContext(root, journal, token, cancel, guardian, earlier=earlier, ended=ended)


def _end_leftovers(journal: Journal, earlier: Sequence[Event]) -> int:
    count = 0
    for marker in dict.fromkeys(str(event.fields["marker"]) for event in earlier if event.fields.get("marker")):
        ended = end_marked(marker)
        if ended:
            journal.append("leftovers_ended", pids=ended)
            count += len(ended)
    return count + sum(_end_leftover(event) for event in _open_containers(earlier))


def _open_containers(earlier: Sequence[Event]) -> tuple[Event, ...]:
    """Starts of attempts in a container whose end no runner has recorded."""
    found: dict[object, Event] = {}
    for event in earlier:
        if event.event == "attempt_started" and isinstance(event.fields.get("container"), Mapping):
            found[event.fields.get("run")] = event
        elif event.event == "attempt_ended":
            found.pop(event.fields.get("run"), None)
    return tuple(found.values())


def _end_leftover(event: Event) -> bool:
    """End the container that an attempt was started in; whether it was still running."""
    facts = event.fields["container"]
    engine, name, token = str(facts.get("engine")), str(facts.get("name")), str(event.fields.get("marker"))
    container = named_container(engine, name, token=token)
    return container is not None and container.end()[0]


@contextmanager
def open_session(
    folder: RunFolder, *, runbook: Runbook, plan: Plan, quiet: bool, fail_fast: bool, resume: bool = False
) -> Iterator[Session]:
    """The runner of one validation, its terminal and its live report, closed in reverse order whatever happens.

    With `resume`, what earlier runners left is read once the journal is held.

    Raises:
        Unable: when another process works on the same run folder.
    """
    with (
        open_runner(folder.root, busy=lambda: _being_run(folder)) as runner,
        make_observer(quiet=quiet) as observer,
    ):
        if runner.ended:
            observer.note(f"{runner.ended} processes of the earlier runner were still there and have been ended")
        with (
            open_nodes(runbook, runner, note=observer.note, earlier=runner.earlier) as nodes,
            closing(LiveReport(folder, note=observer.note)) as live_report,
        ):
            state = read_resume_state(folder) if resume else ResumeState()
            yield Session(
                folder=folder,
                runbook=runbook,
                plan=plan,
                runner=runner,
                resume_state=state,
                observer=observer,
                fail_fast=fail_fast,
                began=time.monotonic() - state.worked_s,
                live_report=live_report,
                nodes=nodes,
            )


def _being_run(folder: RunFolder) -> str:
    """The sentence that refuses to work on a folder that another process works on."""
    runner = last_runner(folder, events_of(folder))
    return (
        f"{folder.header.run_id} is being run by process {runner.pid} on {runner.host}; "
        "wait for it, or stop it and resume then"
    )


# The machine under a validation: its snapshot, and whether it is still the same when the validation is resumed.

_HARDWARE = ("cpu.model", "cpu.cores_logical", "gpus")
"""Facts that identify a machine. A host's name does not: a container gets a new one at each start."""


def _snapshot(folder: RunFolder) -> dict[str, Any]:
    runbook = folder.header.runbook
    container = runbook.trainer.container
    python = trainer_python(runbook.trainer, own=folder.header.python)
    found = snapshot(
        folder.root,
        trainer_python=folder.header.python if container is not None else python,
        repository=repository_of(runbook),
    )
    if container is not None:  # its Python and packages are not those of this machine
        found |= {"python": {"executable": python, "image": container.image}, "packages": {}}
    return found


def record_machine(session: Session) -> None:
    """Take the snapshot of the machine into environment.json; a resumed validation adds what has changed since."""
    folder = session.folder
    found = _snapshot(folder)
    before = folder.load_environment()
    if session.resume_state.resumed and before:
        changed = changes(before, found)
        lines = {what: f"{was or 'none'} before, {now or 'none'} now" for what, (was, now) in changed.items()}
        for what, line in lines.items():
            session.observer.note(f"{what} has changed since the first part: {line}")
        resumptions = {**before.get("resumed", {}), str(found["time"]): lines or "on the same machine and software"}
        found = {**before, "resumed": resumptions}
    folder.save_environment(found)
    if not session.resume_state.resumed and _names_last_go(folder.header.runbook):
        _keep_last_go(folder, found)
    session.journal.append("environment", path=folder.environment.name, last_go=last_go_digest(folder))


def _names_last_go(runbook: Runbook) -> bool:
    """Whether a criterion compares with an earlier validation, or a kind does."""
    named = any(f"{LAST_GO}." in one.expr for phase in runbook.phases for one in phase.accept)
    return named or any(kind_of(phase.kind).looks_back for phase in runbook.phases)


def _keep_last_go(folder: RunFolder, environment: Mapping[str, Any]) -> None:
    """Copy what the last GO measured into this folder, by today's definitions, before anything of this run is known."""
    earlier = last_go(folder, environment)
    if earlier is not None:
        folder.save_last_go(render_json(stored_report(earlier)))


def require_same_machine(folder: RunFolder, runbook: Runbook) -> None:
    """Results of two machines must not enter one decision.

    Raises:
        Unable: when the CPU, or a GPU that the runbook needs, differs from the start, or that cannot be determined.
    """
    before = folder.load_environment()
    if not before:
        if any(event.event == "run_ended" for event in events_of(folder)):
            raise Unable(
                f"{folder.environment} is missing or unreadable, so validator cannot determine whether "
                f"{folder.header.run_id} was started on this machine. Restore the file, or start a new run with "
                "`validator run`."
            )
        return
    changed = changes(before, _snapshot(folder))
    watched = _HARDWARE if runbook.hardware.gpus else _HARDWARE[:2]
    for what, (was, now) in changed.items():
        if what.startswith(watched):
            raise Unable(
                f"{what} differs from the start: {was or 'none'}, now {now or 'none'}. Resume "
                f"{folder.header.run_id} on the original machine, or start a new run with `validator run`."
            )


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Facts of two snapshots that affect results and differ, by dotted name: before and now, empty where absent."""
    old, new = facts_of(before), facts_of(now)
    both = {name: (old.get(name, ""), new.get(name, "")) for name in sorted({*old, *new})}
    return {name: (was, is_now) for name, (was, is_now) in both.items() if was != is_now}
