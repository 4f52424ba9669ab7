"""Reading files that grow: only the new, whatever it looks like."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import pytest

from validator.model.runbook import TrainerMetrics
from validator.supervise.capture import take_in
from validator.supervise.follow import RunFollower
from validator.supervise.tail import Tail

FILES = TrainerMetrics(csv="training.csv", heartbeat="heartbeat_rank{rank}.jsonl")


def _append(path: Path, text: str) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(text)


def test_a_tail_gives_each_whole_line_once(tmp_path: Path) -> None:
    path = tmp_path / "f"
    tail = Tail(path)
    assert tail.lines() == []
    _append(path, "one\ntw")
    assert tail.lines() == [b"one"]
    _append(path, "o\r\nthree\n")
    assert tail.lines() == [b"two", b"three"]
    assert tail.lines() == []


def test_a_file_that_was_replaced_or_cut_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "f"
    tail = Tail(path)
    _append(path, "old old old\n")
    tail.lines()
    path.write_text("new\n")
    assert tail.lines() == [b"new"]
    other = tmp_path / "g"
    other.write_text("replaced, and longer than before\n")
    other.replace(path)
    assert tail.lines() == [b"replaced, and longer than before"]


def test_a_long_file_can_be_joined_near_its_end(tmp_path: Path) -> None:
    path = tmp_path / "f"
    _append(path, "".join(f"{number}\n" for number in range(100_000)))
    lines = Tail(path, skip_to_last_bytes=1000).lines()
    assert len(lines) < 200
    assert lines[-1] == b"99999"


def test_columns_of_other_names_are_followed_by_those_that_are_given(tmp_path: Path) -> None:
    names = {"step": "update", "loss": "bits", "step_time_ms": "msec"}
    follower = RunFollower(out=tmp_path, metrics=TrainerMetrics(csv="progress.csv", names=names))
    _append(tmp_path / "progress.csv", "update,bits,msec\n4,2.5,85\n8,2.25,80\n")
    found = [(one.step, one.values) for one in follower.look()]
    assert [step for step, _ in found] == [4, 8]
    assert [values["loss"] for _, values in found] == [2.5, 2.25]
    assert found[0][1]["step_time_s"] == pytest.approx(0.085)


def test_who_shows_the_latest_values_reads_the_newest_lines_alone(tmp_path: Path) -> None:
    follower = RunFollower(out=tmp_path, metrics=FILES, newest=5)
    path = tmp_path / "training.csv"
    _append(path, "step,loss\n" + "".join(f"{step},0.5\n" for step in range(1, 1001)) + "1001,0.")
    _append(tmp_path / "heartbeat_rank0.jsonl", "".join(f'{{"step": {step}}}\n' for step in range(1, 1001)))
    records = follower.look()
    assert [record.step for record in records] == [*range(996, 1001)] * 2
    assert (follower.step, follower.latest) == (1000, {"loss": 0.5})
    assert records[4].end == path.stat().st_size - len("1001,0.")
    _append(path, "25\n")
    (record,) = follower.look()
    assert (record.step, record.values) == (1001, {"loss": 0.25})
    path.write_text("loss,lr,step\n" + "".join(f"0.1,9,{step}\n" for step in range(2000)), encoding="utf-8")
    follower.look()
    assert follower.latest == {"loss": 0.1, "lr": 9.0}, "by the header that it has now"


def test_rows_with_and_without_a_header(tmp_path: Path) -> None:
    follower = RunFollower(out=tmp_path, metrics=FILES)
    path = tmp_path / "training.csv"
    _append(path, "1,5.5,0.1,900\n")
    (record,) = follower.look()
    assert (record.step, record.values["loss"], record.values["toks_per_s"]) == (1, 5.5, 900.0)
    _append(path, "step,loss,grad_norm\n2,nan,0.5\ngarbage\n3,inf,x\n")
    second, third = follower.look()
    assert math.isnan(second.values["loss"])
    assert second.values["grad_norm"] == 0.5
    assert third.values == {"loss": math.inf}
    assert follower.step == 3


def test_heartbeats_of_every_rank(tmp_path: Path) -> None:
    follower = RunFollower(out=tmp_path, metrics=FILES, ranks=2)
    beat = {"ts": 1e9, "iso": "x", "pid": 42, "rank": 1, "step": 7, "msg": "progress", "gpu_mem_alloc": 100}
    _append(tmp_path / "heartbeat_rank1.jsonl", json.dumps(beat) + "\n[]\nnonsense\n")
    (record,) = follower.look(now=10.0)
    assert (record.rank, record.step, record.values["gpu_mem_alloc_mib"]) == (1, 7, 100.0)
    assert follower.by_rank[1].pid == 42
    assert follower.heartbeat_age_s(12.5) == 2.5


def test_the_step_before_the_first_is_no_progress(tmp_path: Path) -> None:
    follower = RunFollower(out=tmp_path, metrics=FILES, ranks=1)
    _append(tmp_path / "heartbeat_rank0.jsonl", '{"step": 0, "msg": "beat"}\n')
    follower.look()
    assert follower.step is None


def test_heartbeats_are_found_without_knowing_how_many(tmp_path: Path) -> None:
    for rank in (0, 3):
        _append(tmp_path / f"heartbeat_rank{rank}.jsonl", f'{{"step": {rank + 1}, "rank": {rank}}}\n')
    _append(tmp_path / "heartbeat_rankx.jsonl", '{"step": 99}\n')
    follower = RunFollower(out=tmp_path, metrics=FILES)
    follower.look()
    assert sorted(follower.by_rank) == [0, 3]
    assert follower.step == 4


def test_steps_printed_by_rank_0_under_torchrun(tmp_path: Path) -> None:
    follower = RunFollower(out=tmp_path, metrics=TrainerMetrics(stdout=r"step (?P<step>\d+) loss (?P<loss>\S+)"))
    log = tmp_path / "logs" / "ranks" / "none_x" / "attempt_0" / "0" / "stdout.log"
    log.parent.mkdir(parents=True)
    _append(log, "hello\nstep 5 loss 2.25 etc\n")
    (record,) = follower.look()
    assert (record.step, record.values) == (5, {"loss": 2.25})


def test_a_number_of_a_heading_is_no_step(tmp_path: Path) -> None:
    """`tokens/step: 512` was shown as step 512 of 2,000, and the patience for the first step was over with it."""
    pattern = r"(?i)step[s:=]*\s*{step}\b(?=(?:.*?loss[ :=]*{loss})?)(?=(?:.*?dt[ :=]*{step_time_ms} ?ms)?)"
    follower = RunFollower(out=tmp_path, metrics=TrainerMetrics(stdout=pattern))
    (tmp_path / "logs").mkdir()
    log = tmp_path / "logs" / "stdout.log"
    _append(log, "model: 0.9M parameters\ntokens/step: 512   total: 0.00B\nwarmup steps: 20\nsteps: 2000\n")
    assert follower.look() == ()
    assert follower.step is None
    _append(log, "step 1 | loss 5.61 | dt 210.1ms\nstep 2\n  loss 5.60\n")
    assert [(record.step, record.values.get("loss")) for record in follower.look()] == [(1, 5.61)]
    _append(log, "step 3 | loss 5.2 | dt 200ms\n")
    follower.look()
    assert follower.step == 3


def test_a_step_on_a_line_of_its_own_is_that_of_the_lines_below_it(tmp_path: Path) -> None:
    follower = RunFollower(out=tmp_path, metrics=TrainerMetrics(stdout=r"^step {step}$|^ +loss: {loss}"))
    (tmp_path / "logs").mkdir()
    _append(tmp_path / "logs" / "stdout.log", "step 7\n   loss: 2.5\n")
    (record,) = follower.look()
    assert (record.step, record.values) == (7, {"loss": 2.5})


def test_columns_are_found_by_name_wherever_they_stand(tmp_path: Path) -> None:
    """The first column of Lightning's table is the epoch, which stands at 0 for long."""
    follower = RunFollower(out=tmp_path, metrics=FILES)
    path = tmp_path / "training.csv"
    _append(path, "epoch,lr,Step,tokens_per_sec,train_loss\n0,0.001,9,512,2.5\n")
    (record,) = follower.look()
    assert (record.step, record.values["loss"], record.values["toks_per_s"]) == (9, 2.5, 512.0)
    path.write_text("epoch,lr,Step,tokens_per_sec,train_loss,val_loss\n0,0.001,9,512,2.5,\n0,,9,,,3.5\n1,0,19,500,2,\n")
    again, validated, later = follower.look()
    assert again == record, "written anew with a further column, it is read anew"
    assert validated.values == {"epoch": 0.0, "val_loss": 3.5}
    assert (later.step, later.values["loss"]) == (19, 2.0)


