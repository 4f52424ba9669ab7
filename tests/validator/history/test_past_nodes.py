"""How a node of a cluster did before: from what result.json holds, for information."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from tests.validator.history.folders import BEGIN, make_run
from tests.validator.report import fleets
from validator.history.page import node_before, node_lines
from validator.history.store import read_history
from validator.model.fleet import Fleet
from validator.model.machine import NODES_ALONE
from validator.pipeline.write import _with_past
from validator.report.fleet import fleet_view
from validator.runs.folder import RunFolder


def _past(parent: Path, number: int, *, engine: str = "slurm", alone: float | None = None, **states: str) -> None:
    """A validation of these nodes, by state; `alone` is the share of n07 where each trained alone."""
    nodes = [
        {"name": name, "state": state, "effect": -0.05 if state == "slow" else 0.0} for name, state in states.items()
    ]
    folder = make_run(parent, number, fleet={"engine": engine, "nodes": nodes})
    if alone is not None:
        found = json.loads((folder / "result.json").read_text())
        rows = [["n01", 10.0, 1.0], ["n07", 10.0 * alone, alone]]
        found["phases"][-1]["runs"][0]["tables"] = [{"caption": NODES_ALONE, "columns": ["", "", ""], "rows": rows}]
        (folder / "result.json").write_text(json.dumps(found))


def _fleet(**changes: Any) -> Fleet:
    return fleets.fleet(8, "slow link", count=2, seed=5, names={"n000": "n07", "n001": "n01"}, **changes)


def test_a_node_that_was_slow_is_remembered_beside_what_is_found_now(tmp_path: Path) -> None:
    _past(tmp_path, 0, n01="good", n07="slow")
    _past(tmp_path, 1, n01="good", n07="good", alone=0.93)
    _past(tmp_path, 2, n01="good", n07="good")
    entries = read_history(tmp_path)
    assert node_before(entries, "n07") == "0.93 of the others on 2026-01-02, slow or lost in 2 of 3 earlier validations"
    assert node_before(entries, "n01") == node_before(entries, "n99") == ""
    header = SimpleNamespace(started=BEGIN.replace(day=3).isoformat())
    folder = cast(RunFolder, SimpleNamespace(root=tmp_path / "new", header=header))
    fleet = _with_past(folder, _fleet())
    assert fleet is not None
    facts = {fact[0]: fact[1] for fact in fleet_view(fleet, "run").facts}
    assert facts["Slow before"].startswith("n07: 0.93 of the others on 2026-01-02, slow or lost in 2 of 2")
    assert _with_past(folder, _fleet(engine="local")) == _fleet(engine="local"), "names of this machine are nobody's"


def test_one_node_is_listed_by_its_name(tmp_path: Path) -> None:
    _past(tmp_path, 0, n07="slow")
    _past(tmp_path, 1, n07="good", alone=0.93)
    _past(tmp_path, 2, engine="local", n07="slow")
    lines = node_lines(read_history(tmp_path), "n07", limit=10, width=120, color=False)
    assert [line.split()[:4] for line in lines[1:]] == [
        ["2026-01-01", "02:00", "slow", "0.950"],
        ["2026-01-02", "02:00", "good", "0.930"],
    ]
    assert node_lines((), "n07", limit=10, width=120, color=False) == ["no validation here has a node n07"]
