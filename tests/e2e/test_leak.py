"""A trainer that leaks host memory and writes nothing of it: its soak is no GO, and the report names the memory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.e2e.folders import criterion, result_of
from validator.kinds.soak import Soak
from validator.pipeline.validate import RunRequest, execute

TRAINER = """\
import pathlib, sys, time
kept, samples, seen = [], pathlib.Path(sys.argv[2], "logs", "telemetry.csv"), 0
for step in range(1, 41):
    if sys.argv[1] == "leak":
        kept.append(bytearray(b"x" * (2 << 20)))
    while not samples.exists() or samples.stat().st_size <= seen:
        time.sleep(0.005)
    seen = samples.stat().st_size
    print(f"step {step} loss {3 / step ** 0.5:.4f}", flush=True)
"""
"""Each step lasts until the next sample, so that a busy machine takes none away."""

RUNBOOK = """\
schema: 1
name: tiny
trainer: {{command: [{trainer}, {kind}, "{{out}}"], metrics: {{stdout: "step {{step}} loss {{loss}}"}}}}
defaults: {{nproc: 0, timeout: 60s, warmup_steps: 5}}
phases:
  - {{id: soak, kind: soak, steps: 40, extend: false, accept: ["loss.last < loss.first"]}}
"""


@pytest.mark.parametrize("kind", ["leak", "healthy"])
def test_a_leak_is_no_go(kind: str, workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Soak, "sample_s", lambda *_: 0.03)
    monkeypatch.chdir(workdir)
    (workdir / "trainer.py").write_text(TRAINER)
    (workdir / "tiny.yaml").write_text(RUNBOOK.format(trainer=json.dumps(str(workdir / "trainer.py")), kind=kind))
    report = execute(RunRequest("tiny.yaml", lock=False), quiet=True).report
    found = criterion(result_of(workdir), "soak.sustained_memory")
    codes = [one.code for one in report.findings]
    if kind == "leak":
        assert report.decision != "GO"
        assert found["status"] in ("FAIL", "INCONCLUSIVE")
        assert "are full in" in found["message"]
        assert "memory-growth" in codes
    else:
        assert found["status"] == "PASS", found["message"]
        assert "memory-growth" not in codes
