"""What the records of a validation on a cluster say of its nodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from validator.kinds.registry import kind_of
from validator.model.fleet import Fleet, ScalingPoint
from validator.model.record import ValidationRecord
from validator.model.verdict import PhaseReport
from validator.pipeline.nodes import known_nodes
from validator.runs.journal import Event


def fleet(record: ValidationRecord, phases: Sequence[PhaseReport], events: Sequence[Event]) -> Fleet | None:
    """The nodes: what is slow, in what they differ, how their number scales; None without a cluster.

    Args:
        events: the journal, which names the nodes by their index, and those that were lost.
    """
    runbook = record.runbook
    if runbook.cluster is None:
        return None
    from validator.cluster.fleet import search_over
    from validator.cluster.values import FleetFacts, fleet_of

    records = tuple(
        node
        for phase in record.phases
        for run in phase.every_run
        if run.result is not None
        for node in run.result.evidence.nodes
    )
    if not records:
        return None
    known = known_nodes(events)
    search = search_over(runbook.cluster.count, links=False, on_gpus=False, rounds=None, done=())
    for phase in record.phases:
        found = kind_of(phase.phase.kind).searched(phase.phase, runbook, phase.runs) if phase.runs else None
        search = search if found is None else found
    lost = {one.node: one.detail or "it answers no more" for one in records if one.ended == "lost"}
    facts = FleetFacts(
        judgement=search.judgement(),
        measures=tuple(search.measures.values()),
        records=records,
        wanted=runbook.cluster.nodes,
        engine=runbook.cluster.engine,
        names={str(index): name for index, name in enumerate(known.names)},
        lost={**known.lost, **lost},
        scaling=tuple(_scaling(record, phases)),
    )
    return fleet_of(facts)


def _scaling(record: ValidationRecord, phases: Sequence[PhaseReport]) -> Iterator[ScalingPoint]:
    """The rate of each number of nodes that trained together, where there are several such numbers."""
    points: dict[int, ScalingPoint] = {}
    for phase, report in zip(record.phases, phases, strict=False):
        groups = phase.runs[0].spec.groups if phase.runs else ()
        runs = [stats for run in report.measured if (stats := run.metrics.get("toks_per_s")) and stats.mean is not None]
        if len(groups) == 1 and runs and type(phase.phase).one_config:
            mean = sum(one.mean or 0.0 for one in runs) / len(runs)
            low, high = (runs[0].ci_low, runs[0].ci_high) if len(runs) == 1 else (None, None)
            points.setdefault(len(groups[0]), ScalingPoint(nodes=len(groups[0]), value=mean, low=low, high=high))
    if len(points) > 1:
        yield from points.values()
