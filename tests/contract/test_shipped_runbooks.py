"""Every run that a shipped runbook plans is one that the bundled trainer understands.

The two halves never import each other, so only a test can notice that a flag or a variable was renamed in one of them.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from nsa.resolve import resolve
from validator.kinds.registry import load
from validator.model.plan import RunSpec
from validator.model.settings import flat_name
from validator.plan import make_plan
from validator.runbook import available

RUNS = [
    (info.name, run)
    for info in available()
    for run in make_plan(load(info.path).runbook, run_dir=Path("/runs"), python="python").runs
    if "nsa.train" in run.argv and run.repeat == 1
]


@pytest.mark.parametrize(("name", "run"), RUNS, ids=[f"{name}:{run.id}" for name, run in RUNS])
def test_the_trainer_accepts_the_run(name: str, run: RunSpec) -> None:
    words = run.argv[run.argv.index("nsa.train") + 1 :]
    trainer = resolve(words, {key: value for key, value in run.env.items() if key.startswith("NSA_")})
    assert trainer.config.train.steps == run.steps
    for key, value in run.requested.items():
        if key != "config" and value is not False:
            got = trainer.requested[flat_name(key)]
            assert str(got).lower() == str(value).lower() or got == value, f"{key} did not arrive"


@pytest.mark.parametrize("name", sorted({name for name, _ in RUNS}))
def test_arms_reach_the_trainer_as_different_configs(name: str) -> None:
    configs: dict[str, dict[str, str]] = {}
    for owner, run in RUNS:
        if owner == name and run.arm is not None:
            words = run.argv[run.argv.index("nsa.train") + 1 :]
            got = resolve(words, {key: value for key, value in run.env.items() if key.startswith("NSA_")}).requested
            configs.setdefault(run.phase, {})[run.arm] = str({k: v for k, v in got.items() if k != "out"})
    for phase, arms in configs.items():
        assert len(set(arms.values())) == len(arms), f"the arms of {phase} are the same to the trainer"
