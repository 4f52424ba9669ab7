"""The supervisor: how a run begins and ends, with the right reason and the last words."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import sys
import time
from pathlib import Path

import pytest

from tests.validator.supervise import programs
from tests.validator.supervise.tools import Make, Run, watchdog
from validator.model.plan import RunSpec
from validator.model.record import Outcome
from validator.model.runbook import TrainerMetrics
from validator.runs.journal import read
from validator.supervise.capture import LogCap
from validator.supervise.monitor import Progress

NOTHING = TrainerMetrics()


def _command(line: str) -> tuple[str, ...]:
    return ("sh", "-c", line)


def test_a_command_that_succeeds(make_spec: Make, supervised: Run, run_dir: Path) -> None:
    outcome = supervised(make_spec(_command("echo out; echo err >&2"), launcher="exec", metrics=NOTHING))
    assert outcome.ok
    assert outcome.last.detail == "exited with code 0"
    logs = run_dir / "runs/phase/r1/logs"
    assert (logs / "stdout.log").read_text() == "out\n"
    assert (logs / "stderr.log").read_text() == "err\n"


def test_the_journal_tells_the_whole_run(make_spec: Make, supervised: Run, run_dir: Path) -> None:
    spec = make_spec(("true",))
    outcome = supervised(spec)
    events = read(run_dir / "journal.jsonl")
    assert [e.event for e in events] == ["run_started", "attempt_started", "attempt_ended", "run_ended"]
    assert RunSpec.model_validate(events[0].fields["spec"]) == spec
    assert events[1].fields["pid"] == outcome.last.pid
    assert Outcome.model_validate(events[3].fields["outcome"]) == outcome


def test_progress_is_told_while_it_runs(make_spec: Make, supervised: Run) -> None:
    seen: list[Progress] = []
    outcome = supervised(make_spec(programs.HEALTHY, steps=10, watchdog=watchdog(stall=20.0)), on_progress=seen.append)
    assert outcome.ok
    last = seen[-1]
    assert (last.state, last.step, last.steps, last.loss) == ("ended", 10, 10, pytest.approx(0.3))
    assert [p.step or 0 for p in seen] == sorted(p.step or 0 for p in seen)
    assert any(p.state == "running" and p.eta_s is not None for p in seen)


def test_an_exit_code_comes_with_the_step_and_the_last_words(make_spec: Make, supervised: Run) -> None:
    program = programs.TRAINER + "for s in range(1, 6): row(s)\nraise RuntimeError('out of cheese')\n"
    outcome = supervised(make_spec(program, steps=10, watchdog=watchdog(stall=20.0)))
    assert (outcome.reason, outcome.rc) == ("exited", 1)
    assert outcome.last.detail == "exited with code 1 after 5 steps: last words: RuntimeError: out of cheese"


def test_the_rank_that_failed_first_has_the_word(make_spec: Make, supervised: Run) -> None:
    program = programs.trainer("""
for rank, when, text in ((0, 20, "rank 1 was lost"), (1, 10, "CUDA error")):
    folder = f"{out}/logs/ranks/none_x/attempt_0/{rank}"
    os.makedirs(folder)
    with open(folder + "/error.json", "w") as file:
        json.dump({"message": {"message": f"RuntimeError: {text}", "extraInfo": {"timestamp": str(when)}}}, file)
