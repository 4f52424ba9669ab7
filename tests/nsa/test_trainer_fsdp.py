"""A model in parts trains like a whole one, and its checkpoint knows no parts."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from nsa.checkpoint import load_checkpoint
from nsa.data import open_tokenizer
from nsa.effective import settle_config
from nsa.parallel import World
from nsa.resolve import resolve
from tests.nsa.conftest import Beats, Rows, StartRanks, Train, TrainRanks
from tests.nsa.steps import has_rows
from tests.processes import wait_until

shards_here = pytest.mark.skipif(
    not hasattr(torch.cpu.Stream, "record_event"), reason="this torch shards on a GPU only; see nsa.effective"
)
SETTINGS = ["--steps", "10", "--save-every", "5", "--val-every", "5", "--val-batches", "1", "--grad-checkpointing"]


def losses(rows: Rows, out: Path) -> list[float]:
    return [float(row["loss"]) for row in rows(out / "training.csv")]


def cut_at_5(source: Path, target: Path) -> Path:
    """A copy of a run as it was when it had just saved step 5."""
    shutil.copytree(source, target)
    for file in (target / "checkpoints").glob("step_00000010.*"):
        file.unlink()
    return target


@shards_here
def test_parts_train_like_a_whole_and_resume_as_either(
    tmp_path: Path, train_ranks: TrainRanks, train: Train, rows: Rows
) -> None:
    """FSDP on two processes against DDP on one, with accumulation; then each goes on from the other's checkpoint."""
    fsdp, whole = tmp_path / "fsdp", tmp_path / "whole"
    said = train_ranks(fsdp, *SETTINGS, "--accum", "2", "--parallel", "fsdp", "--ddp-static-graph")
    assert "[ddp] static_graph requested, effective off: fsdp has no such thing" in said
    assert train(whole, *SETTINGS, "--accum", "4") == 0
    expected = losses(rows, whole)
    for name in ("loss", "grad_norm"):
        got, want = ([float(r[name]) for r in rows(out / "training.csv")] for out in (fsdp, whole))
        assert got == pytest.approx(want, abs=1e-5)

    assert train(cut_at_5(fsdp, tmp_path / "to_whole"), *SETTINGS, "--accum", "4", "--resume") == 0
    assert losses(rows, tmp_path / "to_whole") == pytest.approx(expected, abs=1e-5)
    target = cut_at_5(whole, tmp_path / "to_fsdp")
    said = train_ranks(target, *SETTINGS, "--accum", "2", "--parallel", "fsdp", "--resume")
    assert "going on from step 5" in said
    assert losses(rows, target) == pytest.approx(expected, abs=1e-5)

    ours, theirs = (load_checkpoint(out / "checkpoints" / "step_00000010.pt") for out in (fsdp, whole))
    assert ours["model"].keys() == theirs["model"].keys()
    for name, weight in theirs["model"].items():
        torch.testing.assert_close(ours["model"][name], weight, atol=1e-5, rtol=0)
    memory = [json.loads((out / "mem_step1.json").read_text()) for out in (fsdp, whole)]
    assert 0.45 < memory[0]["weights_mib"] / memory[1]["weights_mib"] < 0.6
    assert 0.45 < memory[0]["optimizer_state_mib"] / memory[1]["optimizer_state_mib"] < 0.6


@shards_here
def test_bf16_parts_stop_together(tmp_path: Path, start_ranks: StartRanks, rows: Rows, beats: Beats) -> None:
    ranks = start_ranks(tmp_path, "--steps", "100000", "--parallel", "fsdp", "--dtype", "bf16")
    csv = tmp_path / "training.csv"
    wait_until(lambda: has_rows(csv, 5), "its first steps")
    (tmp_path / ".HALT").touch()
    assert ranks.wait() == [3, 3], ranks.said
    last = [beats(tmp_path, rank)[-1] for rank in (0, 1)]
    assert [r["status"] for r in last] == ["halted", "halted"]
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
