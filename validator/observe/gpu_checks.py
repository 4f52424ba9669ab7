"""Preflight's checks of the GPUs: as declared, idle, healthy.

Bounds: NVIDIA's guidance on Xid, ECC and row remapping; DCGM's and azurehpc-health-checks' practice for idle cards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from validator.model.runbook import Hardware
from validator.model.units import format_size
from validator.model.verdict import Check
from validator.observe.checks import check
from validator.observe.nvml import MIB, GpuFacts, GpuReport
from validator.observe.xid import REMEDIES, XidEvent

__all__ = ["IDLE_MEMORY_MIB", "SRAM_REPLACE_ABOVE", "gpu_checks"]

IDLE_MEMORY_MIB = 15.0
"""Memory that an idle card may have in use, besides what the driver reserves for itself."""

UNSPLIT_MEMORY_MIB = 1024.0
"""The same where the driver does not tell its own share apart."""

SRAM_REPLACE_ABOVE = 4
"""Uncorrectable SRAM errors over a card's life above which it is to be replaced."""

_BAD_CLOCKS = 0x8 | 0x20 | 0x40 | 0x80
_RESET_OR_WORSE = (48, 64, 79, 95, 119, 120)


def gpu_checks(hardware: Hardware, report: GpuReport, xids: tuple[XidEvent, ...] | None) -> Iterator[Check]:
    """All checks of the GPUs that the runbook uses: the first `hardware.gpus` of the visible ones."""
    if hardware.gpus == 0:
        return
    found = len(report.gpus)
    ok = found >= hardware.gpus
    message = f"{found} GPU{'s are' if found != 1 else ' is'} visible."
    if not ok:
        why = report.why_none or "CUDA_VISIBLE_DEVICES or the machine has no more"
        message = f"{found} of {hardware.gpus} GPUs can be used: {why}; use a machine that has them."
    yield check(
        "gpus", "GPUs", ok=ok, observed=str(found), expected=f"at least {hardware.gpus}", message=message, where="gpus"
    )
    used = report.gpus[: hardware.gpus]
    if not used:
        return
    yield from _declared(hardware, used)
    for each in (_processes, _idle_memory, _ecc, _sram, _remapped, _throttle, _clocks, _pcie, _mig):
        yield each(used)
    yield _xid(xids)


def _declared(hardware: Hardware, gpus: Sequence[GpuFacts]) -> Iterator[Check]:
    names = ", ".join(dict.fromkeys(gpu.name for gpu in gpus))
    if hardware.name is not None:
        wrong = [gpu for gpu in gpus if not hardware.fits(gpu.name)]
        message = "Every GPU is of the declared kind."
        if wrong:
            message = (
                f"{_listed(wrong)} {'is' if len(wrong) == 1 else 'are'} {names}, which {hardware.name!r} "
                "does not match; use the declared machine, or a runbook for this one."
            )
        yield check(
            "gpu_name", "GPU name", ok=not wrong, observed=names, expected=hardware.name, message=message, where="gpus"
        )
    else:
        yield check("gpu_name", "GPU name", ok=True, required=False, observed=names, where="gpus")
    if hardware.gpu_memory is not None:
        yield _memory_size(hardware.gpu_memory, gpus)
    if hardware.interconnect != "any" and len(gpus) > 1:
        yield _interconnect(hardware.interconnect, gpus)


def _memory_size(wanted: int, gpus: Sequence[GpuFacts]) -> Check:
    least = min((gpu.memory_total_mib for gpu in gpus if gpu.memory_total_mib is not None), default=None)
    ok = least is not None and least * MIB >= wanted
    observed = "not known" if least is None else format_size(least * MIB)
    message = "Every GPU has the declared memory."
    if not ok:
        message = f"A GPU has {observed}, less than {format_size(wanted)}; use the declared machine."
    return check(
        "gpu_memory",
        "GPU memory",
        ok=ok,
        observed=observed,
        expected=f"at least {format_size(wanted)}",
        message=message,
        where="gpus",
    )


def _interconnect(wanted: str, gpus: Sequence[GpuFacts]) -> Check:
    counts = [gpu.nvlinks_active or 0 for gpu in gpus]
    found = "nvlink" if all(counts) else "pcie"
    observed = f"{min(counts)} NVLinks up on each GPU" if found == "nvlink" else "PCIe, no NVLink on every GPU"
    message = "The GPUs are linked as declared."
    if found != wanted:
        message = (
            f"The GPUs are linked by {found}, not {wanted}, so the runbook's bounds do not fit; "
            f"declare interconnect: {found}, or use the declared machine."
        )
    return check(
        "gpu_interconnect",
        "GPU interconnect",
        ok=found == wanted,
        observed=observed,
        expected=wanted,
        message=message,
        where="gpus",
    )


