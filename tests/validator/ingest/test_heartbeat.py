"""Heartbeats, whole, damaged and hostile."""

from __future__ import annotations

import json
import math
from pathlib import Path

from tests.validator.ingest.folders import START_S, record, write_heartbeat
from validator.ingest.heartbeat import Heartbeat, find_heartbeats, read_heartbeat
from validator.ingest.read_log import ReadLog


def read(path: Path, *, rank: int = 0) -> tuple[Heartbeat | None, dict[str, str]]:
    read_log = ReadLog(path.parent)
    heartbeat = read_heartbeat(path, rank, read_log)
    return heartbeat, {i.code: i.message for i in read_log.irregularities}


def healthy(n: int = 5) -> list[dict[str, object]]:
    boot = [record(0, ts=0, msg="boot"), record(0, ts=2, msg="loader_ready")]
    steps = [record(i, ts=2 + i, loss=3 - i / 10, compute_time_s=0.9) for i in range(1, n + 1)]
    return [*boot, *steps, record(n, ts=3 + n, msg="done")]


def test_progress_becomes_columns_and_marks(tmp_path: Path) -> None:
    heartbeat, irregular = read(write_heartbeat(tmp_path, healthy()))
    assert heartbeat.columns["loss"][0].tolist() == [1, 2, 3, 4, 5]
    assert heartbeat.step_times_s[1].tolist() == [START_S + t for t in (3, 4, 5, 6, 7)]
    assert (heartbeat.last_step, heartbeat.last_msg, heartbeat.done, heartbeat.pids) == (5, "done", True, (100,))
    assert heartbeat.gaps.longest == 2.0
    assert irregular == {}


def test_beats_of_the_background_thread_are_no_progress(tmp_path: Path) -> None:
    beats = [record(5, ts=20 + i, msg="beat", gpu_mem_alloc=1.0) for i in range(3)]
    heartbeat, _ = read(write_heartbeat(tmp_path, [*healthy()[:-1], *beats]))
    assert heartbeat.step_times_s[0].tolist() == [1, 2, 3, 4, 5]
    assert "gpu_mem_alloc_mib" not in heartbeat.columns
    assert not heartbeat.done


def test_memory_gets_its_unit_and_nested_values_their_names(tmp_path: Path) -> None:
    extra = {"gpu_mem_alloc": 10.5, "gate_branch_shares": [0.2, 0.3, 0.5], "fb": {"cmp": 2}, "flag": True, "t": "x"}
    heartbeat, _ = read(write_heartbeat(tmp_path, [record(1, ts=1, **extra)]))
    assert {name: values[0] for name, (_, values) in heartbeat.columns.items()} == {
        "gpu_mem_alloc_mib": 10.5,
        "gate_branch_shares_0": 0.2,
        "gate_branch_shares_1": 0.3,
        "gate_branch_shares_2": 0.5,
        "fb_cmp": 2.0,
    }


def test_nan_is_read_however_it_is_spelled(tmp_path: Path) -> None:
    records = [record(1, ts=1, loss="nan"), record(2, ts=2, loss=float("nan")), record(3, ts=3, loss="-inf")]
    heartbeat, _ = read(write_heartbeat(tmp_path, records))
    values = heartbeat.columns["loss"][1]
    assert math.isnan(values[0])
    assert math.isnan(values[1])
    assert values[2] == -math.inf


def test_a_line_cut_in_the_middle_costs_only_itself(tmp_path: Path) -> None:
    path = write_heartbeat(tmp_path, healthy())
    path.write_bytes(path.read_bytes()[:-30])
    heartbeat, irregular = read(path)
    assert (heartbeat.last_step, heartbeat.done) == (5, False)
    assert set(irregular) == {"truncated-line"}


def test_hostile_lines_are_noted_and_left_out(tmp_path: Path) -> None:
    path = write_heartbeat(tmp_path, healthy())
    good = path.read_bytes()
    deep = b"[" * 100_000
    huge = b'{"ts": 1, "loss": ' + b"9" * 5000 + b"}"
    bad = [b'{"a": 1}, {"b": 2}', b"null", b"\xff\xfe\x00", deep, b'"\\ud800"', huge, b"[1]", b"</script>"]
    path.write_bytes(good + b"\n".join(bad) + b"\n")
    heartbeat, irregular = read(path)
    assert heartbeat.columns["loss"][0].tolist() == [1, 2, 3, 4, 5]
    assert "8 lines are no JSON object" in irregular["garbage-line"]
    assert set(irregular) == {"garbage-line", "nul-bytes"}


def test_values_of_the_wrong_type_do_not_count(tmp_path: Path) -> None:
    odd = {"ts": "soon", "rank": "0", "step": "5", "msg": 7, "loss": {"a": {"b": 1}}, "pid": None}
    path = write_heartbeat(tmp_path, [*healthy(), odd, {**odd, "step": -4}, {**odd, "step": 10**40, "loss": 10**400}])
    heartbeat, irregular = read(path)
    assert heartbeat.last_step == 5
    assert "3 records have no readable `ts`" in irregular["no-timestamp"]


def test_a_clock_that_jumps_back_is_noted_and_is_no_silence(tmp_path: Path) -> None:
    records = [record(i, ts=t) for i, t in enumerate([1, 2, 3, -3600, -3599, -3598], start=1)]
    heartbeat, irregular = read(write_heartbeat(tmp_path, records))
    assert heartbeat is not None
    assert heartbeat.gaps.longest == 1.0
    assert "3603 s" in irregular["clock-jump"]


def test_records_of_another_rank_are_noted(tmp_path: Path) -> None:
    _, irregular = read(write_heartbeat(tmp_path, healthy(), rank=1), rank=1)
    assert "rank 0 in the file of rank 1" in irregular["rank-mismatch"]


def test_a_new_process_at_step_0_mixes_runs_but_one_that_resumes_does_not(tmp_path: Path) -> None:
    again = [{**r, "pid": 999} for r in healthy()]
    _, irregular = read(write_heartbeat(tmp_path, [*healthy(), *again]))
    assert "pid 999" in irregular["mixed-runs"]
    resumed = [{**record(3, ts=50, msg="boot"), "pid": 999}, {**record(4, ts=51, loss=2.0), "pid": 999}]
    heartbeat, irregular = read(write_heartbeat(tmp_path, [*healthy(), *resumed]))
    assert irregular == {}
    assert heartbeat.columns["loss"][0].tolist() == [1, 2, 3, 4]


def test_an_empty_file_is_noted(tmp_path: Path) -> None:
    heartbeat, irregular = read(write_heartbeat(tmp_path, []))
    assert heartbeat is None
    assert set(irregular) == {"empty"}


def test_files_are_found_by_rank(tmp_path: Path) -> None:
    for name in ("heartbeat_rank0.jsonl", "heartbeat_rank10.jsonl", "heartbeat_rank.jsonl", "heartbeat_rankx.jsonl"):
        (tmp_path / name).write_text(json.dumps(record(1, ts=1)) + "\n")
    assert list(find_heartbeats(tmp_path, "heartbeat_rank{rank}.jsonl")) == [0, 10]
    assert list(find_heartbeats(tmp_path, "beats.jsonl")) == []
    assert find_heartbeats(tmp_path / "absent", "heartbeat_rank{rank}.jsonl") == {}
