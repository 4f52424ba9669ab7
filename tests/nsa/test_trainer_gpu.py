"""The trainer on a GPU: the kernels in the model, what the instruments say of them, and resuming. Run with -m gpu."""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from nsa.attention.dispatch import fallback_counters, reset_fallback_counters
from nsa.attention.spans import set_spans
from nsa.attention.stats import collect_stats
from nsa.config import Config, replace_flat
from nsa.kernels.config import hopper_allowed
from nsa.model import LanguageModel
from tests.nsa.conftest import Beats, Rows
from tests.nsa.steps import has_rows
from tests.processes import python, wait_until

pytestmark = [
    pytest.mark.gpu,
    # torch.compile warns of what it imports, of gradients that it looks at and of caches that it does not use.
    pytest.mark.filterwarnings("default"),
]


_SETTINGS = """
    --dim 256 --n-layers 2 --n-heads 8 --n-kv-groups 2 --d-k 64 --d-v 64 --l-cmp 32 --d-cmp 16 --l-sel 64 --n-sel 8
    --w 128 --seq-len 1024 --batch-size 2 --dtype bf16 --device cuda --lr 1e-3 --heartbeat-s 60
"""
SETTINGS = _SETTINGS.split()


@pytest.fixture(autouse=True)
def cuda_in_use() -> None:
    """A process that has used CUDA does not fork, so runs within the tests' own process compile without help."""
    torch.cuda.init()


def train(out: Path, *extra: str) -> int:
    from nsa.train import main

    return main([*SETTINGS, "--out", str(out), *extra])


def test_deterministic_runs_are_equal_to_the_bit(tmp_path: Path) -> None:
    """In processes of their own, for the choice holds for a whole process."""
    rows = []
    for name in ("a", "b"):
        command = [sys.executable, "-m", "nsa.train", *SETTINGS, "--out", str(tmp_path / name)]
        subprocess.run([*command, "--steps", "12", "--deterministic"], check=True, timeout=240)
        table = [line.split(",") for line in (tmp_path / name / "training.csv").read_text().splitlines()]
        rows.append([(row[1], row[table[0].index("grad_norm")]) for row in table])
    assert rows[0] == rows[1]


def build(**changes: Any) -> LanguageModel:
    torch.manual_seed(0)
    shape: dict[str, Any] = {"vocab_size": 264, "dim": 256, "n_layers": 2, "n_heads": 8, "n_kv_groups": 2}
    return LanguageModel(replace_flat(Config(), **shape | changes).model).cuda()


def loss_and_gradients(model: nn.Module, tokens: torch.Tensor) -> tuple[float, dict[str, torch.Tensor]]:
    with torch.autocast("cuda", torch.bfloat16):
        loss = model(tokens[:, :-1], tokens[:, 1:])
    loss.backward()
    return loss.item(), {name: p.grad.float() for name, p in model.named_parameters() if p.grad is not None}


def relative_error(got: torch.Tensor, wanted: torch.Tensor) -> float:
    return ((got - wanted).norm() / wanted.norm()).item()


def test_a_model_on_the_kernels_learns_what_it_would_without_them() -> None:
    """1,024 tokens are the 16 blocks that each query selects: no near tie can choose differently in bf16."""
    tokens = torch.randint(0, 257, (2, 1025), generator=torch.Generator().manual_seed(1)).cuda()
    reset_fallback_counters()
    loss, gradients = loss_and_gradients(build(prefill="triton"), tokens)
    assert fallback_counters() == {}
    expected_loss, expected = loss_and_gradients(build(prefill="batched"), tokens)
    assert loss == pytest.approx(expected_loss, rel=1e-3)
    assert set(gradients) == set(expected)
    worst = {name: relative_error(gradients[name], expected[name]) for name in expected}
    assert max(worst.values()) < 2e-2, worst


def test_a_block_compiles_whole_and_ranges_change_nothing_in_it() -> None:
    tokens = torch.randint(0, 257, (2, 513), generator=torch.Generator().manual_seed(1)).cuda()
    plain, compiled = build(prefill="triton"), build(prefill="triton")
    for block in compiled.blocks:
        block.compile(fullgraph=True)
    wanted_loss, wanted = loss_and_gradients(plain, tokens)
    loss, gradients = loss_and_gradients(compiled, tokens)
    assert loss == pytest.approx(wanted_loss, rel=1e-3)
    assert max(relative_error(gradients[name], wanted[name]) for name in wanted) < 3e-2
    set_spans(True)
    try:
        with torch.compiler.set_stance("fail_on_recompile"):
            compiled.zero_grad()
            again, _ = loss_and_gradients(compiled, tokens)
    finally:
        set_spans(False)
    assert again == pytest.approx(loss, rel=1e-4)


