"""Two processes over gloo: the same training as one, and no rank left behind.

Most start without torchrun (see tests.nsa.ranks); what torchrun does about a signal or a lost rank is tested with it.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import nsa
import nsa.loop
import nsa.parallel
from nsa.config import field_specs
from nsa.parallel import ReduceHook, WaitMark, effective_compression
from nsa.telemetry.recorder import Recorder
from tests.nsa.conftest import Beats, Rows, StartRanks, Train, TrainRanks
from tests.nsa.ranks import RankServer, is_running
from tests.nsa.steps import has_rows
from tests.processes import wait_until


def floats(table: list[dict[str, str]], name: str) -> list[float]:
    return [float(row[name]) for row in table]


def test_two_processes_train_like_one(
    tmp_path: Path, train_ranks: TrainRanks, train: Train, rows: Rows, beats: Beats
) -> None:
    settings = ["--steps", "20", "--val-every", "10", "--val-batches", "2"]
    said = train_ranks(tmp_path / "two", *settings, "--ddp-compress", "bf16", "--ddp-bucket-mb", "0.05")
    assert train(tmp_path / "one", *settings, "--accum", "2", "--grad-checkpointing", "--val-batches", "4") == 0
    two, one = (rows(tmp_path / name / "val.csv") for name in ("two", "one"))
    for name in ("step", "val_loss", "val_tokens"):
        assert floats(two, name) == pytest.approx(floats(one, name), abs=1e-5)
    two, one = (rows(tmp_path / name / "training.csv") for name in ("two", "one"))
    for name in ("loss", "grad_norm", "lr", "tokens"):
        assert floats(two, name) == pytest.approx(floats(one, name), abs=1e-5)

    refusal = "[ddp] gradient compression requested bf16, effective off: gloo has no bf16 all-reduce"
    assert said.count(refusal) == 1
    env = json.loads((tmp_path / "two" / "env.json").read_text())
    assert (env["requested"]["ddp_compress"], env["effective"]["ddp_compress"]) == ("bf16", "off")
    assert (env["world_size"], env["backend"], env["tokens_per_step"]) == (2, "gloo", 128)
    for rank in (0, 1):
        progress = [r for r in beats(tmp_path / "two", rank) if r["msg"] == "progress"]
        assert [r["step"] for r in progress] == list(range(1, 21))
        assert {r["rank"] for r in progress} == {rank}
        assert [r["loss"] for r in progress] == pytest.approx(floats(two, "loss"), rel=1e-4)  # the mean on every rank
        assert all(0 < r["compute_time_s"] <= r["step_time_s"] for r in progress)


APART = """
import os, sys
from nsa.train import main

sys.exit(main([*sys.argv[1:], "--data", "local", "--data-path", f"{sys.argv[0]}.{os.environ['RANK']}.txt"]))
"""


def test_ranks_that_read_other_data_do_not_train(tmp_path: Path, start_ranks: StartRanks) -> None:
    script = tmp_path / "apart.py"
    script.write_text(APART)
    for rank, word in enumerate(("these", "other")):
        Path(f"{script}.{rank}.txt").write_text(f"{word} words, of which there are as many\n" * 30)
    ranks = start_ranks(tmp_path / "out", "--steps", "2", program=str(script))
    assert ranks.wait() == [2, 2]
    assert "rank 1 reads other data than rank 0" in ranks.err
    assert not (tmp_path / "out" / "training.csv").exists()


SLOW = """
import os, sys, time
from nsa.model import LanguageModel
from nsa.train import main

forward = LanguageModel.forward

def slow(self, *args):
    time.sleep(0.2 * int(os.environ["RANK"]))
    return forward(self, *args)

LanguageModel.forward = slow
sys.exit(main(sys.argv[1:]))
"""


def test_the_rank_that_is_slow_is_the_one_that_worked(tmp_path: Path, start_ranks: StartRanks, beats: Beats) -> None:
    script, out = tmp_path / "slow.py", tmp_path / "out"
    script.write_text(SLOW)
    assert start_ranks(out, "--steps", "8", program=str(script)).wait() == [0, 0]
    waiting, slow = ([r for r in beats(out, rank) if r["msg"] == "progress"] for rank in (0, 1))
    assert all(record["compute_time_s"] >= 0.2 for record in slow)
    # A busy machine may hold up the other rank as well, but not in every step.
    assert max(b["compute_time_s"] - a["compute_time_s"] for a, b in zip(waiting, slow, strict=True)) > 0.1


LATE = """
import os, sys, time
from nsa.instruments import Instruments
from nsa.train import main

start = Instruments._start

def late(self):
    time.sleep(2.5 * int(os.environ["RANK"]))
    return start(self)

