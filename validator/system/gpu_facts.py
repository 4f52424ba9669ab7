"""What is known of the GPUs of a machine, as the driver reports it: values without questions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

THROTTLE_REASONS: dict[int, str] = {
    0x1: "idle",
    0x2: "clocks set by the user",
    0x4: "software power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
    0x100: "display clocks",
}
"""Bits of nvmlClocksEventReasons."""


@dataclass(frozen=True)
class GpuProcess:
    """A process that holds memory on a GPU. `used_mib` is None where the driver does not report it."""

    pid: int
    name: str
    used_mib: float | None


@dataclass(frozen=True)
class EccCounts:
    """Memory errors: volatile ones since the driver was loaded, aggregate ones over the card's life.

    `sram_over_threshold` is the card's own judgement of its SRAM.
    """

    volatile_uncorrected: int | None
    sram_uncorrectable_aggregate: int | None
    volatile_corrected: int | None = None
    sram_uncorrected_volatile: int | None = None
    dram_uncorrected_volatile: int | None = None
    dram_uncorrectable_aggregate: int | None = None
    sram_over_threshold: bool | None = None


@dataclass(frozen=True)
class RemappedRows:
    """Memory rows replaced after errors, and whether a replacement waits for a reset or has failed."""

    correctable: int
    uncorrectable: int
    pending: bool
    failed: bool


@dataclass(frozen=True)
class SpareRows:
    """Banks of memory by the spare rows that they have left."""

    full: int
    high: int
    partial: int
    low: int
    none: int


@dataclass(frozen=True)
class NvLinks:
    """The NVLinks that a card has, and their errors since the driver was loaded, all links together.

    An error that the driver does not count is None.
    """

    active: int
    inactive: int
    replays: int | None = None
    recoveries: int | None = None
    crc_errors: int | None = None
    failed_recoveries: int | None = None


@dataclass(frozen=True)
class Fabric:
    """The NVLink fabric behind switches, as the fabric manager set it up for a card.

    `ready` is False where the card is not registered yet, or failed to; `degraded` where it has less bandwidth.
    """

    ready: bool
    status: int
    degraded: bool = False


@dataclass(frozen=True)
class GpuFacts:
    """One GPU now. None means that this GPU or driver does not report the value.

    Utilizations are NVML's: percent of the last sample period (up to 1 s) in which a kernel ran, and in which memory
    was read or written. Memory in use leaves out what the driver reserves for itself, where the driver separates it.
    `recovery` is what the driver itself calls for ("none", "reset the GPU").
    """

    index: int
    uuid: str
    name: str
    memory_total_mib: float | None = None
    memory_used_mib: float | None = None
    memory_reserved_mib: float | None = None
    processes: tuple[GpuProcess, ...] = ()
    ecc_enabled: bool | None = None
    ecc: EccCounts | None = None
    remapped: RemappedRows | None = None
    throttle_mask: int | None = None
    sm_clock_mhz: int | None = None
    sm_clock_max_mhz: int | None = None
    sm_clock_application_mhz: int | None = None
    mem_clock_mhz: int | None = None
    temperature_c: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    power_limit_default_w: float | None = None
    utilization_pct: int | None = None
    memory_utilization_pct: int | None = None
    pcie_gen: int | None = None
    pcie_gen_max: int | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    pcie_replays: int | None = None
    nvlinks_active: int | None = None
    nvlinks: NvLinks | None = None
    fabric: Fabric | None = None
    spare_rows: SpareRows | None = None
    recovery: str | None = None
    persistence: bool | None = None
    mig: bool | None = None
    compute_capability: str | None = None
    pci_bus_id: str | None = None
    serial: str | None = None
    vbios: str | None = None

    @property
    def throttle_reasons(self) -> tuple[str, ...]:
        """The reasons as text; empty when nothing limits the clocks, or when the GPU does not report it."""
        mask = self.throttle_mask or 0
        return tuple(reason for bit, reason in THROTTLE_REASONS.items() if mask & bit)

    def as_json(self) -> dict[str, Any]:
        """All facts as plain values, reasons as text."""
        return {**asdict(self), "throttle_reasons": list(self.throttle_reasons)}


def use_of(gpus: Sequence[GpuFacts]) -> tuple[bool, bool]:
    """Whether a GPU moves memory, and whether one runs kernels all the time: a collective that waits for a lost rank
    does the second alone."""
    moving = any((gpu.memory_utilization_pct or 0) >= 1 for gpu in gpus)
    return moving, any((gpu.utilization_pct or 0) >= 90 for gpu in gpus)


@dataclass(frozen=True)
class GpuReport:
    """The GPUs that a run may use (those that CUDA_VISIBLE_DEVICES leaves), or why there are none.

    `hidden` is the number of GPUs that CUDA_VISIBLE_DEVICES hides.
    """

    gpus: tuple[GpuFacts, ...] = ()
    driver: str | None = None
    cuda_driver: str | None = None
    nvml: str | None = None
    why_none: str | None = None
    hidden: int = 0


def visible_gpus(setting: str | None, *, uuids: Mapping[int, str]) -> tuple[int, ...]:
    """Indices of the GPUs that CUDA_VISIBLE_DEVICES leaves visible; all when it is unset.

    Entries are indices or (abbreviated) UUIDs; the first that is neither hides the rest, as CUDA does it.
    """
    if setting is None:
        return tuple(uuids)
    found: list[int] = []
    for entry in (part.strip() for part in setting.split(",")):
        if entry.isdecimal() and int(entry) in uuids:
            found.append(int(entry))
            continue
        match = [index for index, uuid in uuids.items() if entry and uuid.startswith(entry)]
        if len(match) != 1:
            break
        found.append(match[0])
    return tuple(found)
