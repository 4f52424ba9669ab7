"""What NVML reports of a card's health: memory, links, fabric, recovery. A part of `nvml.py`, which opens the cards."""

from __future__ import annotations

from typing import Any

from validator.system.gpu_facts import EccCounts, Fabric, NvLinks, SpareRows
from validator.system.nvml_ask import ask_nvml, field_value, filled, known, total

_CORRECTED, _UNCORRECTED, _VOLATILE, _AGGREGATE, _DRAM, _SRAM = 0, 1, 0, 1, 2, 7
"""nvmlMemoryErrorType, nvmlEccCounterType and nvmlMemoryLocation of the error counts."""

_LINK_REPLAYS, _LINK_RECOVERIES, _LINK_CRC_FLIT, _LINK_CRC_DATA = range(4)
"""nvmlNvLinkErrorCounter."""

_FAILED_RECOVERIES, _RECOVERY_ACTION = 214, 230
"""NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS and NVML_FI_DEV_GET_GPU_RECOVERY_ACTION."""

_RECOVERIES = ("none", "reset the GPU", "reboot the machine", "drain its peers", "drain its peers and reset the GPU")
"""nvmlDeviceGpuRecoveryAction, by number."""

_FABRIC_UNSUPPORTED, _FABRIC_DONE, _DEGRADED = 0, 3, 1
"""nvmlGpuFabricState, and the health mask's two lowest bits where bandwidth is degraded."""

_MAX_LINKS = 18


def ecc(nvml: Any, handle: Any) -> EccCounts:
    """Errors by kind."""

    def every(kind: int) -> int | None:
        return known(ask_nvml(nvml, "nvmlDeviceGetTotalEccErrors", handle, kind, _VOLATILE))

    def uncorrected(counter: int, place: int) -> int | None:
        return known(ask_nvml(nvml, "nvmlDeviceGetMemoryErrorCounter", handle, _UNCORRECTED, counter, place))

    return EccCounts(
        volatile_uncorrected=every(_UNCORRECTED),
        sram_uncorrectable_aggregate=uncorrected(_AGGREGATE, _SRAM),
        volatile_corrected=every(_CORRECTED),
        sram_uncorrected_volatile=uncorrected(_VOLATILE, _SRAM),
        dram_uncorrected_volatile=uncorrected(_VOLATILE, _DRAM),
        dram_uncorrectable_aggregate=uncorrected(_AGGREGATE, _DRAM),
        sram_over_threshold=_over_threshold(nvml, handle),
    )


def _over_threshold(nvml: Any, handle: Any) -> bool | None:
    """Whether the card calls its own SRAM bad; only Hopper and later know it."""
    status = filled(nvml, "nvmlDeviceGetSramEccErrorStatus", handle, "c_nvmlEccSramErrorStatus_v1_t")
    return None if status is None else bool(status.bThresholdExceeded)


def spare_rows(answer: Any) -> SpareRows | None:
    """By NVML's histogram."""
    if answer is None:
        return None
    return SpareRows(answer.max, answer.high, answer.partial, answer.low, answer.none)


def nvlinks(nvml: Any, handle: Any) -> NvLinks | None:
    """The links that the card has, with their errors; None on a card without NVLink."""
    states = {link: ask_nvml(nvml, "nvmlDeviceGetNvLinkState", handle, link) for link in range(_MAX_LINKS)}
    present = {link: bool(state) for link, state in states.items() if state is not None}
    if not present:
        return None
    active = [link for link, up in present.items() if up]

    def errors(*counters: int) -> int | None:
        question = "nvmlDeviceGetNvLinkErrorCounter"
        return total(known(ask_nvml(nvml, question, handle, link, one)) for link in active for one in counters)

    failed = [field_value(nvml, handle, (_FAILED_RECOVERIES, link)) for link in active]
    return NvLinks(
        active=len(active),
        inactive=len(present) - len(active),
        replays=errors(_LINK_REPLAYS),
        recoveries=errors(_LINK_RECOVERIES),
        crc_errors=errors(_LINK_CRC_FLIT, _LINK_CRC_DATA),
        failed_recoveries=total(failed),
    )


def recovery(nvml: Any, handle: Any) -> str | None:
    """What the driver calls for; None where it does not report it."""
    action = field_value(nvml, handle, _RECOVERY_ACTION)
    return _RECOVERIES[action] if action is not None and action < len(_RECOVERIES) else None


def fabric(nvml: Any, handle: Any) -> Fabric | None:
    """None on a card that needs no fabric manager."""
    info = filled(nvml, "nvmlDeviceGetGpuFabricInfoV", handle, "c_nvmlGpuFabricInfo_v2_t")
    if info is None or info.state == _FABRIC_UNSUPPORTED:
        return None
    degraded = info.healthMask & 0x3 == _DEGRADED
    return Fabric(ready=info.state == _FABRIC_DONE and info.status == 0, status=int(info.status), degraded=degraded)


def error_counters(nvml: Any, handle: Any) -> dict[str, int]:
    """Counters that grow with errors, by name; those that the card does not have are left out."""
    links, counts = nvlinks(nvml, handle), ecc(nvml, handle)
    found = {
        "pcie_replays": known(ask_nvml(nvml, "nvmlDeviceGetPcieReplayCounter", handle)),
        "nvlink_replays": links.replays if links else None,
        "nvlink_recoveries": links.recoveries if links else None,
        "nvlink_crc_errors": links.crc_errors if links else None,
        "nvlink_failed_recoveries": links.failed_recoveries if links else None,
        "ecc_corrected": counts.volatile_corrected,
        "ecc_uncorrected": counts.volatile_uncorrected,
    }
    return {name: count for name, count in found.items() if count is not None}
