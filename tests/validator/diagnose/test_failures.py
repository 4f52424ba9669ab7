"""Runs that ended badly: why, as far as logs and outcome tell."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.validator.diagnose.cases import healthy, of_run, run_of, validation
from tests.validator.ingest.folders import START_S, outcome, write_csv, write_logs
from validator.diagnose import diagnose_run
from validator.judge import judge_phase
from validator.model.record import LastWords


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


@pytest.mark.parametrize(
    "line",
    [
        "[train][FATAL] non-finite loss detected — aborting run.",
        "Loss is nan, stopping training",
        "ERROR: NaN detected in loss",
        "loss is not finite: stop",
    ],
)
def test_a_trainer_that_stops_itself_for_nan_and_calls_it_success(tmp_path: Path, line: str) -> None:
    folder = healthy(tmp_path / "r")
    write_logs(folder, stdout=f"step 60 loss 2.1\n{line}\n", rank=0)
    finding = of_run(folder, ended=outcome(), steps=200)["nan-loss"]
    assert (finding.severity, finding.evidence[0].text) == ("veto", line)
    assert "ended-early" not in of_run(folder, ended=outcome(), steps=200), "one finding says why it ended"
    assert "nan-loss" not in of_run(folder, ended=outcome(), steps=60)  # it went on


@pytest.mark.parametrize(
    ("line", "seen"),
    [
        ("step 40 loss nan lr 0.001", True),
        ("epoch 2 | train_loss | nan", True),
        ("loss=nan", True),
        ("{'loss': nan, 'epoch': 1.0}", True),
        ("loss NaN", True),
        ("|    loss                 | nan          |", True),
        ("│ train/loss │ NaN │", True),
        ("| value_loss | nan |", True),
        ("[2/3][100/391]\tLoss_D: nan\tLoss_G: nan", True),
        ("loss_val: nan, loss_scale: nan", False),
        ('{"step": 4, "metrics": {"train/loss": NaN}}', True),
        ("val loss 2.1 | train loss: nan", True),
        ("loss NaN detection is on", False),
        ("val_loss improved from inf to 0.34", False),
        ("val_loss: nan", False),
        ("step 3 | val/ce_loss nan | best_loss=nan", False),
        ("| eval/loss | nan |", False),
        ("Validation loss: nan, validation perplexity: nan", False),
        ('{"step": 4, "eval": {"loss": NaN}}', False),
        ("loss: n/a", False),
        ("loss: nanogpt's own", False),
        ("| loss | nan-safe |", False),
    ],
)
def test_a_nan_is_seen_in_lines_that_no_pattern_reads(tmp_path: Path, line: str, seen: bool) -> None:
    """Of a trainer whose loss is not read, a NaN that it prints now and then, or at the end of an epoch."""
    folder = healthy(tmp_path / "r")
    rows = [row.split(",") for row in (folder / "training.csv").read_text().splitlines()]
    (folder / "training.csv").write_text("".join(",".join([row[0], *row[2:]]) + "\n" for row in rows))
    write_logs(folder, stdout=f"ready\n{line}\ndone\n", rank=0)
    assert ("nan-loss" in of_run(folder)) is seen


@pytest.mark.parametrize(
    ("line", "times", "seen"),
    [
        ("|    loss     | nan |", 3, True),
        ("  train/loss: NaN", 3, True),
        ("|    loss     | nan |", 2, False),
        ("step 4 | loss nan | skipping the update", 9, False),
        ("|    aux_loss     | nan |", 9, False),
        ("|    val_loss     | nan |", 9, False),
    ],
)
def test_rows_of_nan_beside_a_loss_by_steps(tmp_path: Path, line: str, times: int, seen: bool) -> None:
    """Another number was read as the loss: 196 rows of NaN were GO. A mixed-precision trainer that skips a step, or a
    table before its first value, is none."""
    folder = healthy(tmp_path / "r")
    write_logs(folder, stdout="ready\n" + times * f"{line}\n", rank=0)
    assert ("nan-loss" in of_run(folder)) is seen


def test_words_about_nan_are_no_nan(tmp_path: Path) -> None:
    folder = healthy(tmp_path / "r")
    write_logs(folder, stdout="nan_loss_check=True\nlogging_nan_inf_filter=True loss_scale=1\n", rank=0)
    found = of_run(folder, ended=outcome(), steps=200)
    assert ("nan-loss" in found, "ended-early" in found) == (False, True)


def test_a_run_past_its_budget_says_what_it_would_have_needed(tmp_path: Path) -> None:
    ended = outcome(rc=-15, reason="timeout", duration_s=600)
    finding = of_run(healthy(tmp_path / "r"), ended=ended, steps=300, timeout_s=600)["over-budget"]
    assert "at step 60 of 300 when its timeout of 10 min was over; at this pace all 300 need 50 min" in finding.message


def test_a_quiet_end_before_the_last_step_is_named(tmp_path: Path) -> None:
    """The next step was that of a rate that had not settled, since no finding said that the trainer had ended."""
    folder = healthy(tmp_path / "r", n=45)
    write_logs(folder, stdout="step 45 loss 2.1\nepoch 3 is over\n", rank=0)
    found = of_run(folder, ended=outcome(duration_s=225.0))
    assert found["ended-early"].message == "The trainer ended by itself at step 45 of 60, with exit code 0."
    assert any(e.text == "epoch 3 is over" for e in found["ended-early"].evidence)
    assert "crashed" not in found, "one finding for one fact"
    assert "ended-early" not in of_run(folder, steps=45)
    failed = of_run(folder, ended=outcome(rc=1))
    assert ("ended-early" in failed, "crashed" in failed) == (False, True)
    write_logs(folder, stderr="CUDA out of memory\n", rank=0)
    found = of_run(folder)
    assert set(found) == {"oom"}
    assert "in step 46" in found["oom"].message


@pytest.mark.parametrize(
    ("every", "steps", "early"), [(1, 60, False), (1, 200, True), (7, 425, False), (7, 427, True), (10, 605, False)]
)
def test_steps_behind_the_last_row_are_no_early_end(tmp_path: Path, every: int, steps: int, early: bool) -> None:
    """A trainer that prints every so many steps says nothing of those behind its last row. The verdict agrees."""
    write_csv(tmp_path, [100.0] * 60, steps=range(every, 61 * every, every))
    run = run_of(tmp_path, ended=outcome(), steps=steps)
    assert ("ended-early" in {one.code for one in diagnose_run(run)}) is early
    record = validation({"baseline": [run]}, kinds={"baseline": {"kind": "train", "steps": steps}})
    report = judge_phase(record.phases[0], validation=record, judged={})
    verdict = next(one for one in report.criteria if one.id == "baseline.steps")
    assert ((verdict.status, verdict.required) == ("FAIL", True)) is early


def test_rows_that_stop_while_the_process_continues_are_no_end(tmp_path: Path) -> None:
    """Rows with a loss of NaN were left out, and it said that the trainer had ended half-way."""
    folder = healthy(tmp_path / "r", n=30)
    write_logs(folder, stdout="step 30 loss 2.1\nSaving checkpoint to model_60.pth\n", rank=0)
    finding = of_run(folder, ended=outcome(duration_s=300.0))["ended-early"]
    assert finding.message.startswith("The rows stop at step 30 of 60, and the process continued for 2 min")
    ended = of_run(folder, ended=outcome(duration_s=160.0))["ended-early"]
    assert ended.message.startswith("The trainer ended by itself at step 30 of 60")


@pytest.mark.parametrize(("words", "code"), [("[W1] Warning: deprecated", "rank-left"), ("ValueError: x", "crashed")])
def test_a_rank_that_leaves_with_code_0_is_why_the_others_fail(tmp_path: Path, words: str, code: str) -> None:
    """Its last words were those of a deprecation, and the finding was `crashed`."""
    folder = healthy(tmp_path / "r")
    write_logs(folder, stderr="RuntimeError: Read error [127.0.0.1]: Connection reset by peer.\n", rank=0)
    (folder / "logs/telemetry.csv").write_text(f"ts,host_run_ranks\n{START_S + 5},2\n{START_S + 9},1\n")
    said = LastWords(rank=1, text=words)
    ended = outcome(rc=1, detail=f"exited with code 1 after 60 steps: {said}", words=said)
    found = of_run(folder, ended=ended, steps=100)
    assert {"rank-left", "crashed"} & found.keys() == {code}
    if code == "rank-left":
        assert found[code].message.startswith(
            "1 of 2 ranks (rank 1) ended without an error in its log at about step 60"
        )
