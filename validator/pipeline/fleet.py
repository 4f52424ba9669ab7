"""What the records of a validation on a cluster say of its nodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

from validator.judge.data import PhaseData, mean_rate
from validator.kinds.registry import kind_of
from validator.model.fleet import Fleet, ScalingPoint
from validator.model.record import ValidationRecord
from validator.pipeline.nodes import known_nodes
from validator.runs.journal import Event
from validator.stats.measure import NotMeasured


def fleet(record: ValidationRecord, events: Sequence[Event]) -> Fleet | None:
    """The nodes: what is slow, in what they differ, how their number scales; None without a cluster.

    Args:
        events: the journal, which names the nodes by their index, and those that were lost.
    """
    runbook = record.runbook
    if runbook.cluster is None:
        return None
    from validator.cluster.fleet import search_over
    from validator.cluster.values import fleet_of

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
    search = search_over(runbook.cluster.count, links=False, gpus=0, rounds=None, done=())
    for phase in record.phases:
        found = kind_of(phase.phase.kind).searched(phase.phase, runbook, phase.runs) if phase.runs else None
        search = search if found is None else found
    lost = {one.node: one.detail or "it answers no more" for one in records if one.ended == "lost"}
    return fleet_of(
        search.judgement(),
        tuple(search.measures.values()),
        records,
        wanted=runbook.cluster.nodes,
        engine=runbook.cluster.engine,
        names={str(index): name for index, name in enumerate(known.names)},
        lost={**known.lost, **lost},
        scaling=tuple(_scaling(record)),
    )


def _scaling(record: ValidationRecord) -> Iterator[ScalingPoint]:
    """The rate of each number of nodes that trained together, over its runs, where there are several such numbers."""
    points: dict[int, ScalingPoint] = {}
    for phase in record.phases:
        groups = phase.runs[0].spec.groups if phase.runs else ()
        if len(groups) == 1 and type(phase.phase).one_config:
            with suppress(NotMeasured, KeyError):
                rate = mean_rate(PhaseData(phase, record), "toks_per_s")
                low, high = rate.interval() or (None, None)
                point = ScalingPoint(nodes=len(groups[0]), value=rate.point, low=low, high=high)
                points.setdefault(len(groups[0]), point)
    if len(points) > 1:
        yield from points.values()
