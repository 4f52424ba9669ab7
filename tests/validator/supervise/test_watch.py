"""The stand-alone watchdog on folders of trainers that it did not start."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.validator.supervise import programs
from tests.validator.supervise.tools import eventually, watchdog
from validator.errors import FolderError
from validator.model.runbook import TrainerMetrics
from validator.supervise import watchdog as watchdog_module
from validator.supervise.follow import RunFollower
from validator.supervise.wait import CancelToken
from validator.supervise.watch import WatchEvent, printed_to_log, watch

LIMITS = watchdog(first_step=1.0, stall=0.4)
PATIENT = watchdog(first_step=20.0, stall=20.0)
"""Where no limit is to be reached: a busy machine may take a second to start or end a program."""


@pytest.fixture
def trainer(tmp_path: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Start programs in the folder with `start`; ended afterwards."""
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for process in started:
        process.kill()
        process.wait()


def _start(folder: Path, program: str, started: list[subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
    process = subprocess.Popen([sys.executable, "-S", "-c", program], env={"OUT": str(folder)})
    started.append(process)
    return process


def _codes(events: list[WatchEvent]) -> list[str]:
    """Codes in order, repeated progress told once."""
    codes = [event.code for event in events]
    return [code for number, code in enumerate(codes) if number == 0 or codes[number - 1] != code]


def test_a_trainer_that_finishes(tmp_path: Path, trainer: list[subprocess.Popen[bytes]]) -> None:
    _start(tmp_path, programs.HEALTHY + 'beat(10, "done")', trainer)
    events = list(watch(tmp_path, interval_s=0.05, limits=PATIENT))
    assert _codes(events) == ["progress", "done"]
    assert events[-1].step == 10
    assert not (tmp_path / ".HALT").exists()


def test_a_trainer_that_dies(tmp_path: Path, trainer: list[subprocess.Popen[bytes]]) -> None:
    process = _start(tmp_path, programs.HEALTHY + "time.sleep(0.3); sys.exit(1)", trainer)
    threading.Thread(target=process.wait).start()
    assert _codes(list(watch(tmp_path, interval_s=0.05, limits=PATIENT))) == ["progress", "gone"]


def test_what_a_trainer_wrote_last_is_read_before_it_is_called_gone(
    tmp_path: Path, trainer: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is done, and its process ended, right after the watchdog has read."""
    program = 'row(1); beat(1)\nwhile not os.path.exists(out + "/go"): time.sleep(0.01)\nbeat(1, "done")'
    process = _start(tmp_path, programs.TRAINER + program, trainer)
    read, looks_at_rank = RunFollower.look, 0

    def look(self: RunFollower, *, now: float) -> Any:
        nonlocal looks_at_rank
        records = read(self, now=now)
        looks_at_rank += bool(self.by_rank)
        if looks_at_rank == 2:  # in the first it came to know the process
            (tmp_path / "go").touch()
            process.wait(timeout=30)
        return records

    monkeypatch.setattr(RunFollower, "look", look)
    assert _codes(list(watch(tmp_path, interval_s=0.05, limits=PATIENT)))[-1] == "done"


def test_a_stall_gets_stacks_and_a_halt(tmp_path: Path, trainer: list[subprocess.Popen[bytes]]) -> None:
    program = programs.DUMPS_STACKS.replace("row(1); row(2)", "row(1); beat(1); time.sleep(0.1); row(2)")
    _start(tmp_path, program, trainer)
    events = list(watch(tmp_path, interval_s=0.05, limits=LIMITS))
    assert events[-1].code == "stall"
    assert events[-1].halt_written
    assert (tmp_path / ".anomaly_type").read_text() == "stall\n"
    assert eventually(lambda: any("stuck_in_a_collective" in path.read_text() for path in tmp_path.glob("stackdump_*")))


def test_without_halt_it_only_tells_and_goes_on(tmp_path: Path, trainer: list[subprocess.Popen[bytes]]) -> None:
    _start(tmp_path, programs.STALLS_WHILE_BEATING, trainer)
    cancel = CancelToken()
    events = []
    for event in watch(tmp_path, interval_s=0.05, halt=False, limits=LIMITS, cancel=cancel):
        events.append(event)
        if event.code == "stall":
            threading.Timer(0.3, cancel.request).start()
    cancel.close()
    assert [event.code for event in events if event.code != "progress"] == ["stall"]
    assert not (tmp_path / ".HALT").exists()


def test_slow_is_told_as_slow(
    tmp_path: Path, trainer: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchdog_module, "BUSY_CORES", 0.005)  # what a crowded machine leaves to a busy process
    program = programs.SLOW_BUT_BUSY.replace("row(step)", "row(step); beat(step)") + 'beat(6, "done")'
    assert "burn(1.5)" in program
    # Busy until the watchdog has told it, so that no length of a step has to suit how busy the machine is.
    _start(tmp_path, program.replace("burn(1.5)", 'while not os.path.exists(out + "/told"): burn(0.05)'), trainer)
    events = []
    for event in watch(tmp_path, interval_s=0.05, limits=watchdog(first_step=10.0, stall=2.0)):
        events.append(event)
        if event.code == "slow":
            (tmp_path / "told").touch()
    assert _codes(events) == ["progress", "slow", "progress", "done"]


def test_a_broken_loss_is_halted(tmp_path: Path) -> None:
    (tmp_path / "training.csv").write_text("step,loss,lr,toks_per_s\n1,5.5,0.1,9\n2,nan,0.1,9\n")
    events = list(watch(tmp_path, interval_s=0.01, limits=LIMITS))
    assert [event.code for event in events] == ["nan_loss"]
    assert "step 2" in (tmp_path / ".HALT").read_text()


def test_a_halt_of_somebody_else_ends_the_watch(tmp_path: Path) -> None:
    (tmp_path / ".HALT").touch()
    assert [event.code for event in watch(tmp_path, interval_s=0.01)] == ["halted"]


def test_no_folder_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(FolderError, match="give the folder"):
        next(watch(tmp_path / "none"))


def test_a_loss_of_nan_in_a_log_is_an_anomaly(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text("".join(f"step {i} loss {'nan' if i > 5 else 2.5}\n" for i in range(1, 9)))
    watched = watch(
        tmp_path, interval_s=0.01, halt=True, metrics=TrainerMetrics(stdout=r"step (?P<step>\d+) loss (?P<loss>[\d.]+)")
    )
    codes = [event.code for event in watched]
    assert "nan_loss" in codes
    assert (tmp_path / ".HALT").exists()


PARTIAL = [
    ("step {step} time {step_time_s}s", "step %d time 0.25s", "step 9, step_time_s 0.25"),
    ("step {step} tok/s {toks_per_s}", "step %d tok/s 400", "step 9, toks_per_s 400"),
    ("step {step} loss {loss}", "step %d loss 2.5", "step 9, loss 2.5"),
]


@pytest.mark.parametrize(("pattern", "line", "progress"), PARTIAL)
def test_what_a_trainer_prints_is_watched_through_a_pipe_and_passed_on(pattern: str, line: str, progress: str) -> None:
    printed = "".join(line % step + "\n" for step in range(1, 10)).encode()
    (source, trainer), (out, echo) = os.pipe(), os.pipe()
    with printed_to_log(source, echo) as (log, ended):
        os.write(trainer, printed)
        os.close(trainer)
        metrics = TrainerMetrics(stdout=pattern)
        events = list(watch(log, interval_s=0.05, halt=False, limits=PATIENT, metrics=metrics, ended=ended))
    assert _codes(events) == ["progress", "gone"]
    assert [event.message for event in events][-2:] == [progress, "the trainer's output has ended"]
    assert os.read(out, 1 << 16) == printed
    assert not log.exists()
    for each in (source, out, echo):
        os.close(each)


@pytest.mark.parametrize(("pattern", "line", "progress"), PARTIAL)
def test_a_log_by_itself_is_watched(tmp_path: Path, pattern: str, line: str, progress: str) -> None:
    log = tmp_path / "mine.txt"
    log.write_text("".join(line % step + "\n" for step in range(1, 10)), encoding="utf-8")
    (tmp_path / "other.log").write_text(line % 99 + "\n", encoding="utf-8")
    first = next(watch(log, halt=False, limits=LIMITS, metrics=TrainerMetrics(stdout=pattern)))
    assert (first.code, first.message) == ("progress", progress)


def test_a_nan_in_the_pipe_is_an_anomaly() -> None:
    source, trainer = os.pipe()
    os.write(trainer, b"step 1 loss 2.0\nstep 2 loss nan\n")
    os.close(trainer)
    with printed_to_log(source, None) as (log, ended):
        metrics = TrainerMetrics(stdout="step {step} loss {loss}")
        events = list(watch(log, interval_s=0.05, halt=False, limits=PATIENT, metrics=metrics, ended=ended))
    assert "nan_loss" in _codes(events)
    os.close(source)


def test_a_log_without_a_pattern_is_read_by_its_format(tmp_path: Path) -> None:
    log = tmp_path / "mine.log"
    log.write_text("loading\n", encoding="utf-8")
    lines = "".join(f"iter {n}: loss {3 - n / 10:.4f}, time 50.00ms, mfu 1.00%\n" for n in range(5))
    threading.Timer(0.3, log.write_text, [f"loading\n{lines}iter 5: loss nan, time 50.00ms, mfu 1.00%\n"]).start()
    events = watch(log, interval_s=0.05, halt=False, limits=watchdog(first_step=30.0), metrics=TrainerMetrics())
    assert [next(events).code for _ in range(3)] == ["reading", "nan_loss", "progress"]


@pytest.mark.parametrize(("lines", "first_step"), [(0, 0.1), (300, 900.0)])
def test_a_log_in_no_known_format_is_refused(tmp_path: Path, lines: int, first_step: float) -> None:
    (tmp_path / "mine.log").write_text("hello\n" * lines)
    limits = watchdog(first_step=first_step)
    with pytest.raises(FolderError, match="nothing says how to read it; add --stdout"):
        next(watch(tmp_path / "mine.log", interval_s=0.05, limits=limits, metrics=TrainerMetrics()))


def test_nodes_that_train_alone_are_shown_and_the_slowest_of_them_may_stall(tmp_path: Path) -> None:
    (tmp_path / "live.json").write_text('{"nodes": {"n1": {"step": 12}, "n2": {"step": 7}}}')
    events = list(watch(tmp_path, interval_s=0.05, limits=LIMITS))
    assert [(one.code, one.step) for one in events] == [("progress", 7), ("stall", 7)]
    assert events[0].message == "step 7, nodes n2 at 7, n1 at 12"


def test_nodes_that_train_alone_are_no_further_than_one_that_has_said_nothing(tmp_path: Path) -> None:
    (tmp_path / "live.json").write_text('{"nodes": {"n1": {"step": 12}, "n2": {}}}')
    (event,) = watch(tmp_path, interval_s=0.05, limits=watchdog(first_step=0.3))
    assert (event.code, event.step) == ("stall", None)
