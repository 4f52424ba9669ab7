"""Every way to stop, and every signal, does what is documented; an error is told everywhere."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from nsa.data import DataError
from nsa.data.synthetic import MarkovCopySource
from tests.nsa.conftest import Beats, Rows, Train
from tests.nsa.steps import at_step, until


def test_halt_stops_after_the_step_and_is_refused_at_the_next_start(
    tmp_path: Path, train: Train, rows: Rows, beats: Beats, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    at_step(monkeypatch, 4, lambda run: (run.out / ".HALT").touch())
    assert train(tmp_path, "--steps", "10") == 3
    assert int(rows(tmp_path / "training.csv")[-1]["step"]) == 4
    assert json.loads((tmp_path / "metrics.json").read_text())["status"] == "halted"
    assert beats(tmp_path)[-1]["status"] == "halted"
    assert train(tmp_path / ".", "--steps", "10", "--resume") == 2
    assert ".HALT exists from before this start" in capsys.readouterr().err


def test_nan_stops_within_the_step(tmp_path: Path, train: Train, rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        at_step(patch, 3, lambda run: run.bare_model.norm.weight.data.fill_(float("nan")))
        assert train(tmp_path, "--steps", "10", "--save-every", "1") == 4
    table = rows(tmp_path / "training.csv")
    assert len(table) == 3
    assert math.isnan(float(table[-1]["loss"]))
    assert (tmp_path / ".anomaly_type").read_text() == "nan_loss\n"
    assert sorted(p.name for p in (tmp_path / "checkpoints").glob("*.pt")) == ["step_00000001.pt", "step_00000002.pt"]
    assert train(tmp_path, "--steps", "4", "--resume") == 0  # from before the anomaly, of which nothing is left
    assert not (tmp_path / ".anomaly_type").exists()
    assert [int(r["step"]) for r in rows(tmp_path / "training.csv")] == [1, 2, 3, 4]


def test_sigterm_checkpoints_and_the_run_can_go_on(
    tmp_path: Path, train: Train, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    def terminate(run: Any) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        until(lambda: run.signals.stop_signal)

    before = signal.getsignal(signal.SIGTERM)
    with monkeypatch.context() as patch:
        at_step(patch, 5, terminate)
        assert train(tmp_path, "--steps", "9") == 143
    assert signal.getsignal(signal.SIGTERM) is before
    assert (tmp_path / "checkpoints" / "step_00000005.pt").exists()
    assert train(tmp_path, "--steps", "9", "--resume") == 0
    assert [int(r["step"]) for r in rows(tmp_path / "training.csv")] == list(range(1, 10))


def test_a_first_interrupt_is_acknowledged_and_a_second_ends_at_once(
    tmp_path: Path, train: Train, beats: Beats, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    def interrupt_twice(run: Any) -> None:
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)
            until(lambda: run.signals.stop_signal)

    at_step(monkeypatch, 5, interrupt_twice)
    assert train(tmp_path, "--steps", "9") == 130
    said = capsys.readouterr().err
    assert "[signal] SIGINT: the run stops after this step; once more interrupts at once" in said
    assert "nothing more was saved" in said
    assert beats(tmp_path)[-1]["status"] == "interrupted"
    assert json.loads((tmp_path / "metrics.json").read_text())["status"] == "interrupted"
    assert not (tmp_path / "checkpoints").exists()


def test_a_run_that_has_reached_its_last_step_says_so(tmp_path: Path, train: Train, rows: Rows, capsys: Any) -> None:
    assert train(tmp_path, "--steps", "3", "--save-final") == 0
    assert train(tmp_path, "--steps", "2", "--resume") == 0
    assert "nothing is left to train: step 3 reaches steps=2" in capsys.readouterr().out
    assert len(rows(tmp_path / "training.csv")) == 3


def test_sigusr1_dumps_the_stacks_and_the_run_goes_on(
    tmp_path: Path, train: Train, beats: Beats, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(run: Any) -> None:
        os.kill(os.getpid(), signal.SIGUSR1)
        until(lambda: list(tmp_path.glob("stackdump_*.txt")))

    at_step(monkeypatch, 2, ask)
    assert train(tmp_path, "--steps", "3") == 0
    (dump,) = tmp_path.glob("stackdump_*.txt")
    text = dump.read_text()
    assert "nsa-heartbeat" in text
    assert "in train" in text
    assert [r["file"] for r in beats(tmp_path) if r["msg"] == "watchdog_dump"] == [dump.name]


def test_a_run_that_is_being_taken_down_still_shows_its_stacks(tmp_path: Path) -> None:
    script = (
        "import faulthandler, os, signal\nfrom pathlib import Path\n"
        "from nsa.telemetry.signals import SignalDesk\n"
        "faulthandler.register(signal.SIGUSR1)\n"
        f"SignalDesk(Path({str(tmp_path)!r}), rank=0).close()\n"
        "os.kill(os.getpid(), signal.SIGUSR1)\n"
        "print('went on')\n"
    )
    done = subprocess.run([sys.executable, "-c", script], timeout=60, check=True, capture_output=True, text=True)
    assert done.stdout == "went on\n"
    assert "most recent call first" in done.stderr


def test_the_stacks_of_a_main_thread_that_is_stuck_can_be_had(tmp_path: Path) -> None:
    """A signal handler of Python's own would run only when the blocking call returns."""
    script = (
        "import os, signal, threading, time\nfrom pathlib import Path\n"
        "from nsa.telemetry.signals import SignalDesk\n"
        f"desk = SignalDesk(Path({str(tmp_path)!r}), rank=3)\n"
        "threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGUSR1)).start()\n"
        "lock = threading.Lock(); lock.acquire()\n"
        "def stuck(): lock.acquire()\n"
        f"threading.Thread(target=lambda: (time.sleep(1.0), os._exit(0))).start()\n"
        "stuck()\n"
    )
    subprocess.run([sys.executable, "-c", script], timeout=60, check=True)
    (dump,) = tmp_path.glob("stackdump_*_rank3.txt")
    assert "in stuck" in dump.read_text()


