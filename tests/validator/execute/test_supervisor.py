"""The supervisor: every way in which a run can end, with the right reason, evidence, and no process left."""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.validator.execute import programs
from tests.validator.execute.tools import SHORT, eventually, marked, runs, watchdog
from validator.execute.cancel import CancelToken
from validator.execute.capture import LogCap
from validator.execute.guardian import Guardian
from validator.execute.journal import read
from validator.execute.progress import Progress
from validator.model.outcome import Outcome
from validator.model.plan import RunSpec
from validator.model.runbook import TrainerMetrics

Make = Callable[..., RunSpec]
Run = Callable[..., Outcome]
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
    outcome = supervised(make_spec(programs.HEALTHY, steps=10, watchdog=watchdog()), on_progress=seen.append)
    assert outcome.ok
    last = seen[-1]
    assert (last.state, last.step, last.steps, last.loss) == ("ended", 10, 10, pytest.approx(0.3))
    assert [p.step or 0 for p in seen] == sorted(p.step or 0 for p in seen)
    assert any(p.state == "running" and p.eta_s is not None for p in seen)


def test_an_exit_code_comes_with_the_step_and_the_last_words(make_spec: Make, supervised: Run) -> None:
    program = programs.TRAINER + "for s in range(1, 6): row(s)\nraise RuntimeError('out of cheese')\n"
    outcome = supervised(make_spec(program, steps=10, watchdog=watchdog()))
    assert (outcome.reason, outcome.rc) == ("exited", 1)
    assert outcome.last.detail == "exited with code 1 after 5 steps: last words: RuntimeError: out of cheese"


def test_the_rank_that_failed_first_has_the_word(make_spec: Make, supervised: Run) -> None:
    program = (
        programs.TRAINER
        + """
for rank, when, text in ((0, 20, "rank 1 was lost"), (1, 10, "CUDA error")):
    folder = f"{out}/logs/ranks/none_x/attempt_0/{rank}"
    os.makedirs(folder)
    with open(folder + "/error.json", "w") as file:
        json.dump({"message": {"message": f"RuntimeError: {text}", "extraInfo": {"timestamp": str(when)}}}, file)
sys.exit(1)
"""
    )
    outcome = supervised(make_spec(program))
    assert outcome.last.detail == "exited with code 1: last words of rank 1: RuntimeError: CUDA error"


def test_hostile_last_words_are_made_harmless(make_spec: Make, supervised: Run) -> None:
    line = "printf '\\033[31mBoom\\033[0m\\007 %01000d' 7 >&2; exit 9"
    detail = supervised(make_spec(_command(line), launcher="exec")).last.detail
    assert detail is not None
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


def test_a_run_past_its_time_is_ended(make_spec: Make, supervised: Run) -> None:
    began = time.monotonic()
    outcome = supervised(make_spec(_command("sleep 60"), launcher="exec", timeout_s=0.3))
    assert outcome.reason == "timeout"
    assert outcome.rc == -signal.SIGTERM
    assert "timeout of 0.3 s" in (outcome.last.detail or "")
    assert time.monotonic() - began < 5


def test_a_program_that_ignores_sigterm_is_killed(make_spec: Make, supervised: Run) -> None:
    outcome = supervised(make_spec(programs.IGNORES_SIGTERM, timeout_s=0.5))
    assert (outcome.reason, outcome.rc) == ("timeout", -signal.SIGKILL)
    assert outcome.last.killed == (outcome.last.pid,)
    assert "had to be killed" in (outcome.last.detail or "")


def test_a_stopped_program_is_ended_too(make_spec: Make, supervised: Run) -> None:
    program = programs.TRAINER + "row(1); row(2); os.kill(os.getpid(), signal.SIGSTOP); time.sleep(60)"
    outcome = supervised(make_spec(program, watchdog=watchdog()))
    assert outcome.reason == "stalled"
    assert "is stopped (state T)" in (outcome.last.detail or "")
    assert outcome.last.pid is not None
    assert not runs(outcome.last.pid)


def test_a_background_heartbeat_does_not_hide_a_stall(make_spec: Make, supervised: Run, run_dir: Path) -> None:
    outcome = supervised(make_spec(programs.STALLS_WHILE_BEATING, steps=10, watchdog=watchdog()))
    assert outcome.reason == "stalled"
    assert "after step 5" in (outcome.last.detail or "")
    out = run_dir / "runs/phase/r1"
    assert (out / ".HALT").read_text().startswith("stalled: no step for")
    assert (out / ".anomaly_type").read_text() == "stall\n"
    assert [e.fields["code"] for e in read(run_dir / "journal.jsonl") if e.event == "anomaly"] == ["stall"]


