"""Why a run across nodes failed: by what agents said, and by what has become of the job."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from validator.engine.base import AllocationState
from validator.model.cluster import Allocation, Node
from validator.supervise import nodes

NAMES = ("n1", "n2", "n3")
JOB = Allocation(engine="slurm", nodes=tuple(Node(name=name, address=name) for name in NAMES), job="7")
NODE_FAIL = AllocationState("ended", "NODE_FAIL NodeDown", {"n1": "up", "n2": "down", "n3": "up"})


@pytest.mark.parametrize(
    ("ended", "state", "reason", "text"),
    [
        (
            "lost",
            NODE_FAIL,
            "node_lost",
            "n2 was lost: no word; job 7 of its nodes has ended (NODE_FAIL NodeDown): one",
        ),
        ("not_started", NODE_FAIL, "infrastructure", "nothing was started on n1, n2, n3: no word; job 7 of its nodes"),
        ("lost", AllocationState("ended", "TIMEOUT", {}), "interrupted", "job 7 of its nodes has ended (TIMEOUT)"),
        ("lost", AllocationState("running", "", {}), "node_lost", "n1, n2, n3 were lost: no word"),
    ],
)
def test_a_job_that_ends_explains_what_became_of_its_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ended: str, state: AllocationState, reason: str, text: str
) -> None:
    records = [{"node": name, "group": 0, "rank": 0, "ended": ended, "detail": "no word"} for name in NAMES]
    (tmp_path / nodes.NODES_FILE).write_text(json.dumps({"schema": 1, "nodes": records}))
    monkeypatch.setattr(nodes, "engine_of", lambda name: SimpleNamespace(state=lambda allocation: state))
    found = nodes.how_it_failed(tmp_path, JOB, asked=False)
    assert found is not None
    assert (found[0], found[1][: len(text)]) == (reason, text)
