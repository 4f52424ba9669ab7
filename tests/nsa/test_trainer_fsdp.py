"""A model in parts trains like a whole one, and its checkpoint knows no parts."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from nsa.checkpoint import load_checkpoint
from nsa.data import open_tokenizer
from nsa.effective import settle_config
from nsa.parallel import World
from nsa.resolve import resolve

Train = Callable[..., int]
Torchrun = Callable[..., subprocess.CompletedProcess[str]]
Rows = Callable[[Path], list[dict[str, str]]]
Beats = Callable[..., list[dict[str, Any]]]

SETTINGS = ["--steps", "10", "--save-every", "5", "--val-every", "5", "--val-batches", "1", "--grad-checkpointing"]


def losses(rows: Rows, out: Path) -> list[float]:
    return [float(row["loss"]) for row in rows(out / "training.csv")]


def cut_at_5(source: Path, target: Path) -> Path:
    """A copy of a run as it was when it had just saved step 5."""
    shutil.copytree(source, target)
    for file in (target / "checkpoints").glob("step_00000010.*"):
        file.unlink()
    return target


def test_parts_train_like_a_whole_and_resume_as_either(
    tmp_path: Path, torchrun: Torchrun, train: Train, rows: Rows, beats: Beats
) -> None:
    """FSDP on two processes against DDP on one, with accumulation; then each goes on from the other's checkpoint."""
    fsdp, whole = tmp_path / "fsdp", tmp_path / "whole"
    done = torchrun(fsdp, *SETTINGS, "--accum", "2", "--parallel", "fsdp", "--ddp-static-graph")
    assert done.returncode == 0, done.stderr
    assert "[ddp] static_graph requested, effective off: fsdp has no such thing" in done.stdout
    assert train(whole, *SETTINGS, "--accum", "4") == 0
    expected = losses(rows, whole)
    for name in ("loss", "grad_norm"):
        got, want = ([float(r[name]) for r in rows(out / "training.csv")] for out in (fsdp, whole))
        assert got == pytest.approx(want, abs=1e-5)

    assert train(cut_at_5(fsdp, tmp_path / "to_whole"), *SETTINGS, "--accum", "4", "--resume") == 0
    assert losses(rows, tmp_path / "to_whole") == pytest.approx(expected, abs=1e-5)
    target = cut_at_5(whole, tmp_path / "to_fsdp")
    done = torchrun(target, *SETTINGS, "--accum", "2", "--parallel", "fsdp", "--resume")
    assert done.returncode == 0, done.stderr
    assert "going on from step 5" in done.stdout
    assert losses(rows, target) == pytest.approx(expected, abs=1e-5)

    ours, theirs = (load_checkpoint(out / "checkpoints" / "step_00000010.pt") for out in (fsdp, whole))
    assert ours["model"].keys() == theirs["model"].keys()
    for name, weight in theirs["model"].items():
        torch.testing.assert_close(ours["model"][name], weight, atol=1e-5, rtol=0)
    memory = [json.loads((out / "mem_step1.json").read_text()) for out in (fsdp, whole)]
    assert 0.45 < memory[0]["weights_mib"] / memory[1]["weights_mib"] < 0.6
    assert 0.45 < memory[0]["optimizer_state_mib"] / memory[1]["optimizer_state_mib"] < 0.6


def test_bf16_parts_stop_together(tmp_path: Path, tiny: list[str], rows: Rows, beats: Beats) -> None:
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        "-m",
        "nsa.train",
    ]
    command += [*tiny, "--out", str(tmp_path), "--steps", "100000", "--parallel", "fsdp", "--dtype", "bf16"]
    process = subprocess.Popen(
        command, env=os.environ | {"OMP_NUM_THREADS": "1"}, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    csv = tmp_path / "training.csv"
    deadline = time.monotonic() + 150
    while time.monotonic() < deadline and process.poll() is None:
        if csv.exists() and csv.read_text().count("\n") > 5:
            break
        time.sleep(0.05)
    (tmp_path / ".HALT").touch()
    _, said = process.communicate(timeout=90)
    last = [beats(tmp_path, rank)[-1] for rank in (0, 1)]
    assert [r["status"] for r in last] == ["halted", "halted"], said
    assert last[0]["step"] == last[1]["step"]
    assert 5.0 < float(rows(csv)[0]["loss"]) < 6.0


def test_alone_there_is_nobody_to_share_with() -> None:
    one = World(rank=0, local_rank=0, size=1, device=torch.device("cpu"), backend=None)
    asked = resolve(["--parallel", "fsdp", "--device", "cpu", "--prefill", "batched"], {})
    settled = settle_config(asked, one, open_tokenizer("byte"))
    assert settled.config.ddp.parallel == "ddp"
    assert any(note.startswith("[fsdp] requested, effective ddp") for note in settled.notes)


def test_a_torch_that_cannot_shard_on_a_cpu_trains_whole_models_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch 2.6: FSDP2 asks a CPU stream for `record_event`, which came later, and ends in the first forward pass."""

    class StreamOf26:
        pass

    monkeypatch.setattr(torch.cpu, "Stream", StreamOf26)
    two = World(rank=0, local_rank=0, size=2, device=torch.device("cpu"), backend="gloo")
    asked = resolve(["--parallel", "fsdp", "--device", "cpu", "--prefill", "batched"], {})
    settled = settle_config(asked, two, open_tokenizer("byte"))
    assert settled.config.ddp.parallel == "ddp"
    assert any("shards on a GPU only" in note for note in settled.notes)
