"""A journal that was damaged still tells what it can, and what it cannot tell is never a pass."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.fuzz.folders import Whole, decision_of
from validator.pipeline.write import rerender
from validator.runs.folder import RunFolder


def change(root: Path, event: str, edit: Callable[[dict[str, Any]], None]) -> None:
    """Change every event of that kind."""
    path = root / "journal.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        if line["event"] == event:
            edit(line)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.mark.parametrize(
    ("event", "edit"),
    [
        ("run_started", lambda line: line["spec"].pop("argv")),
        ("run_started", lambda line: line.update(spec=None)),
        ("run_ended", lambda line: line["outcome"]["attempts"][0].pop("rc")),
        ("run_ended", lambda line: line.pop("outcome")),
        ("phase_ended", lambda line: line.update(state="dome")),
        ("phase_ended", lambda line: line.pop("state")),
        ("phase_ended", lambda line: line.update(duration_s="long")),
        ("phase_ended", lambda line: line.update(duration_s={})),
        ("phase_ended", lambda line: line.update(reason=["none"])),
        ("phase_ended", lambda line: line.update(phase=[])),
        ("run_started", lambda line: line.update(run=[])),
        ("run_started", lambda line: line.pop("run")),
        ("run_ended", lambda line: line.update(run={})),
    ],
)
def test_an_event_whose_fields_were_garbled_is_passed_over(
    tmp_path: Path, event: str, edit: Callable[[dict[str, Any]], None]
) -> None:
    whole = Whole(tmp_path / "whole")
    assert decision_of(whole.root) == "GO"
    change(whole.root, event, edit)
    assert decision_of(whole.root) == "INCONCLUSIVE"


@pytest.mark.parametrize(
    "fields", [{"finished": 1.5}, {"finished": {}}, {"duration_s": "long"}, {"duration_s": [1]}, {"duration_s": None}]
)
def test_an_end_without_a_time_is_an_end_at_an_unknown_time(tmp_path: Path, fields: dict[str, Any]) -> None:
    root = Whole(tmp_path / "whole").root
    change(root, "finished", lambda line: line.update(fields))
    report, _ = rerender(RunFolder.open(root))
    assert report.decision == "GO"
    assert [getattr(report, name) for name in fields] == [None]
