"""A run's whole folder: provenance, derived figures, logs, and what does not belong to it."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.validator.ingest.folders import (
    START_S,
    outcome,
    record,
    spec,
    write_arrivals,
    write_csv,
    write_env,
    write_heartbeat,
    write_logs,
)
from validator.ingest import collect_dir, collect_run
from validator.ingest.accounts import scan
from validator.ingest.clock import jumps_in_rows
from validator.ingest.read_log import ReadLog
from validator.kinds.registry import kind_of
from validator.model.result import Halt, InvalidWindow, LogHit, NamedTest, Result, Series, SourceFile
from validator.model.runbook import BUNDLED_METRICS, TrainerMetrics


def scalar(result: Result, name: str) -> object:
    return result.scalars[name].value


def codes(result: Result) -> set[str]:
    return {i.code for i in result.irregularities}


def healthy(folder: Path, *, ranks: int = 2, steps: int = 6) -> None:
    """What two ranks of the bundled trainer leave."""
    write_csv(folder, [100.0 + i for i in range(steps)], step_time_s=[0.5] * steps)
    write_env(
        folder,
        effective={"seq_len": 128, "batch_size": 2, "model": {"dim": 64}},
        world_size=ranks,
        tokens_per_step=512,
        time="2025-10-09T08:54:00+00:00",
    )
    (folder / "metrics.json").write_text('{"loss_last": 1.5, "mfu": null, "status": "done", "odd name": NaN}')
    for rank in range(ranks):
        own = [record(i, ts=4 + i, rank=rank, compute_time_s=0.2 * (rank + 1)) for i in range(1, steps + 1)]
        write_heartbeat(folder, [record(0, ts=3, rank=rank, msg="boot"), *own], rank=rank)


def test_everything_is_read_with_its_source(tmp_path: Path) -> None:
    healthy(tmp_path / "runs/a/r1")
    result = collect_run(spec(out="runs/a/r1"), run_dir=tmp_path, outcome=outcome())
    rate = result.series["toks_per_s"]
    assert (rate.unit, rate.values[-1], rate.source.path) == ("tok/s", 105.0, "runs/a/r1/training.csv")
    digest = hashlib.sha256((tmp_path / "runs/a/r1/training.csv").read_bytes()).hexdigest()
    assert rate.source.sha256 == digest
    assert {s.path.split("/")[-1] for s in result.sources} == {
        "training.csv",
        "env.json",
        "metrics.json",
        "heartbeat_rank0.jsonl",
        "heartbeat_rank1.jsonl",
    }
    assert scalar(result, "effective.seq_len") == 128
    assert scalar(result, "effective.dim") == 64  # a section's leaf goes by its own name
    assert scalar(result, "metrics.loss_last") == 1.5
    assert scalar(result, "metrics.status") == "done"
    assert str(scalar(result, "metrics.odd_name")) == "nan"
    assert result.environment["tokens_per_step"] == 512
    assert "effective" not in result.environment
    assert result.irregularities == ()


def test_derived_figures_follow_their_formulas(tmp_path: Path) -> None:
    healthy(tmp_path)
    result = collect_run(spec(), run_dir=tmp_path, outcome=outcome(duration_s=60))
    assert result.series["toks_per_s_per_rank"].values[-1] == 52.5
    assert scalar(result, "startup.first_step_s") == 5.0
    assert scalar(result, "steps.done") == 6
    assert scalar(result, "heartbeat.max_gap_s") == 2.0
    assert scalar(result, "straggler.score") == 0.5  # one of two ranks takes twice as long
    assert scalar(result, "outcome.rc") == 0
    assert scalar(result, "outcome.duration_s") == 60


def test_a_moved_folder_gives_the_same_result(tmp_path: Path) -> None:
    healthy(tmp_path / "one/r")
    before = collect_run(spec(out="r"), run_dir=tmp_path / "one", outcome=outcome())
    shutil.move(tmp_path / "one", tmp_path / "two")
    after = collect_run(spec(out="r"), run_dir=tmp_path / "two", outcome=outcome())
    assert after.scalars == before.scalars
    assert after.sources == before.sources
    assert after.irregularities == before.irregularities


def test_an_empty_folder_has_irregularities_and_nothing_else(tmp_path: Path) -> None:
    result = collect_run(spec(out="nowhere"), run_dir=tmp_path, outcome=outcome(rc=1))
    assert codes(result) == {"missing-file"}
    assert {i.path for i in result.irregularities} == {
        "nowhere/training.csv",
        "nowhere/env.json",
        "nowhere/metrics.json",
        "nowhere/heartbeat_rank{rank}.jsonl",
    }
    assert dict(result.series) == {}
    assert set(result.scalars) == {"outcome.rc", "outcome.duration_s"}


def test_the_older_trainer_is_served_and_what_it_lacks_stays_unknown(tmp_path: Path) -> None:
    write_csv(tmp_path, [17.0, 23.0, 38.0], header=False)
    write_heartbeat(tmp_path, [record(i, ts=105 * i) for i in range(1, 4)])
    result = collect_dir(tmp_path)
    assert result.series["toks_per_s"].values.tolist() == [17, 23, 38]
    assert result.series["step_time_s"].values.tolist() == [105, 105]  # by the heartbeat's clock
    assert result.effective is None
    assert result.irregularities == ()


def test_step_time_and_rate_complete_each_other(tmp_path: Path) -> None:
    write_csv(tmp_path, [100.0, 200.0])
    write_env(tmp_path, effective={}, tokens_per_step=512)
    assert collect_dir(tmp_path).series["step_time_s"].values.tolist() == [5.12, 2.56]


def test_a_rank_that_left_no_heartbeat_is_named(tmp_path: Path) -> None:
    healthy(tmp_path)
    (tmp_path / "heartbeat_rank1.jsonl").unlink()
    result = collect_run(spec(), run_dir=tmp_path, outcome=outcome())
    assert [(i.code, i.message) for i in result.irregularities] == [("missing-rank", "no heartbeat of rank 1")]


def test_another_number_of_ranks_is_noted(tmp_path: Path) -> None:
    healthy(tmp_path)
    result = collect_run(spec(nproc=4), run_dir=tmp_path, outcome=outcome())
    assert "world-size" in codes(result)
    assert result.evidence.world_size == 2


@pytest.mark.parametrize("told", [True, False], ids=["by env.json", "by heartbeats"])
def test_a_plain_process_may_start_its_workers_itself(told: bool, tmp_path: Path) -> None:
    """They were called ranks that nobody started, and their heartbeats files of another run."""
    healthy(tmp_path, ranks=4)
    if not told:
        write_env(tmp_path, effective={}, tokens_per_step=512)
    plain = spec(nproc=0, launcher="python")
    result = collect_run(plain, run_dir=tmp_path, outcome=outcome())
    assert result.irregularities == ()
    assert result.evidence.world_size == 4
    assert result.series["toks_per_s_per_rank"].values[0] == 25.0
    (tmp_path / "heartbeat_rank2.jsonl").unlink()
    assert codes(collect_run(plain, run_dir=tmp_path, outcome=outcome())) == {"missing-rank"}


def test_a_rank_that_the_launcher_did_not_start_is_foreign(tmp_path: Path) -> None:
    healthy(tmp_path, ranks=3)
    write_env(tmp_path, effective={}, tokens_per_step=512)
    result = collect_run(spec(), run_dir=tmp_path, outcome=outcome())
    assert [i.message for i in result.irregularities] == ["heartbeat of rank 2 in a run of 2 ranks"]


@pytest.mark.parametrize("name", ["training.csv", "env.json", "heartbeat_rank0.jsonl"])
def test_a_file_from_before_the_start_is_foreign(tmp_path: Path, name: str) -> None:
    healthy(tmp_path)
    os.utime(tmp_path / name, (START_S - 3600, START_S - 3600))
    result = collect_run(spec(), run_dir=tmp_path, outcome=outcome())
    assert [(i.code, i.path) for i in result.irregularities] == [("foreign-results", name)]
    assert "3600 s before" in result.irregularities[0].message


def test_records_from_before_the_start_are_foreign_even_in_a_copy(tmp_path: Path) -> None:
    """A copy has a new time of change; what the file says of its own time stays."""
    healthy(tmp_path)
    result = collect_run(spec(), run_dir=tmp_path, outcome=outcome(started_s=START_S + 1000))
    paths = {i.path for i in result.irregularities if i.code == "foreign-results"}
    assert paths == {"env.json", "heartbeat_rank0.jsonl", "heartbeat_rank1.jsonl"}


@pytest.mark.parametrize("target", ["../../other/training.csv", "/etc/passwd", "env.json", "nowhere", "training.csv"])
def test_a_declared_file_that_is_a_link_is_not_read_and_said(tmp_path: Path, target: str) -> None:
    healthy(tmp_path / "other")
    healthy(tmp_path / "run/out")
    (tmp_path / "run/out/training.csv").unlink()
    (tmp_path / "run/out/training.csv").symlink_to(target)
    result = collect_run(spec(out="out"), run_dir=tmp_path / "run", outcome=outcome())
    (noted,) = (i for i in result.irregularities if i.path == "out/training.csv")
    assert noted.code == "missing-file"
    assert "link_roots" in noted.message
    assert "out/training.csv" not in {source.path for source in result.sources}


def test_links_that_nobody_declared_are_passed_over(tmp_path: Path) -> None:
    """`latest` beside checkpoints, a cache, a log that is kept elsewhere."""
    healthy(tmp_path / "out")
    expected = collect_run(spec(out="out"), run_dir=tmp_path, outcome=outcome())
    (tmp_path / "secret.log").write_text("CUDA out of memory\n")
    (tmp_path / "out/other.log").symlink_to(tmp_path / "secret.log")
    (tmp_path / "out/stackdump_1.txt").symlink_to(tmp_path / "secret.log")
    (tmp_path / "out/latest").symlink_to("nowhere")
    (tmp_path / "out/.nfs0001").write_text("of a file that is still open")
    result = collect_run(spec(out="out"), run_dir=tmp_path, outcome=outcome())
    assert result.irregularities == expected.irregularities == ()
    assert repr(result.evidence) == repr(expected.evidence)


@pytest.mark.timeout(30)
@pytest.mark.parametrize("name", ["training.csv", "env.json", "heartbeat_rank0.jsonl", "logs/stdout.log", "other.log"])
def test_a_fifo_in_the_place_of_a_file_blocks_nobody(tmp_path: Path, name: str) -> None:
    healthy(tmp_path)
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    result = collect_run(spec(), run_dir=tmp_path, outcome=outcome())
    assert name not in {source.path for source in result.sources}
    assert collect_dir(tmp_path)


@pytest.mark.timeout(60)
def test_a_pattern_that_backtracks_for_ever_is_ended_and_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("validator.model.budget._TICK_S", 0.2)
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs/stdout.log").write_text("a" * 5000 + "!\n")
    metrics = TrainerMetrics(stdout=r"(?P<step>(?:a+)+)$")
    result = collect_run(spec(metrics=metrics), run_dir=tmp_path, outcome=outcome())
    assert any("takes too long" in i.message and i.code == "no-match" for i in result.irregularities)


def test_a_halt_is_stale_only_if_it_is_older_than_the_start(tmp_path: Path) -> None:
    healthy(tmp_path)
    (tmp_path / ".HALT").write_text("loss is NaN\n")
    (tmp_path / ".anomaly_type").write_text("nan_loss")
    result = collect_run(spec(), run_dir=tmp_path, outcome=outcome(rc=3))
    assert result.evidence.halt == Halt(".HALT", "loss is NaN", "nan_loss", stale=False)
    os.utime(tmp_path / ".HALT", (START_S - 60, START_S - 60))
    result = collect_run(spec(), run_dir=tmp_path, outcome=outcome(rc=3))
    assert result.evidence.halt is not None
    assert result.evidence.halt.stale
    assert codes(result) == {"stale-halt"}


def test_silence_lasts_to_the_end_of_a_run_that_was_stopped(tmp_path: Path) -> None:
    healthy(tmp_path)
    stopped = collect_run(spec(), run_dir=tmp_path, outcome=outcome(rc=-15, reason="stalled", duration_s=200))
    assert scalar(stopped, "heartbeat.max_gap_s") == pytest.approx(190)
    ended = collect_run(spec(), run_dir=tmp_path, outcome=outcome(duration_s=200))
    assert scalar(ended, "heartbeat.max_gap_s") == 2.0


def test_a_gap_longer_than_the_whole_run_is_a_jump_of_the_clock(tmp_path: Path) -> None:
    healthy(tmp_path)
    write_heartbeat(tmp_path, [record(1, ts=5), record(2, ts=6), record(3, ts=90_000)])
    result = collect_run(spec(), run_dir=tmp_path, outcome=outcome(duration_s=30))
    assert scalar(result, "heartbeat.max_gap_s") == 2.0  # rank 1's


def test_a_clock_that_is_set_spoils_the_steps_around_it(tmp_path: Path) -> None:
    ticks = [5, 6, 7, -3600, -3599, 90_000]
    write_heartbeat(tmp_path, [record(i, ts=t) for i, t in enumerate(ticks, start=1)])
    result = collect_run(spec(nproc=0), run_dir=tmp_path, outcome=outcome(duration_s=30))
    windows = result.evidence.invalid_windows
    assert [(w.first_step, w.last_step) for w in windows] == [(3, 4), (5, 6)]
    assert windows[0].reason == "the wall clock was set back by 3607 s"
    assert result.series["step_time_s"].steps.tolist() == [2, 3, 5]
    assert result.series["step_time_s"].values.tolist() == [1, 1, 1]


def test_a_time_per_step_without_rows_holds_no_jump() -> None:
    """The clock of a bar that was watched stood still at first: an internal error."""
    none = Series(
        name="step_time_s",
        unit="s",
        steps=np.empty(0, np.int64),
        values=np.empty(0),
        source=SourceFile(path="logs/stderr.log", sha256="", bytes=0),
    )
    assert jumps_in_rows({"step_time_s": none, "toks_per_s": none}, None, limit_s=30.0) == []


def test_the_machines_samples_are_laid_onto_steps(tmp_path: Path) -> None:
    """Steps 1 to 6 end 5 to 10 s after the start; rank 0's clock tells."""
    healthy(tmp_path)
    rows = [(4.0, 5, 0), (5.2, 10, 0), (5.8, 30, 0), (7.5, 50, 4), (8.5, 60, 0x28), (9.5, 70, 0x40), (99.0, 99, 8)]
    lines = [f"{START_S + t},{cpu},,{mask}" for t, cpu, mask in rows]
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs/telemetry.csv").write_text(
        "ts,host_cpu_pct,disk_free_mib,gpu0_throttle_mask\n" + "\n".join(lines) + "\n17600000"
    )
    result = collect_run(spec(), run_dir=tmp_path, outcome=outcome())
    cpu = result.series["telemetry.host_cpu_pct"]
    assert cpu.steps.tolist() == [2, 4, 5, 6]
    assert cpu.values.tolist() == [20, 50, 60, 70]
    assert cpu.unit == "%"
    assert result.series["host_cpu_pct"].values.tolist() == cpu.values.tolist()
    assert not {"telemetry.disk_free_mib", "gpu_power_w"} & result.series.keys()
    reason = "gpu0 throttled: hardware slowdown, software thermal slowdown"
    assert result.evidence.invalid_windows == [InvalidWindow(5, 6, reason, "logs/telemetry.csv")]
    assert result.irregularities == ()


