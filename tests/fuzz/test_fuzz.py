"""A few hundred damaged folders and runbooks; `python -m tests.fuzz` plays as many as one likes."""

from __future__ import annotations

import random
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from tests.fuzz.folders import RANKS, STEPS, Whole, decision_of, play_folder
from tests.fuzz.hostile import COMMANDS, Place, import_everything, play_hostile
from tests.fuzz.oracle import is_damaged
from tests.fuzz.runbooks import play_runbook, sources
from tests.fuzz.service import play_requests
from tests.validator.history.folders import make_run
from validator.service.index import RunIndex
from validator.service.serve import make_app


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    return Whole(tmp_path_factory.mktemp("fuzz") / "whole")


def test_the_sound_folder_is_go(whole: Whole) -> None:
    """Otherwise that no damaged one is GO would say nothing."""
    assert not is_damaged(whole.root / "runs" / "baseline" / "r1", steps=STEPS, ranks=RANKS)
    assert decision_of(whole.root) == "GO"


def test_no_damaged_folder_raises_or_is_go(whole: Whole, tmp_path: Path) -> None:
    cases = [play_folder(whole, tmp_path / "case", seed) for seed in range(1, 151)]
    assert [(case.seed, case.problem) for case in cases if case.problem] == []
    assert sum(case.damaged for case in cases) > 75, "most mutations do damage"
    assert {"GO", "INCONCLUSIVE", "NO_GO"} <= {str(case.decision) for case in cases}


@pytest.mark.timeout(280)
def test_no_hostile_folder_does_harm(tmp_path: Path) -> None:
    """A few of the cases that `python -m tests.fuzz --hostile 10000` plays."""
    import_everything()
    place = Place(tmp_path / "place")
    cases = [play_hostile(place, tmp_path / "scratch", seed) for seed in range(20)]
    assert [case for case in cases if case.problem] == []
    assert len({case.command for case in cases}) > len(COMMANDS) // 3
    assert {0, 2} <= {case.code for case in cases}, "some are judged, and some are refused"
    subprocess.run(["rm", "-rf", "--", str(tmp_path / "scratch")], check=True)  # deeper than pytest can remove


def test_no_request_of_the_api_is_answered_otherwise_than_described(tmp_path: Path) -> None:
    names = [make_run(tmp_path / "reports", number).name for number in range(3)]
    with closing(RunIndex(tmp_path / "reports", tmp_path / "index.sqlite")) as index:
        cases = play_requests(make_app(index, None), random.Random(1), 300, runs=names)
    assert [case for case in cases if case.problem] == []
    assert {200, 400, 404, 405, 409} <= {case.status for case in cases}


def test_no_damaged_runbook_raises(tmp_path: Path) -> None:
    cases = [play_runbook(sources(), tmp_path / "case.yaml", seed) for seed in range(250)]
    assert [(case.seed, case.problem) for case in cases if case.problem] == []
    assert {"read", "refused"} <= {case.outcome for case in cases}