def test_slow_is_not_stalled(make_spec: Make, supervised: Run, run_dir: Path) -> None:
    seen: list[Progress] = []
    spec = make_spec(programs.SLOW_BUT_BUSY, steps=6, watchdog=watchdog())
    outcome = supervised(spec, on_progress=seen.append)
    assert outcome.ok
    assert any(p.state == "slow" and "but its processes use" in (p.note or "") for p in seen)
    assert [e.fields["code"] for e in read(run_dir / "journal.jsonl") if e.event == "anomaly"] == ["slow"]


def test_silence_before_the_first_step_has_its_own_limit(make_spec: Make, supervised: Run) -> None:
    outcome = supervised(make_spec(programs.NEVER_STARTS, watchdog=watchdog(first_step=0.7, stall=0.1)))
    assert outcome.reason == "stalled"
    assert "before the first step" in (outcome.last.detail or "")
    assert outcome.duration_s > 0.7


def test_a_stall_leaves_evidence(make_spec: Make, supervised: Run, run_dir: Path) -> None:
    outcome = supervised(make_spec(programs.DUMPS_STACKS, watchdog=watchdog()))
    assert outcome.reason == "stalled"
    bundle = [run_dir / path for path in outcome.last.bundle]
    assert [path.name.split("_")[0] for path in bundle[:3]] == ["machine.json", "processes.json", "stackdump"]
    assert "stuck_in_a_collective" in bundle[2].read_text()
    machine = json.loads(bundle[0].read_text())
    assert machine["run"]["id"] == "phase/r1"
    assert machine["memory_kib"]["MemTotal"] > 0
    processes = json.loads(bundle[1].read_text())["processes"]
    assert [row["pid"] for row in processes] == [outcome.last.pid]
    assert "program.py" in processes[0]["command"]


def test_a_program_without_handlers_still_tells_its_stack(make_spec: Make, supervised: Run, run_dir: Path) -> None:
    program = "import time\ndef waits_for_nothing():\n    time.sleep(60)\nwaits_for_nothing()\n"
    outcome = supervised(make_spec(program, watchdog=watchdog(first_step=0.5)))
    assert outcome.reason == "stalled"
    assert "waits_for_nothing" in (run_dir / "runs/phase/r1/logs/stderr.log").read_text()


def test_a_process_that_does_not_handle_sigusr1_is_not_hurt_by_it(make_spec: Make, supervised: Run) -> None:
    outcome = supervised(make_spec(_command("sleep 60"), launcher="exec", watchdog=watchdog(first_step=0.3)))
    assert (outcome.reason, outcome.rc) == ("stalled", -signal.SIGTERM)


def test_a_trainer_that_honors_halt_ends_by_itself(make_spec: Make, supervised: Run, run_dir: Path) -> None:
    outcome = supervised(make_spec(programs.HONORS_HALT, watchdog=watchdog()))
    assert (outcome.reason, outcome.rc) == ("halted", 3)
    assert "the loss is nan at step 3" in (outcome.last.detail or "")
    assert (run_dir / "runs/phase/r1/.anomaly_type").read_text() == "nan_loss\n"
    assert outcome.last.killed == ()


def test_a_trainer_that_ignores_halt_is_ended(make_spec: Make, supervised: Run) -> None:
    program = programs.TRAINER + "for s in range(1, 999): time.sleep(0.02); row(s, rate=0.0)"
    outcome = supervised(make_spec(program, watchdog=watchdog()))
    assert (outcome.reason, outcome.rc) == ("halted", -signal.SIGTERM)
    assert "toks_per_s was 0 in 4 records in a row" in (outcome.last.detail or "")


def test_halt_false_only_writes_the_anomaly_down(make_spec: Make, supervised: Run, run_dir: Path) -> None:
    program = programs.TRAINER + "for s in range(1, 20): time.sleep(0.02); row(s, float('nan'), grad_norm=0.0)"
    outcome = supervised(make_spec(program, watchdog=watchdog(halt=False)))
    assert outcome.ok
    codes = [e.fields["code"] for e in read(run_dir / "journal.jsonl") if e.event == "anomaly"]
    assert sorted(codes) == ["nan_loss", "zero_grad"]
    assert not (run_dir / "runs/phase/r1/.HALT").exists()


