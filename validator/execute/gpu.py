"""The few facts about GPUs that supervision needs, from NVML where there is a driver; nothing is asked otherwise."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from validator.model.devices import visible_gpus

__all__ = ["GpuState", "Gpus", "visible_gpus"]


@dataclass(frozen=True)
class GpuState:
    """One GPU now. Utilizations are NVML's: percent of the last sample period (up to 1 s) in which a kernel ran, and
    in which memory was read or written. None where the driver does not say."""

    index: int
    uuid: str
    name: str
    utilization_pct: int | None
    memory_utilization_pct: int | None
    memory_used_mib: float | None
    power_w: float | None
    temperature_c: int | None
    sm_clock_mhz: int | None
    throttle_reasons: int | None


class Gpus:
    """The GPUs that a run may use. Without a driver, or without the library, there are none."""

    def __init__(self, nvml: Any | None, handles: Mapping[int, Any], uuids: Mapping[int, str] | None = None) -> None:
        self._nvml = nvml
        self._handles = handles
        self._uuids = uuids or {}

    @classmethod
    def open(cls, environment: Mapping[str, str] | None = None, *, nvml: Any | None = None) -> Gpus:
        """The GPUs visible under `environment` (CUDA_VISIBLE_DEVICES). `nvml` replaces the library in tests."""
        if nvml is None:
            nvml = _load_nvml()
        if nvml is None:
            return cls(None, {})
        try:
            nvml.nvmlInit()
            every = {index: nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())}
        except Exception:  # noqa: BLE001 -- whatever NVML's binding raises means: no GPUs to be asked
            return cls(None, {})
        uuids = {index: str(_ask(nvml.nvmlDeviceGetUUID, handle)) for index, handle in every.items()}
        environ = os.environ if environment is None else environment
        wanted = visible_gpus(environ.get("CUDA_VISIBLE_DEVICES"), uuids=uuids)
        return cls(nvml, {index: every[index] for index in wanted}, uuids)

    def __bool__(self) -> bool:
        return bool(self._handles)

    def uuids(self) -> tuple[str, ...]:
        """UUIDs, in the order in which the GPUs are visible."""
        return tuple(self._uuids[index] for index in self._handles)

    def states(self) -> tuple[GpuState, ...]:
        """Every GPU now; a question that a GPU cannot answer is None, not an error."""
        return tuple(self._state(index, handle) for index, handle in self._handles.items())

    def as_json(self) -> list[dict[str, Any]]:
        """`states` for a dump."""
        return [asdict(state) for state in self.states()]

    def memory_used_mib(self) -> float:
        """Memory in use on all these GPUs together, by anybody."""
        return sum(state.memory_used_mib or 0.0 for state in self.states())

    def _state(self, index: int, handle: Any) -> GpuState:
        nvml = self._nvml
        assert nvml is not None, "handles exist only with the library"
        rates = _ask(nvml.nvmlDeviceGetUtilizationRates, handle)
        memory = _ask(nvml.nvmlDeviceGetMemoryInfo, handle)
        power_mw = _ask(nvml.nvmlDeviceGetPowerUsage, handle)
        return GpuState(
            index=index,
            uuid=self._uuids.get(index, ""),
            name=str(_ask(nvml.nvmlDeviceGetName, handle)),
            utilization_pct=rates.gpu if rates is not None else None,
            memory_utilization_pct=rates.memory if rates is not None else None,
            memory_used_mib=memory.used / 2**20 if memory is not None else None,
            power_w=power_mw / 1000 if power_mw is not None else None,
            temperature_c=_ask(nvml.nvmlDeviceGetTemperature, handle, 0),
            sm_clock_mhz=_ask(nvml.nvmlDeviceGetClockInfo, handle, 1),
            throttle_reasons=_ask(nvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle),
        )


def _load_nvml() -> Any | None:
    if not Path("/dev/nvidiactl").exists() and not Path("/dev/dxg").exists():
        return None  # no driver: importing the library would only cost time
    with suppress(ImportError):
        import pynvml

        return pynvml
    return None


def _ask(question: Any, *arguments: Any) -> Any:
    try:
        return question(*arguments)
    except Exception:  # noqa: BLE001 -- NVML raises for every fact that a GPU or a driver does not know
        return None
