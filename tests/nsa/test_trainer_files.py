"""What one process writes is true: rows, rates, beats, statistics, and the scalars for TensorBoard."""

from __future__ import annotations

import copy
import itertools
import json
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from nsa.config import field_specs
from nsa.data import FetchStats
from nsa.telemetry import Heartbeat
from nsa.telemetry.environment import toggles
from nsa.telemetry.recorder import Rates, Recorder, StepRecord
from tests.nsa.conftest import Beats, Rows, Train
from tests.nsa.steps import at_step


def test_a_run_writes_the_whole_contract(tmp_path: Path, train: Train, rows: Rows, beats: Beats) -> None:
    assert train(tmp_path, "--steps", "30", "--accum", "2", "--val-every", "10", "--val-batches", "2") == 0

    header = (tmp_path / "training.csv").read_text().splitlines()[0]
    assert header.startswith("step,loss,lr,toks_per_s,")
    table = rows(tmp_path / "training.csv")
    assert [int(r["step"]) for r in table] == list(range(1, 31))  # optimizer steps, not micro-batches
    assert float(table[-1]["loss"]) < float(table[0]["loss"]) - 0.1
    assert [int(r["tokens"]) for r in table] == [n * 2 * 2 * 32 for n in range(1, 31)]

    env = json.loads((tmp_path / "env.json").read_text())
    assert set(env["requested"]) == set(env["effective"]) == set(field_specs())
    assert (env["world_size"], env["tokens_per_step"]) == (1, 128)
    assert (env["weight_dtype"], env["compute_dtype"]) == ("float32", "float32")
    assert env["grad_bytes"] == 4 * env["params"]
    assert env["flops_per_token"]["nsa"] > 0
    assert env["data"]["loss_floor_nats"] < env["data"]["loss_floor_bigram_nats"] < env["data"]["uniform_loss_nats"]

    records = beats(tmp_path)
    assert [r["msg"] for r in records if r["msg"] != "progress"] == ["boot", "loader_ready", "done"]
    for record in records:
        assert {"ts", "iso", "pid", "rank", "step", "msg"} <= set(record)
    progress = [r for r in records if r["msg"] == "progress"]
    assert [r["step"] for r in progress] == list(range(1, 31))
    timing = {"loss", "toks_per_s", "step_time_s", "compute_time_s", "dt_fetch_s", "fetch_p50_ms", "fetch_p95_ms"}
    assert all(timing | {"grad_norm"} <= set(r) for r in progress)
    with_gates = [r["step"] for r in progress if "gate_entropy_mean" in r]
    assert with_gates == [1, 11, 21]
    assert sum(progress[0]["gate_branch_shares"]) == pytest.approx(1.0, abs=1e-4)
    assert progress[0]["sel_rows"] == 2 * 2 * 32 * 2  # layers × batch × tokens × groups of one micro-batch
    assert records[-1]["status"] == "done"

    assert [int(r["step"]) for r in rows(tmp_path / "val.csv")] == [10, 20, 30]
    assert [int(r["step"]) for r in rows(tmp_path / "k_stats.csv")] == [1, 11, 21]
    summary = json.loads((tmp_path / "metrics.json").read_text())
    assert (summary["status"], summary["step"], summary["tokens"]) == ("done", 30, 30 * 128)
    held = {tag: json.loads((tmp_path / f"mem_{tag}.json").read_text()) for tag in ("step1", "stepN")}
    assert [held[tag]["step"] for tag in held] == [1, 30]
    for dump in held.values():
        assert dump["weights_mib"] == 4 * env["params"] / 2**20
        assert dump["optimizer_state_mib"] == pytest.approx(8 * env["params"] / 2**20, rel=0.01)
    for tag in ("boot", "step1", "stepN"):
        assert json.loads((tmp_path / f"mem_{tag}.json").read_text())["rss_mib"] > 10
        assert (tmp_path / f"mem_{tag}.txt").stat().st_size > 0
    assert not list(tmp_path.glob("*.tmp*"))


def test_rates_integrate_to_the_tokens_trained(tmp_path: Path, train: Train, rows: Rows) -> None:
    assert train(tmp_path, "--steps", "20", "--log-every", "3", "--val-every", "7") == 0
    table = rows(tmp_path / "training.csv")
    steps = [int(r["step"]) for r in table]
    assert steps == [1, 3, 6, 9, 12, 15, 18, 20]
    wall_s = [0.0, *(float(r["wall_s"]) for r in table)]
    spans = [b - a for a, b in itertools.pairwise(wall_s)]
    integrated = sum(float(r["toks_per_s"]) * span for r, span in zip(table, spans, strict=True))
    assert integrated == pytest.approx(20 * 64, rel=0.005)
    assert sum(spans) == pytest.approx(json.loads((tmp_path / "metrics.json").read_text())["wall_s"], rel=0.005)
    step_s = sum(float(r["step_time_s"]) * (b - a) for r, a, b in zip(table, [0, *steps[:-1]], steps, strict=True))
    assert step_s <= wall_s[-1] * 1.001  # validation is in wall_s and not in step_time_s


