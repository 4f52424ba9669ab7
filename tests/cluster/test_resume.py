"""A validation that is resumed on other nodes, or after a node was lost, rests on the nodes that it has at its end."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
from collections.abc import Callable, Mapping
from typing import Any

from tests.cluster.sites import Ended, Site
from tests.cluster.slurm import Slurm
from tests.processes import wait_until

MakeSite = Callable[[str], Site]

ALONE = {"id": "alone", "kind": "train", "on": "each", "steps": 30, "accept": ["loss.last < loss.first"]}
FIRST = {**ALONE, "id": "first", "on": "all"}
SECOND = {**FIRST, "id": "second"}


def ran_on(ended: Ended) -> dict[str, list[str]]:
    """Phase to the nodes that the report names for its run."""
    return {phase["id"]: phase["runs"][0]["nodes"] for phase in ended.result["phases"]}


def holding(site: Site, *nodes: str) -> Mapping[str, Mapping[str, Any]]:
    """The fault by which these nodes stay in mid-phase, once."""
    return {node: {"at": 5, "mark": str(site.mark(node)), "hang": 60} for node in nodes}


def test_a_requeued_job_comes_to_its_decision_on_other_nodes(site_of: MakeSite, slurm: Slurm) -> None:
    """n1 goes to an urgent job for good: everything is measured again on n2, n3 and n4."""
    site = site_of("slurm")
    runbook = site.write([ALONE, FIRST, SECOND], faults={"second": holding(site, "n1", "n2", "n3")})
    command = f"cd {site.folder} && export XDG_RUNTIME_DIR={site.folder} PYTHONPATH={site.env['PYTHONPATH']}; "
    validator = f"exec {shlex.quote(sys.executable)} -m validator run"
    job = slurm.submit(
        f"{command} if [ -d reports ]; then {validator} --resume reports/2*; else {validator} {runbook}; fi",
        *("-N3", "--requeue", "--exclusive"),
    )
    for node in ("n1", "n2", "n3"):
        wait_until(site.mark(node).exists, f"{node} in mid-phase")
    slurm.submit("sleep 600", "-N1", "-w", "n1", "--partition=urgent", "--exclusive")
    slurm.wait_for(job, "COMPLETED", "FAILED", "CANCELLED", timeout_s=90)
    assert (slurm.job(job)["Restarts"], slurm.job(job)["ExitCode"]) == ("1", "0:0"), slurm.output(job)
    ended = Ended(0, site.run_folder(), slurm.output(job))
    assert ended.result["decision"] == "GO"
    assert set(map(tuple, ran_on(ended).values())) == {("n2", "n3", "n4")}
    (run,) = ended.result["phases"][0]["runs"]
    aside = "set aside, for it ran on n1, n2, n3; the nodes are now n2, n3, n4"
    assert [one["detail"] for one in run["outcome"]["attempts"]] == [aside, "exited with code 0"]
    assert ended.run is not None
    assert (ended.run / "runs/first/r1.attempt1/training.csv").exists()
    assert {node["name"] for node in ended.result["fleet"]["nodes"]} == {"n2", "n3", "n4"}
    assert site.left() == []


def test_a_lost_node_stays_out_and_what_ran_on_it_is_measured_again(site_of: MakeSite) -> None:
    """n2 dies in the second phase and n4 takes its place; the head is killed after that, and resumed."""
    site = site_of("ssh")
    third = {**FIRST, "id": "third"}
    faults = {"second": {"n2": site.dies("n2")}, "third": holding(site, "n4")}
    running = site.start("run", str(site.write([ALONE, FIRST, SECOND, third], faults=faults, spare=1)))
    site.kill("n2")
    wait_until(site.mark("n4").exists, "n4 in mid-phase", timeout_s=90)
    os.kill(site.head(running), signal.SIGKILL)
    running.wait(timeout=30)
    wait_until(lambda: not site.left(), "an end of all trainers", timeout_s=30)
    folder = site.run_folder()
    assert folder is not None
    first = (folder / "runs/first/r1/training.csv").stat().st_mtime_ns
    ended = site.run("run", "--resume", str(folder))
    assert (ended.code, ended.result["decision"]) == (0, "GO"), ended.printed
    assert "first runs again: 1 run set aside, for it ran on n1, n2, n3" in ended.printed
    assert (folder / "runs/first/r1/training.csv").stat().st_mtime_ns == first, "it was repeated before, and is kept"
    assert {phase: set(nodes) for phase, nodes in ran_on(ended).items()} == {
        "alone": {"n1", "n2", "n3", "n4"},
        **{phase: {"n1", "n3", "n4"} for phase in ("first", "second", "third")},
    }
    states = {node["name"]: node["state"] for node in ended.result["fleet"]["nodes"]}
    assert states["n2"] == "lost"
    journal = [json.loads(line) for line in (folder / "journal.jsonl").read_text().splitlines()]
    assert [one["by"] for one in journal if one["event"] == "node_replaced"] == ["n4"]
    assert site.left() == []