Instruments._start = late
sys.exit(main(sys.argv[1:]))
"""


def test_a_rank_whose_profiler_starts_late_costs_the_others_no_time_of_a_traced_step(
    tmp_path: Path, start_ranks: StartRanks
) -> None:
    """Rank 0 waited for it in its reduction, and two healthy GPUs were refused for so much communication."""
    script, out = tmp_path / "late.py", tmp_path / "out"
    script.write_text(LATE)
    assert start_ranks(out, "--steps", "6", "--profile-steps", "1", program=str(script)).wait() == [0, 0]
    assert json.loads((out / "trace" / "summary.json").read_text())["wall_ms"] < 2000


def test_waiting_is_that_for_gradients_and_that_for_the_control_message(
    tmp_path: Path, train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    send, waits_s = nsa.loop._send_control, []
    monkeypatch.setattr(nsa.loop, "_send_control", lambda *args: (*send(*args)[:2], 0.25))
    monkeypatch.setattr(ReduceHook, "backward_done", lambda hook: WaitMark(None, None, 0.5))
    monkeypatch.setattr(Recorder, "step_done", lambda recorder, record, *args: waits_s.append(record.wait_s))
    assert train(tmp_path, "--steps", "2") == 0
    assert waits_s == [0.75, 0.75]


def test_compressed_accumulated_and_static_trains_the_same(
    tmp_path: Path, train_ranks: TrainRanks, train: Train, rows: Rows
) -> None:
    """fp16 is what gloo can compress to; a static graph has to survive micro-batches that do not reduce."""
    settings = ["--steps", "8", "--grad-checkpointing"]
    said = train_ranks(tmp_path / "two", *settings, "--accum", "2", "--ddp-compress", "fp16", "--ddp-static-graph")
    assert "[ddp] gradient compression enabled: fp16" in said
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


ENDLESS = ("--steps", "100000")

# torchrun asks its workers to end and kills those that did not within 30 s, which no option of it shortens here.
TORCHRUN = """
import importlib, sys
from torch.distributed.elastic.multiprocessing.api import PContext
from torch.multiprocessing.spawn import ProcessContext

