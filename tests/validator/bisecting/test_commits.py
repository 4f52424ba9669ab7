"""Two runs with the same settings: what is named, and the commands that search their commits."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from validator.bisect import BisectRequest, bisect, bisection_lines, commits
from validator.bisect.commits import elsewhere
from validator.kinds.registry import load
from validator.runs.folder import RunFolder

RUNBOOK = """
schema: 1
name: mine
trainer: {command: [train.py], args: {steps: "{steps}", out: "{out}"}, metrics: {csv: training.csv}}
defaults: {nproc: 0, timeout: 2m}
phases:
  - {id: ready, kind: preflight}
  - {id: baseline, kind: train, steps: 100, accept: [loss.last < loss.first]}
"""
GOOD, BAD = "1" * 40, "2" * 40


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path, dict[Path, dict[str, Any]]]:
    """Two folders of one runbook, and the environment that each is to have."""
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text(RUNBOOK, encoding="utf-8")
    book = load(Path("mine.yaml"))
    good, bad = (RunFolder.create(book, parent=Path("reports"), python="python", only=(), skip=()) for _ in range(2))
    facts: dict[Path, dict[str, Any]] = {good.root: {}, bad.root: {}}
    monkeypatch.setattr(commits, "stored_report", lambda folder: SimpleNamespace(environment=facts[folder.root]))
    return good.root, bad.root, facts


def test_a_differing_commit_is_named_with_the_git_bisect_that_searches_it(runs: Any) -> None:
    good, bad, facts = runs
    facts[good], facts[bad] = {"git": {"sha": GOOD}}, {"git": {"sha": BAD}}
    why, (start, line) = elsewhere(good, bad)
    assert "git.sha (111111111111 → 222222222222)" in why
    assert start == f"git bisect start {BAD} {GOOD}"
    assert "validator run mine.yaml --set baseline.repeats=4 --only baseline" in line
    assert f"validator compare {good.resolve()} " in line
    assert "c=125" in line, "what is not decided is skipped"


def test_other_facts_are_named_and_nothing_is_searched(runs: Any) -> None:
    good, bad, facts = runs
    assert elsewhere(good, bad)[1] == ()
    facts[bad] = {"packages": {"torch": "2.13.0"}}
    why, commands = elsewhere(good, bad)
    assert ("packages.torch" in why, commands) == (True, ())
    assert "of two run folders" in elsewhere(Path("mine.yaml"), good)[0]


def test_ends_without_a_differing_setting_are_an_answer_and_no_mistake(runs: Any) -> None:
    found = bisect(BisectRequest(good=Path("mine.yaml"), bad=Path("mine.yaml")), note=print)
    assert (found.outcome, found.folder) == ("not_in_settings", None)
    assert bisection_lines(found)[0] == "NOT IN THE SETTINGS"
