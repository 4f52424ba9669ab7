"""The nodes of a validation: had before its first phase, given back after its last, replaced where lost."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
    """The nodes that were allocated: those that are used, then the spare ones, in an `order` that changes.

    `names` never change their order: phases on every node, and what they find, know nodes by their index in it. `lost`
    are those that answer no more, `again` those of them that must be used for there are no others.
    """

    cluster: Cluster
    allocation: Allocation
    journal: Journal
    note: Callable[[str], None]
    names: tuple[str, ...]
    order: list[str]
    lost: set[str] = field(default_factory=set)
    again: frozenset[str] = frozenset()

    def begin(self) -> None:
        """Note the nodes in the journal, once that names the runner."""
        allocation = self.allocation.model_dump(mode="json", exclude={"options"})
        self.journal.append("nodes", allocation=allocation, names=self.names, order=self.order)
        self._avoid_lost()
        self.again = frozenset(self.lost & set(self.order[: self.cluster.nodes]))
        self.lost -= self.again
        for name in sorted(self.again):
            self.journal.append("node_again", node=name)
            self.note(f"{name}, which was lost before, is used again: no other node is there")

    def of(self, spec: RunSpec) -> Sequence[str]:
        """The nodes by the index that the groups of a run have for them."""
        return self.names if spec.role == "round" or len(spec.groups) > 1 else self.order

    @property
    def described(self) -> str:
        """Those that are used, as a list."""
        return ", ".join(self.order[: self.cluster.nodes])

    def place(self, spec: RunSpec, runbook: Runbook) -> Place:
        """Where a run goes, and what its agents look at besides."""
        kind, phase = kind_of(spec.kind), spec.phase
        checks = {"runbook": runbook.model_dump(mode="json", by_alias=True), "phase": phase} if kind.looks else None
        return Place(
            allocation=self.allocation,
            nodes=tuple(self.of(spec)),
            start_s=self.cluster.start,
            lost_s=self.cluster.lost,
            sample_s=kind.sample_s(spec),
            checks=checks if spec.role == "measure" else None,
        )

    def usable(self, planned: PhasePlan) -> PhasePlan:
        """The plan without the groups that have lost a node, where there are others."""
        runs = tuple(spec.model_copy(update={"groups": self._left(spec)}) for spec in planned.runs)
        return planned.model_copy(update={"runs": runs})

    def missing(self, planned: PhasePlan) -> str | None:
        """Why a phase cannot run, as a clause: a node of it is lost, and none is left to take its place."""
        named = [self.of(spec)[index] for spec in planned.runs for group in spec.groups for index in group]
        gone = [name for name in dict.fromkeys(named) if name in self.lost]
        return f"it needs {', '.join(gone)}, which was lost" if gone else None

    def fits(self, run: RunRecord) -> bool:
        """Whether a run ran on the nodes on which it would run now, and lost none of them."""
        spec, outcome = run.spec, run.outcome
        if not spec.groups or outcome is None:
            return True
        ran = [{one.node for one in run.evidence.nodes if one.group == group} for group in range(len(spec.groups))]
        now = [{self.of(spec)[index] for index in group} for group in spec.groups]
        return ran == now and outcome.reason != "node_lost" and not self.again & set().union(*ran)

    def take_spare(self, spec: RunSpec, out: Path) -> bool:
        """Note the nodes that a run has lost; whether it can be repeated without them."""
        left = read_records(out)
        gone = {one.node: one.detail for one in (() if left is None else left.nodes) if one.ended == "lost"}
        self.lost.update(gone)
        self.journal.append("nodes_lost", run=spec.id, nodes=list(gone), why=list(gone.values()))
        return bool(gone) and self._avoid_lost()

    def _avoid_lost(self) -> bool:
        """Let spare nodes take the places of lost ones; whether they are enough."""
        for name in [one for one in self.order[: self.cluster.nodes] if one in self.lost]:
            spare = next((one for one in self.order[self.cluster.nodes :] if one not in self.lost), None)
            if spare is None:
                return False
            self.swap(name, spare, why="it was lost")
        return True

    def choose(self, best: Sequence[str], *, why: str) -> bool:
        """Use these nodes from now on, as many as the runbook names; those that are used already stay in place.

        Returns whether that changes anything.
        """
        used, before = self.order[: self.cluster.nodes], tuple(self.order)
        unused = [name for name in best if name not in used and name not in self.lost]
        for name in [one for one in used if one not in best]:
            if unused:
                self.swap(name, unused.pop(0), why=why)
        return before != tuple(self.order)

    def swap(self, name: str, spare: str, *, why: str) -> None:
        """Let a spare node take the place of another."""
        _swap(self.order, name, spare)
        self.journal.append("node_replaced", node=name, by=spare, why=why)
        self.note(f"{spare} takes the place of {name}: {why}")

    def _left(self, spec: RunSpec) -> tuple[tuple[int, ...], ...]:
        of = self.of(spec)
        left = tuple(group for group in spec.groups if not any(of[index] in self.lost for index in group))
        return left if len(spec.groups) > 1 and len(left) > 1 else spec.groups


def _swap(order: list[str], name: str, spare: str) -> None:
    one, other = order.index(name), order.index(spare)
    order[one], order[other] = spare, name


@contextmanager
def open_nodes(
    runbook: Runbook, runner: AttemptContext, *, note: Callable[[str], None], earlier: Sequence[Event] = ()
) -> Iterator[Nodes | None]:
    """The nodes that the runbook declares, given back when the context is left, or by the guardian; None without any.

    Args:
        earlier: the events of earlier runners of the validation, whose order of the same nodes is kept. A node that
            they lost is used again only where there is no other.

    Raises:
        Unable: when they cannot be had.
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
        had = [node.name for node in allocation.nodes]
        job = "" if allocation.job is None else f" of job {allocation.job}"
        note(f"{len(had)} nodes{job}: {', '.join(had[:16])}{' …' if len(had) > 16 else ''}")
        yield nodes_after(earlier, cluster, allocation, runner.journal, note=note)
    finally:
        engine.release(allocation)
        runner.guardian.name_release(())


