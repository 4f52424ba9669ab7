"""Levels over many runs: a change is found where it was, chance is not taken for one, the latest run is held apart."""

from __future__ import annotations

import numpy as np
import pytest

from validator.history.read import HistoryEntry, Point
from validator.history.trend import group_entries, level_changes, trends


def entry(number: int, value: float, **changes: object) -> HistoryEntry:
    given: dict[str, object] = {
        "folder": f"run-{number:03d}",
        "run_id": f"run-{number:03d}",
        "runbook": "nightly",
        "title": None,
        "machine": "2 x NVIDIA H200, NVLink",
        "host": "host",
        "decision": "GO",
        "why": "",
        "started": f"2026-01-01T{number // 60:02d}:{number % 60:02d}:00+00:00",
        "finished": None,
        "duration_s": 60.0,
        "variant": "",
        "software": {"torch": "2.11.0"},
        "points": (Point("baseline", "toks_per_s.mean", "tok/s", value, "higher"),),
    }
    return HistoryEntry(**{**given, **changes})  # type: ignore[arg-type]


def noisy(levels: list[float], *, cv: float = 0.01, seed: int = 0) -> list[float]:
    noise = np.random.default_rng(seed).standard_normal(len(levels))
    return [level * (1 + cv * float(z)) for level, z in zip(levels, noise, strict=True)]


def test_a_lower_level_is_found_at_its_first_run_and_named_worse() -> None:
    values = noisy([100.0] * 12 + [93.0] * 12)
    runs = [entry(i, v, software={"torch": "2.11.0" if i < 12 else "2.12.0"}) for i, v in enumerate(values)]
    (trend,) = trends(runs)
    (change,) = trend.changes
    assert (change.run_id, change.judged, change.confirmed) == ("run-012", "worse", True)
    assert change.relative == pytest.approx(-0.07, abs=0.01)
    assert change.because == ("torch 2.11.0 → 2.12.0",)
    assert trend.regression == change


def test_what_came_back_is_a_change_and_no_regression() -> None:
    (trend,) = trends([entry(i, v) for i, v in enumerate(noisy([100.0] * 10 + [80.0] * 10 + [100.0] * 10))])
    assert [(c.run_id, c.judged) for c in trend.changes] == [("run-010", "worse"), ("run-020", "better")]
    assert trend.regression is None


def test_lower_is_better_turns_the_judgement() -> None:
    runs = [
        entry(i, 0.0, points=(Point("baseline", "step_time_s.p95", "s", v, "lower"),))
        for i, v in enumerate(noisy([1.0] * 10 + [1.2] * 10))
    ]
    assert [change.judged for change in trends(runs)[0].changes] == ["worse"]


def test_chance_is_not_taken_for_a_change() -> None:
    rng = np.random.default_rng(7)
    found = sum(bool(level_changes(100 * (1 + 0.03 * rng.standard_normal(40)))) for _ in range(300))
    heavy = sum(bool(level_changes(100 * (1 + 0.03 * rng.standard_t(3, 40)))) for _ in range(300))
    assert max(found, heavy) <= 6  # 2 % of 300


def test_a_change_too_small_to_matter_is_not_named() -> None:
    assert level_changes(np.array(noisy([100.0] * 200 + [99.0] * 200, cv=0.002))) == []


def test_two_runs_make_no_trend_and_three_equal_ones_no_change() -> None:
    assert trends([entry(0, 100.0), entry(1, 50.0)])[0].changes == ()
    assert trends([entry(i, 100.0) for i in range(30)])[0].changes == ()


def test_the_latest_run_alone_is_named_unconfirmed() -> None:
    (trend,) = trends([entry(i, v) for i, v in enumerate([*noisy([100.0] * 10), 85.0])])
    (change,) = trend.changes
    assert (change.run_id, change.confirmed, change.judged) == ("run-010", False, "worse")


def test_a_run_still_in_progress_is_no_point() -> None:
    runs = [*(entry(i, 100.0) for i in range(5)), entry(5, 1.0, decision="IN_PROGRESS")]
    assert trends(runs)[0].values == (100.0,) * 5


def test_other_machines_runbooks_and_overrides_are_never_mixed() -> None:
    runs = [
        entry(0, 1.0),
        entry(1, 2.0, machine="1 x NVIDIA H200"),
        entry(2, 3.0, runbook="other"),
        entry(3, 4.0, variant="--set baseline.steps=50"),
        entry(4, 5.0),
    ]
    found = [(g.runbook, g.variant, g.machine, len(g.entries)) for g in group_entries(runs)]
    assert found[0] == ("nightly", "", "2 x NVIDIA H200, NVLink", 2), "the group of the latest run comes first"
    assert [count for *_, count in found] == [2, 1, 1, 1]


def test_a_trend_never_crosses_a_definition() -> None:
    """The rate with pauses is half of the rate without: another number, and no regression."""
    entries = [
        entry(n, value, points=(Point("baseline", "toks_per_s.mean", "tok/s", value, "higher", version=version),))
        for n, (value, version) in enumerate([(100.0, 1)] * 8 + [(50.0, 2)] * 8)
    ]
    (found,) = trends(entries)
    assert (found.changes, found.left_out, len(found.values)) == ((), 8, 8)
    (mixed,) = trends([entry(n, value) for n, value in enumerate([100.0] * 8 + [50.0] * 8)])
    assert mixed.regression is not None, "the same numbers by one definition are one"
