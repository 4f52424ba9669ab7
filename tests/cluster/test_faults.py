"""What befalls a validation of several nodes, on each engine: the verdict, the node that is named, and the exit code.

`FAULTS` is a table. Each fault runs on the cheapest engine that shows it, and on the others by `make test-long`;
`test_validation.py` shows on every engine that it is used as the others are.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.cluster.hosts import NODES
from tests.cluster.sites import Faults, InJob, OverSsh, Site
from tests.cluster.slurm import Slurm
from tests.processes import wait_until

MakeSite = Callable[[str], Site]
ENGINES = ("local", "ssh", "slurm", "job")
engines = pytest.mark.parametrize("engine", ENGINES)

ALIKE = {"id": "nodes", "kind": "preflight"}
TOGETHER = {"id": "together", "kind": "train", "steps": 30, "accept": ["loss.last < loss.first", "steps.done == 30"]}
FIRST = {**TOGETHER, "id": "first"}
DECISIONS = {0: "GO", 1: "NO_GO", 3: "INCONCLUSIVE"}


# What a Python of another machine says.
CLOCK = "import time; own = time.time; time.time = lambda: own() + 5.0\n"
PYTHON = "import platform; platform.python_version = lambda: '3.9.1'\n"
TORCH = """
from importlib import metadata
own = metadata.version
metadata.version = lambda name: '0.4.1' if name == 'torch' else own(name)
"""
FULL = """
import shutil
found = shutil._ntuple_diskusage(10**12, 10**12 - 80_000, 80_000)
shutil.disk_usage = lambda place: found
"""


def alone(name: str) -> dict[str, Any]:
    """A phase that compares the nodes by what each does alone."""
    return {"id": name, "kind": "train", "on": "each", "repeats": 4, "steps": 60, "accept": ["loss.last < loss.first"]}


def pairs(name: str) -> dict[str, Any]:
    """A phase that compares their links."""
    return {"id": name, "kind": "preflight", "on": "pairs", "probe": True}


@dataclass(frozen=True)
class Fault:
    """What is wrong, and what must come of it.

    `said` has the criterion or check of each phase that does not pass, and words of its message, or who is slow by how
    many percent, which the interval must hold. `kill` dies in mid-phase; `doubles` begin every Python on a node.
    """

    phases: Sequence[Mapping[str, Any]]
    said: Mapping[str, str | tuple[str, float]]
    code: int = 1
    faults: Callable[[Site], Faults] = lambda site: {}
    cluster: Mapping[str, Any] = field(default_factory=dict)
    doubles: Mapping[str, str] = field(default_factory=dict)
    kill: str | None = None
    printed: str = ""
    saved: str = ""
    ci: bool = True


FAULTS = {
    "slow nodes": Fault(
        [alone("ten"), alone("often")],
        {"ten.slow": ("n1", 10), "often.slow": ("n3", 25)},
        # Each tenth step of the last one takes four times as long.
        faults=lambda site: {
            "ten": {"n1": {"slow": 1 / 0.9}},
            "often": {"n3": {"slow": 4.0, "every": 10}},
        },
        cluster={"nodes": 4},
    ),
    "a slow link": Fault(
        [pairs("links")],
        {"links.slow": ("the link of n1 and n3", 30)},
        faults=lambda site: {"links": {"n1 n3": {"slow": 1 / 0.7}}},
        cluster={"nodes": 4},
    ),
    "a slow network of one node": Fault(
        [pairs("links")],
        {"links.slow": ("n2", 30)},
        faults=lambda site: {"links": {"n2": {"slow": 1 / 0.7, "in": ["all_reduce"]}}},
        cluster={"nodes": 4},
        ci=False,
    ),
    "a rank that fails": Fault(
        [TOGETHER],
        {"together.exit": r"n2: exited with code 7.*last words: a fan is broken"},
        faults=lambda site: {"together": {"n2": {"at": 5, "exit": 7}}},
        printed=r"tail -n 50 \S*nodes/n2/logs/stderr.log",
        ci=False,
    ),
    "no room on a disk in mid-phase": Fault(
        [TOGETHER],
        {"together.exit": r"n2: exited with code 1.*No space left on device"},
        faults=lambda site: {"together": {"n2": {"at": 5, "fill": "/dev/full"}}},
        printed=r"no space left to write to",
    ),
    "a node that hangs": Fault(
        [{**TOGETHER, "watchdog": {"first_step": "30s", "stall": "2s", "interval": "0.5s"}}],
        {"together.exit": r"no step for .* use 0.0\d CPU cores; rank 1 \(n2\) is at step 5, the furthest at 30"},
        faults=lambda site: {"together": {"n2": {"at": 5, "hang": 120}}},
        saved="nodes/n2/dump/processes.json nodes/n2/dump/machine.json stackdump_1.txt",
    ),
    "a node that dies": Fault(
        [TOGETHER, {**TOGETHER, "id": "after"}],
        {"together.exit": "n2 was lost"},
        code=3,
        faults=lambda site: {"together": {"n2": site.dies("n2")}},
        kill="n2",
    ),
    "nodes that differ, and no room on a disk before the start": Fault(
        [ALIKE],
        {
            "nodes.alike": r"Python: n2 has 3.9.1.*torch: n3 has 0.4.1, the others.*the clock.*: n1 has \+5",
            "n2.disk": "78.1 KiB available, less than 1.0 MiB",
        },
        doubles={"n1": CLOCK, "n2": PYTHON + FULL, "n3": TORCH},
    ),
    "an agent that fails before the start": Fault(
        [ALIKE],
        {"nodes.alike": "^n2 did not say what it is: its agent failed: ZeroDivisionError: division by zero.$"},
        code=3,
        doubles={"n2": "import platform; platform.release = lambda: 1 / 0"},
    ),
}
CHEAPEST = "local"
LONG = pytest.mark.long


def rows() -> list[Any]:
    """Every fault on each engine; what is not the cheapest takes long."""
    return [
        pytest.param(name, engine, id=f"{name}-{engine}", marks=() if fault.ci and engine == CHEAPEST else LONG)
        for name, fault in FAULTS.items()
        for engine in ENGINES
    ]


@pytest.mark.parametrize(("name", "engine"), rows())
def test_a_fault_has_its_verdict_its_node_and_its_exit_code(name: str, engine: str, site_of: MakeSite) -> None:
    fault, site = FAULTS[name], site_of(engine)
    site.differ(fault.doubles)
    running = site.start("run", str(site.write(fault.phases, faults=fault.faults(site), **fault.cluster)))
    if fault.kill is not None:
        site.kill(fault.kill)
    ended = site.ended(running, timeout_s=280)
    assert (ended.code, ended.result["decision"]) == (fault.code, DECISIONS[fault.code]), ended.printed
    assert re.search(fault.printed, ended.printed.replace("\n", " ")), ended.printed
    for one in fault.phases:
        wanted = {of: said for of, said in fault.said.items() if of.startswith((f"{one['id']}.", "n2."))}
        found = ended.failures(one["id"])
        assert wanted.keys() <= found.keys(), ended.printed
        for of, said in wanted.items():
            says(found[of], said)
    runs = [run for phase in ended.result["phases"] for run in phase["runs"]]
    saved = {path for run in runs for attempt in run["outcome"]["attempts"] for path in attempt["bundle"]}
    assert {f"runs/together/r1/{path}" for path in fault.saved.split()} <= saved, saved
    assert site.left() == []


def says(message: str, wanted: str | tuple[str, float]) -> None:
    """The message has the words; or it says who is slower, by an interval that holds the truth, within a percent."""
    if isinstance(wanted, str):
        assert re.search(wanted, message), message
        return
    who, percent = wanted
    found = re.search(rf"{who} is \S+ % \[(\S+), (\S+)\] slower", message)
    assert found is not None, message
    assert float(found[1]) - 1 < percent < float(found[2]) + 1
    assert message.count("slower") == 1, message


def holding(site: Site) -> dict[str, Mapping[str, Mapping[str, Any]]]:
    """The fault by which all nodes stay in mid-phase of `together`, once."""
    return {"together": {node: {"at": 5, "mark": str(site.mark(node)), "hang": 60} for node in NODES[:3]}}


def begun(site: Site) -> subprocess.Popen[str]:
    """A validation of two phases that has come into the middle of the second and stays there."""
    running = site.start("run", str(site.write([FIRST, TOGETHER], faults=holding(site))))
    for node in NODES[:3]:
        wait_until(site.mark(node).exists, f"{node} in mid-phase", timeout_s=150)
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


@pytest.mark.long
def test_a_job_that_ends_with_its_node_names_the_node(site_of: MakeSite) -> None:
    """Without --no-kill Slurm ends the processes on the other nodes as well."""
    site = site_of("job")
    assert isinstance(site, InJob)
    site.no_kill = False
    phases = [TOGETHER, {**TOGETHER, "id": "after"}]
    running = site.start("run", str(site.write(phases, faults={"together": {"n2": site.dies("n2")}})))
    site.kill("n2")
    ended = site.ended(running)
    assert (ended.code, ended.result["decision"]) == (3, "INCONCLUSIVE"), ended.printed
    assert "n2 was lost" in ended.failures("together")["together.exit"]
    assert ended.statuses["after"] == "NOT_RUN"
    wait_until(lambda: not site.left(), "an end of all trainers", timeout_s=30)


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
@pytest.mark.parametrize("engine", ["slurm", "job"])
def test_a_job_past_its_limit_is_interrupted_and_resumed(engine: str, site_of: MakeSite, slurm: Slurm) -> None:
    site = site_of(engine)
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
        wait_until(site.mark(node).exists, f"{node} in mid-phase", timeout_s=150)
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


def test_disks_of_the_nodes_own(site_of: MakeSite) -> None:
    """On each host the folder of reports is an empty one of its own, which the agents send; that of n2 is small."""
    if subprocess.run(["unshare", "-rm", "true"], check=False).returncode != 0:
        pytest.skip("no file system of its own for a process: unshare -rm fails")
    site = site_of("ssh")
    assert isinstance(site, OverSsh)
    again = 'exec unshare -rm "$0" "$@"'
    mount = 'mount -t tmpfs -o size="$([ "$VALIDATOR_NODE" = n2 ] && echo 900k || echo 50m)" none'
    python = site.script(
        "mounting", f'[ -n "$OWN" ] || {{ export OWN=1; {again}; }}\n{mount} {site.folder}/reports || exit 9'
    )
    own = {"ssh": {"hosts": list(NODES), "python": str(python)}}
    phases = [{**FIRST, "on": "each"}, TOGETHER, {**TOGETHER, "id": "full"}, ALIKE]
    full = {"full": {"n2": {"at": 5, "fill": "filling"}}}
    ended = site.run("run", str(site.write(phases, faults=full, **own)))
    assert (ended.code, ended.result["decision"]) == (1, "NO_GO"), ended.printed
    assert ended.statuses == {"first": "PASS", "together": "PASS", "full": "FAIL", "nodes": "FAIL"}
    assert re.search("n2: .*; no room was left on the node's disk", ended.failures("full")["full.exit"])
    assert list(ended.failures("nodes")) == ["n2.disk"]
    assert ended.run is not None
    for path in ("first/r1/g0", "first/r1/g2", "together/r1"):
        assert (ended.run / "runs" / path / "training.csv").read_text().count("\n") == 31
    records = json.loads((ended.run / "runs/together/r1/nodes.json").read_text())["nodes"]
    assert [one["shared"] for one in records] == [False] * 3
    assert (ended.run / "runs/together/r1/heartbeat_rank2.jsonl").read_text().count("\n") == 30
