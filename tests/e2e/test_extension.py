"""A phase whose criterion stays open is run again, once, and the report says so."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.folders import criterion, result_of
from validator.judge import judge_phase
from validator.model.record import PhaseRecord
from validator.model.verdict import PhaseReport
from validator.pipeline.evaluate import judge
from validator.pipeline.validate import RunRequest, execute
from validator.runs.folder import RunFolder
from validator.runs.replay import reconstruct

from .conftest import RATED_TRAINER, Answer

RUNBOOK = """\
schema: 1
name: tiny
trainer:
  command: [{trainer}]
  args: {{steps: "{{steps}}", out: "{{out}}"}}
  metrics: {{csv: training.csv}}
defaults: {{nproc: 0, timeout: 60s, warmup_steps: 10}}
phases:
  - id: baseline
    kind: train
    steps: 200
    extend: {extend}
    accept: ["toks_per_s.mean >= 99"]
"""


def _written(workdir: Path, *, extend: str, trainer: str = RATED_TRAINER) -> Path:
    (workdir / "trainer.py").write_text(trainer, encoding="utf-8")
    (workdir / "tiny.yaml").write_text(
        RUNBOOK.format(trainer=json.dumps(str(workdir / "trainer.py")), extend=extend), encoding="utf-8"
    )
    return workdir / "tiny.yaml"


def _run(workdir: Path, cli: Callable[..., Answer], *, extend: str, trainer: str = RATED_TRAINER) -> Answer:
    return cli("run", str(_written(workdir, extend=extend, trainer=trainer)), "--no-lock")


def test_an_open_phase_gets_three_more_runs_and_is_judged_on_four(
    workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Judged when its run was over and when it was extended, never again; what is on disk is judged alike."""
    judged: list[int] = []

    def counted(record: PhaseRecord, **more: Any) -> PhaseReport:
        judged.append(len(record.runs))
        return judge_phase(record, **more)

    monkeypatch.setattr("validator.pipeline.evaluate.judge_phase", counted)
    monkeypatch.chdir(workdir)
    finished = execute(RunRequest(str(_written(workdir, extend="true")), lock=False), quiet=True)
    assert finished.report.decision == "GO"
    assert judged == [1, 4]
    assert judge(reconstruct(RunFolder.open(finished.folder))) == finished.report.phases
    result = result_of(workdir)
    phase = result["phases"][0]
    assert phase["extended"] == {"criteria": ["baseline.1"], "runs_before": 1, "runs_after": 4}
    assert [run["id"] for run in phase["runs"]] == [f"baseline/r{n}" for n in range(1, 5)]
    assert criterion(result, "toks_per_s.mean")["status"] == "PASS"


def test_without_the_extension_the_phase_stays_open_and_says_what_would_decide(
    workdir: Path, cli: Callable[..., Answer]
) -> None:
    assert _run(workdir, cli, extend="false").rc == 3
    found = criterion(result_of(workdir), "toks_per_s.mean")
    assert found["status"] == "INCONCLUSIVE"
    assert found["open_for"] == "interval"
    assert "4 repeats would measure" in found["message"]


def test_a_phase_is_not_extended_once_a_veto_has_decided(workdir: Path, cli: Callable[..., Answer]) -> None:
    """Three more runs could change no decision, and were made all the same."""
    zero = RATED_TRAINER.replace("{3 - step / args.steps}", "{max(0, 3 - 4 * step / args.steps)}")
    answer = _run(workdir, cli, extend="true", trainer=zero)
    assert answer.rc == 3
    result = result_of(workdir)
    assert result["why"].startswith("zero-loss")
    assert result["phases"][0]["extended"] is None
    assert len(result["phases"][0]["runs"]) == 1
    assert "not extended, since the veto zero-loss forbids GO" in answer.out + answer.err
