"""What is wrong with phases on the nodes of a cluster: each mistake with its sound twin."""

from __future__ import annotations

from typing import Any

import pytest

from tests.validator.runbook.test_meaning import check, phase

LOCAL = {"engine": "local", "nodes": 2}
PROBED = {"id": "links", "kind": "preflight", "probe": True}


@pytest.mark.parametrize("on", ["each", "pairs", "all", 1])
def test_nodes_need_a_cluster(on: object) -> None:
    found = check({**PROBED, "on": on})
    assert any("the runbook has no cluster" in one for one in found)
    assert check({**PROBED, "on": on}, cluster=LOCAL) == []


def test_no_more_nodes_than_there_are() -> None:
    (found,) = check(phase(on=3), cluster=LOCAL)
    assert "on: 3, and cluster.nodes is 2 | write on: 2 or less, or raise cluster.nodes" in found
    assert check(phase(on=2), cluster=LOCAL) == []


def test_pairs_are_of_a_preflight_and_of_two_nodes() -> None:
    (found,) = check(phase(on="pairs"), cluster=LOCAL)
    assert "does not run on pairs" in found
    (found,) = check({**PROBED, "on": "pairs"}, cluster={"engine": "local", "nodes": 1})
    assert "there is one node" in found


@pytest.mark.parametrize("kind", ["soak", "profile"])
def test_what_is_not_read_node_by_node_runs_on_all(kind: str) -> None:
    found = check(phase(kind=kind, on="each"), cluster=LOCAL)
    assert any("does not run on each node alone" in one for one in found)


@pytest.mark.parametrize("launcher", ["deepspeed", "mpirun"])
def test_a_launcher_that_reaches_other_machines_itself_is_refused(launcher: str) -> None:
    trainer: dict[str, Any] = {"command": ["t.py", "{out}"], "launcher": launcher, "metrics": {"stdout": "s {step}"}}
    found = check(phase(), cluster=LOCAL, trainer=trainer)
    assert any(f"launcher: {launcher} would start ranks of other nodes itself" in one for one in found)
    assert not any("other nodes" in one for one in check(phase(), trainer=trainer))


@pytest.mark.parametrize(
    ("cluster", "expected"),
    [
        ({"engine": "ssh", "nodes": 2, "ssh": {"hosts": ["a"]}}, "1 ssh hosts for 2 nodes"),
        ({"engine": "ssh", "nodes": 2}, "0 ssh hosts for 2 nodes"),
        ({"engine": "ssh", "nodes": 2, "ssh": {"hosts": ["a", "a"]}}, "a host twice"),
    ],
)
def test_every_node_of_ssh_is_a_host(cluster: dict[str, Any], expected: str) -> None:
    assert any(expected in one for one in check(phase(), cluster=cluster))


def test_a_criterion_on_nodes_needs_nodes() -> None:
    found = check(phase(accept=["nodes.min >= 0.9"]), cluster=LOCAL)
    assert any("add on: each" in one for one in found)
    assert check(phase(accept=["nodes.min >= 0.9"], on="each"), cluster=LOCAL) == []


def test_a_number_of_nodes_is_no_setting_to_choose() -> None:
    sweep = phase(kind="sweep", over={"on": [1, 2]}, choose={"highest": "toks_per_s.mean"})
    assert any(
        "over has 'on'" in one and "write a train phase for each number" in one for one in check(sweep, cluster=LOCAL)
    )
