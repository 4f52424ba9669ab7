"""A run across nodes by what its agents say: why it failed, and what its processes do."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.validator.supervise.tools import Make, watchdog
from validator.engine.base import AllocationState
from validator.model.cluster import Allocation, Node
from validator.supervise import nodes
from validator.supervise.capture import LogCap
from validator.supervise.monitor import Look, Monitor
from validator.supervise.termination import ProcessTree
from validator.system.nvml import Gpus

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


def monitor_of(out: Path, make_spec: Make, groups: tuple[tuple[int, ...], ...]) -> Monitor:
    """Of a run across nodes whose steps have been due for a while."""
    spec = make_spec(("true",), groups=groups, watchdog=watchdog(first_step=1.0, stall=60.0))
    started = time.monotonic() - 100.0
    return Monitor(spec, out=out, tree=ProcessTree(token="none"), gpus=Gpus(), cap=LogCap(), started=started)


def seen(monitor: Monitor, out: Path, *looks: dict[str, dict[str, Any]]) -> Look:
    """The last of several looks at what nodes say."""
    for live in looks:
        (out / nodes.LIVE_FILE).write_text(json.dumps({"nodes": live}))
        found = monitor.look()
    return found


def test_what_nodes_say_of_their_processes_is_what_the_run_does(tmp_path: Path, make_spec: Make) -> None:
    monitor = monitor_of(tmp_path, make_spec, ((0, 1),))
    idle, busy = {"cpu_s": 3.0}, {"cpu_s": 30.0}
    assert monitor.activity().describe() == "its activity is unknown", "and not that it is idle"
    assert "use 0.00 CPU cores" in str(
        seen(monitor, tmp_path, {"n1": idle, "n2": idle}, {"n1": idle, "n2": idle}).silence
    )
    assert monitor.activity().busy is False
    seen(monitor, tmp_path, {"n1": idle, "n2": busy})
    assert monitor.activity().busy
    spinning = {"n1": {**busy, "gpus": [False, True]}, "n2": {**busy, "gpus": [False, False]}}
    seen(monitor, tmp_path, spinning)
    assert "the GPUs spin without moving memory" in monitor.activity().describe()
    assert not monitor.activity().busy, "they wait for a lost rank"
    seen(monitor, tmp_path, {**spinning, "n2": {**busy, "gpus": [True, True]}})
    assert monitor.activity().busy
    seen(monitor, tmp_path, {"n1": busy, "n2": {**busy, "stopped": [4711]}})
    assert monitor.activity().describe().startswith("process 4711 on n2 is stopped (state T)")


def test_of_nodes_that_train_alone_the_slowest_says_what_the_run_does(tmp_path: Path, make_spec: Make) -> None:
    """What the others do is no reason to wait for it."""
    monitor = monitor_of(tmp_path, make_spec, ((0,), (1,)))
    for cpu_s in (0.0, 90.0):
        seen(monitor, tmp_path, {"n1": {"step": 9, "cpu_s": cpu_s}, "n2": {"step": 4, "cpu_s": 1.0}})
    assert not monitor.activity().busy
    seen(monitor, tmp_path, {"n1": {"step": 9, "cpu_s": 90.0}, "n2": {"step": 4, "cpu_s": 80.0}})
    assert monitor.activity().busy
