"""Preflight's checks of the GPUs: as declared, idle, healthy.

Bounds: NVIDIA's guidance on Xid, ECC and row remapping; practice of DCGM and azurehpc-health-checks for idle cards.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from validator.model.runbook import Hardware
from validator.model.verdict import Check
from validator.system.checks import check, recorded
from validator.system.gpu_facts import GpuFacts, GpuReport
from validator.system.gpu_rules import RULES, declared_rules, gpu_check, listed_gpus, unknown
from validator.system.nvml import MIB
from validator.system.xid import XidEvent, gravest
from validator.text import format_size

IDLE_MEMORY_MIB = 15.0
"""Memory that an idle card may have in use, besides what the driver reserves for itself."""

UNSPLIT_MEMORY_MIB = 1024.0
"""The same where the driver does not report its own share."""


def gpu_checks(hardware: Hardware, report: GpuReport, xids: tuple[XidEvent, ...] | None) -> Iterator[Check]:
    """All checks of the GPUs that the runbook uses: the first `hardware.gpus` of the visible ones."""
    if hardware.gpus == 0:
        return
    found = len(report.gpus)
    why = report.why_none or "CUDA_VISIBLE_DEVICES or the machine has no more"
    yield gpu_check(
        "gpus",
        "GPUs",
        ok=found >= hardware.gpus,
        observed=str(found),
        expected=f"at least {hardware.gpus}",
        good=f"{found} GPU{'s are' if found != 1 else ' is'} visible.",
        bad=f"{found} of {hardware.gpus} GPUs can be used: {why}; use a machine that has them.",
    )
    used = report.gpus[: hardware.gpus]
    if not used:
        return
    yield _gpu_name(hardware, used)
    if hardware.gpu_memory is not None:
        yield _memory_size(hardware.gpu_memory, used)
    if hardware.interconnect != "any" and len(used) > 1:
        yield _interconnect(hardware.interconnect, used)
    yield _processes(used)
    yield _idle_memory(used)
    for rule in (*RULES, *declared_rules(hardware)):
        yield rule.judge(used)
    if len(used) > 1:
        yield _like_links(used)
    yield _mig(used)
    yield from _xids(xids)


def _gpu_name(hardware: Hardware, gpus: Sequence[GpuFacts]) -> Check:
    names = ", ".join(dict.fromkeys(gpu.name for gpu in gpus))
    if hardware.name is None:
        return recorded("gpu_name", "GPU name", observed=names, where="gpus")
    wrong = [gpu for gpu in gpus if not hardware.fits(gpu.name)]
    return gpu_check(
        "gpu_name",
        "GPU name",
        ok=not wrong,
        observed=names,
        expected=hardware.name,
        good="Every GPU is of the declared kind.",
        bad=f"{listed_gpus(wrong)} {'is' if len(wrong) == 1 else 'are'} {names}, which {hardware.name!r} "
        "does not match; use the declared machine, or a runbook for this one.",
    )


def _memory_size(wanted: int, gpus: Sequence[GpuFacts]) -> Check:
    smallest = min((gpu.memory_total_mib for gpu in gpus if gpu.memory_total_mib is not None), default=None)
    observed = "not known" if smallest is None else format_size(smallest * MIB)
    return gpu_check(
        "gpu_memory",
        "GPU memory",
        ok=smallest is not None and smallest * MIB >= wanted,
        observed=observed,
        expected=f"at least {format_size(wanted)}",
        good="Every GPU has the declared memory.",
        bad=f"A GPU has {observed}, less than {format_size(wanted)}; use the declared machine.",
    )


def _interconnect(wanted: str, gpus: Sequence[GpuFacts]) -> Check:
    counts = [gpu.nvlinks_active or 0 for gpu in gpus]
    found = "nvlink" if all(counts) else "pcie"
    return gpu_check(
        "gpu_interconnect",
        "GPU interconnect",
        ok=found == wanted,
        observed=f"{min(counts)} NVLinks up on each GPU" if found == "nvlink" else "PCIe, no NVLink on every GPU",
        expected=wanted,
        good="The GPU interconnect is as declared.",
        bad=f"The GPU interconnect is {found}, not {wanted}, so the runbook's bounds do not apply; "
        f"declare interconnect: {found}, or use the declared machine.",
    )


def _processes(gpus: Sequence[GpuFacts]) -> Check:
    """Preflight holds no GPU itself, so every process on one is another program's."""
    found = "; ".join(f"GPU {gpu.index}: pid {p.pid} ({p.name})" for gpu in gpus for p in gpu.processes)
    return gpu_check(
        "gpu_processes",
        "No other process",
        ok=not found,
        observed=found or "none",
        expected="none",
        good="No other program uses the GPUs.",
        bad=f"Other programs use the GPUs ({found}), so memory and time are shared with them; end them, or choose "
        f"other GPUs by CUDA_VISIBLE_DEVICES.",
    )


