"""GPUs as supervision sees them, against recorded answers of NVML."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from validator.execute.gpu import Gpus, visible_gpus
from validator.execute.lock import lock_names

UUIDS = {0: "GPU-aaaa1111", 1: "GPU-bbbb2222", 2: "GPU-bbbb3333"}


class RecordedNvml:
    """NVML as it answers for two GPUs; `lost` questions raise, as on hardware that does not know them."""

    def __init__(self, *, lost: tuple[str, ...] = ()) -> None:
        self._lost = lost

    def __getattribute__(self, name: str) -> Any:
        if name != "_lost" and name in self._lost:

            def unsupported(*arguments: Any) -> Any:
                raise RuntimeError("Not Supported")

            return unsupported
        return super().__getattribute__(name)

    def nvmlInit(self) -> None:
        """Nothing to do."""

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return UUIDS[handle]

    def nvmlDeviceGetName(self, handle: int) -> str:
        return "NVIDIA A100 80GB PCIe"

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:
        return SimpleNamespace(gpu=100, memory=0 if handle else 35)

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        return SimpleNamespace(used=(handle + 1) * 2**30)

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:
        return 253_000

    def nvmlDeviceGetTemperature(self, handle: int, sensor: int) -> int:
        return 61

    def nvmlDeviceGetClockInfo(self, handle: int, kind: int) -> int:
        return 1410

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: int) -> int:
        return 4


@pytest.mark.parametrize(
    ("setting", "indices"),
    [
        (None, (0, 1, 2)),
        ("", ()),
        ("1", (1,)),
        ("2, 0", (2, 0)),
        ("GPU-aaaa", (0,)),
        ("GPU-bbbb", ()),  # ambiguous
        ("0,-1,2", (0,)),  # what follows an invalid entry is hidden
        ("7", ()),
    ],
)
def test_visibility_follows_cuda(setting: str | None, indices: tuple[int, ...]) -> None:
    assert visible_gpus(setting, uuids=UUIDS) == indices


def test_what_a_gpu_says() -> None:
    gpus = Gpus.open({}, nvml=RecordedNvml())
    first, second = gpus.states()
    assert (first.utilization_pct, first.memory_utilization_pct, first.power_w) == (100, 35, 253.0)
    assert (second.uuid, second.memory_used_mib) == ("GPU-bbbb2222", 2048.0)
    assert gpus.memory_used_mib() == 3072.0
    assert gpus.as_json()[0]["sm_clock_mhz"] == 1410


def test_what_a_gpu_does_not_know_is_none() -> None:
    lost = ("nvmlDeviceGetPowerUsage", "nvmlDeviceGetUtilizationRates", "nvmlDeviceGetMemoryInfo")
    (state,) = Gpus.open({"CUDA_VISIBLE_DEVICES": "1"}, nvml=RecordedNvml(lost=lost)).states()
    assert (state.power_w, state.utilization_pct, state.memory_used_mib) == (None, None, None)
    assert state.temperature_c == 61


def test_no_driver_is_no_gpus() -> None:
    gpus = Gpus.open({}, nvml=RecordedNvml(lost=("nvmlInit",)))
    assert not gpus
    assert gpus.states() == ()
    assert gpus.memory_used_mib() == 0


def test_a_lock_is_named_by_uuid_however_the_gpu_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("validator.execute.gpu._load_nvml", RecordedNvml)
    by_index = lock_names(1, environment={"CUDA_VISIBLE_DEVICES": "1"})
    by_uuid = lock_names(1, environment={"CUDA_VISIBLE_DEVICES": "GPU-bbbb2222"})
    assert by_index == by_uuid == ("gpu-bbbb2222",)
    assert lock_names(2, environment={}) == ("gpu-aaaa1111", "gpu-bbbb2222")
