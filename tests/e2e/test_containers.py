"""Trainers in containers, by doubles of the engines: what is started, and that nothing of it is left on any path."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.folders import result_of, run_folder
from tests.processes import python, wait_until
from validator.runs.journal import read

DOUBLE = Path(__file__).with_name("engine_double.py")

_TRAINER = """
import os, signal, sys, time
{before}
for step in range(1, int(sys.argv[1]) + 1):
    time.sleep({pause})
    print(f"step {{step}} loss {{3 / step:.4f}} tok/s {{5000 + step % 7}}", flush=True)
    {after}
"""

_RUNBOOK = """\
schema: 1
name: boxed
trainer:
  command: [train.py, "{{steps}}"]
  python: {python}
  container: {{engine: {engine}, image: "repo/img:tag", args: {args}}}
  env_file: .env
  metrics: {{stdout: 'step {{step}} loss {{loss}} tok/s {{toks_per_s}}'}}
{more}
defaults: {{timeout: {timeout}, warmup_steps: 5, nproc: 0, watchdog: {{stall: 2s, first_step: 5s, interval: 0.5s}}}}
phases: [{{id: baseline, kind: train, steps: 60, accept: [toks_per_s.mean >= 4000 tok/s]}}]
"""

_IMPATIENT = """
from validator.cli import main
from validator.supervise.termination import Grace
_, *others = Grace.__init__.__defaults__
Grace.__init__.__defaults__ = (1.0, *others)
main()
"""
"""The command line, with a second in place of forty between SIGTERM and SIGKILL."""


class Engine:
    """The doubles of docker and podman, their service, and what they were asked for."""

    def __init__(self, folder: Path, workdir: Path) -> None:
        self.state, self.bin, self.workdir = folder / "state", folder / "bin", workdir
        self.state.mkdir()
        self.bin.mkdir()
        for name in ("docker", "podman"):
            program = self.bin / name
            program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "{DOUBLE}" client "{self.state}" "$@"\n')
            program.chmod(0o755)
        self.service = subprocess.Popen([sys.executable, "-S", str(DOUBLE), "service", str(self.state)])

    def calls(self, command: str) -> list[str]:
        return [line for line in (self.state / "calls").read_text().splitlines() if line.startswith(command)]

    def alive(self) -> list[str]:
        """Containers whose processes are there."""
        return [path.stem for path in self.state.glob("*.pid")]

    def write(
        self,
        *,
        before: str = "pass",
        after: str = "pass",
        pause: float = 0.004,
        engine: str = "docker",
        timeout: str = "60s",
        more: str = "",
        args: str = "[--gpus, all]",
    ) -> Path:
        (self.workdir / "train.py").write_text(_TRAINER.format(before=before, after=after, pause=pause))
        (self.workdir / ".env").write_text("HF_TOKEN=hunter2hunter2\nPLAIN=word\n")
        path = self.workdir / "boxed.yaml"
        path.write_text(_RUNBOOK.format(python=sys.executable, engine=engine, timeout=timeout, more=more, args=args))
        return path


@pytest.fixture
def engine(tmp_path: Path, workdir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    (tmp_path / "engine").mkdir()
    made = Engine(tmp_path / "engine", workdir)
    monkeypatch.setenv("PATH", f"{made.bin}:{os.environ['PATH']}")
    wait_until((made.state / "ready").exists, "the engine")
    yield made
    for pid in made.state.glob("*.pid"):
        os.killpg(int(pid.read_text()), signal.SIGKILL)
    made.service.kill()
    made.service.wait()


def runs_with_its_variables(cli, engine: Engine, name: str, **options: str) -> None:
    """A run passes, and its trainer has the variables of `.env`, none of the host's, and the working directory."""
    before = "print(os.environ['PLAIN'], len(os.environ['HF_TOKEN']), 'HOME' in os.environ, os.getcwd())"
    answer = cli("run", str(engine.write(before=before, engine=name, **options)))
    assert answer.rc == 0, answer.out + answer.err
    log = (run_folder(engine.workdir) / "runs/baseline/r1/logs/stdout.log").read_text()
    assert log.startswith(f"word 14 False {engine.workdir}\n")


@pytest.mark.parametrize("name", ["docker", "podman"])
def test_a_trainer_in_a_container_is_validated(cli, engine: Engine, workdir: Path, name: str) -> None:
    runs_with_its_variables(cli, engine, name)
    (argv,) = (json.loads(path.read_text()) for path in engine.state.glob("*.argv"))
    assert f"type=bind,source={workdir},target={workdir}" in argv
    assert not any("hunter2" in word for word in argv)
    everything = b"".join(path.read_bytes() for path in (workdir / "reports").rglob("*") if path.is_file())
    assert b"hunter2" not in everything
    environment = json.loads((run_folder(workdir) / "environment.json").read_text())
    assert environment["python"] == {"executable": sys.executable, "image": "repo/img:tag"}
    assert environment["packages"] == {}
    assert not engine.alive()
    before = len(engine.calls(""))
    assert cli("report", str(run_folder(workdir))).rc == 0
    assert len(engine.calls("")) == before


def test_a_timeout_ends_the_container(cli, engine: Engine, workdir: Path) -> None:
    answer = cli("run", str(engine.write(pause=0.1, timeout="3s")))
    assert answer.rc == 1
    assert result_of(workdir)["phases"][0]["runs"][0]["outcome"]["reason"] == "timeout"
    assert engine.calls("kill --signal TERM validator-")
    assert not engine.alive()


