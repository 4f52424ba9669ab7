"""`inspect` reads a log by a pattern, by a runbook or by its format, and a run as its validation read it."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.validator.adversary.court import book, laid_out, train
from tests.validator.ingest.folders import write_csv, write_heartbeat
from validator.commands.app import app
from validator.selftest.recorded_case import FakeRun, falling

RUNBOOK = """\
schema: 1
name: mine
trainer:
  command: [train.py, "{steps}", "{out}"]
  metrics: {stdout: 'row {step}; {loss}; {toks_per_s}'}
phases: [{id: baseline, kind: train, steps: 200, accept: [loss.last < 3]}]
"""


def inspected(*words: str | Path) -> tuple[int, dict[str, Any]]:
    done = CliRunner().invoke(app, ["inspect", *map(str, words), "--json"])
    assert done.output.startswith("{"), done.output
    return done.exit_code, json.loads(done.output)


def codes(found: dict[str, Any]) -> set[str]:
    return {one["code"] for one in found["findings"]}


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "mine.log"
    path.write_text(
        "".join(f"row {i}; {3 - i / 100:.3f}; {40_000 + i % 7:,}\n" for i in range(1, 201)), encoding="utf-8"
    )
    return path


def test_a_log_is_read_by_a_pattern(log: Path) -> None:
    rc, found = inspected(log, "--stdout", "row {step}; {loss}; {toks_per_s}")
    assert rc == 0
    assert found["metrics"]["toks_per_s"]["mean"] == pytest.approx(40_003, rel=1e-4)
    assert found["metrics"]["loss"]["n"] == 200


def test_a_log_is_read_by_the_pattern_of_a_runbook(log: Path) -> None:
    (log.parent / "mine.yaml").write_text(RUNBOOK, encoding="utf-8")
    rc, found = inspected(log, "--runbook", log.parent / "mine.yaml")
    assert rc == 0
    assert found["metrics"]["loss"]["n"] == 200


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--stdout", "{loss}"], "no group named `step`"),
        (["--stdout", "{step} ("], "not a regular expression"),
        (["--stdout", "{step}", "--runbook", "x.yaml"], "give one of them"),
    ],
)
def test_what_cannot_be_is_refused_with_the_option(log: Path, words: list[str], said: str) -> None:
    rc, found = inspected(log, *words)
    assert rc == 2
    assert said in found["error"]


def test_a_log_that_nobody_knows_asks_for_a_pattern(log: Path) -> None:
    _, found = inspected(log)
    assert not found["metrics"]
    assert any("--stdout PATTERN" in text for text in found["irregularities"])


def test_a_known_format_is_named_and_nan_in_it_is_a_veto(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text("".join(f"iter {i}: loss nan, time 9.50ms\n" for i in range(1, 200)), encoding="utf-8")
    rc, found = inspected(path)
    assert (rc, found["printed"]["format"]) == (1, "nanoGPT")
    assert "nan-loss" in codes(found)


def test_a_run_of_a_validation_is_seen_as_the_validation_saw_it(tmp_path: Path) -> None:
    pattern = "step {step} loss {loss} tok/s {toks_per_s}"
    lines = "".join(f"step {i} loss {x:.4f} tok/s 40000\n" for i, x in enumerate(falling(), 1))
    text = book(train(accept=["loss.last < loss.first"]), metrics={"stdout": pattern})
    root = laid_out(tmp_path, FakeRun(stdout=lines.replace("step 60 ", "stop 60 ")), text)
    (run,) = root.glob("runs/baseline/r1")
    rc, found = inspected(run)
    assert found["metrics"]["loss"]["n"] == 119
    assert "missing-evidence" in codes(found), "the run ended well, and a row is not there"
    assert rc == 1


def test_what_a_runbook_accepts_is_no_veto(log: Path, tmp_path: Path) -> None:
    text = book(
        train(accept=["loss.last < loss.first"], accept_findings=["missing-evidence"]),
        metrics={"stdout": "step {step} loss {loss}"},
    )
    lines = "".join(f"step {i} loss {x:.4f}\n" for i, x in enumerate(falling(), 1))
    root = laid_out(tmp_path, FakeRun(stdout=lines.replace("step 60 ", "stop 60 ")), text)
    rc, found = inspected(root / "runs" / "baseline" / "r1")
    (one,) = (one for one in found["findings"] if one["code"] == "missing-evidence")
    assert (rc, one["severity"]) == (0, "info")
    assert "Accepted by the runbook (accept_findings of phase baseline)." in one["message"]
    log.write_text("".join(f"row {i}; nan; 40000\n" for i in range(1, 201)), encoding="utf-8")
    for accepted, expected in (("[diverging]", 1), ("[nan-loss]", 0)):
        runbook = RUNBOOK.replace("phases:", f"defaults: {{accept_findings: {accepted}}}\nphases:")
        (log.parent / "mine.yaml").write_text(runbook, encoding="utf-8")
        assert inspected(log, "--runbook", log.parent / "mine.yaml")[0] == expected


def beats(rank: int, since: float, steps: int, *, done: bool = True) -> list[dict[str, Any]]:
    made = [
        {"ts": since + i, "pid": 7 + rank, "rank": rank, "step": i, "msg": "progress", "loss": 2.0}
        for i in range(steps + 1)
    ]
    return (
        [*made, {"ts": since + steps + 1, "pid": 7 + rank, "rank": rank, "step": steps, "msg": "done"}]
        if done
        else made
    )


@pytest.mark.parametrize("rank", [0, 1])
def test_a_heartbeat_of_last_week_is_of_another_run(tmp_path: Path, rank: int) -> None:
    write_csv(tmp_path, [40_000.0 + i % 7 for i in range(100)])
    now = time.time() - 200
    write_heartbeat(tmp_path, beats(1 - rank, now, 100), rank=1 - rank)
    write_heartbeat(tmp_path, beats(rank, now - 7 * 86400, 100), rank=rank)
    assert "foreign-results" in codes(inspected(tmp_path)[1])
    write_heartbeat(tmp_path, beats(rank, now, 100), rank=rank)
    found = inspected(tmp_path)[1]
    assert "foreign-results" not in codes(found), found["findings"]


def test_the_only_heartbeat_may_be_of_last_week_too(tmp_path: Path) -> None:
    table = write_csv(tmp_path, [40_000.0 + i % 7 for i in range(100)])
    then = time.time() - 7 * 86400
    beat = write_heartbeat(tmp_path, beats(0, then - 101, 100))
    os.utime(beat, (then, then))
    assert "foreign-results" in codes(inspected(tmp_path)[1])
    os.utime(table, (then, then))
    assert "foreign-results" not in codes(inspected(tmp_path)[1]), "an old run is no mixture"


def test_a_missing_rank_is_seen_by_the_gap_that_it_leaves(tmp_path: Path) -> None:
    write_csv(tmp_path, [40_000.0 + i % 7 for i in range(100)])
    for rank in (0, 2):
        write_heartbeat(tmp_path, beats(rank, 1e9, 100), rank=rank)
    found = inspected(tmp_path)[1]
    assert any("no heartbeat of rank 1" in text for text in found["irregularities"])


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("{0:6d} {1:11.6f} {2:9.4f}", "numbers that rise like steps and fall like a loss"),
        ("[{0}]\ttrain-logloss:{1:.5f}", "numbers that rise like steps and fall like a loss"),
        ("train loss: {1:.5f}", "a loss, each a step"),
    ],
)
def test_numbers_in_no_known_format_are_read_as_init_reads_them(line: str, name: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.txt"
    rows = (line.format(i, 1 + 2 / (i + 1), 0.004 + i % 3 / 1000) for i in range(60))
    path.write_text("hello\n" + "".join(f"{row}\n" for row in rows), encoding="utf-8")
    rc, found = inspected(path)
    assert rc == 0
    assert found["metrics"]["loss"]["n"] == 60
    assert found["printed"]["format"] == name


@pytest.mark.parametrize("text", ["", "hello\nworld\n", "accuracy 0.5\n" * 50])
def test_where_nothing_is_measured_the_exit_is_not_0(text: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.txt"
    path.write_text(text, encoding="utf-8")
    rc, found = inspected(path)
    assert (rc, codes(found)) == (1, {"missing-evidence"})
    assert "validator init -- COMMAND" in found["findings"][0]["message"]
