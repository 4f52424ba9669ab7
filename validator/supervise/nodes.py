"""What the nodes of a run left: the file that its step writes, and the sentence for a run that did not end well."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from validator.engine import engine_of
from validator.errors import Unable
from validator.files import Tree, parsed_file
from validator.model.cluster import Allocation
from validator.model.nodes import Live, LiveNodes, NodeRecords, failed
from validator.model.record import Reason
from validator.system.processes import catches

NODES_FILE = "nodes.json"
"""In the run's folder: every node of it, and how its part ended."""

STALL_FILE, EVIDENCE_FILE = "stall.json", "evidence.json"
"""What the head says of a stall, and the files that the nodes saved of it, relative to the run's folder."""

LIVE_FILE = "live.json"
"""Beside it while nodes train: what each does, and the step that it has come to where it trains alone."""

_FEW = 8


def read_records(out: Path) -> NodeRecords | None:
    """The records of a run; None where its step never came to write them."""
    return parsed_file(out / NODES_FILE, NodeRecords.model_validate_json)


def saved_on_nodes(
    process: subprocess.Popen[bytes], out: Path, about: Mapping[str, Any], *, within_s: float
) -> tuple[Path, ...]:
    """Have the agents of a step save evidence of a stall; the files of it that reached the head in time."""
    if not catches(process.pid, signal.SIGUSR1):
        return ()
    found: list[Path] = []
    with suppress(OSError, ValueError), Tree(out) as tree:
        tree.write(STALL_FILE, json.dumps(about), sync=False)
        process.send_signal(signal.SIGUSR1)
        until = time.monotonic() + within_s
        while not tree.has_file(EVIDENCE_FILE) and process.poll() is None and time.monotonic() < until:
            time.sleep(0.05)
        found = [out / path for path in tree.json(EVIDENCE_FILE) if tree.has_file(path)]
    return tuple(found)


def on_a_full_disk(out: Path) -> bool:
    """Whether a node of a run failed because a disk of its own had no room."""
    left = read_records(out)
    return left is not None and any(one.disk_full for one in left.nodes)


def live_nodes(out: Path) -> dict[str, Live]:
    """What each node does, while nodes train; empty where there is nothing of the kind."""
    found = parsed_file(out / LIVE_FILE, LiveNodes.model_validate_json)
    return {} if found is None else found.nodes


def live_text(steps: Mapping[str, int]) -> str:
    """How far the nodes are, the slowest first: `n3 at step 40, n1 at 118`."""
    ordered = sorted(steps.items(), key=lambda one: one[1])
    shown = [f"{node} at {step:,}" for node, step in ordered[:_FEW]]
    more = f" … {ordered[-1][0]} at {ordered[-1][1]:,}" if len(ordered) > _FEW else ""
    return f"{', '.join(shown)}{more}"


def how_it_failed(out: Path, allocation: Allocation | None, *, asked: bool) -> tuple[Reason, str] | None:
    """Why a run across nodes did not end well, and the sentence that names the node; None where every node did.

    Where the job of its nodes has ended, by its limit, by preemption or by a user, no node failed: it was interrupted.
    What ends a job ends its processes first, some by SIGTERM, which look like a crash.

    Args:
        asked: whether validator itself ended the run, so that a node that was stopped did well.
    """
    found = _by_records(out, asked=asked)
    if found is None or allocation is None:
        return found
    try:
        state = engine_of(allocation.engine).state(allocation)
    except Unable:
        return found
    if found[0] == "node_lost":
        found = _by_records(out, asked=asked, down={node for node, is_ in state.nodes.items() if is_ == "down"})
    if found is None or state.job not in ("ended", "pending"):
        return found
    ended = f"job {allocation.job} of its nodes has ended ({state.why})"
    if re.search(r"NODE_FAIL|NodeDown|NodeFail", state.why) is None:
        return "interrupted", ended
    return found[0], f"{found[1]}; {ended}: one that is started with --no-kill outlives a node"


def _by_records(out: Path, *, asked: bool, down: Collection[str] = ()) -> tuple[Reason, str] | None:
    """The same by what agents said. Of several lost nodes those that are `down` took the others with them."""
    left = read_records(out)
    if left is None:
        return "infrastructure", "the program that starts agents on the nodes left no record of them"
    bad = failed(left.nodes)
    stopped = next((one for one in left.nodes if one.ended == "stopped"), None)
    if not bad and stopped is not None and not asked:
        return "infrastructure", f"{stopped.node} was stopped, not by validator: {stopped.detail}"
    if not bad:
        return ("infrastructure", left.trouble) if left.trouble else None
    first = bad[0]
    gone = [one.node for one in bad if one.ended == "lost"]
    lost = ", ".join([node for node in gone if node in down] or gone)
    detail = first.detail or f"exited with code {first.rc}"
    match first.ended:
        case "lost":
            return "node_lost", f"{lost} {'was' if ',' not in lost else 'were'} lost: {detail}"
        case "not_started":
            why = left.trouble or detail
            names = ", ".join(one.node for one in bad if one.ended == "not_started")
            return "infrastructure", f"nothing was started on {names}: {why}"
        case _:
            return "exited", f"{first.node}: {detail}"
