"""What Slurm's commands say about steps: the table in docs/experiments.md, tried on the installed version.

The engine reads none of these numbers as evidence of what the ranks did; a version that differs here differs in nothing
that a decision rests on, but the engine's own limits and messages need another look.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster.slurm import Slurm
from tests.processes import wait_until

pytestmark = pytest.mark.long  # what Slurm itself does, which its races decide; nothing of ours is tested here


# One of two ranks ends badly; the other ends well a little later.
_ENDS = {
    "exit 7": ("[ $SLURM_PROCID = 1 ] && exit 7; sleep 0.5", 7),
    "a signal": ("[ $SLURM_PROCID = 1 ] && kill -TERM $$; sleep 0.5", 143),
    "SEGV": ("[ $SLURM_PROCID = 1 ] && kill -SEGV $$; sleep 0.5", 139),
    "KILL": ("[ $SLURM_PROCID = 1 ] && kill -KILL $$; sleep 0.5", 137),
    "exits 3 and 7": ("[ $SLURM_PROCID = 1 ] && exit 7; sleep 0.2; exit 3", 7),
    "both well": ("exit 0", 0),
}


def test_steps_of_one_allocation_run_at_the_same_time(slurm: Slurm) -> None:
    job = slurm.allocate("-N4", "--exclusive", "--gres=gpu:2")
    pairs = [slurm.step(job, nodes, "sh", "-c", "echo $SLURMD_NODENAME $SLURM_NODEID; sleep 600") for nodes in _PAIRS]
    wait_until(lambda: all(slurm.processes(node) for node in slurm.nodes), "four ranks")
    assert sorted(slurm.steps(job).values()) == ["n[1-2]", "n[3-4]"]
    for command in pairs:
        command.terminate()
    printed = [sorted(line for line in command.communicate()[0].splitlines() if line[0] == "n") for command in pairs]
    assert printed == [["n1 0", "n2 1"], ["n3 0", "n4 1"]]


_PAIRS = (("n1", "n2"), ("n3", "n4"))


def test_sruns_exit_code_is_the_worst_of_its_ranks(slurm: Slurm) -> None:
    job = slurm.allocate("-N2", "--exclusive")
    nodes = ("n1", "n2")
    begun = {name: slurm.step(job, nodes, "bash", "-c", script) for name, (script, _) in _ENDS.items()}
    assert {name: command.wait(timeout=30) for name, command in begun.items()} == {
        name: code for name, (_, code) in _ENDS.items()
    }
    assert slurm.step(job, nodes, "/no/such/program").wait(timeout=30) == 2


def test_a_bad_exit_kills_the_others_who_may_answer(slurm: Slurm) -> None:
    """With --kill-on-bad-exit the others get TERM; srun's code is again the greatest, 7 rather than their 3 or 0."""
    job = slurm.allocate("-N2", "--exclusive")
    script = "trap 'echo TERM; exit {}' TERM; [ $SLURM_PROCID = 1 ] && {{ sleep 0.5; exit 7; }}; sleep 600 & wait"
    for code in (3, 0):
        command = slurm.step(job, ("n1", "n2"), "bash", "-c", script.format(code), options=["--kill-on-bad-exit=1"])
        printed = command.communicate(timeout=30)[0]
        assert (command.returncode, "\nTERM\n" in f"\n{printed}") == (7, True), printed


def test_without_an_allocation_srun_says_1(slurm: Slurm) -> None:
    for refused in (["--jobid=999"], ["-p", "unknown"], ["--immediate=1", "-N5"], ["--immediate=1", "--gres=gpu:3"]):
        assert slurm.run("srun", *refused, "true").returncode == 1, refused


@pytest.mark.parametrize(
    ("act", "codes", "asked"),
    [
        pytest.param(lambda slurm, _, step: slurm.run("scancel", "--signal=TERM", step), {5}, True, id="TERM STEP"),
        pytest.param(
            lambda slurm, _, step: slurm.run("scancel", "--signal=TERM", _job(step)), {5}, True, id="TERM JOB"
        ),
        pytest.param(lambda slurm, _, step: slurm.run("scancel", step), {137}, False, id="scancel STEP"),
        pytest.param(lambda slurm, _, step: slurm.run("scancel", _job(step)), {5, 137}, None, id="scancel JOB"),
        pytest.param(lambda _, srun, __: srun.send_signal(signal.SIGTERM), {137}, False, id="TERM to srun"),
        pytest.param(lambda _, srun, __: srun.send_signal(signal.SIGKILL), {-9}, False, id="KILL to srun"),
    ],
)
def test_which_ways_of_ending_a_step_ask_its_ranks(
    slurm: Slurm, tmp_path: Path, act: Callable[..., object], codes: set[int], asked: bool | None
) -> None:
    """Only `--signal=TERM` surely lets a rank's handler run; at `scancel JOB` srun's SIGKILL may be faster."""
    job = slurm.allocate("-N2")
    script = f"trap 'touch {tmp_path}/$SLURM_PROCID; exit 5' TERM; sleep 600 & wait"
    srun = slurm.step(job, ("n1", "n2"), "bash", "-c", script)
    wait_until(lambda: len(slurm.processes("n1") + slurm.processes("n2")) == 4, "two ranks, each with its child")
    act(slurm, srun, next(iter(slurm.steps(job))))
    assert srun.wait(timeout=20) in codes
    wait_until(lambda: ["bash", "-c", script] not in slurm.processes("n1") + slurm.processes("n2"), "the ranks' end")
    if asked is not None:
        assert len(list(tmp_path.iterdir())) == (2 if asked else 0)


def _job(step: str) -> str:
    return step.split(".")[0]


def test_srun_waits_for_what_a_rank_left_running_with_its_output(slurm: Slurm) -> None:
    """What a rank leaves in the background with its output keeps the step; with other streams it outlives it."""
    job = slurm.allocate("-N1", "-w", "n1")
    left = slurm.step(job, ("n1",), "bash", "-c", "setsid sleep 601 >/dev/null 2>&1 </dev/null & exit 0")
    assert left.wait(timeout=20) == 0
    held = slurm.step(job, ("n1",), "bash", "-c", "sleep 602 & exit 0")
    wait_until(lambda: ["sleep", "602"] in slurm.processes("n1"), "the second")
    time.sleep(1)
    assert held.poll() is None
    assert ["sleep", "601"] in slurm.processes("n1")
