"""When the steps of a run are done by what it writes, and what is a normal end then."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from validator.supervise.at_steps import StepCount, ended_as_asked
from validator.supervise.follow import Record


def rows(steps: Iterable[int], source: str = "stdout", rank: int = 0) -> list[Record]:
    return [Record(source, rank, step, {}) for step in steps]


def count_of(*records: list[Record], steps: int = 100, warmup: int = 20) -> StepCount:
    count = StepCount(steps, warmup)
    for some in records:
        count.follow(some)
    return count


def test_nothing_written_is_nothing_done() -> None:
    assert not count_of().done
    assert not count_of(rows(range(1, 100))).done
    assert count_of(rows(range(1, 101))).done


def test_every_file_has_the_steps() -> None:
    heartbeats = rows(range(1, 101), "heartbeat_rank1.jsonl", 1)
    assert not count_of(rows(range(10, 100, 10)), heartbeats).done
    assert count_of(rows(range(10, 110, 10)), heartbeats).done


def test_a_file_that_stops_holds_nobody_up_for_ever() -> None:
    assert not count_of(rows(range(1, 20), "startup.csv"), rows(range(1, 130))).done
    assert count_of(rows(range(1, 20), "startup.csv"), rows(range(1, 132))).done


def test_a_trainer_that_continues_counts_on() -> None:
    assert not count_of(rows(range(510, 600, 10))).done
    assert count_of(rows(range(510, 610, 10))).done
    assert count_of(rows(range(510, 610, 10))).counts(600)
    assert not count_of(rows(range(510, 610, 10))).counts(601)


@pytest.mark.parametrize(
    ("rc", "launcher", "written", "normal"),
    [
        (0, "python", "", True),
        (-15, "plain", "", True),
        (143, "plain", "", True),
        (1, "python", "", False),
        (-9, "python", "", False),
        (-11, "python", "", False),
        (None, "python", "", False),
        (1, "torchrun", "SignalException: Process 12 got signal: 15\n", True),
        (1, "accelerate", "SignalException: Process 12 got signal: 15\n", True),
        (1, "torchrun", "ChildFailedError: rank 1 exited with 1\n", False),
        (1, "torchrun", "SignalException: Process 12 got signal: 2\n", False),
        (1, "deepspeed", "Main process received SIGTERM, exiting\n", True),
        (1, "deepspeed", "", False),
        (1, "mpirun", "", True),
        (1, "mpirun", "mpirun noticed that process rank 1 exited on signal 11\n", False),
        (1, "mpirun", "mpirun detected that one or more processes exited with non-zero status\n", False),
        (2, "mpirun", "", False),
    ],
)
def test_the_end_is_by_that_signal(tmp_path: Path, rc: int | None, launcher: str, written: str, normal: bool) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "stderr.log").write_text(written)
    assert ended_as_asked(rc, launcher=launcher, killed=False, out=tmp_path) is normal


@pytest.mark.parametrize("rc", [-9, 137])
def test_a_trainer_that_outlasts_its_grace_is_killed(tmp_path: Path, rc: int) -> None:
    assert ended_as_asked(rc, launcher="python", killed=True, out=tmp_path)
    assert not ended_as_asked(rc, launcher="python", killed=False, out=tmp_path)
