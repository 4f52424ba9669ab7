"""Micro-batches replayed from a CUDA graph: when they can be, and that nothing else changes."""

from __future__ import annotations

import csv
import functools
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from nsa import assemble, effective, microbatch
from nsa.graphs import why_no_graph
from nsa.microbatch import MicroBatch, MicroBatches


def test_without_cuda_the_request_is_taken_back_and_said(
    tmp_path: Path, train: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(tmp_path / "out", "--cuda-graph", "--steps", "2") == 0
    assert "[graph] cuda_graph requested, effective off: no CUDA device" in capsys.readouterr().out
    env = json.loads((tmp_path / "out" / "env.json").read_text())
    assert (env["requested"]["cuda_graph"], env["effective"]["cuda_graph"]) == (True, False)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({}, None),
        ({"attention": "dense", "prefill": "auto"}, None),
        ({"shared": True}, "gradients are reduced within the backward pass"),
        ({"prefill": "batched"}, "prefill=batched waits for the host"),
    ],
)
def test_what_can_be_captured(changed: dict[str, object], reason: str | None) -> None:
    asked = {"on_cuda": True, "shared": False, "attention": "nsa", "prefill": "triton"} | changed
    assert why_no_graph(**asked) == reason  # type: ignore[arg-type]


class Replayed:
    """Stands for a CUDA graph: a replay writes where the capture left its results, over those of a graph beside it."""

    made: list[Replayed] = []

    def __init__(
        self,
        *,
        batch_size: int,
        seq_len: int,
        device: torch.device,
        fresh: tuple[Tensor, ...],
        shares_memory_with: Replayed | None = None,
    ) -> None:
        other, self.fresh = shares_memory_with, fresh
        self.shape, self.sharing, self.replays = (batch_size, seq_len + 1), [other] if other else [], 0
        if other:
            other.sharing.append(self)
        self.made.append(self)

    def __class_getitem__(cls, _: object) -> type[Replayed]:
        return cls

    @property
    def ready(self) -> bool:
        return hasattr(self, "work")

    def capture(self, work: functools.partial[MicroBatch]) -> None:
        for weight in self.fresh:
            weight.grad = None
        self.result = work(torch.zeros(self.shape, dtype=torch.int64))
        self.work = work
        self.gradients = self.gradients_now

    @property
    def tensors(self) -> list[Tensor]:
        return _tensors(self.result)

    @property
    def gradients_now(self) -> list[Tensor | None]:
        return [weight.grad for weight in self.work.func.__self__.bare_model.parameters()]

    def replay(self, tokens_BT: Tensor) -> MicroBatch:
        assert tokens_BT.shape == self.shape
        if not self.fresh:
            kept = [id(one) for one in self.gradients_now]
            assert [id(one) for one in self.gradients] == kept, "it adds to these alone"
        for weight in self.fresh:
            weight.grad = None
        self.replays += 1
        for old, new in zip(self.tensors, _tensors(self.work(tokens_BT)), strict=True):
            old.copy_(new)
        for weight, own in zip(self.fresh, self.gradients, strict=False):
            assert own is not None
            assert weight.grad is not None
            weight.grad = own.copy_(weight.grad)
        for other in self.sharing:
            for lost in other.tensors:
                lost.fill_(torch.nan)
        return self.result


def _tensors(result: MicroBatch) -> list[Tensor]:
    stats = result.stats
    return [result.loss, *([stats.table()] if stats else [])]


@pytest.mark.parametrize("extra", [[], ["--accum", "2", "--grad-checkpointing"]], ids=" ".join)
def test_a_run_with_graphs_does_and_tells_the_same(
    tmp_path: Path, train: Callable[..., int], monkeypatch: pytest.MonkeyPatch, extra: list[str]
) -> None:
    """Every row and every statistic, though the next replay of either graph overwrites the results."""
    settings = ["--n-layers", "1", "--steps", "9", "--aux-every", "4", "--sdpa-audit", "--profile-steps", "2", *extra]
    assert train(tmp_path / "launched", *settings) == 0
    monkeypatch.setattr(effective, "why_no_graph", lambda **_: None)
    monkeypatch.setattr(microbatch, "MicroBatchGraph", Replayed)
    monkeypatch.setattr(Replayed, "made", [])
    monkeypatch.setattr(assemble, "wrap_ddp", None)  # it would reduce within what is captured
    assert train(tmp_path / "replayed", "--cuda-graph", *settings) == 0
    found = {}
    for name in ("launched", "replayed"):
        lines = (tmp_path / name / "training.csv").read_text().splitlines()
        beats = map(json.loads, (tmp_path / name / "heartbeat_rank0.jsonl").read_text().splitlines())
        stats = [(b["step"], b["gate_entropy_mean"], b["sel_rows"]) for b in beats if "gate_entropy_mean" in b]
        found[name] = [(r["step"], r["loss"], r["grad_norm"]) for r in csv.DictReader(lines)], stats
    assert found["replayed"] == found["launched"]
    assert [step for step, *_ in found["replayed"][1]] == [1, 5, 9]
    plain, with_stats = Replayed.made
    assert with_stats.sharing == [plain], "they share their memory"
    accum = 2 if extra else 1
    # Python launches the first step, the audited one (2) and the first traced one (5); statistics are taken in 1, 5, 9.
    assert (with_stats.replays, plain.replays) == (1, 6 * accum - 1)


