"""Trainers that print one thing only: what the commands on finished runs make of their validations."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.validator.adversary.court import book, laid_out, train
from validator.commands.app import app
from validator.selftest.recorded_case import FakeRun, falling, scatter

_TOKENS = 4096.0
"""Of a step of the recorded runs."""


@dataclass(frozen=True)
class Trainer:
    """A trainer that prints one number a step: its name, how a line prints it, and the criterion on it."""

    metric: str
    line: str
    accept: str

    @property
    def shown(self) -> list[str]:
        """What is known of a run that was watched: a loss alone is timed by the arrival of its lines."""
        return ["step_time_s", "loss"] if self.metric == "loss" else [self.metric]

    @property
    def pattern(self) -> str:
        return self.line.replace("%d", "{step}").replace("%s", f"{{{self.metric}}}")

    def log(self, slower: float) -> str:
        rates = scatter(40_000.0 / slower)
        values = {
            "step_time_s": [_TOKENS / one for one in rates],
            "toks_per_s": rates,
            "loss": [slower * one for one in falling()],
        }[self.metric]
        return "".join(self.line % (i, f"{one:.5f}") + "\n" for i, one in enumerate(values, start=1))

    def validation(self, folder: Path, *, slower: float = 1.0) -> Path:
        fake = FakeRun(rates=scatter(40_000.0 / slower), stdout=self.log(slower), without=("training.csv",))
        return laid_out(folder, fake, book(train(accept=[self.accept]), metrics={"stdout": self.pattern}))


TRAINERS = [
    Trainer("step_time_s", "it %d took %s s", "step_time_s.mean <= 2 s"),
    Trainer("toks_per_s", "it %d at %s a second", "toks_per_s.mean >= 1000"),
    Trainer("loss", "it %d has loss %s", "loss.last < loss.first"),
]
ALL = pytest.mark.parametrize("trainer", TRAINERS, ids=lambda one: one.metric)


def called(*words: str | Path) -> tuple[int, dict[str, Any]]:
    done = CliRunner().invoke(app, [*map(str, words), "--json"])
    assert done.output.startswith("{"), done.output
    return done.exit_code, json.loads(done.output)


@ALL
def test_validations_are_compared_by_what_there_is(trainer: Trainer, tmp_path: Path) -> None:
    a, b = trainer.validation(tmp_path / "a"), trainer.validation(tmp_path / "b", slower=2.0)
    _, found = called("compare", a, b)
    assert [one["metric"].split(".")[0] for one in found["metrics"] if one["headline"]] == trainer.shown
    assert found["verdict"] == "worse", found["message"]


@ALL
def test_a_run_and_its_log_are_read_as_the_validation_read_them(trainer: Trainer, tmp_path: Path) -> None:
    root = trainer.validation(tmp_path / "a")
    for own in ("", "logs/stdout.log"):
        run = root / "runs/baseline/r1" / own
        assert called("inspect", run)[1]["metrics"][trainer.metric]["n"] >= 100
        assert called("compare", run, run)[1]["metrics"]


@ALL
def test_logs_are_compared_by_a_pattern(trainer: Trainer, tmp_path: Path) -> None:
    for name, slower in (("a.log", 1.0), ("b.log", 2.0)):
        (tmp_path / name).write_text(trainer.log(slower), encoding="utf-8")
    _, found = called("compare", tmp_path / "a.log", tmp_path / "b.log", "--stdout", trainer.pattern)
    # One run says nothing of the loss of others; a time and a rate have intervals.
    assert found["verdict"] == ("not_decidable" if trainer.metric == "loss" else "worse"), found["message"]


@ALL
def test_a_baseline_bounds_what_there_is(trainer: Trainer, tmp_path: Path) -> None:
    _, found = called("baseline", trainer.validation(tmp_path / "a"))
    assert [one["reference"].split(".")[0] for one in found["bounds"]] == trainer.shown


def test_a_rate_that_halves_is_found_where_the_loss_alone_is_printed(tmp_path: Path) -> None:
    loss = TRAINERS[2]
    rates = [*scatter(40_000.0, 60), *scatter(20_000.0, 60)]
    fake = FakeRun(rates=rates, stdout=loss.log(1.0), without=("training.csv",))
    root = laid_out(tmp_path, fake, book(train(accept=[loss.accept]), metrics={"stdout": loss.pattern}))
    _, found = called("inspect", root / "runs/baseline/r1")
    (shift,) = (one for one in found["findings"] if one["code"] == "rate-shift")
    assert "From step 61 on" in shift["message"]
    assert found["metrics"]["step_time_s"]["source"].endswith("/arrivals.jsonl")


@pytest.mark.parametrize("inside", ["", "runs", "runs/baseline"])
def test_a_folder_of_several_runs_names_those_to_inspect(inside: str, tmp_path: Path) -> None:
    root = TRAINERS[0].validation(tmp_path / "a")
    rc, found = called("inspect", root / inside)
    assert rc == 2
    assert f"validator inspect {root}/runs/baseline/r1" in found["error"]


def test_runs_with_overrides_are_no_baseline(tmp_path: Path) -> None:
    root = TRAINERS[1].validation(tmp_path / "a")
    header = json.loads((root / "run.json").read_text(encoding="utf-8"))
    (root / "run.json").write_text(json.dumps({**header, "overrides": ["baseline.steps=120"]}), encoding="utf-8")
    rc, found = called("baseline", root)
    assert rc == 2
    assert "ran with --set baseline.steps=120" in found["error"]
    assert called("baseline", root, "--allow-not-go")[0] == 0


def test_runs_with_findings_are_no_baseline_of_the_phases_that_have_them(tmp_path: Path) -> None:
    text = book(train(accept=["toks_per_s.mean >= 1"]), train("other", accept=["toks_per_s.mean >= 1"]))
    slows = FakeRun(rates=[*scatter(40_000.0, 60), *scatter(20_000.0, 60)])
    root = laid_out(tmp_path, lambda spec: slows if spec.phase == "other" else FakeRun(), text)
    rc, found = called("baseline", root)
    assert rc == 2
    assert "has the warning rate-shift in phase other" in found["error"]
    assert called("baseline", root, "--phase", "baseline")[0] == 0
    assert called("baseline", root, "--allow-not-go")[0] == 0
