"""One run across nodes: what the head hands to its program, and what is known of each node afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Field

from validator.model.cluster import Allocation
from validator.model.units import Frozen


class Step(Frozen):
    """A run across nodes, as `validator.supervise.step` gets it in `step.json` of the run's folder.

    In `argv` and `env` the agent of a node fills in `{master_addr}` and `{port}` (where its group meets: the address
    of the first node, and a port that is free there), `{node_rank}` (index in the group), `{nnodes}` (size of the
    group), `{group}` (`g0`, `g1`: the folder of a group where there are several), and `{node_out}`: the folder of this
    node's logs.
    """

    run: str
    token: str = Field(
        description="Mark of all processes of the validation; an agent adds the node's name for its own."
    )
    allocation: Allocation
    groups: tuple[tuple[str, ...], ...] = Field(description="Names of nodes; a group meets at its first.")
    launcher: str
    argv: tuple[str, ...]
    env: dict[str, str]
    passed: dict[str, str] = Field(description="Variables of the head that every process of the run has as well.")
    cwd: str
    python: str | None = Field(None, description="The trainer's own interpreter.")
    out: str = Field(description="The run's folder, absolute, and the same path on every node.")
    follow: dict[str, Any] | None = Field(
        None, description="The planned run, of a trainer: rank 0 of a group stamps its lines as they arrive."
    )
    began: float = Field(0.0, description="The head's monotonic clock at the start of the attempt.")
    probe: str = Field(description="A file of the head; a node that sees it shares the folder.")
    start_s: float
    lost_s: float
    grace_s: float = Field(description="Between SIGTERM and SIGKILL on a node.")
    sample_s: float | None = Field(None, description="Seconds between samples of a node's telemetry.")
    checks: dict[str, Any] | None = Field(
        None, description="Where the machine is judged: `runbook` and `phase` by which each agent checks its node."
    )


class Live(Frozen):
    """What the agent of a node says of its processes while they run."""

    step: int | None = Field(None, description="That of its trainer, where nodes train alone.")
    cpu_s: float | None = Field(None, description="CPU time that they have used.")
    gpus: tuple[bool, bool] | None = Field(
        None, description="Whether a GPU moves memory, and whether one is in use all the time; None where none is seen."
    )
    stopped: tuple[int, ...] = Field((), description="Those in state T.")


class LiveNodes(Frozen):
    """`live.json` of a run while it runs: its nodes by name."""

    nodes: dict[str, Live]


Ended = Literal["exited", "stopped", "lost", "not_started"]
"""How the processes of a node ended: by themselves, as the head asked, with the node, or they never began."""

_WORST_FIRST = ("lost", "not_started", "exited")


class NodeRecord(Frozen):
    """What one node left of a run; a node that answered no more has `ended: lost`."""

    node: str
    group: int
    rank: int = Field(description="Index in its group.")
    host: str | None = None
    ended: Ended
    rc: int | None = Field(None, description="Exit code of what was started there; None where it is not known.")
    detail: str | None = None
    duration_s: float | None = None
    killed: tuple[int, ...] = ()
    disk_full: bool = Field(False, description="Whether it failed because a disk of the node had no room.")
    shared: bool | None = Field(None, description="Whether the node sees the head's folder.")
    clock_offset_s: float | None = Field(None, description="Its clock minus the head's.")
    facts: dict[str, Any] = Field(default_factory=dict, description="Snapshot of the machine and its software.")
    checks: tuple[dict[str, Any], ...] = Field((), description="Preflight's checks of the node.")


def failed(records: Sequence[NodeRecord]) -> tuple[NodeRecord, ...]:
    """The nodes that did not end well: the lost ones first, then those that never began, then exit codes."""
    found = [one for one in records if one.ended in ("lost", "not_started") or (one.ended == "exited" and one.rc)]
    return tuple(sorted(found, key=lambda one: _WORST_FIRST.index(one.ended)))


class NodeRecords(Frozen):
    """`nodes.json` of a run: every node of it, also those that never answered."""

    schema_version: Literal[1] = Field(1, alias="schema")
    nodes: tuple[NodeRecord, ...]
    trouble: str | None = Field(None, description="What the engine says where no rank ran at all.")
