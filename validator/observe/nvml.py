"""What NVML says about the GPUs, as values. No driver, no library, no answer: each is an answer, not an error.

NVML reference: https://docs.nvidia.com/deploy/nvml-api/. The binding (`pynvml`, from nvidia-ml-py) is imported only
where a driver is present; tests pass a stand-in that replays recorded answers.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from validator.model.devices import visible_gpus

__all__ = [
    "EccCounts",
    "GpuFacts",
    "GpuProcess",
    "GpuReport",
    "RemappedRows",
    "MIB",
    "THROTTLE_REASONS",
    "memory_mib",
    "open_gpus",
    "read_gpus",
]

MIB = 2**20

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

_UNCORRECTED, _VOLATILE, _AGGREGATE, _SRAM = 1, 0, 1, 7
"""nvmlMemoryErrorType, nvmlEccCounterType and nvmlMemoryLocation of the counts that are asked for."""


@dataclass(frozen=True)
class GpuProcess:
    """A process that holds memory on a GPU. `used_mib` is None where the driver does not say."""

    pid: int
    name: str
    used_mib: float | None


@dataclass(frozen=True)
class EccCounts:
    """Uncorrectable errors: since the driver was loaded, and in SRAM over the card's life."""

    volatile_uncorrected: int | None
    sram_uncorrectable_aggregate: int | None


@dataclass(frozen=True)
class RemappedRows:
    """Memory rows replaced after errors, and whether a replacement waits for a reset or has failed."""

    correctable: int
    uncorrectable: int
    pending: bool
    failed: bool


@dataclass(frozen=True)
class GpuFacts:
    """One GPU now. None means that this GPU or driver does not tell."""

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
    nvlinks_active: int | None = None
    persistence: bool | None = None
    mig: bool | None = None
    compute_capability: str | None = None
    pci_bus_id: str | None = None

    @property
    def throttle_reasons(self) -> tuple[str, ...]:
        """The reasons in words; empty when the clocks are free, or when the GPU does not tell."""
        mask = self.throttle_mask or 0
        return tuple(words for bit, words in THROTTLE_REASONS.items() if mask & bit)

    def as_json(self) -> dict[str, Any]:
        """All facts as plain values, reasons in words."""
        return {**asdict(self), "throttle_reasons": list(self.throttle_reasons)}


@dataclass(frozen=True)
class GpuReport:
    """The GPUs that a run may use (those that CUDA_VISIBLE_DEVICES leaves), or why there are none."""

    gpus: tuple[GpuFacts, ...] = ()
    driver: str | None = None
    cuda_driver: str | None = None
    nvml: str | None = None
    why_none: str | None = None
    hidden: int = field(default=0, metadata={"help": "GPUs that CUDA_VISIBLE_DEVICES hides"})


def read_gpus(*, nvml: Any | None = None, environment: Mapping[str, str] | None = None) -> GpuReport:
    """Ask NVML about every visible GPU.

    Args:
        nvml: stand-in for the binding, for tests; the real one is loaded where a driver is present.
        environment: where CUDA_VISIBLE_DEVICES is looked up; default is the process's own.
    """
    binding, why = (nvml, None) if nvml is not None else _load()
    if binding is None:
        return GpuReport(why_none=why)
    try:
        binding.nvmlInit()
    except Exception as error:  # noqa: BLE001 -- whatever the binding raises means that there is nothing to ask
        return GpuReport(why_none=f"the NVIDIA driver does not answer ({_sentence(error)})")
    try:
        return _report(binding, os.environ if environment is None else environment)
    finally:
        with suppress(Exception):
            binding.nvmlShutdown()


