"""Clocks: silence, jumps, and when rows arrived."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.validator.ingest.folders import (
    healthy,
    outcome,
    record,
    scalar,
    spec,
    write_arrivals,
    write_csv,
    write_heartbeat,
)
from validator.ingest import collect_run
from validator.ingest.clock import jumps_in_rows
from validator.model.result import Series, SourceFile
from validator.model.runbook import TrainerMetrics


def test_silence_lasts_to_the_end_of_a_run_that_was_stopped(tmp_path: Path) -> None:
    healthy(tmp_path)
    stopped = collect_run(spec(), run_dir=tmp_path, outcome=outcome(rc=-15, reason="stalled", duration_s=200))
    assert scalar(stopped, "heartbeat.max_gap_s") == pytest.approx(190)
    ended = collect_run(spec(), run_dir=tmp_path, outcome=outcome(duration_s=200))
    assert scalar(ended, "heartbeat.max_gap_s") == 2.0


def test_a_gap_longer_than_the_whole_run_is_a_jump_of_the_clock(tmp_path: Path) -> None:
    healthy(tmp_path)
    write_heartbeat(tmp_path, [record(1, ts=5), record(2, ts=6), record(3, ts=90_000)])
    result = collect_run(spec(), run_dir=tmp_path, outcome=outcome(duration_s=30))
    assert scalar(result, "heartbeat.max_gap_s") == 2.0  # rank 1's


def test_a_clock_that_is_set_spoils_the_steps_around_it(tmp_path: Path) -> None:
    ticks = [5, 6, 7, -3600, -3599, 90_000]
    write_heartbeat(tmp_path, [record(i, ts=t) for i, t in enumerate(ticks, start=1)])
    result = collect_run(spec(nproc=0), run_dir=tmp_path, outcome=outcome(duration_s=30))
    windows = result.evidence.invalid_windows
    assert [(w.first_step, w.last_step) for w in windows] == [(3, 4), (5, 6)]
    assert windows[0].reason == "the wall clock was set back by 3607 s"
    assert result.series["step_time_s"].steps.tolist() == [2, 3, 5]
    assert result.series["step_time_s"].values.tolist() == [1, 1, 1]


def test_a_clock_that_is_set_shows_in_the_rows_of_a_trainer_without_heartbeats(tmp_path: Path) -> None:
    """Times taken by the wall clock hold the jump itself; the rows are left out, a wrong sign is none."""
    times = [0.5] * 100
    times[40], times[70] = -3599.5, 7200.5
    write_csv(tmp_path, [1000.0] * 100, step_time_s=times)
    own = spec(metrics=TrainerMetrics(csv="training.csv"))
    windows = collect_run(own, run_dir=tmp_path, outcome=outcome(duration_s=60.0)).evidence.invalid_windows
    assert [(one.first_step, one.last_step, one.reason) for one in windows] == [
        (41, 41, "the wall clock was set back by 3600 s, by step_time_s"),
        (71, 71, "the wall clock was set forth by 7200 s, by step_time_s"),
    ]
    times[40], times[70] = -0.5, 0.5
    write_csv(tmp_path, [1000.0] * 100, step_time_s=times)
    assert not collect_run(own, run_dir=tmp_path, outcome=outcome(duration_s=60.0)).evidence.invalid_windows


def test_a_time_per_step_without_rows_holds_no_jump() -> None:
    """The clock of a bar that was watched stood still at first: an internal error."""
    none = Series(
        name="step_time_s",
        unit="s",
        steps=np.empty(0, np.int64),
        values=np.empty(0),
        source=SourceFile(path="logs/stderr.log", sha256="", bytes=0),
    )
    assert jumps_in_rows({"step_time_s": none, "toks_per_s": none}, None, limit_s=30.0) == []


def test_arrivals_are_kept_by_source_and_checksummed(tmp_path: Path) -> None:
    write_csv(tmp_path, [1000.0] * 6)
    write_arrivals(tmp_path, [1.0, 1.0, 2.0, 1.0, 5.0, 1.0], steps=[1, 2, 3, 4, 2, 3])
    with (tmp_path / "arrivals.jsonl").open("a") as file:
        file.write('not a stamp\n{"source": "training.csv", "step": 1e400, "s": 1}\n')
    result = collect_run(spec(), run_dir=tmp_path, outcome=outcome())
    steps, seconds = result.evidence.arrivals["training.csv"]
    assert steps.tolist() == [1, 2, 3]
    assert seconds.tolist() == [4.0, 13.0, 14.0], "what was done again after a fall counts from then"
    assert "arrivals.jsonl" in {source.path for source in result.sources}
    assert any("2 lines are no arrival stamps" in i.message for i in result.irregularities)
