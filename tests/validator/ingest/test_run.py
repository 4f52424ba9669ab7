"""A run's whole folder: provenance, derived figures, results of tests, and what does not belong to it."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.validator.ingest.folders import (
    START_S,
    codes,
    healthy,
    outcome,
    record,
    scalar,
    spec,
    write_csv,
    write_env,
    write_heartbeat,
    write_logs,
)
from validator.ingest import collect_dir, collect_run
from validator.kinds.registry import kind_of
from validator.model.result import Halt, NamedTest
from validator.model.runbook import BUNDLED_METRICS, TrainerMetrics


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


@pytest.mark.parametrize(("reason", "evaluated"), [("exited", [29, 59]), ("at_steps", [29])])
def test_the_last_evaluation_of_a_trainer_that_comes_to_its_own_end_counts(
    tmp_path: Path, reason: Any, evaluated: list[int]
) -> None:
    """59 steps were asked of 60 that are counted from 0, and the evaluation behind the last row was lost."""
    lines = []
    for step in range(60):
        lines.append(f"iter {step}: loss {4 - step / 60:.4f}, time 50.00ms, mfu 1.00%\n")
        if step % 30 == 29:
            lines.append(f"step {step}: train loss 3.1, val loss {3.5 - step / 60:.4f}\n")
    write_logs(tmp_path / "r", stdout="".join(lines))
    own = spec(out="r", steps=59, max_steps=59, stop="at_steps", metrics=TrainerMetrics(reader=("nanogpt",)))
    found = collect_run(own, run_dir=tmp_path, outcome=outcome(reason=reason)).series
    assert found["val_loss"].steps.tolist() == evaluated
    assert int(found["loss"].steps[-1]) == (59 if reason == "exited" else 58)