def test_statistics_are_read_without_a_wait_for_what_was_launched_since() -> None:
    """Read from the device they waited for the step behind theirs, and the device then waited for the host."""
    layers = build(prefill="triton")
    with collect_stats(layers) as stats, torch.autocast("cuda", torch.bfloat16):
        layers(torch.randint(0, 257, (2, 512), device="cuda"), torch.randint(0, 257, (2, 512), device="cuda"))
    sent, arrived = stats.on_host(), torch.cuda.Event()
    arrived.record()
    arrived.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        found = sent.summary()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert found == stats.summary()
    assert found["sel_rows"] == 2 * 2 * 512 * 2


def test_telemetry_is_true_where_the_host_runs_ahead(tmp_path: Path, rows: Rows, beats: Beats) -> None:
    assert train(tmp_path, "--steps", "40", "--log-every", "3", "--val-every", "15", "--accum", "2") == 0
    table = rows(tmp_path / "training.csv")
    assert float(table[-1]["loss"]) < float(table[0]["loss"]) - 0.1
    wall_s = [0.0, *(float(r["wall_s"]) for r in table)]
    spans = [b - a for a, b in itertools.pairwise(wall_s)]
    integrated = sum(float(r["toks_per_s"]) * span for r, span in zip(table, spans, strict=True))
    assert integrated == pytest.approx(40 * 2 * 2 * 1024, rel=0.005)
    assert [int(r["step"]) for r in table] == [1, *range(3, 40, 3), 40]
    assert all(float(r["gpu_mem_peak_mib"]) >= float(r["gpu_mem_alloc_mib"]) > 0 for r in table)
    progress = [r for r in beats(tmp_path) if r["msg"] == "progress"]
    assert all(0 < r["compute_time_s"] <= r["step_time_s"] for r in progress)
    assert progress[0]["sel_rows"] == 2 * 2 * 1024 * 2  # layers × batch × tokens × groups of one micro-batch
    env = json.loads((tmp_path / "env.json").read_text())
    assert (env["effective"]["prefill"], env["effective"]["opt_fused"]) == ("triton", "on")
    assert not (tmp_path / "fallback_counters.csv").exists()
    memory = json.loads((tmp_path / "mem_stepN.json").read_text())
    assert memory["optimizer_state_mib"] == pytest.approx(2 * memory["weights_mib"], rel=0.01)