@pytest.mark.gpu
@pytest.mark.parametrize("extra", [[], ["--accum", "2"], ["--accum", "2", "--grad-checkpointing"]], ids=" ".join)
def test_replayed_steps_learn_what_launched_ones_do(
    tmp_path: Path, train: Callable[..., int], monkeypatch: pytest.MonkeyPatch, extra: list[str]
) -> None:
    """Losses, gradient norms and statistics row by row; after the first step all is replayed, statistics as well."""
    shape = ["--d-k", "16", "--d-v", "16", "--l-sel", "16", "--n-sel", "4", "--w", "16", "--seq-len", "128"]
    common = [*shape, "--device", "cuda", "--dtype", "bf16", "--steps", "14", "--aux-every", "5", *extra]
    rows, stats, launches = {}, {}, []
    launch = MicroBatches._launch
    monkeypatch.setattr(MicroBatches, "_launch", lambda *args, **kwargs: launches.append(1) or launch(*args, **kwargs))
    for name in ("launched", "replayed"):
        out = tmp_path / name
        assert train(out, *common, *(["--cuda-graph"] if name == "replayed" else [])) == 0
        assert json.loads((out / "env.json").read_text())["effective"]["cuda_graph"] is (name == "replayed")
        rows[name] = list(csv.DictReader((out / "training.csv").read_text().splitlines()))
        beats = [json.loads(line) for line in (out / "heartbeat_rank0.jsonl").read_text().splitlines()]
        stats[name] = [beat for beat in beats if "gate_entropy_mean" in beat]
    accum = 2 if "--accum" in extra else 1
    assert len(launches) == 14 * accum + accum + 2 * 3  # a graph is captured in three passes
    assert [beat["step"] for beat in stats["replayed"]] == [1, 6, 11]
    for a, b in zip(stats["launched"], stats["replayed"], strict=True):
        for figure in ("gate_entropy_mean", "gate_max_gate", "sel_k_mean", "sel_rows"):
            assert b[figure] == pytest.approx(a[figure], rel=2e-3)
    for a, b in zip(rows["launched"], rows["replayed"], strict=True):
        assert float(b["loss"]) == pytest.approx(float(a["loss"]), rel=2e-3)
        assert float(b["grad_norm"]) == pytest.approx(float(a["grad_norm"]), rel=3e-2)


@pytest.mark.gpu
def test_the_trace_times_what_is_replayed(tmp_path: Path, train: Callable[..., int]) -> None:
    shape = ["--d-k", "16", "--d-v", "16", "--l-sel", "16", "--n-sel", "4", "--w", "16", "--seq-len", "128"]
    common = [*shape, "--device", "cuda", "--dtype", "bf16", "--steps", "9", "--cuda-graph"]
    assert train(tmp_path, *common, "--profile-steps", "3", "--sdpa-audit") == 0
    summary = json.loads((tmp_path / "trace" / "summary.json").read_text())
    assert (summary["steps"], summary["timed_steps"]) == ([5, 6, 7], [6, 7])
    layers = json.loads((tmp_path / "env.json").read_text())["effective"]["n_layers"]
    assert summary["ranges_seen"]["nsa.sel.ranges_v2"]["count"] == layers  # of one step
    assert any("GraphLaunch" in operator["name"] for operator in summary["top_operators"])
    assert {"gather_kernel", "dq_kernel"} & {kernel["name"] for kernel in summary["top_kernels"]}
    assert 0 < summary["gpu_busy_share"] <= 1


@pytest.mark.gpu
def test_one_process_under_torchrun_replays_as_well(tmp_path: Path) -> None:
    """It has no process group to shard over."""
    losses = {}
    for name, start in (
        ("alone", []),
        ("group", ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1"]),
    ):
        out = tmp_path / name
        settings = ["--config", "tiny_cpu", "--device", "cuda", "--dtype", "bf16", "--d-k", "16", "--d-v", "16"]
        settings += ["--seq-len", "128", "--steps", "8", "--cuda-graph", "--ddp-static-graph", "--out", str(out)]
        subprocess.run([sys.executable, *start, "-m", "nsa.train", *settings], check=True, timeout=240)
        effective = json.loads((out / "env.json").read_text())["effective"]
        assert (effective["cuda_graph"], effective["ddp_static_graph"]) == (True, False)
        losses[name] = [float(row["loss"]) for row in csv.DictReader((out / "training.csv").read_text().splitlines())]
    assert losses["group"] == pytest.approx(losses["alone"], rel=2e-3)