def _listed(gpus: Sequence[GpuFacts]) -> str:
    return ", ".join(f"GPU {gpu.index}" for gpu in gpus)


def _processes(gpus: Sequence[GpuFacts]) -> Check:
    """Preflight holds no GPU itself, so every process on one is foreign."""
    found = [f"GPU {gpu.index}: pid {p.pid} ({p.name})" for gpu in gpus for p in gpu.processes]
    message = "No other program uses the GPUs."
    if found:
        message = (
            f"Other programs use the GPUs ({'; '.join(found)}); end them, or choose other GPUs by CUDA_VISIBLE_DEVICES."
        )
    return check(
        "gpu_processes",
        "No foreign process",
        ok=not found,
        observed="; ".join(found) or "none",
        expected="none",
        message=message,
        where="gpus",
    )


def _idle_memory(gpus: Sequence[GpuFacts]) -> Check:
    known = [gpu for gpu in gpus if gpu.memory_used_mib is not None]
    if not known:
        return _unknown("gpu_idle_memory", "Idle GPU memory", "memory in use")
    above = [
        gpu
        for gpu in known
        if (gpu.memory_used_mib or 0) > (UNSPLIT_MEMORY_MIB if gpu.memory_reserved_mib is None else IDLE_MEMORY_MIB)
    ]
    worst = max(gpu.memory_used_mib or 0.0 for gpu in known)
    limit = UNSPLIT_MEMORY_MIB if any(gpu.memory_reserved_mib is None for gpu in known) else IDLE_MEMORY_MIB
    message = "The GPUs' memory is free."
    if above:
        message = (
            f"{_listed(above)} holds up to {worst:.0f} MiB though nothing should run; find the owner, or reset the GPU."
        )
    return check(
        "gpu_idle_memory",
        "Idle GPU memory",
        ok=not above,
        observed=f"{worst:.0f} MiB in use at most",
        expected=f"at most {limit:.0f} MiB",
        message=message,
        where="gpus",
    )


def _unknown(check_id: str, title: str, what: str) -> Check:
    message = f"The driver does not tell the {what} of these GPUs."
    return check(check_id, title, ok=None, required=False, observed="not known", message=message, where="gpus")


def _health(
    check_id: str,
    title: str,
    gpus: Sequence[GpuFacts],
    *,
    value: Callable[[GpuFacts], int | None],
    limit: int,
    good: str,
    bad: str,
) -> Check:
    known = {gpu: count for gpu in gpus if (count := value(gpu)) is not None}
    if not known:
        return _unknown(check_id, title, title.lower())
    above = [gpu for gpu, count in known.items() if count > limit]
    observed = ", ".join(f"GPU {gpu.index}: {count}" for gpu, count in known.items())
    return check(
        check_id,
        title,
        ok=not above,
        observed=observed,
        expected=f"at most {limit}" if limit else "0",
        message=f"{_listed(above)} {bad}" if above else good,
        where="gpus",
    )


def _ecc(gpus: Sequence[GpuFacts]) -> Check:
    return _health(
        "gpu_ecc",
        "Uncorrectable ECC errors",
        gpus,
        value=lambda gpu: gpu.ecc.volatile_uncorrected if gpu.ecc else None,
        limit=0,
        good="No uncorrectable memory error since the driver was loaded.",
        bad="had uncorrectable memory errors since the driver was loaded: results cannot be trusted; reset it.",
    )


def _sram(gpus: Sequence[GpuFacts]) -> Check:
    return _health(
        "gpu_ecc_sram",
        "Uncorrectable SRAM ECC errors",
        gpus,
        value=lambda gpu: gpu.ecc.sram_uncorrectable_aggregate if gpu.ecc else None,
        limit=SRAM_REPLACE_ABOVE,
        good="The SRAM of every GPU is sound.",
        bad="had so many uncorrectable SRAM errors that it is to be replaced.",
    )


def _remapped(gpus: Sequence[GpuFacts]) -> Check:
    return _health(
        "gpu_remapped_rows",
        "Remapped rows, pending or failed",
        gpus,
        value=lambda gpu: None if gpu.remapped is None else int(gpu.remapped.pending) + int(gpu.remapped.failed),
        limit=0,
        good="No memory row waits for a replacement.",
        bad="has a memory row whose replacement is pending or failed; reset it, and have it replaced if that stays.",
    )


