"""Code that is edited while a validation goes on: its phases are then about two trainers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.folders import result_of

_TRAINER = """
import random, sys, time
from pathlib import Path
with (Path(sys.argv[2]) / "training.csv").open("w", buffering=1) as table:
    for step in range(1, int(sys.argv[1]) + 1):
        time.sleep(0.003)
        table.write(f"{step},{3 / step * random.uniform(1, 1.05)},0.1,{random.gauss(5000, 5):.2f}\\n")
"""


@pytest.mark.parametrize(
    ("edit", "rc", "codes"),
    [
        ("sed -i s/0.003/0.002/ train.py", 3, {"mixed-runs", "config-unknown"}),
        ("touch train.py", 0, {"config-unknown"}),
    ],
)
def test_phases_about_two_trainers_are_no_go(cli, workdir: Path, edit: str, rc: int, codes: set[str]) -> None:
    (workdir / "train.py").write_text(_TRAINER, encoding="utf-8")
    text = f"""\
schema: 1
name: edited
trainer: {{command: [train.py, "{{steps}}", "{{out}}"], metrics: {{csv: training.csv}}}}
defaults: {{nproc: 0, timeout: 2m, warmup_steps: 20}}
phases:
  - {{id: before, kind: train, steps: 120, accept: [toks_per_s.mean >= 1000 tok/s]}}
  - {{id: meanwhile, kind: command, run: {edit}}}
  - {{id: after, kind: train, steps: 120, accept: [toks_per_s.mean >= 1000 tok/s]}}
"""
    (workdir / "edited.yaml").write_text(text, encoding="utf-8")
    answer = cli("run", "edited.yaml")
    result = result_of(workdir)
    assert (answer.rc, {one["code"] for one in result["findings"]}) == (rc, codes), result["why"]
    if rc:
        assert "after/r1 did not run the trainer of before/r1: the file train.py was changed" in result["why"]
