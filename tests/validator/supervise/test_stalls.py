"""The supervisor and the watchdog: what is slow, what hangs, what is halted, and what is saved of it."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from tests.validator.supervise import programs
from tests.validator.supervise.tools import Make, Run, runs, watchdog
from validator.runs.journal import read
from validator.supervise import watchdog as watchdog_module
from validator.supervise.monitor import Progress


@pytest.fixture
def crowded(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a crowded machine leaves to a busy process counts as work, so that no test rests on how busy it is."""
    monkeypatch.setattr(watchdog_module, "BUSY_CORES", 0.005)


def _command(line: str) -> tuple[str, ...]:
    return ("sh", "-c", line)


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


@pytest.mark.usefixtures("crowded")
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
    outcome = supervised(make_spec(program, watchdog=watchdog(first_step=1.0)))
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
    assert "toks_per_s was 0 in 4 consecutive records" in (outcome.last.detail or "")


def test_halt_false_only_writes_the_anomaly_down(make_spec: Make, supervised: Run, run_dir: Path) -> None:
    program = programs.TRAINER + "for s in range(1, 20): time.sleep(0.02); row(s, float('nan'), grad_norm=0.0)"
    outcome = supervised(make_spec(program, watchdog=watchdog(halt=False, stall=20.0)))
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
    program = programs.trainer(f"""
row(1)
if not os.path.exists({str(marker)!r}):
    open({str(marker)!r}, "w").close(); time.sleep(60)
""")
    outcome = supervised(make_spec(program, retries=1, watchdog=watchdog()))
    assert [a.reason for a in outcome.attempts] == ["stalled", "exited"]
    assert outcome.ok
    assert all((run_dir / path).is_file() for path in outcome.attempts[0].bundle)
    assert outcome.attempts[0].bundle[0].startswith("runs/phase/r1.attempt1/dump/")
    assert not (run_dir / "runs/phase/r1/.HALT").exists()
    assert (run_dir / "runs/phase/r1.attempt1/.HALT").exists()


@pytest.mark.usefixtures("crowded")
def test_a_worker_that_appeared_late_counts_as_activity(make_spec: Make, supervised: Run) -> None:
    """The rank that computes may be a process that no regular look has met yet."""
    program = programs.trainer("""
row(1); row(2)
time.sleep(0.3)
if os.fork() == 0:
    os.setsid(); burn(1.8); row(3)
    os._exit(0)
os.wait()
""")
    spec = make_spec(program, watchdog=watchdog(first_step=1.4, stall=1.4))
    outcome = supervised(spec)
    assert outcome.ok
