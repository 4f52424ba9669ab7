"""A validation that was broken off is brought to the decision that it would have reached, and repeats nothing."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.faults.kill_and_resume import kill_and_resume, kill_often, processes_of, run_unbroken
from tests.faults.plain_runbook import write_runbook
from tests.processes import start_validator
from tests.validator.supervise.tools import eventually
from validator.runs.journal import read

pytestmark = pytest.mark.usefixtures("quick_snapshot")


class Validator:
    """`validator` in a folder with locks of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {"XDG_RUNTIME_DIR": str(folder), "NO_COLOR": "1"}

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return start_validator(*arguments, cwd=self.folder, env=self.environment, start_new_session=True, **streams)

    def call(self, *arguments: str) -> tuple[int, str, str]:
        process = self.start(*arguments)
        out, err = process.communicate(timeout=120)
        return process.returncode, out, err

    def run_folder(self) -> Path:
        (folder,) = (path.parent for path in (self.folder / "reports").glob("*/run.json"))
        return folder

    def events(self, name: str) -> list[dict[str, Any]]:
        return [dict(event.fields) for event in read(self.run_folder() / "journal.jsonl") if event.event == name]

    def until(self, name: str, count: int = 1) -> None:
        """Wait until the journal holds so many of these events."""

        def reached() -> bool:
            started = any((self.folder / "reports").glob("*/journal.jsonl"))
            return started and len(self.events(name)) >= count

        assert eventually(reached, within_s=60)


@pytest.fixture
def validator(tmp_path: Path) -> Validator:
    return Validator(tmp_path)


def test_killed_at_three_moments_it_ends_in_the_same_decision(tmp_path: Path) -> None:
    """Twice in one validation, so that a resumed runner is killed as well, and once with its guardian.

    The first kill leaves a line that was cut short, the second loses the lines that were not on disk yet.
    """
    runbook = write_runbook(tmp_path)
    unbroken = run_unbroken(runbook, work=tmp_path)
    assert (unbroken.decision, unbroken.exit_code) == ("GO", 0)
    lasting_s = [0.3 * unbroken.duration_s, 0.5 * unbroken.duration_s]
    twice = kill_often(runbook, lasting_s=lasting_s, work=tmp_path, unbroken=unbroken, tails=("torn", "lost"))
    once = kill_and_resume(
        runbook, after_s=0.55 * unbroken.duration_s, work=tmp_path, unbroken=unbroken, with_guardian=True
    )
    assert twice, "the first runner ends long after it is killed"
    assert [broken.wrong for broken in (*twice, once)] == [[] for _ in (*twice, once)]


@pytest.fixture
def short_runbook(tmp_path: Path) -> Callable[..., Path]:
    """A command, then a sweep whose winner is adopted, then a command that prints what it was given."""

    def write(*, last: str = "true") -> Path:
        write_runbook(tmp_path)
        path = tmp_path / "short.yaml"
        text = f"""\
schema: 1
name: short
trainer:
  command: ["{tmp_path / "trainer.py"}"]
  args: {{steps: "{{steps}}", out: "{{out}}"}}
  metrics: {{csv: training.csv}}
defaults: {{nproc: 0, timeout: 60s, warmup_steps: 5}}
phases:
  - {{id: first, kind: command, run: "echo $$ > {tmp_path}/first.txt", accept: [outcome.rc == 0]}}
  - {{id: last, kind: command, run: "{last}"}}
  - {{id: train, kind: train, steps: 20, accept: [loss.last < 9]}}
"""
        path.write_text(text, encoding="utf-8")
        return path

    return write


