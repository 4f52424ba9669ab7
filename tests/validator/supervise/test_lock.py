"""The machine lock: exclusive, honest about its holder, gone with its holder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.validator.system.answers import Card, FakeNvml
from validator.supervise.lock import LockHeld, MachineLock, lock_names

HOLD = """
import sys, time
from pathlib import Path
from validator.supervise.lock import MachineLock
lock = MachineLock(["cpu"], folder=Path(sys.argv[1]))
lock.acquire(); lock.name(Path("somewhere")); print("held", flush=True); time.sleep(60)
"""


def test_the_second_is_refused_and_the_holder_is_named(tmp_path: Path) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(LockHeld) as refused, MachineLock(["cpu"], folder=tmp_path):
            pass
        assert refused.value.holder["pid"] == holder.pid
        message = str(refused.value)
        assert str(holder.pid) in message
        assert "somewhere" in message
        assert "--no-lock" in message
    finally:
        holder.kill()
        holder.communicate()
    with MachineLock(["cpu"], folder=tmp_path):  # SIGKILL of the holder frees it
        pass


def test_all_locks_or_none(tmp_path: Path) -> None:
    with MachineLock(["gpu-1"], folder=tmp_path):
        with pytest.raises(LockHeld, match="GPU 1"):
            MachineLock(["gpu-0", "gpu-1"], folder=tmp_path).acquire()
        with MachineLock(["gpu-0"], folder=tmp_path):  # the failed attempt kept nothing
            pass


def test_a_child_process_does_not_inherit_the_lock(tmp_path: Path) -> None:
    with MachineLock(["cpu"], folder=tmp_path):
        child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(30)"])
    try:
        with MachineLock(["cpu"], folder=tmp_path):
            pass
    finally:
        child.kill()
        child.wait()


def test_the_file_tells_who_holds_it_and_is_private(tmp_path: Path) -> None:
    with MachineLock(["cpu"], folder=tmp_path, redact=lambda text: "redacted") as lock:
        lock.name(tmp_path / "run")
        path = tmp_path / "cpu.lock"
        said = json.loads(path.read_text())
        assert said["pid"] == os.getpid()
        assert said["command"] == "redacted"
        assert said["run_dir"] == str(tmp_path / "run")
        assert path.stat().st_mode & 0o777 == 0o600
    assert path.read_text() == ""


def test_the_default_folder_is_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with MachineLock(["cpu"]):
        assert (tmp_path / "validator").stat().st_mode & 0o777 == 0o700
        with pytest.raises(LockHeld):
            MachineLock(["cpu"]).acquire()


@pytest.mark.parametrize(
    ("gpus", "visible", "names"),
    [
        (0, "0,1", ("cpu",)),
        (2, None, ("gpu-0", "gpu-1")),
        (2, "3,1", ("gpu-1", "gpu-3")),
        (1, "3,1", ("gpu-3",)),
        (1, "GPU-ab/../c", ("gpu-GPU-ab_.._c",)),
    ],
)
def test_which_locks_a_runbook_needs(
    gpus: int, visible: str | None, names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("validator.system.nvml.load", lambda: (None, "no driver"))
    assert lock_names(gpus, environment={"CUDA_VISIBLE_DEVICES": visible} if visible else {}) == names


def test_a_lock_is_named_by_uuid_however_the_gpu_is_selected(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = FakeNvml(Card(uuid="GPU-aaaa1111"), Card(uuid="GPU-bbbb2222"))
    monkeypatch.setattr("validator.system.nvml.load", lambda: (nvml, None))
    by_index = lock_names(1, environment={"CUDA_VISIBLE_DEVICES": "1"})
    by_uuid = lock_names(1, environment={"CUDA_VISIBLE_DEVICES": "GPU-bbbb2222"})
    assert by_index == by_uuid == ("gpu-bbbb2222",)
    assert lock_names(2, environment={}) == ("gpu-aaaa1111", "gpu-bbbb2222")
    nvml.refused = ("nvmlDeviceGetUUID",)
    assert lock_names(2, environment={}) == ("gpu-0", "gpu-1"), "two GPUs must not share one lock"


def test_taking_the_lock_waits_for_nobody(tmp_path: Path) -> None:
    with MachineLock(["cpu"], folder=tmp_path):
        began = time.monotonic()
        with pytest.raises(LockHeld):
            MachineLock(["cpu"], folder=tmp_path).acquire()
        assert time.monotonic() - began < 10
