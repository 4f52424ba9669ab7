"""The decision is earned: each way of not deserving GO ends in the right word, sentence and exit code."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.folders import criterion, decided, result_of, run_folder


def test_a_healthy_run_is_go(cli, train_runbook, workdir: Path) -> None:
    book = train_runbook(fault="none", accept=("toks_per_s.mean >= 10", "loss.last < loss.first"))
    answer = cli("run", str(book))
    result = result_of(workdir)
    assert (answer.rc, result["decision"], result["exit_code"]) == (0, "GO", 0), answer.err
    rate = criterion(result, "toks_per_s.mean >= 10")
    assert rate["status"] == "PASS"
    assert rate["ci_low"] <= rate["observed"] <= rate["ci_high"]
    metrics = result["phases"][0]["runs"][0]["metrics"]["toks_per_s"]
    assert metrics["unit"] == "tok/s"
    assert metrics["window"]["last_step"] == 300
    assert metrics["window"]["first_step"] > 10, "warm-up is left out"
    assert metrics["sha256"]
    assert metrics["source"].endswith("training.csv")
    for name in ("report.html", "report.md", "junit.xml", "recommended.env", "journal.jsonl"):
        assert (run_folder(workdir) / name).stat().st_size > 0


def test_a_threshold_out_of_reach_is_no_go(cli, train_runbook, workdir: Path) -> None:
    book = train_runbook(fault="none", accept=("toks_per_s.mean >= 10",))
    answer = cli("run", str(book), "--set", "baseline.accept[0]=toks_per_s.mean >= 1e12")
    result = decided(answer, workdir, 1, "NO_GO")
    assert criterion(result, "1e12")["status"] == "FAIL"
    assert "toks_per_s.mean >= 1e12" in result["why"]


def test_a_trainer_that_exits_early_is_no_go(cli, train_runbook, workdir: Path) -> None:
    book = train_runbook(fault="exit", accept=("loss.last < loss.first",))
    result = decided(cli("run", str(book)), workdir, 1, "NO_GO")
    exited = criterion(result, "exit")
    assert exited["status"] == "FAIL"
    assert "1" in str(exited["observed"])
    assert "out of luck" in (run_folder(workdir) / "report.md").read_text(encoding="utf-8")
    assert criterion(result, "steps")["status"] == "FAIL"


def test_a_trainer_without_csv_is_not_go(cli, train_runbook, workdir: Path) -> None:
    book = train_runbook(fault="no-csv", accept=("toks_per_s.mean >= 1",))
    result = decided(cli("run", str(book)), workdir, 3, "INCONCLUSIVE")
    rate = criterion(result, "toks_per_s.mean")
    assert rate["status"] == "INCONCLUSIVE"
    assert "training.csv" in rate["message"] or "toks_per_s" in rate["message"]


def test_a_nan_loss_is_no_go_and_named(cli, train_runbook, workdir: Path) -> None:
    book = train_runbook(fault="nan", accept=("toks_per_s.mean >= 1",))
    result = decided(cli("run", str(book)), workdir, 1, "NO_GO")
    assert "nan-loss" in {finding["code"] for finding in result["findings"]}


@pytest.mark.parametrize(
    ("body", "rc", "decision"),
    [
        ("def test_a():\n    pass\n", 0, "GO"),
        ("def test_a():\n    assert 1 == 2\n", 1, "NO_GO"),
        ("import pytest\n\ndef test_a():\n    pass\n\ndef test_b():\n    pytest.skip('no CUDA')\n", 3, "INCONCLUSIVE"),
        ("def helper():\n    pass\n", 1, "NO_GO"),
    ],
    ids=["passes", "fails", "skips", "is absent"],
)
def test_tests_as_a_gate(cli, workdir: Path, body: str, rc: int, decision: str) -> None:
    """Exit code 0 with a skipped test was once read as a pass."""
    (workdir / "test_gate.py").write_text(body, encoding="utf-8")
    book = workdir / "gate.yaml"
    book.write_text(
        "schema: 1\nname: gate\nphases:\n  - {id: sanity, kind: pytest, targets: [test_gate.py]}\n", encoding="utf-8"
    )
    decided(cli("run", str(book)), workdir, rc, decision)


def test_a_phase_that_did_not_run_forbids_go(cli, train_runbook, workdir: Path) -> None:
    extra = "  - {id: late, kind: command, needs: [baseline], run: 'true'}\n"
    answer = cli("run", str(train_runbook(fault="exit", extra=extra)))
    result = result_of(workdir)
    assert answer.rc == 1
    assert [phase["status"] for phase in result["phases"]] == ["FAIL", "NOT_RUN"]


def test_a_skipped_phase_forbids_go(cli, train_runbook, workdir: Path) -> None:
    extra = "  - {id: late, kind: command, run: 'true'}\n"
    answer = cli("run", str(train_runbook(extra=extra)), "--skip", "late")
    assert (answer.rc, result_of(workdir)["decision"]) == (3, "INCONCLUSIVE"), answer.err


def test_missing_gpus_end_in_exit_4_with_what_is_missing(cli, workdir: Path) -> None:
    answer = cli("run", "ddp_2xa100")
    assert answer.rc == 4
    assert "2" in answer.err
    assert "GPU" in answer.err
    assert not (workdir / "reports").exists(), "nothing is left behind"


def test_five_mistakes_are_reported_at_once_before_anything_runs(cli, workdir: Path) -> None:
    book = workdir / "bad.yaml"
    text = """\
schema: 1
name: bad
defaults: {timeout: 30}
phases:
  - {id: first, kind: train, steps: 100, stepz: 5, needs: [second]}
  - id: second
    kind: train
    steps: many
    needs: [first]
    accept:
      - tokss_per_s.mean >= 39
"""
    book.write_text(text, encoding="utf-8")
    answer = cli("run", str(book))
    assert answer.rc == 2
    assert not (workdir / "reports").exists()
    for place, word in (
        ("bad.yaml:3:", "30"),
        ("bad.yaml:5:", "stepz"),
        ("bad.yaml:8:", "many"),
        ("bad.yaml:11:", "tokss_per_s"),
    ):
        lines = [line for line in answer.err.splitlines() if place in line]
        assert any(word in line for line in lines), (place, word, answer.err)
    assert "cycle" in answer.err
    assert answer.err.count("fix:") >= 5


def test_an_unknown_phase_is_bad_usage(cli, workdir: Path) -> None:
    answer = cli("plan", "smoke_cpu", "--only", "basline")
    assert answer.rc == 2
    assert "baseline" in answer.err, "the nearest name is offered"
