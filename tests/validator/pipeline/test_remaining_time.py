"""What a validation still has before it, by its journal."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

from validator.model.plan import PhasePlan, Plan
from validator.pipeline.write import remaining_time
from validator.runs.journal import Event

PLAN = Plan(
    runbook="r",
    phases=(
        PhasePlan(phase="first", kind="command", runs=(), expected_s=100.0),
        PhasePlan(phase="second", kind="command", runs=(), expected_s=300.0),
        PhasePlan(phase="left_out", kind="command", runs=(), expected_s=900.0, skipped="--skip"),
    ),
)
BEGIN = 1_760_000_000


def event(name: str, at_s: float, *, mono: float | None = None, **fields: Any) -> Event:
    ts = datetime.fromtimestamp(BEGIN + at_s, timezone.utc).isoformat()
    return Event(name, ts, at_s if mono is None else mono, fields)


def remaining(*events: Event, at_s: float) -> float:
    found = remaining_time(PLAN, events, now=datetime.fromtimestamp(BEGIN + at_s, timezone.utc))
    assert found.remaining_s is not None
    return found.remaining_s


START = (event("started", 0.0), event("phase_started", 0.0, phase="first"))
FIRST_DONE = (*START, event("phase_ended", 100.0, phase="first", state="done"))


def test_nothing_seen_yet_is_what_was_expected() -> None:
    assert remaining(event("started", 0.0), at_s=0.0) == 400.0
    assert remaining(at_s=0.0) == 400.0


def test_time_that_passed_since_the_last_event_counts() -> None:
    assert remaining(*START, at_s=40.0) == 360.0


def test_a_phase_that_took_twice_as_long_says_so_of_the_next() -> None:
    slow = (*START, event("phase_ended", 200.0, phase="first", state="done"))
    assert 450 < remaining(*slow, at_s=200.0) < 600
    assert remaining(*FIRST_DONE, at_s=100.0) == 300.0


def test_a_phase_that_was_interrupted_is_still_to_come() -> None:
    stopped = (*START, event("phase_ended", 50.0, phase="first", state="interrupted"))
    assert remaining(*stopped, at_s=50.0) >= 300.0


def test_the_night_between_two_runners_does_not_count() -> None:
    again = (
        event("resumed", 50_000.0, mono=7.0),
        event("phase_started", 50_000.0, mono=7.0, phase="second"),
        event("run_started", 50_010.0, mono=17.0, run="second/r1"),
    )
    assert remaining(*FIRST_DONE, *again, at_s=50_010.0) == 290.0


def test_without_any_expectation_nothing_is_claimed() -> None:
    plan = Plan(runbook="r", phases=(PhasePlan(phase="p", kind="command", runs=()),))
    found = remaining_time(plan, (event("started", 0.0),), now=datetime.fromtimestamp(BEGIN, timezone.utc))
    assert found.remaining_s is None
    assert not found.at_least


def test_a_clock_that_was_set_back_takes_no_time_away() -> None:
    assert remaining(*START, at_s=-500.0) == 400.0


def test_what_an_interrupted_runner_did_not_come_to_is_still_to_come() -> None:
    stopped = (
        *START,
        event("phase_ended", 50.0, phase="first", state="interrupted"),
        event("phase_ended", 50.0, phase="second", state="not_run"),
        event("interrupted", 50.0),
    )
    resumed = (event("resumed", 90_000.0, mono=5.0), event("phase_started", 90_000.0, mono=5.0, phase="first"))
    assert remaining(*stopped, *resumed, at_s=90_000.0) == 350.0, "50 of the first phase, all of the second"
