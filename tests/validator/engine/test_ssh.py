"""What is ssh's own: its options, its words where a host cannot be reached, and ends of clients and hosts."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.processes import wait_until
from tests.validator.engine.conftest import Agents, Ground, all_end
from validator.engine.look import look
from validator.errors import Unable
from validator.model.cluster import SshOptions


@pytest.fixture
def ground(ssh_ground: Ground) -> Ground:
    return ssh_ground


def options(ground: Ground, **changes: Any) -> SshOptions:
    assert ground.cluster.ssh is not None
    return ground.cluster.ssh.model_copy(update=changes)


def started(ground: Ground, **changes: Any) -> Agents:
    agents = ground.start(ground.allocate(ssh=options(ground, **changes)))
    agents.until(lambda: len(agents.of("started")) == 3, "agents")
    return agents


def channel_of(agents: Agents, node: str) -> int:
    return next(index for index, channel in enumerate(agents.channels) if channel.nodes == (node,))


def test_addresses_are_those_declared_or_those_that_ssh_uses(ground: Ground) -> None:
    allocation = ground.allocate(spare=1, ssh=options(ground, addresses={"n2": "10.1.2.3"}))
    assert [node.address for node in allocation.nodes] == ["127.0.0.1", "10.1.2.3", "127.0.0.1", "127.0.0.1"]
    assert not allocation.owned


def test_arguments_reach_the_host_as_they_are(ground: Ground) -> None:
    words = ["a b", "'", '"', "$HOME", "`id`", "*", "\\", "", "ü", "{endpoint}", "-x"]
    code = "import json, sys; print(json.dumps(sys.argv[1:]))"
    agents = ground.start(ground.allocate(), ["n1"], argv=["python3", "-c", code, *words])
    agents.channels[0].process.wait(timeout=20)
    assert agents.channels[0].process.stdout is not None
    assert json.loads(agents.channels[0].process.stdout.read()) == words


def test_the_environment_of_the_head_stays_here(ground: Ground) -> None:
    agents = ground.start(ground.allocate(), more={"TEST_SECRET": "hunter2-value"})
    agents.until(lambda: len(agents.of("started")) == 3, "agents")
    assert not any("TEST_SECRET" in variables for variables in agents.of("variables").values())


def test_the_python_of_the_hosts_is_the_one_of_the_runbook(ground: Ground) -> None:
    agents = ground.start(ground.allocate(ssh=options(ground, python="/nowhere/python3")))
    all_end(agents)
    assert "/nowhere/python3" in agents.trouble()[0]
    assert "cluster.ssh.python" in agents.trouble()[0]


def test_agents_end_where_their_client_is_killed(ground: Ground) -> None:
    """Their standard input ends: a child of theirs is theirs to end."""
    agents = started(ground)
    for channel in agents.channels:
        channel.process.kill()
    pids = agents.of("started").values()
    wait_until(lambda: not any(map(psutil.pid_exists, pids)), "the end of the agents")


def test_the_others_go_on_where_a_host_dies(ground: Ground) -> None:
    agents = started(ground)
    assert ground.hosts is not None
    ground.hosts.kill_node("n2")
    dead = agents.channels[channel_of(agents, "n2")]
    assert dead.process.wait(timeout=10) == 255
    others = Agents(tuple(channel for channel in agents.channels if channel is not dead))
    others.tell("still")
    others.until(lambda: others.of("read") == {"n1": "still", "n3": "still"}, "the others")


def test_a_silent_host_ends_its_client_and_the_runbook_says_when(ground: Ground) -> None:
    agents = started(ground, args=("-o", "ServerAliveInterval=1", "-o", "ServerAliveCountMax=1"))
    assert ground.hosts is not None
    ground.hosts.silence_node("n3")
    assert agents.channels[channel_of(agents, "n3")].process.wait(timeout=10) == 255


def test_a_host_that_is_not_there_is_named_with_a_fix(ground: Ground) -> None:
    assert ground.hosts is not None
    ground.hosts.kill_node("n2")
    agents = ground.start(ground.allocate())
    channel = agents.channels[channel_of(agents, "n2")]
    channel.process.wait(timeout=15)
    assert "Connection refused" in channel.trouble()
    assert "check the host in cluster.ssh.hosts" in channel.trouble()


def test_a_login_that_is_refused_is_named_with_a_fix(ground: Ground) -> None:
    agents = ground.start(ground.allocate(ssh=options(ground, user="nobody")), ["n1"])
    agents.channels[0].process.wait(timeout=15)
    assert "Permission denied" in agents.trouble()[0]
    assert "without a password" in agents.trouble()[0]


def test_what_ssh_does_not_take_is_said(ground: Ground) -> None:
    with pytest.raises(Unable, match=r"ssh does not accept n1: .*nosuchoption"):
        ground.allocate(ssh=options(ground, args=("-o", "nosuchoption=1")))


@pytest.mark.long
def test_a_look_says_what_is_wrong_with_which_host(ground: Ground) -> None:
    assert ground.hosts is not None
    ground.hosts.kill_node("n2")
    seen = {one.name: one for one in look(ground.cluster)}
    assert [seen[f"Node {name}"].ok for name in ("n1", "n2", "n3")] == [True, False, True]
    assert "Connection refused" in seen["Node n2"].value
    assert "there and back" in seen["Node n1"].value


def test_a_look_finds_a_python_without_validator(ground: Ground, tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n', encoding="utf-8")
    python.chmod(0o755)
    cluster = ground.cluster.model_copy(update={"ssh": options(ground, python=str(python))})
    seen = {one.name: one for one in look(cluster)}
    assert not seen["Node n1"].ok
    assert "validator not installed" in seen["Node n1"].value
    assert "install validator" in seen["Node n1"].fix