launcher, patience_s = sys.argv.pop(1), int(sys.argv.pop(1))
PContext.close.__defaults__ = (None, patience_s)
join = ProcessContext._join_procs_with_timeout  # of ranks that are forked
ProcessContext._join_procs_with_timeout = lambda self, timeout: join(self, min(timeout, patience_s))
importlib.import_module(launcher).main()
"""
LAUNCHERS = ("torch.distributed.run", "nsa.launch")


def torchrun(
    out: Path, tiny: list[str], *extra: str, launcher: str = LAUNCHERS[0], patience_s: int = 30
) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", TORCHRUN, launcher, str(patience_s), "--standalone", "--nproc-per-node", "2"]
    command += ["-m", "nsa.train", *tiny, "--out", str(out), *ENDLESS, *extra]
    env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(nsa.__file__).parents[1])}
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def wait_for_step(out: Path, step: int) -> None:
    def reached() -> bool:
        return (out / "heartbeat_rank1.jsonl").exists() and has_rows(out / "training.csv", step)

    wait_until(reached, f"step {step}", timeout_s=120, every_s=0.002)


def pids_of(out: Path, beats: Beats) -> list[int]:
    return [beats(out, rank)[0]["pid"] for rank in (0, 1)]


def test_resume_after_sigkill_gives_the_losses_of_the_run_that_was_not_killed(
    tmp_path: Path, start_ranks: StartRanks, train_ranks: TrainRanks, rows: Rows
) -> None:
    """Everything is killed at once, at a step that nobody chose, so also amid the writing of a checkpoint."""
    step = random.SystemRandom().randint(9, 24)
    settings = ["--steps", str(step + 55), "--warmup-steps", "5", "--accum", "2", "--save-every", "4"]
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    ranks = start_ranks(killed, *settings)
    wait_for_step(killed, step)
    ranks.kill()
    assert ranks.wait() == [None, None]
    reached = int(rows(killed / "training.csv")[-1]["step"])
    train_ranks(killed, *settings, "--resume")
    train_ranks(whole, *settings)
    resumed_from = json.loads((killed / "env.json").read_text())["resumed_from"]["step"]
    assert step - 8 < resumed_from <= reached, f"killed at step {step}"
    a, b = rows(killed / "training.csv"), rows(whole / "training.csv")
    assert len(a) == len(b) == step + 55
    assert len(a) - resumed_from >= 50
    for name in ("step", "loss", "lr", "grad_norm", "tokens"):
        assert [row[name] for row in a] == [row[name] for row in b], f"killed at step {step}, {name} differs"


def test_halt_ends_every_rank_at_the_same_step(tmp_path: Path, start_ranks: StartRanks, beats: Beats) -> None:
    ranks = start_ranks(tmp_path, *ENDLESS)
    wait_for_step(tmp_path, 3)
    (tmp_path / ".HALT").touch()
    assert ranks.wait() == [3, 3]
    last = [beats(tmp_path, rank)[-1] for rank in (0, 1)]
    assert [r["msg"] for r in last] == ["done", "done"]
    assert [r["status"] for r in last] == ["halted", "halted"]
    assert last[0]["step"] == last[1]["step"]
    assert json.loads((tmp_path / "metrics.json").read_text())["status"] == "halted"


@pytest.mark.parametrize(("number", "code", "status"), [("SIGTERM", 143, "terminated"), ("SIGINT", 130, "interrupted")])
def test_a_signal_to_one_rank_ends_all_at_the_same_step_with_one_checkpoint(
    tmp_path: Path, start_ranks: StartRanks, beats: Beats, number: str, code: int, status: str
) -> None:
    ranks = start_ranks(tmp_path, *ENDLESS)
    wait_for_step(tmp_path, 3)
    os.kill(ranks.pids[1], getattr(signal, number))
    assert ranks.wait() == [code, code]
    last = [beats(tmp_path, rank)[-1] for rank in (0, 1)]
    assert {r["status"] for r in last} == {status}
    (checkpoint,) = (tmp_path / "checkpoints").glob("*.pt")
    assert {f"step_{r['step']:08}.pt" for r in last} == {checkpoint.name}


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_sigterm_to_torchrun_checkpoints_once(tmp_path: Path, tiny: list[str], beats: Beats, launcher: str) -> None:
    process = torchrun(tmp_path, tiny, launcher=launcher)
    wait_for_step(tmp_path, 3)
    names = [Path(f"/proc/{pid}/comm").read_text().strip() for pid in pids_of(tmp_path, beats)]
    assert names == ["pt_rank0", "pt_rank1"] or launcher == LAUNCHERS[0]
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=90)
    last = [beats(tmp_path, rank)[-1] for rank in (0, 1)]
    assert {r["status"] for r in last} == {"terminated"}
    (checkpoint,) = (tmp_path / "checkpoints").glob("*.pt")
    assert checkpoint.name == f"step_{last[0]['step']:08}.pt"


def seconds_until_done(out: Path, beats: Beats, rank: int) -> float:
    """How long from now `rank` takes to write its last line; fails after 40 s."""
    began = time.monotonic()
    while beats(out, rank)[-1]["msg"] != "done":
        assert time.monotonic() - began < 40, "the rank still waits"
        time.sleep(0.05)
    return time.monotonic() - began


@pytest.mark.parametrize("stopped", [0, 1])
def test_a_stopped_rank_holds_nobody_beyond_the_timeout(
    tmp_path: Path, start_ranks: StartRanks, beats: Beats, stopped: int
) -> None:
    ranks = start_ranks(tmp_path, *ENDLESS, "--ddp-timeout-s", "5")
    wait_for_step(tmp_path, 3)
    os.kill(ranks.pids[stopped], signal.SIGSTOP)
    waited_s = seconds_until_done(tmp_path, beats, 1 - stopped)
    assert beats(tmp_path, 1 - stopped)[-1]["status"] == "error"
    assert waited_s < 5 + 7  # the timeout, and a busy machine's time to notice
    while is_running(ranks.pids[1 - stopped]):
        time.sleep(0.01)
    os.kill(ranks.pids[stopped], signal.SIGKILL)
    assert ranks.wait() == [None if rank == stopped else 1 for rank in (0, 1)]


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_torchrun_leaves_no_process_of_a_run_with_a_stopped_rank(
    tmp_path: Path, tiny: list[str], beats: Beats, launcher: str
) -> None:
    """Nobody wakes the stopped rank: torchrun asks it to end, in vain, and then kills it."""
    # A second of difference between the ranks' starts is nothing on a busy machine; the timeout must be beyond it.
    process = torchrun(tmp_path, tiny, "--ddp-timeout-s", "8", launcher=launcher, patience_s=1)
    pids: list[int] = []
    try:
        wait_for_step(tmp_path, 3)
        pids = pids_of(tmp_path, beats)
        os.kill(pids[1], signal.SIGSTOP)
        process.communicate(timeout=60)
        assert process.returncode == 1
        assert not any(is_running(pid) for pid in pids)
        assert beats(tmp_path, 0)[-1]["status"] in ("error", "terminated")  # whichever it learned of first
    finally:
        for pid in (process.pid, *pids):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.communicate()


def test_a_killed_rank_takes_the_others_with_it(tmp_path: Path, start_ranks: StartRanks, beats: Beats) -> None:
    ranks = start_ranks(tmp_path, *ENDLESS, "--ddp-timeout-s", "10")
    wait_for_step(tmp_path, 3)
    os.kill(ranks.pids[1], signal.SIGKILL)
    assert ranks.wait() == [1, None]
    assert beats(tmp_path, 0)[-1]["msg"] == "done"
    assert beats(tmp_path, 0)[-1]["status"] == "error"


# The last row of the embedding belongs to no byte; a sample that holds it makes its loss, and nothing else, NaN.
POISON = """
import sys
import numpy as np
import torch
import nsa.assemble
from nsa.data.synthetic import MarkovCopySource
from nsa.train import main

