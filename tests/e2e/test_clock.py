"""The validator's own clock, with real processes: what a trainer prints of time is compared with when it printed it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.folders import criterion, result_of, run_folder

_TRAINER = """
import sys, time
steps, scale = int(sys.argv[1]), float(sys.argv[2])
for step in range(1, steps + 1):
    began = time.monotonic()
    time.sleep(0.05)
    took = (time.monotonic() - began) * scale
    print(f"step {step} loss {3 / step:.4f} time {1e3 * took:.3f} ms")
    if step % 25 == 0:
        time.sleep(0.5)  # validation, which no step's time holds
"""

_BOOK = r"""
schema: 1
name: clock
trainer:
  command: [theirs.py, "{{steps}}", {scale}]
  tokens_per_step: 1000
  metrics:
    stdout: 'step (?P<step>\d+) loss (?P<loss>[\d.]+) time (?P<step_time_ms>[\d.]+) ms'
defaults: {{nproc: 0, timeout: 2m, warmup_steps: 10, extend: false, watchdog: {{interval: 1s}}}}
phases:
  - {{id: baseline, kind: train, steps: {steps}, accept: [toks_per_s.mean >= 10000]}}
"""


def _vetoed_for_its_clock(cli, workdir: Path, scale: float, *, steps: int) -> dict[str, Any]:
    """The result of a run whose printed times are `scale` times the real ones: it is vetoed unless that is 1."""
    (workdir / "theirs.py").write_text(_TRAINER, encoding="utf-8")
    (workdir / "book.yaml").write_text(_BOOK.format(scale=scale, steps=steps), encoding="utf-8")
    cli("run", "book.yaml")
    result = result_of(workdir)
    vetoes = {one["code"] for one in result["findings"] if one["severity"] == "veto"}
    assert (vetoes, scale == 1.0 or result["decision"] != "GO") == (set() if scale == 1.0 else {"unit-mismatch"}, True)
    return result


@pytest.mark.parametrize("scale", [1.0, 0.1])
def test_a_rate_holds_its_pauses_and_a_lie_is_named(cli, workdir: Path, scale: float) -> None:
    """50 ms a step and 20 ms a step of pauses: 14,000 tok/s, where the times alone say 20,000, or 200,000."""
    result = _vetoed_for_its_clock(cli, workdir, scale, steps=110)
    rate = result["phases"][0]["runs"][0]["metrics"]["toks_per_s"]["mean"]
    assert 11_000 < rate < 14_600
    folder = run_folder(workdir)
    assert any(one["path"].endswith("arrivals.jsonl") for one in result["artifacts"])
    cli("report", str(folder))
    again = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    assert criterion(again, "toks_per_s")["observed"] == criterion(result, "toks_per_s")["observed"]


@pytest.mark.parametrize("scale", [1.0, 0.1, 10.0])
def test_a_lie_by_a_factor_of_ten_is_named_in_three_seconds(cli, workdir: Path, scale: float) -> None:
    _vetoed_for_its_clock(cli, workdir, scale, steps=50)
