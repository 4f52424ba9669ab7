"""GPUs, from recorded answers: what is read, and what preflight makes of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.validator.system.answers import Card, FakeNvml
from validator.model.runbook import Hardware
from validator.model.verdict import Check
from validator.system.gpu_checks import gpu_checks
from validator.system.gpu_facts import GpuReport, NvLinks
from validator.system.nvml import Gpus, count_gpus, read_gpus
from validator.system.xid import XidEvent, parse_xids, read_xids

SECOND = "GPU-22222222-bbbb"


def read(*cards: Card, environment: dict[str, str] | None = None) -> GpuReport:
    return read_gpus(nvml=FakeNvml(*cards), environment=environment or {})


def checks(*cards: Card, xids: tuple[XidEvent, ...] | None = (), **hardware: Any) -> dict[str, Check]:
    found = gpu_checks(Hardware.model_validate({"gpus": len(cards), **hardware}), read(*cards), xids)
    return {check.id: check for check in found}


def test_every_answer_has_its_unit() -> None:
    report = read(Card(processes=[(77, 512)], nvlinks=[1, 1, 0]))
    (gpu,) = report.gpus
    assert (report.driver, report.cuda_driver, report.why_none) == ("570.86.15", "12.8", None)
    assert (gpu.name, gpu.memory_total_mib, gpu.memory_used_mib, gpu.memory_reserved_mib) == (
        *("NVIDIA A100 80GB PCIe", 81920, 4, 620),
    )
    assert (gpu.power_w, gpu.power_limit_w, gpu.temperature_c, gpu.sm_clock_max_mhz) == (45.0, 300.0, 31, 1410)
    assert (gpu.processes[0].pid, gpu.processes[0].name, gpu.processes[0].used_mib) == (77, "/usr/bin/python77", 512)
    assert (gpu.nvlinks_active, gpu.compute_capability, gpu.throttle_reasons) == (2, "8.0", ("idle",))
    ecc = json.loads(json.dumps(gpu.as_json()))["ecc"]
    assert (ecc["volatile_uncorrected"], ecc["sram_uncorrectable_aggregate"], ecc["sram_over_threshold"]) == (
        0,
        0,
        None,
    )
    assert gpu.nvlinks == NvLinks(active=2, inactive=1, replays=0, recoveries=0, crc_errors=0, failed_recoveries=0)
    assert (gpu.recovery, gpu.fabric, gpu.pcie_replays) == ("none", None, 0)


def test_questions_without_an_answer_are_none() -> None:
    card = Card(reserved_mib=None, ecc=None, remapped=None, throttle=None, mig=None, nvlinks=None, name=b"Old card")
    (gpu,) = read(card).gpus
    assert gpu.name == "Old card"
    assert (gpu.memory_used_mib, gpu.memory_reserved_mib) == (4, None)
    assert (gpu.ecc, gpu.remapped, gpu.throttle_mask, gpu.mig, gpu.nvlinks_active) == (None,) * 5


@pytest.mark.parametrize(
    ("setting", "indices"),
    [
        *((None, [0, 1]), ("1", [1]), ("1, 0", [1, 0]), ("GPU-2", [1]), ("", []), ("7", [])),
        *(("-1,0", []), ("0,7,1", [0])),  # an invalid entry hides what follows it
        ("GPU-", []),  # ambiguous
    ],
)
def test_hidden_gpus_are_not_seen(setting: str | None, indices: list[int]) -> None:
    environment = {} if setting is None else {"CUDA_VISIBLE_DEVICES": setting}
    report = read(Card(), Card(uuid=SECOND), environment=environment)
    assert [gpu.index for gpu in report.gpus] == indices
    assert report.hidden == 2 - len(indices)
    if not indices:
        assert "hides every GPU" in str(report.why_none)


def test_no_gpu_is_an_answer() -> None:
    assert read().why_none == "the NVIDIA driver finds no GPU"
    broken = read_gpus(nvml=FakeNvml(broken=True), environment={})
    assert broken.gpus == ()
    assert "version mismatch" in str(broken.why_none)


def test_states_hold_what_changes_during_a_run() -> None:
    busy = Card(utilization=(100, 35), power_w=(253, 300, 300), used_mib=1024, throttle=0x4)
    gpus = Gpus.open({}, nvml=FakeNvml(busy, Card(uuid=SECOND, used_mib=2048)))
    first, second = gpus.states()
    assert (first.utilization_pct, first.memory_utilization_pct, first.power_w) == (100, 35, 253.0)
    assert (first.sm_clock_mhz, first.throttle_mask, first.pcie_width) == (210, 0x4, 16)
    assert (second.uuid, second.memory_used_mib) == (SECOND, 2048.0)
    assert gpus.memory_used_mib() == 3072.0
    gpus.close()
    assert not gpus
    gpus.close()


def test_a_refused_question_is_none_and_the_others_are_answered() -> None:
    refused = ("nvmlDeviceGetPowerUsage", "nvmlDeviceGetUtilizationRates", "nvmlDeviceGetMemoryInfo")
    lists = ("nvmlDeviceGetComputeRunningProcesses", "nvmlShutdown")
    gpus = Gpus.open({}, nvml=FakeNvml(Card(), refused=(*refused, *lists)))
    (state,) = gpus.states()
    assert (state.power_w, state.utilization_pct, state.memory_used_mib) == (None, None, None)
    assert state.temperature_c == 31
    assert gpus.compute_processes(0) is None
    gpus.close()


def test_a_gpu_that_fell_off_the_bus_leaves_the_others() -> None:
    gpus = Gpus.open({}, nvml=FakeNvml(Card(gone=True), Card(uuid=SECOND)))
    assert (gpus.indices, gpus.uuids()) == ((1,), (SECOND,))


@pytest.mark.parametrize(
    ("files", "on_bus", "environment", "count"),
    [
        ([], 0, {}, 0),
        ([], 8, {}, 8),  # without a driver the bus still lists them
        (["nvidiactl"], 8, {}, 0),  # a container that is given none of the host's
        (["nvidiactl", "nvidia0", "nvidia1", "nvidia-uvm"], 8, {}, 2),  # one that is given two, which do not answer
        (["nvidiactl", "nvidia0", "nvidia1"], 8, {"CUDA_VISIBLE_DEVICES": ""}, 0),
        ([], 8, {"NVIDIA_VISIBLE_DEVICES": "void"}, 0),
    ],
)
def test_all_gpus_are_those_that_the_machine_should_show(
    tmp_path: Path, files: list[str], on_bus: int, environment: dict[str, str], count: int
) -> None:
    devices, bus = tmp_path / "dev", tmp_path / "bus"
    for name in files:
        (devices / name).mkdir(parents=True)
    ids = [("0x10de", "0x030200")] * on_bus + [("0x10de", "0x068000"), ("0x8086", "0x030000")]  # an NVSwitch, another's
    for index, (vendor, kind) in enumerate(ids):
        (bus / str(index)).mkdir(parents=True)
        (bus / str(index) / "vendor").write_text(f"{vendor}\n")
        (bus / str(index) / "class").write_text(f"{kind}\n")
    assert count_gpus(environment, devices=devices, bus=bus) == count


def test_no_driver_is_no_gpus() -> None:
    gpus = Gpus.open({}, nvml=FakeNvml(Card(), broken=True))
    assert (bool(gpus), gpus.states(), gpus.memory_used_mib()) == (False, (), 0)


def test_a_healthy_idle_machine_passes_every_check() -> None:
    found = checks(Card(), Card(uuid=SECOND), name="A100.*80GB", interconnect="pcie", gpu_memory="79 GiB")
    absent = {"gpu_nvlinks", "gpu_nvlink_errors", "gpu_nvlinks_alike", "gpu_fabric"}
    assert {check.status for check in found.values()} == {"PASS"}
    assert {check.id for check in found.values() if check.observed == "not present"} == absent
    assert set(found) - absent == {
        *("gpus", "gpu_name", "gpu_memory", "gpu_interconnect", "gpu_processes", "gpu_idle_memory", "gpu_ecc"),
        *("gpu_ecc_sram", "gpu_remapped_rows", "gpu_throttle", "gpu_clocks", "gpu_pcie", "gpu_mig", "gpu_xid"),
        *("gpu_driver_events", "gpu_recovery", "gpu_memory_protection", "gpu_spare_rows", "gpu_persistence"),
    }


@pytest.mark.parametrize(
    ("card", "check_id", "words"),
    [
        (Card(name="NVIDIA H100"), "gpu_name", "GPU 0 is NVIDIA H100, which 'A100' does not match"),
        (Card(total_mib=40960), "gpu_memory", "A GPU has 40.0 GiB, less than 79.0 GiB"),
        (Card(processes=[(42, 1000)]), "gpu_processes", "GPU 0: pid 42 (/usr/bin/python42)"),
        (Card(used_mib=16), "gpu_idle_memory", "GPU 0 holds up to 16 MiB"),
        (Card(used_mib=2000, reserved_mib=None), "gpu_idle_memory", "GPU 0 holds up to 2000 MiB"),
        (Card(volatile=1), "gpu_ecc", "results cannot be trusted"),
        (Card(sram=5), "gpu_ecc_sram", "is to be replaced"),
        (Card(sram=1, sram_over_threshold=True), "gpu_ecc_sram", "is to be replaced"),
        (Card(recovery=2), "gpu_recovery", "GPU 0 needs the recovery"),
        (Card(fabric=(1, 0, 0), nvlinks=[1] * 18), "gpu_fabric", "CUDA does not start"),
        (Card(fabric=(3, 0, 1), nvlinks=[1] * 18), "gpu_fabric", "collectives are slower"),
        (Card(nvlinks=[1, 1, 0], fabric=(3, 0, 2)), "gpu_nvlinks", "costs every collective"),
        (Card(remapped=(0, 1, 1, 0)), "gpu_remapped_rows", "pending or failed"),
        (Card(remapped=(0, 1, 0, 1)), "gpu_remapped_rows", "pending or failed"),
        (Card(throttle=0x40), "gpu_throttle", "is throttled (thermal or hardware)"),
        (Card(throttle=0x88), "gpu_throttle", "is throttled (thermal or hardware)"),
    ],
)
def test_what_must_not_be_fails_and_says_what_to_do(card: Card, check_id: str, words: str) -> None:
    found = checks(card, name="A100", gpu_memory="79 GiB")
    failed = [check for check in found.values() if check.status == "FAIL"]
    assert [check.id for check in failed] == [check_id]
    assert failed[0].required
    assert words in failed[0].message
    assert failed[0].expected


@pytest.mark.parametrize(
    ("card", "check_id"),
    [
        (Card(sm_clock=(210, 1410, 900)), "gpu_clocks"),
        (Card(power_w=(45, 200, 300)), "gpu_clocks"),
        (Card(pcie=(1, 4, 8, 16)), "gpu_pcie"),
        (Card(mig=1), "gpu_mig"),
        (Card(persistence=0), "gpu_persistence"),
        (Card(ecc=False), "gpu_memory_protection"),
        (Card(banks=(639, 0, 0, 1, 0)), "gpu_spare_rows"),
        (Card(nvlinks=[1, 1, 0]), "gpu_nvlinks"),
        (Card(fabric=(1, 0, 0)), "gpu_fabric"),
        (Card(nvlinks=[1, 1], failed_recoveries=1), "gpu_nvlink_errors"),
        (Card(nvlinks=[1, 1], link_errors=(9, 2, 0, 0)), "gpu_nvlink_errors"),
    ],
)
def test_what_is_only_worth_knowing_fails_without_being_required(card: Card, check_id: str) -> None:
    failed = [check for check in checks(card).values() if check.status == "FAIL"]
    assert [(check.id, check.required) for check in failed] == [(check_id, False)]


def test_allowed_twins_of_the_failures_pass() -> None:
    cards = (Card(used_mib=15), Card(used_mib=500, reserved_mib=None), Card(sram=4), Card(throttle=0x4))
    bridged = Card(nvlinks=[0] * 12, fabric=None), Card(nvlinks=[1] * 12, link_errors=(40, 0, 7, 1))
    for card in (*cards, *bridged, Card(fabric=(3, 0, 2), nvlinks=[1] * 18), Card(dram=3)):
        assert not [check.id for check in checks(card).values() if check.status == "FAIL"]
    assert "software power cap" in checks(Card(throttle=0x4))["gpu_throttle"].observed


def test_what_the_driver_does_not_tell_is_skipped_and_never_passed() -> None:
    found = checks(Card(ecc=None, remapped=None, throttle=None), xids=None)
    skipped = {check.id for check in found.values() if check.status == "SKIPPED"}
    assert skipped == {"gpu_ecc", "gpu_ecc_sram", "gpu_remapped_rows", "gpu_throttle", "gpu_xid"}


def test_links_are_as_declared_or_fail() -> None:
    linked = Card(nvlinks=[1] * 12), Card(nvlinks=[1] * 12, uuid=SECOND)
    assert checks(*linked, interconnect="nvlink")["gpu_interconnect"].status == "PASS"
    assert "declare interconnect: nvlink" in checks(*linked, interconnect="pcie")["gpu_interconnect"].message
    half = Card(nvlinks=[1]), Card(nvlinks=[0], uuid=SECOND)
    assert checks(*half, interconnect="nvlink")["gpu_interconnect"].status == "FAIL"
    assert "gpu_interconnect" not in checks(Card(), interconnect="nvlink"), "one card has no links to check"


def test_only_the_gpus_that_are_used_are_checked() -> None:
    report = read(Card(), Card(uuid=SECOND, volatile=9))
    found = list(gpu_checks(Hardware(gpus=1), report, ()))
    assert not [check.id for check in found if check.status == "FAIL"]


@pytest.mark.parametrize("fabric", [(3, 0, 2), None])
def test_cards_with_fewer_links_than_their_neighbours_fail_behind_switches(fabric: tuple[int, int, int] | None) -> None:
    cards = Card(nvlinks=[1] * 12, fabric=fabric), Card(nvlinks=[0] * 12, fabric=fabric, uuid=SECOND)
    found = checks(*cards)["gpu_nvlinks_alike"]
    assert (found.status, found.required) == ("FAIL", fabric is not None)
    assert "GPU 1 has fewer NVLinks up" in found.message


@pytest.mark.parametrize(
    ("declared", "check_id", "status"),
    [
        ({"gpu_power": 300}, "gpu_power_declared", "PASS"),
        ({"gpu_power": 350}, "gpu_power_declared", "FAIL"),
        ({"gpu_clock": 1410}, "gpu_clock_declared", "PASS"),
        ({"gpu_clock": 1500}, "gpu_clock_declared", "FAIL"),
    ],
)
def test_clock_and_power_are_as_declared(declared: dict[str, int], check_id: str, status: str) -> None:
    found = checks(Card(), **declared)[check_id]
    assert (found.status, found.required) == (status, True)


def test_too_few_gpus_say_why() -> None:
    (found,) = gpu_checks(Hardware(gpus=2), GpuReport(why_none="no NVIDIA driver is loaded"), None)
    assert found.status == "FAIL"
    assert "0 of 2 GPUs can be used: no NVIDIA driver is loaded" in found.message


LOG = """\
6,1000,5000000,-;NVRM: loading NVIDIA UNIX x86_64 Kernel Module
4,1001,6500000,-;NVRM: Xid (PCI:0000:17:00): 31, pid=4242, name=python, Ch 00000008
[ 12.250000] NVRM: Xid (PCI:0000:65:00): 79, GPU has fallen off the bus.
"""


def test_xids_are_read_from_either_kind_of_log() -> None:
    assert parse_xids(LOG) == (
        XidEvent(31, "0000:17:00", "pid=4242, name=python, Ch 00000008"),
        XidEvent(79, "0000:65:00", "GPU has fallen off the bus."),
    )


def test_xids_are_judged_by_their_severity(tmp_path: Path) -> None:
    grave, mild = parse_xids(LOG)[::-1]
    found = checks(Card(), xids=(mild, grave))
    assert found["gpu_xid"].status == "FAIL"
    assert "0000:65:00: the GPU has fallen off the bus; reboot the machine" in found["gpu_xid"].message
    found = checks(Card(), xids=(mild, XidEvent(63, "0000:17:00")))
    assert found["gpu_xid"].status == "PASS"
    warned = found["gpu_driver_events"]
    assert (warned.status, warned.required, warned.observed) == ("FAIL", False, "Xid 31 × 1, Xid 63 × 1")
    assert "restart the application" in warned.message
    assert checks(Card(), xids=(XidEvent(63, "0000:17:00"),))["gpu_driver_events"].status == "PASS"
    log = tmp_path / "kmsg"
    log.write_text(LOG)
    assert len(read_xids(log) or ()) == 2
    assert read_xids(tmp_path / "none") is None
