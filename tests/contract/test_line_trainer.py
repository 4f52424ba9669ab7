"""A trainer that knows nothing of the validator is read by its files or by what it prints, alone and under torchrun."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.validator.ingest.folders import outcome, spec
from validator.ingest import collect_dir, collect_run
from validator.model.result import Result
from validator.model.runbook import TrainerMetrics

TRAINER = Path(__file__).with_name("line_trainer.py")
BY_CSV = TrainerMetrics(csv="training.csv", heartbeat="heartbeat_rank{rank}.jsonl")
BY_STDOUT = TrainerMetrics(stdout=r"step (?P<step>\d+) loss (?P<loss>\S+) tok/s (?P<toks_per_s>\S+)")


def train(folder: Path, *arguments: str, launcher: tuple[str, ...] = ()) -> Result:
    logs = folder / "logs"
    logs.mkdir(parents=True)
    command = [sys.executable, *launcher, str(TRAINER), "--out", str(folder), "--batch-size", "200", *arguments]
    started_s = time.time()
    with (logs / "stdout.log").open("w") as out, (logs / "stderr.log").open("w") as err:
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        subprocess.run(command, stdout=out, stderr=err, check=True, timeout=120, env=env)
    metrics = BY_STDOUT if "stdout" in arguments else BY_CSV
    nproc = 2 if launcher else 0
    return collect_run(
        spec(out=folder.name, metrics=metrics, nproc=nproc), run_dir=folder.parent, outcome=outcome(started_s=started_s)
    )


def assert_learned(result: Result, *, steps: int) -> None:
    assert result.scalars["steps.done"].value == steps
    loss, rate = result.series["loss"].values, result.series["toks_per_s"].values
    assert len(loss) == len(rate) == steps
    assert loss[-1] < loss[0] / 10
    assert (rate > 0).all()
    assert result.irregularities == ()
    assert result.effective is None  # it does not tell, and nothing may be assumed


@pytest.mark.parametrize("report", ["csv", "stdout"])
def test_alone(tmp_path: Path, report: str) -> None:
    result = train(tmp_path / "r1", "--steps", "40", "--report", report)
    assert_learned(result, steps=40)
    assert result.series["loss"].source.path == {"csv": "r1/training.csv", "stdout": "r1/logs/stdout.log"}[report]
    assert (tmp_path / "r1/training.csv").exists() == (report == "csv")


def test_two_ranks_under_torchrun(tmp_path: Path) -> None:
    folder = tmp_path / "r1"
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--redirects", "3")
    launcher += ("--log-dir", str(folder / "logs/ranks"))
    result = train(folder, "--steps", "40", launcher=launcher)
    assert_learned(result, steps=40)
    assert set(result.rank_series) == {0, 1}
    assert result.series["toks_per_s_per_rank"].values[0] == result.series["toks_per_s"].values[0] / 2


def test_the_same_seed_gives_the_same_losses(tmp_path: Path) -> None:
    one, two = (train(tmp_path / name, "--steps", "5").series["loss"].values.tolist() for name in ("a", "b"))
    assert one == two


def test_its_folder_can_be_inspected_without_a_runbook(tmp_path: Path) -> None:
    train(tmp_path / "r1", "--steps", "5")
    assert collect_dir(tmp_path / "r1").scalars["steps.done"].value == 5


def test_it_stays_an_example_that_can_be_read_at_a_glance() -> None:
    lines = TRAINER.read_text().splitlines()
    assert len(lines) <= 60
    assert not any("import torch" in line or "validator" in line for line in lines)
