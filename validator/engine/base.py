"""What an engine does: nodes for us, a program on some of them, and nodes back.

No exit code of an engine is evidence of what happened on a node: the program that is started there, an agent, says so
itself by lines of JSON that name its node (`validator/engine/lines.py` carries them).
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Literal, Protocol

from validator.engine.trouble import explained
from validator.model.cluster import Allocation, Cluster

NODE_VARIABLE = "VALIDATOR_NODE"

_END_S = 1.0
"""How long a client may take to end after a signal."""

NodeState = Literal["up", "down", "unknown"]


def node_name() -> str | None:
    """The name of the node that this process was started on by an engine."""
    return os.environ.get(NODE_VARIABLE) or os.environ.get("SLURMD_NODENAME")


@dataclass(frozen=True)
class Channel:
    """A client of the engine: what is written to its standard input reaches the agents of `nodes`, and what they print
    comes out of its standard output, as `Lines` reads it.

    The client is the first process of a session of its own: a signal to the group of its parent does not reach it. Its
    own signals are not for agents, since `srun` answers SIGTERM with SIGKILL to all of them. Agents are ended by
    their standard input, and by signals to the client only where they do not answer.
    """

    process: subprocess.Popen[bytes]
    nodes: tuple[str, ...]
    errors: IO[bytes]

    @property
    def stdin(self) -> IO[bytes]:
        """What agents read."""
        assert self.process.stdin is not None
        return self.process.stdin

    @property
    def stdout(self) -> IO[bytes]:
        """What agents print."""
        assert self.process.stdout is not None
        return self.process.stdout

    def close(self, *, within_s: float = 0.0) -> None:
        """End the agents' input, and the client where that does not end it within the time. Twice is harmless."""
        process = self.process
        with suppress(OSError):
            self.stdin.close()
        for seconds, end in ((within_s, process.terminate), (_END_S, process.kill), (_END_S, process.poll)):
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=seconds)
            end()
        self.stdout.close()
        self.errors.close()

    def trouble(self) -> str:
        """The last lines that the client and its agents wrote to standard error, with a fix; "" where none.

        Only before `close`.
        """
        return explained(self.wrote())

    def wrote(self) -> str:
        """The end of their standard error, at most 64 KiB."""
        size = os.fstat(self.errors.fileno()).st_size
        return os.pread(self.errors.fileno(), 1 << 16, max(0, size - (1 << 16))).decode(errors="replace")


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

        A new one ends with this process, even by SIGKILL.

        Raises:
            Unable: when none came within `cluster.wait`, with the scheduler's reason, or when `cancelled` says so.
                Nothing stays queued.
        """

    def start(
        self, allocation: Allocation, nodes: Sequence[str], argv: Sequence[str], *, environment: Mapping[str, str]
    ) -> tuple[Channel, ...]:
        """Start `argv` once on each of `nodes`, at the same time. The agent finds its node by `node_name`.

        `environment` is all that the client gets. Slurm and `local` hand it on, ssh does not. A first argument that is
        this Python becomes the Python of the hosts.
        """

    def state(self, allocation: Allocation) -> AllocationState:
        """Job and nodes as the engine sees them, which may be half a minute behind; by default nobody watches them."""
        return AllocationState(None, "", {node.name: "unknown" for node in allocation.nodes})

    def release(self, allocation: Allocation) -> None:
        """Give the nodes back, where they were asked for: by default nothing was taken. Twice is harmless."""
        return

    def release_words(self, allocation: Allocation) -> tuple[str, ...]:
        """The command that a guardian runs in place of `release` when the head was killed; empty where none is."""
        return ()
