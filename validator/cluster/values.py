"""What was found out about the nodes of a cluster, as plain values for result.json and the report."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from validator.cluster.alike import Difference, differences
from validator.cluster.judgement import Judgement
from validator.cluster.rounds import Group, Measure
from validator.model.cluster import EngineName
from validator.model.fleet import Fleet, FleetGpu, FleetMeasure, FleetNode, NodeDifference, ScalingPoint
from validator.model.machine import MIN_EFFECT
from validator.model.nodes import NodeRecord


@dataclass(frozen=True)
class FleetFacts:
    """What a validation across nodes knows of them.

    `measures` are those of the search. `names` are the nodes by what the search calls them, such as an index; without
    them its names are theirs. `records` are the nodes' records of all runs: of a node with several, the last that has
    facts says what it is. `lost` are nodes that answer no more, each with the reason. `wanted` is `cluster.nodes`,
    `min_effect` that of the search's rules. `scaling` has a point for each number of nodes that was trained on,
    in any order.
    """

    judgement: Judgement
    measures: tuple[Measure, ...]
    records: tuple[NodeRecord, ...]
    wanted: int
    engine: EngineName
    names: Mapping[str, str] = field(default_factory=dict)
    lost: Mapping[str, str] = field(default_factory=dict)
    min_effect: float = MIN_EFFECT
    scaling: tuple[ScalingPoint, ...] = ()


def fleet_of(facts: FleetFacts) -> Fleet:
    """The plain values. A node that was lost is not good, whatever it measured before."""
    judgement, names = facts.judgement, facts.names
    known = {one.node: one for one in facts.records if one.facts}
    lost = facts.lost
    latest = {one.node: one for one in (*facts.records, *known.values())}
    listed = {name: [_plain(asdict(one), names) for one in getattr(judgement, name)] for name in _LISTED}
    nodes = [_plain(asdict(one), names) for one in judgement.nodes]
    measured = {one["node"] for one in nodes}
    nodes += [{"node": name, "state": "lost", "effect": None, "why": ""} for name in lost if name not in measured]
    good: Group = _plain(judgement.compatible, names, "nodes")
    return Fleet(
        engine=facts.engine,
        wanted=facts.wanted,
        min_effect=facts.min_effect,
        complete=judgement.complete,
        rounds=len(judgement.rounds),
        nodes=tuple(_node(one, known.get(one["node"]), lost.get(one["node"])) for one in nodes),
        good=tuple(name for name in good if name not in lost),
        measures=tuple(FleetMeasure(name=one.name, unit=one.unit, per=one.per) for one in facts.measures),
        scaling=tuple(sorted(facts.scaling, key=lambda one: one.nodes)),
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
    return FleetNode(
        name=standing["node"],
        state="lost" if lost else standing["state"],
        effect=standing["effect"],
        why=lost or standing["why"],
        host=record.host if record else None,
        gpus=_gpus(record.facts) if record else (),
    )


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
    found = facts.get("gpus")
    gpus = [one for one in found.values() if isinstance(one, dict)] if isinstance(found, dict) else []
    known = [FleetGpu(**{key: one.get(key) for key in FleetGpu.model_fields}) for one in gpus if "index" in one]
    return tuple(sorted(known, key=lambda one: one.index))
