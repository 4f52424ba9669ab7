"""One process, start to end: what is written is true, and every way to stop is the one that is documented."""

from __future__ import annotations

import copy
import gc
import itertools
import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import nsa.loop
from nsa.config import field_specs

Train = Callable[..., int]
Rows = Callable[[Path], list[dict[str, str]]]
Beats = Callable[..., list[dict[str, Any]]]


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


def test_steps_without_a_row_still_move_the_heartbeat(tmp_path: Path, train: Train, beats: Beats) -> None:
    assert train(tmp_path, "--steps", "5", "--log-every", "3") == 0
    kinds = [(r["msg"], r["step"]) for r in beats(tmp_path) if r["msg"] in ("progress", "step_end")]
    assert kinds == [("progress", 1), ("step_end", 2), ("progress", 3), ("step_end", 4), ("progress", 5)]


@pytest.mark.parametrize("other", [["--accum", "2", "--batch-size", "1"], ["--grad-checkpointing"]])
def test_cutting_or_recomputing_changes_no_loss(tmp_path: Path, train: Train, rows: Rows, other: list[str]) -> None:
    train(tmp_path / "a", "--steps", "20")
    train(tmp_path / "b", "--steps", "20", *other)
    a, b = (rows(tmp_path / name / "training.csv") for name in "ab")
    for name in ("loss", "grad_norm"):
        assert [float(r[name]) for r in a] == pytest.approx([float(r[name]) for r in b], abs=1e-5)


def test_statistics_do_not_count_recomputed_passes(tmp_path: Path, train: Train, rows: Rows) -> None:
    train(tmp_path, "--steps", "1", "--grad-checkpointing", "--accum", "3")
    assert float(rows(tmp_path / "k_stats.csv")[0]["sel_rows"]) == 2 * 2 * 32 * 2


def test_statistics_can_be_switched_off(tmp_path: Path, train: Train, beats: Beats) -> None:
    train(tmp_path, "--steps", "2", "--no-aux-stats")
    assert not any("gate_entropy_mean" in r for r in beats(tmp_path))
    assert not (tmp_path / "k_stats.csv").exists()


def test_effective_configuration_says_what_was_changed(tmp_path: Path, train: Train, capsys: Any) -> None:
    train(tmp_path, "--steps", "2", "--prefill", "triton", "--warmup-steps", "50", "--global-batch-size", "8")
    env = json.loads((tmp_path / "env.json").read_text())
    requested, effective = env["requested"], env["effective"]
    assert (requested["prefill"], effective["prefill"]) == ("triton", "batched")
    assert (requested["accum"], effective["accum"]) == (1, 4)
    assert effective["vocab_size"] == 264
    said = capsys.readouterr().out
    assert "[nsa] prefill requested triton, effective batched" in said
    assert "warmup_steps=50 is not shorter than steps=2" in said
    assert set(env["notes"]) == {line for line in said.splitlines() if line.startswith(("[nsa]", "[optim]"))}


def test_a_single_process_says_what_of_ddp_it_leaves_out(tmp_path: Path, train: Train, capsys: Any) -> None:
    train(tmp_path, "--steps", "1", "--ddp-compress", "bf16", "--ddp-static-graph", "--ddp-find-unused")
    effective = json.loads((tmp_path / "env.json").read_text())["effective"]
    assert (effective["ddp_compress"], effective["ddp_static_graph"], effective["ddp_find_unused"]) == (
        "off",
        False,
        False,
    )
    said = [line for line in capsys.readouterr().out.splitlines() if line.startswith("[ddp]")]
    assert said == [
        "[ddp] gradient compression requested bf16, effective off: a single process reduces nothing",
        "[ddp] static_graph requested, effective off: no process group",
        "[ddp] find_unused requested, effective off: no process group",
    ]


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        (["--global-batch-size", "3"], "global_batch_size=3 is not a multiple of batch_size=2 × 1 processes = 2"),
        (["--global-batch-size", "8", "--accum", "3"], "accum=3 contradicts global_batch_size=8, which needs accum=4"),
        (["--vocab-size", "100"], "vocab_size=100 is smaller than the 257 ids"),
    ],
)
def test_what_shows_only_at_start_is_bad_usage_too(
    tmp_path: Path, train: Train, capsys: Any, extra: list[str], said: str
) -> None:
    assert train(tmp_path, *extra) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "training.csv").exists()


def test_a_folder_with_another_runs_rows_is_refused(tmp_path: Path, train: Train, capsys: Any) -> None:
    assert train(tmp_path, "--steps", "2") == 0
    before = (tmp_path / "training.csv").read_bytes()
    assert train(tmp_path, "--steps", "2") == 2
    assert f"{tmp_path / 'training.csv'} holds another run's rows" in capsys.readouterr().err
    assert (tmp_path / "training.csv").read_bytes() == before


