"""AMD's GPUs as their kernel driver reports them in /sys, where there is no NVIDIA driver: name, memory, link, errors.

So much that a preflight knows what it measures under ROCm's torch. What is sampled of NVIDIA's cards is not of these.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from validator.system.gpu_facts import EccCounts, GpuFacts, GpuReport, visible_gpus
from validator.system.processes import proc_fields, read_proc_text
from validator.system.sysfs import SYS, entries, number, pci_address

_CLASSES = ("0x1200", "0x0380")
"""Processing accelerators, and display controllers without a screen: older Instinct cards."""

_GENERATIONS = {"2.5": 1, "5.0": 2, "8.0": 3, "16.0": 4, "32.0": 5, "64.0": 6}
"""Rate of a lane in GT/s to the generation of PCIe."""

_VISIBLE = ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")


def read_amd_gpus(*, sys: Path = SYS, environment: Mapping[str, str] | None = None) -> GpuReport:
    """The accelerators of AMD's driver that the environment leaves visible; none where there is no such driver."""
    folders = [one for one in entries(sys / "bus/pci/drivers/amdgpu") if pci_address(one.name) is not None]
    folders = [one for one in folders if read_proc_text(one / "class")[:6] in _CLASSES]
    cards = {index: _card(index, folder) for index, folder in enumerate(folders)}
    env = os.environ if environment is None else environment
    setting = next((env[name] for name in _VISIBLE if name in env), None)
    chosen = visible_gpus(setting, uuids={index: card.uuid for index, card in cards.items()})
    driver = read_proc_text(sys / "module/amdgpu/version") or None
    why = f"{setting!r} hides every AMD GPU" if cards and not chosen else None
    return GpuReport(tuple(cards[one] for one in chosen), driver=driver, why_none=why, hidden=len(cards) - len(chosen))


def _card(index: int, folder: Path) -> GpuFacts:
    total, used = (number(folder / f"mem_info_vram_{name}") for name in ("total", "used"))
    unique = read_proc_text(folder / "unique_id")
    return GpuFacts(
        index=index,
        uuid=f"GPU-{unique}" if unique else "",
        name=read_proc_text(folder / "product_name") or f"AMD GPU {read_proc_text(folder / 'device')}",
        memory_total_mib=None if total is None else total / 2**20,
        memory_used_mib=None if used is None else used / 2**20,
        ecc=_errors(folder),
        pcie_gen=_generation(folder / "current_link_speed"),
        pcie_gen_max=_generation(folder / "max_link_speed"),
        pcie_width=number(folder / "current_link_width"),
        pcie_width_max=number(folder / "max_link_width"),
        pci_bus_id=folder.name,
        vbios=read_proc_text(folder / "vbios_version") or None,
    )


def _generation(path: Path) -> int | None:
    rate = re.match(r"[\d.]+", read_proc_text(path))  # "32.0 GT/s PCIe"
    return _GENERATIONS.get(rate[0]) if rate else None


def _errors(folder: Path) -> EccCounts | None:
    """Of the memory controllers, since the driver was loaded."""
    counts = dict(proc_fields(folder / "ras/umc_err_count"))
    if not counts.get("ue", "").isdecimal():
        return None
    corrected = counts.get("ce", "")
    return EccCounts(
        volatile_uncorrected=int(counts["ue"]),
        sram_uncorrectable_aggregate=None,
        volatile_corrected=int(corrected) if corrected.isdecimal() else None,
    )
