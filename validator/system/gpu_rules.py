"""Preflight's checks that look at every GPU alone: memory, links, clocks, driver.

Each says what was seen on which GPU, what a failure costs a training run, and what to do. What a card does not have, or
does not report, is no failure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from validator.model.runbook import Hardware
from validator.model.verdict import Check
from validator.system.checks import check
from validator.system.gpu_facts import EccCounts, GpuFacts, NvLinks

SRAM_REPLACE_ABOVE = 4
"""Uncorrectable SRAM errors over a card's life above which it is to be replaced."""

_BAD_CLOCKS = 0x8 | 0x20 | 0x40 | 0x80  # hardware slowdown, both thermal slowdowns, power brake: see THROTTLE_REASONS

gpu_check = partial(check, where="gpus")
"""A check whose evidence is the list of GPUs in environment.json."""


def listed_gpus(gpus: Sequence[GpuFacts]) -> str:
    """`GPU 0, GPU 3`."""
    return ", ".join(f"GPU {gpu.index}" for gpu in gpus)


def unknown(check_id: str, title: str, what: str, *, absent: bool = False) -> Check:
    """The check where the driver reports nothing, or (`absent`) where the cards do not have it: that is recorded."""
    if absent:
        good = f"These GPUs have no {what}."
        return gpu_check(check_id, title, ok=True, required=False, observed="not present", good=good)
    message = f"The driver does not report the {what} of these GPUs."
    return gpu_check(check_id, title, ok=None, required=False, observed="not known", bad=message)


@dataclass(frozen=True)
class GpuRule:
    """A check that looks at every GPU alone.

    `shown` is the value of one GPU as text, None where the driver does not report it. `bad` follows the names of the
    GPUs for which `fails` is true; `what` is what the driver did not report when it reported nothing, and `absent` that
    such cards do not have it then. Where `decides` is given, a failure is required only if it is true of a failing GPU.
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
    decides: Callable[[GpuFacts], bool] | None = None
    absent: bool = False
    separator: str = "; "

    def judge(self, gpus: Sequence[GpuFacts]) -> Check:
        """The check of these GPUs."""
        shown = {gpu: text for gpu in gpus if (text := self.shown(gpu)) is not None}
        if not shown:
            return unknown(self.id, self.title, self.what, absent=self.absent)
        failing = [gpu for gpu in shown if self.fails(gpu)]
        decided = self.decides is None or not failing or any(map(self.decides, failing))
        return gpu_check(
            self.id,
            self.title,
            ok=not failing,
            required=self.required and decided,
            observed=self.separator.join(f"GPU {gpu.index}: {text}" for gpu, text in shown.items()),
            expected=self.expected,
            good=self.good,
            bad=f"{listed_gpus(failing)} {self.bad}",
        )


def _count_rule(
    check_id: str, title: str, count: Callable[[GpuFacts], int | None], *, limit: int = 0, good: str, bad: str
) -> GpuRule:
    """A check of a number of errors, which may be at most `limit`."""
    return GpuRule(
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


def declared_rules(hardware: Hardware) -> Iterator[GpuRule]:
    """Clock and power limit, where the runbook declares them."""
    if hardware.gpu_clock is not None:
        least = hardware.gpu_clock
        yield GpuRule(
            "gpu_clock_declared",
            "Declared clock",
            what="clocks",
            shown=lambda gpu: None if (clock := _highest_clock(gpu)) is None else f"{clock} MHz",
            fails=lambda gpu: (_highest_clock(gpu) or 0) < least,
            expected=f"at least {least} MHz",
            good="Every GPU may run at the declared clock.",
            bad=f"may not reach {least} MHz, so every step computes longer than declared; reset its clocks: "
            "nvidia-smi -i N -rgc -rac.",
        )
    if hardware.gpu_power is not None:
        watts = hardware.gpu_power
        yield GpuRule(
            "gpu_power_declared",
            "Declared power limit",
            what="power limit",
            shown=lambda gpu: None if gpu.power_limit_w is None else f"{gpu.power_limit_w:.0f} W",
            fails=lambda gpu: (gpu.power_limit_w or 0) < watts - 0.5,
            expected=f"at least {watts} W",
            good="Every GPU has the declared power limit.",
            bad=f"may not draw {watts} W, so its clocks fall under load; raise the limit (nvidia-smi -i N -pl "
            f"{watts}), or ask the provider for cards of that power.",
        )


def _highest_clock(gpu: GpuFacts) -> int | None:
    known = [one for one in (gpu.sm_clock_application_mhz, gpu.sm_clock_max_mhz) if one]
    return min(known, default=None)


def _is_lowered(gpu: GpuFacts) -> bool:
    """Whether the clocks or the power limit were set below the card's own: legitimate, but rates are lower."""
    clock, power = gpu.sm_clock_application_mhz or 0, gpu.power_limit_w or 0
    return 0 < clock < 0.8 * (gpu.sm_clock_max_mhz or 0) or power < 0.99 * (gpu.power_limit_default_w or 0)


