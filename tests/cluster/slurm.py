"""A whole Slurm on this host: a controller, four nodes, and munge, all of the tests' own and on the loopback."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.cluster.hosts import NODES, PATH, Hosts, free_ports, need
from tests.processes import wait_until

PROGRAMS = ("slurmctld", "slurmd", "srun", "salloc", "sbatch", "scontrol", "munged")
PACKAGES = "slurmctld slurmd slurm-client slurm-wlm-basic-plugins munge"

# Times are the shortest that this version takes. cred_expire, which a requeued job waits, is at least five seconds.
# A node holds four jobs of one CPU, whatever this host has; a "GPU" is an empty file.
_CONF = """\
ClusterName=test
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={controller_port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
MailProg=/bin/true
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=2
SlurmdTimeout={slurmd_timeout_s}
MessageTimeout=5
TCPTimeout=2
SchedulerParameters=bf_interval=1,sched_interval=1,sched_min_interval=0,batch_sched_delay=0
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
GresTypes=gpu
{nodes}
PartitionName=gpu Nodes=ALL Default=YES PriorityTier=1
PartitionName=urgent Nodes=ALL PriorityTier=10
PartitionName=patient Nodes=ALL PriorityTier=1 GraceTime=2
"""


class Slurm(Hosts):
    """The cluster. All nodes share this host: `SLURMD_NODENAME` says to a process of a step which node it is on.

    Partitions: `gpu` is the default, `urgent` preempts the others at once, `patient` gives two seconds of grace.
    """

    slurmd_timeout_s = 4

    def __init__(self, folder: Path) -> None:
        need(PROGRAMS, PACKAGES)
        clean = {
            name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "SBATCH", "SALLOC"))
        }
        super().__init__(folder, clean | {"SLURM_CONF": str(folder / "slurm.conf"), "PATH": PATH})

    def start(self) -> None:
        """All daemons, until the four nodes are idle; again with other ports if one was taken meanwhile."""
        for _ in range(3):
            self._configure()
            self._keep("munge", *self._munged())
            wait_until(lambda: (self.folder / "munge.socket").exists(), "munge's socket", every_s=0.01)
            self._keep("controller", "slurmctld", "-D", "-i")
            for node in NODES:
                self.restore_node(node)
            wait_until(lambda: self.idle() or self._fallen(), "four idle nodes", timeout_s=30)
            if not (fallen := self._fallen()):
                return
            logs = "".join(self._kept[name].log[-3000:] for name in fallen)
            self.stop()
        raise AssertionError(f"{fallen} ended, three times:\n{logs}")

    def clear(self) -> None:
        """Between two tests: no job, and four idle nodes. What does not become idle is started again, in a second."""
        self.end_commands()
        if not self._fallen():
            self.run("scancel", *self.active())
            with contextlib.suppress(TimeoutError):
                wait_until(lambda: self.idle() and not self.active(), "idle nodes", timeout_s=0.5)
                return
        self.stop()
        self.start()

    def allocate(self, *arguments: str) -> str:
        """`salloc --no-shell`; the id of the job."""
        done = self.run("salloc", "--no-shell", *arguments)
        granted = re.search(r"Granted job allocation (\d+)", done.stderr)
        assert granted, done.stderr
        return granted[1]

    def step(self, job: str, nodes: Sequence[str], *command: str, options: Sequence[str] = ()) -> subprocess.Popen[str]:
        """Begin a step with one rank on each of these nodes of an allocation."""
        where = ["--exact", f"-N{len(nodes)}", "-w", ",".join(nodes), "--ntasks-per-node=1"]
        return self.begin("srun", f"--jobid={job}", *where, *options, *command)

    def steps(self, job: str) -> dict[str, str]:
        """The nodes of each step of a job, by the step's id."""
        printed = self.run("squeue", "-h", "-s", "-j", job, "-o", "%i %N").stdout.splitlines()
        return dict(line.split() for line in printed)

    def submit(self, script: str, *arguments: str) -> str:
        """`sbatch` of a shell script; the id of the job. Its output is `slurm-ID.out` in the cluster's folder."""
        done = self.run("sbatch", "--parsable", *arguments, input=f"#!/bin/bash\n{script}\n", cwd=self.folder)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip().split(";")[0]

    def output(self, job: str) -> str:
        """What a batch job wrote; "" before it started."""
        path = self.folder / f"slurm-{job}.out"
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""

    def job(self, job: str) -> dict[str, str]:
        """The fields that `scontrol show job` prints; none of a job that it does not know."""
        printed = self.run("scontrol", "show", "job", "-o", job).stdout
        return dict(pair.split("=", 1) for pair in printed.split() if "=" in pair)

    def wait_for(self, job: str, *states: str, timeout_s: float = 20) -> float:
        """Wait until a job is in one of these states; the seconds that it took."""
        return wait_until(
            lambda: self.job(job).get("JobState") in states, f"job {job} {states}", timeout_s=timeout_s, every_s=0.2
        )

    def active(self) -> list[str]:
        """Ids of jobs that did not end, and of those whose processes are still being ended."""
        return self.run("squeue", "-h", "-o", "%A").stdout.split()

    def states(self) -> dict[str, str]:
        """State by node, as `sinfo` prints it: idle, alloc, mix, down, down*, drain, comp …"""
        printed = self.run("sinfo", "-h", "-N", "-o", "%N %t").stdout.splitlines()
        return dict(line.split() for line in printed)

    def idle(self) -> bool:
        return self.states() == dict.fromkeys(NODES, "idle")

    def json(self, *command: str) -> Any:
        """What a command prints with `--json`."""
        return json.loads(self.run(*command, "--json").stdout)

    def restore_node(self, node: str) -> None:
        """The node starts, as after a reboot: without any process of before."""
        (self.folder / node).mkdir(exist_ok=True)
        self._keep(node, "slurmd", "-D", "-N", node)

    def drain(self, node: str, reason: str = "test") -> None:
        """No new job for this node."""
        self.run("scontrol", "update", f"nodename={node}", "state=drain", f"reason={reason}")

    def _munged(self) -> list[str]:
        files = {"socket": "socket", "key-file": "key", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        named = [f"--{option}={self.folder}/munge.{name}" for option, name in files.items()]
        return ["munged", "--foreground", "--force", "--num-threads=2", *named]

    def _configure(self) -> None:
        """A folder without any state of before, and other ports."""
        shutil.rmtree(self.folder, ignore_errors=True)
        (self.folder / "state").mkdir(parents=True)
        key = self.folder / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(os.urandom(64))
        controller_port, *ports = free_ports(1 + len(NODES))
        nodes = "\n".join(
            f"NodeName={node} NodeHostname=localhost NodeAddr=127.0.0.1 Port={port} CPUs=4 RealMemory=1000 Gres=gpu:2"
            for node, port in zip(NODES, ports, strict=True)
        )
        text = _CONF.format(
            controller_port=controller_port,
            user=pwd.getpwuid(os.getuid()).pw_name,
            folder=self.folder,
            slurmd_timeout_s=self.slurmd_timeout_s,
            nodes=nodes,
        )
        (self.folder / "slurm.conf").write_text(text, encoding="utf-8")
        for gpu in ("gpu0", "gpu1"):
            (self.folder / gpu).touch()
        (self.folder / "gres.conf").write_text(f"Name=gpu File={self.folder}/gpu[0-1]\n", encoding="utf-8")
