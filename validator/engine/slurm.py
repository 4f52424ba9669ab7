"""Slurm through its own commands, of any version since 20.11. What they print is read as text, since the names in their
JSON change from one version to the next.
"""

from __future__ import annotations

import os
import re
import select
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

from validator.engine.base import NODE_VARIABLE, AllocationState, Channel, Engine, NodeState
from validator.engine.clients import ask, hold
from validator.engine.trouble import explained
from validator.errors import Unable
from validator.model.cluster import Allocation, Cluster, Node, SlurmOptions

_KEPT = frozenset({"SLURM_CONF", "SLURM_JWT", "SLURM_CLUSTERS"})
_POLL_S = 0.1
_LOOK_S = 5.0
_RELEASE_S = 10.0

# The command of `salloc` says that the nodes are ready and then lives as long as this process does: where it is killed,
# its end of the pipe closes, and salloc gives the nodes back, also where it still waits for them.
_HOLD = ("sh", "-c", 'echo "$SLURM_JOB_ID"; exec cat')

# Without --wait=0 the first agent that ends takes the others with it after the WaitTime of slurm.conf. Lines stay whole
# only without --unbuffered. --overlap: a step that died with its node may hold its CPUs for minutes.
_STEP = (
    *("--ntasks-per-node=1", "--overlap", "--mem=0", "--cpu-bind=none", "--mpi=none", "--export=ALL"),
    *("--input=all", "--wait=0", "--kill-on-bad-exit=0", "--no-kill", "--chdir=/"),
)

_JOB_STATES: dict[str, Literal["pending", "running", "ended"]] = {
    **dict.fromkeys(("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT"), "pending"),
    **dict.fromkeys(("RUNNING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING"), "running"),
}
"""All others are ends."""

_HOPELESS = re.compile(
    r"reason (PartitionNodeLimit|PartitionTimeLimit|BadConstraints|InvalidAccount|InvalidQOS|(Account|QOS)NotAllowed"
    r"|JobHeld\w+)"
)
"""What no wait resolves."""

_held: dict[str, Channel] = {}
"""The `salloc` of each job that this process asked for. The job ends with it."""


class Slurm(Engine):
    """The job that this process is in, or one of its own."""

    def allocate(self, cluster: Cluster, *, name: str, cancelled: Callable[[], bool]) -> Allocation:
        """The nodes of SLURM_JOB_ID where that job runs, else those of a new job, exclusively."""
        job = own_job()
        if job is None:
            job = _Request(cluster, name).wait(cancelled)
            return Allocation(engine="slurm", nodes=_nodes(job), job=job, options=cluster.slurm)
        nodes = _nodes(job)
        if len(nodes) < cluster.count:
            raise Unable(
                f"job {job} has {len(nodes)} nodes and cluster needs {cluster.count} (nodes: {cluster.nodes}, "
                f"spare: {cluster.spare}); start it with --nodes={cluster.count}, or lower these"
            )
        return Allocation(engine="slurm", nodes=nodes[: cluster.count], job=job, owned=False, options=cluster.slurm)

    def start(
        self, allocation: Allocation, nodes: Sequence[str], argv: Sequence[str], *, environment: Mapping[str, str]
    ) -> tuple[Channel, ...]:
        """One `srun` for all nodes. Each agent has all CPUs, memory and GPUs of the job on its node.

        Where srun is killed with the process that it keeps beside itself, agents live on and their standard input does
        not end: they must end by the silence of their head.
        """
        job = _number(allocation)
        where = (f"--jobid={job}", f"--nodes={len(nodes)}", f"--ntasks={len(nodes)}", f"--nodelist={','.join(nodes)}")
        clean = _environment({name: value for name, value in environment.items() if name != NODE_VARIABLE})
        return hold([(("srun", *where, *_STEP, *_gres(job), *argv), tuple(nodes), clean)])

    def state(self, allocation: Allocation) -> AllocationState:
        """What `scontrol` shows. A node that the job has lost is down, also when it is back."""
        fields = _job(_number(allocation))
        state = fields.get("JobState", "unknown")
        job = _JOB_STATES.get(state, "ended")
        names = tuple(node.name for node in allocation.nodes)
        shown = {name: _node_state(words.get("State", "")) for name, words in _shown_nodes(names)}
        if job == "running":
            ours = set(_expanded(fields.get("NodeList", "")))
            shown |= {name: "down" for name in names if name not in ours}
        why = f"{state} {fields.get('Reason', '')}".strip() if fields else "the controller does not know the job"
        return AllocationState(job, why, {name: shown.get(name, "unknown") for name in names})

    def release(self, allocation: Allocation) -> None:
        """End the job, where it is ours."""
        words = self.release_words(allocation)
        if not words:
            return
        held = _held.pop(_number(allocation), None)
        if held is not None:
            # salloc ends the job with its command; one that gets SIGTERM and the job's end at once may hang.
            held.close(within_s=_RELEASE_S)
        with suppress(Unable):
            ask(words, environment=_environment(os.environ))

    def release_words(self, allocation: Allocation) -> tuple[str, ...]:
        """`scancel`."""
        return ("scancel", "--quiet", _number(allocation)) if allocation.owned else ()


