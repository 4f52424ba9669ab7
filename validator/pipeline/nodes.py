"""The nodes of a validation: had before its first phase, given back after its last, replaced where lost."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from validator.engine import engine_of
from validator.errors import Unable
from validator.kinds.registry import kind_of
from validator.model.cluster import Allocation, Cluster
from validator.model.plan import PhasePlan, RunSpec
from validator.model.record import RunRecord
from validator.model.runbook import Runbook
from validator.model.verdict import Check
from validator.runs.journal import Event, Journal
from validator.supervise.attempt import AttemptContext
from validator.supervise.launch import Place
from validator.supervise.nodes import read_records


@dataclass
class Nodes:
    """The nodes that were allocated, by the index that a plan has for them: those that are used, then the spare ones.

    `order` changes where a spare node takes the place of another; `lost` are those that answer no more.
    """

    cluster: Cluster
    allocation: Allocation
    journal: Journal
    note: Callable[[str], None]
    order: list[str] = field(default_factory=list)
    lost: set[str] = field(default_factory=set)

    def place(self, spec: RunSpec, runbook: Runbook) -> Place:
        """Where a run goes, and what its agents look at besides."""
        kind, phase = kind_of(spec.kind), spec.phase
        checks = {"runbook": runbook.model_dump(mode="json", by_alias=True), "phase": phase} if kind.looks else None
        return Place(
            allocation=self.allocation,
            nodes=tuple(self.order),
            start_s=self.cluster.start,
            lost_s=self.cluster.lost,
            sample_s=kind.sample_s(spec),
            checks=checks if spec.id.endswith("/probe") else None,
        )

    def usable(self, planned: PhasePlan) -> PhasePlan:
        """The plan without the groups that have lost a node, where there are others."""
        runs = tuple(spec.model_copy(update={"groups": self._left(spec)}) for spec in planned.runs)
        return planned.model_copy(update={"runs": runs})

    def missing(self, planned: PhasePlan) -> str | None:
        """Why a phase cannot run, as a clause: a node of it is lost, and none is left to take its place."""
        gone = [self.order[i] for spec in planned.runs for group in spec.groups for i in group if self._is_lost(i)]
        return f"it needs {', '.join(dict.fromkeys(gone))}, which was lost" if gone else None

    def take_spare(self, spec: RunSpec, out: Path) -> bool:
        """Note the nodes that a run has lost; whether spare ones take the places of all of them."""
        left = read_records(out)
        gone = [one.node for one in (() if left is None else left.nodes) if one.ended == "lost"]
        self.lost.update(gone)
        self.journal.append("nodes_lost", run=spec.id, nodes=gone)
        for name in gone:
            spare = next((one for one in self.order[self.cluster.nodes :] if one not in self.lost), None)
            if spare is None:
                return False
            self.swap(name, spare, why="it was lost")
        return bool(gone)

    def choose(self, best: Sequence[str], *, why: str) -> None:
        """Use these nodes from now on, as many as the runbook names; those that are used already stay in place."""
        unused = [name for name in best if name not in self.order[: self.cluster.nodes]]
        for name in [one for one in self.order[: self.cluster.nodes] if one not in best]:
            if unused:
                self.swap(name, unused.pop(0), why=why)

    def swap(self, name: str, spare: str, *, why: str) -> None:
        """Let a spare node take the place of another."""
        one, other = self.order.index(name), self.order.index(spare)
        self.order[one], self.order[other] = spare, name
        self.journal.append("node_replaced", node=name, by=spare, why=why)
        self.note(f"{spare} takes the place of {name}: {why}")

    def _is_lost(self, index: int) -> bool:
        return self.order[index] in self.lost

    def _left(self, spec: RunSpec) -> tuple[tuple[int, ...], ...]:
        left = tuple(group for group in spec.groups if not any(map(self._is_lost, group)))
        return left if len(spec.groups) > 1 and len(left) > 1 else spec.groups


@contextmanager
def open_nodes(
    runbook: Runbook, runner: AttemptContext, *, note: Callable[[str], None], earlier: Iterable[Event] = ()
) -> Iterator[Nodes | None]:
    """The nodes that the runbook declares, given back when the context is left, or by the guardian; None without any.

    Args:
        earlier: the events of earlier runners of the validation.

    Raises:
        Unable: when they cannot be had, or are others than those that earlier runners measured.
    """
    cluster = runbook.cluster
    if cluster is None:
        yield None
        return
    engine = engine_of(cluster.engine)
    try:
        allocation = engine.allocate(cluster, name=runbook.name, cancelled=lambda: runner.cancel.requested)
    except Unable:
        if runner.cancel.requested:
            raise KeyboardInterrupt from None  # the wait was stopped by the user
        raise
    try:
        runner.guardian.name_release(engine.release_words(allocation))
        names = [node.name for node in allocation.nodes]
        _require_same(names, earlier)
        runner.journal.append("nodes", allocation=allocation.model_dump(mode="json", exclude={"options"}))
        job = "" if allocation.job is None else f" of job {allocation.job}"
        note(f"{len(names)} nodes{job}: {', '.join(names[:16])}{' …' if len(names) > 16 else ''}")
        yield Nodes(cluster, allocation, runner.journal, note, order=names)
    finally:
        engine.release(allocation)
        runner.guardian.name_release(())


def _require_same(names: Sequence[str], earlier: Iterable[Event]) -> None:
    """Nodes that were never vetted must not pass by what others measured, nor share a decision with them."""
    had = [event.fields["allocation"]["nodes"] for event in earlier if event.event == "nodes"]
    before = sorted(str(node["name"]) for node in had[-1]) if had else sorted(names)
    if before != sorted(names):
        raise Unable(
            f"the validation was begun on {', '.join(before)}, and the nodes are now {', '.join(sorted(names))}; "
            "resume it on the same nodes, or start a new one"
        )


def node_checks(runs: Iterable[RunRecord]) -> tuple[Check, ...]:
    """What the agents found on their nodes, each check by the name of its node."""
    found: list[Check] = []
    for run in runs:
        for node in () if run.result is None else run.result.evidence.nodes:
            for one in map(Check.model_validate, node.checks):
                seen = tuple(  # a node's snapshot is in its record, and not in that of the head
                    entry.model_copy(update={"path": f"{run.spec.out}/nodes.json"}) if entry.path else entry
                    for entry in one.evidence
                )
                named = {"id": f"{node.node}.{one.id}", "title": f"{node.node}: {one.title}", "evidence": seen}
                found.append(one.model_copy(update=named))
    return tuple(found)
