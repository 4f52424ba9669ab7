"""The self-test itself: what it covers, and that a wrong outcome fails a case."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.validator.adversary.court import judged
from tests.validator.recorded_cases import MORE_CASES
from validator.commands.app import app
from validator.diagnose import CODES
from validator.selftest import CASES, run_selftest
from validator.selftest.case import Case, CaseOutcome, CaseRun, Sandbox
from validator.selftest.recorded_case import RecordedCase
from validator.selftest.run import Selftest, case_lines

ALL_CASES = (*CASES, *MORE_CASES)
BY_NAME = {case.name: case for case in CASES}
QUICK = ("exit-at-a-step", "table-with-garbage", "impossible-scaling", "healthy-run", "healthy-process")


def test_names_and_titles_are_unique() -> None:
    assert len({case.name for case in ALL_CASES}) == len(ALL_CASES)
    assert len({case.title for case in ALL_CASES}) == len(ALL_CASES)


def test_there_are_faults_and_healthy_runs_enough() -> None:
    assert sum(not case.healthy for case in CASES) >= 40
    assert sum(case.healthy for case in CASES) >= 20
    assert all(case.expect == "GO" and not case.codes for case in CASES if case.healthy)


def test_every_cause_that_a_run_can_show_is_brought_about() -> None:
    shown = {code for case in ALL_CASES for code in case.codes}
    assert shown <= set(CODES), "no code that does not exist"
    assert set(CODES) == shown


def test_a_fast_subset_comes_out_right(tmp_path: Path) -> None:
    done = run_selftest([BY_NAME[name] for name in QUICK], jobs=2, keep=tmp_path / "kept")
    assert [(outcome.case.name, outcome.wrong) for outcome in done.outcomes if not outcome.ok] == []
    assert (tmp_path / "kept" / "healthy-run" / "reports").is_dir()


def test_cases_of_torchrun_are_left_out_where_torch_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []

    def run(cases: list[Case], **_: object) -> Selftest:
        ran.extend(case.name for case in cases)
        return Selftest(tuple(CaseOutcome(case, case.expect, (), (), 0.1) for case in cases), 1.0)

    monkeypatch.setattr("validator.selftest.run.run_selftest", run)
    monkeypatch.setattr("validator.selftest.run.has_torch", lambda: False)
    needing = {case.name for case in CASES if case.torch}
    done = CliRunner().invoke(app, ["selftest"])
    assert done.exit_code == 0
    assert f"{len(needing)} cases of torchrun left out" in done.output
    assert set(ran) == set(BY_NAME) - needing


RECORDED = [case for case in ALL_CASES if isinstance(case.run, RecordedCase)]


@pytest.mark.parametrize("case", RECORDED, ids=[case.name for case in RECORDED])
def test_what_is_laid_out_comes_to_its_decision(case: Case, tmp_path: Path) -> None:
    """Judged here, without a process and its drawings: every change of a rule meets every case."""
    assert isinstance(case.run, RecordedCase)
    report = judged(case.run.write(Sandbox(tmp_path / "sandbox", case.name)))
    codes = {finding.code for finding in report.findings}
    assert report.decision == case.expect, report.why
    assert codes >= set(case.codes)
    assert not (case.healthy and codes)


@pytest.mark.parametrize(
    ("case", "changes", "words"),
    [
        (
            "healthy-run",
            {"expect": "NO_GO", "evidence": ("runs/*/r1/dump/*",)},
            ("decision GO, expected NO_GO", "exit code 0, expected 1", "evidence is missing"),
        ),
        (
            "table-with-garbage",
            {"group": "healthy", "expect": "INCONCLUSIVE", "codes": ("nan-loss",)},
            ("not found: nan-loss; found: damaged-evidence", "false alarm damaged"),
        ),
    ],
)
def test_what_comes_out_wrong_is_said(
    tmp_path: Path, case: str, changes: dict[str, object], words: tuple[str, ...]
) -> None:
    """A self-test that cannot fail proves nothing."""
    (outcome,) = run_selftest([replace(BY_NAME[case], **changes)], keep=tmp_path / "kept").outcomes
    assert [word in said for word, said in zip(words, outcome.wrong, strict=True)] == [True] * len(words), outcome.wrong


def test_a_process_that_is_left_is_found_and_ended(tmp_path: Path) -> None:
    pids = []

    def run(sandbox: Sandbox) -> CaseRun:
        sleeper = [sys.executable, "-S", "-c", "import time; time.sleep(60)"]
        process = subprocess.Popen(sleeper, cwd=sandbox.folder, env={}, start_new_session=True)
        pids.append(process)
        return CaseRun(0, "", None, None)

    case = Case("left", "a process stays", "processes", "UNABLE", run, rc=0)
    (outcome,) = run_selftest([case], keep=tmp_path / "kept").outcomes
    assert outcome.wrong == (f"processes are left: {pids[0].pid}",)
    assert pids[0].wait(timeout=10) == -9


def test_a_case_that_cannot_be_run_fails_and_the_others_go_on(tmp_path: Path) -> None:
    def run(sandbox: Sandbox) -> CaseRun:
        raise OSError("no such thing")

    broken = Case("broken", "cannot be run", "files", "GO", run)
    first, second = run_selftest([broken, BY_NAME["healthy-run"]], keep=tmp_path / "kept").outcomes
    assert first.wrong == ("the case could not be run: OSError: no such thing",)
    assert second.ok


def selftest(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "validator", "selftest", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=200)


def test_the_command_ends_in_a_table_or_in_json(tmp_path: Path) -> None:
    done = selftest("--only", "stale-halt", "--json", cwd=tmp_path)
    answer = json.loads(done.stdout)
    assert (done.returncode, answer["ok"], answer["folder"]) == (0, True, None)
    (case,) = answer["cases"]
    assert (case["name"], case["decision"], case["codes"]) == ("stale-halt", "NO_GO", ["stale-halt"])
    done = selftest("--only", "healthy-run", "--keep", "kept", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "✓ healthy-run" in done.stdout
    assert all(len(line) <= 80 for line in done.stdout.splitlines()), done.stdout
    again = selftest("--only", "healthy-run", "--keep", "kept", cwd=tmp_path)
    assert (again.returncode, "name a new one" in again.stderr) == (2, True)


def test_the_list_names_every_case_and_a_wrong_name_is_answered(tmp_path: Path) -> None:
    done = selftest("--list", cwd=tmp_path)
    assert done.returncode == 0
    assert all(f"  {case.name}  " in done.stdout for case in CASES)
    assert f"\x1b[36m{CASES[0].name}\x1b[0m" in "\n".join(case_lines(CASES, color=True))
    wrong = selftest("--only", "stale-hlat", cwd=tmp_path)
    assert (wrong.returncode, "did you mean stale-halt?" in wrong.stderr) == (2, True)