make, build = MarkovCopySource.batch, nsa.assemble._build_model

def batch(self, indices):
    tokens = np.array(make(self, indices))
    tokens[[i == 13 for i in indices]] = 263  # among the four of step 4, and of one rank's
    return tokens

def build_model(effective, world):
    model = build(effective, world)
    with torch.no_grad():
        model.embedding.weight[263] = float("nan")
    return model

MarkovCopySource.batch, nsa.assemble._build_model = batch, build_model
sys.exit(main(sys.argv[1:]))
"""


def test_a_poisoned_sample_of_one_rank_stops_every_rank_within_its_step(
    tmp_path: Path, start_ranks: StartRanks, beats: Beats, rows: Rows
) -> None:
    script, out = tmp_path / "poisoned.py", tmp_path / "out"
    script.write_text(POISON)
    assert start_ranks(out, *ENDLESS, "--save-every", "1", program=str(script)).wait() == [4, 4]
    table = rows(out / "training.csv")
    assert [row["step"] for row in table] == ["1", "2", "3", "4"]
    assert table[-1]["loss"] == "nan"
    assert all(math.isfinite(float(row["loss"])) for row in table[:3])
    assert (out / ".anomaly_type").read_text() == "nan_loss\n"
    for rank in (0, 1):
        last = beats(out, rank)[-1]
        assert (last["msg"], last["status"], last["step"]) == ("done", "anomaly", 4)
    assert json.loads((out / "metrics.json").read_text())["status"] == "anomaly"
    assert sorted(p.name for p in (out / "checkpoints").glob("*.pt"))[-1] == "step_00000003.pt"


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
    assert said in line


def test_not_asking_for_compression_says_nothing() -> None:
    assert effective_compression("off", world(), torch.float32) == ("off", None)


def test_nccl_keeps_its_last_collectives_and_a_users_own_settings_win(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two ranks of a GPU's kind without a GPU: what the trainer sets before it joins the others."""
    monkeypatch.setattr(nsa.parallel, "pick_device", lambda wanted, local_rank: torch.device("cuda", 0))
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    joined: list[Any] = []
    monkeypatch.setattr(nsa.parallel.dist, "init_process_group", lambda *args, **kwargs: joined.append((args, kwargs)))
    monkeypatch.setattr(nsa.parallel.dist, "get_rank", lambda: 0)
    monkeypatch.setattr(nsa.parallel.dist, "get_world_size", lambda: 2)
    names = ("TRACE_BUFFER_SIZE", "DUMP_ON_TIMEOUT", "DEBUG_INFO_TEMP_FILE")
    for name in (*(f"TORCH_NCCL_{n}" for n in names), "TORCH_FR_BUFFER_SIZE"):
        monkeypatch.setenv(name, "")  # put back behind the test, whatever is set in it
        monkeypatch.delenv(name)
    monkeypatch.setenv("TORCH_NCCL_DUMP_ON_TIMEOUT", "0")
    there = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}
    nsa.parallel.open_world("cuda", timeout_s=17.0, out=tmp_path, env=there)
    ((args, kwargs),) = joined
    assert args == ("nccl",)
    assert kwargs["timeout"].total_seconds() == 17
    assert os.environ["TORCH_NCCL_TRACE_BUFFER_SIZE"] == os.environ["TORCH_FR_BUFFER_SIZE"] == "2000"
    assert os.environ["TORCH_NCCL_DEBUG_INFO_TEMP_FILE"] == str(tmp_path / "nccl_trace_rank_")
    assert os.environ["TORCH_NCCL_DUMP_ON_TIMEOUT"] == "0"


LEAVE_OFTEN = """
import torch
import torch.distributed as dist
from nsa.parallel import World, close_world

for _ in range(100):
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    dist.all_gather_object([None], "something")
    dist.all_reduce(torch.zeros(1))
    close_world(World(0, 0, 1, torch.device("cpu"), "gloo"))
"""


def test_leaving_the_group_does_not_wait_for_a_thread_that_waits_for_python(
    tmp_path: Path, rank_server: RankServer
) -> None:
    """One time in dozens torch up to 2.7 did not come back: a thread of gloo let go of a tensor late."""
    program = tmp_path / "leave.py"
    program.write_text(LEAVE_OFTEN)
    process = rank_server.start_alone(str(program), [])
    assert process.wait(60) == [0], process.said
