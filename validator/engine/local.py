"""This machine for each node: what a run across nodes does is seen without any."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from validator.engine.base import NODE_VARIABLE, Channel, Engine
from validator.engine.clients import hold
from validator.model.cluster import Allocation, Cluster, Node


def _gpus(environment: Mapping[str, str]) -> list[str]:
    """What CUDA calls the GPUs that this process may use."""
    given = environment.get("CUDA_VISIBLE_DEVICES")
    if given is not None:
        return [one.strip() for one in given.split(",") if one.strip()]
    return [str(index) for index, _ in enumerate(sorted(Path("/dev").glob("nvidia[0-9]*")))]


class Local(Engine):
    """Nodes `n1`, `n2` … at the loopback."""

    def allocate(self, cluster: Cluster, *, name: str, cancelled: Callable[[], bool]) -> Allocation:
        """As many nodes as are wanted."""
        nodes = tuple(Node(name=f"n{index}", address="127.0.0.1") for index in range(1, cluster.count + 1))
        return Allocation(engine="local", nodes=nodes, owned=False)

    def start(
        self, allocation: Allocation, nodes: Sequence[str], argv: Sequence[str], *, environment: Mapping[str, str]
    ) -> tuple[Channel, ...]:
        """A process for each node, which sees an equal share of this machine's GPUs."""
        gpus = _gpus(environment)
        share = len(gpus) // len(allocation.nodes)
        names = [node.name for node in allocation.nodes]

        def seen(node: str) -> Mapping[str, str]:
            first = names.index(node) * share
            return {"CUDA_VISIBLE_DEVICES": ",".join(gpus[first : first + share])} if share else {}

        return hold((argv, (node,), {**environment, **seen(node), NODE_VARIABLE: node}) for node in nodes)


ENGINE = Local()
