"""What the step and its agents rely on, under each engine: the local one, a real Slurm, and real ssh."""

from __future__ import annotations

import os
import signal
import time

import psutil

from tests.processes import wait_until
from tests.validator.engine.conftest import Ground, all_end


def test_every_node_runs_one_agent_that_knows_its_name(ground: Ground) -> None:
    """What it writes to standard error is kept; its client is in a session, and no command line has a secret."""
    allocation = ground.allocate()
    agents = ground.start(allocation, more={"TEST_SECRET": "hunter2-value"})
    for channel in agents.channels:
        assert os.getsid(channel.process.pid) == channel.process.pid, "a signal to the head's group is not for it"
        tree = [psutil.Process(channel.process.pid), *psutil.Process(channel.process.pid).children(recursive=True)]
        assert not any("hunter2-value" in word for process in tree for word in process.cmdline())
    names = {node.name for node in allocation.nodes}
    assert names == {"n1", "n2", "n3"}
    assert {node.address for node in allocation.nodes} == {"127.0.0.1"}
    assert sorted(name for channel in agents.channels for name in channel.nodes) == sorted(names)
    agents.until(lambda: agents.of("started").keys() == names, "agents")
    assert len([one for one in agents.said if "started" in one]) == 3
    wait_until(lambda: all("is here" in text for text in agents.trouble()), "standard error")


def test_a_line_reaches_every_agent_and_an_end_too(ground: Ground) -> None:
    agents = ground.start(ground.allocate())
    agents.tell("hello")
    agents.until(lambda: agents.of("read") == dict.fromkeys(("n1", "n2", "n3"), "hello"), "echoes")
    agents.tell("x" * 300_000)
    agents.until(lambda: all(len(text) == 300_000 for text in agents.of("read").values()), "long echoes")
    agents.close()
    agents.until(lambda: len(agents.of("ended")) == 3, "ends")
    all_end(agents)


def test_lines_of_all_agents_come_whole(ground: Ground) -> None:
    agents = ground.start(ground.allocate())
    agents.tell("big 1048576")
    agents.tell("burst 500")
    agents.until(lambda: len(agents.of("data")) == 3, "long lines", timeout_s=60)
    agents.until(lambda: set(agents.of("index").values()) == {499}, "short lines", timeout_s=60)
    assert {len(text) for text in agents.of("data").values()} == {1_048_576}
    assert [one["index"] for one in agents.said if one["node"] == "n2" and "index" in one] == list(range(500))
    assert agents.other == []


def test_disjoint_parts_of_an_allocation_work_at_the_same_time(ground: Ground) -> None:
    allocation = ground.allocate()
    pair, alone = ground.start(allocation, ["n3", "n1"]), ground.start(allocation, ["n2"])
    pair.tell("hello")
    alone.tell("hello")
    pair.until(lambda: pair.of("read").keys() == {"n1", "n3"}, "two agents")
    alone.until(lambda: alone.of("read").keys() == {"n2"}, "one agent")


def test_an_agent_that_leaves_does_not_end_the_others(ground: Ground) -> None:
    """Neither with an exit code of its own nor by a signal."""
    agents = ground.start(ground.allocate())
    agents.until(lambda: len(agents.of("started")) == 3, "agents")
    os.kill(agents.of("started")["n1"], signal.SIGKILL)
    wait_until(lambda: not _runs(agents.of("started")["n1"]), "the end of one agent")
    time.sleep(0.3)  # whoever takes the others with it has the time to do so
    for channel in agents.channels:
        if channel.nodes != ("n1",):
            assert channel.process.stdin is not None
            channel.process.stdin.write(b"still\n")
            channel.process.stdin.flush()
    agents.until(lambda: agents.of("read").keys() == {"n2", "n3"}, "the others")


def test_a_step_follows_another_on_the_same_nodes(ground: Ground) -> None:
    allocation = ground.allocate()
    for _ in range(2):
        agents = ground.start(allocation)
        agents.until(lambda agents=agents: len(agents.of("started")) == 3, "agents")
        agents.close()
        all_end(agents)


def test_a_python_that_is_not_there_is_named(ground: Ground) -> None:
    """The local engine says it at once, the others in what their client wrote."""
    allocation = ground.allocate()
    try:
        agents = ground.start(allocation, argv=["/nowhere/python3", "-c", "pass"])
    except Exception as error:
        assert "/nowhere/python3" in str(error)  # noqa: PT017 - the other way is as good
        return
    all_end(agents)
    text = agents.trouble()[0]
    assert "/nowhere/python3" in text
    assert "same path on all nodes" in text


def test_a_python_without_validator_is_named(ground: Ground) -> None:
    agents = ground.start(ground.allocate(), argv=["python3", "-I", "-S", "-c", "import validator"])
    all_end(agents)
    wait_until(lambda: "pip install training-validator" in agents.trouble()[0], "the fix")


def test_state_knows_each_node_and_release_twice_is_harmless(ground: Ground) -> None:
    allocation = ground.allocate()
    state = ground.engine.state(allocation)
    assert state.nodes.keys() == {"n1", "n2", "n3"}
    assert state.job in (None, "running")
    assert set(state.nodes.values()) <= {"up", "unknown"}
    ground.engine.release(allocation)
    ground.engine.release(allocation)


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
