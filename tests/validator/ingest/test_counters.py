"""Counters of errors, from sound and from odd files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from validator.ingest.counters import read_counters
from validator.ingest.read_log import ReadLog
from validator.model.counters import Counted


@pytest.mark.parametrize(
    ("record", "grown"),
    [
        ({"seconds": 9, "before": {"a": 5}, "after": {"a": 7, "b": 1}}, {"a": 2, "b": 1}),
        ({"seconds": 9, "before": {"a": 5}, "after": {"a": 5}}, {}),
        ({"seconds": 9, "before": {"a": 50}, "after": {"a": 3}}, {"a": 3}),  # set back by a reset
        ({"seconds": True, "before": [], "after": {"a": -1, "b": "2", "c": True, "d": 1.5}}, {}),
        ({}, {}),
    ],
)
def test_what_grew_is_read(tmp_path: Path, record: dict[str, Any], grown: dict[str, int]) -> None:
    path = tmp_path / "counters.json"
    path.write_text(json.dumps(record))
    found = read_counters(path, ReadLog(tmp_path))
    assert found is not None
    assert (found.grown, found.seconds) == (grown, 9.0 if record.get("seconds") == 9 else 0.0)


def test_a_torn_file_is_noted_and_counts_nothing(tmp_path: Path) -> None:
    path = tmp_path / "counters.json"
    path.write_text('{"seconds": 9, "before"')
    log = ReadLog(tmp_path)
    assert read_counters(path, log) is None
    assert log.irregularities


def test_replays_are_compared_by_the_minute() -> None:
    assert Counted(300.0, {"GPU 0 pcie_replays": 399}).worse() == ()
    (worse,) = Counted(300.0, {"GPU 0 pcie_replays": 401}).worse()
    assert (worse.device, worse.grave) == ("GPU 0", False)
    assert Counted(1.0, {"GPU 0 pcie_replays": 80}).worse() == (), "a short run is compared with a whole minute"
