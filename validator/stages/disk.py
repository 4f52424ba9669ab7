"""Records from disk: what a run folder, or any trainer's folder, says about what happened in it."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from validator.files import parse_json
from validator.folder import FolderError, RunFolder, Runner
from validator.model.extension import Extension
from validator.model.measure import Irregularity
from validator.model.outcome import Outcome
from validator.model.plan import RunSpec
from validator.model.record import PhaseRecord, PhaseState, RunRecord, Tried, ValidationRecord
from validator.model.remedy import Remedy
from validator.model.runbook import Phase
from validator.model.settings import remedies_of
from validator.model.verdict import Check
from validator.stages.events import sound

if TYPE_CHECKING:
    from validator.execute.journal import Event

__all__ = [
    "declared_digest",
    "end_of",
    "ending",
    "events_of",
    "header_digest",
    "lacked_room",
    "last_go_digest",
    "last_runner",
    "pending",
    "phase_end",
    "phase_record",
    "record_of",
    "reconstruct",
    "sittings",
    "started_runs",
]


def pending(folder: RunFolder, records: Sequence[PhaseRecord]) -> ValidationRecord:
    """The validation so far; phases that have not been reached are pending."""
    runbook = folder.header.runbook
    rest = tuple(PhaseRecord(phase=phase, state="pending") for phase in runbook.phases[len(records) :])
    phases = (*records, *rest)
    return ValidationRecord(runbook, phases, environment=folder.load_environment(), last_go=folder.load_last_go())


def reconstruct(folder: RunFolder) -> ValidationRecord:
    """The record of a run folder, read from its journal and its artifacts alone.

    Raises:
        FolderError: when the journal is missing, or the header is not the one that the validation was started with.
    """
    with folder.tree() as tree:
        journal = tree.has_file(folder.journal.name)
    if not journal:
        raise FolderError(f"{folder.root} has no journal.jsonl, so nothing can be said about it; restore the file")
    events = events_of(folder)
    _require_unchanged(folder, events)
    alive = last_runner(folder, events).alive() and not ending(events)
    runbook = folder.header.runbook
    phases = tuple(phase_record(folder, phase, events, alive=alive) for phase in runbook.phases)
    environment = {**folder.load_environment(), **_unverified(phases, events)}
    return ValidationRecord(runbook, phases, environment=environment, last_go=folder.load_last_go())


def _unverified(phases: Sequence[PhaseRecord], events: Sequence[Event]) -> dict[str, str]:
    """Which runs' files nobody can compare with what they were: those of versions that kept no checksums."""
    sealed = {str(event.fields["run"]) for event in events if event.event == "run_read"}
    ended = [run.spec.id for phase in phases for run in phase.every_run if run.outcome is not None]
    bare = [run for run in ended if run not in sealed]
    return {"unverified": f"no checksums were kept of the files of {', '.join(bare)}"} if bare else {}


def header_digest(folder: RunFolder) -> str:
    """SHA-256 of the runbook in run.json, by which the journal tells whether it is still the one that was run.

    It is taken of the file's own words, so that a later version, whose runbooks have more fields, finds it unchanged.
    """
    with folder.tree() as tree:
        return declared_digest(tree.read("run.json"))


def declared_digest(header: bytes) -> str:
    """SHA-256 of the runbook in the bytes of a run.json."""
    declared = parse_json(header, exact=True)["runbook"]
    return hashlib.sha256(json.dumps(declared, sort_keys=True).encode()).hexdigest()


def last_go_digest(folder: RunFolder) -> str | None:
    """SHA-256 of the earlier validation that this one is held against; None where there is none."""
    try:
        with folder.tree() as tree:
            return hashlib.sha256(tree.read("last_go.json")).hexdigest()
    except OSError:
        return None


