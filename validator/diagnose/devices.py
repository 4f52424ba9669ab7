"""Which device, link or disk of the machine is at fault: what phases that measure it found, with what to do.

The judged criteria say that something failed; here it becomes a cause with a next step. Where another program used the
GPU, `busy-gpu` says so, and no rate accuses the device.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from validator.diagnose.rule import Diagnosis, PhaseFacts, RunFacts, Severity, evidence, rule
from validator.model.bounds import ALL_REDUCE, BACK, COPY, GEMM, HOST, PEER
from validator.model.burnin import BurninRecord
from validator.model.machine_phases import StoragePhase
from validator.model.network import AS_HOST, NetworkRecord, Pair, is_on
from validator.model.repeated_phases import DeterminismPhase
from validator.model.verdict import Verdict
from validator.text import format_number, listed, plural

_CPU = "ps -eo pid,psr,pcpu,args --sort=-pcpu"
_TICKET = "cat {run}/ticket.txt"


def _failed(phase: PhaseFacts, *names: str) -> Iterator[Verdict]:
    """Criteria of these names that failed."""
    ids = {f"{phase.record.phase.id}.{name}" for name in names}
    yield from (
        one for one in (phase.report.criteria if phase.report else ()) if one.status == "FAIL" and one.id in ids
    )


def _severity(verdict: Verdict) -> Severity:
    """What the decision does not depend on is worth knowing: workers of a CPU share its cores by right."""
    return "warning" if verdict.required else "info"


@rule("device-corrupts", "warning", of="phase")
def device_corrupts(phase: PhaseFacts) -> Iterator[Diagnosis]:
    """A GPU gave wrong answers to work whose answers are known: it corrupts a training run silently."""
    for run in phase.runs:
        own = run.evidence.own
        if isinstance(own, BurninRecord):
            bad = [one for one in own.devices if one.wrong]
            names = [one.label for one in bad]
            said = "; ".join(f"{one.label} gave {plural(one.wrong, 'wrong answer')}, first {one.seen}" for one in bad)
            because = [evidence(f"{one.label}: {one.identity or 'a share of the cores'}", one.source) for one in bad]
        elif isinstance(own, NetworkRecord):
            ranks = {rank: own.device(rank) for rank in own.wrong}
            names = list(ranks.values())
            said = "; ".join(
                f"{plural(own.wrong[rank], 'wrong element')} sent by {name}" for rank, name in ranks.items()
            )
            because = [evidence(said, own.source)]
        else:
            continue
        if names:
            yield Diagnosis(
                f"{said}.",
                because=because,
                next_step=f"Do not train on this machine. Have {listed(names)} replaced: ticket.txt, in the folder of "
                "the results, is the text for the provider. Then accept the machine again.",
                command=_TICKET,
                run=run,
            )


@rule("device-slow", "warning", of="phase")
def device_slow(phase: PhaseFacts) -> Iterator[Diagnosis]:
    """A GPU is slower than the others, than its model is known to be, or than it was at the start, and no other program
    was seen to use it."""
    for verdict in _failed(phase, "even", "steady", "rate", GEMM, COPY):
        if any(one.computes is not False for run in phase.runs for one in run.evidence.other_programs):
            return
        device = verdict.evidence[0].text.partition(":")[0] if verdict.evidence else ""
        index = device.removeprefix("GPU ") if device.startswith("GPU ") else ""
        yield Diagnosis(
            verdict.message,
            severity=_severity(verdict),
            because=verdict.evidence,
            next_step=f"Look for what holds {device if index else 'the device'} back: temperature, power limit and "
            "clocks (nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER,CLOCK), and programs of other containers. Where "
            "nothing is found, have it replaced: ticket.txt is the text for the provider.",
            command=f"nvidia-smi{f' -i {index}' if index else ''} -q -d PERFORMANCE,TEMPERATURE,POWER,CLOCK",
        )
        return  # the same device by another measure is the same fact


@rule("throttled", "warning", of="phase")
def throttled(phase: PhaseFacts) -> Iterator[Diagnosis]:
    """A GPU slowed itself down at full load."""
    for verdict in _failed(phase, "cool"):
        yield Diagnosis(
            f"{verdict.message.partition('. ')[0]}.",
            severity=_severity(verdict),
            because=verdict.evidence,
            next_step="Check cooling, power limit and neighbors (nvidia-smi -q -d PERFORMANCE,TEMPERATURE), then "
            "repeat; a rented machine is the provider's to cool: ticket.txt.",
            command="nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER",
        )


@rule("rank-late", "warning", of="phase")
def rank_late(phase: PhaseFacts) -> Iterator[Diagnosis]:
    """A rank begins each collective later than the others, which wait for it in every step."""
    for verdict in _failed(phase, "late"):
        for run in phase.runs:
            own = run.evidence.own
            if not isinstance(own, NetworkRecord) or own.latest is None:
                continue
            late_s, _, rank = own.latest
            device = own.device(rank)
            yield Diagnosis(
                f"{device} begins collectives {format_number(1e3 * late_s)} ms after the first, in the median.",
                severity=_severity(verdict),
                because=verdict.evidence,
                next_step=f"Look for programs on the cores of {device}'s process ({_CPU}) or on its GPU (nvidia-smi), "
                "for processes pinned to the same cores, and for a CPU limit of the container; end them, and measure "
                "again. Where nothing else runs, ticket.txt is the text for the provider.",
                command=_CPU,
                run=run,
            )


@rule("devices-differ", "warning", of="phase")
def devices_differ(phase: PhaseFacts) -> Iterator[Diagnosis]:
    """The same steps gave other losses on one GPU than on another, or than before on the same one."""
    if not isinstance(phase.record.phase, DeterminismPhase):
        return
    for verdict in _failed(phase, "same"):
        named = [one.text for one in verdict.evidence]
        known = len(named) < len({run.spec.arm for run in phase.runs})
        yield Diagnosis(
            verdict.message,
            confidence="high" if known else "medium",
            because=verdict.evidence,
            next_step=f"Do not train on {listed(named)}. Let a burn-in of half an hour, whose answers are known to the "
            f"last bit, show {'whether it gives wrong answers' if known else 'which of them is wrong'}, and have that "
            "GPU replaced. Where it finds nothing, look for an operation of the trainer that is not deterministic.",
            command="validator run acceptance --only burnin --set burnin.lasts=30m",
        )


_LINKS = (HOST, BACK, PEER, ALL_REDUCE, "collective.all_reduce_bus_gb_s")


@rule("path-through-host", "warning", of="phase")
def path_through_host(phase: PhaseFacts) -> Iterator[Diagnosis]:
    """Collectives take a slower path than there is: through the host's memory where NVLink joins two GPUs, or over
    sockets where InfiniBand ports are active."""
    failed = list(_failed(phase, "paths"))
    for run in phase.runs:
        own = run.evidence.own
        if not isinstance(own, NetworkRecord):
            continue
        for verdict in failed:
            yield Diagnosis(
                verdict.message, because=verdict.evidence, next_step=_free_path(own), command=_PEERS, run=run
            )
        detours = [one for one in own.transports.pairs if one.path in ("host", "network")]
        if not failed and detours and (settings := own.transports.forbidding(detours[0].path)):
            yield _by_choice(own, detours, settings, run)
        yield from _sockets(own, run)


_PEERS = "nvidia-smi topo -p2p r"


def _free_path(own: NetworkRecord) -> str:
    """What to do about GPUs that NVLink joins and that do not use it."""
    pair = (own.forced or own.outpaced)[0]
    settings = own.transports.forbidding(pair.path)
    if settings:
        return (
            f"Unset {listed(list(settings))} (runbook, shell, container, /etc/nccl.conf, ~/.nccl.conf), and run this "
            "phase again: trainers inherit it. Where nothing sets it any more, ticket.txt is the text for the provider."
        )
    return (
        "See whether the driver lets the GPUs reach each other (nvidia-smi topo -p2p r: OK between all; "
        "nvidia-smi topo -m: NV#), whether an IOMMU that translates or ACS is on, and whether the container has all "
        "GPUs and a shared memory of its own (--ipc=host). Where they are as they should be, ticket.txt is the text "
        "for the provider."
    )


def _by_choice(own: NetworkRecord, detours: list[Pair], settings: dict[str, str], run: RunFacts) -> Diagnosis:
    """GPUs that PCIe alone joins, which a variable keeps apart: nobody has measured what they lose."""
    named = listed([f"{name}={value}" for name, value in settings.items()])
    pairs = {" and ".join(map(own.device, one.ranks)): one for one in detours}
    return Diagnosis(
        f"{listed(list(pairs), most=3)} do not reach each other directly, because of {named}.",
        severity="info",
        because=[
            evidence(f"{' and '.join(map(own.device, one.ranks))}: {', '.join(one.by)}", one.source) for one in detours
        ],
        next_step=f"Measure without {listed(list(settings))}: over PCIe the direct path is often the faster one.",
        command=_PEERS,
        run=run,
    )


def _sockets(own: NetworkRecord, run: RunFacts) -> Iterator[Diagnosis]:
    """NCCL between machines over sockets, while ports that need no kernel are active."""
    if not any(name.startswith("NET/Socket/") for name in own.transports.between):
        return
    ports = sorted(
        {name for facts in (run.machine, *(one.facts for one in run.evidence.nodes)) for name in _active(facts)}
    )
    if not ports:
        return
    set_so = [
        f"{name}={value}"
        for name, value in own.transports.settings.items()
        if (name == "NCCL_IB_DISABLE" and is_on(value)) or name in ("NCCL_NET", "NCCL_IB_HCA", "NCCL_NET_PLUGIN")
    ]
    yield Diagnosis(
        f"Collectives between machines go over sockets (NET/Socket), though {listed(ports)} "
        f"{'is' if len(ports) == 1 else 'are'} active{f'; set: {listed(set_so)}' if set_so else ''}.",
        severity="info",
        because=[evidence(f"between machines: {', '.join(own.transports.between)}", own.source)],
        next_step="Let NCCL use the ports: unset NCCL_IB_DISABLE and NCCL_NET, give the container /dev/infiniband and "
        "libibverbs, and see with NCCL_DEBUG=INFO why NET/IB finds no device.",
        command="ibstat",
        run=run,
    )


def _active(facts: Mapping[str, Any]) -> Iterator[str]:
    """The InfiniBand and RoCE ports of a snapshot through which data can pass."""
    paths = facts.get("paths")
    ports = paths.get("ports") if isinstance(paths, Mapping) else None
    for name, port in ports.items() if isinstance(ports, Mapping) else ():
        if isinstance(port, Mapping) and port.get("state") == "ACTIVE" and port.get("kind") in ("InfiniBand", "RoCE"):
            yield str(name)


@rule("link-slow", "warning", of="phase")
def link_slow(phase: PhaseFacts) -> Iterator[Diagnosis]:
    """A path between GPUs, or to the host, carries less than is known of such a machine."""
    if any(_failed(phase, "paths")):
        return  # which says why
    missed = list(_failed(phase, *_LINKS))
    if not missed:
        return
    forced = next((text for run in phase.runs if (text := _through_host(run))), "")
    yield Diagnosis(
        f"{forced or missed[0].message}",
        severity="warning" if any(one.required for one in missed) else "info",
        because=[one for verdict in missed for one in verdict.evidence],
        next_step="Look at the links (nvidia-smi topo -m: NV# between all GPUs; nvidia-smi nvlink -s: all active) and "
        "for settings that forbid them (NCCL_P2P_DISABLE, NCCL_P2P_LEVEL; ACS or an IOMMU of the host). Where they are "
        "as they should be, ticket.txt is the text for the provider.",
        command="nvidia-smi topo -m",
    )


def _through_host(run: RunFacts) -> str:
    """Where GPUs with NVLink copy to each other no faster than to the host: a sentence, else nothing."""
    peer, host = run.scalar(PEER), max(filter(None, (run.scalar(HOST), run.scalar(BACK))), default=None)
    if peer is None or host is None or peer > AS_HOST * host:
        return ""
    return (
        f"GPUs copy to each other at {format_number(peer)} GB/s, no faster than to the host "
        f"({format_number(host)} GB/s): the path between them goes over PCIe or through the host's memory, not NVLink."
    )


@rule("disk-slow", "warning", of="phase")
def disk_slow(phase: PhaseFacts) -> Iterator[Diagnosis]:
    """The disk is slower than the runbook asks for."""
    if not isinstance(phase.record.phase, StoragePhase) or phase.report is None:
        return
    missed = [one for one in phase.report.criteria if one.status == "FAIL" and one.text.startswith("storage.")]
    if missed:
        yield Diagnosis(
            f"{missed[0].text} does not hold: {missed[0].message}",
            severity=_severity(missed[0]),
            because=[part for one in missed for part in one.evidence],
            next_step="Look for other writers (iostat -x 5, iotop) and for a limit (io.max of the container's cgroup, "
            "the provider's quota); or write results and checkpoints to another disk (path of this phase).",
            command="cat /sys/fs/cgroup/io.max /proc/pressure/io",
        )