def test_foreign_processes_and_driver_events_spoil_the_steps_beside_them(tmp_path: Path) -> None:
    healthy(tmp_path)
    rows = [(5.5, "", 0), (6.5, "", 1), (7.5, "", 1), (8.5, 79, 0), (9.5, 63, 0)]
    lines = [f"{START_S + t},{xid},{foreign}" for t, xid, foreign in rows]
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs/telemetry.csv").write_text("ts,xid,gpu1_foreign_processes\n" + "\n".join(lines) + "\n")
    stranger = {"ts": START_S + 6.4, "gpu": 1, "pid": 4711, "name": "/usr/bin/python3", "used_mib": 2048}
    (tmp_path / "logs/gpu_processes.jsonl").write_text(json.dumps(stranger) + "\n{torn")
    windows = collect_run(spec(), run_dir=tmp_path, outcome=outcome()).evidence.invalid_windows
    assert [(one.first_step, one.last_step, one.reason) for one in windows] == [
        (5, 5, "driver event Xid 79: the GPU has fallen off the bus; reboot the machine"),
        (3, 4, "gpu1 was used by another program: pid 4711 (/usr/bin/python3, 2048 MiB)"),
    ]


@pytest.mark.parametrize("burst", [False, True])
def test_without_heartbeats_the_samples_are_laid_onto_the_rows_as_they_arrive(tmp_path: Path, burst: bool) -> None:
    """Rows that come together, as from a buffer, say of no step when it ended."""
    write_csv(tmp_path, [100.0] * 6)
    write_arrivals(tmp_path, [1.0, *([0.0] * 4 if burst else [1.0] * 4), 1.0])  # step 1 ends 4 s after the start
    rows = [(3.0, 10, 0), (5.5, 20, 4), (6.5, 30, 0x28), (8.5, 40, 0)]
    lines = [f"{START_S + t},{cpu},{mask}" for t, cpu, mask in rows]
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs/telemetry.csv").write_text("ts,host_other_cpu_pct,gpu0_throttle_mask\n" + "\n".join(lines) + "\n")
    result = collect_run(spec(), run_dir=tmp_path, outcome=outcome())
    windows = [(one.first_step, one.last_step) for one in result.evidence.invalid_windows]
    if burst:
        assert "telemetry.host_other_cpu_pct" not in result.series
        assert windows == [(1, 6)]
    else:
        assert result.series["telemetry.host_other_cpu_pct"].steps.tolist() == [3, 4, 6]
        assert windows == [(4, 4)]


