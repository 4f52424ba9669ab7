"""Two processes over gloo: the same training as one, and no rank left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from nsa.config import field_specs
from nsa.parallel import effective_compression

Train = Callable[..., int]
Torchrun = Callable[..., subprocess.CompletedProcess[str]]
Rows = Callable[[Path], list[dict[str, str]]]
Beats = Callable[..., list[dict[str, Any]]]


def floats(table: list[dict[str, str]], name: str) -> list[float]:
    return [float(row[name]) for row in table]


def test_two_processes_train_like_one(
    tmp_path: Path, torchrun: Torchrun, train: Train, rows: Rows, beats: Beats
) -> None:
    settings = ["--steps", "20", "--val-every", "10", "--val-batches", "2"]
    done = torchrun(tmp_path / "two", *settings, "--ddp-compress", "bf16", "--ddp-bucket-mb", "0.05")
    assert done.returncode == 0, done.stderr
    assert train(tmp_path / "one", *settings, "--accum", "2", "--grad-checkpointing") == 0
    two, one = (rows(tmp_path / name / "training.csv") for name in ("two", "one"))
    for name in ("loss", "grad_norm", "lr", "tokens"):
        assert floats(two, name) == pytest.approx(floats(one, name), abs=1e-5)

    refusal = "[ddp] gradient compression requested bf16, effective off: gloo has no bf16 all-reduce"
    assert done.stdout.count(refusal) == 1
    env = json.loads((tmp_path / "two" / "env.json").read_text())
    assert (env["requested"]["ddp_compress"], env["effective"]["ddp_compress"]) == ("bf16", "off")
    assert (env["world_size"], env["backend"], env["tokens_per_step"]) == (2, "gloo", 128)
    for rank in (0, 1):
        progress = [r for r in beats(tmp_path / "two", rank) if r["msg"] == "progress"]
        assert [r["step"] for r in progress] == list(range(1, 21))
        assert {r["rank"] for r in progress} == {rank}
        assert [r["loss"] for r in progress] == pytest.approx(floats(two, "loss"), rel=1e-4)  # the mean on every rank
        assert all(0 < r["compute_time_s"] <= r["step_time_s"] for r in progress)


def test_compressed_accumulated_and_static_trains_the_same(
    tmp_path: Path, torchrun: Torchrun, train: Train, rows: Rows
) -> None:
    """fp16 is what gloo can compress to; a static graph has to survive micro-batches that do not reduce."""
    settings = ["--steps", "8", "--grad-checkpointing"]
    done = torchrun(tmp_path / "two", *settings, "--accum", "2", "--ddp-compress", "fp16", "--ddp-static-graph")
    assert done.returncode == 0, done.stderr
    assert "[ddp] gradient compression enabled: fp16" in done.stdout
    assert train(tmp_path / "one", *settings, "--accum", "4") == 0
    two, one = (rows(tmp_path / name / "training.csv") for name in ("two", "one"))
    assert floats(two, "loss") == pytest.approx(floats(one, "loss"), abs=2e-3)
    assert floats(two, "grad_norm") == pytest.approx(floats(one, "grad_norm"), rel=5e-3)


def test_torchrun_takes_none_of_the_trainers_flags_for_its_own() -> None:
    """argparse reads a flag behind the script's name as an abbreviation, and refuses one that fits several."""
    from torch.distributed.run import get_args_parser

    flags = [f"--{name.replace('_', '-')}" for name in ("config", *field_specs())]
    args = ["-m", "nsa.train", *(word for flag in flags for word in (flag, "1"))]
    assert get_args_parser().parse_args(args).training_script_args == args[2:]


def start(out: Path, tiny: list[str], *extra: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["-m", "nsa.train", *tiny, "--out", str(out), "--steps", "100000", *extra]
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def wait_for_step(out: Path, beats: Beats, step: int) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if (out / "heartbeat_rank1.jsonl").exists() and (out / "training.csv").exists():
            lines = (out / "training.csv").read_text().count("\n")
            if lines > step:
                return
        time.sleep(0.01)
    pytest.fail("the run never got to its first steps")


def test_halt_ends_every_rank_at_the_same_step(tmp_path: Path, tiny: list[str], beats: Beats) -> None:
    process = start(tmp_path, tiny)
    wait_for_step(tmp_path, beats, 3)
    (tmp_path / ".HALT").touch()
    process.communicate(timeout=90)
    assert process.returncode == 1  # torchrun's word for any worker that failed
    last = [beats(tmp_path, rank)[-1] for rank in (0, 1)]
    assert [r["msg"] for r in last] == ["done", "done"]
    assert [r["status"] for r in last] == ["halted", "halted"]
    assert last[0]["step"] == last[1]["step"]
    assert json.loads((tmp_path / "metrics.json").read_text())["status"] == "halted"


def test_sigterm_to_torchrun_checkpoints_once(tmp_path: Path, tiny: list[str], beats: Beats) -> None:
    process = start(tmp_path, tiny)
    wait_for_step(tmp_path, beats, 3)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=90)
    last = [beats(tmp_path, rank)[-1] for rank in (0, 1)]
    assert {r["status"] for r in last} == {"terminated"}
    (checkpoint,) = (tmp_path / "checkpoints").glob("*.pt")
    assert checkpoint.name == f"step_{last[0]['step']:08}.pt"


def test_a_stopped_rank_holds_nobody_beyond_the_timeout(tmp_path: Path, tiny: list[str], beats: Beats) -> None:
    process = start(tmp_path, tiny, "--ddp-timeout-s", "3")
    wait_for_step(tmp_path, beats, 3)
    pid = beats(tmp_path, 1)[0]["pid"]
    os.kill(pid, signal.SIGSTOP)
    began = time.monotonic()
    try:
        deadline = began + 20
        while time.monotonic() < deadline and beats(tmp_path, 0)[-1]["msg"] != "done":
            time.sleep(0.05)
        waited_s = time.monotonic() - began
        assert beats(tmp_path, 0)[-1]["status"] == "error"
        assert waited_s < 10
    finally:
        os.kill(pid, signal.SIGCONT)
        process.communicate(timeout=60)
    assert process.returncode == 1
    for rank in (0, 1):
        with pytest.raises(ProcessLookupError):
            os.kill(beats(tmp_path, rank)[0]["pid"], 0)


def world(**changes: Any) -> Any:
    return SimpleNamespace(**{"size": 2, "backend": "nccl"} | changes)


@pytest.mark.parametrize(
    ("asked", "place", "dtype", "effective", "said"),
    [
        ("bf16", world(), torch.float32, "bf16", "enabled: bf16"),
        ("fp16", world(backend="gloo"), torch.float32, "fp16", "enabled: fp16"),
        ("bf16", world(backend="gloo"), torch.float32, "off", "gloo has no bf16 all-reduce"),
        ("bf16", world(), torch.bfloat16, "off", "gradients are bf16 already, compression would be a no-op"),
        ("bf16", world(size=1), torch.float32, "off", "a single process reduces nothing"),
    ],
)
def test_compression_is_what_it_can_be(asked: str, place: Any, dtype: torch.dtype, effective: str, said: str) -> None:
    got, line = effective_compression(asked, place, dtype)
    assert got == effective
    assert line is not None
    assert said in line


def test_not_asking_for_compression_says_nothing() -> None:
    assert effective_compression("off", world(), torch.float32) == ("off", None)
