"""The time that is left: expected at first, then as the machine turns out to be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from validator.model.plan import Plan
from validator.model.runbook import Runbook
from validator.plan import make_plan
from validator.plan.eta import Eta


def plan(*expected: str | None, repeats: int = 1) -> Plan:
    phases: list[dict[str, Any]] = []
    for number, text in enumerate(expected):
        phase = {"id": f"p{number}", "kind": "train", "steps": 10, "nproc": 0, "repeats": repeats}
        phases.append(phase if text is None else {**phase, "expected": text})
    runbook = Runbook.model_validate({"schema": 1, "name": "t", "phases": phases})
    return make_plan(runbook, run_dir=Path("/r"), python="py")


def started(*expected: str | None, repeats: int = 1, **more: float) -> Eta:
    """The first phase began at 0."""
    made = plan(*expected, repeats=repeats)
    eta = Eta(made)
    eta.phase_started(made.phases[0], now_s=0.0, **more)
    return eta


def test_before_anything_has_run_it_is_what_the_runbook_expects() -> None:
    left = Eta(plan("1m", "2m")).remaining(now_s=0.0)
    assert (left.seconds, left.at_least) == (180.0, False)


def test_nothing_is_said_where_nothing_is_known() -> None:
    assert Eta(plan(None, None)).remaining(now_s=0.0) is None


def test_a_phase_without_expectation_makes_it_a_lower_bound() -> None:
    left = Eta(plan("1m", None)).remaining(now_s=0.0)
    assert (left.seconds, left.at_least) == (60.0, True)


@pytest.mark.parametrize("pace", [0.5, 1.0, 3.0])
def test_what_has_been_seen_corrects_what_is_to_come(pace: float) -> None:
    eta = started("10m", "10m")
    eta.phase_finished("p0", now_s=600.0 * pace)
    assert eta.remaining(now_s=600.0 * pace).seconds == pytest.approx(600.0 * pace, rel=0.05)


def test_a_short_first_phase_moves_it_little() -> None:
    eta = started("1s", "10m")
    eta.phase_finished("p0", now_s=9.0)
    assert eta.remaining(now_s=9.0).seconds < 900.0


def test_how_fast_the_tests_ran_says_nothing_of_training() -> None:
    made = plan("10m", "10m")
    tests = made.phases[0].model_copy(update={"runs": ()})
    made = made.model_copy(update={"phases": (tests, made.phases[1])})
    eta = Eta(made)
    eta.phase_started(tests, now_s=0.0)
    eta.phase_finished("p0", now_s=60.0)
    assert eta.remaining(now_s=60.0).seconds == 600.0


def test_a_resumed_phase_counts_from_where_it_stood() -> None:
    eta = started("180s", "180s", repeats=8, spent_s=100.0)
    assert eta.remaining(now_s=0.0).seconds == 260.0
    eta.phase_finished("p0", now_s=80.0)
    assert eta.remaining(now_s=80.0).seconds == 180.0, (
        "it took the 180 s that it was expected to take, over both runners"
    )


def test_what_an_earlier_runner_saw_corrects_too() -> None:
    eta = Eta(plan("10m", "10m"))
    eta.phase_finished("p0", now_s=0.0, took_s=1200.0)
    assert eta.remaining(now_s=0.0).seconds == pytest.approx(1200.0, rel=0.05)


def test_a_phase_that_begins_anew_goes_on() -> None:
    eta = started("10m", "10m")
    eta.phase_started(plan("10m", "10m").phases[0], now_s=100.0)
    assert eta.remaining(now_s=100.0).seconds == 1100.0


def test_the_present_phase_goes_by_its_own_pace_in_the_end() -> None:
    eta = started("100s", repeats=4)
    at_start = eta.remaining(now_s=10.0)
    eta.run_progress("p0/r4", 0.5)
    near_end = eta.remaining(now_s=350.0)
    assert at_start.seconds == pytest.approx(90.0)
    assert near_end.seconds == pytest.approx(350 / 7, rel=0.2), "seven eighths took 350 s"


def test_an_overdue_phase_is_never_a_negative_time() -> None:
    eta = started("10s", "20s")
    assert eta.remaining(now_s=500.0).seconds == 20.0


def test_phases_that_do_not_run_cost_nothing() -> None:
    eta = Eta(plan("1m", "2m", "4m"))
    eta.phase_finished("p1", now_s=0.0)
    assert eta.remaining(now_s=0.0).seconds == 300.0