@pytest.mark.parametrize("text", ["", "\n", "ts,x\n", "a,b\n1,2\n", "ts,gpu0_throttle_mask\nnan,nan\ninf,1e400\n"])
def test_broken_telemetry_gives_nothing(tmp_path: Path, text: str) -> None:
    healthy(tmp_path)
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs/telemetry.csv").write_text(text)
    result = collect_run(spec(), run_dir=tmp_path, outcome=outcome())
    assert not any(name.startswith("telemetry.") for name in result.series)
    assert not result.evidence.invalid_windows


def test_steps_counted_from_zero_are_counted_right(tmp_path: Path) -> None:
    write_csv(tmp_path, [100.0, 100.0, 100.0], steps=[0, 1, 2])
    assert scalar(collect_dir(tmp_path), "steps.done") == 3


def test_a_run_in_progress_has_no_outcome_and_no_start(tmp_path: Path) -> None:
    healthy(tmp_path)
    result = collect_run(spec(), run_dir=tmp_path, outcome=None)
    assert "outcome.rc" not in result.scalars
    assert "startup.first_step_s" not in result.scalars


def test_broken_json_is_an_irregularity(tmp_path: Path) -> None:
    healthy(tmp_path)
    (tmp_path / "env.json").write_text('{"effective": {"seq_len": 128')
    (tmp_path / "metrics.json").write_text("[1, 2]")
    result = collect_run(spec(), run_dir=tmp_path, outcome=outcome())
    assert codes(result) == {"not-json"}
    assert result.effective is None


