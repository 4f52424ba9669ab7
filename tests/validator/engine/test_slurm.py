"""Slurm's own ways: jobs that wait, are refused, or are there already; nodes that die; clients that are killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import Any

import psutil
import pytest

from tests.cluster.slurm import Slurm
from tests.processes import wait_until
from tests.validator.engine.conftest import Agents, Ground
from validator.engine import clients, slurm
from validator.engine.look import look
from validator.errors import ExitCode, Unable
from validator.model.cluster import Cluster, SlurmOptions

ALL = ("n1", "n2", "n3")


@pytest.fixture
def ground(slurm_ground: Ground) -> Ground:
    return slurm_ground


def under(ground: Ground) -> Slurm:
    assert isinstance(ground.hosts, Slurm)
    return ground.hosts


def started(ground: Ground, **more: Any) -> Agents:
    agents = ground.start(ground.allocate(), **more)
    agents.until(lambda: len(agents.of("started")) == 3, "agents")
    return agents


def test_the_job_that_this_process_is_in_is_used_as_it_is(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    job = under(ground).allocate("-N4", "--exclusive")
    monkeypatch.setenv("SLURM_JOB_ID", job)
    allocation = ground.allocate()
    assert (allocation.job, allocation.owned) == (job, False)
    assert [node.name for node in allocation.nodes] == list(ALL)
    ground.engine.release(allocation)
    assert ground.engine.release_words(allocation) == ()
    assert under(ground).active() == [job]


def test_a_job_with_too_few_nodes_is_refused_with_a_fix(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", under(ground).allocate("-N2"))
    with pytest.raises(
        Unable, match=r"has 2 nodes and cluster needs 4 \(nodes: 3, spare: 1\); start it with --nodes=4"
    ):
        ground.allocate(spare=1)


def test_a_number_of_a_job_that_has_ended_means_nothing(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    job = under(ground).allocate("-N1")
    under(ground).run("scancel", job)
    under(ground).wait_for(job, "CANCELLED")
    monkeypatch.setenv("SLURM_JOB_ID", job)
    allocation = ground.allocate()
    assert allocation.owned
    assert allocation.job != job
    assert ground.engine.release_words(allocation) == ("scancel", "--quiet", allocation.job)


def test_an_agent_has_all_of_its_node(ground: Ground) -> None:
    """Also the GPUs of an exclusive job that has asked for none, which a step does not get by itself."""
    agents = started(ground)
    assert set(agents.of("cpus").values()) == {"4"}
    assert {variables["SLURM_GPUS_ON_NODE"] for variables in agents.of("variables").values()} == {"2"}


def test_what_an_outer_job_has_set_does_not_reach_the_step(ground: Ground) -> None:
    outer = {"SLURM_NTASKS": "1", "SLURM_MEM_PER_CPU": "10", "SLURM_CPUS_PER_TASK": "3", "SLURM_OUTER": "1"}
    agents = started(ground, more={**outer, "PMI_RANK": "3", "VALIDATOR_NODE": "n9", "TEST_OWN": "passes"})
    for variables in agents.of("variables").values():
        assert variables["SLURM_NTASKS"] == "3"
        assert variables["TEST_OWN"] == "passes"
        assert not {"SLURM_OUTER", "PMI_RANK", "SLURM_CPUS_PER_TASK"} & variables.keys()


def test_a_job_that_stays_pending_is_given_up_with_the_reason(ground: Ground) -> None:
    other = under(ground).allocate("-N3", "--exclusive")
    with pytest.raises(
        Unable, match=r"no 3 nodes within cluster.wait of 1 s: job \d+ is PENDING, reason Resources"
    ) as raised:
        ground.allocate(wait=1.0)
    assert raised.value.exit_code == ExitCode.UNABLE
    assert under(ground).active() == [other]


def test_a_wait_that_is_cancelled_ends_at_once(ground: Ground) -> None:
    other = under(ground).allocate("-N3", "--exclusive")
    began = time.monotonic()
    with pytest.raises(Unable, match="interrupted while waiting"):
        ground.engine.allocate(ground.cluster, name="test", cancelled=lambda: time.monotonic() > began + 0.5)
    assert time.monotonic() - began < 8
    assert under(ground).active() == [other]


@pytest.mark.parametrize(
    ("nodes", "options", "says"),
    [
        (3, {"partition": "nosuch"}, r"[Ii]nvalid partition.*partition: nosuch"),
        (3, {"gres": "gpu:9"}, r"node configuration is not available.*gres: gpu:9"),
        (9, {}, r"could not start: job \d+ is PENDING, reason PartitionNodeLimit; check .*nodes: 9"),
        (3, {"args": ("--nosuch",)}, r"unrecognized option.*--nosuch"),
    ],
)
def test_what_slurm_refuses_is_said_with_its_words(
    ground: Ground, nodes: int, options: dict[str, Any], says: str
) -> None:
    with pytest.raises(Unable, match=says):
        ground.allocate(nodes=nodes, slurm=SlurmOptions.model_validate(options))
    assert under(ground).active() == []


_HEAD = """
import sys, time
from validator.engine import engine_of
from validator.model.cluster import Cluster
cluster = Cluster.model_validate({"engine": "slurm", "nodes": 2})
print("asks", flush=True)
print(engine_of("slurm").allocate(cluster, name="head", cancelled=lambda: False).job, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("waits", [True, False])
def test_a_head_that_is_killed_leaves_no_job(ground: Ground, waits: bool) -> None:
    cluster = under(ground)
    other = cluster.allocate("-N4", "--exclusive") if waits else None
    head = subprocess.Popen([sys.executable, "-c", _HEAD], stdout=subprocess.PIPE, text=True)
    with head:
        assert head.stdout is not None
        head.stdout.readline()
        if waits:
            wait_until(lambda: len(cluster.active()) == 2, "the job in the queue")
        else:
            head.stdout.readline()
        head.kill()
    if other:
        cluster.run("scancel", other)
    wait_until(lambda: not cluster.active(), "the end of the job")


@pytest.mark.parametrize("dies", ["kill_node", "silence_node"])
def test_the_others_go_on_where_a_node_dies(ground: Ground, dies: str) -> None:
    agents = started(ground)
    getattr(under(ground), dies)("n2")
    for index in range(3):
        agents.tell(f"still {index}")
        agents.until(
            lambda index=index: {agents.of("read").get(name) for name in ("n1", "n3")} == {f"still {index}"}, "them"
        )
    allocation = ground.allocations[0]
    wait_until(lambda: ground.engine.state(allocation).nodes["n2"] == "down", "the loss", every_s=0.5)
    state = ground.engine.state(allocation)
    assert state.job == "running"
    assert state.nodes == {"n1": "up", "n2": "down", "n3": "up"}
    agents.tell("later")
    agents.until(lambda: {agents.of("read").get(name) for name in ("n1", "n3")} == {"later"}, "them after the loss")
    under(ground).restore_node("n2")
    wait_until(lambda: under(ground).states()["n2"] == "idle", "the return", timeout_s=30)
    assert ground.engine.state(allocation).nodes["n2"] == "down"  # it is no node of the job any more
    second = ground.start(allocation, ["n1", "n3"])
    second.until(lambda: len(second.of("started")) == 2, "a step on the others, while the first one is there")


def test_agents_end_where_their_client_is_killed(ground: Ground) -> None:
    """srun leaves a process beside itself for this. Where both are killed, agents live on: see `Slurm.start`."""
    agents = started(ground)
    agents.tell("child")
    agents.until(lambda: len(agents.of("child")) == 3, "children")
    agents.channels[0].process.kill()
    pids = [*agents.of("started").values(), *agents.of("child").values()]
    wait_until(lambda: not any(map(psutil.pid_exists, pids)), "the end of agents and of their children")


def test_state_of_a_job_that_has_ended(ground: Ground) -> None:
    allocation = ground.allocate()
    ground.engine.release(allocation)
    wait_until(lambda: ground.engine.state(allocation).job == "ended", "the end")
    assert ground.engine.state(allocation).why.startswith("COMPLETED")
    unknown = allocation.model_copy(update={"job": "99999"})
    assert ground.engine.state(unknown).why == "the controller does not know the job"


def test_a_step_of_a_job_that_has_ended_says_so(ground: Ground) -> None:
    allocation = ground.allocate()
    ground.engine.release(allocation)
    wait_until(lambda: ground.engine.state(allocation).job == "ended", "the end")
    agents = ground.start(allocation)
    wait_until(lambda: agents.channels[0].process.poll() is not None, "the end of srun")
    assert "srun: error" in agents.trouble()[0]


def test_a_missing_configuration_is_named(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_CONF", "/nowhere/slurm.conf")
    monkeypatch.setattr(clients, "ANSWER_S", 3.0)
    began = time.monotonic()
    with pytest.raises(Unable, match="SLURM_CONF"):
        ground.allocate(wait=3.0)
    assert time.monotonic() - began < 15


def test_a_controller_that_does_not_answer_is_named(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    allocation = ground.allocate()
    monkeypatch.setattr(clients, "ANSWER_S", 2.0)
    monkeypatch.setattr(slurm, "_RELEASE_S", 0.5)  # at the end of the test, when the controller is silent still
    under(ground).silence_node("controller")
    began = time.monotonic()
    with pytest.raises(Unable, match="scontrol"):
        ground.engine.state(allocation)
    assert time.monotonic() - began < 10


def test_programs_that_are_not_installed_are_named(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(Unable, match="needs the program salloc"):
        ground.allocate()


def test_a_look_outside_of_a_job_asks_slurm_alone(ground: Ground) -> None:
    seen = {one.name: one for one in look(ground.cluster)}
    assert seen["Slurm"].ok, seen["Slurm"]
    assert seen["Nodes"].ok is None
    assert under(ground).active() == []
    refused = Cluster(engine="slurm", nodes=3, slurm=SlurmOptions(partition="nosuch"))
    assert [(one.ok, "partition" in one.value) for one in look(refused) if one.name == "Slurm"] == [(False, True)]


def test_a_look_inside_of_a_job_asks_the_nodes(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", under(ground).allocate("-N3", "--exclusive"))
    seen = {one.name: one for one in look(ground.cluster)}
    assert all(seen[f"Node {name}"].ok for name in ALL), seen
    assert "there and back" in seen["Node n2"].value


def test_an_interrupt_from_the_terminal_is_not_for_the_agents(ground: Ground) -> None:
    agents = started(ground)
    assert os.getpgid(agents.channels[0].process.pid) != os.getpgid(0)
    assert signal.getsignal(signal.SIGINT) is not signal.SIG_IGN
