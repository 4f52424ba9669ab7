"""What is read from logs: series, results, signs of trouble, and the log that says why a run failed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.validator.ingest.folders import (
    codes,
    outcome,
    scalar,
    spec,
    write_arrivals,
    write_logs,
)
from validator.ingest import collect_run
from validator.ingest.accounts import scan
from validator.ingest.read_log import ReadLog
from validator.model.result import LogHit
from validator.model.runbook import TrainerMetrics

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


@pytest.mark.timeout(60)
def test_a_pattern_that_backtracks_for_ever_is_ended_and_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("validator.model.budget._TICK_S", 0.2)
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs/stdout.log").write_text("a" * 5000 + "!\n")
    metrics = TrainerMetrics(stdout=r"(?P<step>(?:a+)+)$")
    result = collect_run(spec(metrics=metrics), run_dir=tmp_path, outcome=outcome())
    assert any("takes too long" in i.message and i.code == "no-match" for i in result.irregularities)


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


@pytest.mark.timeout(30)
def test_a_log_of_digits_is_looked_through_in_time(tmp_path: Path) -> None:
    """Each line of digits beside a word of a sign once took a second."""
    digits = "1," * 4000
    (tmp_path / "run.log").write_text(f"{digits} speedup {digits}\n" * 60 + "3.5x speedup over eager\n")
    read_log = ReadLog(tmp_path)
    assert [hit.text for hit in scan((tmp_path / "run.log",), read_log)["speedup"]] == ["3.5x speedup over eager"]


@pytest.mark.parametrize("mean", [True, False])
def test_a_printed_pace_that_is_the_mean_since_the_start_gives_way_to_the_stamps(mean: bool, tmp_path: Path) -> None:
    """A pace that halves at step 200 faded in: the mean of the last step was 29 % too fast."""
    noise = np.random.default_rng(1)
    times = np.where(np.arange(400) < 200, 0.05, 0.1) * (1 + 0.02 * noise.standard_normal(400))
    shown = np.cumsum(times) / np.arange(1, 401) if mean else times
    rows = [f"step {step} loss 2.5 {1 / one:.2f} it/s" for step, one in enumerate(shown, 1)]
    write_logs(tmp_path, stdout="\n".join(rows) + "\n")
    write_arrivals(tmp_path, times.tolist(), source="logs/stdout.log")
    metrics = TrainerMetrics(stdout="step {step} loss {loss} {steps_per_s} it/s")
    result = collect_run(
        spec(metrics=metrics, nproc=0, launcher="python"), run_dir=tmp_path, outcome=outcome(duration_s=40.0)
    )
    found = result.series["step_time_s"]
    assert float(found.values[-100:].mean()) == pytest.approx(0.1, rel=0.02)
    assert float(found.values[50:150].mean()) == pytest.approx(0.05, rel=0.02)
    assert found.source.path == ("arrivals.jsonl" if mean else "logs/stdout.log")


def test_a_time_of_0_is_no_time(tmp_path: Path) -> None:
    """Seconds that were printed as milliseconds: `0.0 ms` held any bound from above, and the clock was not asked."""
    lines = [f"step {i} loss {3 - i / 100:.3f} time {0.02 + i % 2 / 100:.1f} ms" for i in range(1, 61)]
    write_logs(tmp_path, stdout="\n".join(lines) + "\n")
    write_arrivals(tmp_path, [0.02] * 60, source="logs/stdout.log")
    metrics = TrainerMetrics(stdout="step {step} loss {loss} time {step_time_ms} ms")
    found = collect_run(spec(metrics=metrics, out="."), run_dir=tmp_path, outcome=outcome()).series["step_time_s"]
    assert (found.source.path, float(np.median(found.values))) == ("arrivals.jsonl", pytest.approx(0.02))