def _require_unchanged(folder: RunFolder, events: Sequence[Event]) -> None:
    """What was declared at the start holds to the end: nobody lowers a bound once the figure is known.

    Raises:
        FolderError: when the runbook in run.json, or the last GO beside it, is not what the validation began with.
    """
    seals = (event.fields["header"] for event in events if event.event == "started" and "header" in event.fields)
    told = next(seals, None)
    if told is not None and told != header_digest(folder):
        raise FolderError(
            f"the runbook in {folder.root / 'run.json'} was changed after the validation had been started, so nothing "
            "can be judged by it; restore the file, or run again with the runbook as you want it"
        )
    kept = [event.fields["last_go"] for event in events if event.event == "environment" and "last_go" in event.fields]
    if kept and kept[0] != last_go_digest(folder):
        raise FolderError(
            f"{folder.root / 'last_go.json'}, which the validation was held against, was changed or removed since it "
            "began; restore the file, or run again"
        )


def events_of(folder: RunFolder) -> tuple[Event, ...]:
    """The journal; empty when there is none."""
    from validator.execute.journal import read

    return sound(read(folder.journal))


def sittings(events: Sequence[Event]) -> tuple[tuple[Event, ...], ...]:
    """The events of each runner that worked on the validation: the first one, then one per `--resume`."""
    starts = [0, *(index for index, event in enumerate(events) if event.event == "resumed"), len(events)]
    return tuple(tuple(events[first:after]) for first, after in itertools.pairwise(starts) if after > first)


def ending(events: Sequence[Event]) -> Event | None:
    """The event by which the latest runner ended; None while it runs, or when it was killed."""
    latest = sittings(events)[-1] if events else ()
    return next((event for event in reversed(latest) if event.event in ("finished", "interrupted")), None)


def lacked_room(events: Sequence[Event]) -> bool:
    """Whether a run found the disk full: once there is room, it is worth another try."""
    return any(outcome is not None and outcome.last.disk_full for _, outcome in started_runs(events))


def last_runner(folder: RunFolder, events: Sequence[Event]) -> Runner:
    """Who works, or worked last, on the validation."""
    for event in reversed(events):
        if event.event == "resumed":
            return Runner.model_validate(event.fields["runner"])
    return folder.header.runner


def end_of(folder: RunFolder) -> tuple[str | None, float | None]:
    """When the validation ended and how many seconds it took, as its journal says.

    None while it runs, when it was killed, and where the journal holds no text and no number there.
    """
    ended = ending(events_of(folder))
    if ended is None:
        return None, None
    finished, duration_s = ended.fields.get("finished"), ended.fields.get("duration_s")
    if not isinstance(duration_s, (int, float)) or not math.isfinite(duration_s):
        duration_s = None
    return finished if isinstance(finished, str) else None, duration_s


def phase_end(events: Sequence[Event], phase: str) -> Event | None:
    """The event by which a phase ended, if that end still holds.

    Only a phase that was done, and none of whose runs found the disk full, is kept by a resumed validation; what that
    takes up again has not ended until it says so.
    """
    ended: Event | None = None
    no_room: dict[str, bool] = {}
    for event in events:
        if event.event == "run_started" and event.fields["spec"]["phase"] == phase:
            no_room[event.fields["run"]] = False
        elif event.event == "run_ended" and event.fields["run"] in no_room:
            no_room[event.fields["run"]] = Outcome.model_validate(event.fields["outcome"]).last.disk_full
        kept = ended is not None and ended.fields["state"] == "done" and not any(no_room.values())
        if event.event == "resumed" and not kept:
            ended = None
        elif event.fields.get("phase") == phase and event.event in ("phase_started", "phase_ended"):
            ended = event if event.event == "phase_ended" else None
    return ended


def phase_record(folder: RunFolder, phase: Phase, events: Sequence[Event], *, alive: bool) -> PhaseRecord:
    """What the journal and the artifacts say of one phase. `alive` says whether its runner still works."""
    own = [event for event in events if event.fields.get("phase") == phase.id]
    ended = phase_end(events, phase.id)
    checks: list[Any] = next((event.fields["checks"] for event in reversed(own) if event.event == "phase_checks"), [])
    state, reason = _state(own, ended, alive=alive)
    runs, remedy, tried = _goes(phase, _runs(folder, phase, events), own)
    return PhaseRecord(
        phase=phase,
        state=state,
        runs=runs,
        remedy=remedy,
        tried=tried,
        checks=tuple(Check.model_validate(check) for check in checks),
        reason=reason,
        duration_s=None if ended is None else ended.fields.get("duration_s"),
        extended=_extension(own),
    )


