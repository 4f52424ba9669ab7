"""Records from disk: what a run folder, or any trainer's folder, says about what happened in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from validator.folder import FolderError, RunFolder
from validator.model.outcome import Outcome
from validator.model.plan import RunSpec
from validator.model.record import PhaseRecord, PhaseState, RunRecord, ValidationRecord
from validator.model.runbook import Phase
from validator.model.verdict import Check

if TYPE_CHECKING:
    from validator.execute.journal import Event

__all__ = ["end_of", "inspect_record", "pending", "reconstruct"]


def pending(folder: RunFolder, records: Sequence[PhaseRecord]) -> ValidationRecord:
    """The validation so far; phases that have not been reached are pending."""
    runbook = folder.header.runbook
    rest = tuple(PhaseRecord(phase=phase, state="pending") for phase in runbook.phases[len(records) :])
    return ValidationRecord(runbook=runbook, phases=(*records, *rest), environment=folder.load_environment())


def reconstruct(folder: RunFolder) -> ValidationRecord:
    """The record of a run folder, read from its journal and its artifacts alone.

    Raises:
        FolderError: when the journal is missing.
    """
    from validator.execute.journal import read

    if not folder.journal.is_file():
        raise FolderError(f"{folder.root} has no journal.jsonl, so nothing can be said about it; restore the file")
    events = read(folder.journal)
    alive = folder.runner_alive() and not any(event.event in ("finished", "interrupted") for event in events)
    runbook = folder.header.runbook
    phases = tuple(_phase(folder, phase, events, alive=alive) for phase in runbook.phases)
    return ValidationRecord(runbook=runbook, phases=phases, environment=folder.load_environment())


def end_of(folder: RunFolder) -> Mapping[str, Any]:
    """When the validation ended and how long it took, as its journal says; empty while it runs or was killed."""
    from validator.execute.journal import read

    for event in reversed(read(folder.journal)):
        if event.event in ("finished", "interrupted"):
            return event.fields
    return {}


def _phase(folder: RunFolder, phase: Phase, events: Sequence[Event], *, alive: bool) -> PhaseRecord:
    own = [event for event in events if event.fields.get("phase") == phase.id]
    ended = next((event for event in reversed(own) if event.event == "phase_ended"), None)
    checks: list[Any] = next((event.fields["checks"] for event in reversed(own) if event.event == "phase_checks"), [])
    state, reason = _state(own, ended, alive=alive)
    return PhaseRecord(
        phase=phase,
        state=state,
        runs=_runs(folder, phase, events),
        checks=tuple(Check.model_validate(check) for check in checks),
        reason=reason,
        duration_s=None if ended is None else ended.fields.get("duration_s"),
    )


def _state(own: Sequence[Event], ended: Event | None, *, alive: bool) -> tuple[PhaseState, str | None]:
    """What became of a phase. One that never ended while no runner lives was interrupted, not pending."""
    if ended is not None:
        return ended.fields["state"], ended.fields.get("reason")
    started = any(event.event == "phase_started" for event in own)
    if alive:
        return ("running" if started else "pending"), None
    if started:
        return "interrupted", "the runner ended in the middle of this phase"
    return "not_run", "the runner ended before this phase"


def _runs(folder: RunFolder, phase: Phase, events: Sequence[Event]) -> tuple[RunRecord, ...]:
    """Every run that was started, in order, with its outcome where it ended."""
    from validator.collect import collect_run

    specs: dict[str, RunSpec] = {}
    outcomes: dict[str, Outcome] = {}
    for event in events:
        if event.event == "run_started":
            spec = RunSpec.model_validate(event.fields["spec"])
            specs[spec.id] = spec
        elif event.event == "run_ended":
            outcome = Outcome.model_validate(event.fields["outcome"])
            outcomes[outcome.run] = outcome
    records = []
    for spec in specs.values():
        if spec.phase == phase.id:
            ended = outcomes.get(spec.id)
            result = collect_run(spec, run_dir=folder.root, outcome=ended)
            records.append(RunRecord(spec=spec, outcome=ended, result=result))
    return tuple(records)


def inspect_record(directory: Path, *, warmup_steps: int) -> RunRecord:
    """A record of one trainer folder that no runbook led to.

    Raises:
        FolderError: when there is no such folder.
    """
    from validator.collect import collect_dir

    if not directory.is_dir():
        raise FolderError(f"{directory} is not a folder; give the folder that holds the trainer's files")
    result = collect_dir(directory)
    world = max(1, len(result.rank_series))
    spec = RunSpec(
        id=directory.name or "run",
        phase="inspect",
        kind="train",
        launcher="python",
        argv=(),
        env={},
        out=".",
        nproc=world,
        warmup_steps=warmup_steps,
        timeout_s=0.0,
    )
    return RunRecord(spec=spec, outcome=None, result=result)
