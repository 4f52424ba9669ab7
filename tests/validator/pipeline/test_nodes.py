"""The nodes of a validation that is resumed, and what must be known of each."""

from __future__ import annotations

import pytest

from validator.errors import Unable
from validator.kinds.base import JudgedRun
from validator.kinds.preflight import _alike
from validator.model.nodes import NodeRecord
from validator.model.plan import RunSpec
from validator.model.record import RunRecord
from validator.model.result import Result, RunEvidence
from validator.pipeline.nodes import _require_same
from validator.runs.journal import Event


def _begun_on(*names: str) -> Event:
    allocation = {"nodes": [{"name": name, "address": name} for name in names]}
    return Event("nodes", "2026-11-22T00:00:00+00:00", 0.0, {"allocation": allocation})


def test_a_validation_is_resumed_on_the_nodes_that_it_has_vetted() -> None:
    _require_same(["n2", "n1"], [_begun_on("n1", "n2")])
    _require_same(["n1"], [])
    with pytest.raises(Unable, match="begun on n1, n2, and the nodes are now n1, n3; resume it on the same nodes"):
        _require_same(["n1", "n3"], [_begun_on("n1", "n2")])


def _judged(*nodes: NodeRecord) -> JudgedRun:
    spec = RunSpec.model_validate(
        {"id": "a/probe", "phase": "a", "kind": "preflight", "launcher": "exec", "argv": ["true"], "env": {}}
        | {"out": "runs/a/probe", "timeout_s": 1.0, "groups": [[index] for index in range(len(nodes))]}
    )
    result = Result("a/probe", {}, {}, {}, None, None, None, (), (), (), None, RunEvidence(nodes=nodes))
    return JudgedRun(RunRecord(spec, None, result))


def _node(name: str, **facts: object) -> NodeRecord:
    return NodeRecord(node=name, group=0, rank=0, ended="exited", rc=0, facts=dict(facts))


def test_a_node_that_said_nothing_is_not_like_the_others() -> None:
    facts = {"python": {"version": "3.11.7"}}
    assert _alike(_judged(_node("n1", **facts), _node("n2", **facts))).status == "PASS"
    found = _alike(_judged(_node("n1", **facts), _node("n2")))
    assert (found.status, found.message) == ("INCONCLUSIVE", "n2 did not say what it is.")
    assert _alike(_judged()).status == "INCONCLUSIVE"