def _pcie_link(gpu: GpuFacts) -> str | None:
    if gpu.pcie_width is None or gpu.pcie_width_max is None:
        return None
    return f"gen {gpu.pcie_gen} of {gpu.pcie_gen_max}, x{gpu.pcie_width} of x{gpu.pcie_width_max}"


def _ecc_text(ecc: EccCounts | None) -> str | None:
    if ecc is None or ecc.volatile_uncorrected is None:
        return None
    kinds = {"SRAM": ecc.sram_uncorrected_volatile, "DRAM": ecc.dram_uncorrected_volatile}
    parts = [f"{name} {count}" for name, count in kinds.items() if count is not None]
    if ecc.volatile_corrected is not None:
        parts.append(f"{ecc.volatile_corrected} corrected")
    return f"{ecc.volatile_uncorrected} ({', '.join(parts)})" if parts else str(ecc.volatile_uncorrected)


def _sram_text(ecc: EccCounts | None) -> str | None:
    if ecc is None or ecc.sram_uncorrectable_aggregate is None:
        return None
    return f"{ecc.sram_uncorrectable_aggregate}{' (over its threshold)' if ecc.sram_over_threshold else ''}"


def _sram_is_bad(gpu: GpuFacts) -> bool:
    ecc = gpu.ecc
    if ecc is None:
        return False
    return bool(ecc.sram_over_threshold) or (ecc.sram_uncorrectable_aggregate or 0) > SRAM_REPLACE_ABOVE


def _link_errors(links: NvLinks | None) -> str | None:
    if links is None:
        return None
    counted = {
        "replays": links.replays,
        "recoveries": links.recoveries,
        "CRC errors": links.crc_errors,
        "failed recoveries": links.failed_recoveries,
    }
    known = [f"{count} {name}" for name, count in counted.items() if count is not None]
    return ", ".join(known) or None


def _links_recovered(gpu: GpuFacts) -> bool:
    """Replays and CRC errors are repaired in passing; a recovery trains the link again, and stops it meanwhile."""
    return gpu.nvlinks is not None and bool(gpu.nvlinks.recoveries or gpu.nvlinks.failed_recoveries)


def _on_switches(gpu: GpuFacts) -> bool:
    """Cards behind switches have all their links; a bridge between two PCIe cards may use a part of them."""
    return gpu.fabric is not None


def _bank_text(gpu: GpuFacts) -> str | None:
    rows, errors = gpu.spare_rows, gpu.ecc and gpu.ecc.dram_uncorrectable_aggregate
    parts = [] if rows is None else [f"{rows.none} banks without spare rows, {rows.low} with few"]
    if errors is not None:
        parts.append(f"{errors} uncorrectable DRAM errors over its life")
    return ", ".join(parts) or None


