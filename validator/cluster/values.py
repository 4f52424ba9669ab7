"""What was found out about the nodes of a cluster, as plain values for result.json and the report."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from validator.cluster.alike import Difference, differences
from validator.cluster.judgement import Cell, Judgement, Outlier, Standing, Subject, Together
from validator.cluster.rounds import Group, Measure
from validator.model.cluster import EngineName
from validator.model.fleet import (
    Fleet,
    FleetCell,
    FleetGpu,
    FleetGroup,
    FleetMeasure,
    FleetNode,
    FleetOutlier,
    FleetUnit,
    NodeDifference,
    ScalingPoint,
)
from validator.model.nodes import NodeRecord


@dataclass(frozen=True)
class FleetFacts:
    """What a validation across nodes knows of them.

    `measures` are those of the search. `names` are the nodes by what the search calls them, such as an index; without
    them its names are theirs. `records` are the nodes' records of all runs: of a node with several, the last that has
    facts says what it is, and one that is lost makes it lost. `wanted` is `cluster.nodes`, `min_effect` that of the
    search's rules. `scaling` has a point for each number of nodes that was trained on, in any order.
    """

    judgement: Judgement
    measures: tuple[Measure, ...]
    records: tuple[NodeRecord, ...]
    wanted: int
    engine: EngineName
    names: Mapping[str, str] = field(default_factory=dict)
    min_effect: float = 0.03
    scaling: tuple[ScalingPoint, ...] = ()


def fleet_of(facts: FleetFacts) -> Fleet:
    """The plain values. A node that was lost is not good, whatever it measured before."""
    return _Values(facts).fleet()


class _Values:
    """Turns what the search says into plain values, by the nodes' own names."""

    def __init__(self, facts: FleetFacts) -> None:
        self._facts, self._names = facts, facts.names
        self._known = {one.node: one for one in facts.records if one.facts}
        self._lost = {one.node: one for one in facts.records if one.ended == "lost"}

    def fleet(self) -> Fleet:
        facts, judgement = self._facts, self._facts.judgement
        latest = {one.node: one for one in (*facts.records, *self._known.values())}
        return Fleet(
            engine=facts.engine,
            wanted=facts.wanted,
            min_effect=facts.min_effect,
            complete=judgement.complete,
            rounds=len(judgement.rounds),
            nodes=tuple(map(self._node, judgement.nodes)),
            good=tuple(name for name in self._group(judgement.compatible) if name not in self._lost),
            measures=tuple(FleetMeasure(name=one.name, unit=one.unit, per=one.per) for one in facts.measures),
            cells=tuple(map(self._cell, judgement.cells)),
            outliers=tuple(map(self._outlier, judgement.outliers)),
            together=tuple(map(self._together, judgement.together)),
            scaling=tuple(sorted(facts.scaling, key=lambda one: one.nodes)),
            differences=tuple(map(_difference, differences(tuple(latest.values())))),
        )

    def _group(self, nodes: Group) -> Group:
        return tuple(self._names.get(node, node) for node in nodes)

    def _unit(self, subject: Subject) -> FleetUnit:
        return FleetUnit(nodes=self._group(subject.nodes), gpu=subject.gpu)

    def _node(self, standing: Standing) -> FleetNode:
        (name,) = self._group((standing.node,))
        record, lost = self._known.get(name), self._lost.get(name)
        return FleetNode(
            name=name,
            state="lost" if lost else standing.state,
            effect=_finite(standing.effect),
            why=(lost.detail or "it answers no more") if lost else standing.why,
            host=record.host if record else None,
            gpus=_gpus(record.facts) if record else (),
        )

    def _cell(self, one: Cell) -> FleetCell:
        return FleetCell(
            measure=one.measure,
            unit=self._unit(one.subject),
            value=_finite(one.value),
            effect=_finite(one.effect),
            low=_finite(one.low),
            high=_finite(one.high),
            mads=_finite(one.mads),
        )

    def _outlier(self, one: Outlier) -> FleetOutlier:
        return FleetOutlier(
            code=one.code,
            measure=one.measure,
            unit=self._unit(one.subject),
            outcome=one.outcome,
            effect=_finite(one.effect),
            low=_finite(one.low),
            high=_finite(one.high),
            mads=_finite(one.mads),
            p_value=_finite(one.p_value),
            repeats=one.repeats,
            often=one.often,
            intermittent=one.intermittent,
            by=one.by,
            against=self._unit(one.against) if one.against else None,
        )

    def _together(self, one: Together) -> FleetGroup:
        return FleetGroup(
            nodes=self._group(one.nodes),
            measure=one.measure,
            value=_finite(one.value),
            reference=_finite(one.reference),
        )


def _difference(one: Difference) -> NodeDifference:
    """By value; where no value has a majority, every one is an odd one."""
    nodes = one.odd or tuple(one.values)
    odd: dict[str, tuple[str, ...]] = {}
    for node in nodes:
        odd[one.values[node]] = (*odd.get(one.values[node], ()), node)
    usual = next((value for node, value in one.values.items() if node not in nodes), None)
    return NodeDifference(fact=one.what, usual=usual, count=len(one.values) - len(nodes), odd=odd)


def _gpus(facts: dict[str, Any]) -> tuple[FleetGpu, ...]:
    """What identifies the GPUs in a snapshot, in the order of their indices."""
    found = facts.get("gpus")
    gpus = [one for one in found.values() if isinstance(one, dict)] if isinstance(found, dict) else []
    known = [one for one in gpus if isinstance(one.get("index"), int)]
    return tuple(
        FleetGpu(index=one["index"], **{key: _text(one.get(key)) for key in ("name", "uuid", "serial")})
        for one in sorted(known, key=lambda one: int(one["index"]))
    )


def _finite(value: float) -> float | None:
    """Six digits of a number: no reading has more."""
    return float(f"{value:.6g}") if math.isfinite(value) else None


def _text(value: object) -> str | None:
    return str(value) if value else None
