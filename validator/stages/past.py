"""What earlier runners of the same validation left: the evidence that a resumed one keeps, and what it has to repeat.

A run that ended by itself, or that the watchdog or its budget ended, is evidence and is never repeated. A run that was
interrupted, by a signal, a kill, a loss of power or a full disk, says nothing and is started again; its folder and
attempt are kept.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from validator.folder import RunFolder
from validator.model.outcome import Attempt
from validator.model.runbook import Setting
from validator.stages.disk import events_of, pending, reconstruct, sittings, started_runs

if TYPE_CHECKING:
    from validator.execute.journal import Event
    from validator.model.record import PhaseRecord, RunRecord

__all__ = ["Past", "read_past"]


@dataclass(frozen=True)
class Past:
    """What stands when a validation is taken up again; empty for a new one.

    `phases` are done, by id; `runs` have ended in phases that are not, by id. `attempts` were made at runs that have
    not ended. `markers` are the tokens that every earlier process of the validation carries. `worked_s` is the time
    that earlier runners spent, `phase_s` what they spent on each phase that is not done.
    """

    resumed: bool = False
    phases: Mapping[str, PhaseRecord] = field(default_factory=dict)
    runs: Mapping[str, RunRecord] = field(default_factory=dict)
    attempts: Mapping[str, tuple[Attempt, ...]] = field(default_factory=dict)
    adopted: Mapping[str, Mapping[str, Setting]] = field(default_factory=dict)
    markers: tuple[str, ...] = ()
    worked_s: float = 0.0
    phase_s: Mapping[str, float] = field(default_factory=dict)


def read_past(folder: RunFolder) -> Past:
    """Everything that the journal and the artifacts of a run folder say, for a runner that takes it up again."""
    events = events_of(folder)
    record = reconstruct(folder) if events else pending(folder, ())
    cut_short = [
        spec.id
        for spec, outcome in started_runs(events)
        if outcome is None or outcome.reason == "interrupted" or outcome.last.disk_full
    ]
    done: list[PhaseRecord] = []
    open_phases: list[PhaseRecord] = []
    for phase in record.phases:
        kept = phase.state == "done" and not any(run.spec.id in cut_short for run in phase.every_run)
        (done if kept else open_phases).append(phase)
    return Past(
        resumed=True,
        phases={phase.phase.id: phase for phase in done},
        runs={run.spec.id: run for phase in open_phases for run in phase.every_run if run.spec.id not in cut_short},
        attempts={run: made for run in cut_short if (made := tuple(_attempts(run, events)))},
        adopted={event.fields["phase"]: event.fields["settings"] for event in events if event.event == "adopted"},
        markers=tuple(dict.fromkeys(str(e.fields["marker"]) for e in events if e.fields.get("marker"))),
        worked_s=sum(_length_s(sitting) for sitting in sittings(events)),
        phase_s={phase.phase.id: _spent_s(phase.phase.id, events) for phase in open_phases},
    )


def _length_s(events: Sequence[Event]) -> float:
    """Seconds between the first and the last event of one runner, by its monotonic clock."""
    return max(0.0, events[-1].mono - events[0].mono) if events else 0.0


def _spent_s(phase: str, events: Sequence[Event]) -> float:
    """Time that earlier runners spent in a phase: from its start to its end, or to their own."""
    spent = 0.0
    for sitting in sittings(events):
        inside = itertools.dropwhile(
            lambda e: not (e.event == "phase_started" and e.fields.get("phase") == phase), sitting
        )
        spent += _length_s(_up_to_end(phase, inside))
    return spent


def _up_to_end(phase: str, events: Iterator[Event]) -> tuple[Event, ...]:
    kept = []
    for event in events:
        kept.append(event)
        if event.event == "phase_ended" and event.fields.get("phase") == phase:
            break
    return tuple(kept)


def _attempts(run: str, events: Sequence[Event]) -> Iterator[Attempt]:
    """Every attempt at a run, numbered as they were made; one without an end was cut short with its runner."""
    number = 0
    for sitting in sittings(events):
        under_way: Event | None = None
        for event in sitting:
            if event.fields.get("run") != run:
                continue
            if event.event == "attempt_started":
                under_way = event
            elif event.event == "attempt_ended":
                number += 1
                yield Attempt.model_validate({**event.fields["attempt"], "number": number})
                under_way = None
        if under_way is not None:
            number += 1
            yield _cut_short(under_way, number, until=sitting[-1].mono)


def _cut_short(started: Event, number: int, *, until: float) -> Attempt:
    return Attempt(
        number=number,
        command=tuple(started.fields.get("command") or ()),
        pid=started.fields.get("pid"),
        started=started.ts,
        duration_s=max(0.0, until - started.mono),
        rc=None,
        reason="interrupted",
        detail="was cut short: the runner was killed, or the machine went down",
    )