def test_a_halt_written_by_somebody_else_is_told_as_one(make_spec: Make, supervised: Run) -> None:
    program = programs.TRAINER + "open(out + '/.HALT', 'w').close(); sys.exit(3)"
    outcome = supervised(make_spec(program))
    assert (outcome.reason, outcome.rc) == ("halted", 3)


def test_an_anomaly_that_the_trainer_names_itself_is_told(make_spec: Make, supervised: Run) -> None:
    program = programs.TRAINER + "open(out + '/.anomaly_type', 'w').write('nan_grad_norm\\n'); sys.exit(4)"
    outcome = supervised(make_spec(program))
    assert outcome.reason == "exited"
    assert outcome.last.detail == "stopped itself for nan_grad_norm: exited with code 4"


def test_a_stalled_run_is_tried_again_in_a_fresh_folder(make_spec: Make, supervised: Run, run_dir: Path) -> None:
    marker = run_dir / "tried"
    program = (
        programs.TRAINER
        + f"""
row(1)
if not os.path.exists({str(marker)!r}):
    open({str(marker)!r}, "w").close(); time.sleep(60)
"""
    )
    outcome = supervised(make_spec(program, retries=1, watchdog=watchdog()))
    assert [a.reason for a in outcome.attempts] == ["stalled", "exited"]
    assert outcome.ok
    assert all((run_dir / path).is_file() for path in outcome.attempts[0].bundle)
    assert outcome.attempts[0].bundle[0].startswith("runs/phase/r1.attempt1/dump/")
    assert not (run_dir / "runs/phase/r1/.HALT").exists()
    assert (run_dir / "runs/phase/r1.attempt1/.HALT").exists()


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


def test_a_request_to_stop_ends_the_run_in_order(make_spec: Make, supervised: Run, tmp_path: Path) -> None:
    program = "import signal, sys, time\nsignal.signal(signal.SIGTERM, lambda *a: sys.exit(7))\ntime.sleep(60)\n"
    cancel = CancelToken()
    timer = threading.Timer(0.5, cancel.request)
    timer.start()
    began = time.monotonic()
    outcome = supervised(make_spec(program, retries=2), cancel=cancel)
    timer.join()
    cancel.close()
    assert (outcome.reason, outcome.rc) == ("interrupted", 7)
    assert len(outcome.attempts) == 1
    assert time.monotonic() - began < 3


def test_after_a_request_to_stop_nothing_is_started(make_spec: Make, supervised: Run, run_dir: Path) -> None:
    cancel = CancelToken()
    cancel.request("received SIGINT")
    outcome = supervised(make_spec(_command(f"touch {run_dir}/started"), retries=2), cancel=cancel)
    cancel.close()
    assert (outcome.reason, outcome.rc, outcome.last.pid) == ("interrupted", None, None)
    assert not (run_dir / "started").exists()


def test_leftovers_do_not_lengthen_the_run(make_spec: Make, supervised: Run) -> None:
    outcome = supervised(make_spec(_command("setsid sleep 60 & exit 0"), launcher="exec"))
    assert outcome.duration_s < 0.9  # waiting for it to go takes a second and more
    assert len(outcome.last.killed) == 1


def test_a_guardian_that_was_stopped_does_not_hold_up_the_end() -> None:
    guardian = Guardian.start(token=secrets.token_hex(8))
    os.kill(guardian.pid, signal.SIGSTOP)
    guardian.close()
    assert not runs(guardian.pid)


def test_a_second_request_does_not_wait(make_spec: Make, supervised: Run) -> None:
    cancel = CancelToken()
    timers = [threading.Timer(delay, cancel.request) for delay in (0.4, 0.8)]
    for timer in timers:
        timer.start()
    began = time.monotonic()
    patient = SHORT.__class__(term_s=30.0, leftover_s=30.0)
    outcome = supervised(make_spec(programs.IGNORES_SIGTERM), cancel=cancel, grace=patient)
    for timer in timers:
        timer.join()
    cancel.close()
    assert (outcome.reason, outcome.rc) == ("interrupted", -signal.SIGKILL)
    assert time.monotonic() - began < 4