def test_hostile_texts_lose_what_could_do_harm(tmp_path: Path) -> None:
    healthy(tmp_path)
    (tmp_path / "env.json").write_text(
        '{"effective": {"data": "\\ud800\\u001b[31mred\\u202e"}, "gpu_name": "a\\u0000b"}'
    )
    result = collect_run(spec(), run_dir=tmp_path, outcome=outcome())
    assert result.effective == {"data": "\ufffdred"}
    assert result.environment == {"gpu_name": "ab"}


def test_further_contract_files_are_read(tmp_path: Path) -> None:
    healthy(tmp_path)
    (tmp_path / "k_stats.csv").write_text("step,k_mean\n1,3.5\n")
    (tmp_path / "sdpa_audit.json").write_text('{"cmp": "flash"}')
    (tmp_path / "mem_step1.json").write_text('{"gpu_mem_total_mib": 81920}')
    result = collect_run(spec(), run_dir=tmp_path, outcome=outcome())
    assert result.series["k_stats.k_mean"].values.tolist() == [3.5]
    assert result.evidence.audit_entries == ("cmp",)
    assert result.evidence.gpu_mem_total_mib == 81920


def test_a_metric_in_the_table_wins_over_the_heartbeat(tmp_path: Path) -> None:
    write_csv(tmp_path, [1.0], losses=[5.0])
    write_heartbeat(tmp_path, [record(1, ts=1, loss=6.0, grad_norm=2.0)])
    result = collect_dir(tmp_path)
    assert result.series["loss"].values.tolist() == [5.0]
    assert result.series["grad_norm"].source.path == "heartbeat_rank0.jsonl"


