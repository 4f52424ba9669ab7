"""The stored outputs of Slurm are whole, and of the form that the installed version prints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.cluster.slurm import Slurm

_DATA = Path(__file__).with_name("data")

# State, reason, exit status as `waitpid` has it, nodes.
_JOBS = {
    "ends": ("COMPLETED", "None", 0, "n1"),
    "fails": ("FAILED", "NonZeroExitCode", 3 << 8, "n1"),
    "crashes": ("FAILED", "JobLaunchFailure", 11, "n1"),
    "limited": ("TIMEOUT", "TimeLimit", 143 << 8, "n1"),
    "cancelled": ("CANCELLED", "None", 15, "n1"),
    "lost": ("NODE_FAIL", "NodeDown", 0, "n[3-4]"),
    "preempted": ("PREEMPTED", "None", 0, "n1"),
    "requeued": ("PENDING", "BeginTime", 0, ""),
    "urgent": ("RUNNING", "None", 0, "n[1-2]"),
    "waits": ("PENDING", "Resources", 0, ""),
    "too-many": ("PENDING", "PartitionNodeLimit", 0, ""),
    "on-drained": ("PENDING", "ReqNodeNotAvail", 0, ""),
}


def test_both_formats_say_the_same() -> None:
    found = {}
    for job in _stored():
        found[job["name"]] = (job["job_state"], job["state_reason"], job["exit_code"], job["nodes"])
    assert found == _JOBS

    printed = {}
    for line in (_DATA / "scontrol-job-22.05.8.txt").read_text(encoding="utf-8").splitlines():
        job = dict(pair.split("=", 1) for pair in line.split() if "=" in pair)
        code, number = map(int, job["ExitCode"].split(":"))
        reason = job["Reason"].split(",")[0]  # behind the comma: which nodes
        printed[job["JobName"]] = (job["JobState"], reason, code << 8 | number, job["NodeList"].replace("(null)", ""))
    assert printed == _JOBS


def test_the_installed_version_prints_this_form(slurm: Slurm) -> None:
    slurm.allocate("-N1")
    printed = slurm.json("squeue")
    job = printed["jobs"][-1]
    assert "RUNNING" in str(job["job_state"])
    if printed["meta"]["Slurm"]["release"] == "22.05.8":
        assert sorted(job) == sorted(_stored()[0])


def _stored() -> list[dict[str, Any]]:
    jobs: list[dict[str, Any]] = json.loads((_DATA / "squeue-22.05.8.json").read_text(encoding="utf-8"))["jobs"]
    return jobs
