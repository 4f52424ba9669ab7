"""Every veto can be answered in the runbook, and only there."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from tests.validator.adversary.court import book, codes, finding, judged, laid_out, train, tried
from validator.kinds.registry import loads
from validator.model.runbook import Runbook
from validator.model.settings import accepted_at
from validator.runbook import RunbookError
from validator.selftest.recorded_case import FakeRun, falling, scatter

ZEROS = FakeRun(losses=[*falling(80), *[0.0] * 40])


def test_a_veto_names_the_field_that_answers_it(tmp_path: Path) -> None:
    report = tried(tmp_path, ZEROS)
    assert (report.decision, codes(report, "veto")) == ("INCONCLUSIVE", {"zero-loss"})
    assert finding(report, "zero-loss").next_step.endswith(
        "write accept_findings: [zero-loss] in phase baseline of the runbook."
    )


def test_a_bare_commands_runbook_is_written_first(tmp_path: Path) -> None:
    """The veto of `validator run -- COMMAND` sent its reader into a runbook that did not exist."""
    root = laid_out(tmp_path, ZEROS)
    header = json.loads((root / "run.json").read_text())
    (root / "run.json").write_text(json.dumps(header | {"command": ["--", "python", "train.py"]}))
    assert finding(judged(root), "zero-loss").next_step.endswith(
        "in phase baseline of the runbook that validator init -- COMMAND writes."
    )


@pytest.mark.parametrize("place", ["phase baseline", "defaults"])
def test_what_the_runbook_accepts_is_information_that_says_so(tmp_path: Path, place: str) -> None:
    accepted = ["zero-loss"]
    text = book(train(accept_findings=accepted)) if place != "defaults" else book(accept_findings=accepted)
    report = tried(tmp_path, ZEROS, text)
    assert report.decision == "GO", report.why
    told = finding(report, "zero-loss")
    assert (told.severity, f"Accepted by the runbook (accept_findings of {place})." in told.message) == ("info", True)


def test_another_code_or_another_phase_answers_nothing(tmp_path: Path) -> None:
    phases = train(accept_findings=["diverging"]), train("second", accept_findings=["zero-loss"])
    report = tried(tmp_path, lambda spec: replace(ZEROS, rates=scatter(40_000.0, seed=len(spec.phase))), book(*phases))
    assert [(one.severity, one.phase) for one in report.findings] == [("veto", "baseline"), ("info", "second")]


def test_nothing_that_a_trainer_writes_accepts_anything(tmp_path: Path) -> None:
    said = {"accept_findings": ["zero-loss"]}
    fake = FakeRun(losses=ZEROS.losses, config=said, requested=said, facts=said)
    assert codes(tried(tmp_path, fake), "veto") == {"zero-loss"}


def test_an_unknown_code_is_an_error_with_its_place_and_a_fix() -> None:
    phase = {"id": "a", "kind": "train", "steps": 30, "accept_findings": ["zero-loss", "zero-los"]}
    with pytest.raises(RunbookError) as error:
        loads(yaml.safe_dump({"schema": 1, "name": "t", "phases": [phase]}), file="f")
    (problem,) = error.value.problems
    assert str(problem.place).startswith("f:")
    assert "'zero-los', which is not the code of a finding" in problem.message
    assert problem.fix == "did you mean zero-loss?"


def test_the_phase_adds_to_the_defaults() -> None:
    phases = [{"id": "a", "kind": "train", "steps": 30, "accept_findings": ["zero-loss"]}]
    tree = {"schema": 1, "name": "t", "defaults": {"accept_findings": ["diverging"]}, "phases": phases}
    runbook = Runbook.model_validate(tree)
    assert accepted_at(runbook, runbook.phases[0]) == {"diverging": "defaults", "zero-loss": "phase a"}
    assert accepted_at(runbook, None) == {"diverging": "defaults"}
