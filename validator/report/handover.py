"""What is handed over about nodes that are not good: a list of the good ones, options and commands, a ticket's text.
The commands are printed and never run: whether a node is drained is for its owner to decide.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence

from validator.model.fleet import Fleet, FleetNode, FleetOutlier
from validator.report.page import LabeledValue
from validator.runs.folder import HAND_OVER
from validator.text import format_change, format_number, one_line

GOOD_NODES, TICKET = HAND_OVER


def good_nodes(fleet: Fleet) -> str:
    """A name a line, the fastest first; empty while rounds of the search are missing, since nothing is vetted then."""
    return "".join(f"{name}\n" for name in fleet.good) if fleet.complete else ""


def excluded(fleet: Fleet) -> tuple[str, ...]:
    """Nodes that a job should leave out: slow, lost or not measured, and good ones that lack a good link to the others.

    A node about which nothing is decided is not among them, and not among the good ones either.
    """
    good = set(fleet.good)
    return tuple(
        one.name
        for one in fleet.nodes
        if one.state in ("slow", "lost", "unmeasured") or (one.state == "good" and one.name not in good)
    )


def exclude_line(fleet: Fleet) -> str:
    """The option of `sbatch` and `srun`; empty where no node is left out."""
    names = ",".join(excluded(fleet))
    return f"--exclude={shlex.quote(names)}" if names else ""


def drain_commands(fleet: Fleet, run_id: str) -> str:
    """A line for each node that is confirmed to be slow, or lost: what an administrator of Slurm would type."""
    lines = []
    for node in fleet.nodes:
        if node.state in ("slow", "lost"):
            why = "; ".join(_brief(one) for one in _confirmed(fleet, node)) or "node lost"
            reason = re.sub(r"[\"'`$\\\n=]+", " ", f"validator {run_id}: {why}")
            lines.append(
                f"scontrol update NodeName={shlex.quote(node.name)} State=DRAIN Reason={shlex.quote(reason)}\n"
            )
    return "".join(lines)


def ticket(fleet: Fleet, run_id: str, recognized: Sequence[str] = ()) -> str:
    """What a provider needs to find the hardware: names, serial numbers and UUIDs, and what was measured.

    `recognized` are causes of the phases that failed, from `recognized_causes`.
    Only what is confirmed, or lost, is reported; empty where there is none of it.
    """
    parts = [part for node in fleet.nodes if (part := _of_node(fleet, node))]
    parts += [_of_link(fleet, one) for one in fleet.outliers if one.outcome == "confirmed" and one.code == "slow-link"]
    if not parts:
        return ""
    nodes, most = len(fleet.nodes), f"{100 * fleet.min_effect:g} %"
    head = (
        f"Nodes that do not perform as the others (validation {run_id})\n\n"
        f"{nodes} nodes were measured. What is listed as slow was so in a first measurement, and by at least {most} in "
        "a second one, side by side with nodes that are known to be good, or is below a public bound. Effects are "
        "relative to those; the interval has a confidence of at least 95 %, adjusted for the number of suspects.\n"
    )
    return "\n".join([head, *parts, *recognized])


def hand_over(fleet: Fleet, run_id: str, recognized: Sequence[str] = ()) -> tuple[LabeledValue, ...]:
    """Each text with its heading; none that is empty, and no option of Slurm without Slurm."""
    slurm = fleet.engine == "slurm"
    found = (
        LabeledValue(f"good nodes, also in {GOOD_NODES}", good_nodes(fleet)),
        LabeledValue("option for the next job", exclude_line(fleet) if slurm else ""),
        LabeledValue("drain, for an administrator; not run", drain_commands(fleet, run_id) if slurm else ""),
        LabeledValue(f"text for the provider, also in {TICKET}", ticket(fleet, run_id, recognized)),
    )
    return tuple(
        one._replace(value="\n".join(map(one_line, one.value.splitlines()))) for one in found if one.value.strip()
    )


def _confirmed(fleet: Fleet, node: FleetNode) -> Iterator[FleetOutlier]:
    for one in fleet.outliers:
        if one.outcome == "confirmed" and one.subject.nodes == (node.name,):
            yield one


def _brief(one: FleetOutlier) -> str:
    """`slow-node gemm GPU 3 -5.1 %`."""
    gpu = "" if one.subject.gpu is None else f" GPU {one.subject.gpu}"
    return f"{one.code} {one.measure}{gpu} {format_change(one.effect)}"


def _of_node(fleet: Fleet, node: FleetNode) -> str:
    found = list(_confirmed(fleet, node))
    if not found and node.state != "lost":
        return ""
    lines = [f"Node {_named(node)}"]
    if node.state == "lost":
        lines.append(f"  lost during the validation: {one_line(node.why, limit=300)}")
    lines += [f"  {_measured(one)}" for one in found]
    slow = {one.subject.gpu for one in found if one.subject.gpu is not None}
    for gpu in node.gpus:
        if not slow or gpu.index in slow:
            serial = f", serial number {gpu.serial}" if gpu.serial else ""
            lines.append(f"  GPU {gpu.index}: {gpu.name or 'unknown model'}, UUID {gpu.uuid or 'not reported'}{serial}")
    return "\n".join(lines) + "\n"


def _of_link(fleet: Fleet, one: FleetOutlier) -> str:
    ends = [node for node in fleet.nodes if node.name in one.subject.nodes]
    lines = [f"Link between {' and '.join(map(_named, ends))}", f"  {_measured(one)}"]
    if all(node.state == "good" for node in ends):
        lines.append("  Both nodes are as fast as the others with other partners.")
    return "\n".join(lines) + "\n"


def _named(node: FleetNode) -> str:
    return f"{node.name} (host {node.host})" if node.host and node.host != node.name else node.name


def _measured(one: FleetOutlier) -> str:
    """`gemm, GPU 3: 5.1 % slower, interval -6.0 % to -4.2 %, p = 0.001, 16 repeats, confirmed by swap`."""
    gpu = "" if one.subject.gpu is None else f", GPU {one.subject.gpu}"
    low, high = format_change(one.low), format_change(one.high)
    effect = f"{one.measure}{gpu}: {format_change(one.effect)}, interval {low} to {high}"
    if one.by == "bound":
        return f"{effect}; its best reading is below the public bound of its model, which another node reaches"
    how = "confirmed by swap of partners" if one.by == "swap" else "confirmed by measuring it again"
    often = f", slow in {100 * one.often:.0f} % of them" if one.intermittent else ""
    return f"{effect}, p = {format_number(one.p_value, digits=2)}, {one.repeats} repeats{often}; {how}"
