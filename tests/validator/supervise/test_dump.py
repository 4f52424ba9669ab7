"""Evidence of a stall beyond what a plain machine has: py-spy, NCCL's flight recorder, GPUs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.validator.system.answers import Card, FakeNvml
from validator.supervise.dump import StallEvidence, save_evidence
from validator.supervise.termination import ProcessTree
from validator.system.nvml import Gpus


@pytest.fixture
def sleeper() -> Iterator[ProcessTree]:
    """A tree of one Python process that is rank 3, with a secret among its arguments."""
    argv = [sys.executable, "-S", "-c", "import time; time.sleep(60)", "--key=hunter2"]
    tree = ProcessTree(token="none")
    with subprocess.Popen(argv, env={"RANK": "3"}, start_new_session=True) as process:
        while not Path(f"/proc/{process.pid}/cmdline").read_bytes():  # the kernel fills it in last
            time.sleep(0.01)
        tree.watch(process.pid)
        yield tree
        process.kill()


def _evidence(out: Path, *, gpus: Gpus | None = None, stacks_s: float = 2.0) -> StallEvidence:
    return StallEvidence(
        out=out,
        gpus=gpus or Gpus(),
        about={"id": "p/r1"},
        redact=lambda text: text.replace("hunter2", "[redacted]"),
        stacks_s=stacks_s,
    )


def test_gpus_are_in_the_snapshot(tmp_path: Path, sleeper: ProcessTree) -> None:
    nvml = FakeNvml(Card(power_w=(253, 300, 300), throttle=0x4), Card(uuid="GPU-2"))
    files = save_evidence(_evidence(tmp_path, gpus=Gpus.open({}, nvml=nvml)), sleeper)
    gpus = json.loads(files[0].read_text())["gpus"]
    assert [(gpu["power_w"], gpu["throttle_reasons"]) for gpu in gpus] == [(253.0, 0x4), (45.0, 0x1)]


def test_command_lines_are_redacted(tmp_path: Path, sleeper: ProcessTree) -> None:
    files = save_evidence(_evidence(tmp_path), sleeper)
    text = files[1].read_text()
    assert "[redacted]" in text
    assert "hunter2" not in text
    assert json.loads(text)["processes"][0]["rank"] == "3"


def test_a_forked_rank_is_known_by_its_name(tmp_path: Path) -> None:
    """The environment that others see is that of the process which it was forked from."""
    program = "import ctypes, time; ctypes.CDLL(None).prctl(15, b'pt_rank7'); print(flush=True); time.sleep(60)"
    tree = ProcessTree(token="none")
    argv = [sys.executable, "-S", "-c", program]
    with subprocess.Popen(argv, env={"RANK": "3"}, stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        tree.watch(process.pid)
        files = save_evidence(_evidence(tmp_path), tree)
        process.kill()
    assert json.loads(files[1].read_text())["processes"][0]["rank"] == "7"


def test_py_spy_is_asked_where_it_is_installed(
    tmp_path: Path, sleeper: ProcessTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "bin" / "py-spy"
    tool.parent.mkdir()
    tool.write_text('#!/bin/sh\necho "asked: $@"\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}:{os.environ['PATH']}")
    files = save_evidence(_evidence(tmp_path), sleeper)
    (stack,) = (path for path in files if path.name.startswith("py-spy_rank3_"))
    assert stack.read_text().startswith("asked: dump --pid ")


def test_the_flight_recorder_is_poked_through_its_pipe(tmp_path: Path, sleeper: ProcessTree) -> None:
    """As torch does it: a pipe per rank, any byte makes it write its trace beside it."""
    dump = tmp_path / "dump"
    dump.mkdir()
    pipes = [dump / f"nccl_pipe_rank_{rank}.pipe" for rank in (0, 1)]
    for pipe in pipes:
        os.mkfifo(pipe)
    reader = os.open(pipes[0], os.O_RDONLY | os.O_NONBLOCK)  # nobody reads the pipe of rank 1: it is gone

    def rank_0() -> None:
        os.set_blocking(reader, True)
        if os.read(reader, 1):
            (dump / "nccl_trace_rank_0").write_bytes(b"trace")

    thread = threading.Thread(target=rank_0)
    keep = os.open(pipes[0], os.O_WRONLY)  # without a writer a blocking read would see the end at once
    thread.start()
    files = save_evidence(_evidence(tmp_path), sleeper)
    thread.join()
    os.close(reader)
    os.close(keep)
    assert dump / "nccl_trace_rank_0" in files


def test_a_full_disk_or_a_missing_folder_costs_the_evidence_and_nothing_else(
    tmp_path: Path, sleeper: ProcessTree
) -> None:
    assert save_evidence(_evidence(tmp_path / "gone"), sleeper) == ()
