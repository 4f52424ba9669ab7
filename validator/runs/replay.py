"""Records from disk: what a run folder, or any trainer's folder, says about what happened in it; also a packed one."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from validator.documents import parse_json, unpack
from validator.errors import FolderError
from validator.files import Tree
from validator.ingest import collect_run
from validator.kinds.registry import kind_of
from validator.model.plan import RunSpec
from validator.model.record import Outcome, PhaseRecord, PhaseState, RunRecord, Tried, ValidationRecord
from validator.model.remedy import Remedy
from validator.model.result import Irregularity
from validator.model.runbook import Phase
from validator.model.settings import remedies_of
from validator.model.verdict import Check, Extension
from validator.runs.folder import RunFolder, Runner
from validator.runs.journal import Event, read, sound
from validator.secrets.masking import clean_result


def pending(folder: RunFolder, records: Sequence[PhaseRecord]) -> ValidationRecord:
    """The validation so far; phases that have not been reached are pending."""
    runbook = folder.header.runbook
    rest = tuple(PhaseRecord(phase=phase, state="pending") for phase in runbook.phases[len(records) :])
    phases = (*records, *rest)
    return _record(folder, phases, folder.load_environment())


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
    return _record(folder, phases, environment)


def _record(folder: RunFolder, phases: tuple[PhaseRecord, ...], environment: Mapping[str, Any]) -> ValidationRecord:
    header = folder.header
    return ValidationRecord(
        header.runbook, phases, environment, folder.load_last_go(), header.written_steps, bool(header.command)
    )


def _unverified(phases: Sequence[PhaseRecord], events: Sequence[Event]) -> dict[str, str]:
    """Runs whose files cannot be verified: those of versions that kept no checksums."""
    checked = {str(event.fields["run"]) for event in events if event.event == "run_read"}
    ended = [run.spec.id for phase in phases for run in phase.every_run if run.outcome is not None]
    bare = [run for run in ended if run not in checked]
    return {"unverified": f"no checksums were kept of the files of {', '.join(bare)}"} if bare else {}


def header_digest(folder: RunFolder) -> str:
    """SHA-256 of the runbook in run.json, by which the journal identifies the runbook that was run.

    It is taken of the file's own text, so that a later version, whose runbooks have more fields, finds it unchanged.
    """
    with folder.tree() as tree:
        return declared_digest(tree.read("run.json"))


def declared_digest(header: bytes) -> str:
    """SHA-256 of the runbook in the bytes of a run.json."""
    declared = parse_json(header, exact=True)["runbook"]
    return hashlib.sha256(json.dumps(declared, sort_keys=True).encode()).hexdigest()


def last_go_digest(folder: RunFolder) -> str | None:
    """SHA-256 of the earlier validation that this one is compared with; None where there is none."""
    try:
        with folder.tree() as tree:
            return hashlib.sha256(tree.read("last_go.json")).hexdigest()
    except OSError:
        return None


def _require_unchanged(folder: RunFolder, events: Sequence[Event]) -> None:
    """What was declared at the start applies to the end: no bound may change once its value is measured.

    Raises:
        FolderError: when the runbook in run.json, or the last GO beside it, is not that of the start.
    """
    digests = (event.fields["header"] for event in events if event.event == "started" and "header" in event.fields)
    declared = next(digests, None)
    if declared is not None and declared != header_digest(folder):
        raise FolderError(
            f"the runbook in {folder.root / 'run.json'} was changed after the validation had been started, so nothing "
            "can be judged by it; restore the file, or start a new run with the changed runbook"
        )
    kept = [event.fields["last_go"] for event in events if event.event == "environment" and "last_go" in event.fields]
    if kept and kept[0] != last_go_digest(folder):
        raise FolderError(
            f"{folder.root / 'last_go.json'}, which the validation is compared with, was changed or removed since the "
            "start; restore the file, or start a new run"
        )


def events_of(folder: RunFolder) -> tuple[Event, ...]:
    """The journal; empty when there is none."""
    return sound(read(folder.journal))


def runner_sessions(events: Sequence[Event]) -> tuple[tuple[Event, ...], ...]:
    """The events of each runner that worked on the validation: the first one, then one per `--resume`."""
    starts = [0, *(index for index, event in enumerate(events) if event.event == "resumed"), len(events)]
    return tuple(tuple(events[first:after]) for first, after in itertools.pairwise(starts) if after > first)


def ending(events: Sequence[Event]) -> Event | None:
    """The event by which the latest runner ended; None while it runs, or when it was killed."""
    latest = runner_sessions(events)[-1] if events else ()
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


class RunEnd(NamedTuple):
    """When a validation ended, and how many seconds it took.

    None while it runs, when it was killed, and where the journal holds no text and no number there.
    """

    finished: str | None = None
    duration_s: float | None = None


def end_of(folder: RunFolder) -> RunEnd:
    """The end of a validation, as its journal says."""
    ended = ending(events_of(folder))
    if ended is None:
        return RunEnd()
    finished, duration_s = ended.fields.get("finished"), ended.fields.get("duration_s")
    if not isinstance(duration_s, (int, float)) or not math.isfinite(duration_s):
        duration_s = None
    return RunEnd(finished if isinstance(finished, str) else None, duration_s)


def phase_end(events: Sequence[Event], phase: str) -> Event | None:
    """The event by which a phase ended, if that end still holds.

    Only a phase that was done, and none of whose runs found the disk full, is kept by a resumed validation; what that
    takes up again has not ended until it says so. Nor has a phase that was reopened, for it ran on other nodes.
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
        elif event.fields.get("phase") == phase and event.event in ("phase_started", "phase_ended", "phase_reopened"):
            ended = event if event.event == "phase_ended" else None
    return ended


