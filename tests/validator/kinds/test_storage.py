"""The kind `storage`: what it measures, by fio or by its own loop, and what it makes of a folder that is no disk."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.processes import wait_until
from validator.kinds import storage
from validator.kinds.registry import loads
from validator.runbook import RunbookError

MIB = 2**20

FIO = """#!{python}
import json, sys
jobs = [word[7:] for word in sys.argv if word.startswith("--name=")]
target = next(word[9:] for word in sys.argv if word.startswith("--output="))
read = {{"bw_bytes": 2e9, "iops": 5e4, "clat_ns": {{"percentile": {{"99.000000": 700000}}}}}}
times = {{"write": 500, "checkpoint0": 100, "checkpoint1": 400, "checkpoint2": 200}}
found = [{{"jobname": name, "error": {error}, "job_runtime": times.get(name, 1000), "read": read}} for name in jobs]
open(target, "w").write(json.dumps({{"fio version": "fio-3.36", "jobs": found}}))
open({seen!r}, "w").write(json.dumps(sys.argv))
sys.exit({code})
"""
"""Answers as fio does, by the keys of its JSON that are read."""


def measure(folder: Path, tmp_path: Path, path: str, *, size: int = 2 * MIB) -> dict[str, Any]:
    """What the program of a run writes about `folder`, with `path` as PATH."""
    record = tmp_path / "storage.json"
    words = (sys.executable, "-c", "from validator.kinds.storage import main; main()")
    given = (str(folder), str(record), str(size), str(MIB), "0.1")
    subprocess.run((*words, *given), env={**os.environ, "PATH": path}, check=True, capture_output=True)
    found: dict[str, Any] = json.loads(record.read_text())
    return found


def fake_fio(tmp_path: Path, *, error: int = 0, code: int = 0) -> Path:
    """A folder for PATH with a double of fio; it keeps its arguments in `seen.json`."""
    place = tmp_path / "bin"
    place.mkdir()
    double = place / "fio"
    seen = str(tmp_path / "seen.json")
    double.write_text(FIO.format(python=sys.executable, error=error, code=code, seen=seen))
    double.chmod(double.stat().st_mode | stat.S_IXUSR)
    return place


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """An empty folder that is not in memory."""
    here = tmp_path if storage._filesystem(tmp_path) not in storage._IN_MEMORY else Path(__file__).parents[3] / "build"
    folder = here / f"storage-{os.getpid()}"
    folder.mkdir(parents=True)
    return folder


def test_the_own_loop_measures_everything_and_leaves_nothing(tmp_path: Path, disk: Path) -> None:
    found = measure(disk, tmp_path, path="")
    assert (found["tool"], list(disk.iterdir())) == ("own loop", [])
    assert len(found["checkpoint"]["seconds"]) == 3
    assert found["checkpoint"]["slowest_s"] == max(found["checkpoint"]["seconds"]) > 0
    assert found["checkpoint"]["mb_s"] == pytest.approx(MIB / found["checkpoint"]["slowest_s"] / 1e6)
    assert min(found["write"]["mb_s"], found["read"]["mb_s"], found["random_read"]["iops"]) > 0
    # Eight readers, each of which waits for its own read: none takes longer than all of them together.
    assert 0 < found["random_read"]["p99_ms"] < 1e4


def test_fio_is_used_where_it_is_and_does_the_same_jobs(tmp_path: Path, disk: Path) -> None:
    found = measure(disk, tmp_path, path=str(fake_fio(tmp_path)))
    assert found["tool"] == "fio-3.36"
    assert found["write"]["mb_s"] == pytest.approx(2 * MIB / 0.5 / 1e6), "the last fsync is counted"
    assert (found["read"]["mb_s"], found["random_read"]) == (2000.0, {"iops": 5e4, "p99_ms": 0.7})
    assert found["checkpoint"]["slowest_s"] == 0.4
    words = json.loads((tmp_path / "seen.json").read_text())
    assert words.count("--stonewall") == 6
    assert {"--rw=randread", "--bs=4096", "--numjobs=8", "--runtime=0.1", f"--direct={int(found['direct'])}"} <= {
        *words
    }
    assert sum(word == f"--size={MIB}" for word in words) == 3


@pytest.mark.parametrize("broken", [{"error": 5}, {"code": 1}])
def test_a_fio_that_fails_is_named_and_replaced(tmp_path: Path, disk: Path, broken: dict[str, int]) -> None:
    found = measure(disk, tmp_path, path=str(fake_fio(tmp_path, **broken)))
    assert found["tool"] == "own loop"
    assert "Error" in found["fio_failed"]


def test_what_is_in_the_way_is_said_with_the_fix(tmp_path: Path, disk: Path) -> None:
    gone = measure(tmp_path / "gone", tmp_path, path="")
    assert "name a folder that can be written with path" in gone["problem"]
    full = measure(disk, tmp_path, path="", size=2**60)
    assert "are to be written: lower size" in full["problem"]
    assert list(disk.iterdir()) == []


def test_a_stop_leaves_nothing_behind(tmp_path: Path, disk: Path) -> None:
    words = (sys.executable, "-c", "from validator.kinds.storage import main; main()")
    given = (str(disk), str(tmp_path / "r.json"), str(MIB), str(MIB), "60")
    process = subprocess.Popen((*words, *given), env={**os.environ, "PATH": ""})
    wait_until(lambda: any(disk.glob("*/data")), "the first write")
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 143
    assert list(disk.iterdir()) == []


@pytest.mark.parametrize(("kind", "direct"), [("tmpfs", True), ("ext4", False), ("ext4", None)])
def test_reads_that_may_come_from_memory_are_not_measured(kind: str, direct: bool | None) -> None:
    record = {"filesystem": kind, "direct": direct, "write": {"mb_s": 1.0}, "read": {"mb_s": 2.0}}
    assert storage._disk_scalars({**record, "random_read": {"iops": 3.0}}) == {"storage.write_mb_s": 1.0}
    assert storage._disk_scalars({**record, "filesystem": "ext4", "direct": True})["storage.read_mb_s"] == 2.0


@pytest.mark.parametrize("value", [None, True, "3", -1.0, 0, float("nan"), float("inf"), 1e300, [], {}])
def test_only_numbers_are_taken_from_a_record(value: object) -> None:
    assert storage._disk_scalars({"write": {"mb_s": value}, "read": value, "checkpoint": [value]}) == {}


def test_a_size_of_less_than_a_block_is_a_mistake() -> None:
    book = "schema: 1\nname: a\nphases:\n  - {id: disk, kind: storage, size: 4 KiB}\n"
    with pytest.raises(RunbookError, match="less than one block"):
        loads(book)


def test_a_disk_passes_and_memory_does_not(tmp_path: Path, disk: Path) -> None:
    book = tmp_path / "book.yaml"
    small = "size: 2 MiB, checkpoint: 1 MiB, random_for: 100ms"
    book.write_text(
        f"schema: 1\nname: disk\nphases:\n"
        f"  - {{id: scratch, kind: storage, path: {disk}, {small}, accept: [storage.checkpoint_s <= 60 s]}}\n"
        f"  - {{id: memory, kind: storage, path: /dev/shm, {small}, required: false}}\n"
    )
    words = (sys.executable, "-m", "validator", "run", book, "--out", tmp_path / "reports", "--no-lock")
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = (tmp_path / "reports").glob("*/result.json")
    scratch, memory = json.loads(path.read_text())["phases"]
    assert [(one["id"], one["status"]) for one in scratch["criteria"]] == [
        ("scratch.exit", "PASS"),
        ("scratch.disk", "PASS"),
        ("scratch.1", "PASS"),
    ]
    assert scratch["runs"][0]["scalars"]["storage.checkpoint_s"]["source"] == "runs/scratch/r1/storage.json"
    assert memory["status"] == "FAIL"
    assert "which is memory: set path" in memory["criteria"][1]["message"]
    assert "storage.read_mb_s" not in memory["runs"][0]["scalars"]
