"""What the head knows of processes on other machines: their agents say it."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

from tests.cluster.sites import OverSsh
from tests.cluster.ssh import SshHosts
from tests.processes import wait_until
from validator.model.cluster import Allocation, Node, SshOptions
from validator.model.plan import RunSpec
from validator.model.runbook import TrainerMetrics, Watchdog
from validator.supervise.capture import LogCap
from validator.supervise.launch import Place, prepare_step
from validator.supervise.monitor import Monitor
from validator.supervise.termination import ProcessTree
from validator.system.nvml import Gpus

TRAINER = """
import os, sys, pathlib, time
out, gate = pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3])
(out / "pid").write_text(str(os.getpid()))
while not gate.exists():
    sum(range(100_000)) if sys.argv[1] == "1" else time.sleep(0.1)
"""
"""The second node computes, the first one waits."""


def test_the_processes_of_hosts_behind_ssh_are_known_by_their_agents(sshd: SshHosts, tmp_path: Path) -> None:
    site, gate = OverSsh(tmp_path, sshd), tmp_path / "go"
    spec = RunSpec(
        id="a/r1",
        phase="a",
        kind="train",
        launcher="python",
        argv=(sys.executable, "-S", "-c", TRAINER, "{node_rank}", "{node_out}", str(gate)),
        env={},
        out="runs/a/r1",
        groups=((0, 1),),
        timeout_s=60.0,
        metrics=TrainerMetrics(csv="training.csv"),
        watchdog=Watchdog.model_validate({"first_step": "60s", "stall": "5s", "interval": "1s"}),
    )
    hosts = ("n1", "n2")
    options = SshOptions(hosts=hosts, python=str(site.python))
    nodes = tuple(Node(name=name, address="127.0.0.1") for name in hosts)
    place = Place(Allocation(engine="ssh", nodes=nodes, owned=False, options=options), hosts)
    launch = prepare_step(spec, place, run_dir=tmp_path, token=secrets.token_hex(8), grace_s=1.0)
    began, tree = time.monotonic(), ProcessTree(token="of nobody")
    monitor = Monitor(spec, out=launch.out, tree=tree, gpus=Gpus(), cap=LogCap(), started=began)
    step = subprocess.Popen(launch.argv, env={**launch.environment, **site.env}, start_new_session=True)
    try:

        def said() -> str:
            monitor.look()
            return monitor.activity().describe()

        def cpu_s(node: str) -> float:
            said()
            live = monitor.follower.live.get(node)
            return 0.0 if live is None or live.cpu_s is None else live.cpu_s

        wait_until(lambda: cpu_s("n2") > 0.3, "a node that computes", timeout_s=40)
        assert cpu_s("n1") < 0.3
        pid = int((launch.out / "nodes/n2/pid").read_text())
        assert psutil.Process(pid).cpu_times().user > 0.2
        os.kill(pid, signal.SIGSTOP)
        stopped = f"process {pid} on n2 is stopped (state T) and its processes use "
        wait_until(lambda: said().startswith(stopped), "a node that is stopped", timeout_s=40)
        os.kill(pid, signal.SIGCONT)
    finally:
        gate.touch()
        code = step.wait(timeout=40)
    assert code == 0
