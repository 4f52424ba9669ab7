"""Runs that did less than was asked, phases that lost some, evidence and bounds changed afterwards: none may be GO."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.validator.adversary.court import book, codes, finding, judged, laid_out, lines, train, tried, verdict
from validator.errors import FolderError
from validator.model.plan import RunSpec
from validator.model.record import Outcome
from validator.runs.folder import RunFolder
from validator.runs.journal import Journal
from validator.runs.replay import header_digest, last_go_digest, reconstruct
from validator.selftest.recorded_case import FakeRun, scatter

ROWS = scatter(40_000.0, 60)


def seeded(spec: RunSpec) -> FakeRun:
    return FakeRun(rates=scatter(40_000.0, seed=spec.repeat))


# ------------------------------------------------------------------------------------------------------ steps and runs


@pytest.mark.parametrize(
    ("fake", "status", "words"),
    [
        (FakeRun(rates=ROWS, steps=range(61, 121)), "INCONCLUSIVE", "begins at step 61, so it shows about 60 of 120"),
        (
            FakeRun(rates=scatter(40_000.0), steps=range(2001, 2121)),
            "PASS",
            "continued from step 2000 and did 120 of 120",
        ),
        (FakeRun(rates=scatter(40_000.0, 240)), "INCONCLUSIVE", "240 steps were recorded where 120 were requested"),
        (FakeRun(rates=ROWS), "FAIL", "60 of 120 steps were done"),
        (FakeRun(), "PASS", "All 120"),
        (FakeRun(rates=scatter(40_000.0, 121)), "PASS", "All 120"),  # one that logs a last step of its own
        (FakeRun(rates=scatter(40_000.0, 112), steps=range(9, 121)), "PASS", "All 120"),  # none of its warm-up
    ],
)
def test_the_steps_that_a_run_did_itself(tmp_path: Path, fake: FakeRun, status: str, words: str) -> None:
    found = verdict(tried(tmp_path, fake), "baseline.steps")
    assert found.status == status
    assert words in found.message


def test_a_row_every_twenty_steps_shows_them_all(tmp_path: Path) -> None:
    text = book(train(steps=2400, accept=["loss.last < loss.first"]))
    fake = FakeRun(steps=range(20, 2401, 20), facts={"tokens_per_step": 4096.0 / 20}, without=())
    assert verdict(tried(tmp_path, fake, text), "baseline.steps").status == "PASS"


def test_a_phase_that_lost_a_run_is_not_judged_by_the_others(tmp_path: Path) -> None:
    root = laid_out(tmp_path, seeded, book(train(repeats=4)))
    assert judged(root).decision == "GO"
    journal = root / "journal.jsonl"
    kept = [line for line in lines(journal) if json.loads(line).get("run") != "baseline/r4"]
    kept = [line for line in kept if '"outcome":{"run":"baseline/r4"' not in line]
    journal.write_text("\n".join(kept) + "\n", encoding="utf-8")
    report = judged(root)
    assert report.decision == "INCONCLUSIVE"
    assert "3 of 4 runs reported an outcome" in verdict(report, "baseline.exit").message


class Retried(FakeRun):
    """A run that stalled at first and ended well at its second attempt."""

    def write(self, root: Path, spec: RunSpec) -> Outcome:
        ended = super().write(root, spec)
        (last,) = ended.attempts
        stalled = last.model_copy(update={"reason": "stalled", "rc": None, "detail": "stalled: no step for 180 s"})
        return ended.model_copy(update={"attempts": (stalled, last.model_copy(update={"number": 2}))})


@pytest.mark.parametrize("kind", ["train", "soak"])
@pytest.mark.parametrize(
    ("files", "told"),
    [
        ({".HALT": "stop", ".anomaly_type": "nan"}, "`.HALT` was written: nan"),
        ({".HALT": ""}, "`.HALT` was written: no reason was given"),
        ({"metrics.json": '{"status": "anomaly"}'}, "it says `anomaly` of itself"),
        ({"metrics.json": '{"status": "error", "why": "lost a rank"}'}, "it says `error` of itself"),
    ],
)
def test_an_exit_code_that_was_lost_on_the_way_is_no_pass(
    tmp_path: Path, kind: str, files: dict[str, str], told: str
) -> None:
    """All steps were done, and the launcher ended with 0."""
    report = tried(tmp_path, FakeRun(files=files), book(train(kind=kind)))
    assert report.decision == "NO_GO", report.why
    assert told in verdict(report, "baseline.exit").message


def test_a_halt_from_before_the_run_is_not_its_own(tmp_path: Path) -> None:
    def left(out: Path) -> None:
        (out / ".HALT").write_text("stop", encoding="utf-8")
        os.utime(out / ".HALT", (1e9, 1e9))

    report = tried(tmp_path, FakeRun(damage=left))
    assert "stale-halt" in codes(report)
    assert verdict(report, "baseline.exit").status == "PASS"


def test_another_word_for_done_is_as_good(tmp_path: Path) -> None:
    assert tried(tmp_path, FakeRun(files={"metrics.json": '{"status": "finished"}'})).decision == "GO"


TESTS = json.dumps(
    {"schema": 1, "name": "tests", "phases": [{"id": "sanity", "kind": "pytest", "targets": ["test_it.py"]}]}
)


def left_by_pytest(head: str, *cases: str) -> FakeRun:
    """What pytest leaves: how many tests it found, and an entry for each that it knows of."""
    report = f"<testsuites><testsuite>{''.join(cases)}</testsuite></testsuites>"
    said = f"== test session starts ==\nrootdir: here\n{head}\n\ntest_it.py .\n"
    return FakeRun(stdout=said, files={"junit.xml": report})


PASSED, AFTER, BEGUN = '<testcase name="a"/>', '<testcase name="b"/>', '<testcase time="0.0"/>'
SKIPPED_FILE = '<testcase name="test_other"><skipped message="no such module"/></testcase>'


@pytest.mark.parametrize(
    ("fake", "decision"),
    [
        (left_by_pytest("collected 3 items", PASSED, BEGUN), "INCONCLUSIVE"),
        (left_by_pytest("collected 2 items", PASSED), "INCONCLUSIVE"),
        (left_by_pytest("collected 9 items / 6 deselected / 3 selected", PASSED, AFTER), "INCONCLUSIVE"),
        (left_by_pytest("collecting ... collected 2 items", PASSED), "INCONCLUSIVE"),
        (left_by_pytest("\x1b[1mcollecting ... \x1b[0m\x1b[1m\rcollected 2 items\x1b[0m", PASSED), "INCONCLUSIVE"),
        (left_by_pytest("collecting ... collected 1 item", PASSED), "GO"),
        (left_by_pytest("", BEGUN), "NO_GO"),
        (left_by_pytest("collected 1 item", PASSED), "GO"),
        (left_by_pytest("collected 9 items / 7 deselected / 2 selected", PASSED, AFTER), "GO"),
        (left_by_pytest("", PASSED), "GO"),
    ],
)
def test_tests_that_were_to_be_run_and_were_not_are_no_pass(tmp_path: Path, fake: FakeRun, decision: str) -> None:
    """As `pytest.exit(returncode=0)` leaves them."""
    report = tried(tmp_path, fake, TESTS)
    assert report.decision == decision, report.why


@pytest.mark.parametrize(
    ("cases", "status"), [((PASSED, SKIPPED_FILE), "INCONCLUSIVE"), ((PASSED, AFTER, SKIPPED_FILE), "PASS")]
)
def test_a_file_that_is_skipped_stands_for_none_of_the_tests(
    tmp_path: Path, cases: tuple[str, ...], status: str
) -> None:
    phase = {"id": "sanity", "kind": "pytest", "targets": ["test_it.py"], "allow_skipped": True}
    text = json.dumps({"schema": 1, "name": "tests", "phases": [phase]})
    report = tried(tmp_path, left_by_pytest("collected 2 items / 1 skipped", *cases), text)
    assert verdict(report, "sanity.tests").status == status


def test_a_stall_that_a_retry_got_past_is_told(tmp_path: Path) -> None:
    report = tried(tmp_path, Retried())
    assert report.decision == "GO"
    assert "Attempt 1 stalled" in finding(report, "hang").message
    assert codes(tried(tmp_path / "twin", FakeRun())) == set()


# --------------------------------------------------------------------------------------------- what changed afterwards


def sealed(folder: Path) -> Path:
    """A run folder whose journal tells what was read when its runs had ended, as `validator run` writes it."""
    root = laid_out(folder, FakeRun())
    opened = RunFolder.open(root)
    with Journal.open(opened.journal) as journal:
        journal.append("started", run_id=opened.header.run_id, header=header_digest(opened))
        for phase in reconstruct(opened).phases:
            for run in phase.runs:
                read = {source.path: source.sha256 for source in run.result.sources}
                journal.append("run_read", run=run.spec.id, sources=read)
    return root


def edited(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")


def test_a_folder_that_nobody_touched_is_judged_as_before(tmp_path: Path) -> None:
    report = judged(sealed(tmp_path))
    assert (report.decision, codes(report)) == ("GO", set())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda out: edited(out / "training.csv", ",", ", "), "training.csv was changed after the run had ended"),
        (lambda out: edited(out / "heartbeat_rank1.jsonl", "boot", "BOOT"), "heartbeat_rank1.jsonl was changed"),
        (lambda out: (out / "metrics.json").unlink(), "metrics.json is gone"),
    ],
)
def test_evidence_that_was_changed_after_the_run_is_none(
    tmp_path: Path, change: Callable[[Path], Any], words: str
) -> None:
    root = sealed(tmp_path)
    change(root / "runs" / "baseline" / "r1")
    report = judged(root)
    assert report.decision == "INCONCLUSIVE"
    assert words in finding(report, "foreign-results").message


def test_a_run_that_is_started_again_is_not_held_against_the_one_before(tmp_path: Path) -> None:
    root = sealed(tmp_path)
    events = [json.loads(line) for line in lines(root / "journal.jsonl")]
    started = next(event for event in events if event["event"] == "run_started")
    ended = next(event for event in events if event["event"] == "run_ended")
    with Journal.open(root / "journal.jsonl") as journal:
        journal.append("run_started", run=started["run"], as_it_is={"spec": started["spec"]})
        edited(root / "runs" / "baseline" / "r1" / "training.csv", "step,", " step,")
        journal.append("run_ended", run=started["run"], outcome=ended["outcome"])
    assert "foreign-results" not in codes(judged(root))


def test_a_bound_cannot_be_lowered_once_the_figure_is_known(tmp_path: Path) -> None:
    root = sealed(tmp_path)
    edited(root / "run.json", "toks_per_s.mean >= 1000", "toks_per_s.mean >= 1")
    with pytest.raises(
        FolderError, match=r"the runbook in .*run\.json was changed after the validation had been started"
    ):
        judged(root)


def test_the_last_go_cannot_be_taken_away_or_lowered(tmp_path: Path) -> None:
    root = sealed(tmp_path)
    (root / "last_go.json").write_text("{}", encoding="utf-8")
    with Journal.open(root / "journal.jsonl") as journal:
        journal.append("environment", path="environment.json", last_go=last_go_digest(RunFolder.open(root)))
    assert judged(root).decision == "GO"
    (root / "last_go.json").unlink()
    with pytest.raises(FolderError, match=r"last_go.json, which the validation is compared with, was changed or rem"):
        judged(root)


def test_another_spelling_of_the_same_header_is_the_same(tmp_path: Path) -> None:
    root = sealed(tmp_path)
    header = json.loads((root / "run.json").read_text(encoding="utf-8"))
    (root / "run.json").write_text(json.dumps(header), encoding="utf-8")
    assert judged(root).decision == "GO"