def open_gpus(
    nvml: Any | None = None, *, environment: Mapping[str, str] | None = None
) -> tuple[Any | None, dict[int, Any]]:
    """The binding, opened, and the handle of each visible GPU by index: for questions asked again and again.

    Without GPUs it gives (None, {}). The caller shuts the binding down.
    """
    binding = nvml if nvml is not None else _load()[0]
    if binding is None:
        return None, {}
    try:
        binding.nvmlInit()
    except Exception:  # noqa: BLE001 -- whatever the binding raises means that there is nothing to ask
        return None, {}
    handles = _handles(binding)
    uuids = {index: _text(_ask(binding.nvmlDeviceGetUUID, handle)) for index, handle in handles.items()}
    setting = (os.environ if environment is None else environment).get("CUDA_VISIBLE_DEVICES")
    return binding, {index: handles[index] for index in visible_gpus(setting, uuids=uuids)}


def _handles(nvml: Any) -> dict[int, Any]:
    count = _ask(nvml.nvmlDeviceGetCount) or 0
    return {index: handle for index in range(count) if (handle := _ask(nvml.nvmlDeviceGetHandleByIndex, index))}


def _load() -> tuple[Any | None, str | None]:
    if not Path("/dev/nvidiactl").exists() and not Path("/dev/dxg").exists():
        return None, "no NVIDIA driver is loaded"
    try:
        import pynvml
    except ImportError:
        return None, "the package nvidia-ml-py is not installed"
    return pynvml, None


def _sentence(error: Exception) -> str:
    return str(error).strip() or type(error).__name__


def _report(nvml: Any, environment: Mapping[str, str]) -> GpuReport:
    handles = _handles(nvml)
    uuids = {index: _text(_ask(nvml.nvmlDeviceGetUUID, handle)) for index, handle in handles.items()}
    chosen = visible_gpus(environment.get("CUDA_VISIBLE_DEVICES"), uuids=uuids)
    cuda = _ask(nvml.nvmlSystemGetCudaDriverVersion)
    why = None
    if not handles:
        why = "the NVIDIA driver finds no GPU"
    elif not chosen:
        why = f"CUDA_VISIBLE_DEVICES={environment.get('CUDA_VISIBLE_DEVICES')} hides every GPU"
    return GpuReport(
        gpus=tuple(_facts(nvml, index, handles[index], uuids[index]) for index in chosen),
        driver=_text(_ask(nvml.nvmlSystemGetDriverVersion)) or None,
        cuda_driver=f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else None,
        nvml=_text(_ask(nvml.nvmlSystemGetNVMLVersion)) or None,
        why_none=why,
        hidden=len(handles) - len(chosen),
    )


def _ask(question: Any, *arguments: Any, **options: Any) -> Any:
    """The answer, or None: NVML refuses questions that a card, a driver or a container does not support."""
    try:
        return question(*arguments, **options)
    except Exception:  # noqa: BLE001 -- NVMLError, or an attribute that an older binding lacks
        return None


def _method(nvml: Any, name: str, *arguments: Any, **options: Any) -> Any:
    question = getattr(nvml, name, None)
    return None if question is None else _ask(question, *arguments, **options)


