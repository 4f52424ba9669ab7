"""The questions of `nvml_health.py` as the real binding passes them to the driver, whose functions are made up here."""

from __future__ import annotations

import ctypes
from typing import Any

import pynvml
import pytest

from validator.system.gpu_facts import Fabric, SpareRows
from validator.system.nvml import Gpus
from validator.system.nvml_ask import filled
from validator.system.nvml_health import error_counters, fabric, nvlinks, recovery, spare_rows


class Driver:
    """NVML's C functions by name. What is not here is not supported, as on an older driver."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __call__(self, name: str) -> Any:
        self.asked.append(name)
        answer = getattr(self, name, None)
        return answer if answer is not None else lambda *arguments: pynvml.NVML_ERROR_NOT_SUPPORTED

    def nvmlDeviceGetGpuFabricInfoV(self, device: Any, info: Any) -> int:
        assert info._obj.version == pynvml.nvmlGpuFabricInfo_v2
        info._obj.state, info._obj.status, info._obj.healthMask = 3, 0, 0x1
        return 0

    def nvmlDeviceGetSramEccErrorStatus(self, device: Any, status: Any) -> int:
        status._obj.bThresholdExceeded = 1
        return 0

    def nvmlDeviceGetFieldValues(self, device: Any, count: Any, values: Any) -> int:
        (one,) = values._obj[: count.value]
        one.nvmlReturn, one.value.uiVal = 0, 2 if one.fieldId == pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION else 5
        return 0

    def nvmlDeviceGetRowRemapperHistogram(self, device: Any, values: Any) -> int:
        values._obj.max, values._obj.low = 639, 1
        return 0

    def nvmlDeviceGetNvLinkState(self, device: Any, link: int, state: Any) -> int:
        state._obj.value = int(link != 1)
        return 0 if link < 3 else pynvml.NVML_ERROR_INVALID_ARGUMENT

    def nvmlDeviceGetNvLinkErrorCounter(self, device: Any, link: int, counter: int, count: Any) -> int:
        count._obj.value = 10**counter
        return 0

    def nvmlDeviceGetPcieReplayCounter(self, device: Any, count: Any) -> int:
        count._obj.value = 77
        return 0

    def nvmlEventSetCreate(self, events: Any) -> int:
        return 0

    def nvmlDeviceRegisterEvents(self, device: Any, kinds: Any, events: Any) -> int:
        return 0

    def nvmlEventSetWait_v2(self, events: Any, data: Any, timeout_ms: Any) -> int:
        assert timeout_ms.value == 0
        data._obj.eventType, data._obj.eventData = 8, 79
        return 0

    def nvmlEventSetFree(self, events: Any) -> int:
        return 0


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    made_up = Driver()
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer", made_up)
    return made_up


HANDLE = ctypes.c_void_p(1)


def test_structures_are_filled_in_place(driver: Driver) -> None:
    assert fabric(pynvml, HANDLE) == Fabric(ready=True, status=0, degraded=True)
    status = filled(pynvml, "nvmlDeviceGetSramEccErrorStatus", HANDLE, "c_nvmlEccSramErrorStatus_v1_t")
    assert status.bThresholdExceeded == 1
    assert recovery(pynvml, HANDLE) == "reboot the machine"
    assert spare_rows(pynvml.nvmlDeviceGetRowRemapperHistogram(HANDLE)) == SpareRows(639, 0, 0, 1, 0)


def test_links_and_counters_are_added_up(driver: Driver) -> None:
    found = nvlinks(pynvml, HANDLE)
    assert found is not None
    assert (found.active, found.inactive, found.replays, found.recoveries) == (2, 1, 2, 20)
    assert (found.crc_errors, found.failed_recoveries) == (2200, 10)
    assert error_counters(pynvml, HANDLE)["pcie_replays"] == 77


def test_driver_events_are_asked_for_without_waiting(driver: Driver) -> None:
    gpus = Gpus(pynvml, {0: HANDLE}, {0: "GPU-1"})
    assert gpus.next_xid() is None, "nobody watches yet"
    gpus.watch_events()
    assert gpus.next_xid() == 79
    gpus.close()
    assert "nvmlEventSetFree" in driver.asked


def test_an_old_driver_reports_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer", lambda name: lambda *arguments: 3)
    assert (fabric(pynvml, HANDLE), recovery(pynvml, HANDLE), nvlinks(pynvml, HANDLE)) == (None, None, None)
    assert error_counters(pynvml, HANDLE) == {}
