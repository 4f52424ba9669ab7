"""Trainers without a setting for their length: validator ends them behind the steps that were asked for."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.e2e.folders import result_of, run_folder
from validator.runs.journal import read

_FOREVER = """
import os, random, signal, sys, time
count, loss = {first}, None
while True:
    time.sleep({pause})
    scatter = 1 + (random.Random(count).random() / 20 if count != 60 else 0)
    print(f"step {{count}} loss {{3 / (count + 1) * scatter:.4f}} tok/s {{5000 + count % 7}}", flush={flush})
    {after}
    count += 1
"""

_RUNBOOK = """\
schema: 1
name: endless
trainer:
  command: [{command}]
  stop: at_steps
  metrics: {{stdout: 'step {{step}} loss {{loss}} tok/s {{toks_per_s}}'}}
{trainer}
defaults: {{timeout: 30s, warmup_steps: 5, nproc: {nproc}, watchdog: {watchdog}}}
phases: [{{id: baseline, kind: train, steps: 60, accept: [toks_per_s.mean >= 4000 tok/s, loss.last <= {last}]}}]
"""


@pytest.fixture
def endless(cli, workdir: Path):
    """Run a trainer that ends by itself never, or otherwise than it should."""

    def run(
        after: str = "pass",
        *,
        first: int = 1,
        pause: float = 0.004,
        flush: bool = True,
        last: float = 1.0,
        command: str = "forever.py",
        trainer: str = "",
        metrics: str = "",
        nproc: int = 0,
        watchdog: str = "{}",
    ) -> tuple[int, dict]:
        (workdir / "forever.py").write_text(_FOREVER.format(after=after, first=first, pause=pause, flush=flush))
        text = _RUNBOOK.format(command=command, trainer=trainer, nproc=nproc, last=last, watchdog=watchdog)
        (workdir / "endless.yaml").write_text(text.replace("metrics: {", f"metrics: {{{metrics}"))
        answer = cli("run", "endless.yaml")
        return answer.rc, result_of(workdir)

    return run


def run_of(result: dict) -> dict:
    return result["phases"][0]["runs"][0]


def criterion(result: dict, name: str) -> dict:
    return next(one for one in result["phases"][0]["criteria"] if one["id"] == f"baseline.{name}")


@pytest.mark.parametrize(
    ("count", "trainer", "code", "decision"),
    [
        (60, "  max_steps: 60", 0, "GO"),
        (60, "  max_steps: 60", 1, "NO_GO"),
        (64, "  max_steps: 60", 1, "NO_GO"),
        (60, "", 1, "NO_GO"),
    ],
)
def test_the_exit_code_counts_where_the_steps_are_all_that_it_does(
    endless, count: int, trainer: str, code: int, decision: str
) -> None:
    """It had been ended in the moment of its last row: GO for a trainer that always ended with 1. So it was where all
    steps had been estimated too low, or are not known."""
    _, result = endless(f"if count == {count}: sys.exit({code})", trainer=trainer)
    outcome = run_of(result)["outcome"]
    assert (outcome["reason"], outcome["rc"], result["decision"]) == ("exited", code, decision)
    assert criterion(result, "exit")["status"] == ("PASS" if code == 0 else "FAIL")


def test_one_that_goes_on_behind_all_its_steps_is_ended_there(endless) -> None:
    rc, result = endless(trainer="  max_steps: 60")
    assert (rc, run_of(result)["outcome"]["reason"]) == (0, "at_steps"), result["why"]
    assert run_of(result)["outcome"]["attempts"][0]["duration_s"] < 9


def test_one_that_is_busy_behind_all_its_steps_is_ended_after_a_while(endless) -> None:
    rc, result = endless("while count == 60: pass", trainer="  max_steps: 60")
    assert (rc, run_of(result)["outcome"]["reason"]) == (0, "at_steps"), result["why"]
    assert 9 < run_of(result)["outcome"]["attempts"][0]["duration_s"] < 19


@pytest.mark.parametrize("count", [60, 64])
def test_one_that_hangs_behind_all_its_steps_is_no_go(endless, count: int) -> None:
    """It had been ended there like one that goes on."""
    rc, result = endless(f"if count == {count}: time.sleep(600)", trainer="  max_steps: 60", watchdog="{stall: 2s}")
    assert (rc, run_of(result)["outcome"]["reason"]) == (1, "stalled"), result["why"]
    assert "hang" in [one["code"] for one in result["findings"]]


def test_a_run_is_ended_behind_its_steps_and_judged_by_them(cli, endless, workdir: Path) -> None:
    rc, result = endless(last=3 / 61 + 1e-4)
    assert rc == 0, result["why"]
    outcome = run_of(result)["outcome"]
    assert (outcome["reason"], outcome["rc"]) == ("at_steps", -15)
    assert criterion(result, "exit")["status"] == "PASS"
    assert criterion(result, "steps")["observed"] == 60
    loss = run_of(result)["metrics"]["loss"]
    assert (loss["n"], loss["window"]["last_step"]) == (60, 60)
    assert result["findings"] == [] or all(one["severity"] == "info" for one in result["findings"])
    # The trainer went on until it was ended, and disk says the same as the runner did.
    folder = run_folder(workdir)
    assert "step 61 " in (folder / "runs/baseline/r1/logs/stdout.log").read_text()
    moved = workdir / "moved"
    folder.rename(moved)
    assert cli("report", str(moved)).rc == 0
    assert json.loads((moved / "result.json").read_text())["phases"] == result["phases"]
    ended = [event for event in read(moved / "journal.jsonl") if event.event == "attempt_ended"]
    assert [event.fields["attempt"]["reason"] for event in ended] == ["at_steps"]


def test_steps_counted_from_0_are_as_many(endless) -> None:
    rc, result = endless(first=0)
    assert rc == 0, result["why"]
    loss = run_of(result)["metrics"]["loss"]
    assert (loss["n"], loss["window"]["last_step"], criterion(result, "steps")["observed"]) == (60, 59, 60)


def test_a_trainer_that_continues_does_as_many(endless) -> None:
    rc, result = endless(first=501)
    assert rc == 0, result["why"]
    loss = run_of(result)["metrics"]["loss"]
    assert (loss["window"]["last_step"], criterion(result, "steps")["observed"]) == (560, 60)


def test_what_happens_behind_the_steps_does_not_count(endless) -> None:
    rc, result = endless("if count == 61: print('step 62 loss nan tok/s 0.0', flush=True)")
    assert rc == 0, result["why"]


def test_buffered_output_shows_the_steps_late(endless) -> None:
    rc, result = endless(flush=False, pause=0.0005)
    assert rc == 0, result["why"]
    assert run_of(result)["metrics"]["loss"]["window"]["last_step"] == 60


@pytest.mark.parametrize(("exit_code", "words"), [(0, "exit"), (3, "exit")])
def test_an_exit_before_the_steps_are_done_is_an_early_one(endless, exit_code: int, words: str) -> None:
    rc, result = endless(f"if count == 40: sys.exit({exit_code})")
    assert rc == 1
    assert criterion(result, "steps")["status"] == "FAIL"
    assert criterion(result, words)["status"] == ("PASS" if exit_code == 0 else "FAIL")
    assert run_of(result)["outcome"]["reason"] == "exited"


@pytest.mark.parametrize(
    ("handler", "status"),
    [
        ("lambda *a: sys.exit(0)", "PASS"),
        ("lambda *a: sys.exit(3)", "FAIL"),
        ("lambda *a: os.kill(os.getpid(), signal.SIGSEGV)", "FAIL"),
    ],
)
def test_only_that_signal_is_a_normal_end(endless, handler: str, status: str) -> None:
    rc, result = endless(f"signal.signal(signal.SIGTERM, {handler})")
    assert rc == (0 if status == "PASS" else 1)
    assert criterion(result, "exit")["status"] == status
    if status == "FAIL":
        assert "behind its 60 steps, and then" in criterion(result, "exit")["message"]


@pytest.mark.parametrize(("status", "rc"), [("terminated", 0), ("error", 1)])
def test_what_the_trainer_says_of_its_end(endless, status: str, rc: int) -> None:
    """That it was terminated is no news; that it failed is."""
    says = f"""open(sys.argv[1] + "/m.json", "w").write('{{"status": "{status}"}}')"""
    handler = f"signal.signal(signal.SIGTERM, lambda *a: ({says}, os._exit(0)))"
    ended, result = endless(handler, command='forever.py, "{out}"', metrics="metrics: m.json, ")
    assert ended == rc, result["why"]


def test_a_shell_says_143(endless, workdir: Path) -> None:
    (workdir / "run.sh").write_text(f'#!/bin/sh\ntrap "" INT\n"{sys.executable}" forever.py\nexit $?\n')
    (workdir / "run.sh").chmod(0o755)
    rc, result = endless(command="./run.sh", trainer="  launcher: plain")
    assert rc == 0, result["why"]


def test_a_death_by_the_kernel_is_no_normal_end(endless) -> None:
    rc, result = endless("if count == 50: os.kill(os.getpid(), signal.SIGKILL)")
    assert rc == 1
    assert criterion(result, "exit")["status"] == "FAIL"


def test_torchrun_says_that_it_was_the_signal(endless) -> None:
    pytest.importorskip("torch")
    rc, result = endless("pass", pause=0.05, nproc=2)
    assert rc == 0, json.dumps(result["why"])
    assert run_of(result)["outcome"]["reason"] == "at_steps"


def test_steps_must_be_readable_and_are_not_given_twice(cli, workdir: Path) -> None:
    text = _RUNBOOK.format(command="forever.py", trainer="", nproc=0, last=1, watchdog="{}")
    (workdir / "a.yaml").write_text(text.replace("stdout: ", "env: env.json, extra: {}} #"))
    answer = cli("check", "a.yaml")
    assert "stop: at_steps needs to read steps while the trainer runs" in answer.err
    (workdir / "b.yaml").write_text(text.replace("[forever.py]", '[forever.py, "{steps}"]'))
    answer = cli("check", "b.yaml")
    assert answer.rc == 0
    assert "warning: stop: at_steps ends the trainer behind its steps" in answer.err
