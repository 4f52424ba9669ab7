"""The nodes of a validation that is resumed, and what must be known of each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from validator.kinds.base import JudgedRun
from validator.kinds.preflight import _alike
from validator.model.cluster import Allocation, Cluster, Node
from validator.model.nodes import NodeRecord, NodeRecords
from validator.model.plan import PhasePlan, RunSpec
from validator.model.record import Attempt, Outcome, Reason, RunRecord
from validator.model.result import Result, RunEvidence
from validator.pipeline.nodes import Nodes, known_nodes, nodes_after
from validator.runs.journal import Journal, read, sound

CLUSTER = Cluster(engine="local", nodes=2, spare=1)


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with Journal.open(tmp_path / "journal.jsonl") as journal:
        yield journal


def _nodes(journal: Journal, *names: str, cluster: Cluster = CLUSTER) -> Nodes:
    """The nodes of a runner that gets these, after those that the journal knows."""
    allocation = Allocation(engine="local", nodes=tuple(Node(name=name, address=name) for name in names))
    nodes = nodes_after(sound(read(journal.path)), cluster, allocation, journal, note=lambda _: None)
    nodes.begin()
    return nodes


def _ran(*groups: tuple[str, ...], on: tuple[tuple[int, ...], ...], reason: Reason = "exited") -> RunRecord:
    """A run that has ended, by the nodes of each group."""
    records = tuple(
        NodeRecord(node=name, group=group, rank=rank, ended="exited", rc=0)
        for group, names in enumerate(groups)
        for rank, name in enumerate(names)
    )
    attempt = Attempt(number=1, command=(), pid=1, started="", duration_s=1.0, rc=0, reason=reason)
    result = Result("a/r1", {}, {}, {}, None, None, None, (), (), (), None, RunEvidence(nodes=records))
    return RunRecord(_spec(on), Outcome(run="a/r1", attempts=(attempt,)), result)


def test_what_ran_on_the_same_nodes_is_kept_in_any_order(journal: Journal) -> None:
    assert _nodes(journal, "n1", "n2", "n3").order == ["n1", "n2", "n3"]
    again = _nodes(journal, "n3", "n1", "n2")
    assert again.order == list(again.names) == ["n1", "n2", "n3"], "as the first runner knew them"
    assert again.fits(_ran(("n2", "n1"), on=((0, 1),)))
    assert again.fits(_ran(("n1",), ("n2",), ("n3",), on=((0,), (1,), (2,))))
    assert not again.fits(_ran(("n1", "n3"), on=((0, 1),)))
    assert not again.fits(_ran(("n1", "n2"), on=((0, 1),), reason="node_lost"))


def test_nothing_that_other_nodes_measured_is_kept(journal: Journal) -> None:
    _nodes(journal, "n1", "n2", "n3")
    others = _nodes(journal, "n1", "n2", "n4")
    assert others.order == ["n1", "n2", "n4"]
    assert not others.fits(_ran(("n1",), ("n2",), ("n3",), on=((0,), (1,), (2,)))), "n4 was never vetted"
    assert others.fits(_ran(("n1", "n2"), on=((0, 1),))), "as long as these are the ones that are used"


def test_a_node_that_was_chosen_stays_chosen_and_one_that_was_lost_is_avoided(journal: Journal) -> None:
    nodes = _nodes(journal, "n1", "n2", "n3")
    assert nodes.choose(("n3", "n2"), why="it is faster")
    assert _nodes(journal, "n1", "n2", "n3").order == ["n3", "n2", "n1"]
    journal.append("nodes_lost", run="a/r1", nodes=["n2"], why=["it answered no more"])
    again = _nodes(journal, "n1", "n2", "n3")
    assert (again.order, again.lost) == (["n3", "n1", "n2"], {"n2"})
    assert not again.fits(_ran(("n3", "n2"), on=((0, 1),)))
    assert known_nodes(sound(read(journal.path))).lost == {"n2": "it answered no more (in a/r1)"}


def test_a_lost_node_is_used_again_where_no_other_is_there_and_nothing_of_it_is_kept(journal: Journal) -> None:
    cluster = Cluster(engine="local", nodes=2)
    _nodes(journal, "n1", "n2", cluster=cluster)
    journal.append("nodes_lost", run="a/r1", nodes=["n2"], why=["it answered no more"])
    again = _nodes(journal, "n1", "n2", cluster=cluster)
    assert (again.order, again.lost, again.again) == (["n1", "n2"], set(), {"n2"})
    assert not again.fits(_ran(("n1",), ("n2",), on=((0,), (1,))))
    assert again.fits(_ran(("n1",), on=((0,),)))
    assert known_nodes(sound(read(journal.path))).lost == {}


def test_a_phase_on_every_node_goes_on_without_a_lost_spare_node(journal: Journal, tmp_path: Path) -> None:
    nodes = _nodes(journal, "n1", "n2", "n3")
    spec = _spec(((0,), (1,), (2,)))
    gone = NodeRecord(node="n3", group=2, rank=0, ended="lost", detail="silent")
    left = NodeRecords(schema=1, nodes=(gone,))
    (tmp_path / "nodes.json").write_text(left.model_dump_json(by_alias=True))
    assert nodes.take_spare(spec, tmp_path)
    (left_over,) = nodes.usable(PhasePlan(phase="a", kind="preflight", runs=(spec,))).runs
    assert left_over.groups == ((0,), (1,))


def _spec(groups: tuple[tuple[int, ...], ...]) -> RunSpec:
    return RunSpec.model_validate(
        {"id": "a/r1", "phase": "a", "kind": "preflight", "launcher": "exec", "argv": ["true"], "env": {}}
        | {"out": "runs/a/r1", "timeout_s": 1.0, "groups": groups}
    )


def _judged(*nodes: NodeRecord) -> JudgedRun:
    spec = _spec(tuple((index,) for index in range(len(nodes))))
    result = Result("a/r1", {}, {}, {}, None, None, None, (), (), (), None, RunEvidence(nodes=nodes))
    return JudgedRun(RunRecord(spec, None, result))


def _node(name: str, **facts: object) -> NodeRecord:
    return NodeRecord(node=name, group=0, rank=0, ended="exited", rc=0, facts=dict(facts))


def test_a_node_that_said_nothing_is_not_like_the_others() -> None:
    facts = {"python": {"version": "3.11.7"}}
    assert _alike(_judged(_node("n1", **facts), _node("n2", **facts))).status == "PASS"
    found = _alike(_judged(_node("n1", **facts), _node("n2")))
    assert (found.status, found.message) == ("INCONCLUSIVE", "n2 did not say what it is.")
    assert _alike(_judged()).status == "INCONCLUSIVE"
