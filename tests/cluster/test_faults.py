"""What befalls a validation of several nodes besides: jobs that end, nodes that differ, heads that are killed."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from tests.cluster.hosts import NODES, wait_until
from tests.cluster.sites import Site
from tests.cluster.slurm import Slurm

MakeSite = Callable[[str], Site]
engines = pytest.mark.parametrize("engine", ["local", "ssh", "slurm", "job"])

ALIKE = {"id": "nodes", "kind": "preflight"}
TOGETHER = {"id": "together", "kind": "train", "steps": 30, "accept": ["loss.last < loss.first", "steps.done == 30"]}
FIRST = {**TOGETHER, "id": "first"}


def holding(site: Site) -> dict[str, Mapping[str, Mapping[str, Any]]]:
    """The fault by which all nodes stay in mid-phase of `together`, once."""
    return {"together": {node: {"at": 5, "mark": str(site.mark(node)), "hang": 60} for node in NODES[:3]}}


def begun(site: Site) -> subprocess.Popen[str]:
    """A validation of two phases that has come into the middle of the second and stays there."""
    running = site.start("run", str(site.write([FIRST, TOGETHER], faults=holding(site))))
    for node in NODES[:3]:
        wait_until(site.mark(node).exists, f"{node} in mid-phase", timeout_s=60)
    return running


def resumed(site: Site) -> None:
    """Nothing is wrong any more: `--resume` comes to GO, and repeats only what was cut short."""
    folder = site.run_folder()
    assert folder is not None
    before = (folder / "runs/first/r1/training.csv").stat().st_mtime_ns
    again = site.run("run", "--resume", str(folder))
    assert (again.code, again.result["decision"]) == (0, "GO"), again.printed
    assert (folder / "runs/first/r1/training.csv").stat().st_mtime_ns == before
    assert (folder / "runs/together/r1.attempt1").is_dir()
    assert site.left() == []


@engines
def test_a_head_that_is_killed_leaves_nothing_and_is_resumed(engine: str, site_of: MakeSite) -> None:
    site = site_of(engine)
    running = begun(site)
    head = site.head(running)
    os.kill(head, signal.SIGKILL)
    running.wait(timeout=30)
    wait_until(lambda: not site.left(), "an end of all trainers", timeout_s=30)
    if isinstance(site.hosts, Slurm):
        wait_until(lambda: not site.hosts.active(), "an end of the job", timeout_s=30)
    resumed(site)


@pytest.mark.parametrize("engine", ["slurm", "job"])
def test_a_job_that_is_cancelled_is_interrupted_and_resumed(engine: str, site_of: MakeSite, slurm: Slurm) -> None:
    site = site_of(engine)
    running = begun(site)
    slurm.run("scancel", *slurm.active())
    ended = site.ended(running)
    assert ended.code == 130, ended.printed
    assert ended.result["decision"] != "GO"
    resumed(site)


@pytest.mark.long
def test_a_job_past_its_limit_is_interrupted_and_resumed(site_of: MakeSite, slurm: Slurm) -> None:
    site = site_of("slurm")
    running = begun(site)
    slurm.run("scontrol", "update", f"jobid={slurm.active()[0]}", "EndTime=now")  # noticed within 30 s
    ended = site.ended(running)
    assert ended.code == 130, ended.printed
    assert "has ended" in ended.printed
    assert "TimeLimit" in ended.printed  # the state is COMPLETING, and then TIMEOUT
    resumed(site)


def test_a_preempted_batch_job_is_requeued_and_comes_to_its_decision(site_of: MakeSite, slurm: Slurm) -> None:
    site = site_of("slurm")
    runbook = site.write([FIRST, TOGETHER], faults=holding(site))
    command = f"cd {site.folder} && export XDG_RUNTIME_DIR={site.folder} PYTHONPATH={site.env['PYTHONPATH']}; "
    validator = f"exec {shlex.quote(sys.executable)} -m validator run"
    job = slurm.submit(
        f"{command} if [ -d reports ]; then {validator} --resume reports/2*; else {validator} {runbook}; fi",
        *("-N3", "--requeue", "--exclusive"),
    )
    for node in NODES[:3]:
        wait_until(site.mark(node).exists, f"{node} in mid-phase", timeout_s=60)
    urgent = slurm.submit("sleep 1", "-N3", "--partition=urgent", "--exclusive")
    slurm.wait_for(urgent, "COMPLETED", timeout_s=40)
    slurm.wait_for(job, "COMPLETED", "FAILED", "CANCELLED", timeout_s=60)
    assert slurm.job(job)["Restarts"] == "1"
    assert (slurm.job(job)["JobState"], slurm.job(job)["ExitCode"]) == ("COMPLETED", "0:0"), slurm.output(job)
    folder = site.run_folder()
    assert folder is not None
    assert (folder / "runs/together/r1.attempt1").is_dir()
    assert site.left() == []


def test_nodes_that_do_not_come_are_no_start(site_of: MakeSite, slurm: Slurm) -> None:
    """Another job has the nodes: exit code 4 with the scheduler's reason, and nothing stays queued."""
    site = site_of("slurm")
    other = slurm.allocate("-N4", "--exclusive")
    ended = site.run("run", str(site.write([TOGETHER], wait="2s")))
    assert ended.code == 4, ended.printed
    assert "Resources" in ended.printed
    assert slurm.active() == [other]


