"""runbooks/acceptance.yaml on this machine, with faults put in from outside: each is named with its device."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.validator.kinds.test_storage import disk  # noqa: F401 - a fixture: a folder that is not in memory

SMALL = {
    "network.max_size": "64 KiB",
    "disk.size": "8 MiB",
    "disk.checkpoint": "8 MiB",
    "disk.random_for": "100ms",
    "burnin.lasts": "3s",
}

FAULTS = '''
"""A wrong element now and then on one rank, which is also late, and a disk that takes its time."""
import os, sys, time
import importlib.abc


def faulty_rank():
    import torch
    import torch.distributed as dist

    multiply, reduce, calls = torch.mm, dist.all_reduce, [0]

    def mm(a, b, **rest):
        out = multiply(a, b, **rest)
        calls[0] += 1
        if calls[0] % 50 == 0:
            out[7, 5] += 1 + out[7, 5].abs()
        return out

    def all_reduce(*given, **rest):
        time.sleep(0.03)
        return reduce(*given, **rest)

    torch.mm, dist.all_reduce = mm, all_reduce


class Before(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "nsa.collectives":
            sys.meta_path.remove(self)
            faulty_rank()
        return None


if os.environ.get("RANK") == "1":
    sys.meta_path.insert(0, Before())

write = os.writev


def writev(file, blocks):
    time.sleep(0.05)
    return write(file, blocks)


os.writev = writev
'''
"""`sitecustomize.py`, which every Python on the path runs at its start. Neither validator nor its probes know of it."""


def accepted(folder: Path, place: Path, *words: str, env: dict[str, str] | None = None) -> tuple[int, dict[str, Any]]:
    """Exit code and result.json of the acceptance with small sizes."""
    sets = [word for key, value in SMALL.items() for word in ("--set", f"{key}={value}")]
    command = [sys.executable, "-m", "validator", "run", "acceptance", "--no-lock", "--out", folder / "reports", *sets]
    done = subprocess.run(
        [*map(str, command), "--set", f"disk.path={place}", *words],
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        check=False,
    )
    (path,) = (folder / "reports").glob("*/result.json")
    result: dict[str, Any] = json.loads(path.read_text())
    return done.returncode, result


def criteria(result: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """Status and message by id."""
    return {one["id"]: (one["status"], one["message"]) for phase in result["phases"] for one in phase["criteria"]}


@pytest.mark.timeout(240)
def test_faults_are_named_with_their_device_and_given_to_the_provider(tmp_path: Path, disk: Path) -> None:  # noqa: F811
    (tmp_path / "sitecustomize.py").write_text(FAULTS)
    (tmp_path / "fio").write_text("#!/bin/sh\nexit 1\n")  # so that the loop of our own writes, which is throttled
    (tmp_path / "fio").chmod(0o755)
    env = {"PYTHONPATH": str(tmp_path), "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    code, result = accepted(tmp_path, disk, "--set", "hardware.gpus=0", "--skip", "preflight", env=env)
    assert (code, result["decision"]) == (1, "NO_GO")
    found = criteria(result)
    status, message = found["burnin.right"]
    assert status == "FAIL"
    assert message.startswith("CPU worker 1: "), message
    assert "of the fp32 product" in message or "of the fp64 product" in message
    assert "worker 0" not in message
    status, message = found["network.late"]
    assert status == "FAIL"
    assert message.startswith("CPU worker 1 begins the all-reduce "), message
    assert found["network.collectives"][0] == "PASS"
    assert found["disk.1"][0] == "FAIL"
    (ticket,) = (tmp_path / "reports").glob("*/ticket.txt")
    text = ticket.read_text()
    assert "CPU worker 1: " in text
    assert "storage.checkpoint_mb_s >= 50" in text
    assert "--only disk" in text
    causes = {one["code"]: one for one in result["findings"]}
    assert {"device-corrupts", "rank-late", "disk-slow"} <= causes.keys()
    assert "CPU worker 1" in causes["device-corrupts"]["next_step"]
    assert f"device-corrupts: {causes['device-corrupts']['message']}" in text


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_worker_beside_another_program_is_the_slowest(tmp_path: Path, disk: Path) -> None:  # noqa: F811
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        pytest.skip("two workers need two cores")
    load = "import os\nos.sched_setaffinity(0, {%d})\nwhile True: pass" % cores[1]  # noqa: UP031 - braces of its own
    others = [subprocess.Popen([sys.executable, "-c", load]) for _ in range(3)]
    try:
        code, result = accepted(tmp_path, disk, "--only", "burnin", "--set", "burnin.lasts=15s")
    finally:
        for one in others:
            one.kill()
            one.wait()
    status, message = criteria(result)["burnin.even"]
    assert message.startswith("CPU worker 1 is the slowest: -"), message
    assert status in ("FAIL", "INCONCLUSIVE")
    assert criteria(result)["burnin.right"][0] == "PASS"
    assert code == 3, "the cores of a CPU are shared: it is said, and only the phases that were left out are missing"