def break_data(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """Let the data end in `error` at sample 6."""
    make = MarkovCopySource.batch

    def broken(self: Any, indices: Any) -> Any:
        if 6 in indices:
            raise error
        return make(self, indices)

    monkeypatch.setattr(MarkovCopySource, "batch", broken)


def test_an_error_in_the_data_is_told_everywhere(
    tmp_path: Path, train: Train, beats: Beats, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_data(monkeypatch, OSError("disk gone"))
    with pytest.raises(RuntimeError, match="disk gone"):
        train(tmp_path, "--steps", "9")
    assert [r["msg"] for r in beats(tmp_path)][-2:] == ["loader_error", "done"]
    assert beats(tmp_path)[-1]["status"] == "error"
    assert "disk gone" in json.loads((tmp_path / "metrics.json").read_text())["why"]


def test_running_out_of_memory_leaves_a_dump(tmp_path: Path, train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    def exhaust(run: Any) -> None:
        raise torch.cuda.OutOfMemoryError("tried to allocate 20.00 GiB")

    at_step(monkeypatch, 3, exhaust)
    with pytest.raises(torch.cuda.OutOfMemoryError):
        train(tmp_path, "--steps", "5")
    assert json.loads((tmp_path / "mem_oom.json").read_text())["step"] == 2
    assert "tried to allocate" in json.loads((tmp_path / "metrics.json").read_text())["why"]


def test_no_thread_and_no_file_is_left(tmp_path: Path, train: Train) -> None:
    before = set(threading.enumerate())
    assert train(tmp_path, "--steps", "2") == 0
    assert set(threading.enumerate()) <= before


def test_the_step_that_ends_a_run_has_a_row_and_its_time_is_counted(
    tmp_path: Path, train: Train, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_step(monkeypatch, 28, lambda run: (run.out / ".HALT").touch())
    assert train(tmp_path, "--steps", "90", "--log-every", "20") == 3
    table = rows(tmp_path / "training.csv")
    assert [int(r["step"]) for r in table] == [1, 20, 28]
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    assert metrics["tokens"] == int(table[-1]["tokens"])
    assert metrics["wall_s"] == pytest.approx(float(table[-1]["wall_s"]), rel=1e-6)
    assert metrics["toks_per_s"] == pytest.approx(metrics["tokens"] / metrics["wall_s"])


def test_a_start_that_never_trained_does_not_bar_the_next(
    tmp_path: Path, train: Train, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(run: Any) -> None:
        raise RuntimeError("no first step")

    with monkeypatch.context() as patch:
        at_step(patch, 1, fail)
        with pytest.raises(RuntimeError, match="no first step"):
            train(tmp_path, "--steps", "2")
    assert json.loads((tmp_path / "metrics.json").read_text())["status"] == "error"
    at_step(monkeypatch, 1, lambda run: seen.append((run.out / "metrics.json").exists()))
    seen: list[bool] = []
    assert train(tmp_path, "--steps", "2") == 0
    assert seen == [False]
    assert [int(r["step"]) for r in rows(tmp_path / "training.csv")] == [1, 2]


def test_what_ended_a_run_is_told_though_nothing_more_can_be_written(
    tmp_path: Path, train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill_disk(run: Any) -> None:
        def full(*args: Any, **kwargs: Any) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(run.heartbeat, "write", full)
        monkeypatch.setattr("nsa.loop.write_json", full)
        raise RuntimeError("the reason")

    at_step(monkeypatch, 3, fill_disk)
    with pytest.raises(RuntimeError, match="the reason"):
        train(tmp_path, "--steps", "5")


def test_beats_go_on_after_a_disk_that_was_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from nsa.telemetry import Heartbeat

    heartbeat = Heartbeat(tmp_path, rank=0, beat_s=0.01)
    calls: list[str] = []

    def write(msg: str) -> None:
        calls.append(msg)
        if len(calls) < 3:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(heartbeat, "write", write)
    heartbeat.start()
    until(lambda: len(calls) > 3)
    heartbeat.close()
    assert len(calls) > 3


def test_data_that_turns_out_broken_midway_is_an_error_and_no_bad_usage(
    tmp_path: Path, train: Train, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    break_data(monkeypatch, DataError("part 7 has no text"))
    assert train(tmp_path, "--steps", "9") == 1
    assert capsys.readouterr().err == "nsa.train: part 7 has no text\n"
    assert json.loads((tmp_path / "metrics.json").read_text())["status"] == "error"


def test_held_out_data_that_never_comes_ends_the_run_in_time(
    tmp_path: Path, train: Train, beats: Beats, monkeypatch: pytest.MonkeyPatch
) -> None:
    from nsa.data import LoaderError
    from nsa.data.synthetic import _VAL, MarkovCopySource

    make, over = MarkovCopySource.batch, threading.Event()

    def hanging(self: Any, indices: Any) -> Any:
        if self._stream == _VAL:
            over.wait(20)
        return make(self, indices)

    monkeypatch.setattr(MarkovCopySource, "batch", hanging)
    with pytest.raises(LoaderError, match="no batch within loader_timeout_s=1:"):
        train(tmp_path, "--steps", "9", "--val-every", "2", "--loader-timeout-s", "1")
    over.set()
    assert [(r["msg"], r["step"]) for r in beats(tmp_path)][-2:] == [("loader_error", 2), ("done", 2)]


def test_nothing_follows_the_last_line(tmp_path: Path) -> None:
    from nsa.telemetry import Heartbeat

    heartbeat = Heartbeat(tmp_path, rank=0, beat_s=0.01)
    heartbeat.start()
    until(lambda: heartbeat.path.stat().st_size)
    heartbeat.write("done", status="done", why="")
    heartbeat.write("beat")  # of a thread that was waiting meanwhile
    heartbeat.close()
    assert json.loads(heartbeat.path.read_text().splitlines()[-1])["msg"] == "done"


def test_a_halted_run_saves_only_where_checkpoints_are_kept(
    tmp_path: Path, train: Train, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    at_step(monkeypatch, 3, lambda run: (run.out / ".HALT").touch())
    assert train(tmp_path / "none", "--steps", "9") == 3
    assert not (tmp_path / "none" / "checkpoints").exists()
    assert train(tmp_path / "some", "--steps", "9", "--save-every", "50") == 3
    assert (tmp_path / "some" / "checkpoints" / "step_00000003.pt").exists()


def test_a_last_step_that_is_due_twice_is_saved_once(tmp_path: Path, train: Train, capsys: Any) -> None:
    assert train(tmp_path, "--steps", "4", "--save-every", "2", "--save-final") == 0
    assert [line[-16:] for line in capsys.readouterr().out.splitlines() if line.startswith("[checkpoint]")] == [
        "step_00000002.pt",
        "step_00000004.pt",
    ]