def test_rows_of_a_table_without_a_step_are_counted(tmp_path: Path) -> None:
    follower = RunFollower(out=tmp_path, metrics=FILES)
    _append(tmp_path / "training.csv", "train_loss,acc\n2.5,0.1\n2.4,0.2\n")
    assert [(one.step, one.values["loss"]) for one in follower.look()] == [(1, 2.5), (2, 2.4)]
    _append(tmp_path / "training.csv", "2.3,0.3\n")
    assert [one.step for one in follower.look()] == [3]


def test_a_table_that_is_joined_late_has_its_header_all_the_same(tmp_path: Path) -> None:
    follower = RunFollower(out=tmp_path, metrics=FILES, skip_to_last_bytes=100)
    rows = "".join(f"0,{step},2.5\n" for step in range(1000))
    _append(tmp_path / "training.csv", f"epoch,step,train_loss\n{rows}")
    assert follower.look()[-1].values == {"epoch": 0.0, "loss": 2.5}
    assert follower.step == 999


def test_lines_of_a_logger_are_followed_on_standard_error(tmp_path: Path) -> None:
    pattern = r"step: (?P<step>\d+) tps: (?P<toks_per_s>[\d,]+) (?P<step_time_ms>\d+) ms"
    follower = RunFollower(out=tmp_path, metrics=TrainerMetrics(stdout=pattern))
    (tmp_path / "logs").mkdir()
    _append(tmp_path / "logs" / "stdout.log", "hello\n")
    _append(tmp_path / "logs" / "stderr.log", "\x1b[31mstep: 5\x1b[39m tps: 51,200 250 ms\n")
    (record,) = follower.look()
    assert (record.step, record.values) == (5, {"toks_per_s": 51200.0, "step_time_s": 0.25})