RULES = (
    GpuRule(
        "gpu_recovery",
        "Recovery that the driver asks for",
        what="recovery that is needed",
        shown=lambda gpu: gpu.recovery,
        fails=lambda gpu: gpu.recovery not in (None, "none"),
        expected="none",
        good="The driver asks for no reset.",
        bad="needs the recovery that is shown before its results can be trusted; do it, or call the provider.",
    ),
    GpuRule(
        "gpu_ecc",
        "Uncorrectable ECC errors",
        what="uncorrectable ECC errors",
        shown=lambda gpu: _ecc_text(gpu.ecc),
        fails=lambda gpu: bool(gpu.ecc and gpu.ecc.volatile_uncorrected),
        expected="0",
        good="No uncorrectable memory error since the driver was loaded.",
        bad="had uncorrectable memory errors since the driver was loaded: results cannot be trusted, and the next one "
        "ends the run; reset it.",
        separator=", ",
    ),
    GpuRule(
        "gpu_ecc_sram",
        "Uncorrectable SRAM ECC errors",
        what="uncorrectable SRAM ECC errors",
        shown=lambda gpu: _sram_text(gpu.ecc),
        fails=_sram_is_bad,
        expected=f"at most {SRAM_REPLACE_ABOVE}",
        good="The SRAM of every GPU is sound.",
        bad="had so many uncorrectable SRAM errors that it is to be replaced: each ends a run, and they come back; "
        "ask the provider for another card.",
        separator=", ",
    ),
    GpuRule(
        "gpu_memory_protection",
        "ECC is on",
        what="ECC",
        shown=lambda gpu: None if gpu.ecc_enabled is None else "on" if gpu.ecc_enabled else "off",
        fails=lambda gpu: gpu.ecc_enabled is False,
        expected="on",
        good="ECC is on.",
        bad="has ECC off: a flipped bit changes weights in silence; turn it on (nvidia-smi -i N -e 1) and reset the "
        "GPU.",
        required=False,
        absent=True,
    ),
    _count_rule(
        "gpu_remapped_rows",
        "Remapped rows, pending or failed",
        lambda gpu: None if gpu.remapped is None else int(gpu.remapped.pending) + int(gpu.remapped.failed),
        good="No memory row waits for a replacement.",
        bad="has a memory row whose replacement is pending or failed: the next access to it ends the run; reset it, "
        "and have it replaced if that stays.",
    ),
    GpuRule(
        "gpu_spare_rows",
        "Spare memory rows",
        what="row remapping",
        shown=_bank_text,
        fails=lambda gpu: bool(gpu.spare_rows and (gpu.spare_rows.none or gpu.spare_rows.low)),
        expected="no bank with few spare rows",
        good="Every memory bank has spare rows.",
        bad="has memory banks with few or no spare rows: it will not last; ask the provider for another card before a "
        "run of days.",
        required=False,
        absent=True,
    ),
    GpuRule(
        "gpu_throttle",
        "Clock slowdown",
        what="clock slowdown reasons",
        shown=lambda gpu: None if gpu.throttle_mask is None else ", ".join(gpu.throttle_reasons) or "none",
        fails=lambda gpu: bool((gpu.throttle_mask or 0) & _BAD_CLOCKS),
        expected="no thermal or hardware slowdown",
        good="No thermal or hardware slowdown.",
        bad="is throttled (thermal or hardware), and every other GPU waits for it in each step; check cooling and "
        "power before measuring.",
    ),
    GpuRule(
        "gpu_clocks",
        "Clocks and power limit",
        what="clocks",
        shown=lambda gpu: f"up to {gpu.sm_clock_max_mhz or '?'} MHz, {gpu.power_limit_w or 0:.0f} W",
        fails=_is_lowered,
        required=False,
        expected="the card's defaults",
        good="Clocks and power are at the card's defaults.",
        bad="runs with lowered clocks or power, so rates will be lower (nvidia-smi -q -d CLOCK,POWER); reset them with "
        "nvidia-smi -rgc -rac, or declare them: hardware.gpu_clock, hardware.gpu_power.",
    ),
    # An idle link lowers its generation, not its width: a narrow one is a badly seated card or a shared slot.
    GpuRule(
        "gpu_pcie",
        "PCIe link",
        what="PCIe link",
        shown=_pcie_link,
        fails=lambda gpu: (gpu.pcie_width or 0) < (gpu.pcie_width_max or 0),
        required=False,
        expected="full width",
        good="Every link has its full width; the generation is read idle and rises under load.",
        bad="has fewer PCIe lanes than it could have, which costs transfers to the host in proportion; read it under "
        "load, then reseat the card.",
    ),
    GpuRule(
        "gpu_nvlinks",
        "Inactive NVLinks",
        what="NVLink",
        shown=lambda gpu: None if gpu.nvlinks is None else f"{gpu.nvlinks.inactive} of {_all_links(gpu.nvlinks)}",
        fails=lambda gpu: gpu.nvlinks is not None and gpu.nvlinks.active > 0 and gpu.nvlinks.inactive > 0,
        decides=_on_switches,
        expected="0, or all of a card without a bridge",
        good="No NVLink that should be up is down.",
        bad="has NVLinks that are down, which costs every collective in proportion; reset the GPU, and have bridge or "
        "board looked at if that stays.",
        absent=True,
        separator=", ",
    ),
    GpuRule(
        "gpu_nvlink_errors",
        "NVLink errors",
        what="NVLink errors",
        shown=lambda gpu: _link_errors(gpu.nvlinks),
        fails=_links_recovered,
        required=False,
        expected="no recovery",
        good="No NVLink had to be trained again since the driver was loaded.",
        bad="had NVLinks that were trained again: collectives stop meanwhile, and a link that fails for good ends the "
        "run; reset the GPU and watch the count during the run.",
        absent=True,
    ),
    GpuRule(
        "gpu_fabric",
        "NVLink fabric",
        what="NVLink switches",
        shown=lambda gpu: None if gpu.fabric is None else _fabric_text(gpu),
        fails=lambda gpu: gpu.fabric is not None and (not gpu.fabric.ready or gpu.fabric.degraded),
        decides=lambda gpu: bool(gpu.nvlinks_active),  # a card that is rented alone has no part in the fabric
        expected="registered, at full bandwidth",
        good="The fabric manager has set up every GPU.",
        bad="is not set up in the NVLink fabric: CUDA does not start on it, or its collectives are slower; start "
        "nvidia-fabricmanager in the driver's version, or call the provider.",
        absent=True,
    ),
    GpuRule(
        "gpu_persistence",
        "Persistence mode",
        what="persistence mode",
        shown=lambda gpu: None if gpu.persistence is None else "on" if gpu.persistence else "off",
        fails=lambda gpu: gpu.persistence is False,
        required=False,
        expected="on",
        good="The driver stays loaded between programs.",
        bad="has persistence mode off: every start of a program loads the driver's state again, which takes seconds, "
        "and settings are lost; turn it on: nvidia-smi -pm 1.",
        separator=", ",
    ),
)


def _all_links(links: NvLinks) -> int:
    return links.active + links.inactive


def _fabric_text(gpu: GpuFacts) -> str:
    assert gpu.fabric is not None
    if not gpu.fabric.ready:
        return f"not set up (status {gpu.fabric.status})"
    return "degraded bandwidth" if gpu.fabric.degraded else "set up"
