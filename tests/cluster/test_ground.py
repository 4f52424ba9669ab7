"""The ground that tests of clusters stand on: nodes that die alone, and nothing that outlives the tests."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.cluster.slurm import Slurm
from tests.cluster.ssh import SshHosts
from tests.processes import wait_until

_REPOSITORY = Path(__file__).resolve().parents[2]


def test_each_node_of_slurm_knows_its_name(slurm: Slurm) -> None:
    done = slurm.run("srun", "-N4", "-l", "printenv", "SLURMD_NODENAME")
    assert sorted(done.stdout.splitlines()) == ["0: n1", "1: n2", "2: n3", "3: n4"], done.stderr


def test_each_host_behind_ssh_knows_its_name(sshd: SshHosts) -> None:
    homes = [sshd.on(node, "echo $VALIDATOR_TEST_NODE ~").stdout.strip() for node in sshd.nodes]
    assert homes == [f"{node} {sshd.folder / node}" for node in sshd.nodes]


def test_a_host_behind_ssh_dies_and_returns(sshd: SshHosts) -> None:
    command = sshd.begin("ssh", "n2", "sleep 600")
    wait_until(lambda: ["sleep", "600"] in sshd.processes("n2"), "the command")
    sshd.kill_node("n2")
    assert command.wait(timeout=10) == 255
    assert sshd.on("n2", "true").returncode == 255
    sshd.restore_node("n2")
    assert sshd.on("n2", "true").returncode == 0
    assert sshd.processes("n2") == []


@pytest.mark.usefixtures("slurm", "sshd")  # skipped where they are
def test_nothing_outlives_a_killed_test_run(tmp_path: Path) -> None:
    """SIGKILL to pytest in the middle of a test: no daemon, no step and no process of a step is left."""
    test = tmp_path / "test_hangs.py"
    test.write_text(
        "import pathlib, time\n"
        "from tests.cluster.conftest import _slurm, _sshd, slurm, sshd\n"
        "def test_hangs(slurm, sshd, tmp_path):\n"
        "    slurm.begin('srun', '-N4', 'sleep', '601')\n"
        "    sshd.begin('ssh', 'n1', 'setsid sleep 602')\n"
        "    while not slurm.processes('n4') or not sshd.processes('n1'):\n"
        "        time.sleep(0.1)\n"
        f"    pathlib.Path({str(tmp_path / 'ready')!r}).touch()\n"
        "    time.sleep(600)\n",
        encoding="utf-8",
    )
    runner = subprocess.Popen(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--basetemp={tmp_path / 'base'}", str(test)],
        cwd=_REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(_REPOSITORY)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        wait_until(lambda: (tmp_path / "ready").exists() or runner.poll() is not None, "the test")
        assert runner.poll() is None, runner.stdout and runner.stdout.read()
        started = psutil.Process(runner.pid).children(recursive=True)
    finally:
        os.killpg(runner.pid, signal.SIGKILL)
        runner.communicate(timeout=30)
    assert len(started) > 20  # six daemons of Slurm, four of ssh, their keepers, four steps and a command
    wait_until(lambda: not any(map(_runs, started)), "the end of every process")


def _runs(process: psutil.Process) -> bool:
    """False for a zombie too: the first process of a container may reap late."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
