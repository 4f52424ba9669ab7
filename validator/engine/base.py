"""What an engine does: nodes for us, a program on some of them, and nodes back.

No exit code of an engine is evidence of what happened on a node: the program that is started there, an agent, says so
itself by lines of JSON that name its node.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from validator.model.cluster import Allocation, Cluster

NodeState = Literal["up", "down", "unknown"]


@dataclass(frozen=True)
class Channel:
    """A client of the engine: what is written to its standard input reaches the agents of `nodes`, and what they print
    comes out of its standard output, line by line.."""

    process: subprocess.Popen[bytes]
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class AllocationState:
    """What the engine says now. `job` is None where there is no scheduler; `why` is its own reason."""

    job: Literal["pending", "running", "ended"] | None
    why: str
    nodes: Mapping[str, NodeState]


class Engine(Protocol):
    """One way to reach nodes. Every method may raise `Unable` with a sentence and a fix."""

    def allocate(self, cluster: Cluster, *, name: str, cancelled: Callable[[], bool]) -> Allocation:
        """Nodes for a validation: those of the job that this process is in, or of a new one.

        Raises:
            Unable: when none came within `cluster.wait`, with the scheduler's reason. Nothing stays queued.
        """

    def start(
        self, allocation: Allocation, nodes: Sequence[str], argv: Sequence[str], *, environment: Mapping[str, str]
    ) -> tuple[Channel, ...]:
        """Start `argv` once on each of `nodes`, at the same time. The agent finds its node by `agent_words`."""

    def state(self, allocation: Allocation) -> AllocationState:
        """Job and nodes as the engine sees them, which may be half a minute behind."""

    def release(self, allocation: Allocation) -> None:
        """Give the nodes back, where they were asked for. Twice is harmless."""

    def release_words(self, allocation: Allocation) -> tuple[str, ...]:
        """The command that a guardian runs in place of `release` when the head was killed; empty where none is."""
