"""What the nodes of a run left: the file that its step writes, and the sentence for a run that did not end well."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from validator.documents import parse_json
from validator.engine import engine_of
from validator.errors import Unable
from validator.files import open_file
from validator.model.cluster import Allocation
from validator.model.nodes import NodeRecord, NodeRecords
from validator.model.record import Reason

NODES_FILE = "nodes.json"
"""In the run's folder: every node of it, and how its part ended."""

LIVE_FILE = "live.json"
"""Beside it while nodes train alone: the step that each has come to."""

_MOST_BYTES = 64 << 20
_FEW = 8
_WORST_FIRST = ("lost", "not_started", "exited")


def read_records(out: Path) -> NodeRecords | None:
    """The records of a run; None where its step never came to write them."""
    try:
        with open_file(out / NODES_FILE) as file:
            return NodeRecords.model_validate_json(file.read(_MOST_BYTES))
    except (OSError, ValueError):
        return None


def live_steps(out: Path) -> dict[str, int]:
    """Node to its step, while nodes train alone; empty where there is nothing of the kind."""
    try:
        with open_file(out / LIVE_FILE) as file:
            found = parse_json(file.read(_MOST_BYTES))
        return {str(node): int(step) for node, step in found.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def live_text(steps: Mapping[str, int]) -> str:
    """How far the nodes are, the slowest first: `n3 at step 40, n1 at 118`."""
    ordered = sorted(steps.items(), key=lambda one: one[1])
    shown = [f"{node} at {step:,}" for node, step in ordered[:_FEW]]
    more = f" … {ordered[-1][0]} at {ordered[-1][1]:,}" if len(ordered) > _FEW else ""
    return f"{', '.join(shown)}{more}"


def failed(records: Sequence[NodeRecord]) -> tuple[NodeRecord, ...]:
    """The nodes that did not end well: the lost ones first, then those that never began, then exit codes."""
    found = [one for one in records if one.ended in ("lost", "not_started") or (one.ended == "exited" and one.rc)]
    return tuple(sorted(found, key=lambda one: _WORST_FIRST.index(one.ended)))


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
    why = _job_end(allocation)
    return found if why is None else ("interrupted", why)


def _job_end(allocation: Allocation) -> str | None:
    try:
        state = engine_of(allocation.engine).state(allocation)
    except Unable:
        return None
    if state.job not in ("ended", "pending") or re.search(r"NODE_FAIL|NodeDown|NodeFail", state.why):
        return None
    return f"job {allocation.job} of its nodes has ended ({state.why})"


def _by_records(out: Path, *, asked: bool) -> tuple[Reason, str] | None:
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
    lost = ", ".join(one.node for one in bad if one.ended == "lost")
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