def test_nan_stops_at_most_one_step_later(tmp_path: Path, rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    import nsa.loop

    launch = nsa.loop._launch

    def poison(run: Any, step: int) -> Any:
        if step == 3:
            run.bare_model.norm.weight.data.fill_(float("nan"))
        return launch(run, step)

    monkeypatch.setattr(nsa.loop, "_launch", poison)
    assert train(tmp_path, "--steps", "10") == 4
    assert len(rows(tmp_path / "training.csv")) in (3, 4)
    assert (tmp_path / ".anomaly_type").read_text() == "nan_loss\n"


@pytest.mark.parametrize("extra", [[], ["--compile"], ["--grad-checkpointing"]])
def test_the_audit_names_the_kernels_of_every_branch(tmp_path: Path, extra: list[str]) -> None:
    assert train(tmp_path, "--steps", "3", "--sdpa-audit", *extra) == 0
    entries = json.loads((tmp_path / "sdpa_audit.json").read_text())["layers"]
    audit = {(e["layer"], e["branch"], e["direction"]): e for e in entries}
    for layer, direction, branch in itertools.product((0, 1), ("forward", "backward"), ("cmp", "sel", "win")):
        assert audit[layer, branch, direction]["backend"] == "triton", sorted(audit)
    for layer in () if hopper_allowed() else (0, 1):
        assert "compressed_kernel" in audit[layer, "cmp", "forward"]["kernels"]
        assert "gather_kernel" in audit[layer, "sel", "forward"]["kernels"]
        assert "select_kernel" in audit[layer, "select", "forward"]["kernels"]
        assert set(audit[layer, "query", "backward"]["kernels"]) == {"dq_kernel"}
        assert all("dkv_kernel" in audit[layer, b, "backward"]["kernels"] for b in ("cmp", "sel", "win"))
    assert "fused" not in {branch for _, branch, _ in audit}


@pytest.mark.parametrize("extra", [[], ["--compile"]])
def test_the_trace_has_a_range_for_every_branch(tmp_path: Path, extra: list[str]) -> None:
    assert train(tmp_path, "--steps", "8", "--profile-steps", "2", "--nvtx", "--no-aux-stats", *extra) == 0
    summary = json.loads((tmp_path / "trace" / "summary.json").read_text())
    seen = summary["ranges_seen"]
    for name in ("nsa.compress", "nsa.cmp", "nsa.sel", "nsa.sel.ranges_v2", "nsa.win"):
        assert seen[name]["count"] >= 2 * 2  # steps × layers
    # Hopper's own kernels choose in one range, beside the compressed branch, and list in another.
    assert seen["nsa.sel.ranges_v2"]["count"] == (2 if hopper_allowed() else 1) * 2 * 2
    assert {"nsa.cmp.backward", "nsa.sel.backward", "nsa.win.backward", "nsa.query.backward"} <= set(seen)
    assert 0 < summary["gpu_busy_share"] <= 1
    assert summary["host_bound_share"] == pytest.approx(1 - summary["gpu_busy_share"], abs=1e-3)
    kernels = {k["name"] for k in summary["top_kernels"]}
    assert kernels & {"dkv_kernel", "dq_kernel", "gather_backward_kernel", "combine_kernel", "window_backward"}
    assert not any(name.startswith(("nsa.", "Optimizer")) for name in kernels)  # ranges are no kernels


def command(out: Path, *extra: str, by: str = "nsa.launch") -> list[str]:
    nproc = min(torch.cuda.device_count(), 2)
    launcher = [by, "--standalone", "--nproc-per-node", str(nproc), "-m"]
    return [sys.executable, "-m", *launcher, "nsa.train", *SETTINGS, "--out", str(out), *extra]


def test_resume_after_sigkill_goes_on_like_the_run_that_was_not_killed(
    tmp_path: Path, rows: Rows, beats: Beats
) -> None:
    """On as many GPUs as there are, up to two; by torchrun, and by the launcher that forks the ranks."""
    at = random.SystemRandom().randint(9, 24)
    settings = ["--steps", str(at + 55), "--warmup-steps", "20", "--save-every", "4"]
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    csv = killed / "training.csv"
    process = subprocess.Popen(command(killed, *settings, by="torch.distributed.run"), stdout=subprocess.DEVNULL)
    wait_until(lambda: has_rows(csv, at) or process.poll() is not None, f"step {at}", timeout_s=240, every_s=0.002)
    assert process.poll() is None, "the run ended by itself"
    ranks = [beats(killed, rank)[0]["pid"] for rank in range(min(torch.cuda.device_count(), 2))]
    for pid in (process.pid, *ranks):
        os.kill(pid, signal.SIGKILL)
    process.wait()
    subprocess.run(command(killed, *settings, "--resume"), check=True, timeout=240)
    subprocess.run(command(whole, *settings), check=True, timeout=240)
    resumed_from = json.loads((killed / "env.json").read_text())["resumed_from"]["step"]
    a, b = rows(csv), rows(whole / "training.csv")
    assert len(a) == len(b) == at + 55
    assert len(a) - resumed_from >= 50
    assert [float(r["loss"]) for r in a] == pytest.approx([float(r["loss"]) for r in b], rel=1e-3), f"killed at {at}"


WARM = """
import sys
from pathlib import Path
from nsa.resolve import resolve
from nsa.warmup import start_warm_up

def cached():
    return {p.parent.name for p in Path(sys.argv[1]).rglob("*.cubin")}

argv = sys.argv[2:]
warm_up = start_warm_up(resolve(argv).config)
said = []
warm_up.finish(say=said.append)
ahead = cached()
from nsa.train import main
status = main(argv)
late = sorted(p.stem for p in Path(sys.argv[1]).rglob("*.cubin") if p.parent.name not in ahead)
print("SAID", said, "STATUS", status, "AHEAD", len(ahead), "LATE", late)
"""


def test_nothing_is_left_to_compile_when_the_first_step_begins(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    argv = [*SETTINGS, "--steps", "3", "--val-every", "2", "--out", str(tmp_path / "out")]
    done = python("-c", WARM, str(cache), *argv, env={"TRITON_CACHE_DIR": str(cache)}, timeout_s=240)
    last = done.stdout.splitlines()[-1]
    assert last.startswith("SAID [] STATUS 0 AHEAD "), done.stdout + done.stderr
    assert last.endswith("LATE []"), last
