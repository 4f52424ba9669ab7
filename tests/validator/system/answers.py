"""Recorded answers of NVML, in place of the binding `pynvml`: the same names and shapes of results."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

MIB = 2**20


class NVMLError(Exception):
    """As the binding raises it."""


@dataclass
class Card:
    """What one card answers; None is "Not Supported", and `gone` has no handle. Defaults: an idle A100 80GB PCIe."""

    name: str | bytes = "NVIDIA A100 80GB PCIe"
    uuid: str = "GPU-11111111-aaaa"
    total_mib: int = 81920
    used_mib: int = 4
    reserved_mib: int | None = 620
    processes: list[tuple[int, int | None]] = field(default_factory=list)
    ecc: bool | None = True
    volatile: int | None = 0
    sram: int | None = 0
    remapped: tuple[int, int, int, int] | None = (0, 0, 0, 0)
    throttle: int | None = 0x1
    sm_clock: tuple[int, int, int] = (210, 1410, 1410)
    power_w: tuple[int, int, int] = (45, 300, 300)
    pcie: tuple[int, int, int, int] = (1, 4, 16, 16)
    nvlinks: list[int] | None = None
    link_errors: tuple[int, int, int, int] | None = (0, 0, 0, 0)
    failed_recoveries: int | None = 0
    fabric: tuple[int, int, int] | None = None
    banks: tuple[int, int, int, int, int] | None = (640, 0, 0, 0, 0)
    dram: int | None = 0
    sram_over_threshold: bool | None = None
    recovery: int | None = 0
    replays: int | None = 0
    persistence: int | None = 1
    mig: int | None = 0
    serial: str | None = "1560000000001"
    utilization: tuple[int, int] = (0, 0)
    gone: bool = False


class FakeNvml:
    """Answers for a machine with these cards; `refused` questions raise, as on hardware that does not support them."""

    nvmlMemory_v2 = 2

    def __init__(self, *cards: Card, broken: bool = False, refused: tuple[str, ...] = ()) -> None:
        self.cards = cards
        self.broken = broken
        self.events: list[int] = []
        self.refused = refused

    def __getattr__(self, name: str) -> Any:
        answer = getattr(type(self), f"_{name}", None)
        if answer is None:
            raise AttributeError(name)
        if name in self.refused:
            return lambda *arguments, **options: self.known(None)
        return lambda *arguments, **options: answer(self, *arguments, **options)

    @staticmethod
    def known(value: Any) -> Any:
        if value is None:
            raise NVMLError("Not Supported")
        return value

    def _nvmlInit(self) -> None:
        if self.broken:
            raise NVMLError("Driver/library version mismatch")

    def _nvmlShutdown(self) -> None: ...

    def _nvmlDeviceGetCount(self) -> int:
        return len(self.cards)

    def _nvmlDeviceGetHandleByIndex(self, index: int) -> Any:
        return self.known(None if self.cards[index].gone else self.cards[index])

    def _nvmlDeviceGetUUID(self, card: Card) -> str:
        return card.uuid

    def _nvmlDeviceGetName(self, card: Card) -> str | bytes:
        return card.name

    def _nvmlSystemGetDriverVersion(self) -> bytes:
        return b"570.86.15"

    def _nvmlSystemGetNVMLVersion(self) -> str:
        return "12.570.86.15"

    def _nvmlSystemGetCudaDriverVersion(self) -> int:
        return 12080

    def _nvmlSystemGetProcessName(self, pid: int) -> bytes:
        return f"/usr/bin/python{pid}".encode()

    def _nvmlDeviceGetMemoryInfo(self, card: Card, version: int | None = None) -> Any:
        reserved = 0 if card.reserved_mib is None else card.reserved_mib
        if version is not None:
            self.known(card.reserved_mib)
            return SimpleNamespace(total=card.total_mib * MIB, used=card.used_mib * MIB, reserved=reserved * MIB)
        return SimpleNamespace(total=card.total_mib * MIB, used=(card.used_mib + reserved) * MIB)

    def _nvmlDeviceGetComputeRunningProcesses(self, card: Card) -> list[Any]:
        return [
            SimpleNamespace(pid=pid, usedGpuMemory=None if mib is None else mib * MIB) for pid, mib in card.processes
        ]

    def _nvmlDeviceGetGraphicsRunningProcesses(self, card: Card) -> list[Any]:
        return []

    def _nvmlDeviceGetEccMode(self, card: Card) -> list[int]:
        return [int(self.known(card.ecc)), int(self.known(card.ecc))]

    def _nvmlDeviceGetTotalEccErrors(self, card: Card, kind: int, counter: int) -> int:
        assert counter == 0, "volatile"
        return int(self.known(card.volatile if kind == 1 else 0))

    def _nvmlDeviceGetMemoryErrorCounter(self, card: Card, kind: int, counter: int, place: int) -> int:
        assert kind == 1, "uncorrected"
        return int(self.known({(1, 7): card.sram, (1, 2): card.dram, (0, 7): 0, (0, 2): card.volatile}[counter, place]))

    def _c_nvmlEccSramErrorStatus_v1_t(self) -> Any:
        return SimpleNamespace(bThresholdExceeded=0)

    def _nvmlDeviceGetSramEccErrorStatus(self, card: Card, status: Any) -> int:
        status.bThresholdExceeded = int(self.known(card.sram_over_threshold))
        return 0

    def _c_nvmlGpuFabricInfo_v2_t(self) -> Any:
        return SimpleNamespace(state=0, status=0, healthMask=0)

    def _nvmlDeviceGetGpuFabricInfoV(self, card: Card, info: Any) -> int:
        info.state, info.status, info.healthMask = self.known(card.fabric)
        return 0

    def _nvmlDeviceGetRowRemapperHistogram(self, card: Card) -> Any:
        return SimpleNamespace(
            **dict(zip(("max", "high", "partial", "low", "none"), self.known(card.banks), strict=True))
        )

    def _nvmlDeviceGetNvLinkErrorCounter(self, card: Card, link: int, counter: int) -> int:
        return int(self.known(card.link_errors)[counter])

    def _nvmlDeviceGetFieldValues(self, card: Card, fields: list[Any]) -> list[Any]:
        (field,) = fields
        value = card.recovery if field == 230 else card.failed_recoveries
        answer = SimpleNamespace(uiVal=value)
        return [SimpleNamespace(nvmlReturn=0 if value is not None else 3, value=answer)]

    def _nvmlEventSetCreate(self) -> Any:
        return SimpleNamespace(cards=[])

    def _nvmlDeviceRegisterEvents(self, card: Card, kind: int, events: Any) -> None:
        assert kind == 8, "Xid"
        events.cards.append(card)

    def _nvmlEventSetWait_v2(self, events: Any, timeout_ms: int) -> Any:
        assert timeout_ms == 0
        return SimpleNamespace(eventData=self.known(self.events.pop(0) if self.events and events.cards else None))

    def _nvmlEventSetFree(self, events: Any) -> None:
        events.cards.clear()

    def _nvmlDeviceGetPcieReplayCounter(self, card: Card) -> int:
        return int(self.known(card.replays))

    def _nvmlDeviceGetRemappedRows(self, card: Card) -> tuple[int, int, int, int]:
        found: tuple[int, int, int, int] = self.known(card.remapped)
        return found

    def _nvmlDeviceGetCurrentClocksThrottleReasons(self, card: Card) -> int:
        return int(self.known(card.throttle))

    def _nvmlDeviceGetClockInfo(self, card: Card, kind: int) -> int:
        return card.sm_clock[0] if kind == 1 else 1512

    def _nvmlDeviceGetMaxClockInfo(self, card: Card, kind: int) -> int:
        return card.sm_clock[1]

    def _nvmlDeviceGetApplicationsClock(self, card: Card, kind: int) -> int:
        return card.sm_clock[2]

    def _nvmlDeviceGetTemperature(self, card: Card, sensor: int) -> int:
        return 31

    def _nvmlDeviceGetPowerUsage(self, card: Card) -> int:
        return card.power_w[0] * 1000

    def _nvmlDeviceGetEnforcedPowerLimit(self, card: Card) -> int:
        return card.power_w[1] * 1000

    def _nvmlDeviceGetPowerManagementDefaultLimit(self, card: Card) -> int:
        return card.power_w[2] * 1000

    def _nvmlDeviceGetUtilizationRates(self, card: Card) -> Any:
        return SimpleNamespace(gpu=card.utilization[0], memory=card.utilization[1])

    def _nvmlDeviceGetCurrPcieLinkGeneration(self, card: Card) -> int:
        return card.pcie[0]

    def _nvmlDeviceGetMaxPcieLinkGeneration(self, card: Card) -> int:
        return card.pcie[1]

    def _nvmlDeviceGetCurrPcieLinkWidth(self, card: Card) -> int:
        return card.pcie[2]

    def _nvmlDeviceGetMaxPcieLinkWidth(self, card: Card) -> int:
        return card.pcie[3]

    def _nvmlDeviceGetNvLinkState(self, card: Card, link: int) -> int:
        links = self.known(card.nvlinks)
        if link >= len(links):
            raise NVMLError("Invalid Argument")
        return int(links[link])

    def _nvmlDeviceGetMigMode(self, card: Card) -> list[int]:
        return [int(self.known(card.mig))] * 2

    def _nvmlDeviceGetPersistenceMode(self, card: Card) -> int:
        return int(self.known(card.persistence))

    def _nvmlDeviceGetCudaComputeCapability(self, card: Card) -> tuple[int, int]:
        return 8, 0

    def _nvmlDeviceGetSerial(self, card: Card) -> str:
        return str(self.known(card.serial))

    def _nvmlDeviceGetVbiosVersion(self, card: Card) -> bytes:
        return b"96.00.89.00.01"

    def _nvmlDeviceGetPciInfo(self, card: Card) -> Any:
        return SimpleNamespace(busId=b"00000000:17:00.0")