def test_after_ctrl_c_it_goes_on_and_keeps_the_attempt_that_was_stopped(
    validator: Validator, short_runbook: Callable[..., Path], tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    runner = validator.start("run", str(short_runbook(last=f"echo waiting; test -e {gate} || sleep 60")))
    validator.until("attempt_started", 2)
    time.sleep(1.0)
    runner.send_signal(signal.SIGINT)
    out, _ = runner.communicate(timeout=60)
    assert runner.returncode == 130
    folder = validator.run_folder()
    assert f"validator run --resume reports/{folder.name}" in out
    first = (tmp_path / "first.txt").read_text()
    gate.touch()
    code, out, err = validator.call("run", "--resume", str(folder))
    assert code == 0, out + err
    assert (tmp_path / "first.txt").read_text() == first, "a run that had ended was started again"
    result = json.loads((folder / "result.json").read_text())
    attempts = result["phases"][1]["runs"][0]["outcome"]["attempts"]
    assert result["phases"][1]["duration_s"] >= 1.0, "the time before the interruption counts"
    assert result["duration_s"] >= result["phases"][1]["duration_s"]
    assert [(a["number"], a["reason"]) for a in attempts] == [(1, "interrupted"), (2, "exited")]
    assert (folder / "runs/last/r1.attempt1/logs/stdout.log").read_text() == "waiting\n"
    assert [event["phase"] for event in validator.events("phase_ended")].count("first") == 1


def test_nothing_is_added_to_the_folder_of_the_attempt_that_was_cut_short(
    validator: Validator, short_runbook: Callable[..., Path]
) -> None:
    runner = validator.start("run", str(short_runbook()), "--only", "train", "--set", "train.steps=1000")
    validator.until("attempt_started")
    folder = validator.run_folder()
    telemetry = folder / "runs" / "train" / "r1" / "logs" / "telemetry.csv"
    assert eventually(lambda: telemetry.is_file() and telemetry.stat().st_size > 0, within_s=30)
    runner.kill()
    runner.communicate()
    assert eventually(lambda: not processes_of(folder), within_s=60)
    before = telemetry.read_bytes()
    resumed = validator.start("run", "--resume", str(folder))
    validator.until("attempt_started", 2)
    resumed.send_signal(signal.SIGINT)
    resumed.communicate(timeout=60)
    assert (folder / "runs" / "train" / "r1.attempt1" / "logs" / "telemetry.csv").read_bytes() == before


def test_a_validation_that_has_ended_is_not_run_again(
    validator: Validator, short_runbook: Callable[..., Path], tmp_path: Path
) -> None:
    code, _, _ = validator.call("run", str(short_runbook(last="exit 1")))
    assert code == 1
    folder = validator.run_folder()
    before = (folder / "journal.jsonl").read_bytes()
    code, out, err = validator.call("run", "--resume", str(folder))
    assert code == 1
    assert "nothing to resume" in err
    assert "NO-GO" in out
    assert (folder / "journal.jsonl").read_bytes() == before


def test_a_validation_that_is_being_run_is_left_alone(
    validator: Validator, short_runbook: Callable[..., Path], tmp_path: Path
) -> None:
    runner = validator.start("run", str(short_runbook(last="sleep 60")))
    try:
        validator.until("attempt_started", 2)
        code, _, err = validator.call("run", "--resume", str(validator.run_folder()), "--no-lock")
        assert code == 4
        assert f"process {runner.pid}" in err
        assert runner.poll() is None
    finally:
        runner.send_signal(signal.SIGINT)
        runner.communicate(timeout=60)
    assert processes_of(validator.run_folder()) == []


def test_the_choices_made_at_the_start_hold(
    validator: Validator, short_runbook: Callable[..., Path], tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    book = short_runbook(last=f"test -e {gate} || sleep 60")
    runner = validator.start("run", str(book), "--skip", "train", "--set", "first.timeout=50s")
    validator.until("attempt_started", 2)
    runner.kill()
    runner.communicate()
    book.unlink()  # the folder holds all that is needed
    gate.touch()
    folder = validator.run_folder()
    code, out, err = validator.call("run", "--resume", str(folder), "--json")
    assert code == 3, err
    result = json.loads(out)
    assert result["phases"][2]["status"] == "SKIPPED"
    detail = result["phases"][1]["runs"][0]["outcome"]["attempts"][0]["detail"]
    assert "interrupted" in detail
    assert any("resumed" in key for key in result["environment"])


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("run",), "--resume RUN"),
        (("run", "--resume", "."), "run.json"),
        (("run", "--resume", ".", "--only", "first"), "--only"),
        (("run", "--resume", ".", "--skip", "first", "--dry-run"), "--skip and --dry-run"),
    ],
)
def test_bad_usage_is_told(validator: Validator, arguments: tuple[str, ...], word: str) -> None:
    code, _, err = validator.call(*arguments)
    assert code == 2
    assert word in err


def test_a_folder_of_another_runbook_is_refused(
    validator: Validator, short_runbook: Callable[..., Path], tmp_path: Path
) -> None:
    validator.call("run", str(short_runbook()), "--only", "first")
    code, _, err = validator.call("run", str(tmp_path / "plain.yaml"), "--resume", str(validator.run_folder()))
    assert code == 2
    assert "`short`" in err
    assert "`plain`" in err


def test_another_machine_is_refused(validator: Validator, short_runbook: Callable[..., Path], tmp_path: Path) -> None:
    runner = validator.start("run", str(short_runbook(last="sleep 60")))
    validator.until("attempt_started", 2)
    runner.kill()
    runner.communicate()
    folder = validator.run_folder()
    environment = json.loads((folder / "environment.json").read_text())
    environment["cpu"]["model"] = "Another CPU"
    (folder / "environment.json").write_text(json.dumps(environment))
    code, _, err = validator.call("run", "--resume", str(folder))
    assert code == 4
    assert "Another CPU" in err