def test_what_lies_between_two_steps_is_no_part_of_a_steps_time(
    tmp_path: Path, train: Train, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    took_s: list[float] = []

    def validate(run: Any, step: int) -> None:
        began = time.perf_counter()
        time.sleep(0.5)
        took_s.append(time.perf_counter() - began)

    monkeypatch.setattr("nsa.loop.validate", validate)
    assert train(tmp_path, "--steps", "8", "--val-every", "4", "--log-every", "2") == 0
    after = rows(tmp_path / "training.csv")[3]  # its two steps are 5 and 6, and validation came before
    assert after["step"] == "6"
    interval_s = 2 * 64 / float(after["toks_per_s"])
    assert interval_s > 0.5
    assert 2 * float(after["step_time_s"]) == pytest.approx(interval_s - took_s[0], abs=0.1)
    assert 2 * float(rows(tmp_path / "training.csv")[4]["step_time_s"]) > 0  # left out once, not for good


def test_both_shares_of_a_known_peak_are_the_rate_times_the_work_per_token(
    tmp_path: Path, train: Train, rows: Rows, beats: Beats, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nsa.assemble.peak_bf16_flops", lambda device: 1e12)
    assert train(tmp_path, "--steps", "4") == 0
    env = json.loads((tmp_path / "env.json").read_text())
    assert env["peak_flops"] == 1e12
    table, progress = rows(tmp_path / "training.csv"), [r for r in beats(tmp_path) if r["msg"] == "progress"]
    for column, name in (("mfu_nsa", "nsa"), ("mfu_dense_equivalent", "dense_equivalent")):
        expected = [float(r["toks_per_s"]) * env["flops_per_token"][name] / 1e12 for r in table]
        assert [float(r[column]) for r in table] == pytest.approx(expected, rel=1e-4)
        assert [r[column] for r in progress] == pytest.approx(expected, rel=1e-3)
    assert set(env["flops_per_token"]) == {"nsa", "dense_equivalent"}


def test_loss_and_gradient_norm_are_those_of_the_step(
    tmp_path: Path, train: Train, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Computed once more from the weights before the step and its samples, in one batch, without the trainer's loop."""
    expected: dict[str, float] = {}

    def compute(run: Any) -> None:
        model = copy.deepcopy(run.bare_model)
        tokens = torch.from_numpy(run.sources.train.batch(range(2 * 4, 3 * 4))).long()  # step 3: 2 × accum 2 samples
        loss = model(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        norms = torch.stack([p.grad.norm() for p in model.parameters()])
        expected.update(loss=loss.item(), grad_norm=norms.norm().item())

    at_step(monkeypatch, 3, compute)
    assert train(tmp_path, "--steps", "4", "--accum", "2", "--grad-clip", "0.05") == 0
    third = rows(tmp_path / "training.csv")[2]
    assert {name: float(third[name]) for name in expected} == pytest.approx(expected, rel=1e-5)
    assert expected["grad_norm"] > 0.05  # so what is written is the norm before clipping


def test_steps_without_a_row_still_move_the_heartbeat(tmp_path: Path, train: Train, beats: Beats) -> None:
    assert train(tmp_path, "--steps", "5", "--log-every", "3") == 0
    kinds = [(r["msg"], r["step"]) for r in beats(tmp_path) if r["msg"] in ("progress", "step_end")]
    assert kinds == [("progress", 1), ("step_end", 2), ("progress", 3), ("step_end", 4), ("progress", 5)]


def test_long_steps_still_beat(tmp_path: Path, train: Train, beats: Beats, monkeypatch: pytest.MonkeyPatch) -> None:
    at_step(monkeypatch, 2, lambda run: time.sleep(0.3))
    assert train(tmp_path, "--steps", "2", "--heartbeat-s", "0.05") == 0
    steps = [r["step"] for r in beats(tmp_path) if r["msg"] == "beat"]
    assert steps.count(1) >= 3


def test_statistics_do_not_count_recomputed_passes(tmp_path: Path, train: Train, rows: Rows) -> None:
    train(tmp_path, "--steps", "1", "--grad-checkpointing", "--accum", "3")
    assert float(rows(tmp_path / "k_stats.csv")[0]["sel_rows"]) == 2 * 2 * 32 * 2


def test_statistics_can_be_switched_off(tmp_path: Path, train: Train, beats: Beats) -> None:
    train(tmp_path, "--steps", "2", "--no-aux-stats")
    assert not any("gate_entropy_mean" in r for r in beats(tmp_path))
    assert not (tmp_path / "k_stats.csv").exists()


def test_scalars_go_to_tensorboard(tmp_path: Path, train: Train, rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[tuple[str, float, int]] = []

    class Writer:
        def __init__(self, folder: str, *, purge_step: int) -> None:
            assert folder == str(tmp_path / "tb")
            written.append(("purged from", 0.0, purge_step))

        def add_scalar(self, name: str, value: float, step: int) -> None:
            written.append((name, value, step))

        def close(self) -> None:
            written.append(("closed", 0.0, 0))

    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", SimpleNamespace(SummaryWriter=Writer))
    assert train(tmp_path, "--steps", "2", "--tensorboard", "--save-final") == 0
    losses = [(step, value) for name, value, step in written if name == "loss"]
    table = rows(tmp_path / "training.csv")
    assert [step for step, _ in losses] == [1, 2]
    assert [value for _, value in losses] == pytest.approx([float(r["loss"]) for r in table])
    assert written[-1][0] == "closed"
    assert train(tmp_path, "--steps", "3", "--tensorboard", "--resume") == 0
    assert [step for name, _, step in written if name == "purged from"] == [1, 3]


def test_what_a_row_of_several_steps_says_is_per_step(tmp_path: Path, rows: Rows) -> None:
    heartbeat = Heartbeat(tmp_path, rank=0, beat_s=60)
    rates = Rates(tokens_per_step=100, flops_nsa=3.0, flops_dense_equivalent=5.0, peak_flops=1000.0)
    recorder = Recorder(
        tmp_path,
        is_main=True,
        heartbeat=heartbeat,
        rates=rates,
        device=torch.device("cpu"),
        log_every=4,
        steps=5,
        start_step=1,
        wall_before_s=50.0,
    )
    recorder.start(10.0)
    for step, wait_s, at_s in ((2, 0.25, 11.0), (3, 0.5, 12.0), (4, 0.25, 15.0), (5, 0.0, 16.0)):
        recorder.exclude(1.0 if step == 4 else 0.0)
        record = StepRecord(step=step, loss=1.0, lr=0.1, grad_norm=2.0, wait_s=wait_s)
        recorder.step_done(record, FetchStats(0.5, 1.0, 2.0) if recorder.is_logged(step) else None, at_s)
    summary = recorder.summary()
    recorder.close()
    heartbeat.close()
    columns = ("step", "toks_per_s", "step_time_s", "compute_time_s", "dt_fetch_s", "tokens", "wall_s", "mfu_nsa")
    assert [[float(row[c]) for c in columns] for row in rows(tmp_path / "training.csv")] == [
        [2, 100, 1.0, 0.75, 0.5, 200, 51, 0.3],
        [4, 50, 1.5, 1.125, 0.25, 400, 55, 0.15],
        [5, 100, 1.0, 1.0, 0.5, 500, 56, 0.3],
    ]
    assert (summary["tokens"], summary["wall_s"], summary["start_step"]) == (400, 6.0, 1)
    assert summary["toks_per_s"] == pytest.approx(400 / 6)
    assert summary["step_time_p95_s"] == 1.5


def test_secrets_are_no_toggles() -> None:
    env = {"NSA_LR": "1", "NCCL_ALGO": "Ring", "NCCL_TOKEN": "x", "TORCH_API_KEY": "y", "HOME": "z", "CONFIG": "c"}
    assert toggles(env) == {"CONFIG": "c", "NCCL_ALGO": "Ring", "NSA_LR": "1"}


def test_a_line_that_a_killed_process_left_open_ends_before_the_next(tmp_path: Path) -> None:
    path = tmp_path / "heartbeat_rank0.jsonl"
    path.write_text('{"msg": "boot"}\n{"msg": "pro')
    heartbeat = Heartbeat(tmp_path, rank=0, beat_s=60)
    heartbeat.write("boot")
    heartbeat.write("progress", loss=float("nan"), grad_norm=float("-inf"))
    heartbeat.close()
    lines = path.read_text().splitlines()
    assert len(lines) == 4
    assert json.loads(lines[2])["msg"] == "boot"

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    last = json.loads(lines[3], parse_constant=refuse)
    assert (last["loss"], last["grad_norm"]) == ("nan", "-inf")
