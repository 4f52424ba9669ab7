"""Runs set against each other from the command line: compare, what changed since the last GO, bounds from good runs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import RATED_TRAINER, Answer

RUNBOOK = """\
schema: 1
name: tiny
trainer:
  command: [{trainer}]
  args: {{steps: "{{steps}}", out: "{{out}}", rate: {rate}}}
  metrics: {{csv: training.csv}}
defaults: {{nproc: 0, timeout: 60s, warmup_steps: 10}}
phases:
  - id: baseline
    kind: train
    steps: 200
    accept:
      - toks_per_s.mean >= 10   # anything
"""


@pytest.fixture
def run_at(workdir: Path, cli: Callable[..., Answer]) -> Callable[[float], Path]:
    """Validate a trainer of that rate; returns the run folder."""
    (workdir / "trainer.py").write_text(RATED_TRAINER, encoding="utf-8")

    def run(rate: float) -> Path:
        text = RUNBOOK.format(trainer=json.dumps(str(workdir / "trainer.py")), rate=rate)
        (workdir / "tiny.yaml").write_text(text, encoding="utf-8")
        before = set((workdir / "reports").glob("*/run.json"))
        assert cli("run", "tiny.yaml", "--no-lock").rc == 0
        (new,) = set((workdir / "reports").glob("*/run.json")) - before
        return new.parent

    return run


def test_a_slower_run_is_worse_than_the_last_go(run_at: Callable[[float], Path], cli: Callable[..., Answer]) -> None:
    first, second = run_at(100), run_at(60)
    since = json.loads((second / "result.json").read_text(encoding="utf-8"))["since"]
    assert json.loads((first / "result.json").read_text(encoding="utf-8"))["since"] is None
    assert since["verdict"] == "worse"
    assert since["a"]["name"] == first.name
    worse = cli("compare", str(first), str(second), "--json")
    assert worse.rc == 1
    assert worse.json["verdict"] == "worse"
    better = cli("compare", str(second), str(first))
    assert better.rc == 0
    assert "BETTER" in better.out
    assert "toks_per_s.mean" in better.out
    assert cli("compare", str(first / "runs/baseline/r1"), str(second / "runs/baseline/r1")).rc == 1


def test_a_bound_may_be_a_share_of_the_last_go(workdir: Path, cli: Callable[..., Answer]) -> None:
    """The first run has none to be held against; a slower one is NO-GO, by what was kept when it began."""
    (workdir / "trainer.py").write_text(RATED_TRAINER, encoding="utf-8")

    def run(rate: float, *, skip: bool = True) -> Answer:
        text = RUNBOOK.format(trainer=json.dumps(str(workdir / "trainer.py")), rate=rate)
        text += "      - expr: toks_per_s.mean >= 0.8 * last_go.toks_per_s.mean\n"
        text += "        without_last_go: skip\n" if skip else ""
        (workdir / "tiny.yaml").write_text(text, encoding="utf-8")
        return cli("run", "tiny.yaml", "--no-lock", "--json")

    assert run(100, skip=False).rc == 3
    first = run(100)
    assert first.rc == 0
    assert [one["status"] for one in first.json["phases"][0]["criteria"] if "last_go" in one["text"]] == ["SKIPPED"]
    assert run(95).rc == 0
    slow = run(60)
    assert slow.rc == 1
    held = next(one for one in slow.json["phases"][0]["criteria"] if "last_go" in one["text"])
    assert held["bound"] == pytest.approx(0.8 * 95.5, rel=0.01), "the newest GO counts"
    folder = workdir / "reports" / slow.json["run_id"]
    for other in (workdir / "reports").iterdir():
        if other != folder and other.is_dir():
            shutil.rmtree(other)
    assert cli("report", str(folder)).rc == 1, "judging again does not depend on neighbors"


def test_equal_single_runs_are_not_decidable_without_a_margin_and_kinds_do_not_mix(
    run_at: Callable[[float], Path], cli: Callable[..., Answer]
) -> None:
    first, second = run_at(100), run_at(100)
    answer = cli("compare", str(first), str(second), "--json")
    assert answer.rc == 3
    rate = next(one for one in answer.json["metrics"] if one["metric"] == "toks_per_s.mean")
    assert rate["verdict"] == "not_decidable"
    runs = rate["repeats_needed"]
    assert runs > 4
    again, compared, narrower = answer.json["commands"]
    command, _, about = again.partition("  # ")
    assert about == "once as A was, once as B was"
    assert command.split()[-4:] == ["--set", f"baseline.repeats={runs}", "--only", "baseline"]
    assert cli("check", *command.split()[2:-2]).rc == 0
    assert compared == "validator compare reports/NEW_A reports/NEW_B"
    assert narrower.startswith(f"validator compare {first} {second} --not-worse-than ")
    assert cli(*narrower.split()[1:]).rc == 0
    assert f"Next    {again}" in cli("compare", str(first), str(second)).out
    mixed = cli("compare", str(first), str(second / "runs/baseline/r1"))
    assert mixed.rc == 2
    assert "two trainer folders" in mixed.err
    equal = cli("compare", str(first), str(second), "--not-worse-than", "10%")
    assert equal.rc == 0, equal.out
    assert "NOT WORSE" in equal.out
    assert cli("compare", str(first), str(second), "--not-worse-than", "2").rc == 3
    wrong = cli("compare", str(first), str(second), "--not-worse-than", "0")
    assert wrong.rc == 2
    assert "write --not-worse-than 5%" in wrong.err


def test_bounds_from_good_runs_make_a_runbook_that_checks_and_passes(
    run_at: Callable[[float], Path], cli: Callable[..., Answer], workdir: Path
) -> None:
    first, second = run_at(100), run_at(101)
    made = cli("baseline", str(first), str(second), "--out", "mine.yaml", "--phase", "baseline")
    assert made.rc == 0, made.err
    text = (workdir / "mine.yaml").read_text(encoding="utf-8")
    assert "# from good runs: toks_per_s.mean: 2 good runs gave" in text
    assert first.name in text
    assert cli("check", "mine.yaml").rc == 0
    assert cli("run", "mine.yaml", "--no-lock").rc == 0
    assert cli("baseline", str(first), "--out", "mine.yaml").rc == 2
    assert cli("run", "mine.yaml", "--no-lock", "--set", "trainer.args.rate=50").rc == 1
    failed = max((workdir / "reports").glob("*/run.json")).parent
    refused = cli("baseline", str(failed))
    assert refused.rc == 2
    assert "ended NO_GO" in refused.err
    assert cli("baseline", str(failed), "--allow-not-go", "--json").rc == 0


def test_a_result_by_an_older_definition_is_computed_anew_or_said_to_be_another(
    run_at: Callable[[float], Path], cli: Callable[..., Answer]
) -> None:
    first, second = run_at(100), run_at(100)
    path = first / "result.json"
    older = json.loads(path.read_text(encoding="utf-8"))
    for run in older["phases"][0]["runs"]:
        run["metrics"]["toks_per_s"] |= {"version": 1, "mean": 201.0, "ci_low": 200.5, "ci_high": 201.5}
    path.write_text(json.dumps(older), encoding="utf-8")
    rate = cli("compare", str(first), str(second), "--json").json["metrics"][0]
    assert (rate["a"]["value"], rate["change"]) == (pytest.approx(100.5, abs=0.1), pytest.approx(0, abs=0.01))
    shutil.rmtree(first / "runs")
    gone = cli("compare", str(first), str(second), "--json")
    assert gone.rc == 3, "half of another number is no loss"
    assert "by definition 1 on one side and 2 on the other" in gone.json["message"]
