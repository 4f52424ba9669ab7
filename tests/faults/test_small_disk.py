"""A trainer that fills a real disk: a tmpfs of 3 MiB, mounted for this test alone in a namespace of its own.

The namespace needs no privileges where the kernel grants user namespaces to everybody, and root has its own right to
one. Where neither holds the same is tested by what the file system is said to answer
(tests/validator/execute/test_supervisor.py), and by the kernel's limit on the size of files (test_disk_full.py).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

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
  - {{id: train, kind: train, steps: 400, accept: [loss.last < loss.first]}}
"""

_SCRIPT = """
mount -t tmpfs -o size=3m tmpfs "$WORK/small" || exit 99
"$PYTHON" -m validator run "$WORK/fills.yaml" --out "$WORK/small" 2> "$WORK/first"
echo "$?" > "$WORK/rc"
mount -o remount,size=30m "$WORK/small"
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


def test_a_trainer_that_fills_the_disk_is_told_from_one_that_crashed(tmp_path: Path) -> None:
    namespace = _namespace()
    if namespace is None:
        pytest.skip("this kernel lets nobody mount a tmpfs here")
    (tmp_path / "small").mkdir()
    trainer = tmp_path / "trainer.py"
    trainer.write_text(_FILLS, encoding="utf-8")
    (tmp_path / "fills.yaml").write_text(_RUNBOOK.format(trainer=trainer), encoding="utf-8")
    environment = {"WORK": str(tmp_path), "PYTHON": sys.executable, "XDG_RUNTIME_DIR": str(tmp_path), "NO_COLOR": "1"}
    began = time.monotonic()
    done = subprocess.run(
        [*namespace, "sh", "-c", _SCRIPT], env={**os.environ, **environment}, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - began < 30
    first = (tmp_path / "first").read_text()
    assert "cannot be written: No space left on device" in first
    assert "go on with: validator run --resume" in first
    assert "Traceback" not in first
    assert (tmp_path / "rc").read_text().split() == ["4", "1"], (tmp_path / "second").read_text()
    result = json.loads((tmp_path / "after/result.json").read_text())
    (finding,) = (one for one in result["findings"] if one["severity"] == "veto")
    assert (finding["code"], finding["run"]) == ("disk-full", "train/r1")
    assert "crashed" not in {one["code"] for one in result["findings"]}
    assert result["phases"][0]["runs"][0]["outcome"]["attempts"][0]["detail"].endswith("no room was left on the disk")
    assert (tmp_path / "after/runs/train/r1/training.csv").read_text().startswith("step,loss"), "the evidence is kept"
    assert processes_of(tmp_path / "after") == []
