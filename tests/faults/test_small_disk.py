"""A trainer that fills a real disk: a tmpfs of 3 MiB, mounted for this test alone in a namespace of its own.

The namespace needs no privileges where the kernel grants user namespaces to everybody, and root has its own right to
one. Where neither holds the same is tested by what the file system is said to answer
(tests/validator/supervise/test_supervisor.py), and by the kernel's limit on the size of files (test_disk_full.py).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.faults.kill_and_resume import processes_of

_FILLS = '''
"""Writes a table and a checkpoint of 64 KiB more at each step; when the disk has had enough it ends without a word,
and leaves room for the runner's next lines, no more."""
import argparse, sys, time
parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int)
parser.add_argument("--out")
args = parser.parse_args()
table = open(args.out + "/training.csv", "w", buffering=1)
table.write("step,loss,lr,toks_per_s\\n")
checkpoint = open(args.out + "/checkpoint.bin", "wb", buffering=0)
for step in range(1, args.steps + 1):
    table.write(f"{step},{2 - step / 1000},0.1,1000\\n")
    try:
        written = checkpoint.write(bytes(65536))
    except OSError:
        written = 0
    if written < 65536:
        checkpoint.truncate(checkpoint.tell() - 40960)
        sys.exit(1)
    time.sleep(0.005)
'''

_RUNBOOK = """\
schema: 1
name: fills
trainer:
  command: ["{trainer}"]
  args: {{steps: "{{steps}}", out: "{{out}}"}}
  metrics: {{csv: training.csv}}
hardware: {{gpus: 0, disk_free: 1 MiB}}
defaults: {{nproc: 0, timeout: 60s, warmup_steps: 5}}
phases:
  - {{id: words, kind: command, run: "echo x >> {work}/words.txt"}}
  - {{id: train, kind: train, steps: 400, accept: [loss.last < loss.first]}}
"""

_FILLS_AND_FREES = _FILLS.replace(
    "checkpoint.truncate(checkpoint.tell() - 40960)",
    "checkpoint.truncate(0)\n        print('OSError: [Errno 28] No space left on device', file=sys.stderr)",
)

_SCRIPT = """
mount -t tmpfs -o "$OPTIONS" tmpfs "$WORK/small" || exit 99
"$PYTHON" -m validator run "$WORK/fills.yaml" --out "$WORK/small" 2> "$WORK/first"
echo "$?" > "$WORK/rc"
mount -o "remount,$ROOM" "$WORK/small"
"$PYTHON" -m validator run --resume "$WORK"/small/*-fills-* > "$WORK/second" 2>&1
echo "$?" >> "$WORK/rc"
cp -r "$WORK"/small/*-fills-* "$WORK/after"
"""


def _namespace() -> list[str] | None:
    """The command that gives a namespace with a right to mount; None where the kernel refuses one."""
    options = ["--mount"] if os.geteuid() == 0 else ["--map-root-user", "--mount"]
    command = ["unshare", *options]
    try:
        granted = subprocess.run([*command, "mount", "-t", "tmpfs", "tmpfs", "/mnt"], capture_output=True).returncode
    except FileNotFoundError:
        return None
    return command if granted == 0 else None


@dataclass(frozen=True)
class Small:
    """What a validation on a small disk came to: exit codes of the first start and of `--resume` with more room."""

    codes: list[str]
    first: str
    second: str
    folder: Path

    @property
    def result(self) -> dict[str, Any]:
        return json.loads((self.folder / "result.json").read_text())


@pytest.fixture
def small_disk(tmp_path: Path) -> Callable[..., Small]:
    """Run a validation on a tmpfs made with `options`; then remount it with `room` and resume."""
    namespace = _namespace()
    if namespace is None:
        pytest.skip("this kernel lets nobody mount a tmpfs here")

    def run(trainer: str, *, options: str, room: str) -> Small:
        (tmp_path / "small").mkdir()
        (tmp_path / "trainer.py").write_text(trainer, encoding="utf-8")
        text = _RUNBOOK.format(trainer=tmp_path / "trainer.py", work=tmp_path)
        (tmp_path / "fills.yaml").write_text(text, encoding="utf-8")
        environment = {"WORK": str(tmp_path), "PYTHON": sys.executable, "XDG_RUNTIME_DIR": str(tmp_path)}
        done = subprocess.run(
            [*namespace, "sh", "-c", _SCRIPT],
            env={**os.environ, **environment, "NO_COLOR": "1", "OPTIONS": options, "ROOM": room},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        texts = [(tmp_path / name).read_text() for name in ("rc", "first", "second")]
        assert "Traceback" not in texts[1] + texts[2]
        return Small(texts[0].split(), texts[1], texts[2], tmp_path / "after")

    return run


def test_a_run_that_filled_the_disk_is_repeated_when_there_is_room(small_disk: Callable[..., Small]) -> None:
    began = time.monotonic()
    done = small_disk(_FILLS, options="size=3m", room="size=60m")
    assert time.monotonic() - began < 30
    assert "cannot be written: No space left on device" in done.first
    assert "continue with: validator run --resume" in done.first
    assert done.codes == ["4", "0"], done.second
    (run,) = done.result["phases"][1]["runs"]
    assert [one["disk_full"] for one in run["outcome"]["attempts"]] == [True, False]
    kept = done.folder / "runs/train/r1.attempt1/training.csv"
    assert kept.read_text().startswith("step,loss"), "the evidence is kept"
    assert (done.folder.parent / "words.txt").read_text() == "x\n", "what had ended is not repeated"
    assert processes_of(done.folder) == []


def test_a_run_that_freed_what_it_could_not_write_is_repeated_as_well(small_disk: Callable[..., Small]) -> None:
    """The disk has room again when the trainer has ended, so the validation finishes; the log knows better."""
    done = small_disk(_FILLS_AND_FREES, options="size=3m", room="size=60m")
    assert done.codes == ["1", "0"], done.second
    assert "nothing to resume" not in done.second
    assert (done.folder.parent / "words.txt").read_text() == "x\n", "what had ended is not repeated"
    assert done.result["decision"] == "GO"


def test_a_disk_that_holds_no_further_file_is_no_verdict(small_disk: Callable[..., Small]) -> None:
    done = small_disk(_FILLS, options="size=60m,nr_inodes=14", room="nr_inodes=10000")
    assert "cannot be written: No space left on device" in done.first
    assert done.codes == ["4", "0"], done.second
    assert done.result["decision"] == "GO"