def test_a_double_fork_into_another_session_is_found_and_ended(make_spec: Make, supervised: Run, run_dir: Path) -> None:
    pid_file = run_dir / "pid"
    token = secrets.token_hex(8)
    spec = make_spec(programs.DOUBLE_FORK)
    outcome = supervised(spec.model_copy(update={"argv": (*spec.argv, str(pid_file))}), token=token)
    grandchild = int(pid_file.read_text())
    assert outcome.ok  # the trainer itself did well
    assert outcome.last.killed == (grandchild,)
    assert "left behind" in (outcome.last.detail or "")
    assert not runs(grandchild)
    assert marked(token) == []


def test_an_orphan_that_dropped_the_marker_is_ended_as_well(make_spec: Make, supervised: Run, run_dir: Path) -> None:
    pid_file = run_dir / "pid"
    line = f"(setsid env -i sleep 60 & echo $! > {pid_file}) ; while ! test -s {pid_file}; do :; done; sleep 0.1"
    outcome = supervised(make_spec(_command(line), launcher="exec"))
    assert outcome.ok
    assert len(outcome.last.killed) == 1
    assert not runs(outcome.last.killed[0])


def test_helpers_that_end_by_themselves_are_not_counted(make_spec: Make, supervised: Run) -> None:
    outcome = supervised(make_spec(_command("sleep 0.2 & exit 0"), launcher="exec"))
    assert outcome.ok
    assert outcome.last.killed == ()


def test_no_zombie_is_left(make_spec: Make, supervised: Run) -> None:
    before = _children()  # a browser that was closed in another test may have left its own
    supervised(make_spec(_command("(sleep 0.1 &) ; (sleep 60 &) ; true"), launcher="exec"))
    left = _children() - before
    states = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] for pid in left]
    assert "Z" not in states


def _children() -> set[str]:
    return set(Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split())


def test_a_child_of_the_runner_that_is_not_the_runs_is_spared(make_spec: Make, supervised: Run) -> None:
    import subprocess

    with subprocess.Popen(["sleep", "60"], start_new_session=True) as older:
        supervised(make_spec(_command("(setsid sleep 60 &) ; true"), launcher="exec"))
        assert runs(older.pid)
        older.kill()


def test_a_helper_that_the_runner_starts_during_a_run_is_spared(make_spec: Make, supervised: Run) -> None:
    """`nvidia-smi` captures start in the background while a run is under way, in sessions of their own."""
    import subprocess

    helpers: list[subprocess.Popen[bytes]] = []
    timer = threading.Timer(0.3, lambda: helpers.append(subprocess.Popen(["sleep", "60"], start_new_session=True)))
    timer.start()
    outcome = supervised(make_spec(_command("sleep 1; (setsid sleep 60 &) ; true"), launcher="exec"))
    timer.join()
    assert runs(helpers[0].pid)
    assert len(outcome.last.killed) == 1
    helpers[0].kill()
    helpers[0].wait()


def test_an_error_in_the_display_leaves_no_process(make_spec: Make, supervised: Run) -> None:
    token = secrets.token_hex(8)

    def broken(progress: Progress) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        supervised(make_spec(_command("sleep 60 & sleep 60"), launcher="exec"), token=token, on_progress=broken)
    assert marked(token) == []


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


def test_the_guardian_is_replaced_when_it_died(make_spec: Make, supervised: Run) -> None:
    token = secrets.token_hex(8)
    with Guardian.start(token=token) as guardian:
        first = guardian.pid
        os.kill(first, signal.SIGKILL)
        assert eventually(lambda: not runs(first))
        assert supervised(make_spec(("true",)), token=token, guardian=guardian).ok
        assert guardian.pid != first
        assert runs(guardian.pid)
    assert not runs(guardian.pid)


def test_a_port_that_is_listened_on_is_never_chosen() -> None:
    from validator.execute.launch import free_port

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


def test_a_worker_that_appeared_late_counts_as_activity(make_spec: Make, supervised: Run) -> None:
    """The rank that computes may be a process that no regular look has met yet."""
    program = (
        programs.TRAINER
        + """
row(1); row(2)
time.sleep(0.3)
if os.fork() == 0:
    os.setsid(); burn(1.8); row(3)
    os._exit(0)
os.wait()
"""
    )
    spec = make_spec(program, watchdog=watchdog(first_step=1.4, stall=1.4))
    outcome = supervised(spec)
    assert outcome.ok
