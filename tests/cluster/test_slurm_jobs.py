"""The ends of jobs under Slurm: nodes that die, limits, preemption, requeueing and waiting.

Waits are Slurm's own: it looks at limits every thirty seconds, and at a silent node after about nine.
"""

from __future__ import annotations

import signal
import subprocess
import time

import pytest

from tests.cluster.slurm import Slurm
from tests.processes import wait_until

pytestmark = pytest.mark.long  # what Slurm itself does, which its races decide; nothing of ours is tested here


_ASKED = "trap 'echo TERM; exit 0' TERM; sleep 600 & wait"


def test_a_node_dies(slurm: Slurm) -> None:
    """srun says 0 where the survivors end well, with --no-kill and without: only a record by each rank shows a loss."""
    plain = slurm.allocate("-N2", "-w", "n1,n2")
    ends = slurm.step(plain, ("n1", "n2"), "bash", "-c", _ASKED)
    lenient = slurm.allocate("-N3", "-w", "n1,n2,n3", "--no-kill")
    stays = slurm.step(lenient, ("n1", "n2"), "sleep", "10", options=["--no-kill"])
    requeued = slurm.submit("srun sleep 600", "-N2", "--requeue")
    wait_until(lambda: len(slurm.processes("n2")) == 4, "three ranks and a child on n2")
    slurm.kill_node("n2")

    wait_until(lambda: slurm.states()["n2"] == "down*", "the controller to notice", timeout_s=40)
    assert ends.wait(timeout=20) == 0
    assert slurm.job(plain)["JobState"] in ("COMPLETING", "NODE_FAIL")
    wait_until(lambda: slurm.job(requeued)["Restarts"] == "1", "the requeued job")
    assert stays.wait(timeout=30) == 0
    assert slurm.job(lenient)["JobState"] == "RUNNING"
    assert slurm.job(lenient)["NodeList"] == "n[1,3]"
    assert list(slurm.steps(lenient).values()) == ["n[1-2]"], "the dead step is not there any more"
    overlapping = slurm.step(lenient, ("n1", "n3"), "true", options=["--overlap"])
    assert overlapping.wait(timeout=20) == 0

    slurm.restore_node("n2")
    wait_until(lambda: "down" not in slurm.states()["n2"], "n2 to return")


@pytest.mark.timeout(120)
def test_limits_and_requeueing(slurm: Slurm) -> None:
    limited = slurm.submit(_ASKED, "-N1", "--time=10", "--signal=B:TERM@120")
    held = slurm.allocate("-N1", "--time=10")
    rank = slurm.step(held, ("n1",), "bash", "-c", _ASKED)
    again = slurm.submit("echo restart=$SLURM_RESTART_COUNT; sleep 600", "--requeue", "--open-mode=append")
    for job in (limited, again):
        slurm.wait_for(job, "RUNNING")
    wait_until(lambda: "restart=" in slurm.output(again), "its output")

    end = time.strftime("%FT%T", time.localtime(time.time() + 2))
    for job in (limited, held):
        assert slurm.run("scontrol", "update", f"jobid={job}", f"EndTime={end}").returncode == 0
    assert slurm.run("scontrol", "requeue", again).returncode == 0
    refused = slurm.run("scontrol", "requeue", held)
    assert (refused.returncode, "Only batch jobs" in refused.stderr) == (1, True)
    wait_until(lambda: slurm.output(again).splitlines()[-1:] == ["restart=1"], "the requeued job", timeout_s=40)
    assert slurm.output(again).splitlines()[0] == "restart=", "no variable at the first start"

    for job in (limited, held):
        slurm.wait_for(job, "TIMEOUT", timeout_s=60)
    assert "TERM" in slurm.output(limited).splitlines()
    assert rank.wait(timeout=20) == 0, "a rank that ends well at TERM"


def test_preemption(slurm: Slurm) -> None:
    """A job of salloc ends as PREEMPTED, with 0 from srun where the ranks end well; a batch job is requeued."""
    batch = slurm.submit(f'srun bash -c "{_ASKED}"', "-N2", "--exclusive", "--requeue")
    held = slurm.allocate("-N2", "--exclusive")
    slurm.wait_for(batch, "RUNNING")
    nodes = ("n3", "n4") if slurm.job(held)["NodeList"] == "n[3-4]" else ("n1", "n2")
    rank = slurm.step(held, nodes, "bash", "-c", _ASKED)
    wait_until(lambda: all(len(slurm.processes(node)) >= 2 for node in slurm.nodes), "all ranks")
    urgent = slurm.submit("sleep 600", "-N4", "--exclusive", "-p", "urgent")

    slurm.wait_for(urgent, "RUNNING")
    assert slurm.job(held)["JobState"] == "PREEMPTED"
    assert rank.wait(timeout=20) == 0
    job = slurm.job(batch)
    assert (job["JobState"], job["Reason"], job["Restarts"]) == ("PENDING", "BeginTime", "1")


def test_waiting_that_does_not_end(slurm: Slurm) -> None:
    everything = slurm.allocate("-N4", "--exclusive")
    for arguments, reason in ((["-N4"], "Resources"), (["-N5"], "PartitionNodeLimit")):
        job = slurm.submit("true", *arguments)
        wait_until(lambda job=job, reason=reason: slurm.job(job)["Reason"] == reason, reason)
        assert slurm.job(job)["JobState"] == "PENDING"
        slurm.run("scancel", job)
    slurm.run("scancel", everything)
    slurm.drain("n3", "broken fan")
    job = slurm.submit("true", "-w", "n3")
    wait_until(lambda: slurm.job(job)["Reason"].startswith("ReqNodeNotAvail"), "the drained node as the reason")


@pytest.mark.parametrize(("number", "code", "left"), [(signal.SIGTERM, 1, False), (signal.SIGKILL, -9, True)])
def test_a_waiting_salloc_takes_its_job_along_unless_it_is_killed(
    slurm: Slurm, number: signal.Signals, code: int, left: bool
) -> None:
    everything = slurm.allocate("-N4", "--exclusive")
    waiting = slurm.begin("salloc", "--no-shell", "-N4", "--exclusive", stdin=subprocess.DEVNULL)
    wait_until(lambda: len(slurm.active()) == 2, "the second job")
    waiting.send_signal(number)
    assert waiting.wait(timeout=20) == code
    time.sleep(0.5)
    assert (slurm.active() != [everything]) == left