def _idle_memory(gpus: Sequence[GpuFacts]) -> Check:
    used = {gpu: gpu.memory_used_mib for gpu in gpus if gpu.memory_used_mib is not None}
    if not used:
        return unknown("gpu_idle_memory", "Idle GPU memory", "memory in use")
    limits = {gpu: UNSPLIT_MEMORY_MIB if gpu.memory_reserved_mib is None else IDLE_MEMORY_MIB for gpu in used}
    above = [gpu for gpu in used if used[gpu] > limits[gpu]]
    most = max(used.values())
    return gpu_check(
        "gpu_idle_memory",
        "Idle GPU memory",
        ok=not above,
        observed=f"{most:.0f} MiB in use at most",
        expected=f"at most {max(limits.values()):.0f} MiB",
        good="The GPUs' memory is free.",
        bad=f"{listed_gpus(above)} holds up to {most:.0f} MiB though nothing should run; find the owner, or reset the "
        f"GPU.",
    )


def _like_links(gpus: Sequence[GpuFacts]) -> Check:
    """One card with fewer links than its neighbours takes longer for its share of a collective, and all wait for it."""
    counts = [gpu.nvlinks_active for gpu in gpus]
    known = [count for count in counts if count is not None]
    most = max(known, default=0)
    if not most:
        return unknown("gpu_nvlinks_alike", "NVLinks of each GPU", "NVLink", absent=True)
    odd = [gpu for gpu in gpus if (gpu.nvlinks_active or 0) < most]
    return gpu_check(
        "gpu_nvlinks_alike",
        "NVLinks of each GPU",
        ok=not odd,
        required=any(gpu.fabric is not None for gpu in gpus),  # bridges may join some cards alone
        observed=f"{', '.join(str(count or 0) for count in counts)} up",
        expected="the same number on each",
        good=f"Every GPU has {most} NVLinks up.",
        bad=f"{listed_gpus(odd)} has fewer NVLinks up than the others: every all-reduce waits for it; reset the GPUs, "
        "and have the bridge or the board looked at if that stays.",
    )


def _mig(gpus: Sequence[GpuFacts]) -> Check:
    split = [gpu for gpu in gpus if gpu.mig]
    return gpu_check(
        "gpu_mig",
        "Not partitioned",
        ok=not split,
        required=False,
        observed=listed_gpus(split) or "none partitioned",
        expected="none partitioned",
        good="The GPUs are not partitioned.",
        bad=f"{listed_gpus(split)} is partitioned (MIG), so a run gets a share of it and bounds for whole cards do "
        f"not apply; turn it off: nvidia-smi -i N -mig 0.",
    )


def _xids(events: tuple[XidEvent, ...] | None) -> Iterator[Check]:
    """Driver events since the machine started: those that fail, then those that only warn."""
    if events is None:
        message = "The kernel log may not be read here, so past driver events (Xid) are not known; read it as root."
        yield check("gpu_xid", "Xid events", ok=None, required=False, observed="not known", bad=message)
        return
    grave = [one for one in events if one.known.severity == "fails"]
    milder = [one for one in events if one.known.severity != "fails"]
    latest = f"The latest driver event is {events[-1]}." if events else "No driver event is in the kernel log."
    cost = "steps after it may fail or compute nonsense"
    yield check(
        "gpu_xid",
        "Xid events",
        ok=not grave,
        observed=_counted(grave) if grave else _counted(events),
        expected="none that asks for a reset or more",
        good=latest,
        bad=f"{gravest(grave)}: {cost}." if grave else "",
    )
    warned = [one for one in milder if one.known.severity == "warns"]
    yield check(
        "gpu_driver_events",
        "Milder driver events",
        ok=not warned,
        required=False,
        observed=_counted(milder),
        expected="none that ended a program",
        good="No driver event ended a program since the machine started.",
        bad=f"{gravest(warned)}: whoever ran there lost the work since the last checkpoint." if warned else "",
    )


def _counted(events: Sequence[XidEvent]) -> str:
    counts = Counter(sorted(event.code for event in events))
    return ", ".join(f"Xid {code} × {count}" for code, count in counts.items()) or "none"
