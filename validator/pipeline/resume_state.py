"""What earlier runners of the same validation left: the evidence that a resumed one keeps, and what it has to repeat.

A run that ended by itself, or that the watchdog or its budget ended, is evidence and is never repeated. A run that was
interrupted, by a signal, a kill, a loss of power or a full disk, says nothing and is started again; its folder and
attempt are kept.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from validator.errors import FolderError
from validator.kinds.registry import load
from validator.model.record import Attempt, PhaseRecord, RunRecord
from validator.model.runbook import Runbook, Setting
from validator.runbook import find
from validator.runbook.load import LoadedRunbook
from validator.runs.folder import RunFolder
from validator.runs.journal import Event
from validator.runs.replay import events_of, pending, reconstruct, runner_sessions, started_runs
from validator.secrets.declared import declare_secrets_of
from validator.secrets.masking import clean_runbook, is_secret
from validator.secrets.redact import REDACTED, redact, redact_words


@dataclass(frozen=True)
class ResumeState:
    """What earlier runners of a validation have done; empty for a new one.

    `phases` are done, by id; `runs` have ended in phases that are not, by id. `attempts` were made at runs that have
    not ended. `worked_s` is the time that earlier runners spent, `phase_s` what they spent on each phase that is not
    done.
    """

    resumed: bool = False
    phases: Mapping[str, PhaseRecord] = field(default_factory=dict)
    runs: Mapping[str, RunRecord] = field(default_factory=dict)
    attempts: Mapping[str, tuple[Attempt, ...]] = field(default_factory=dict)
    adopted: Mapping[str, Mapping[str, Setting]] = field(default_factory=dict)
    worked_s: float = 0.0
    phase_s: Mapping[str, float] = field(default_factory=dict)


def read_resume_state(folder: RunFolder) -> ResumeState:
    """Everything that the journal and the artifacts of a run folder say, for a runner that resumes it."""
    events = events_of(folder)
    record = reconstruct(folder) if events else pending(folder, ())
    interrupted = [
        spec.id
        for spec, outcome in started_runs(events)
        if outcome is None or outcome.reason == "interrupted" or outcome.last.disk_full
    ]
    reopened = {run for event in events if event.event == "phase_reopened" for run in event.fields["runs"]}
    done: list[PhaseRecord] = []
    open_phases: list[PhaseRecord] = []
    for phase in record.phases:
        kept = phase.state == "done" and not any(run.spec.id in interrupted for run in phase.every_run)
        (done if kept else open_phases).append(phase)
    return ResumeState(
        resumed=True,
        phases={phase.phase.id: phase for phase in done},
        runs={run.spec.id: run for phase in open_phases for run in phase.every_run if run.spec.id not in interrupted},
        attempts={run: made for run in (*interrupted, *reopened) if (made := tuple(_attempts(run, events)))},
        adopted={event.fields["phase"]: event.fields["settings"] for event in events if event.event == "adopted"},
        worked_s=sum(_length_s(session) for session in runner_sessions(events)),
        phase_s={phase.phase.id: _spent_s(phase.phase.id, events) for phase in open_phases},
    )


def _length_s(events: Sequence[Event]) -> float:
    """Seconds between the first and the last event of one runner, by its monotonic clock."""
    return max(0.0, events[-1].mono - events[0].mono) if events else 0.0


def _spent_s(phase: str, events: Sequence[Event]) -> float:
    """Time that earlier runners spent in a phase: from its start to its end, or to their own."""
    spent = 0.0
    again = [place for place, one in enumerate(events) if _reopens(one, phase)]
    events = events[again[-1] + 1 :] if again else events
    for session in runner_sessions(events):
        own = [event.event if event.fields.get("phase") == phase else "" for event in session]
        if "phase_started" in own:
            begin = own.index("phase_started")
            end = own.index("phase_ended", begin) if "phase_ended" in own[begin:] else len(own)
            spent += _length_s(session[begin : end + 1])
    return spent


def _reopens(event: Event, phase: str) -> bool:
    return event.event == "phase_reopened" and event.fields["phase"] == phase


def _attempts(run: str, events: Sequence[Event]) -> Sequence[Attempt]:
    """Every attempt at a run, numbered as they were made; one without an end was interrupted with its runner."""
    made: list[Attempt] = []
    for session in runner_sessions(events):
        open_attempt: Event | None = None
        for event in session:
            if event.event == "phase_reopened" and run in event.fields["runs"]:
                aside = {"reason": "interrupted", "detail": str(event.fields.get("why"))}
                made = [one.model_copy(update=aside) for one in made]
            if event.fields.get("run") != run:
                continue
            if event.event == "attempt_started":
                open_attempt = event
            elif event.event == "attempt_ended":
                made.append(Attempt.model_validate({**event.fields["attempt"], "number": len(made) + 1}))
                open_attempt = None
        if open_attempt is not None:
            made.append(_interrupted(open_attempt, len(made) + 1, until=session[-1].mono))
    return made


def _interrupted(started: Event, number: int, *, until: float) -> Attempt:
    return Attempt(
        number=number,
        command=tuple(started.fields.get("command") or ()),
        pid=started.fields.get("pid"),
        started=started.ts,
        duration_s=max(0.0, until - started.mono),
        rc=None,
        reason="interrupted",
        detail="interrupted: the runner was killed, or the machine went down",
    )


# The secrets of a runbook: given again on resume, never read back from the run folder.

_MIN_CHARS = 6
"""Shorter secrets are not searched for in a source text: they would match ordinary words."""


def clean_loaded(loaded: LoadedRunbook) -> LoadedRunbook:
    """The runbook, its source and its overrides without secrets; the hash stays that of the file as it was read.

    From here on this process takes its secrets for secrets, wherever they stand.
    """
    declare_secrets_of(loaded.runbook)
    text = redact(loaded.text)
    for secret in sorted(_hidden(loaded.runbook), key=len, reverse=True):
        text = text.replace(secret, REDACTED)
    return loaded._replace(
        runbook=clean_runbook(loaded.runbook),
        text=text,
        overrides=tuple(_clean_override(one) for one in loaded.overrides),
    )


def with_secrets(folder: RunFolder, overrides: Iterable[str]) -> Runbook:
    """The runbook of a folder with the secrets that its header leaves out.

    They are read from the runbook's file, which must be unchanged, and from `overrides`, which must give those that
    were given on the command line.

    Raises:
        FolderError: when they cannot be had, naming what is missing.
        RunbookError: when the runbook's file is gone.
    """
    header, given = folder.header, list(overrides)
    declare_secrets_of(header.runbook)
    missing = [one for one in header.overrides if REDACTED in one]
    keys = {one.partition("=")[0] for one in missing}
    strange = [one.partition("=")[0] for one in given if one.partition("=")[0] not in keys]
    if strange:
        raise FolderError(
            f"--resume keeps the original settings. Omit --set {strange[0]}, or start a new run without --resume."
        )
    unset = sorted(keys - {one.partition("=")[0] for one in given})
    if unset:
        raise FolderError(
            f"the value of {unset[0]} was redacted and is not stored in {header.run_id}; "
            f"pass it with --set {unset[0]}=VALUE"
        )
    if REDACTED not in header.runbook.model_dump_json(by_alias=True):
        return header.runbook
    by_key = {one.partition("=")[0]: one for one in given}
    texts = [by_key.get(one.partition("=")[0], one) for one in header.overrides]
    loaded = load(find(header.runbook_path), overrides=texts)
    stored, read, clean = (
        one.model_dump(mode="json", by_alias=True)
        for one in (header.runbook, loaded.runbook, clean_runbook(loaded.runbook))
    )
    if not (_agrees(stored, read) or _agrees(stored, clean)):
        raise FolderError(
            f"{header.runbook_path} has changed since {header.run_id} was started, and the secrets in it are not "
            "stored; restore it, or start a new run without --resume"
        )
    # The environment at the start may have held a secret that this one lacks.
    declare_secrets_of(loaded.runbook, hidden=_withheld(stored, read))
    return loaded.runbook


def _agrees(stored: Any, read: Any) -> bool:
    """Whether a clean runbook is the stored one; `[redacted]` may be any text in it."""
    if isinstance(stored, dict) and isinstance(read, dict):
        return stored.keys() == read.keys() and all(_agrees(stored[key], read[key]) for key in stored)
    if isinstance(stored, list) and isinstance(read, list):
        return len(stored) == len(read) and all(map(_agrees, stored, read))
    if isinstance(stored, str) and REDACTED in stored:
        return _unredacted(stored).fullmatch(str(read)) is not None
    return bool(stored == read)


def _withheld(stored: Any, read: Any, *, part: bool = True) -> Iterator[str]:
    """The texts of a runbook that its stored copy has as `[redacted]`, with `part` those within a longer text too."""
    if isinstance(stored, dict):
        for key in stored:
            yield from _withheld(stored[key], read[key], part=part)
    elif isinstance(stored, list):
        for old, new in zip(stored, read, strict=True):
            yield from _withheld(old, new, part=part)
    elif isinstance(stored, str) and stored != read and (part or stored == REDACTED):
        match = _unredacted(stored).fullmatch(str(read))
        yield from match.groups() if match is not None else ()


def _unredacted(stored: str) -> re.Pattern[str]:
    return re.compile("(.*?)".join(map(re.escape, stored.split(REDACTED))), re.S)


def _clean_override(text: str) -> str:
    key, equals, value = text.partition("=")
    return f"{key}={REDACTED}" if equals and value and is_secret(key) else key + equals + redact(value)


def clean_words(words: Sequence[str]) -> tuple[str, ...]:
    """A command that was typed, without the secrets in it."""
    return redact_words(words, redact)


def _hidden(runbook: Runbook) -> set[str]:
    """Texts of a runbook that its clean copy lacks, as they are in its source."""
    before, after = (one.model_dump(mode="json", by_alias=True) for one in (runbook, clean_runbook(runbook)))
    whole = (text for text in _withheld(after, before, part=False) if len(text) >= _MIN_CHARS)
    return set(whole)  # `redact` and what is declared replace parts, by what stands around them
