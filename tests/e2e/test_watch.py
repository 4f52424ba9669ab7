"""`validator watch`: a watchdog beside a trainer that somebody else started."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import FAULTY_TRAINER
from tests.processes import start_validator

TAKES_ITS_TIME = "100000"


@pytest.fixture
def trainer(workdir: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A trainer whose loss is NaN from step 6 on; it goes on for long."""
    process = subprocess.Popen(
        [sys.executable, str(FAULTY_TRAINER), "--steps", TAKES_ITS_TIME, "--out", str(workdir), "--fault", "nan"]
    )
    yield process
    process.kill()
    process.wait()


def test_an_anomaly_halts_and_is_exit_code_1(cli, trainer: subprocess.Popen[bytes], workdir: Path) -> None:
    answer = cli("watch", ".", "--interval", "0.1", "--halt", "--json")
    assert answer.rc == 1, answer.err
    events = [json.loads(line) for line in answer.out.splitlines()]
    assert (events[-1]["code"], events[-1]["halt_written"]) == ("nan_loss", True)
    assert (workdir / ".HALT").is_file()
    assert (workdir / ".anomaly_type").read_text() == "nan_loss\n"


def test_without_halt_it_goes_on_until_the_trainer_ends(
    trainer: subprocess.Popen[bytes], workdir: Path, tmp_path: Path
) -> None:
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    watchdog = start_validator("watch", str(workdir), "--interval", "100ms", env={"NO_COLOR": "1"}, **streams)
    assert watchdog.stderr is not None
    seen = next(line for line in watchdog.stderr if "nan_loss" in line)
    assert "the loss is nan" in seen
    trainer.kill()
    trainer.wait()
    out, err = watchdog.communicate(timeout=60)
    assert watchdog.returncode == 1
    assert out == ""
    assert "gone" in err
    assert not (workdir / ".HALT").exists()


def test_a_healthy_end_is_exit_code_0(cli, workdir: Path) -> None:
    for number in range(2):
        beats = [{"ts": 0, "pid": 1 << 22, "rank": number, "step": 3, "msg": word} for word in ("progress", "done")]
        path = workdir / f"beat.{number}"
        path.write_text("".join(json.dumps(beat) + "\n" for beat in beats))
    answer = cli("watch", ".", "--heartbeat", "beat.{rank}")
    assert answer.rc == 0, answer.err
    assert "done" in answer.err


def test_ctrl_c_ends_the_watch(workdir: Path) -> None:
    (workdir / "training.csv").write_text("step,loss,lr,toks_per_s\n1,2.0,0.1,100\n")
    watchdog = start_validator("watch", str(workdir), stderr=subprocess.PIPE)
    assert "step 1" in watchdog.stderr.readline()
    watchdog.send_signal(signal.SIGINT)
    _, err = watchdog.communicate(timeout=30)
    assert watchdog.returncode == 130
    assert err == ""


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("nowhere",), "is not there; give the folder"),
        ((".", "--stall", "long"), "--stall long"),
        ((".", "--interval", "0"), "--interval"),
    ],
)
def test_bad_usage_is_told(cli, arguments: tuple[str, ...], word: str) -> None:
    answer = cli("watch", *arguments)
    assert answer.rc == 2
    assert word in answer.err