def test_a_stall_ends_the_container_that_ignores_sigterm(
    engine: Engine, workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its processes carry no token that could be seen from outside: the name alone reaches them."""
    monkeypatch.setenv("ENGINE_HIDES", "VALIDATOR_RUN_TOKEN")
    before = "signal.signal(signal.SIGTERM, signal.SIG_IGN)"
    path = engine.write(before=before, after="step == 20 and time.sleep(600)")
    ended = python("-c", _IMPATIENT, "run", str(path), "--no-lock", cwd=workdir)
    assert ended.returncode == 1, ended.stderr
    outcome = result_of(workdir)["phases"][0]["runs"][0]["outcome"]
    assert outcome["reason"] == "stalled"
    assert not engine.alive()


def test_a_container_outlives_its_client_and_is_ended(
    cli, engine: Engine, workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENGINE_HIDES", "VALIDATOR_RUN_TOKEN")
    runner = started(engine, engine.write(pause=0.1), workdir)
    (client,) = clients(workdir)
    os.kill(client, signal.SIGKILL)
    assert runner.wait(60) == 1
    outcome = result_of(workdir)["phases"][0]["runs"][0]["outcome"]
    assert (outcome["reason"], outcome["rc"]) == ("exited", -9)
    assert "was still running and had to be killed" in outcome["attempts"][0]["detail"]
    assert not engine.alive()


def test_ctrl_c_ends_the_container(engine: Engine, workdir: Path) -> None:
    runner = started(engine, engine.write(pause=0.1), workdir)
    time.sleep(0.3)
    runner.send_signal(signal.SIGINT)
    assert runner.wait(60) == 130
    assert not engine.alive()


@pytest.mark.parametrize("hides", ["", "VALIDATOR_RUN_TOKEN"])
def test_a_killed_runner_leaves_no_container(
    engine: Engine, workdir: Path, monkeypatch: pytest.MonkeyPatch, hides: str
) -> None:
    monkeypatch.setenv("ENGINE_HIDES", hides)
    runner = started(engine, engine.write(pause=0.1), workdir)
    runner.kill()
    runner.wait()
    wait_until(lambda: not engine.alive(), "the end of the container", timeout_s=30)


def test_what_a_killed_guardian_left_is_ended_when_the_run_is_resumed(
    cli, engine: Engine, workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENGINE_HIDES", "VALIDATOR_RUN_TOKEN")
    runner = started(engine, engine.write(pause=0.1), workdir)
    (guardian,) = (
        int(pid)
        for pid in Path(f"/proc/{runner.pid}/task/{runner.pid}/children").read_text().split()
        if b"guardian.py" in Path(f"/proc/{pid}/cmdline").read_bytes()
    )
    os.kill(guardian, signal.SIGKILL)
    runner.kill()
    runner.wait()
    (left,) = engine.alive()
    engine.write()
    answer = cli("run", "--resume", str(run_folder(workdir)))
    assert answer.rc == 0, answer.out + answer.err
    assert any(left in line for line in engine.calls("kill"))
    assert not engine.alive()


def test_a_run_in_a_container_is_ended_behind_its_steps(cli, engine: Engine, workdir: Path) -> None:
    path = engine.write(pause=0.02, more="  stop: at_steps")
    path.write_text(path.read_text().replace('"{steps}"', '"100000"'))
    answer = cli("run", str(path))
    assert answer.rc == 0, answer.out + answer.err
    outcome = result_of(workdir)["phases"][0]["runs"][0]["outcome"]
    assert (outcome["reason"], outcome["rc"]) == ("at_steps", 143)
    assert not engine.alive()


def test_apptainer_passes_variables_by_name(cli, engine: Engine) -> None:
    (engine.bin / "apptainer").write_text(
        f"""#!{sys.executable}
import os, sys
words = sys.argv[1:]
assert words[:2] == ["exec", "--cleanenv"], words
begin = words.index("repo/img:tag") + 1
inner = {{name[13:]: value for name, value in os.environ.items() if name.startswith("APPTAINERENV_")}}
os.execve(words[begin], words[begin:], {{**inner, "PATH": "/bin"}})
"""
    )
    (engine.bin / "apptainer").chmod(0o755)
    runs_with_its_variables(cli, engine, "apptainer", args="[--nv]")


def test_enroot_enters_the_working_directory(cli, engine: Engine) -> None:
    (engine.bin / "enroot").write_text(
        f"""#!{sys.executable}
import os, sys
words = sys.argv[1:]
assert words[0] == "start", words
begin = words.index("repo/img:tag") + 1
named = [words[i + 1] for i in range(begin) if words[i] == "--env"]
os.chdir("/")
os.execve("/bin/sh", words[begin:], {{**{{n: os.environ[n] for n in named if n in os.environ}}, "PATH": "/bin"}})
"""
    )
    (engine.bin / "enroot").chmod(0o755)
    runs_with_its_variables(cli, engine, "enroot", args="[]")


def test_an_engine_that_is_absent(cli, engine: Engine) -> None:
    path = engine.write()
    (engine.bin / "podman").unlink()
    path.write_text(path.read_text().replace("engine: docker", "engine: podman"))
    checked = cli("check", str(path))
    assert checked.rc == 0
    assert "warning: container engine podman is not on PATH" in checked.err
    answer = cli("run", str(path))
    assert answer.rc == 4
    assert "install podman, or name another engine" in answer.err


def started(engine: Engine, path: Path, workdir: Path) -> subprocess.Popen[bytes]:
    """A runner in a session of its own, once its container runs and its journal says so."""
    runner = subprocess.Popen(
        [sys.executable, "-m", "validator", "run", str(path), "--no-lock"],
        cwd=workdir,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    wait_until(lambda: engine.alive() and clients(workdir), "the container")
    return runner


def clients(workdir: Path) -> list[int]:
    """The pids of the clients that were started so far."""
    journals = (workdir / "reports").glob("*/journal.jsonl")
    return [event.fields["pid"] for path in journals for event in read(path) if event.event == "attempt_started"]