def nodes_after(
    earlier: Sequence[Event], cluster: Cluster, allocation: Allocation, journal: Journal, *, note: Callable[[str], None]
) -> Nodes:
    """The nodes that were allocated, in the order that earlier runners gave them if they had the same ones."""
    before, had = known_nodes(earlier), tuple(node.name for node in allocation.nodes)
    names, order = (before.names, before.order) if set(before.names) == set(had) else (had, had)
    return Nodes(cluster, allocation, journal, note, names, list(order), lost=set(before.lost))


@dataclass(frozen=True)
class KnownNodes:
    """What a journal says of the nodes: in the order in which phases on every node know them, in that of their use, and
    those that were lost, each with the reason."""

    names: tuple[str, ...] = ()
    order: tuple[str, ...] = ()
    lost: Mapping[str, str] = field(default_factory=dict)


def known_nodes(events: Iterable[Event]) -> KnownNodes:
    """The nodes after these events."""
    names: tuple[str, ...] = ()
    order: list[str] = []
    lost: dict[str, str] = {}
    for event in events:
        found = event.fields
        if event.event == "nodes":
            names = tuple(found.get("names") or (str(node["name"]) for node in found["allocation"]["nodes"]))
            order = list(found.get("order") or names)
        elif event.event == "node_again":
            lost.pop(str(found.get("node")), None)
        elif event.event == "nodes_lost":
            reasons = (f"{why} (in {found.get('run')})" for why in found.get("why", ()))
            lost |= zip(found["nodes"], reasons, strict=False)
        elif event.event == "node_replaced" and {found["node"], found["by"]} <= set(order):
            _swap(order, found["node"], found["by"])
    return KnownNodes(names, tuple(order), lost)


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
