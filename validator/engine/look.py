"""Whether an engine can start agents: what `validator doctor` says of the nodes of a runbook. Nothing is allocated."""

from __future__ import annotations

import os
import select
import shutil
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import validator
from validator.documents import parse_json
from validator.engine import engine_of
from validator.engine.base import Channel
from validator.engine.clients import ask
from validator.engine.lines import Lines
from validator.engine.slurm import own_job, unqueued
from validator.engine.trouble import explained, known_fix
from validator.errors import Unable
from validator.model.cluster import Allocation, Cluster
from validator.startup import inline_argv

_PROGRAMS = {"slurm": ("salloc", "srun", "scancel", "scontrol"), "ssh": ("ssh",), "local": ()}

_PROBE = """
import json, os, sys
node = os.environ.get("VALIDATOR_NODE") or os.environ.get("SLURMD_NODENAME")
try:
    from validator import __version__ as version
except ImportError:
    version = None
print(json.dumps({"node": node, "python": ".".join(map(str, sys.version_info[:3])), "validator": version}), flush=True)
for line in sys.stdin:
    print(json.dumps({"node": node}), flush=True)
"""


@dataclass(frozen=True)
class Looked:
    """One thing that was looked at. `ok` is None for what could not be tried; `fix` says what to do."""

    name: str
    value: str
    ok: bool | None = True
    fix: str = ""


def look(cluster: Cluster) -> tuple[Looked, ...]:
    """Programs and controller first; then Python, validator and the way there and back on each node within reach."""
    found = list(_here(cluster))
    if not all(one.ok for one in found):
        return tuple(found)
    if cluster.engine == "slurm" and own_job() is None:
        return (*found, Looked("Nodes", "not tried: this is outside of a job", None, "run it inside of an allocation"))
    try:
        allocation = engine_of(cluster.engine).allocate(cluster, name="doctor", cancelled=lambda: False)
        return (*found, *_nodes(cluster, allocation))
    except Unable as error:
        return (*found, Looked("Nodes", str(error), False))


def _here(cluster: Cluster) -> Iterator[Looked]:
    for program in _PROGRAMS[cluster.engine]:
        path = shutil.which(program)
        yield Looked(program, path or "not found", path is not None, "" if path else "install it, or run where it is")
        if path is None:
            return
    if cluster.engine == "slurm":
        try:
            yield _would_start(cluster)
        except Unable as error:
            yield Looked("Slurm", str(error), False)


def _would_start(cluster: Cluster) -> Looked:
    """Slurm's own answer to partition, account, nodes and GPUs, without a job; in a job, that it is there."""
    if job := own_job():
        return Looked("Slurm", f"inside of job {job}, which is used as it is")
    done = ask(unqueued(cluster), environment=os.environ)
    said, fine = explained(done.stderr) or explained(done.stdout), done.returncode == 0
    # Where the fix is known, Slurm never saw the request.
    return Looked("Slurm", said, fine, "" if fine or known_fix(done.stderr) else "change cluster.slurm, or --nodes")


def _nodes(cluster: Cluster, allocation: Allocation) -> Iterator[Looked]:
    """A probe on each node says what it is, and then answers one question."""
    names = tuple(node.name for node in allocation.nodes)
    argv = inline_argv(sys.executable, _PROBE)
    channels = engine_of(cluster.engine).start(allocation, names, argv, environment=os.environ)
    try:
        first = _answers(channels, names, cluster.start)
        asked = time.monotonic()
        for channel in channels:
            with suppress(OSError):
                channel.stdin.write(b"again\n")
                channel.stdin.flush()
        second = _answers(channels, first, cluster.start)
        trouble = {name: channel.trouble() for channel in channels for name in channel.nodes}
    finally:
        for channel in channels:
            channel.close()
    for name in names:
        if name in second:
            yield _node(name, first[name][0], second[name][1] - asked)
        else:
            yield Looked(f"Node {name}", trouble[name] or f"no answer within {cluster.start:.0f} s", False)


def _node(name: str, said: Mapping[str, Any], round_trip_s: float) -> Looked:
    version, here = said.get("validator"), validator.__version__
    there_and_back = f"{round_trip_s * 1000:.0f} ms there and back"
    value = f"Python {said.get('python')}, validator {version or 'not installed'}, {there_and_back}"
    fix = "" if version == here else f"install validator {here} there, the version of this machine"
    return Looked(f"Node {name}", value, not fix, fix)


def _answers(
    channels: Sequence[Channel], names: Collection[str], within_s: float
) -> dict[str, tuple[dict[str, Any], float]]:
    """The next line of each of these nodes, and the time when it came; without those that end or say nothing."""
    until = time.monotonic() + within_s
    found: dict[str, tuple[dict[str, Any], float]] = {}
    readers = {channel.stdout: Lines() for channel in channels}
    while readers and set(names) - found.keys() and time.monotonic() < until:
        for output in select.select(list(readers), [], [], 0.1)[0]:
            data = os.read(output.fileno(), 1 << 16)
            for line in readers[output].take(data):
                with suppress(ValueError):
                    said = parse_json(line)
                    if isinstance(said, dict) and said.get("node") in names:
                        found[said["node"]] = said, time.monotonic()
            if not data:
                del readers[output]
    return found