def phase_record(folder: RunFolder, phase: Phase, events: Sequence[Event], *, alive: bool) -> PhaseRecord:
    """What the journal and the artifacts say of one phase. `alive` says whether its runner still works."""
    own = [event for event in events if event.fields.get("phase") == phase.id]
    reopened = [place for place, event in enumerate(own) if event.event == "phase_reopened"]
    own = own[reopened[-1] + 1 :] if reopened else own
    ended = phase_end(events, phase.id)
    checks: list[Any] = next((event.fields["checks"] for event in reversed(own) if event.event == "phase_checks"), [])
    state, reason = _state(own, ended, alive=alive)
    runs, remedy, tried = _attempts(phase, _runs(folder, phase, events), own)
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
    """The extension of a phase, if its runner began one; a resumed phase may have started it again."""
    found = next((event for event in reversed(own) if event.event == "phase_extended"), None)
    return None if found is None else Extension.model_validate(found.fields["extension"])


def _attempts(
    phase: Phase, runs: Sequence[RunRecord], own: Sequence[Event]
) -> tuple[tuple[RunRecord, ...], Remedy | None, tuple[Tried, ...]]:
    """The runs that decide a phase, the remedy that they were made with, and the other attempts at it, in order."""
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
    """The state of a phase. One that never ended while no runner lives was interrupted, not pending."""
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
    checksums = _checksums(events)
    own = [(spec, outcome) for spec, outcome in started_runs(events) if spec.phase == phase.id]
    return tuple(_checked(record_of(folder, spec, outcome), checksums.get(spec.id, {})) for spec, outcome in own)


def _checksums(events: Sequence[Event]) -> dict[str, Mapping[str, str]]:
    """The files of each run, and their SHA-256, as they were read when it had ended."""
    found: dict[str, Mapping[str, str]] = {}
    for event in events:
        if event.event == "run_started":
            found.pop(str(event.fields["run"]), None)
        elif event.event == "run_read":
            found[str(event.fields["run"])] = event.fields["sources"]
    return found


def _checked(record: RunRecord, checksums: Mapping[str, str]) -> RunRecord:
    """The run, with an irregularity for each file that is not what it was when the run had ended."""
    if record.result is None or record.outcome is None:
        return record
    now = {source.path: source.sha256 for source in record.result.sources}
    broken = tuple(
        Irregularity("changed-since", "was changed after the run had ended" if path in now else "is gone", path)
        for path, digest in checksums.items()
        if now.get(path) != digest
    )
    irregularities = (*record.result.irregularities, *broken)
    return replace(record, result=replace(record.result, irregularities=irregularities)) if broken else record


