"""The loop of one process: ways to run a step that change no number, and what a step must leave alone."""

from __future__ import annotations

import gc
import json
import os
from pathlib import Path

import pytest
import torch

import nsa.loop
from tests.nsa.conftest import Rows, Train
from tests.nsa.steps import at_step


@pytest.mark.parametrize("other", [["--accum", "2", "--batch-size", "1"], ["--grad-checkpointing"]])
def test_cutting_or_recomputing_changes_no_loss(tmp_path: Path, train: Train, rows: Rows, other: list[str]) -> None:
    train(tmp_path / "a", "--steps", "20")
    train(tmp_path / "b", "--steps", "20", *other)
    a, b = (rows(tmp_path / name / "training.csv") for name in "ab")
    for name in ("loss", "grad_norm"):
        assert [float(r[name]) for r in a] == pytest.approx([float(r[name]) for r in b], abs=1e-5)


def test_running_one_step_ahead_writes_the_same_and_stops_one_step_later(
    tmp_path: Path, train: Train, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a GPU's loop does, with the CPU's arithmetic."""
    settings = ["--steps", "12", "--val-every", "5", "--save-every", "6", "--sdpa-audit", "--profile-steps", "2"]
    settings += ["--n-layers", "1"]
    assert train(tmp_path / "plain", *settings) == 0
    monkeypatch.setattr(nsa.loop, "_steps_ahead", lambda run: 1)
    assert train(tmp_path / "ahead", *settings) == 0
    for file in ("training.csv", "val.csv"):
        plain, ahead = rows(tmp_path / "plain" / file), rows(tmp_path / "ahead" / file)
        for name in ("step", "loss") if file == "training.csv" else ("step", "val_loss"):
            assert [r[name] for r in plain] == [r[name] for r in ahead]
    at_step(monkeypatch, 4, lambda run: (run.out / ".HALT").touch())
    assert train(tmp_path / "halted", "--steps", "10") == 3
    assert [int(r["step"]) for r in rows(tmp_path / "halted" / "training.csv")] == [1, 2, 3, 4, 5]
    assert train(tmp_path / "sparse", "--steps", "10", "--log-every", "7") == 3
    assert [int(r["step"]) for r in rows(tmp_path / "sparse" / "training.csv")] == [1, 4, 5]


def test_a_deterministic_run_asks_torch_and_cublas_for_it(
    tmp_path: Path, train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "")  # put back behind the test, whatever the run sets
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")
    seen: list[tuple[bool, str | None]] = []
    at_step(
        monkeypatch,
        2,
        lambda run: seen.append(
            (torch.are_deterministic_algorithms_enabled(), os.environ.get("CUBLAS_WORKSPACE_CONFIG"))
        ),
    )
    try:
        assert train(tmp_path, "--steps", "2", "--deterministic") == 0
    finally:
        torch.use_deterministic_algorithms(False)
    assert seen == [(True, ":4096:8")]
    assert torch.get_float32_matmul_precision() == "highest"
    assert train(tmp_path / "usual", "--steps", "1") == 0
    assert torch.get_float32_matmul_precision() == "high"
    assert json.loads((tmp_path / "env.json").read_text())["env"]["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"


def test_training_draws_no_random_number(tmp_path: Path, train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights are drawn before and samples by number: a checkpoint without a generator's state resumes to the bit."""
    states: list[torch.Tensor] = []
    for step in (1, 5):
        at_step(monkeypatch, step, lambda run: states.append(torch.get_rng_state()))
    assert train(tmp_path, "--steps", "5", "--val-every", "2", "--save-every", "2", "--grad-checkpointing") == 0
    assert torch.equal(*states)


def test_garbage_is_collected_when_asked_for_and_not_in_between(
    tmp_path: Path, train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched: list[tuple[int, bool]] = []
    collected_before: list[int] = []
    for step in range(1, 8):
        at_step(monkeypatch, step, lambda run, step=step: launched.append((step, gc.isenabled())))  # type: ignore[misc]
    monkeypatch.setattr(nsa.loop.gc, "collect", lambda: collected_before.append(launched[-1][0]))
    assert train(tmp_path, "--steps", "7", "--gc-every", "3") == 0
    assert launched == [(step, False) for step in range(1, 8)]
    assert collected_before == [3, 6]
    assert gc.isenabled()
