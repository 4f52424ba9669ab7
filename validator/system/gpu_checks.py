"""Preflight's checks of the GPUs: as declared, idle, healthy.

Bounds: NVIDIA's guidance on Xid, ECC and row remapping; practice of DCGM and azurehpc-health-checks for idle cards.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from validator.model.runbook import Hardware
from validator.model.verdict import Check
from validator.system.checks import check, recorded
from validator.system.nvml import MIB, GpuFacts, GpuReport
from validator.system.xid import XidEvent, gravest
from validator.text import format_size

IDLE_MEMORY_MIB = 15.0
"""Memory that an idle card may have in use, besides what the driver reserves for itself."""

UNSPLIT_MEMORY_MIB = 1024.0
"""The same where the driver does not report its own share."""

SRAM_REPLACE_ABOVE = 4
"""Uncorrectable SRAM errors over a card's life above which it is to be replaced."""

_BAD_CLOCKS = 0x8 | 0x20 | 0x40 | 0x80  # hardware slowdown, both thermal slowdowns, power brake: see THROTTLE_REASONS

_check = partial(check, where="gpus")
"""A check whose evidence is the list of GPUs in environment.json."""


def gpu_checks(hardware: Hardware, report: GpuReport, xids: tuple[XidEvent, ...] | None) -> Iterator[Check]:
    """All checks of the GPUs that the runbook uses: the first `hardware.gpus` of the visible ones."""
    if hardware.gpus == 0:
        return
    found = len(report.gpus)
    why = report.why_none or "CUDA_VISIBLE_DEVICES or the machine has no more"
    yield _check(
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
    for rule in _RULES:
        yield rule.judge(used)
    yield _mig(used)
    yield from _xids(xids)


def _gpu_name(hardware: Hardware, gpus: Sequence[GpuFacts]) -> Check:
    names = ", ".join(dict.fromkeys(gpu.name for gpu in gpus))
    if hardware.name is None:
        return recorded("gpu_name", "GPU name", observed=names, where="gpus")
    wrong = [gpu for gpu in gpus if not hardware.fits(gpu.name)]
    return _check(
        "gpu_name",
        "GPU name",
        ok=not wrong,
        observed=names,
        expected=hardware.name,
        good="Every GPU is of the declared kind.",
        bad=f"{_listed(wrong)} {'is' if len(wrong) == 1 else 'are'} {names}, which {hardware.name!r} "
        "does not match; use the declared machine, or a runbook for this one.",
    )


def _memory_size(wanted: int, gpus: Sequence[GpuFacts]) -> Check:
    smallest = min((gpu.memory_total_mib for gpu in gpus if gpu.memory_total_mib is not None), default=None)
    observed = "not known" if smallest is None else format_size(smallest * MIB)
    return _check(
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
    return _check(
        "gpu_interconnect",
        "GPU interconnect",
        ok=found == wanted,
        observed=f"{min(counts)} NVLinks up on each GPU" if found == "nvlink" else "PCIe, no NVLink on every GPU",
        expected=wanted,
        good="The GPU interconnect is as declared.",
        bad=f"The GPU interconnect is {found}, not {wanted}, so the runbook's bounds do not apply; "
        f"declare interconnect: {found}, or use the declared machine.",
    )


def _listed(gpus: Sequence[GpuFacts]) -> str:
    return ", ".join(f"GPU {gpu.index}" for gpu in gpus)


def _processes(gpus: Sequence[GpuFacts]) -> Check:
    """Preflight holds no GPU itself, so every process on one is another program's."""
    found = "; ".join(f"GPU {gpu.index}: pid {p.pid} ({p.name})" for gpu in gpus for p in gpu.processes)
    return _check(
        "gpu_processes",
        "No other process",
        ok=not found,
        observed=found or "none",
        expected="none",
        good="No other program uses the GPUs.",
        bad=f"Other programs use the GPUs ({found}); end them, or choose other GPUs by CUDA_VISIBLE_DEVICES.",
    )


def _idle_memory(gpus: Sequence[GpuFacts]) -> Check:
    used = {gpu: gpu.memory_used_mib for gpu in gpus if gpu.memory_used_mib is not None}
    if not used:
        return _unknown("gpu_idle_memory", "Idle GPU memory", "memory in use")
    limits = {gpu: UNSPLIT_MEMORY_MIB if gpu.memory_reserved_mib is None else IDLE_MEMORY_MIB for gpu in used}
    above = [gpu for gpu in used if used[gpu] > limits[gpu]]
    most = max(used.values())
    return _check(
        "gpu_idle_memory",
        "Idle GPU memory",
        ok=not above,
        observed=f"{most:.0f} MiB in use at most",
        expected=f"at most {max(limits.values()):.0f} MiB",
        good="The GPUs' memory is free.",
        bad=f"{_listed(above)} holds up to {most:.0f} MiB though nothing should run; find the owner, or reset the GPU.",
    )


def _unknown(check_id: str, title: str, what: str) -> Check:
    message = f"The driver does not report the {what} of these GPUs."
    return _check(check_id, title, ok=None, required=False, observed="not known", bad=message)


@dataclass(frozen=True)
class _GpuRule:
    """A check that looks at every GPU alone.

    `shown` is the value of one GPU as text, None where the driver does not report it. `bad` follows the names of the
    GPUs for which `fails` is true; `what` is what the driver did not report when it reported nothing.
    """

    id: str
    title: str
    what: str
    shown: Callable[[GpuFacts], str | None]
    fails: Callable[[GpuFacts], bool]
    expected: str
    good: str
    bad: str
    required: bool = True
    separator: str = "; "

    def judge(self, gpus: Sequence[GpuFacts]) -> Check:
        shown = {gpu: text for gpu in gpus if (text := self.shown(gpu)) is not None}
        if not shown:
            return _unknown(self.id, self.title, self.what)
        failing = [gpu for gpu in shown if self.fails(gpu)]
        return _check(
            self.id,
            self.title,
            ok=not failing,
            required=self.required,
            observed=self.separator.join(f"GPU {gpu.index}: {text}" for gpu, text in shown.items()),
            expected=self.expected,
            good=self.good,
            bad=f"{_listed(failing)} {self.bad}",
        )


def _count_rule(
    check_id: str, title: str, count: Callable[[GpuFacts], int | None], *, limit: int = 0, good: str, bad: str
) -> _GpuRule:
    """A check of a number of errors, which may be at most `limit`."""
    return _GpuRule(
        check_id,
        title,
        what=title[:1].lower() + title[1:],
        shown=lambda gpu: None if (found := count(gpu)) is None else str(found),
        fails=lambda gpu: (count(gpu) or 0) > limit,
        expected=f"at most {limit}" if limit else "0",
        good=good,
        bad=bad,
        separator=", ",
    )


def _is_lowered(gpu: GpuFacts) -> bool:
    """Whether the clocks or the power limit were set below the card's own: legitimate, but rates are lower."""
    clock, power = gpu.sm_clock_application_mhz or 0, gpu.power_limit_w or 0
    return 0 < clock < 0.8 * (gpu.sm_clock_max_mhz or 0) or power < 0.99 * (gpu.power_limit_default_w or 0)


def _pcie_link(gpu: GpuFacts) -> str | None:
    if gpu.pcie_width is None or gpu.pcie_width_max is None:
        return None
    return f"gen {gpu.pcie_gen} of {gpu.pcie_gen_max}, x{gpu.pcie_width} of x{gpu.pcie_width_max}"


_RULES = (
    _count_rule(
        "gpu_ecc",
        "Uncorrectable ECC errors",
        lambda gpu: gpu.ecc.volatile_uncorrected if gpu.ecc else None,
        good="No uncorrectable memory error since the driver was loaded.",
        bad="had uncorrectable memory errors since the driver was loaded: results cannot be trusted; reset it.",
    ),
    _count_rule(
        "gpu_ecc_sram",
        "Uncorrectable SRAM ECC errors",
        lambda gpu: gpu.ecc.sram_uncorrectable_aggregate if gpu.ecc else None,
        limit=SRAM_REPLACE_ABOVE,
        good="The SRAM of every GPU is sound.",
        bad="had so many uncorrectable SRAM errors that it is to be replaced.",
    ),
    _count_rule(
        "gpu_remapped_rows",
        "Remapped rows, pending or failed",
        lambda gpu: None if gpu.remapped is None else int(gpu.remapped.pending) + int(gpu.remapped.failed),
        good="No memory row waits for a replacement.",
        bad="has a memory row whose replacement is pending or failed; reset it, and have it replaced if that stays.",
    ),
    _GpuRule(
        "gpu_throttle",
        "Clock slowdown",
        what="clock slowdown reasons",
        shown=lambda gpu: None if gpu.throttle_mask is None else ", ".join(gpu.throttle_reasons) or "none",
        fails=lambda gpu: bool((gpu.throttle_mask or 0) & _BAD_CLOCKS),
        expected="no thermal or hardware slowdown",
        good="No thermal or hardware slowdown.",
        bad="is throttled (thermal or hardware); check cooling and power before measuring.",
    ),
    _GpuRule(
        "gpu_clocks",
        "Clocks and power limit",
        what="clocks",
        shown=lambda gpu: f"up to {gpu.sm_clock_max_mhz or '?'} MHz, {gpu.power_limit_w or 0:.0f} W",
        fails=_is_lowered,
        required=False,
        expected="the card's defaults",
        good="Clocks and power are at the card's defaults.",
        bad="runs with lowered clocks or power (nvidia-smi -q -d CLOCK,POWER); rates will be lower.",
    ),
    # An idle link lowers its generation, not its width: a narrow one is a badly seated card or a shared slot.
    _GpuRule(
        "gpu_pcie",
        "PCIe link",
        what="PCIe link",
        shown=_pcie_link,
        fails=lambda gpu: (gpu.pcie_width or 0) < (gpu.pcie_width_max or 0),
        required=False,
        expected="full width",
        good="Every link has its full width; the generation is read idle and rises under load.",
        bad="has fewer PCIe lanes than it could have; read it under load, then reseat the card.",
    ),
)


def _mig(gpus: Sequence[GpuFacts]) -> Check:
    split = [gpu for gpu in gpus if gpu.mig]
    return _check(
        "gpu_mig",
        "Not partitioned",
        ok=not split,
        required=False,
        observed=_listed(split) or "none partitioned",
        expected="none partitioned",
        good="The GPUs are not partitioned.",
        bad=f"{_listed(split)} is partitioned (MIG), so a run gets a share of it; bounds for whole cards do not hold.",
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