def test_a_progress_bar_shows_its_steps_before_its_line_ends(tmp_path: Path) -> None:
    """A run that writes nothing but redrawn text was stopped as one without a step."""
    follower = RunFollower(out=tmp_path, metrics=TrainerMetrics(stdout="{step}/9 loss {loss}$"))
    log = tmp_path / "logs" / "stdout.log"
    log.parent.mkdir()
    _append(log, "\r1/9 loss 3.5\r1/9 loss 3.5\r2/9 loss 3")
    first, again = follower.look()
    assert (first.step, first.values, first.end) == (1, {"loss": 3.5}, 13)
    assert again.end == 26
    assert (first.row, again.row) == (False, False), "drawn twice is no row that repeats its step"
    _append(log, ".25\r\n3/9 loss 3\n")
    assert [(record.step, record.values["loss"], record.row) for record in follower.look()] == [
        (2, 3.25, True),
        (3, 3.0, True),
    ]


def test_batches_of_an_evaluation_are_no_rows_that_repeat_a_step(tmp_path: Path) -> None:
    """A healthy trainer whose evaluation prints as many lines as `frozen_rows` would be stopped."""
    follower = RunFollower(
        out=tmp_path, metrics=TrainerMetrics(stdout="^step {step} loss {loss}|^test loss {val_loss}")
    )
    log = tmp_path / "logs" / "stdout.log"
    log.parent.mkdir()
    _append(log, "step 1 loss 3.5\n" + "test loss 3.6\n" * 3 + "step 2 loss 3.4\n")
    assert [record.row for record in follower.look()] == [True, False, False, False, True]


def test_an_epoch_is_no_step(tmp_path: Path) -> None:
    follower = RunFollower(out=tmp_path, metrics=FILES)
    _append(tmp_path / "training.csv", "step,loss\n0.25,3\n0.5,2\n")
    assert follower.look() == ()
    assert follower.step is None


@pytest.mark.timeout(20)
@pytest.mark.parametrize("name", ["training.csv", "heartbeat_rank0.jsonl", "logs/stdout.log"])
def test_a_fifo_or_a_link_in_the_place_of_a_file_is_passed_over(tmp_path: Path, name: str) -> None:
    """A trainer that exchanges its table for a FIFO must not block its runner for ever."""
    out = tmp_path / "out"
    (out / "logs").mkdir(parents=True)
    (tmp_path / "elsewhere").write_text("step,loss\n1,2\n")
    metrics = TrainerMetrics(csv="training.csv", heartbeat="heartbeat_rank{rank}.jsonl", stdout=r"(?P<step>\d+)")
    follower = RunFollower(out=out, metrics=metrics)
    os.mkfifo(out / name)
    assert follower.look() == ()
    (out / name).unlink()
    (out / name).symlink_to(tmp_path / "elsewhere")
    assert follower.look() == ()


def test_a_link_is_followed_to_where_the_runbook_allows_it_and_becomes_a_copy(tmp_path: Path) -> None:
    """Some trainers write their metrics on a disk of their own and leave a link."""
    out, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
    out.mkdir()
    elsewhere.mkdir()
    (elsewhere / "real.csv").write_text("step,loss,lr,toks_per_s\n1,2,0.1,100\n")
    (tmp_path / "other.csv").write_text("step,loss,lr,toks_per_s\n9,2,0.1,100\n")
    (out / "training.csv").symlink_to(elsewhere / "real.csv")
    (out / "env.json").symlink_to(tmp_path / "other.csv")
    metrics = TrainerMetrics(csv="training.csv", env="env.json", link_roots=(str(elsewhere),))
    assert [record.step for record in RunFollower(out=out, metrics=metrics).look()] == [1]
    assert RunFollower(out=out, metrics=metrics.model_copy(update={"link_roots": ()})).look() == ()
    take_in(out, metrics, ranks=[0])
    assert not (out / "training.csv").is_symlink()
    assert (out / "training.csv").read_text() == (elsewhere / "real.csv").read_text()
    assert (out / "training.csv").stat().st_mtime_ns == (elsewhere / "real.csv").stat().st_mtime_ns
    assert (out / "env.json").is_symlink(), "it leads to no folder that was named"
