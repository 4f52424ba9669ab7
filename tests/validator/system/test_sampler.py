"""Samples of the machine: columns and units, a folder that is renamed, and failures that stay out of the way."""

from __future__ import annotations

import csv
import os
import time
from pathlib import Path

import pytest

from tests.processes import wait_until
from tests.validator.system.answers import Card, FakeNvml
from validator.ingest.counters import read_counters
from validator.ingest.read_log import ReadLog
from validator.system.processes import OtherProcesses
from validator.system.sampler import COLUMNS, GPU_COLUMNS, Sampler, sample_columns


def rows(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


def wait_for(path: Path, count: int) -> list[dict[str, str]]:
    wait_until(lambda: path.exists() and len(rows(path)) >= count, f"{count} rows of {path}", every_s=0.01)
    return rows(path)


def test_one_row_per_interval_with_host_and_gpu(tmp_path: Path) -> None:
    path = tmp_path / "telemetry.csv"
    card = Card(used_mib=1000, reserved_mib=None, power_w=(250, 300, 300), throttle=0x4, processes=[(1, 5)])
    with Sampler(path, interval_s=0.02, nvml=FakeNvml(card)):
        found = wait_for(path, 3)
    assert list(found[0]) == sample_columns([0]) == [*COLUMNS, *(f"gpu0_{name}" for name in GPU_COLUMNS)]
    last = found[-1]
    assert float(last["ts"]) == pytest.approx(time.time(), abs=60)
    assert 0 <= float(last["host_cpu_pct"] or 0) <= 100
    assert float(last["host_mem_available_mib"]) > 100
    assert (last["gpu0_power_w"], last["gpu0_mem_used_mib"], last["gpu0_throttle_mask"]) == ("250.0", "1000", "4")
    assert last["gpu0_processes"] == "1"
    stamps = [float(row["ts"]) for row in found]
    assert stamps == sorted(stamps)


def test_memory_in_use_leaves_out_what_the_driver_reserves(tmp_path: Path) -> None:
    sampler = Sampler(tmp_path / "t.csv", nvml=FakeNvml(Card(used_mib=882, reserved_mib=615)))
    assert dict(zip(sample_columns([0]), sampler.sample(), strict=True))["gpu0_mem_used_mib"] == 882


def test_a_card_that_does_not_tell_leaves_empty_cells(tmp_path: Path) -> None:
    sampler = Sampler(tmp_path / "t.csv", nvml=FakeNvml(Card(throttle=None)))
    row = dict(zip(sample_columns([0]), sampler.sample(), strict=True))
    assert row["gpu0_throttle_mask"] is None
    assert row["gpu0_temperature_c"] == 31


def test_shares_of_time_are_those_between_two_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = iter((None, 40 / os.sysconf("SC_CLK_TCK")))
    monkeypatch.setattr(OtherProcesses, "own_cpu_seconds", lambda _: next(own))
    proc = tmp_path / "proc"
    proc.mkdir()
    (proc / "meminfo").write_text("MemTotal: 2048 kB\nMemAvailable: 1024 kB\n")
    (proc / "stat").write_text("cpu  100 0 100 700 100 0 0 0 0 0\ncpu0 1 2 3\n")
    sampler = Sampler(tmp_path / "t.csv", proc=proc)
    (proc / "stat").write_text("cpu  160 0 110 715 110 3 2 0 0 0\n")
    row = dict(zip(sample_columns([]), sampler.sample(), strict=True))
    assert (row["host_cpu_pct"], row["host_iowait_pct"], row["host_mem_available_mib"]) == (75.0, 10.0, 1)
    assert row["host_other_cpu_pct"] == 30.0, "of 70 that programs used; interrupts are nobody's"


def test_a_folder_that_is_renamed_between_attempts_keeps_its_samples(tmp_path: Path) -> None:
    first = tmp_path / "r1"
    first.mkdir()
    with Sampler(first / "telemetry.csv", interval_s=0.02) as sampler:
        wait_for(first / "telemetry.csv", 2)
        first.rename(tmp_path / "r1.attempt1")
        time.sleep(0.1)
        first.mkdir()
        wait_for(first / "telemetry.csv", 1)
    assert rows(tmp_path / "r1.attempt1" / "telemetry.csv")
    assert sampler.failure is None


def test_what_goes_wrong_ends_the_sampling_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "telemetry.csv"
    path.mkdir()
    with Sampler(path, interval_s=0.01) as sampler:
        wait_until(lambda: sampler.failure is not None, "the failure", every_s=0.01)
    assert "IsADirectoryError" in sampler.failure


def test_errors_are_counted_before_and_after_a_run(tmp_path: Path) -> None:
    card = Card(nvlinks=[1, 1], replays=5)
    with Sampler(tmp_path / "telemetry.csv", interval_s=0.02, nvml=FakeNvml(card), sys=tmp_path / "sys"):
        wait_for(tmp_path / "telemetry.csv", 1)
        card.replays, card.link_errors = 605, (0, 2, 0, 0)
        port = tmp_path / "sys/class/infiniband/mlx5_0/ports/1/counters"
        port.mkdir(parents=True)
        (port / "symbol_error").write_text("3\n")
    found = read_counters(tmp_path / "counters.json", ReadLog(tmp_path))
    assert found is not None
    assert found.grown == {"GPU 0 pcie_replays": 600, "GPU 0 nvlink_recoveries": 4, "mlx5_0:1 symbol_error": 3}
    worse = [(one.device, one.counter, one.grave) for one in found.worse()]
    assert sorted(worse) == [
        ("GPU 0", "nvlink_recoveries", False),
        ("GPU 0", "pcie_replays", False),
        ("mlx5_0:1", "symbol_error", False),
    ]


def test_a_machine_without_links_leaves_no_counters(tmp_path: Path) -> None:
    with Sampler(tmp_path / "telemetry.csv", nvml=FakeNvml(broken=True), sys=tmp_path / "sys"):
        wait_for(tmp_path / "telemetry.csv", 1)
    assert not (tmp_path / "counters.json").exists()


def test_events_come_from_the_driver_where_the_kernel_log_may_not_be_read(tmp_path: Path) -> None:
    nvml = FakeNvml(Card())
    nvml.events += [79, 45]
    sampler = Sampler(tmp_path / "t.csv", nvml=nvml, kernel_log=tmp_path / "none")
    codes = [dict(zip(sample_columns([0]), sampler.sample(), strict=True))["xid"] for _ in range(3)]
    assert codes == [79, 45, None]
    seen = tmp_path / "kmsg"
    seen.write_text("")
    nvml.events += [48]
    readable = Sampler(tmp_path / "t.csv", nvml=nvml, kernel_log=seen)
    assert dict(zip(sample_columns([0]), readable.sample(), strict=True))["xid"] is None, "the log says it already"