def _text(value: Any) -> str:
    """Older bindings answer in bytes."""
    if value is None:
        return ""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _facts(nvml: Any, index: int, handle: Any, uuid: str) -> GpuFacts:
    def ask(name: str, *arguments: Any) -> Any:
        return _method(nvml, name, handle, *arguments)

    total, used, reserved = memory_mib(nvml, handle)
    rates, capability, pci = (
        ask("nvmlDeviceGetUtilizationRates"),
        ask("nvmlDeviceGetCudaComputeCapability"),
        ask("nvmlDeviceGetPciInfo"),
    )
    ecc_mode, mig_mode = ask("nvmlDeviceGetEccMode"), ask("nvmlDeviceGetMigMode")
    persistence = ask("nvmlDeviceGetPersistenceMode")
    return GpuFacts(
        index=index,
        uuid=uuid,
        name=_text(ask("nvmlDeviceGetName")),
        memory_total_mib=total,
        memory_used_mib=used,
        memory_reserved_mib=reserved,
        processes=_processes(nvml, handle),
        ecc_enabled=None if ecc_mode is None else bool(ecc_mode[0]),
        ecc=_ecc(nvml, handle) if ecc_mode is not None and ecc_mode[0] else None,
        remapped=_remapped(ask("nvmlDeviceGetRemappedRows")),
        throttle_mask=_first(
            ask("nvmlDeviceGetCurrentClocksEventReasons"), ask("nvmlDeviceGetCurrentClocksThrottleReasons")
        ),
        sm_clock_mhz=ask("nvmlDeviceGetClockInfo", 1),
        sm_clock_max_mhz=ask("nvmlDeviceGetMaxClockInfo", 1),
        sm_clock_application_mhz=ask("nvmlDeviceGetApplicationsClock", 1),
        mem_clock_mhz=ask("nvmlDeviceGetClockInfo", 2),
        temperature_c=ask("nvmlDeviceGetTemperature", 0),
        power_w=_watts(ask("nvmlDeviceGetPowerUsage")),
        power_limit_w=_watts(ask("nvmlDeviceGetEnforcedPowerLimit")),
        power_limit_default_w=_watts(ask("nvmlDeviceGetPowerManagementDefaultLimit")),
        utilization_pct=rates.gpu if rates is not None else None,
        memory_utilization_pct=rates.memory if rates is not None else None,
        pcie_gen=ask("nvmlDeviceGetCurrPcieLinkGeneration"),
        pcie_gen_max=ask("nvmlDeviceGetMaxPcieLinkGeneration"),
        pcie_width=ask("nvmlDeviceGetCurrPcieLinkWidth"),
        pcie_width_max=ask("nvmlDeviceGetMaxPcieLinkWidth"),
        nvlinks_active=_nvlinks(nvml, handle),
        persistence=None if persistence is None else bool(persistence),
        mig=None if mig_mode is None else bool(mig_mode[0]),
        compute_capability=f"{capability[0]}.{capability[1]}" if capability is not None else None,
        pci_bus_id=_text(getattr(pci, "busId", None)) or None,
    )


def _first(*answers: Any) -> Any:
    return next((answer for answer in answers if answer is not None), None)


def _watts(milliwatts: int | None) -> float | None:
    return None if milliwatts is None else milliwatts / 1000


def memory_mib(nvml: Any, handle: Any) -> tuple[float | None, float | None, float | None]:
    """Total, used and reserved memory in MiB. Only the second version tells the driver's own share apart."""
    version = getattr(nvml, "nvmlMemory_v2", None)
    info = _method(nvml, "nvmlDeviceGetMemoryInfo", handle, version=version) if version is not None else None
    if info is not None:
        return info.total / MIB, info.used / MIB, info.reserved / MIB
    info = _method(nvml, "nvmlDeviceGetMemoryInfo", handle)
    return (info.total / MIB, info.used / MIB, None) if info is not None else (None, None, None)


def _processes(nvml: Any, handle: Any) -> tuple[GpuProcess, ...]:
    found: dict[int, GpuProcess] = {}
    for name in ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses"):
        for process in _method(nvml, name, handle) or ():
            used = getattr(process, "usedGpuMemory", None)
            title = _text(_method(nvml, "nvmlSystemGetProcessName", process.pid)) or "unknown"
            found[process.pid] = GpuProcess(process.pid, title, None if used is None else used / MIB)
    return tuple(found.values())


def _ecc(nvml: Any, handle: Any) -> EccCounts:
    volatile = _method(nvml, "nvmlDeviceGetTotalEccErrors", handle, _UNCORRECTED, _VOLATILE)
    sram = _method(nvml, "nvmlDeviceGetMemoryErrorCounter", handle, _UNCORRECTED, _AGGREGATE, _SRAM)
    return EccCounts(volatile, sram)


def _remapped(answer: Any) -> RemappedRows | None:
    if answer is None:
        return None
    correctable, uncorrectable, pending, failed = answer
    return RemappedRows(correctable, uncorrectable, bool(pending), bool(failed))


def _nvlinks(nvml: Any, handle: Any) -> int | None:
    """Links that are up; None on a card without NVLink."""
    states = [_method(nvml, "nvmlDeviceGetNvLinkState", handle, link) for link in range(18)]
    known = [state for state in states if state is not None]
    return sum(bool(state) for state in known) if known else None