def test_only_what_is_declared_is_expected(tmp_path: Path) -> None:
    write_csv(tmp_path, [1.0, 2.0])
    only = TrainerMetrics(csv="training.csv", extra={"lr": ""})
    assert codes(collect_run(spec(metrics=only), run_dir=tmp_path, outcome=outcome())) == set()


# ------------------------------------------------------------------------------------------------------------- logs


STDOUT = TrainerMetrics(stdout=r"step (?P<step>\d+).*loss (?P<loss>[\d.naif]+)(?:.*tok/s (?P<toks_per_s>[\d.,]+))?")


def test_series_are_read_from_what_rank_0_prints(tmp_path: Path) -> None:
    text = "hello\nstep 1 loss 3.5 tok/s 1,100.5\nstep 2 loss nan\r\nstep 3 loss 3.0 tok/s 1200"
    write_logs(tmp_path, stdout=text, rank=0)
    write_logs(tmp_path, stdout="step 9 loss 9 tok/s 9", rank=1)
    result = collect_run(spec(metrics=STDOUT), run_dir=tmp_path, outcome=outcome())
    assert result.series["toks_per_s"].steps.tolist() == [1, 3]
    assert result.series["toks_per_s"].values.tolist() == [1100.5, 1200.0]
    assert str(result.series["loss"].values.tolist()) == "[3.5, nan, 3.0]"
    assert result.series["loss"].source.path == "logs/ranks/none_abc/attempt_0/0/stdout.log"
    assert result.irregularities == ()