sys.exit(1)
""")
    outcome = supervised(make_spec(program))
    assert outcome.last.detail == "exited with code 1: last words of rank 1: RuntimeError: CUDA error"


def test_hostile_last_words_are_made_harmless(make_spec: Make, supervised: Run) -> None:
    line = "printf '\\033[31mBoom\\033[0m\\007 %01000d' 7 >&2; exit 9"
    detail = supervised(make_spec(_command(line), launcher="exec")).last.detail
    assert "\x1b" not in detail
    assert "\x07" not in detail
    assert "Boom 000" in detail
    assert len(detail) < 400


def test_death_by_a_signal_is_called_by_its_name(make_spec: Make, supervised: Run) -> None:
    outcome = supervised(make_spec(_command("kill -SEGV $$"), launcher="exec"))
    assert (outcome.reason, outcome.rc) == ("exited", -signal.SIGSEGV)
    assert "ended by SIGSEGV" in (outcome.last.detail or "")


@pytest.mark.parametrize(
    ("argv", "changes", "words"),
    [
        (("/no/such/program",), {}, "/no/such/program"),
        (("true",), {"cwd": "/no/such/folder"}, "/no/such/folder"),
        (("/etc/passwd",), {}, "Permission denied"),
    ],
)
def test_what_cannot_be_started_is_infrastructure(
    argv: tuple[str, ...], changes: dict[str, str], words: str, make_spec: Make, supervised: Run
) -> None:
    outcome = supervised(make_spec(argv, retries=2, **changes))
    assert len(outcome.attempts) == 1
    assert (outcome.reason, outcome.rc, outcome.last.pid) == ("infrastructure", None, None)
    assert words in (outcome.last.detail or "")


def test_the_environment_is_added_to_and_ranks_are_not_handed_down(
    make_spec: Make, supervised: Run, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "5")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "outer")
    monkeypatch.setenv("INHERITED", "yes")
    spec = make_spec(_command("env"), launcher="python", env={"ADDED": "a=b", "PYTHONUNBUFFERED": "0"})
    supervised(spec, token="t0ken")
    lines = (run_dir / "runs/phase/r1/logs/stdout.log").read_text().splitlines()
    assert {"INHERITED=yes", "ADDED=a=b", "PYTHONUNBUFFERED=0", "VALIDATOR_RUN_TOKEN=t0ken"} <= set(lines)
    assert not any(line.startswith(("RANK=", "TORCHELASTIC_")) for line in lines)


def test_torchrun_gets_a_free_port_and_the_flight_recorder(make_spec: Make, supervised: Run, run_dir: Path) -> None:
    spec = make_spec(_command("echo {port} ${port}; env"), launcher="torchrun", nproc=2)
    outcome = supervised(spec)
    first, *lines = (run_dir / "runs/phase/r1/logs/stdout.log").read_text().splitlines()
    assert 1024 <= int(first) < 65536  # the shell's own ${port} is empty
    assert outcome.last.command[2].startswith(f"echo {first.strip()} ${{port}}")
    assert "TORCH_NCCL_DUMP_ON_TIMEOUT=1" in lines
    assert "TORCH_FR_BUFFER_SIZE=2000" in lines


def test_a_lost_race_for_the_port_is_tried_again_on_another(make_spec: Make, supervised: Run, run_dir: Path) -> None:
    marker = run_dir / "tried"
    line = f"test -e {marker} && exit 0; touch {marker}; echo 'EADDRINUSE: 127.0.0.1:{{port}}' >&2; exit 1"
    outcome = supervised(make_spec(_command(line), launcher="torchrun", nproc=2))
    assert outcome.ok
    first, second = outcome.attempts
    assert first.reason == "infrastructure"
    assert "was taken" in (first.detail or "")
    assert first.command != second.command


def test_whoever_is_told_of_progress_may_take_its_time(make_spec: Make, supervised: Run) -> None:
    """A report of the state is written there: it must not make the run look longer than it was."""
    told: list[Progress] = []

    def slowly(progress: Progress) -> None:
        if not told:
            time.sleep(4.0)
        told.append(progress)

    outcome = supervised(make_spec(_command("sleep 0.5"), launcher="exec"), on_progress=slowly)
    assert told
    assert (outcome.reason, outcome.rc) == ("exited", 0)
    assert 0.5 <= outcome.last.duration_s < 3.0


def test_a_run_past_its_time_is_ended(make_spec: Make, supervised: Run) -> None:
    began = time.monotonic()
    outcome = supervised(make_spec(_command("sleep 60"), launcher="exec", timeout_s=0.3))
    assert outcome.reason == "timeout"
    assert outcome.rc == -signal.SIGTERM
    assert "timeout of 0.3 s" in (outcome.last.detail or "")
    assert time.monotonic() - began < 5


def test_a_program_that_ignores_sigterm_is_killed(make_spec: Make, supervised: Run) -> None:
    outcome = supervised(make_spec(programs.IGNORES_SIGTERM, timeout_s=2.0))  # by then it ignores it, on any machine
    assert (outcome.reason, outcome.rc) == ("timeout", -signal.SIGKILL)
    assert outcome.last.killed == (outcome.last.pid,)
    assert "had to be killed" in (outcome.last.detail or "")


def test_a_failure_of_the_trainer_is_not_tried_again(make_spec: Make, supervised: Run) -> None:
    assert len(supervised(make_spec(_command("exit 1"), retries=3)).attempts) == 1


def test_what_an_earlier_runner_left_is_kept_aside(make_spec: Make, supervised: Run, run_dir: Path) -> None:
    earlier = run_dir / "runs/phase/r1"
    earlier.mkdir(parents=True)
    (earlier / "training.csv").write_text("precious")
    assert supervised(make_spec(("true",))).ok
    assert (run_dir / "runs/phase/r1.attempt1/training.csv").read_text() == "precious"
    assert not (earlier / "training.csv").exists()


def test_a_kernel_without_pidfd_is_served(make_spec: Make, supervised: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(pid: int) -> int:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(os, "pidfd_open", unknown)
    began = time.monotonic()
    assert supervised(make_spec(_command("sleep 0.3; exit 5"), launcher="exec")).rc == 5
    assert time.monotonic() - began < 5


def test_a_flood_of_output_is_capped_and_does_not_slow_the_writer(
    make_spec: Make, supervised: Run, run_dir: Path
) -> None:
    program = """
