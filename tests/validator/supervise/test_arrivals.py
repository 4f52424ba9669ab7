"""Arrival stamps: which step each stamp is of, what they cost, and that a real run leaves them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.validator.supervise import programs
from tests.validator.supervise.tools import watchdog
from validator.model.plan import RunSpec
from validator.model.record import Outcome
from validator.model.runbook import TrainerMetrics
from validator.supervise.follow import RunFollower
from validator.supervise.monitor import ArrivalStamps

FILES = TrainerMetrics(csv="training.csv", stdout=r"step (?P<step>\d+)")


class _Run:
    """A trainer's folder, and the supervisor's two parts that read it, at times that the test gives."""

    def __init__(self, out: Path) -> None:
        self.out = out
        (out / "logs").mkdir()
        self.stamps = ArrivalStamps(out, started=100.0)
        self.follower = RunFollower(out=out, metrics=FILES)

    def write(self, text: str, name: str = "training.csv") -> None:
        with (self.out / name).open("a") as file:
            file.write(text)

    def look(self, now: float) -> None:
        self.stamps.watch(self.follower.stamped())
        self.stamps.notice(now)
        self.stamps.settle(self.follower.look(now=now), self.follower.read_to())

    @property
    def found(self) -> list[tuple[str, int, float]]:
        path = self.out / "arrivals.jsonl"
        lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        return [(line["source"], line["step"], line["s"]) for line in lines]


def test_growth_is_stamped_when_it_is_seen_and_named_when_it_is_read(tmp_path: Path) -> None:
    run = _Run(tmp_path)
    run.write("step,loss\n")
    run.look(100.1)
    run.write("1,3.0\n")
    run.stamps.notice(100.5)
    run.write("2,3.0\n3,3")
    run.stamps.notice(101.0)
    run.write(".0\n4,3.0\n")
    run.stamps.notice(101.5)
    assert run.found == []
    run.look(102.0)
    assert run.found == [("training.csv", 1, 0.5), ("training.csv", 2, 1.0), ("training.csv", 4, 1.5)]


@pytest.mark.parametrize("end", ["\n", "\r"])
def test_lines_of_the_log_are_stamped_too(end: str, tmp_path: Path) -> None:
    run = _Run(tmp_path)
    run.write("hello\n", "logs/stdout.log")
    run.look(100.1)
    run.write(f"step 7{end}", "logs/stdout.log")
    run.look(101.0)
    assert run.found == [("logs/stdout.log", 7, 1.0)]


def test_what_grew_between_two_stamps_belongs_to_the_second(tmp_path: Path) -> None:
    run = _Run(tmp_path)
    run.write("step,loss\n1,3.0\n")
    run.look(100.5)
    run.write("2,3.0\n")
    run.look(100.52)  # too soon for a stamp, but the row is read
    run.stamps.notice(100.6)
    run.look(101.0)
    assert run.found == [("training.csv", 1, 0.5), ("training.csv", 2, pytest.approx(0.6))]


def test_ten_thousand_lines_a_second_cost_a_few_stamps(tmp_path: Path) -> None:
    run = _Run(tmp_path)
    run.write("step,loss\n")
    step = 0
    for tick in range(200):  # ten bursts every 50 ms, ten seconds in all
        for burst in range(10):
            run.write("".join(f"{step + i + 1},3.0\n" for i in range(50)))
            step += 50
            run.stamps.notice(100.0 + 0.05 * tick + 0.005 * burst)
        run.look(100.0 + 0.05 * tick + 0.049)
    assert step == 100_000
    assert 100 <= len(run.found) <= 250
    assert run.found[-1][1] >= 99_000


@pytest.mark.parametrize(("elapsed_s", "spacing_s"), [(1.0, 0.05), (3600.0, 0.36), (86_400.0, 8.64)])
def test_stamps_get_rarer_so_that_a_day_of_them_stays_small(tmp_path: Path, elapsed_s: float, spacing_s: float) -> None:
    run = _Run(tmp_path)
    run.write("step,loss\n")
    run.look(100.0 + elapsed_s)
    assert run.stamps.due - (100.0 + elapsed_s) == pytest.approx(spacing_s)
    assert run.stamps.fileno(100.0 + elapsed_s) is None, "the supervisor is not woken before"


def test_a_table_that_is_written_anew_is_stamped_on(tmp_path: Path) -> None:
    run = _Run(tmp_path)
    run.write("step,loss\n1,3.0\n2,3.0\n")
    run.look(101.0)
    (tmp_path / "training.csv").write_text("step,loss,lr\n1,3,1\n2,3,1\n3,3,1\n")
    run.look(102.0)
    assert run.found == [("training.csv", 2, 1.0), ("training.csv", 3, 2.0)]


def test_a_run_leaves_the_stamps_of_its_rows(
    make_spec: Callable[..., RunSpec], supervised: Callable[..., Outcome], run_dir: Path
) -> None:
    """Ten rows, 30 ms apart: the last one is stamped before logs are shortened and masked."""
    spec = make_spec(programs.HEALTHY, steps=10, watchdog=watchdog(stall=20.0))
    assert supervised(spec, mask=lambda data: data.replace(b"progress", b"***")).ok
    lines: list[dict[str, Any]] = [
        json.loads(line) for line in (run_dir / spec.out / "arrivals.jsonl").read_text().splitlines()
    ]
    assert [line["step"] for line in lines][-1] == 10
    assert all(line["source"] == "training.csv" for line in lines)
    moments = [line["s"] for line in lines]
    assert moments == sorted(moments)
    assert moments[-1] - moments[0] >= 0.03 * (10 - lines[0]["step"]) - 0.03