def _extension(own: Sequence[Event]) -> Extension | None:
    """The extension of a phase, if its runner began one; a resumed phase may have begun it again."""
    found = next((event for event in reversed(own) if event.event == "phase_extended"), None)
    return None if found is None else Extension.model_validate(found.fields["extension"])


def _goes(
    phase: Phase, runs: Sequence[RunRecord], own: Sequence[Event]
) -> tuple[tuple[RunRecord, ...], Remedy | None, tuple[Tried, ...]]:
    """The runs that decide a phase, the remedy that they were made with, and the other goes at it, in order."""
    by_name: dict[str | None, list[RunRecord]] = {}
    for run in runs:
        by_name.setdefault(run.spec.remedy, []).append(run)
    known: dict[str | None, Remedy] = {remedy.name: remedy for remedy in remedies_of(phase)}
    ended = [event for event in own if event.event == "remedy_ended"]
    deciding = next((event.fields["remedy"] for event in reversed(ended) if event.fields["decides"]), None)
    others = [name for name in by_name if name != deciding]
    return (
        tuple(by_name.get(deciding, ())),
        known.get(deciding),
        tuple(Tried(known.get(name), tuple(by_name[name])) for name in others),
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
    seals = _seals(events)
    own = [(spec, outcome) for spec, outcome in started_runs(events) if spec.phase == phase.id]
    return tuple(_sealed(record_of(folder, spec, outcome), seals.get(spec.id, {})) for spec, outcome in own)


def _seals(events: Sequence[Event]) -> dict[str, Mapping[str, str]]:
    """The files of each run, and their SHA-256, as they were read when it had ended."""
    found: dict[str, Mapping[str, str]] = {}
    for event in events:
        if event.event == "run_started":
            found.pop(str(event.fields["run"]), None)
        elif event.event == "run_read":
            found[str(event.fields["run"])] = event.fields["sources"]
    return found


def _sealed(record: RunRecord, seal: Mapping[str, str]) -> RunRecord:
    """The run, with an irregularity for each file that is not what it was when the run had ended."""
    if record.result is None or record.outcome is None:
        return record
    now = {source.path: source.sha256 for source in record.result.sources}
    broken = tuple(
        Irregularity("changed-since", "was changed after the run had ended" if path in now else "is gone", path)
        for path, digest in seal.items()
        if now.get(path) != digest
    )
    irregularities = (*record.result.irregularities, *broken)
    return replace(record, result=replace(record.result, irregularities=irregularities)) if broken else record


def record_of(folder: RunFolder, spec: RunSpec, outcome: Outcome | None) -> RunRecord:
    """What is known of a run from its folder, without the secrets that its trainer may have written there."""
    from validator.collect import collect_run
    from validator.stages.secrets import clean_result

    return RunRecord(spec, outcome, clean_result(collect_run(spec, run_dir=folder.root, outcome=outcome)))


def started_runs(events: Sequence[Event]) -> Iterator[tuple[RunSpec, Outcome | None]]:
    """Every run in the order in which it was first started; without an outcome while its latest start has not ended."""
    specs: dict[str, RunSpec] = {}
    outcomes: dict[str, Outcome] = {}
    for event in events:
        if event.event == "run_started":
            spec = RunSpec.model_validate(event.fields["spec"])
            specs[spec.id] = spec
            outcomes.pop(spec.id, None)
        elif event.event == "run_ended":
            outcome = Outcome.model_validate(event.fields["outcome"])
            outcomes[outcome.run] = outcome
    for run, spec in specs.items():
        yield spec, outcomes.get(run)