def test_a_pattern_that_never_matches_is_noted(tmp_path: Path) -> None:
    write_logs(tmp_path, stdout="epoch 1\n")
    assert codes(collect_run(spec(metrics=STDOUT), run_dir=tmp_path, outcome=outcome())) == {"no-match"}
    assert codes(collect_run(spec(out="x", metrics=STDOUT), run_dir=tmp_path, outcome=outcome())) == {"missing-file"}


def test_the_last_match_of_a_commands_groups_counts(tmp_path: Path) -> None:
    write_logs(tmp_path, stdout="rate 3 GB/s\nname a\nrate 1,250.5 GB/s\n")
    command = spec(kind="command", launcher="exec", stdout_groups=r"rate (?P<bw>[\d.,]+)|name (?P<name>\w+)")
    result = collect_run(command, run_dir=tmp_path, outcome=outcome())
    assert (scalar(result, "metrics.bw"), scalar(result, "metrics.name")) == (1250.5, "a")


def test_wanted_texts_are_found_with_their_line(tmp_path: Path) -> None:
    write_logs(tmp_path, stdout="a\n[ddp] gradient compression enabled: bf16\n", rank=0)
    wanted = ("[ddp] gradient compression enabled", "absent")
    result = collect_run(spec(log_contains=wanted), run_dir=tmp_path, outcome=outcome())
    assert result.evidence.log_contains == {
        wanted[0]: LogHit("logs/ranks/none_abc/attempt_0/0/stdout.log", 2, wanted[0]),
        "absent": None,
    }


def test_of_a_failed_run_the_log_that_tells_why_is_shown(tmp_path: Path) -> None:
    write_logs(tmp_path, stdout="all fine\n", stderr="sigterm\n", rank=0)
    write_logs(tmp_path, stdout="all fine\n", stderr="Traceback\n\x1b[31mValueError: boom\n", rank=1)
    error = '{"message": {"message": "ValueError: boom", "extraInfo": {"timestamp": "5"}}}'
    (tmp_path / "logs/ranks/none_abc/attempt_0/1/error.json").write_text(error)
    result = collect_run(spec(), run_dir=tmp_path, outcome=outcome(rc=1))
    assert result.log_tail == ("Traceback", "ValueError: boom")
    assert result.log_path == "logs/ranks/none_abc/attempt_0/1/stderr.log"
    assert [(one.rank, one.message) for one in result.evidence.errors] == [(1, "ValueError: boom")]
    assert collect_run(spec(), run_dir=tmp_path, outcome=outcome()).log_tail == ("all fine",)


def test_of_several_attempts_of_torchrun_the_last_one_counts(tmp_path: Path) -> None:
    for attempt, text in ((2, "old"), (10, "new")):
        folder = tmp_path / f"logs/ranks/none_abc/attempt_{attempt}/0"
        folder.mkdir(parents=True)
        (folder / "stdout.log").write_text(text)
    assert collect_run(spec(), run_dir=tmp_path, outcome=outcome()).log_tail == ("new",)


def test_signs_of_trouble_carry_file_and_line(tmp_path: Path) -> None:
    write_logs(tmp_path, stderr="x\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB\n" * 40, rank=1)
    result = collect_run(spec(), run_dir=tmp_path, outcome=outcome(rc=1))
    hits = result.evidence.log_hits["oom"]
    assert [(hit.path, hit.line) for hit in hits] == [("logs/ranks/none_abc/attempt_0/1/stderr.log", 2)]
    assert "Tried to allocate" in hits[0].text


def test_trouble_is_seen_at_both_ends_of_a_log_that_is_too_long(tmp_path: Path) -> None:
    filler = "x" * 99 + "\n"
    middle = "OSError: [Errno 28] No space left on device\n"
    text = "NCCL WARN a\n" + filler * 100_000 + middle + filler * 100_000 + "MemoryError\n"
    write_logs(tmp_path, stdout=text, rank=0)
    hits = collect_run(spec(), run_dir=tmp_path, outcome=outcome(rc=1)).evidence.log_hits
    assert (hits["nccl"][0].line, hits["oom"][0].line) == (1, None)
    assert "disk_full" not in hits


