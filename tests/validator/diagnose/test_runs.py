"""Causes that one run shows, each beside a healthy twin that shows none. Figures are those of real incidents."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.validator.collect.folders import START_S, outcome, record, write_csv, write_env, write_heartbeat, write_logs
from tests.validator.diagnose.cases import (
    UNCERTAIN,
    healthy,
    of_folder,
    of_run,
    of_validation,
    run_of,
    steady,
    validation,
)
from validator.model.runbook import TrainerMetrics


def test_a_healthy_run_has_no_findings(tmp_path: Path) -> None:
    assert of_run(healthy(tmp_path / "r")) == {}
    assert of_folder(tmp_path / "r") == {}


# ---------------------------------------------------------------------------------------------------- whose files


def test_mixed_runs(tmp_path: Path) -> None:
    folder = healthy(tmp_path / "r")
    path = folder / "training.csv"
    path.write_text(path.read_text() * 2)
    finding = of_run(folder)["mixed-runs"]
    assert (finding.severity, finding.confidence) == ("veto", "high")
    assert finding.evidence[0].path == "r/training.csv"
    assert finding.evidence[0].where == "line 63"


def test_foreign_results(tmp_path: Path) -> None:
    folder = healthy(tmp_path / "r")
    os.utime(folder / "training.csv", (START_S - 86400, START_S - 86400))
    finding = of_run(folder)["foreign-results"]
    assert finding.severity == "veto"
    assert "86400 s before" in finding.message


def test_a_stale_halt_that_stopped_the_run_is_a_veto(tmp_path: Path) -> None:
    folder = tmp_path / "r"
    folder.mkdir()
    (folder / ".HALT").write_text("")
    os.utime(folder / ".HALT", (START_S - 500, START_S - 500))
    assert of_run(folder, ended=outcome(rc=3))["stale-halt"].severity == "veto"
    assert of_run(folder)["stale-halt"].severity == "warning"


def test_a_refusal_to_start_because_of_a_halt_is_recognized_by_its_text(tmp_path: Path) -> None:
    folder = tmp_path / "r"
    write_logs(folder, stderr="error: out/.HALT is left from an earlier run; remove it\n")
    assert of_run(folder, ended=outcome(rc=2))["stale-halt"].confidence == "medium"


def test_a_halt_of_the_watchdog_before_the_first_step_is_not_stale(tmp_path: Path) -> None:
    folder = tmp_path / "r"
    write_logs(folder, stderr="stopping: .HALT found\n")
    assert "stale-halt" not in of_run(folder, ended=outcome(rc=3, reason="stalled"))


def test_a_halt_of_this_run_is_not_stale(tmp_path: Path) -> None:
    folder = healthy(tmp_path / "r")
    (folder / ".HALT").write_text("asked for by the watchdog")
    assert "stale-halt" not in of_run(folder, ended=outcome(rc=3))


# ------------------------------------------------------------------------------------------------------- settings


def test_config_ignored_by_the_trainers_own_account(tmp_path: Path) -> None:
    """847 tok/s "at S=2048" was one layer at [8, 128] in fp32."""
    ran = {"seq_len": 128, "batch_size": 8, "n_layers": 1, "dtype": "fp32"}
    folder = healthy(tmp_path / "r", rate=847, effective=ran)
    finding = of_run(folder, requested={"seq-len": 2048, "batch_size": 1, "dtype": "BF16"})["config-ignored"]
    assert (finding.severity, finding.confidence) == ("veto", "high")
    assert "seq_len 2048 asked, 128 ran" in finding.message
    assert {e.where for e in finding.evidence} == {"effective.seq_len", "effective.batch_size", "effective.dtype"}


@pytest.mark.parametrize(
    "requested",
    [
        {"seq-len": "2048", "dtype": "BF16", "lr": "2e-4", "out": "/elsewhere", "config": "m7c_125m"},
        {"seq_len": 2048.0, "prefill": "auto", "unheard_of": 7},
    ],
)
def test_a_setting_is_the_same_however_it_is_spelled(tmp_path: Path, requested: dict[str, object]) -> None:
    assert of_run(healthy(tmp_path / "r"), requested=requested) == {}


def test_what_was_left_to_the_trainer_is_not_ignored(tmp_path: Path) -> None:
    folder = healthy(tmp_path / "r")
    write_env(
        folder,
        requested={"accum": 1, "opt_fused": "auto", "ffn_dim": None, "seq_len": 2048},
        effective={"accum": 4, "opt_fused": "on", "ffn_dim": 2048, "seq_len": 2048},
        sources={"accum": "default", "seq_len": "cli"},
        world_size=2,
    )
    assert "config-ignored" not in of_run(folder)


def test_an_ignored_setting_that_leaves_the_work_alone_is_a_warning(tmp_path: Path) -> None:
    assert of_run(healthy(tmp_path / "r"), requested={"prefill": "triton"})["config-ignored"].severity == "warning"


def test_another_number_of_ranks_is_another_config(tmp_path: Path) -> None:
    assert of_run(healthy(tmp_path / "r", ranks=1), nproc=2)["config-ignored"].severity == "veto"


def test_rate_times_step_time_betrays_an_ignored_length(tmp_path: Path) -> None:
    """Without an effective config: 1,024 tokens a step where 2 × 2,048 were asked for."""
    folder = tmp_path / "r"
    times = [1024 / r for r in steady()]
    write_csv(folder, steady(), step_time_s=times)
    asked = {"seq_len": 2048, "batch_size": 1}
    only = TrainerMetrics(csv="training.csv")
    finding = of_run(folder, requested=asked, metrics=only)["config-ignored"]
    assert (finding.severity, finding.confidence) == ("veto", "medium")
    write_csv(folder, steady(), step_time_s=[4096 / r for r in steady()])
    assert set(of_run(folder, requested=asked, metrics=only)) == UNCERTAIN


def test_a_trainer_that_does_not_tell_its_config_is_said_to_be_unknown(tmp_path: Path) -> None:
    write_csv(tmp_path / "r", steady(), header=False)
    finding = of_folder(tmp_path / "r")["config-unknown"]
    assert finding.severity == "info"


def test_noop_compression(tmp_path: Path) -> None:
    asked = {"ddp_compress": "bf16"}
    ran = healthy(tmp_path / "a", effective={"ddp_compress": "bf16"}, env={"weight_dtype": "bfloat16"})
    assert "bfloat16 already" in of_run(ran, requested=asked)["noop-compression"].message
    declined = healthy(tmp_path / "b")
    found = of_run(declined, requested=asked)
    assert set(found) == {"noop-compression"}
    fine = healthy(tmp_path / "c", effective={"ddp_compress": "bf16"})
    assert of_run(fine, requested=asked) == {}
    assert of_run(healthy(tmp_path / "d"), requested={"ddp_compress": "off"}) == {}


def test_warmup_exceeds_run(tmp_path: Path) -> None:
    """2,000 warm-up steps in a run of 300."""
    finding = of_run(healthy(tmp_path / "r", n=300, effective={"warmup_steps": 2000}), steps=300)["warmup-exceeds-run"]
    assert "reaches 15 %" in finding.message


def test_a_rate_that_rises_to_the_last_row_shows_a_warmup_that_is_too_long(tmp_path: Path) -> None:
    folder = tmp_path / "r"
    folder.mkdir()
    rows = [f"{i},{3 - i / 100},{1e-6 * i},845" for i in range(1, 61)]
    (folder / "training.csv").write_text("\n".join(rows) + "\n")
    assert of_folder(folder)["warmup-exceeds-run"].confidence == "medium"


def test_sequential_prefill_at_length(tmp_path: Path) -> None:
    slow = healthy(tmp_path / "r", effective={"prefill": "sequential"})
    assert "NSA_PREFILL_BATCHED=1" in of_run(slow)["host-bound"].next_step
    assert of_run(slow, settings={"env.NSA_PREFILL_BATCHED": 0}) == {}  # the arm of an A/B that is meant to be slow
    assert of_run(healthy(tmp_path / "s", effective={"prefill": "sequential", "seq_len": 256})) == {}


# ------------------------------------------------------------------------------------------------------- learning


def test_nan_loss(tmp_path: Path) -> None:
    losses = [3.0 - i / 100 for i in range(60)]
    losses[41:] = [float("nan")] * 19
    finding = of_run(healthy(tmp_path / "r", losses=losses))["nan-loss"]
    assert finding.severity == "veto"
    assert "from step 42" in finding.message
    assert "2.6" in finding.message


def test_nan_on_one_rank_alone_is_seen(tmp_path: Path) -> None:
    finding = of_run(healthy(tmp_path / "r", rank_fields={1: {"loss": "nan"}}))["nan-loss"]
    assert "rank 1" in finding.message


def test_zero_grad(tmp_path: Path) -> None:
    norms = [0.9] * 30 + [0.0] * 30
    assert of_run(healthy(tmp_path / "r", grad_norm=norms))["zero-grad"].severity == "veto"
    norms = [0.9] * 59 + [1e-12]
    assert of_run(healthy(tmp_path / "s", grad_norm=norms)) == {}


@pytest.mark.parametrize(
    ("name", "bad", "good"),
    [("gate_entropy_mean", 0.1, 0.8), ("gate_max_gate", 0.97, 0.5), ("gate_collapse_frac", 0.8, 0.1)],
)
def test_gate_collapse(tmp_path: Path, name: str, bad: float, good: float) -> None:
    lasting = of_run(healthy(tmp_path / "a", **{name: [good] * 40 + [bad] * 20}))["gate-collapse"]
    assert (lasting.severity, "step 43" in lasting.message) == ("veto", True)
    passing = of_run(healthy(tmp_path / "b", **{name: [good] * 20 + [bad] * 20 + [good] * 20}))["gate-collapse"]
    assert passing.severity == "warning"
    twice = of_run(healthy(tmp_path / "c", **{name: [good] * 20 + [bad] * 2 + [good] * 38}))
    assert twice == {}


def test_random_data_floor(tmp_path: Path) -> None:
    """A loss of 5.545 is ln 256, not convergence."""
    stuck = [5.56 - 0.01 * (i % 3) for i in range(60)]
    assert of_run(healthy(tmp_path / "a", losses=stuck))["random-data-floor"].severity == "warning"
    meant = of_run(healthy(tmp_path / "b", losses=stuck, effective={"data": "uniform"}))
    assert meant["random-data-floor"].severity == "info"
    assert of_run(healthy(tmp_path / "c", losses=stuck, effective={"vocab_size": 50257})) == {}
    write_csv(tmp_path / "d", steady(), losses=[5.545] * 60, header=False)
    assert of_folder(tmp_path / "d")["random-data-floor"].confidence == "medium"


def test_dead_parameter(tmp_path: Path) -> None:
    folder = healthy(tmp_path / "r", env={"dead_parameters": ["layers.0.gate.w"]})
    assert "layers.0.gate.w" in of_run(folder)["dead-parameter"].message
    assert of_run(healthy(tmp_path / "s", env={"dead_parameters": []})) == {}


def test_fused_unstable(tmp_path: Path) -> None:
    """594 → 656 → 177 with the fused optimizer; 229 → 480 → 696 without it."""
    for name, rates, fused in (("fused", [594, 656, 177], "1"), ("plain", [229, 480, 696], "0")):
        write_csv(tmp_path / name, rates, steps=[1, 20, 40])
        found = of_run(tmp_path / name, env={"NSA_OPT_FUSED": fused}, steps=40, warmup_steps=0)
        assert ("fused-unstable" in found) == (name == "fused")
        assert "no-steady-state" in found
    assert of_run(healthy(tmp_path / "r", effective={"opt_fused": "on"})) == {}


# ----------------------------------------------------------------------------------------------------------- pace


def test_no_steady_state(tmp_path: Path) -> None:
    rising = [229 + (696 - 229) * i / 59 for i in range(60)]
    finding = of_run(healthy(tmp_path / "r", rates=rising))["no-steady-state"]
    assert finding.confidence == "high"
    assert "→" in finding.message
    warm = [300.0] * 10 + steady(50)
    assert of_run(healthy(tmp_path / "s", rates=warm)) == {}


def test_too_few_rows_to_compare_by(tmp_path: Path) -> None:
    """297 and 835 are 566 ± 269 with n = 2."""
    write_csv(tmp_path / "r", [623, 297, 835], steps=[1, 20, 40], header=False)
    finding = of_folder(tmp_path / "r")["not-significant"]
    assert "566 ± 269" in of_run(tmp_path / "r", steps=40)["not-significant"].message
    assert finding.severity == "info"
    write_csv(tmp_path / "s", [712, 850, 843], steps=[1, 20, 40], header=False)
    assert set(of_run(tmp_path / "s", steps=40, metrics=TrainerMetrics(csv="training.csv"))) == UNCERTAIN


def test_a_rate_of_zero_is_no_training(tmp_path: Path) -> None:
    stuck = of_run(healthy(tmp_path / "a", rates=[*steady(40), *[0.0] * 20]))["zero-rate"]
    assert (stuck.severity, "from step 41 on" in stuck.message) == ("veto", True)
    passing = of_run(healthy(tmp_path / "b", rates=[*steady(20), *[0.0] * 4, *steady(36)]))["zero-rate"]
    assert passing.severity == "warning"
    assert "zero-rate" not in of_run(healthy(tmp_path / "c", rates=[*steady(20), 0.0, *steady(20), 0.0, *steady(18)]))


def test_a_table_that_stands_still_is_named_where_the_watchdog_stopped_the_run(tmp_path: Path) -> None:
    folder = tmp_path / "r"
    write_csv(folder, steady(24), steps=[*range(1, 21), 20, 20, 20, 20])
    halted = outcome(rc=-15, reason="halted", detail="4 rows in a row say step 20")
    assert "4 rows repeat" in of_run(folder, ended=halted)["zero-rate"].message
    assert "zero-rate" not in of_run(folder)


def slow(folder: Path, *, beats_to_s: float) -> Path:
    """105 s a step, logged every 20: the last record is of step 40, beats go on."""
    write_csv(folder, [39.0, 39.0, 39.0], steps=[1, 20, 40], step_time_s=[105.0] * 3)
    marks = [record(0, ts=0, msg="boot"), *(record(s, ts=105 * s) for s in (1, 20, 40))]
    beats = [record(40, ts=4200 + 5 * i, msg="beat") for i in range(1, int((beats_to_s - 4200) / 5))]
    write_heartbeat(folder, [*marks, *beats])
    return folder


def test_slow_not_hung(tmp_path: Path) -> None:
    ended = outcome(rc=-15, reason="timeout", duration_s=5000)
    finding = of_run(slow(tmp_path / "r", beats_to_s=5000), ended=ended, steps=300)["slow-not-hung"]
    assert "1 min 45 s" in finding.message
    assert "260 steps left need 7 h 35 min" in finding.message
    assert "slow-not-hung" in of_folder(tmp_path / "r")
    assert "hang" not in of_run(tmp_path / "r", ended=ended)


def test_a_run_that_is_long_overdue_is_not_called_slow(tmp_path: Path) -> None:
    folder = slow(tmp_path / "r", beats_to_s=12_000)
    assert "slow-not-hung" not in of_run(folder, ended=outcome(rc=-15, reason="timeout", duration_s=12_000))


def test_hang_names_the_rank_that_lags(tmp_path: Path) -> None:
    folder = healthy(tmp_path / "r")
    write_heartbeat(folder, [record(i, ts=3 + 5 * i, rank=1) for i in range(1, 40)], rank=1)
    (folder / "stackdump_1760000500.txt").write_text(
        '  File "x.py", line 3 in backward\n  File "d.py", line 9 in all_reduce\n'
    )
    ended = outcome(rc=-9, reason="stalled", duration_s=900, bundle=("runs/r/dump/stacks_rank1.txt",))
    finding = of_run(folder, ended=ended)["hang"]
    assert finding.severity == "veto"
    assert "Rank 1 was last seen at step 39" in finding.message
    assert "The others had reached step 60" in finding.message
    assert "wait in all_reduce" in finding.message
    assert any((e.path, e.where) == ("r/stackdump_1760000500.txt", "line 2") for e in finding.evidence)
    assert "dump/stacks_rank1.txt" in finding.next_step


def test_eta_wrong(tmp_path: Path) -> None:
    """ "~73 h" for 50,000 steps at 105 s a step is 1,458 h."""
    folder = healthy(tmp_path / "r", rates=[4096 / 105] * 60)
    write_logs(folder, stdout="ETA: ~73 h for 50,000 steps\n", rank=0)
    finding = of_run(folder)["eta-wrong"]
    assert "1,458 h" in finding.message
    write_logs(folder, stdout="ETA: ~1460 h for 50,000 steps\n", rank=0)
    assert of_run(folder) == {}


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("step 10/60 loss 3 eta 4:03", False),  # minutes and seconds alone are not read
        ("step 10/60 loss 3 eta 0:04:03", False),
        ("step 10/60 loss 3 eta 0:30:00", True),
        ("step 10/60, 4.1 minutes remaining", False),
        ("remaining: 3 days", True),
        ("remaining memory: 12 GiB", False),
    ],
)
def test_an_eta_is_held_against_measured_step_time(tmp_path: Path, line: str, wrong: bool) -> None:
    folder = healthy(tmp_path / "r")  # 4.85 s a step: step 10 of 60 is 4 min 3 s from the end
    write_logs(folder, stdout=line + "\n", rank=0)
    assert ("eta-wrong" in of_run(folder)) == wrong


def test_unit_mismatch_of_speed_ups(tmp_path: Path) -> None:
    """855× (a total of five iterations) against 169×."""
    folder = healthy(tmp_path / "r")
    write_logs(folder, stdout="selection v2: 855x speedup\n...\nv2 vs v1: speedup 169x per iteration\n", rank=0)
    assert "factor of 5" in of_run(folder)["unit-mismatch"].message
    other = """selection v2: 169x speedup
    window: speedup 1.2x, 2x A100, faster [4x4]
    compressed: 338x faster
    selection v2 at S=4096: 676x speedup
    """
    write_logs(folder, stdout=other, rank=0)
    assert of_run(folder) == {}


def test_unit_mismatch_of_rates(tmp_path: Path) -> None:
    """A rate per rank in the place of the global one is off by the number of ranks."""
    folder = healthy(tmp_path / "r", env={"tokens_per_step": 8192})
    finding = of_run(folder)["unit-mismatch"]
    assert (finding.severity, "factor of 0.5" in finding.message) == ("veto", True)


def test_more_than_the_hardware_can_do_is_a_wrong_unit(tmp_path: Path) -> None:
    folder = healthy(tmp_path / "r")
    (folder / "metrics.json").write_text('{"mfu": 1.7}')
    assert of_run(folder)["unit-mismatch"].severity == "veto"


# ------------------------------------------------------------------------------------------------------- failures


@pytest.mark.parametrize(
    ("code", "line"),
    [
        ("oom", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"),
        ("nccl-error", "torch.distributed.DistBackendError: NCCL error in: x.cpp:1, unhandled system error"),
        ("nccl-error", "[rank0]: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5, OpType=ALLREDUCE)"),
        ("port-in-use", "RuntimeError: The server socket has failed to bind: EADDRINUSE, address already in use"),
        ("disk-full", "OSError: [Errno 28] No space left on device: 'training.csv'"),
    ],
)
def test_failures_that_logs_name(tmp_path: Path, code: str, line: str) -> None:
    folder = healthy(tmp_path / "r")
    write_logs(folder, stderr=f"a\n{line}\n", rank=1)
    finding = of_run(folder, ended=outcome(rc=1))[code]
    assert finding.evidence[0].where == "line 2"
    assert finding.evidence[0].text == line


def test_oom_says_in_which_step(tmp_path: Path) -> None:
    folder = healthy(tmp_path / "r", gpu_mem_reserved_mib=[70_000.0] * 60)
    write_logs(folder, stderr="CUDA out of memory\n", rank=0)
    finding = of_run(folder, ended=outcome(rc=1))["oom"]
    assert "GPU memory ran out in step 61" in finding.message
    assert any("70,000 MiB" in e.text for e in finding.evidence)


def test_a_run_that_ended_well_had_no_port_trouble(tmp_path: Path) -> None:
    folder = healthy(tmp_path / "r")
    write_logs(folder, stderr="NCCL WARN something minor\nretrying: address already in use\n", rank=0)
    assert of_run(folder) == {}


def test_leftover_process(tmp_path: Path) -> None:
    folder = healthy(tmp_path / "r")
    assert "4711" in of_run(folder, ended=outcome(killed=(4711,)))["leftover-process"].message
    stopped = outcome(rc=-9, reason="timeout", killed=(4711,))
    assert "leftover-process" not in of_run(folder, ended=stopped)


def test_a_crash_says_how_it_ended_unless_its_cause_has_a_name(tmp_path: Path) -> None:
    folder = healthy(tmp_path / "r")
    write_logs(folder, stderr="Traceback\nValueError: no such layer\n", rank=0)
    ended = outcome(rc=1, detail="exited with code 1 after 60 steps: last words: ValueError: no such layer")
    finding = of_run(folder, ended=ended)["crashed"]
    assert "exited with code 1 after 60 steps" in finding.message
    assert any(e.text == "ValueError: no such layer" for e in finding.evidence)
    killed = of_run(folder, ended=outcome(rc=-9, detail="was ended by SIGKILL after 60 steps"))["crashed"]
    assert "out-of-memory killer" in killed.next_step
    write_logs(folder, stderr="CUDA out of memory\n", rank=0)
    assert set(of_run(folder, ended=outcome(rc=1))) == {"oom"}
    anomaly = outcome(rc=4, detail="stopped itself for nan_loss: exited with code 4")
    assert "crashed" not in of_run(healthy(tmp_path / "s"), ended=anomaly)


def test_a_run_past_its_budget_says_what_it_would_have_needed(tmp_path: Path) -> None:
    ended = outcome(rc=-15, reason="timeout", duration_s=600)
    finding = of_run(healthy(tmp_path / "r"), ended=ended, steps=300, timeout_s=600)["over-budget"]
    assert "at step 60 of 300 when its timeout of 10 min was over; at this pace all 300 need 50 min" in finding.message


# ------------------------------------------------------------------------------------------------------- evidence


@pytest.mark.parametrize(
    ("name", "find", "put"),
    [
        ("training.csv", b"\n30,", b"\n3x0,"),
        ("training.csv", b"\n30,2.2", b"\n30,abc"),
        ("heartbeat_rank1.jsonl", b'{"ts"', b'{ts"'),
        ("metrics.json", b"{}", b"{"),
        (
            "env.json",
            b"{",
            b"[",
        ),
    ],
)
def test_garbled_evidence_forbids_go_where_the_run_ended_well(
    tmp_path: Path, name: str, find: bytes, put: bytes
) -> None:
    folder = healthy(tmp_path / "r")
    whole = (folder / name).read_bytes()
    assert find in whole
    (folder / name).write_bytes(whole.replace(find, put, 1))
    finding = of_run(folder)["damaged-evidence"]
    assert (finding.severity, finding.evidence[0].path) == ("veto", f"r/{name}")
    assert of_run(folder, ended=outcome(rc=1))["damaged-evidence"].severity == "warning"


def test_a_last_line_cut_by_a_kill_is_no_damage(tmp_path: Path) -> None:
    folder = healthy(tmp_path / "r")
    for name in ("training.csv", "heartbeat_rank0.jsonl"):
        (folder / name).write_bytes((folder / name).read_bytes()[:-9])
    assert "damaged-evidence" not in of_run(folder, ended=outcome(rc=-9))
    assert "damaged-evidence" not in of_folder(folder)
    assert of_run(folder)["damaged-evidence"].severity == "veto"


def test_a_rate_that_is_no_number_is_damage(tmp_path: Path) -> None:
    rates = [*steady(30), float("nan"), *steady(29)]
    finding = of_run(healthy(tmp_path / "r", rates=rates))["damaged-evidence"]
    assert (finding.severity, "toks_per_s is nan at step 31" in finding.message) == ("veto", True)


def test_a_garbled_file_that_nothing_is_measured_by_is_a_warning(tmp_path: Path) -> None:
    folder = healthy(tmp_path / "r")
    (folder / "k_stats.csv").write_text("step,k\n1,2\nx,y\n3,4\n")
    assert of_run(folder)["damaged-evidence"].severity == "warning"


@pytest.mark.parametrize("name", ["training.csv", "heartbeat_rank1.jsonl", "env.json", "metrics.json"])
def test_what_was_declared_and_never_written_forbids_go(tmp_path: Path, name: str) -> None:
    folder = healthy(tmp_path / "r")
    (folder / name).unlink()
    assert of_run(folder)["missing-evidence"].severity == "veto"
    assert "missing-evidence" not in of_run(folder, ended=outcome(rc=1))


@pytest.mark.parametrize(
    ("name", "lines", "words"),
    [
        ("training.csv", slice(30, 33), "no row between steps 29 and 33"),
        ("training.csv", slice(2, 3), "no row between steps 1 and 3"),
        ("heartbeat_rank1.jsonl", slice(30, 31), "no row between steps 29 and 31"),
        ("heartbeat_rank1.jsonl", slice(31, None), "the heartbeat of rank 1 ends at step 30, another at 60"),
        ("heartbeat_rank1.jsonl", slice(61, None), "the heartbeat of rank 1 lacks its end"),
    ],
)
def test_rows_that_were_taken_out_are_missed(tmp_path: Path, name: str, lines: slice, words: str) -> None:
    folder = healthy(tmp_path / "r")
    kept = (folder / name).read_text().splitlines(keepends=True)
    del kept[lines]
    (folder / name).write_text("".join(kept))
    finding = of_run(folder)["missing-evidence"]
    assert (finding.severity, words in finding.message) == ("veto", True), finding.message


@pytest.mark.parametrize("steps", [(1, 5, 10, 15, 20, 25, 30), (10, 20, 30, 40, 50, 60, 64), (1, 20, 40, 60, 80, 100)])
def test_a_table_that_is_written_now_and_then_misses_nothing(tmp_path: Path, steps: tuple[int, ...]) -> None:
    folder = tmp_path / "r"
    write_csv(folder, [845.0] * len(steps), steps=steps)
    found = of_run(folder, steps=steps[-1], metrics=TrainerMetrics(csv="training.csv"))
    assert "missing-evidence" not in found


def test_what_follows_from_a_heartbeats_clock_begins_a_step_later_and_misses_nothing(tmp_path: Path) -> None:
    """A trainer that writes a rate and no step time: the time of its first step is not known."""
    folder = tmp_path / "r"
    write_csv(folder, steady())
    write_heartbeat(folder, [record(i, ts=5 * i, loss=3 - i / 100) for i in range(1, 61)])
    only = TrainerMetrics(csv="training.csv", heartbeat="heartbeat_rank{rank}.jsonl")
    assert set(of_run(folder, metrics=only, nproc=1)) == UNCERTAIN


def test_a_first_row_without_a_rate_misses_nothing(tmp_path: Path) -> None:
    folder = healthy(tmp_path / "r")
    lines = (folder / "training.csv").read_text().splitlines()
    step, loss, lr, *_ = lines[1].split(",")
    lines[1] = f"{step},{loss},{lr},,,"
    (folder / "training.csv").write_text("\n".join(lines) + "\n")
    assert of_run(folder) == {}


def test_bytes_that_are_no_text_are_damage(tmp_path: Path) -> None:
    folder = healthy(tmp_path / "r")
    (folder / "metrics.json").write_bytes(b'{"status": "d\xffne"}')
    assert "not UTF-8" in of_run(folder)["damaged-evidence"].message


def test_a_clock_that_was_set_is_named(tmp_path: Path) -> None:
    folder = healthy(tmp_path / "r")
    records = [record(i, ts=5 * i - (3600 if i > 40 else 0)) for i in range(1, 61)]
    write_heartbeat(folder, records)
    assert "set back by 3595 s" in of_run(folder)["clock-jump"].message


# ------------------------------------------------------------------------------------------------------ resources


def test_low_headroom(tmp_path: Path) -> None:
    for name, used, low in (("a", 77_000.0, True), ("b", 49_000.0, False)):
        folder = healthy(tmp_path / name, gpu_mem_reserved_mib=[used] * 60)
        (folder / "mem_step1.json").write_text('{"gpu_mem_total_mib": 81920}')
        assert ("low-headroom" in of_run(folder)) == low


def test_low_headroom_by_the_machines_snapshot(tmp_path: Path) -> None:
    run = run_of(healthy(tmp_path / "r", gpu_mem_reserved_mib=[77_000.0] * 60))
    gpus = {"gpu0": {"memory_total_mib": 143_771.0}, "gpu1": {"memory_total_mib": 81_920.0}}
    found = of_validation(validation({"baseline": [run]}, environment={"gpus": gpus}))
    assert "77,000 of 81,920 MiB" in found["low-headroom"].message
    assert of_validation(validation({"baseline": [run]}, environment={"gpus": {"gpu0": gpus["gpu0"]}})) == {}


def test_memory_growth(tmp_path: Path) -> None:
    leak = [1000 + 5.0 * i for i in range(60)]
    finding = of_run(healthy(tmp_path / "a", host_mem_mib=leak))["memory-growth"]
    assert "5,000 MiB per 1,000 steps" in finding.message
    plateau = [1000 + 300 * (1 - 0.9**i) for i in range(60)]
    assert of_run(healthy(tmp_path / "b", host_mem_mib=plateau)) == {}
    saw = [1000 + 40.0 * (i % 8) for i in range(60)]
    assert of_run(healthy(tmp_path / "c", host_mem_mib=saw)) == {}


def test_straggler(tmp_path: Path) -> None:
    own = {0: {"compute_time_s": 2.0}, 1: {"compute_time_s": 4.6}}
    finding = of_run(healthy(tmp_path / "r", rank_fields=own))["straggler"]
    assert "Rank 1 needs 4.6 s" in finding.message
    near = {0: {"compute_time_s": 4.2}, 1: {"compute_time_s": 4.6}}
    assert of_run(healthy(tmp_path / "s", rank_fields=near)) == {}


def test_loader_bound(tmp_path: Path) -> None:
    waits = {r: {"dt_fetch_s": 2.0} for r in (0, 1)}
    assert "41 %" in of_run(healthy(tmp_path / "r", rank_fields=waits))["loader-bound"].message
    p95 = {r: {"fetch_p95_ms": 20.0} for r in (0, 1)}
    assert of_run(healthy(tmp_path / "s", rank_fields=p95)) == {}


def test_comm_bound(tmp_path: Path) -> None:
    own = {r: {"compute_time_s": 2.0} for r in (0, 1)}
    finding = of_run(healthy(tmp_path / "r", rank_fields=own))["comm-bound"]
    assert "59 %" in finding.message
    waiting = {r: {"compute_time_s": 2.0, "dt_fetch_s": 2.8} for r in (0, 1)}
    assert set(of_run(healthy(tmp_path / "s", rank_fields=waiting))) == {"loader-bound"}
