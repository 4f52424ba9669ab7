"""The GPUs of this machine, as NVML reports them: the only module that asks the driver.

Missing hardware, a missing driver, a missing library and a refused question are answers, never errors.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from validator.system.gpu_facts import (
    EccCounts,
    Fabric,
    GpuFacts,
    GpuProcess,
    GpuReport,
    NvLinks,
    RemappedRows,
    SpareRows,
)

MIB = 2**20

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


def read_gpus(*, nvml: Any | None = None, environment: Mapping[str, str] | None = None) -> GpuReport:
    """Every fact about every visible GPU.

    Args:
        nvml: replaces the binding, for tests; the real one is loaded where a driver is present.
        environment: the source of CUDA_VISIBLE_DEVICES; default is the process's own.
    """
    gpus = Gpus.open(environment, nvml=nvml)
    try:
        return gpus.report()
    finally:
        gpus.close()


class Gpus:
    """The GPUs that a run may use, opened for repeated questions. Without a driver or its library there are none."""

    def __init__(
        self,
        nvml: Any | None = None,
        handles: Mapping[int, Any] | None = None,
        uuids: Mapping[int, str] | None = None,
        *,
        why_none: str | None = None,
    ) -> None:
        """`handles` holds the visible GPUs by index, `uuids` every GPU of the machine."""
        self._nvml = nvml
        self._handles = handles or {}
        self._uuids = uuids or {}
        self._why_none = why_none

    @classmethod
    def open(cls, environment: Mapping[str, str] | None = None, *, nvml: Any | None = None) -> Gpus:
        """The GPUs visible under `environment` (CUDA_VISIBLE_DEVICES). `nvml` replaces the binding in tests."""
        binding, why = (nvml, None) if nvml is not None else _load()
        if binding is None:
            return cls(why_none=why)
        try:
            binding.nvmlInit()
        except Exception as error:  # noqa: BLE001 -- whatever the binding raises means that the driver cannot be asked
            reason = str(error).strip() or type(error).__name__
            return cls(why_none=f"the NVIDIA driver does not answer ({reason})")
        count = _ask(binding, "nvmlDeviceGetCount") or 0
        # A GPU that has fallen off the bus has no handle; the others keep their indices.
        found = {index: _ask(binding, "nvmlDeviceGetHandleByIndex", index) for index in range(count)}
        handles = {index: handle for index, handle in found.items() if handle is not None}
        uuids = {index: _decoded(_ask(binding, "nvmlDeviceGetUUID", handle)) for index, handle in handles.items()}
        setting = (os.environ if environment is None else environment).get("CUDA_VISIBLE_DEVICES")
        chosen = visible_gpus(setting, uuids=uuids)
        if not handles:
            why = "the NVIDIA driver finds no GPU"
        elif not chosen:
            why = f"CUDA_VISIBLE_DEVICES={setting} hides every GPU"
        return cls(binding, {index: handles[index] for index in chosen}, uuids, why_none=why)

    def close(self) -> None:
        """Release the driver. Closing twice, or where there is none, is harmless."""
        nvml, self._nvml, self._handles = self._nvml, None, {}
        _ask(nvml, "nvmlShutdown")

    def __bool__(self) -> bool:
        return bool(self._handles)

    @property
    def indices(self) -> tuple[int, ...]:
        """Indices of the visible GPUs, in the order of CUDA_VISIBLE_DEVICES."""
        return tuple(self._handles)

    def uuids(self) -> tuple[str, ...]:
        """UUIDs of the visible GPUs, in the same order; empty where the driver does not report one."""
        return tuple(self._uuids.get(index, "") for index in self._handles)

    def states(self) -> tuple[GpuFacts, ...]:
        """What changes during a run, of every visible GPU: about ten questions each, cheap enough for once a second."""
        return tuple(self._state(index, handle) for index, handle in self._handles.items())

    def memory_used_mib(self) -> float:
        """Memory in use on all these GPUs together, by any process."""
        return sum(state.memory_used_mib or 0.0 for state in self.states())

    def compute_processes(self, index: int) -> dict[int, float | None] | None:
        """Memory in MiB that each process holds for computing on a GPU, by pid; None where no list is available."""
        return _memory_by_pid(self._nvml, "nvmlDeviceGetComputeRunningProcesses", self._handles[index])

    def process_name(self, pid: int) -> str:
        """The program of a process on a GPU, as the driver knows it; empty where it does not."""
        return _decoded(_ask(self._nvml, "nvmlSystemGetProcessName", pid))

    def report(self) -> GpuReport:
        """Every fact about every visible GPU and the driver: some fifty questions for each GPU."""
        cuda = _ask(self._nvml, "nvmlSystemGetCudaDriverVersion")
        return GpuReport(
            gpus=tuple(map(self._all_facts, self.states(), self._handles.values())),
            driver=_decoded(_ask(self._nvml, "nvmlSystemGetDriverVersion")) or None,
            cuda_driver=f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else None,
            nvml=_decoded(_ask(self._nvml, "nvmlSystemGetNVMLVersion")) or None,
            why_none=self._why_none,
            hidden=len(self._uuids) - len(self._handles),
        )

    def _state(self, index: int, handle: Any) -> GpuFacts:
        def ask(name: str, *arguments: Any) -> Any:
            return _ask(self._nvml, name, handle, *arguments)

        total, used, reserved = _memory_mib(self._nvml, handle)
        rates = ask("nvmlDeviceGetUtilizationRates")
        throttle = ask("nvmlDeviceGetCurrentClocksEventReasons")
        if throttle is None:  # the name of the same question before driver 535
            throttle = ask("nvmlDeviceGetCurrentClocksThrottleReasons")
        return GpuFacts(
            index=index,
            uuid=self._uuids.get(index, ""),
            name=_decoded(ask("nvmlDeviceGetName")),
            memory_total_mib=total,
            memory_used_mib=used,
            memory_reserved_mib=reserved,
            throttle_mask=throttle,
            sm_clock_mhz=ask("nvmlDeviceGetClockInfo", 1),
            mem_clock_mhz=ask("nvmlDeviceGetClockInfo", 2),
            temperature_c=ask("nvmlDeviceGetTemperature", 0),
            power_w=_watts(ask("nvmlDeviceGetPowerUsage")),
            utilization_pct=rates.gpu if rates is not None else None,
            memory_utilization_pct=rates.memory if rates is not None else None,
            pcie_gen=ask("nvmlDeviceGetCurrPcieLinkGeneration"),
            pcie_width=ask("nvmlDeviceGetCurrPcieLinkWidth"),
        )

    def _all_facts(self, state: GpuFacts, handle: Any) -> GpuFacts:
        """The state with everything else that the driver reports."""

        def ask(name: str, *arguments: Any) -> Any:
            return _ask(self._nvml, name, handle, *arguments)

        ecc_mode, mig_mode = ask("nvmlDeviceGetEccMode"), ask("nvmlDeviceGetMigMode")
        links = _nvlinks(self._nvml, handle)
        persistence, capability = ask("nvmlDeviceGetPersistenceMode"), ask("nvmlDeviceGetCudaComputeCapability")
        return replace(
            state,
            processes=_processes(self._nvml, handle),
            ecc_enabled=None if ecc_mode is None else bool(ecc_mode[0]),
            ecc=_ecc(self._nvml, handle) if ecc_mode is not None and ecc_mode[0] else None,
            remapped=_remapped(ask("nvmlDeviceGetRemappedRows")),
            sm_clock_max_mhz=ask("nvmlDeviceGetMaxClockInfo", 1),
            sm_clock_application_mhz=ask("nvmlDeviceGetApplicationsClock", 1),
            power_limit_w=_watts(ask("nvmlDeviceGetEnforcedPowerLimit")),
            power_limit_default_w=_watts(ask("nvmlDeviceGetPowerManagementDefaultLimit")),
            pcie_gen_max=ask("nvmlDeviceGetMaxPcieLinkGeneration"),
            pcie_width_max=ask("nvmlDeviceGetMaxPcieLinkWidth"),
            pcie_replays=ask("nvmlDeviceGetPcieReplayCounter"),
            nvlinks_active=None if links is None else links.active,
            nvlinks=links,
            fabric=_fabric(self._nvml, handle),
            spare_rows=_spare_rows(ask("nvmlDeviceGetRowRemapperHistogram")),
            recovery=_recovery(self._nvml, handle),
            persistence=None if persistence is None else bool(persistence),
            mig=None if mig_mode is None else bool(mig_mode[0]),
            compute_capability=f"{capability[0]}.{capability[1]}" if capability is not None else None,
            pci_bus_id=_decoded(getattr(ask("nvmlDeviceGetPciInfo"), "busId", None)) or None,
            serial=_decoded(ask("nvmlDeviceGetSerial")) or None,
            vbios=_decoded(ask("nvmlDeviceGetVbiosVersion")) or None,
        )


def _load() -> tuple[Any | None, str | None]:
    """The binding, or None and why there is none."""
    # Without a driver the import of the library would only cost time. /dev/dxg is the driver's device under WSL.
    if not Path("/dev/nvidiactl").exists() and not Path("/dev/dxg").exists():
        return None, "no NVIDIA driver is loaded"
    try:
        import pynvml
    except ImportError:
        return None, "the package nvidia-ml-py is not installed"
    return pynvml, None


def _ask(nvml: Any, name: str, *arguments: Any, **options: Any) -> Any:
    """One answer, or None: NVML refuses what a card, a driver or a container does not support."""
    try:
        return getattr(nvml, name)(*arguments, **options)
    except Exception:  # noqa: BLE001 -- NVMLError, or an attribute that an older binding lacks
        return None


def _decoded(value: Any) -> str:
    """Older bindings answer in bytes."""
    if value is None:
        return ""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _watts(milliwatts: int | None) -> float | None:
    return None if milliwatts is None else milliwatts / 1000


def _memory_mib(nvml: Any, handle: Any) -> tuple[float | None, float | None, float | None]:
    """Total, used and reserved memory in MiB. Only version 2 of the answer separates what the driver reserves."""
    version = getattr(nvml, "nvmlMemory_v2", None)
    info = _ask(nvml, "nvmlDeviceGetMemoryInfo", handle, version=version) if version is not None else None
    if info is not None:
        return info.total / MIB, info.used / MIB, info.reserved / MIB
    info = _ask(nvml, "nvmlDeviceGetMemoryInfo", handle)
    return (info.total / MIB, info.used / MIB, None) if info is not None else (None, None, None)


def _memory_by_pid(nvml: Any, question: str, handle: Any) -> dict[int, float | None] | None:
    found = _ask(nvml, question, handle)
    if found is None:
        return None
    used = {process.pid: getattr(process, "usedGpuMemory", None) for process in found}
    return {pid: None if count is None else count / MIB for pid, count in used.items()}


def _processes(nvml: Any, handle: Any) -> tuple[GpuProcess, ...]:
    """Processes that compute or draw on the GPU, each once."""
    found: dict[int, float | None] = {}
    for question in ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses"):
        found.update(_memory_by_pid(nvml, question, handle) or {})
    names = {pid: _decoded(_ask(nvml, "nvmlSystemGetProcessName", pid)) for pid in found}
    return tuple(GpuProcess(pid, names[pid] or "unknown", used_mib) for pid, used_mib in found.items())


def _ecc(nvml: Any, handle: Any) -> EccCounts:
    def total(kind: int) -> int | None:
        return _known(_ask(nvml, "nvmlDeviceGetTotalEccErrors", handle, kind, _VOLATILE))

    def uncorrected(counter: int, place: int) -> int | None:
        return _known(_ask(nvml, "nvmlDeviceGetMemoryErrorCounter", handle, _UNCORRECTED, counter, place))

    return EccCounts(
        volatile_uncorrected=total(_UNCORRECTED),
        sram_uncorrectable_aggregate=uncorrected(_AGGREGATE, _SRAM),
        volatile_corrected=total(_CORRECTED),
        sram_uncorrected_volatile=uncorrected(_VOLATILE, _SRAM),
        dram_uncorrected_volatile=uncorrected(_VOLATILE, _DRAM),
        dram_uncorrectable_aggregate=uncorrected(_AGGREGATE, _DRAM),
        sram_over_threshold=_over_threshold(nvml, handle),
    )


def _known(value: Any) -> int | None:
    return None if value is None else int(value)


def _over_threshold(nvml: Any, handle: Any) -> bool | None:
    """Whether the card calls its own SRAM bad; only Hopper and later know it."""
    status = _filled(nvml, "nvmlDeviceGetSramEccErrorStatus", handle, "c_nvmlEccSramErrorStatus_v1_t")
    return None if status is None else bool(status.bThresholdExceeded)


def _filled(nvml: Any, question: str, handle: Any, structure: str) -> Any:
    """The structure that the driver fills, None where it does not."""
    answer = _ask(nvml, structure)
    place = ctypes.byref(answer) if isinstance(answer, ctypes.Structure) else answer
    return None if answer is None or _ask(nvml, question, handle, place) is None else answer


def _remapped(answer: Any) -> RemappedRows | None:
    if answer is None:
        return None
    correctable, uncorrectable, pending, failed = answer
    return RemappedRows(correctable, uncorrectable, bool(pending), bool(failed))


def _spare_rows(answer: Any) -> SpareRows | None:
    if answer is None:
        return None
    return SpareRows(answer.max, answer.high, answer.partial, answer.low, answer.none)


def _nvlinks(nvml: Any, handle: Any) -> NvLinks | None:
    """The links that the card has, with their errors; None on a card without NVLink."""
    states = {link: _ask(nvml, "nvmlDeviceGetNvLinkState", handle, link) for link in range(_MAX_LINKS)}
    known = {link: bool(state) for link, state in states.items() if state is not None}
    if not known:
        return None
    active = [link for link, up in known.items() if up]

    def errors(*counters: int) -> int | None:
        question = "nvmlDeviceGetNvLinkErrorCounter"
        return _total(_known(_ask(nvml, question, handle, link, one)) for link in active for one in counters)

    failed = [_field(nvml, handle, (_FAILED_RECOVERIES, link)) for link in active]
    return NvLinks(
        active=len(active),
        inactive=len(known) - len(active),
        replays=errors(_LINK_REPLAYS),
        recoveries=errors(_LINK_RECOVERIES),
        crc_errors=errors(_LINK_CRC_FLIT, _LINK_CRC_DATA),
        failed_recoveries=_total(failed),
    )


def _total(counts: Iterable[int | None]) -> int | None:
    """Their sum; None where none is known."""
    known = [one for one in counts if one is not None]
    return sum(known) if known else None


def _field(nvml: Any, handle: Any, field: Any) -> int | None:
    """One field value, None where this driver does not know it. All fields asked here are unsigned integers."""
    found = _ask(nvml, "nvmlDeviceGetFieldValues", handle, [field])
    if not found or found[0].nvmlReturn != 0:
        return None
    return int(found[0].value.uiVal)


def _recovery(nvml: Any, handle: Any) -> str | None:
    action = _field(nvml, handle, _RECOVERY_ACTION)
    return _RECOVERIES[action] if action is not None and action < len(_RECOVERIES) else None


def _fabric(nvml: Any, handle: Any) -> Fabric | None:
    """None on a card that needs no fabric manager."""
    info = _filled(nvml, "nvmlDeviceGetGpuFabricInfoV", handle, "c_nvmlGpuFabricInfo_v2_t")
    if info is None or info.state == _FABRIC_UNSUPPORTED:
        return None
    degraded = info.healthMask & 0x3 == _DEGRADED
    return Fabric(ready=info.state == _FABRIC_DONE and info.status == 0, status=int(info.status), degraded=degraded)
