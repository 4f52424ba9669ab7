"""What was found out about the nodes of a cluster, for result.json and the report."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from validator.cluster.alike import Difference, differences
from validator.cluster.judgement import Judgement
from validator.cluster.rounds import Group
from validator.model.bounds import cards
from validator.model.cluster import EngineName
from validator.model.fleet import Fleet, FleetGpu, FleetMeasure, FleetNode, NodeDifference, ScalingPoint
from validator.model.machine import MIN_EFFECT
from validator.model.nodes import NodeRecord


def fleet_of(
    judgement: Judgement,
    measures: Sequence[FleetMeasure],
    records: Sequence[NodeRecord],
    *,
    wanted: int,
    engine: EngineName,
    names: Mapping[str, str] | None = None,
    lost: Mapping[str, str] | None = None,
    scaling: Sequence[ScalingPoint] = (),
) -> Fleet:
    """What a validation across nodes knows of them. A node that was lost is not good, whatever it measured before.

    Args:
        measures: those of the search.
        records: the nodes' records of all runs. Of a node with several, the last that has facts says what it is.
        wanted: `cluster.nodes`.
        names: the nodes by what the search calls them, such as an index; without them its names are theirs.
        lost: nodes that answer no more, each with the reason.
        scaling: a point for each number of nodes that was trained on, in any order.
    """
    names, lost = names or {}, lost or {}
    known = {one.node: one for one in records if one.facts}
    latest = {one.node: one for one in (*records, *known.values())}
    listed = {name: [_plain(one.model_dump(), names) for one in getattr(judgement, name)] for name in _LISTED}
    nodes = [_plain({**one.model_dump(), "name": names.get(one.name, one.name)}, names) for one in judgement.nodes]
    measured = {one["name"] for one in nodes}
    nodes += [{"name": name, "state": "lost"} for name in lost if name not in measured]
    good: Group = _plain(judgement.compatible, names, "nodes")
    return Fleet(
        engine=engine,
        wanted=wanted,
        min_effect=MIN_EFFECT,
        complete=judgement.complete,
        rounds=len(judgement.rounds),
        nodes=tuple(_node(one, known.get(one["name"]), lost.get(one["name"])) for one in nodes),
        good=tuple(name for name in good if name not in lost),
        measures=tuple(measures),
        scaling=tuple(sorted(scaling, key=lambda one: one.nodes)),
        differences=tuple(map(_difference, differences(tuple(latest.values())))),
        **listed,
    )


_LISTED = ("cells", "outliers", "together")
"""Parts of a judgement that have the same fields here."""


def _plain(value: Any, names: Mapping[str, str], key: str = "") -> Any:
    """Six digits of a number, since no reading has more; None for what is none; nodes by their own names."""
    match value:
        case float():
            return float(f"{value:.6g}") if math.isfinite(value) else None
        case dict():
            return {name: _plain(one, names, name) for name, one in value.items()}
        case tuple():
            return tuple(_plain(one, names, key) for one in value)
        case str() if key in ("node", "nodes"):
            return names.get(value, value)
    return value


def _node(standing: Mapping[str, Any], record: NodeRecord | None, lost: str | None) -> FleetNode:
    found = {"host": record.host, "gpus": _gpus(record.facts)} if record else {}
    return FleetNode(**{**standing, **found, **({"state": "lost", "why": lost} if lost else {})})


def _difference(one: Difference) -> NodeDifference:
    """By value; where no value has a majority, every one is an odd one."""
    nodes = one.odd or tuple(one.values)
    odd: dict[str, tuple[str, ...]] = {}
    for node in nodes:
        odd[one.values[node]] = (*odd.get(one.values[node], ()), node)
    usual = next((value for node, value in one.values.items() if node not in nodes), None)
    return NodeDifference(fact=one.what, usual=usual, count=len(one.values) - len(nodes), odd=odd)


def _gpus(facts: Mapping[str, Any]) -> tuple[FleetGpu, ...]:
    """What identifies the GPUs in a snapshot, in the order of their indices."""
    known = [FleetGpu(**{key: one.get(key) for key in FleetGpu.model_fields}) for one in cards(facts) if "index" in one]
    return tuple(sorted(known, key=lambda one: one.index))