def test_a_line_without_end_gives_only_what_surrounds_the_sign(tmp_path: Path) -> None:
    write_logs(tmp_path, stdout="secret " + "y" * 50_000 + " CUDA out of memory " + "z" * 50_000, rank=0)
    hits = collect_run(spec(), run_dir=tmp_path, outcome=outcome(rc=1)).evidence.log_hits
    assert "secret" not in hits["oom"][0].text


def test_an_ordinary_log_shows_no_trouble(tmp_path: Path) -> None:
    text = """step 5/300 loss 5.1 lr 1e-4 grad_norm 1.2 12,345 tok/s 41.2 ms/step
    NCCL version 2.21.5+cuda12.4
    using 2x A100, shape [1, 2048], memory 12.3 GiB of 80 GiB, port 29500
    halting criterion: none; 3 warnings
    """
    write_logs(tmp_path, stdout=text, rank=0)
    assert not collect_run(spec(), run_dir=tmp_path, outcome=outcome()).evidence.log_hits


# ------------------------------------------------------------------------------------------------------------ tests


JUNIT = """<?xml version="1.0"?><testsuites><testsuite tests="4" failures="0">
<testcase classname="a.b" name="one"/><testcase classname="a.b" name="two"><skipped message="no CUDA"/></testcase>
<testcase classname="a.b" name="three"><failure message="1 != 2">trace</failure></testcase>
<testcase classname="a" name="four"><error>boom</error></testcase></testsuite></testsuites>"""


def test_tests_are_counted_one_by_one(tmp_path: Path) -> None:
    """The suite's own summary says that none failed; the cases say otherwise."""
    (tmp_path / "junit.xml").write_text(JUNIT)
    tests, read = spec(kind="pytest", launcher="python"), kind_of("pytest").read
    result = collect_run(tests, run_dir=tmp_path, outcome=outcome(), read=read)
    counts = {name: value.value for name, value in result.scalars.items() if name.startswith("tests.")}
    assert counts == {
        "tests.passed": 1,
        "tests.failed": 1,
        "tests.errors": 1,
        "tests.skipped": 1,
        "tests.total": 4,
    }
    assert result.evidence.tests is not None
    assert result.evidence.tests.skipped == (NamedTest("a.b::two", "no CUDA"),)
    assert result.evidence.tests.failed == (NamedTest("a.b::three", "1 != 2"),)


@pytest.mark.parametrize("text", ["", "<a", '<!DOCTYPE x [<!ENTITY a "b">]><x>&a;</x>'])
def test_a_broken_report_of_tests_counts_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / "junit.xml").write_text(text)
    tests, read = spec(kind="pytest", launcher="python"), kind_of("pytest").read
    result = collect_run(tests, run_dir=tmp_path, outcome=outcome(), read=read)
    assert codes(result) == {"not-junit"}
    assert not any(name.startswith("tests.") for name in result.scalars)


def test_inspecting_uses_the_contracts_names(tmp_path: Path) -> None:
    healthy(tmp_path)
    own = collect_dir(tmp_path)
    declared = collect_dir(tmp_path, metrics=BUNDLED_METRICS)
    assert own.scalars == declared.scalars
    (tmp_path / "nothing").mkdir()
    assert codes(collect_dir(tmp_path / "nothing")) == {"missing-file"}


def test_a_clock_that_is_set_shows_in_the_rows_of_a_trainer_without_heartbeats(tmp_path: Path) -> None:
    """Times taken by the wall clock hold the jump itself; the rows are left out, a wrong sign is none."""
    times = [0.5] * 100
    times[40], times[70] = -3599.5, 7200.5
    write_csv(tmp_path, [1000.0] * 100, step_time_s=times)
    own = spec(metrics=TrainerMetrics(csv="training.csv"))
    windows = collect_run(own, run_dir=tmp_path, outcome=outcome(duration_s=60.0)).evidence.invalid_windows
    assert [(one.first_step, one.last_step, one.reason) for one in windows] == [
        (41, 41, "the wall clock was set back by 3600 s, by step_time_s"),
        (71, 71, "the wall clock was set forth by 7200 s, by step_time_s"),
    ]
    times[40], times[70] = -0.5, 0.5
    write_csv(tmp_path, [1000.0] * 100, step_time_s=times)
    assert not collect_run(own, run_dir=tmp_path, outcome=outcome(duration_s=60.0)).evidence.invalid_windows