def _throttle(gpus: Sequence[GpuFacts]) -> Check:
    known = [gpu for gpu in gpus if gpu.throttle_mask is not None]
    if not known:
        return _unknown("gpu_throttle", "Clock slowdown", "clock slowdown reasons")
    bad = [gpu for gpu in known if (gpu.throttle_mask or 0) & _BAD_CLOCKS]
    observed = "; ".join(f"GPU {gpu.index}: {', '.join(gpu.throttle_reasons) or 'none'}" for gpu in known)
    message = "No thermal or hardware slowdown."
    if bad:
        message = f"{_listed(bad)} is slowed down by heat or hardware; check cooling and power before measuring."
    return check(
        "gpu_throttle",
        "Clock slowdown",
        ok=not bad,
        observed=observed,
        expected="no thermal or hardware slowdown",
        message=message,
        where="gpus",
    )


def _clocks(gpus: Sequence[GpuFacts]) -> Check:
    """Clocks or power that somebody has lowered: legitimate, and worth knowing before a rate is compared."""
    lowered = [
        gpu
        for gpu in gpus
        if (gpu.sm_clock_application_mhz or 0)
        and (gpu.sm_clock_application_mhz or 0) < 0.8 * (gpu.sm_clock_max_mhz or 0)
    ]
    capped = [gpu for gpu in gpus if (gpu.power_limit_w or 0) < 0.99 * (gpu.power_limit_default_w or 0)]
    wrong = [gpu for gpu in gpus if gpu in lowered or gpu in capped]
    observed = "; ".join(
        f"GPU {gpu.index}: up to {gpu.sm_clock_max_mhz or '?'} MHz, {gpu.power_limit_w or 0:.0f} W" for gpu in gpus
    )
    message = "Clocks and power are at the card's defaults."
    if wrong:
        message = (
            f"{_listed(wrong)} runs with lowered clocks or power (nvidia-smi -q -d CLOCK,POWER); rates will be lower."
        )
    return check(
        "gpu_clocks",
        "Clocks and power limit",
        ok=not wrong,
        required=False,
        observed=observed,
        expected="the card's defaults",
        message=message,
        where="gpus",
    )


def _pcie(gpus: Sequence[GpuFacts]) -> Check:
    """Idle links lower their generation, not their width; a narrow one is a badly seated card or a shared slot."""
    known = [gpu for gpu in gpus if gpu.pcie_width is not None and gpu.pcie_width_max is not None]
    if not known:
        return _unknown("gpu_pcie", "PCIe link", "PCIe link")
    narrow = [gpu for gpu in known if (gpu.pcie_width or 0) < (gpu.pcie_width_max or 0)]
    observed = "; ".join(
        f"GPU {gpu.index}: gen {gpu.pcie_gen} of {gpu.pcie_gen_max}, x{gpu.pcie_width} of x{gpu.pcie_width_max}"
        for gpu in known
    )
    message = "Every link has its full width; the generation is read idle and rises under load."
    if narrow:
        message = (
            f"{_listed(narrow)} has fewer PCIe lanes than it could have; read it under load, then reseat the card."
        )
    return check(
        "gpu_pcie",
        "PCIe link",
        ok=not narrow,
        required=False,
        observed=observed,
        expected="full width",
        message=message,
        where="gpus",
    )


def _mig(gpus: Sequence[GpuFacts]) -> Check:
    split = [gpu for gpu in gpus if gpu.mig]
    message = "The GPUs are not partitioned."
    if split:
        message = (
            f"{_listed(split)} is partitioned (MIG), so a run gets a share of it; bounds for whole cards do not hold."
        )
    return check(
        "gpu_mig",
        "Not partitioned",
        ok=not split,
        required=False,
        observed=_listed(split) or "none partitioned",
        expected="none partitioned",
        message=message,
        where="gpus",
    )


def _xid(events: tuple[XidEvent, ...] | None) -> Check:
    """Driver events since the machine started. Those that ask for a reset or a reboot fail."""
    if events is None:
        message = "The kernel log may not be read here, so past driver events (Xid) are not known; read it as root."
        return check("gpu_xid", "Xid events", ok=None, required=False, observed="not known", message=message)
    grave = [event for event in events if event.code in _RESET_OR_WORSE]
    counts = {code: sum(event.code == code for event in events) for code in sorted({event.code for event in events})}
    observed = ", ".join(f"Xid {code} × {count}" for code, count in counts.items()) or "none"
    message = "No driver event asks for a reset."
    if grave:
        meaning, remedy = REMEDIES[grave[-1].code]
        message = f"Xid {grave[-1].code} on {grave[-1].device}: {meaning}; {remedy}."
    elif events:
        meaning, remedy = REMEDIES.get(events[-1].code, ("a driver event", "look it up"))
        message = f"The latest driver event is Xid {events[-1].code} on {events[-1].device}: {meaning}; {remedy}."
    return check(
        "gpu_xid",
        "Xid events",
        ok=not grave,
        observed=observed,
        expected=f"none of {', '.join(str(code) for code in _RESET_OR_WORSE)}",
        message=message,
    )
