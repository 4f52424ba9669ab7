"""Whatever happens to the runner, nothing that it started survives it."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.validator.supervise.tools import eventually, marked, runs
from validator.runs.journal import Journal, read
from validator.supervise.termination import end_marked

TREE = """
import os, signal, sys, time
if "stubborn" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(120)
    os._exit(0)
os.wait()
open(os.environ["OUT"] + "/ready", "w").close()
time.sleep(120)
"""
"""A trainer with a grandchild in a session of its own."""


class Runner:
    """A runner under test, in a session of its own as a terminal's foreground job is."""

    def __init__(self, folder: Path, *arguments: str, **spec: Any) -> None:
        self.folder = folder
        self.token = secrets.token_hex(8)
        program = folder / "program.py"
        program.write_text(TREE, encoding="utf-8")
        self.out = folder / "runs" / "p" / "r1"
        values = {
            "id": "p/r1",
            "phase": "p",
            "kind": "command",
            "launcher": "python",
            "argv": [sys.executable, "-S", str(program), *arguments],
            "env": {"OUT": str(self.out)},
            "out": "runs/p/r1",
            "timeout_s": 60,
            **spec,
        }
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("runner.py")), str(folder), self.token, json.dumps(values)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
            start_new_session=True,
        )
        assert eventually((self.out / "ready").exists, within_s=20), self.process.communicate()
        assert len(marked(self.token)) == 2
        # The tree may be there a moment before the runner has written down that it started it.
        journal = folder / "journal.jsonl"
        assert eventually(lambda: "attempt_started" in journal.read_text(encoding="utf-8"))

    def guardian(self) -> int:
        """Pid of the guardian: the runner's child that executes guardian.py."""
        for name in Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split():
            if b"guardian.py" in Path(f"/proc/{name}/cmdline").read_bytes():
                return int(name)
        raise AssertionError("the runner has no guardian")


@pytest.fixture
def runner(tmp_path: Path) -> Iterator[Runner]:
    """A runner with a tree under way; swept up whatever the test does."""
    started = Runner(tmp_path)
    yield started
    started.process.kill()
    started.process.communicate()
    end_marked(started.token, term_s=0)


def test_sigkill_of_the_runner_leaves_nothing_and_a_note(runner: Runner) -> None:
    pids, guardian = marked(runner.token), runner.guardian()
    runner.process.kill()
    runner.process.wait()
    assert eventually(lambda: not marked(runner.token))
    assert eventually(lambda: not runs(guardian))
    assert set(pids) <= set(json.loads((runner.folder / "guardian.json").read_text())["found"])
    events = [event.event for event in read(runner.folder / "journal.jsonl")]
    assert events == ["run_started", "attempt_started"]
    Journal.open(runner.folder / "journal.jsonl").close()  # nobody holds it any more


def test_sigkill_of_the_runner_with_a_trainer_that_ignores_sigterm(tmp_path: Path) -> None:
    runner = Runner(tmp_path, "stubborn")
    runner.process.kill()
    runner.process.communicate()
    assert eventually(lambda: not marked(runner.token))
    assert eventually((tmp_path / "guardian.json").exists)
    assert len(json.loads((tmp_path / "guardian.json").read_text())["killed"]) == 2


def test_what_is_left_when_the_guardian_died_first_can_be_found_by_the_journal(runner: Runner) -> None:
    os.kill(runner.guardian(), signal.SIGKILL)
    runner.process.kill()
    runner.process.wait()
    left = marked(runner.token)
    assert len(left) == 2
    (marker,) = (e.fields["marker"] for e in read(runner.folder / "journal.jsonl") if e.event == "attempt_started")
    assert set(end_marked(marker, term_s=2.0)) == set(left)
    assert marked(runner.token) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_run_in_order(runner: Runner, number: signal.Signals) -> None:
    guardian = runner.guardian()
    runner.process.send_signal(number)
    stdout, stderr = runner.process.communicate(timeout=20)
    assert stdout == "interrupted -15\n", stderr
    assert marked(runner.token) == []
    assert not runs(guardian)
    (ended,) = (e.fields["attempt"] for e in read(runner.folder / "journal.jsonl") if e.event == "attempt_ended")
    assert number.name in ended["detail"]


def test_ctrl_c_in_a_terminal_reaches_the_whole_group_and_still_ends_in_order(runner: Runner) -> None:
    os.killpg(runner.process.pid, signal.SIGINT)
    stdout, stderr = runner.process.communicate(timeout=20)
    assert stdout == "interrupted -15\n", stderr
    assert marked(runner.token) == []


def test_a_second_ctrl_c_kills_at_once(tmp_path: Path) -> None:
    runner = Runner(tmp_path, "stubborn")
    began = time.monotonic()
    runner.process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    runner.process.send_signal(signal.SIGINT)
    stdout, stderr = runner.process.communicate(timeout=20)
    assert stdout == "interrupted -9\n", stderr
    assert time.monotonic() - began < 9.0  # less than the patience of term_s
    assert marked(runner.token) == []


def test_the_guardian_leaves_other_validations_alone(runner: Runner, tmp_path: Path) -> None:
    other_folder = tmp_path / "other"
    other_folder.mkdir()
    other = Runner(other_folder)
    runner.process.kill()
    runner.process.wait()
    assert eventually(lambda: not marked(runner.token))
    assert len(marked(other.token)) == 2
    other.process.send_signal(signal.SIGINT)
    other.process.communicate(timeout=20)
