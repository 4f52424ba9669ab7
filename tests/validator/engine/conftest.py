"""Every engine with four nodes under it, for tests that hold for all of them."""

from __future__ import annotations

import json
import os
import select
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.conftest import _slurm, _sshd, slurm, sshd  # noqa: F401 - fixtures
from tests.cluster.hosts import Hosts
from tests.processes import wait_until
from validator.engine import engine_of
from validator.engine.base import Channel, Engine
from validator.engine.lines import Lines
from validator.model.cluster import Allocation, Cluster

DOUBLE = (sys.executable, str(Path(__file__).with_name("double.py")))


@dataclass
class Agents:
    """The channels of one start, and all that came out of them."""

    channels: tuple[Channel, ...]
    said: list[dict[str, Any]] = field(default_factory=list)
    other: list[bytes] = field(default_factory=list)
    _lines: dict[int, Lines] = field(default_factory=dict)

    def tell(self, line: str) -> None:
        for channel in self.channels:
            assert channel.process.stdin is not None
            channel.process.stdin.write(line.encode() + b"\n")
            channel.process.stdin.flush()

    def close(self) -> None:
        for channel in self.channels:
            assert channel.process.stdin is not None
            channel.process.stdin.close()

    def listen(self, within_s: float = 0.05) -> None:
        outputs = {channel.process.stdout.fileno(): channel for channel in self.channels if channel.process.stdout}
        for fd in select.select(list(outputs), [], [], within_s)[0]:
            for line in self._lines.setdefault(fd, Lines()).take(os.read(fd, 1 << 20)):
                try:
                    self.said.append(json.loads(line))
                except ValueError:
                    self.other.append(line)

    def of(self, key: str) -> dict[str, Any]:
        """By node, what its last line with this key says."""
        return {one["node"]: one[key] for one in self.said if key in one}

    def until(self, holds: Callable[[], object], what: str, *, timeout_s: float = 20.0) -> None:
        def listened() -> object:
            self.listen()
            return holds()

        wait_until(listened, f"{what} in {self.said[-5:]}, {self.trouble()}", timeout_s=timeout_s, every_s=0.0)

    def trouble(self) -> list[str]:
        return [channel.trouble() for channel in self.channels]

    def kill(self) -> None:
        for channel in self.channels:
            channel.close()


@dataclass
class Ground:
    """An engine and what is under it."""

    engine: Engine
    cluster: Cluster
    hosts: Hosts | None
    allocations: list[Allocation] = field(default_factory=list)
    started: list[Agents] = field(default_factory=list)

    def allocate(self, **changes: Any) -> Allocation:
        cluster = self.cluster.model_copy(update=changes)
        self.allocations.append(self.engine.allocate(cluster, name="test", cancelled=lambda: False))
        return self.allocations[-1]

    def start(
        self,
        allocation: Allocation,
        nodes: Sequence[str] | None = None,
        *,
        argv: Sequence[str] = DOUBLE,
        more: Mapping[str, str] | None = None,
    ) -> Agents:
        names = tuple(nodes or (node.name for node in allocation.nodes))
        environment = {**os.environ, **(more or {})}
        agents = Agents(self.engine.start(allocation, names, argv, environment=environment))
        self.started.append(agents)
        return agents

    def end(self) -> None:
        for agents in self.started:
            agents.kill()
        for allocation in self.allocations:
            self.engine.release(allocation)


@pytest.fixture
def local_ground() -> Iterator[Ground]:
    ground = Ground(engine_of("local"), Cluster(engine="local", nodes=3), None)
    yield ground
    ground.end()


@pytest.fixture
def slurm_ground(slurm: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ground]:  # noqa: F811
    _use(slurm, monkeypatch)
    ground = Ground(engine_of("slurm"), Cluster(engine="slurm", nodes=3, wait="20s"), slurm)
    yield ground
    ground.end()


@pytest.fixture
def ssh_ground(sshd: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ground]:  # noqa: F811
    _use(sshd, monkeypatch)
    cluster = Cluster.model_validate({"engine": "ssh", "nodes": 3, "ssh": {"hosts": list(sshd.nodes)}})
    ground = Ground(engine_of("ssh"), cluster, sshd)
    yield ground
    ground.end()


@pytest.fixture(params=["local", "slurm", "ssh"])
def ground(request: pytest.FixtureRequest) -> Ground:
    """Each engine: what an agent may rely on is the same."""
    return request.getfixturevalue(f"{request.param}_ground")


def _use(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine's clients reach these nodes, as from a shell outside of any job."""
    for name in [name for name in os.environ if name.startswith("SLURM")]:
        monkeypatch.delenv(name)
    for name, value in hosts.env.items():
        monkeypatch.setenv(name, value)


def all_end(agents: Agents, *, within_s: float = 10.0) -> None:
    """Wait until no client runs."""
    until = time.monotonic() + within_s
    for channel in agents.channels:
        channel.process.wait(timeout=max(0.1, until - time.monotonic()))
