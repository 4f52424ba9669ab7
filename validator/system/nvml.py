"""The GPUs of this machine, as NVML reports them: with `nvml_health.py` and `nvml_ask.py` all that asks the driver.

Missing hardware, a missing driver, a missing library and a refused question are answers, never errors.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from validator.system.amd_gpus import read_amd_gpus
from validator.system.gpu_facts import GpuFacts, GpuProcess, GpuReport, RemappedRows, visible_gpus
from validator.system.nvml_ask import NO_DRIVER, ask_nvml, decoded, load, watts
from validator.system.nvml_health import ecc, error_counters, fabric, nvlinks, recovery, spare_rows
from validator.system.processes import read_proc_text

MIB = 2**20

_XID_EVENTS = 8
"""nvmlEventTypeXidCriticalError."""


def read_gpus(*, nvml: Any | None = None, environment: Mapping[str, str] | None = None) -> GpuReport:
    """Every fact about every visible GPU; AMD's where there is no NVIDIA driver.

    Args:
        nvml: replaces the binding, for tests; the real one is loaded where a driver is present.
        environment: the source of CUDA_VISIBLE_DEVICES; default is the process's own.
    """
    gpus = Gpus.open(environment, nvml=nvml)
    try:
        report = gpus.report()
    finally:
        gpus.close()
    if nvml is None and not report.gpus and report.why_none == NO_DRIVER:
        amd = read_amd_gpus(environment=environment)
        return amd if amd.gpus or amd.hidden else report
    return report


_DEVICES, _BUS = Path("/dev"), Path("/sys/bus/pci/devices")
_NVIDIA, _DISPLAY = "0x10de", "0x03"


def count_gpus(environment: Mapping[str, str] = os.environ, *, devices: Path = _DEVICES, bus: Path = _BUS) -> int:
    """How many GPUs the machine has: those that its driver shows, and those that it should show.

    A GPU that has fallen off keeps its device file, and without a driver the PCI bus still lists it. Where a variable
    chooses among the GPUs, the visible ones count.
    """
    shown = len(read_gpus(environment=environment).gpus)
    if "CUDA_VISIBLE_DEVICES" in environment or "NVIDIA_VISIBLE_DEVICES" in environment:
        return shown
    files = sum(one.name[6:].isdecimal() for one in devices.glob("nvidia[0-9]*"))
    if files or (devices / "nvidiactl").exists() or not bus.is_dir():
        return max(shown, files)
    listed = ((read_proc_text(one / "vendor"), read_proc_text(one / "class")) for one in bus.iterdir())
    return shown or sum(vendor.startswith(_NVIDIA) and kind.startswith(_DISPLAY) for vendor, kind in listed)


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
        self._events: Any = None

    @classmethod
    def open(cls, environment: Mapping[str, str] | None = None, *, nvml: Any | None = None) -> Gpus:
        """The GPUs visible under `environment` (CUDA_VISIBLE_DEVICES). `nvml` replaces the binding in tests."""
        binding, why = (nvml, None) if nvml is not None else load()
        if binding is None:
            return cls(why_none=why)
        try:
            binding.nvmlInit()
        except Exception as error:  # noqa: BLE001 -- whatever the binding raises means that the driver cannot be asked
            reason = str(error).strip() or type(error).__name__
            return cls(why_none=f"the NVIDIA driver does not answer ({reason})")
        count = ask_nvml(binding, "nvmlDeviceGetCount") or 0
        # A GPU that has fallen off the bus has no handle; the others keep their indices.
        found = {index: ask_nvml(binding, "nvmlDeviceGetHandleByIndex", index) for index in range(count)}
        handles = {index: handle for index, handle in found.items() if handle is not None}
        uuids = {index: decoded(ask_nvml(binding, "nvmlDeviceGetUUID", handle)) for index, handle in handles.items()}
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
        events, self._events = self._events, None
        if events is not None:
            ask_nvml(nvml, "nvmlEventSetFree", events)
        ask_nvml(nvml, "nvmlShutdown")

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

    def error_counters(self) -> dict[str, int]:
        """Errors that every visible GPU has counted, as `GPU 0 pcie_replays`: some hundred questions each."""
        found = {index: error_counters(self._nvml, handle) for index, handle in self._handles.items()}
        return {f"GPU {index} {name}": count for index, one in found.items() for name, count in one.items()}

    def watch_events(self) -> None:
        """From now on `next_xid` reports driver events, where the kernel log may not be read."""
        self._events = ask_nvml(self._nvml, "nvmlEventSetCreate")
        if self._events is not None:
            for handle in self._handles.values():
                ask_nvml(self._nvml, "nvmlDeviceRegisterEvents", handle, _XID_EVENTS, self._events)

    def next_xid(self) -> int | None:
        """Code of the next driver event that was not reported yet; None where there is none, at once."""
        if self._events is None:
            return None
        event = ask_nvml(self._nvml, "nvmlEventSetWait_v2", self._events, 0)
        return None if event is None else int(event.eventData)

    def process_name(self, pid: int) -> str:
        """The program of a process on a GPU, as the driver knows it; empty where it does not."""
        return decoded(ask_nvml(self._nvml, "nvmlSystemGetProcessName", pid))

    def report(self) -> GpuReport:
        """Every fact about every visible GPU and the driver: some fifty questions for each GPU."""
        cuda = ask_nvml(self._nvml, "nvmlSystemGetCudaDriverVersion")
        return GpuReport(
            gpus=tuple(map(self._all_facts, self.states(), self._handles.values())),
            driver=decoded(ask_nvml(self._nvml, "nvmlSystemGetDriverVersion")) or None,
            cuda_driver=f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else None,
            nvml=decoded(ask_nvml(self._nvml, "nvmlSystemGetNVMLVersion")) or None,
            why_none=self._why_none,
            hidden=len(self._uuids) - len(self._handles),
        )

    def _state(self, index: int, handle: Any) -> GpuFacts:
        def ask(name: str, *arguments: Any) -> Any:
            return ask_nvml(self._nvml, name, handle, *arguments)

        total, used, reserved = _memory_mib(self._nvml, handle)
        rates = ask("nvmlDeviceGetUtilizationRates")
        throttle = ask("nvmlDeviceGetCurrentClocksEventReasons")
        if throttle is None:  # the name of the same question before driver 535
            throttle = ask("nvmlDeviceGetCurrentClocksThrottleReasons")
        return GpuFacts(
            index=index,
            uuid=self._uuids.get(index, ""),
            name=decoded(ask("nvmlDeviceGetName")),
            memory_total_mib=total,
            memory_used_mib=used,
            memory_reserved_mib=reserved,
            throttle_mask=throttle,
            sm_clock_mhz=ask("nvmlDeviceGetClockInfo", 1),
            mem_clock_mhz=ask("nvmlDeviceGetClockInfo", 2),
            temperature_c=ask("nvmlDeviceGetTemperature", 0),
            power_w=watts(ask("nvmlDeviceGetPowerUsage")),
            utilization_pct=rates.gpu if rates is not None else None,
            memory_utilization_pct=rates.memory if rates is not None else None,
            pcie_gen=ask("nvmlDeviceGetCurrPcieLinkGeneration"),
            pcie_width=ask("nvmlDeviceGetCurrPcieLinkWidth"),
        )

    def _all_facts(self, state: GpuFacts, handle: Any) -> GpuFacts:
        """The state with everything else that the driver reports."""

        def ask(name: str, *arguments: Any) -> Any:
            return ask_nvml(self._nvml, name, handle, *arguments)

        ecc_mode, mig_mode = ask("nvmlDeviceGetEccMode"), ask("nvmlDeviceGetMigMode")
        links = nvlinks(self._nvml, handle)
        persistence, capability = ask("nvmlDeviceGetPersistenceMode"), ask("nvmlDeviceGetCudaComputeCapability")
        return replace(
            state,
            processes=_processes(self._nvml, handle),
            ecc_enabled=None if ecc_mode is None else bool(ecc_mode[0]),
            ecc=ecc(self._nvml, handle) if ecc_mode is not None and ecc_mode[0] else None,
            remapped=_remapped(ask("nvmlDeviceGetRemappedRows")),
            sm_clock_max_mhz=ask("nvmlDeviceGetMaxClockInfo", 1),
            sm_clock_application_mhz=ask("nvmlDeviceGetApplicationsClock", 1),
            power_limit_w=watts(ask("nvmlDeviceGetEnforcedPowerLimit")),
            power_limit_default_w=watts(ask("nvmlDeviceGetPowerManagementDefaultLimit")),
            pcie_gen_max=ask("nvmlDeviceGetMaxPcieLinkGeneration"),
            pcie_width_max=ask("nvmlDeviceGetMaxPcieLinkWidth"),
            pcie_replays=ask("nvmlDeviceGetPcieReplayCounter"),
            nvlinks_active=None if links is None else links.active,
            nvlinks=links,
            fabric=fabric(self._nvml, handle),
            spare_rows=spare_rows(ask("nvmlDeviceGetRowRemapperHistogram")),
            recovery=recovery(self._nvml, handle),
            persistence=None if persistence is None else bool(persistence),
            mig=None if mig_mode is None else bool(mig_mode[0]),
            compute_capability=f"{capability[0]}.{capability[1]}" if capability is not None else None,
            pci_bus_id=decoded(getattr(ask("nvmlDeviceGetPciInfo"), "busId", None)) or None,
            serial=decoded(ask("nvmlDeviceGetSerial")) or None,
            vbios=decoded(ask("nvmlDeviceGetVbiosVersion")) or None,
        )


def _memory_mib(nvml: Any, handle: Any) -> tuple[float | None, float | None, float | None]:
    """Total, used and reserved memory in MiB. Only version 2 of the answer separates what the driver reserves."""
    version = getattr(nvml, "nvmlMemory_v2", None)
    info = ask_nvml(nvml, "nvmlDeviceGetMemoryInfo", handle, version=version) if version is not None else None
    if info is not None:
        return info.total / MIB, info.used / MIB, info.reserved / MIB
    info = ask_nvml(nvml, "nvmlDeviceGetMemoryInfo", handle)
    return (info.total / MIB, info.used / MIB, None) if info is not None else (None, None, None)


def _memory_by_pid(nvml: Any, question: str, handle: Any) -> dict[int, float | None] | None:
    found = ask_nvml(nvml, question, handle)
    if found is None:
        return None
    used = {process.pid: getattr(process, "usedGpuMemory", None) for process in found}
    return {pid: None if count is None else count / MIB for pid, count in used.items()}


def _processes(nvml: Any, handle: Any) -> tuple[GpuProcess, ...]:
    """Processes that compute or draw on the GPU, each once."""
    found: dict[int, float | None] = {}
    for question in ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses"):
        found.update(_memory_by_pid(nvml, question, handle) or {})
    names = {pid: decoded(ask_nvml(nvml, "nvmlSystemGetProcessName", pid)) for pid in found}
    return tuple(GpuProcess(pid, names[pid] or "unknown", used_mib) for pid, used_mib in found.items())


def _remapped(answer: Any) -> RemappedRows | None:
    if answer is None:
        return None
    correctable, uncorrectable, pending, failed = answer
    return RemappedRows(correctable, uncorrectable, bool(pending), bool(failed))
