"""The launcher whose ranks share one import of torch: for all else it is torchrun."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
import torch
import torch.distributed.run

import nsa.launch
import nsa.train
import nsa.warmup
from tests.nsa.conftest import Rows
from tests.processes import python

RANKS = ("--nproc-per-node", "2", "--standalone", "--redirects", "3", "--log-dir")


def launched(module: str, out: Path, *settings: str) -> subprocess.CompletedProcess[str]:
    words = ("-m", module, *RANKS, str(out / "logs"), "-m", "nsa.train", *settings, "--out", str(out))
    return python(*words)


def logs_of(out: Path, rank: int, stream: str) -> str:
    (log,) = (out / "logs").glob(f"*/attempt_0/{rank}/{stream}.log")
    return log.read_text()


def test_it_trains_as_torchrun_does(
    tmp_path: Path, tiny: list[str], rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    at = tiny.index("--threads")
    del tiny[at : at + 2]
    ways = {name: tmp_path / name for name in ("torch.distributed.run", "nsa.launch")}
    for module, out in ways.items():
        done = launched(module, out, *tiny, "--steps", "3")
        assert done.returncode == 0, done.stdout + done.stderr
        assert "[run] done" in logs_of(out, 0, "stdout")
        assert (out / "heartbeat_rank1.jsonl").exists()
    theirs, ours = (
        [(row["step"], row["loss"], row["grad_norm"]) for row in rows(out / "training.csv")] for out in ways.values()
    )
    assert ours == theirs
    theirs, ours = (json.loads((out / "env.json").read_text()) for out in ways.values())
    assert [ours["world_size"], ours["backend"], ours["argv"][0]] == [2, "gloo", theirs["argv"][0]]
    # A thread for each rank: else two take each other's cores.
    assert ours["effective"]["threads"] == theirs["effective"]["threads"] == 1


def test_a_rank_that_fails_ends_the_run_and_says_why(tmp_path: Path, tiny: list[str]) -> None:
    done = launched("nsa.launch", tmp_path, *tiny, "--vocab-size", "3")
    assert done.returncode == 1
    # The first one that fails has the others ended, which may be before they say anything.
    assert any("vocab_size=3 is smaller than" in logs_of(tmp_path, rank, "stderr") for rank in (0, 1))
    assert "exitcode  : 2" in done.stderr


def test_it_starts_the_trainer_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert nsa.launch.main(["--nproc-per-node", "2", "train.py"]) == 2
    assert "no -m nsa.train" in capsys.readouterr().err


@pytest.mark.parametrize(("gpus", "forks"), [([90], True), ([], False)])
def test_ranks_are_forked_where_the_launcher_needs_no_cuda(
    gpus: list[int], forks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torchrun asks whether CUDA is available. Without NVML only CUDA knows, and what is forked then has none."""
    given: list[list[str]] = []
    monkeypatch.setattr(torch.distributed.run, "main", given.append)
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    monkeypatch.setattr(nsa.warmup, "capabilities", lambda: gpus)
    monkeypatch.setattr("sys.stdout.reconfigure", lambda **_: None, raising=False)
    for name in ("OMP_NUM_THREADS", "PYTORCH_NVML_BASED_CUDA_CHECK"):
        monkeypatch.setenv(name, "")  # put back behind the test
    assert nsa.launch.main(["--nproc-per-node", "2", "-m", "nsa.train", "--steps", "3"]) == 0
    began = ["--start-method", "fork", "--run-path", nsa.launch.__file__] if forks else ["-m", "nsa.train"]
    assert given == [["--nproc-per-node", "2", *began, "--steps", "3"]]
    assert os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] == ("1" if forks else "")