def record_of(folder: RunFolder, spec: RunSpec, outcome: Outcome | None) -> RunRecord:
    """What is known of a run from its folder, without the secrets that its trainer may have written there."""
    read = kind_of(spec.kind).read
    return RunRecord(spec, outcome, clean_result(collect_run(spec, run_dir=folder.root, outcome=outcome, read=read)))


def started_runs(events: Sequence[Event]) -> Iterator[tuple[RunSpec, Outcome | None]]:
    """Every run in the order in which it was first started; without an outcome while its latest start has not ended.

    One whose phase was reopened is none until it is started again.
    """
    specs: dict[str, RunSpec] = {}
    outcomes: dict[str, Outcome] = {}
    reopened: set[str] = set()
    for event in events:
        if event.event == "run_started":
            spec = RunSpec.model_validate(event.fields["spec"])
            specs[spec.id] = spec
            outcomes.pop(spec.id, None)
            reopened.discard(spec.id)
        elif event.event == "run_ended":
            outcome = Outcome.model_validate(event.fields["outcome"])
            outcomes[outcome.run] = outcome
        elif event.event == "phase_reopened":
            reopened.update(event.fields["runs"])
    for run, spec in specs.items():
        if run not in reopened:
            yield spec, outcomes.get(run)


# Run folders as they are shared: one-line JSON, packed files, and how those are read again.

SHARE_FILE = "share.json"
RESULT = "result.json"
LARGEST_TEXT = 16 * 2**20
_MAX_TEXT = 512 * 2**20
"""Bytes of all files of a copy together, unpacked: a hundred times what a copy has."""


def is_compact(folder: RunFolder) -> bool:
    """Whether the folder's result.json is on one line."""
    try:
        with folder.tree() as tree:
            return tree.read(RESULT).strip().count(b"\n") == 0
    except OSError:
        return False


def compact(folder: RunFolder) -> None:
    """Write the folder's result.json without white space, which is nearly half of it."""
    with folder.tree() as tree:
        tree.write(RESULT, on_one_line(tree.json(RESULT)))


def on_one_line(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n"


@contextmanager
def readable(folder: RunFolder) -> Iterator[RunFolder]:
    """The folder with its packed files unpacked, for reading; the folder itself where nothing is packed."""
    with folder.tree() as source:
        packed = _packed(source)
        if not packed:
            yield folder
            return
        with TemporaryDirectory(prefix="validator-") as name, Tree(Path(name)) as target:
            room = _MAX_TEXT
            for entry in source.walk():
                relative = entry.path.removesuffix(".gz")
                unpacked = relative in packed and entry.path != relative
                if entry.kind != "file" or entry.bytes > LARGEST_TEXT or (entry.path in packed and not unpacked):
                    continue  # no copy that `share` made holds a larger file, or one both packed and not
                data = source.read(entry.path, limit=LARGEST_TEXT)
                try:
                    data = unpack(data) if unpacked else data
                except ValueError as error:
                    raise FolderError(f"{entry.path} in {folder.root} cannot be unpacked: {error}") from error
                room -= len(data)
                if room < 0:
                    raise FolderError(f"{folder.root} holds more than a sanitized copy does, so it is not unpacked")
                kept = relative if unpacked else entry.path
                target.write(kept, data, sync=False)
                # A verdict asks whether a file is older than its process.
                os.utime(target.path / kept, ns=(entry.mtime_ns, entry.mtime_ns))
            yield replace(folder, root=target.path)


def is_shared(folder: RunFolder) -> bool:
    """Whether the folder is a copy that `share` made."""
    with folder.tree() as tree:
        return tree.has_file(SHARE_FILE)


def _packed(tree: Tree) -> frozenset[str]:
    """Files that the folder's form names as packed, as far as they are there."""
    try:
        names = tree.json(SHARE_FILE)["packed"]
        return frozenset(str(name) for name in names if tree.has_file(f"{name}.gz"))
    except (OSError, ValueError, KeyError, TypeError):
        return frozenset()