import sys
line = b"x" * 99 + b"\\n"
for number in range(300_000):
    sys.stdout.buffer.write(line)
sys.stdout.buffer.write(b"the last line\\n")
"""
    outcome = supervised(make_spec(program), log_cap=LogCap(head=100_000, tail=200_000))
    assert outcome.ok
    log = run_dir / "runs/phase/r1/logs/stdout.log"
    assert log.stat().st_size < 310_000
    assert log.read_bytes().endswith(b"the last line\n")
    assert b"left out here" in log.read_bytes()


def test_secrets_do_not_reach_the_outcome(make_spec: Make, supervised: Run, run_dir: Path) -> None:
    def redact(text: str) -> str:
        return text.replace("hunter2", "[redacted]")

    line = "echo 'Error: bad key hunter2' >&2; exit 1"
    outcome = supervised(make_spec(_command(line), launcher="exec"), redact=redact)
    assert "hunter2" not in outcome.model_dump_json()


def test_a_port_that_is_listened_on_is_never_chosen() -> None:
    from validator.supervise.launch import free_port

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        ports = {free_port() for _ in range(50)}
        assert taken.getsockname()[1] not in ports
    assert free_port(avoid=ports) not in ports


def test_a_run_under_the_interpreter_of_this_process(make_spec: Make, supervised: Run, run_dir: Path) -> None:
    spec = make_spec((sys.executable, "-c", "print('hi')"))
    assert supervised(spec).ok
    assert (run_dir / spec.out / "logs/stdout.log").read_text() == "hi\n"


@pytest.mark.parametrize(("free", "code", "full"), [(0, 1, True), (4096, 1, True), (1 << 30, 1, False), (0, 0, False)])
def test_a_failure_on_a_full_disk_is_told_as_one(
    free: int, code: int, full: bool, make_spec: Make, supervised: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log is on the same disk, so the trainer itself cannot say it."""
    usage = shutil.disk_usage("/")._replace(free=free)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    outcome = supervised(make_spec(_command(f"exit {code}"), launcher="exec"))
    assert (outcome.reason, outcome.last.disk_full) == ("exited", full)
    assert (outcome.last.detail or "").endswith("no room was left on the disk") == full