def test_arrivals_are_kept_by_source_and_checksummed(tmp_path: Path) -> None:
    write_csv(tmp_path, [1000.0] * 6)
    write_arrivals(tmp_path, [1.0, 1.0, 2.0, 1.0, 5.0, 1.0], steps=[1, 2, 3, 4, 2, 3])
    with (tmp_path / "arrivals.jsonl").open("a") as file:
        file.write('not a stamp\n{"source": "training.csv", "step": 1e400, "s": 1}\n')
    result = collect_run(spec(), run_dir=tmp_path, outcome=outcome())
    steps, seconds = result.evidence.arrivals["training.csv"]
    assert steps.tolist() == [1, 2, 3]
    assert seconds.tolist() == [4.0, 13.0, 14.0], "what was done again after a fall counts from then"
    assert "arrivals.jsonl" in {source.path for source in result.sources}
    assert any("2 lines are no arrival stamps" in i.message for i in result.irregularities)


@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    "name", ["training.csv", "env.json", "heartbeat_rank0.jsonl", "logs/stdout.log", "stackdump_1.txt", "x.log"]
)
def test_a_sparse_file_without_end_is_not_read(tmp_path: Path, name: str) -> None:
    healthy(tmp_path)
    (tmp_path / name).parent.mkdir(exist_ok=True)
    with (tmp_path / name).open("wb") as file:
        file.truncate(100 * 2**30)
    result = collect_run(spec(), run_dir=tmp_path, outcome=outcome())
    assert name not in {source.path for source in result.sources}


@pytest.mark.timeout(30)
def test_a_log_of_digits_is_looked_through_in_time(tmp_path: Path) -> None:
    """Each line of digits beside a word of a sign once took a second."""
    digits = "1," * 4000
    (tmp_path / "run.log").write_text(f"{digits} speedup {digits}\n" * 60 + "3.5x speedup over eager\n")
    read_log = ReadLog(tmp_path)
    assert [hit.text for hit in scan((tmp_path / "run.log",), read_log)["speedup"]] == ["3.5x speedup over eager"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("probe.json", '{"ranks": 5, "rates": [1]}'),
        ("probe.json", '{"ranks": [null, {"copy": []}], "rates": {"all_reduce": 3}}'),
        ("logs/telemetry.csv", ""),
        ("logs/telemetry.csv", "t,gpu0_pcie_gen\n1,²\n"),
    ],
)
def test_a_probe_that_is_none_measures_nothing(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "probe.json").write_text('{"rates": {}}')
    (tmp_path / name).write_text(text, encoding="utf-8")
    probe, read = spec(kind="preflight", steps=None), kind_of("preflight").read
    result = collect_run(probe, run_dir=tmp_path, outcome=None, read=read)
    assert not [name for name in result.scalars if name.startswith("probe.")]


def leave_nodes(folder: Path, *, group_of: dict[str, tuple[int, int]], failed: str) -> None:
    """`nodes.json` of nodes by their group and rank, one of which exited with 7."""
    nodes = [
        {"node": node, "group": group, "rank": rank, "ended": "exited", "rc": 7 if node == failed else 0}
        for node, (group, rank) in group_of.items()
    ]
    (folder / "nodes.json").write_text(json.dumps({"schema": 1, "nodes": nodes}))


@pytest.mark.parametrize(
    ("groups", "group_of", "place"),
    [
        (((0, 1),), {"n1": (0, 0), "n2": (0, 1)}, "nodes/n2"),
        (((0,), (1,)), {"n1": (0, 0), "n2": (1, 0)}, "g1"),
    ],
    ids=["together", "each"],
)
def test_the_log_of_a_run_across_nodes_is_that_of_the_node_that_failed(
    tmp_path: Path, groups: tuple[tuple[int, ...], ...], group_of: dict[str, tuple[int, int]], place: str
) -> None:
    out = tmp_path / "runs/a"
    own = out if len(groups) == 1 else out / "g0"
    for folder, text in ((own, "step 5\n"), (out / place, "torch.OutOfMemoryError: CUDA out of memory\n")):
        (folder / "logs").mkdir(parents=True)
        (folder / "logs/stdout.log").write_text("hello\n")
        (folder / "logs/stderr.log").write_text(text)
    leave_nodes(out, group_of=group_of, failed="n2")
    result = collect_run(spec(groups=groups, out="runs/a"), run_dir=tmp_path, outcome=outcome(rc=7))
    assert result.log_path == f"runs/a/{place}/logs/stderr.log"
    assert result.log_tail == ("torch.OutOfMemoryError: CUDA out of memory",)
    if len(groups) == 1:
        assert [hit.path for hit in result.evidence.log_hits["oom"]] == [result.log_path]
