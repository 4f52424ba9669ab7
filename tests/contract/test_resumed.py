"""A run of the bundled trainer that was stopped and resumed is one run, however long it rested."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.validator.diagnose.cases import of_folder


def train(out: Path, steps: int, *extra: str) -> None:
    command = [sys.executable, "-m", "nsa.train", "--config", "tiny_cpu", "--data", "synthetic", "--save-final", "true"]
    subprocess.run([*command, "--steps", str(steps), "--out", str(out), *extra], check=True, timeout=120)


def test_a_resumed_run_is_no_other_run_and_its_rest_is_no_step(tmp_path: Path) -> None:
    out = tmp_path / "run"
    train(out, 30)
    first = len((out / "heartbeat_rank0.jsonl").read_text().splitlines())
    train(out, 60, "--resume")
    path = out / "heartbeat_rank0.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines()]
    assert (records[first]["msg"], records[first]["step"]) == ("boot", 30)
    for record in records[first:]:
        record["ts"] += 100.0  # as if it had been resumed that much later
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    assert not {"mixed-runs", "unit-mismatch"} & of_folder(out).keys()


def test_a_resumed_run_with_nothing_left_to_do_is_no_other_run(tmp_path: Path) -> None:
    train(tmp_path / "run", 5)
    train(tmp_path / "run", 5, "--resume")
    assert "mixed-runs" not in of_folder(tmp_path / "run")