def own_job() -> str | None:
    """The running job that this process is in."""
    job = os.environ.get("SLURM_JOB_ID")
    return job if job and _job(job).get("JobState") == "RUNNING" else None


def unqueued(cluster: Cluster) -> tuple[str, ...]:
    """The command by which Slurm says whether and when it would start the allocation, without a job."""
    return ("sbatch", "--test-only", *cluster.request("doctor"), "--wrap=true")


class _Request:
    """A `salloc` that runs, until it has nodes or is ended."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self._cluster = cluster
        command = ("salloc", "--wait-all-nodes=1", *cluster.request(name), *_HOLD)
        (self._salloc,) = hold([(command, (), _environment(os.environ))])

    def wait(self, cancelled: Callable[[], bool]) -> str:
        """The number of the job, once its nodes are ready.

        Raises:
            Unable: when Slurm refuses, when the time is up, or when `cancelled` says so; nothing is left then.
        """
        now = time.monotonic()
        until, look = now + self._cluster.wait, now + _LOOK_S
        described = _described(self._cluster)
        try:
            while not (job := self._granted()):
                if cancelled():
                    raise Unable("could not start: interrupted while waiting for nodes; nothing stays queued")
                if (now := time.monotonic()) > until:
                    raise Unable(
                        f"could not start: no {self._cluster.count} nodes within cluster.wait of "
                        f"{self._cluster.wait:.0f} s: {self._reason()}; wait longer, or ask for less ({described})"
                    )
                if now > look and _HOPELESS.search(self._reason()):
                    raise Unable(f"could not start: {self._reason()}; check cluster.slurm ({described})")
                look = now + _LOOK_S if now > look else look
        except BaseException:
            self._give_up()
            raise
        _held[job] = self._salloc
        return job

    def _granted(self) -> str:
        """The number that the command of salloc prints; "" where it has not within a moment."""
        if not select.select([self._salloc.stdout], [], [], _POLL_S)[0]:
            return ""
        job = self._salloc.stdout.readline().decode().strip()
        if not job:
            raise Unable(
                f"could not start: Slurm refuses the allocation: {self._salloc.trouble()}; "
                f"check cluster.slurm ({_described(self._cluster)})"
            )
        return job

    def _reason(self) -> str:
        """Why the job is not running yet, as the scheduler says it."""
        job = self._queued()
        if job is None:
            return self._salloc.trouble() or "the controller has not answered"
        try:
            fields = _job(job)
        except Unable as error:
            return str(error)
        return f"job {job} is {fields.get('JobState', 'unknown')}, reason {fields.get('Reason', 'not given')}"

    def _queued(self) -> str | None:
        found = re.search(r"job allocation (\d+)", self._salloc.wrote())
        return found[1] if found else None

    def _give_up(self) -> None:
        """First the client, so that it asks for nothing more; then the job, which it may have left."""
        job = self._queued()
        self._salloc.process.terminate()
        self._salloc.close(within_s=_RELEASE_S)
        if job is not None:
            with suppress(Unable):
                ask(("scancel", "--quiet", job), environment=_environment(os.environ))


def _described(cluster: Cluster) -> str:
    options: SlurmOptions = cluster.slurm
    asked = {"nodes": cluster.count, **options.model_dump(exclude_defaults=True)}
    return ", ".join(f"{name}: {value}" for name, value in asked.items())


def _gres(job: str) -> tuple[str, ...]:
    """The GPUs that every node of the job has: a step of an exclusive job does not have them unless it asks."""
    shown = _scontrol("show", "job", "-d", "-o", job)
    by_node = [
        {kind: int(count) for kind, count in re.findall(r"(\w+(?::[A-Za-z][\w.-]*)?):(\d+)\(IDX", words)}
        for words in re.findall(r"\sGRES=(\S*)", shown)
    ]
    common = set.intersection(*map(set, by_node)) if by_node else set()
    asked = ",".join(f"{kind}:{min(one[kind] for one in by_node)}" for kind in sorted(common))
    return (f"--gres={asked}",) if asked else ()


# What scontrol shows.


def _scontrol(*words: str) -> str:
    """What it prints; "" for what the controller does not know.

    Raises:
        Unable: when the controller does not answer.
    """
    done = ask(("scontrol", *words), environment=_environment(os.environ))
    if done.returncode != 0 and not re.search(r"[Ii]nvalid job id|not found", done.stderr + done.stdout):
        raise Unable(f"Slurm does not answer `scontrol {' '.join(words)}`: {explained(done.stderr)}")
    return done.stdout if done.returncode == 0 else ""


def _fields(line: str) -> dict[str, str]:
    return dict(reversed(re.findall(r"(\S+?)=(\S*)", line)))


def _job(job: str) -> dict[str, str]:
    """The fields of a job, without the nested ones; none of a job that the controller does not know."""
    return _fields(_scontrol("show", "job", "-o", job))


def _expanded(names: str) -> list[str]:
    return [] if names in ("", "(null)") else _scontrol("show", "hostnames", names).split()


def _shown_nodes(names: Sequence[str]) -> Iterator[tuple[str, dict[str, str]]]:
    for line in _scontrol("show", "node", "-o", ",".join(names)).splitlines():
        fields = _fields(line)
        if "NodeName" in fields:
            yield fields["NodeName"], fields


def _nodes(job: str) -> tuple[Node, ...]:
    """The nodes of a job, in its order."""
    names = _expanded(_job(job).get("NodeList", ""))
    if not names:
        raise Unable(f"job {job} has no nodes; look at `scontrol show job {job}`")
    shown = dict(_shown_nodes(names))
    return tuple(Node(name=name, address=shown.get(name, {}).get("NodeAddr") or name) for name in names)


def _node_state(shown: str) -> NodeState:
    """Such as `ALLOCATED`, `IDLE+DRAIN`, `DOWN*`, `MIXED+NOT_RESPONDING`."""
    words = set(re.split(r"\W+", shown.upper())) - {""}
    if words & {"DOWN", "FAIL", "ERROR", "POWERED_DOWN", "POWERING_DOWN", "REBOOT_ISSUED"}:
        return "down"
    return "unknown" if not words or "UNKNOWN" in words or "NOT_RESPONDING" in words or "*" in shown else "up"


def _environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Without what an outer step or job has set: it would be taken for options, and by programs for their own ranks."""
    dropped = ("SLURM_", "SLURMD_", "SRUN_", "PMI_", "PMIX_")
    return {name: value for name, value in environment.items() if name in _KEPT or not name.startswith(dropped)}


def _number(allocation: Allocation) -> str:
    if allocation.job is None:
        raise Unable("the allocation has no job number; start the validation again")
    return allocation.job


ENGINE = Slurm()


def submitted(file: Path) -> str:
    """The number of the job that `sbatch` makes of a batch file.

    Raises:
        Unable: when there is no sbatch, or Slurm refuses the job.
    """
    found = ask(("sbatch", "--parsable", str(file)), environment=_environment(os.environ))
    job = found.stdout.strip().partition(";")[0]
    if found.returncode != 0 or not job.isdigit():
        raise Unable(f"Slurm refuses the job: {explained(found.stderr)}; look at {file}")
    return job