def disguise(site: Site, shell: str) -> dict[str, Any]:
    """Options of ssh by which validator's Python begins on each host with a line of shell."""
    python = site.folder / "python"
    python.write_text(f'#!/bin/sh\n{shell}\nexec {shlex.quote(sys.executable)} "$@"\n', encoding="utf-8")
    python.chmod(0o755)
    return {"ssh": {"hosts": list(NODES), "python": str(python)}}


def test_nodes_without_a_shared_folder_send_what_they_write(site_of: MakeSite) -> None:
    """On each host the folder of reports is an empty one of its own."""
    if subprocess.run(["unshare", "-rm", "true"], check=False).returncode != 0:
        pytest.skip("no file system of its own for a process: unshare -rm fails")
    site = site_of("ssh")
    reports = site.folder / "reports"
    again = 'exec unshare -rm "$0" "$@"'
    own = disguise(site, f'[ -n "$OWN" ] || {{ export OWN=1; {again}; }}\nmount -t tmpfs none {reports} || exit 9')
    ended = site.run("run", str(site.write([ALIKE, {**FIRST, "on": "each"}, TOGETHER], **own)))
    assert (ended.code, ended.result["decision"]) == (0, "GO"), ended.printed
    assert ended.run is not None
    for path in ("first/r1/g0", "first/r1/g2", "together/r1"):
        assert (ended.run / "runs" / path / "training.csv").read_text().count("\n") == 31
    records = json.loads((ended.run / "runs/together/r1/nodes.json").read_text())["nodes"]
    assert [one["shared"] for one in records] == [False] * 3
    assert (ended.run / "runs/together/r1/heartbeat_rank2.jsonl").read_text().count("\n") == 30


@pytest.mark.parametrize(
    ("double", "told"),
    [
        ("import time; own = time.time; time.time = lambda: own() + 5.0", "the clock"),
        ("import platform; platform.python_version = lambda: '3.9.1'", "Python: n2 has 3.9.1"),
    ],
    ids=["clock", "Python"],
)
def test_a_node_that_differs_is_named(double: str, told: str, site_of: MakeSite) -> None:
    """The double of another clock, or Python, is loaded by every Python on n2."""
    site = site_of("ssh")
    odd = site.folder / "odd"
    odd.mkdir()
    (odd / "sitecustomize.py").write_text(double + "\n", encoding="utf-8")
    other = disguise(site, f'[ "$VALIDATOR_NODE" = n2 ] && export PYTHONPATH={odd}')
    ended = site.run("run", str(site.write([ALIKE], **other)))
    assert (ended.code, ended.result["decision"]) == (1, "NO_GO"), ended.printed
    message = ended.failures("nodes")["nodes.alike"]
    assert told in message
    assert "n2 has" in message