def at_step(monkeypatch: pytest.MonkeyPatch, step: int, action: Callable[[Any], None]) -> None:
    """Do something right before the given step is launched."""
    launch = nsa.loop._launch

    def wrapped(run: Any, number: int) -> Any:
        if number == step:
            action(run)
        return launch(run, number)

    monkeypatch.setattr(nsa.loop, "_launch", wrapped)


def test_halt_stops_after_the_step_and_is_refused_at_the_next_start(
    tmp_path: Path, train: Train, rows: Rows, beats: Beats, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    at_step(monkeypatch, 4, lambda run: (run.out / ".HALT").touch())
    assert train(tmp_path, "--steps", "10") == 3
    assert int(rows(tmp_path / "training.csv")[-1]["step"]) == 4
    assert json.loads((tmp_path / "metrics.json").read_text())["status"] == "halted"
    assert beats(tmp_path)[-1]["status"] == "halted"
    assert train(tmp_path / ".", "--steps", "10", "--resume") == 2
    assert ".HALT exists from before this start" in capsys.readouterr().err


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


def test_nan_stops_within_the_step(tmp_path: Path, train: Train, rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        at_step(patch, 3, lambda run: run.bare_model.norm.weight.data.fill_(float("nan")))
        assert train(tmp_path, "--steps", "10", "--save-every", "1") == 4
    table = rows(tmp_path / "training.csv")
    assert len(table) == 3
    assert math.isnan(float(table[-1]["loss"]))
    assert (tmp_path / ".anomaly_type").read_text() == "nan_loss\n"
    assert sorted(p.name for p in (tmp_path / "checkpoints").glob("*.pt")) == ["step_00000001.pt", "step_00000002.pt"]
    assert train(tmp_path, "--steps", "4", "--resume") == 0  # from before the anomaly, of which nothing is left
    assert not (tmp_path / ".anomaly_type").exists()
    assert [int(r["step"]) for r in rows(tmp_path / "training.csv")] == [1, 2, 3, 4]


def test_sigterm_checkpoints_and_the_run_can_go_on(
    tmp_path: Path, train: Train, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    def terminate(run: Any) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        deadline = time.monotonic() + 5
        while not run.signals.stop_signal and time.monotonic() < deadline:
            time.sleep(0.001)

    before = signal.getsignal(signal.SIGTERM)
    with monkeypatch.context() as patch:
        at_step(patch, 5, terminate)
        assert train(tmp_path, "--steps", "9") == 143
    assert signal.getsignal(signal.SIGTERM) is before
    assert (tmp_path / "checkpoints" / "step_00000005.pt").exists()
    assert train(tmp_path, "--steps", "9", "--resume") == 0
    assert [int(r["step"]) for r in rows(tmp_path / "training.csv")] == list(range(1, 10))


def test_a_second_interrupt_ends_at_once(
    tmp_path: Path, train: Train, beats: Beats, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    def interrupt_twice(run: Any) -> None:
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)
            deadline = time.monotonic() + 5
            while not run.signals.stop_signal and time.monotonic() < deadline:
                time.sleep(0.001)

    at_step(monkeypatch, 5, interrupt_twice)
    assert train(tmp_path, "--steps", "9") == 130
    assert "nothing more was saved" in capsys.readouterr().err
    assert beats(tmp_path)[-1]["status"] == "interrupted"
    assert json.loads((tmp_path / "metrics.json").read_text())["status"] == "interrupted"
    assert not (tmp_path / "checkpoints").exists()


def test_a_run_that_has_reached_its_last_step_says_so(tmp_path: Path, train: Train, rows: Rows, capsys: Any) -> None:
    assert train(tmp_path, "--steps", "3", "--save-final") == 0
    assert train(tmp_path, "--steps", "2", "--resume") == 0
    assert "nothing is left to train: step 3 reaches steps=2" in capsys.readouterr().out
    assert len(rows(tmp_path / "training.csv")) == 3


def test_sigusr1_dumps_the_stacks_and_the_run_goes_on(
    tmp_path: Path, train: Train, beats: Beats, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(run: Any) -> None:
        os.kill(os.getpid(), signal.SIGUSR1)
        deadline = time.monotonic() + 5
        while not list(tmp_path.glob("stackdump_*.txt")) and time.monotonic() < deadline:
            time.sleep(0.001)

    at_step(monkeypatch, 2, ask)
    assert train(tmp_path, "--steps", "3") == 0
    (dump,) = tmp_path.glob("stackdump_*.txt")
    text = dump.read_text()
    assert "nsa-heartbeat" in text
    assert "in train" in text
    assert [r["file"] for r in beats(tmp_path) if r["msg"] == "watchdog_dump"] == [dump.name]


def test_the_stacks_of_a_main_thread_that_is_stuck_can_be_had(tmp_path: Path) -> None:
    """A signal handler of Python's own would run only when the blocking call returns."""
    script = (
        "import os, signal, threading, time\nfrom pathlib import Path\n"
        "from nsa.telemetry.signals import SignalDesk\n"
        f"desk = SignalDesk(Path({str(tmp_path)!r}), rank=3)\n"
        "threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGUSR1)).start()\n"
        "lock = threading.Lock(); lock.acquire()\n"
        "def stuck(): lock.acquire()\n"
        f"threading.Thread(target=lambda: (time.sleep(1.0), os._exit(0))).start()\n"
        "stuck()\n"
    )
    subprocess.run([sys.executable, "-c", script], timeout=60, check=True)
    (dump,) = tmp_path.glob("stackdump_*_rank3.txt")
    assert "in stuck" in dump.read_text()


def test_an_error_in_the_data_is_told_everywhere(
    tmp_path: Path, train: Train, beats: Beats, monkeypatch: pytest.MonkeyPatch
) -> None:
    from nsa.data.synthetic import MarkovCopySource

    make = MarkovCopySource.batch

    def broken(self: Any, indices: Any) -> Any:
        if 6 in indices:
            raise OSError("disk gone")
        return make(self, indices)

    monkeypatch.setattr(MarkovCopySource, "batch", broken)
    with pytest.raises(RuntimeError, match="disk gone"):
        train(tmp_path, "--steps", "9")
    assert [r["msg"] for r in beats(tmp_path)][-2:] == ["loader_error", "done"]
    assert beats(tmp_path)[-1]["status"] == "error"
    assert "disk gone" in json.loads((tmp_path / "metrics.json").read_text())["why"]


def test_running_out_of_memory_leaves_a_dump(tmp_path: Path, train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    def exhaust(run: Any) -> None:
        raise torch.cuda.OutOfMemoryError("tried to allocate 20.00 GiB")

    at_step(monkeypatch, 3, exhaust)
    with pytest.raises(torch.cuda.OutOfMemoryError):
        train(tmp_path, "--steps", "5")
    assert json.loads((tmp_path / "mem_oom.json").read_text())["step"] == 2
    assert "tried to allocate" in json.loads((tmp_path / "metrics.json").read_text())["why"]


def test_no_thread_and_no_file_is_left(tmp_path: Path, train: Train) -> None:
    before = set(threading.enumerate())
    assert train(tmp_path, "--steps", "2") == 0
    assert set(threading.enumerate()) <= before


def test_long_steps_still_beat(tmp_path: Path, train: Train, beats: Beats, monkeypatch: pytest.MonkeyPatch) -> None:
    at_step(monkeypatch, 2, lambda run: time.sleep(0.3))
    assert train(tmp_path, "--steps", "2", "--heartbeat-s", "0.05") == 0
    steps = [r["step"] for r in beats(tmp_path) if r["msg"] == "beat"]
    assert steps.count(1) >= 3


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


def test_an_out_that_cannot_be_is_said(
    tmp_path: Path, train: Train, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    assert train(tmp_path / "file" / "below") == 2
    assert f"out={tmp_path / 'file' / 'below'} cannot be created: Not a directory" in capsys.readouterr().err
    monkeypatch.setattr("nsa.outdir.os.access", lambda path, mode: False)  # the superuser may write anywhere
    assert train(tmp_path / "folder") == 2
    assert "cannot be written to" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        (["--tensorboard"], "tensorboard=true needs the tensorboard package"),
        (["--device", "cuda"], "device=cuda but torch sees no CUDA device"),
        (["--data", "local", "--data-path", "nowhere/at/all"], "data_path=nowhere/at/all: no file matches"),
    ],
)
def test_what_this_machine_lacks_is_said_without_a_traceback(
    tmp_path: Path, train: Train, monkeypatch: pytest.MonkeyPatch, capsys: Any, extra: list[str], said: str
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert train(tmp_path, "--steps", "2", *extra) == 2
    error = capsys.readouterr().err
    assert said in error
    assert "Traceback" not in error
    assert not (tmp_path / "training.csv").exists()


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
    assert json.loads((tmp_path / "env.json").read_text())["env"]["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"


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


def test_training_draws_no_random_number(tmp_path: Path, train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights are drawn before and samples by number: a checkpoint without a generator's state resumes to the bit."""
    states: list[torch.Tensor] = []
    for step in (1, 5):
        at_step(monkeypatch, step, lambda run: states.append(torch.get_rng_state()))
    assert train(tmp_path, "--steps", "5", "--val-every", "2", "--save-every", "2", "--grad-checkpointing") == 0
    assert torch.equal(*states)


def test_a_start_that_compiles_nothing_imports_no_compiler(tmp_path: Path, tiny: list[str]) -> None:
    """torch's compiler takes longer to import than all of this package; its AdamW alone would ask for it."""
    script = (
        "import sys; from nsa.train import main; sys.exit(main(sys.argv[1:]) or 10 * ('torch._dynamo' in sys.modules))"
    )
    settings = ["--out", str(tmp_path), "--steps", "2", "--save-final"]
    done = subprocess.run([sys.executable, "-c", script, *tiny, *settings], timeout=120, check=False)
    assert done.returncode == 0
