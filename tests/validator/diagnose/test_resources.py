"""Memory, ranks, loader and communication."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.validator.diagnose.cases import (
    healthy,
    of_run,
    of_validation,
    run_of,
    validation,
)
from tests.validator.ingest.folders import START_S, outcome
from validator.model.verdict import Finding


def test_low_headroom(tmp_path: Path) -> None:
    for name, used, low in (("a", 77_000.0, True), ("b", 49_000.0, False)):
        folder = healthy(tmp_path / name, gpu_mem_reserved_mib=[used] * 60)
        (folder / "mem_step1.json").write_text('{"gpu_mem_total_mib": 81920}')
        assert ("low-headroom" in of_run(folder)) == low


def test_low_headroom_by_the_machines_snapshot(tmp_path: Path) -> None:
    run = run_of(healthy(tmp_path / "r", gpu_mem_reserved_mib=[77_000.0] * 60))
    gpus = {"gpu0": {"memory_total_mib": 143_771.0}, "gpu1": {"memory_total_mib": 81_920.0}}
    found = of_validation(validation({"baseline": [run]}, environment={"gpus": gpus}))
    assert "77,000 of 81,920 MiB" in found["low-headroom"].message
    assert of_validation(validation({"baseline": [run]}, environment={"gpus": {"gpu0": gpus["gpu0"]}})) == {}


def test_memory_growth(tmp_path: Path) -> None:
    leak = [1000 + 5.0 * i for i in range(60)]
    finding = of_run(healthy(tmp_path / "a", host_mem_mib=leak))["memory-growth"]
    assert "5,000 MiB per 1,000 steps" in finding.message
    plateau = [1000 + 300 * (1 - 0.9**i) for i in range(60)]
    assert of_run(healthy(tmp_path / "b", host_mem_mib=plateau)) == {}
    saw = [1000 + 40.0 * (i % 8) for i in range(60)]
    assert of_run(healthy(tmp_path / "c", host_mem_mib=saw)) == {}


def _sampled(folder: Path, mib_per_s: float, seconds: range) -> None:
    """What the run's processes hold, once a second from its start."""
    rows = "".join(f"{START_S + i},20000,{900 + mib_per_s * i}\n" for i in seconds)
    (folder / "logs").mkdir(exist_ok=True)
    (folder / "logs/telemetry.csv").write_text("ts,host_mem_available_mib,host_run_mem_mib\n" + rows)


def test_what_a_short_run_takes_at_its_start_is_no_growth(tmp_path: Path) -> None:
    """Twelve steps in 13 s behind a start of the same length; a soak is asked whether its memory lasts."""
    folder = healthy(tmp_path / "short", n=12)
    _sampled(folder, 100.0, range(-14, 14))
    assert "memory-growth" not in of_run(folder, steps=12, warmup_steps=0)
    found = of_run(folder, steps=12, warmup_steps=0, kind="soak")["memory-growth"]
    assert "are full in" in found.message


def test_memory_growth_of_processes(tmp_path: Path) -> None:
    """Of a trainer that writes no memory column, and of workers beside a rank whose own memory is level."""
    for name, mib_per_s, columns in (("a", 1.5, {}), ("b", 1.5, {"host_mem_mib": [900.0] * 60}), ("c", 0.0, {})):
        folder = healthy(tmp_path / name, rate=2048.0, **columns)
        last_s = max(json.loads(line)["ts"] for line in (folder / "heartbeat_rank0.jsonl").read_text().splitlines())
        _sampled(folder, mib_per_s, range(3, int(last_s - START_S)))
        found = of_run(folder).get("memory-growth")
        assert (found is not None) == (mib_per_s > 0), name
        if found is not None:
            assert found.severity == "warning"
            assert "(90 MiB/min); at this rate the 20,000 MiB that are left are full in 3 h 42 min" in found.message
            assert found.evidence[0].path == f"{name}/logs/telemetry.csv"


def test_loader_bound(tmp_path: Path) -> None:
    waits = {r: {"dt_fetch_s": 2.0} for r in (0, 1)}
    assert "41.3 %" in of_run(healthy(tmp_path / "r", rank_fields=waits))["loader-bound"].message
    p95 = {r: {"fetch_p95_ms": 20.0} for r in (0, 1)}
    assert of_run(healthy(tmp_path / "s", rank_fields=p95)) == {}


def test_a_time_that_leaves_the_wait_out(tmp_path: Path) -> None:
    """A wait of three times what a step takes is no part of it: together they are four."""
    waits = {r: {"dt_fetch_s": 3 * 4.847} for r in (0, 1)}
    assert "takes 75 %" in of_run(healthy(tmp_path / "r", rank_fields=waits))["loader-bound"].message


@pytest.mark.parametrize(("utilization", "waits"), [((99, 98), False), ((99, 70), True), ((97, 0), False), ((), True)])
def test_what_a_busy_gpu_waits_for_is_not_the_loader(tmp_path: Path, utilization: tuple[int, ...], waits: bool) -> None:
    """A time that ends behind the copy of a batch to the GPU holds what the GPU still had to do."""
    folder = healthy(tmp_path / "r", rank_fields={r: {"dt_fetch_s": 2.0} for r in (0, 1)})
    (folder / "logs").mkdir()
    names = ",".join(("ts", *(f"gpu{i}_util_pct" for i in range(len(utilization)))))
    rows = "".join(",".join(map(str, (START_S + i, *utilization))) + "\n" for i in range(250))
    (folder / "logs/telemetry.csv").write_text(f"{names}\n{rows}")
    assert ("loader-bound" in of_run(folder)) == waits


def test_comm_bound(tmp_path: Path) -> None:
    own = {r: {"compute_time_s": 2.0} for r in (0, 1)}
    finding = of_run(healthy(tmp_path / "r", rank_fields=own))["comm-bound"]
    assert "58.7 %" in finding.message
    waiting = {r: {"compute_time_s": 2.0, "dt_fetch_s": 2.8} for r in (0, 1)}
    assert set(of_run(healthy(tmp_path / "s", rank_fields=waiting))) == {"loader-bound"}


def _beside(folder: Path, *, host_pct: float, others_pct: float | None, cores: int = 2) -> dict[str, Finding]:
    """Findings on a run of a minute without step times, while so much of all cores was busy, and busy for others."""
    healthy(folder)
    others = "" if others_pct is None else others_pct
    rows = "".join(f"{START_S + i},{host_pct},{others}\n" for i in range(60))
    (folder / "logs").mkdir()
    (folder / "logs/telemetry.csv").write_text("ts,host_cpu_pct,host_other_cpu_pct\n" + rows)
    run = run_of(folder, ended=outcome(duration_s=60.0))
    return of_validation(validation({"baseline": [run]}, environment={"cpu": {"cores_logical": cores}}))


def test_other_programs_on_a_machine_that_is_full(tmp_path: Path) -> None:
    """Steps took two to four times as long beside a build, and the report spoke of clocks, loader and memory."""
    finding = _beside(tmp_path / "a", host_pct=99.0, others_pct=51.0)["busy-host"]
    assert finding.severity == "warning"
    assert "used 51 % of the machine's CPU in 100 % of the samples" in finding.message
    assert finding.next_step.startswith("End the other programs")
    for name, host_pct, others_pct in (("b", 99.0, 4.0), ("c", 60.0, 45.0), ("d", 99.0, None)):
        assert "busy-host" not in _beside(tmp_path / name, host_pct=host_pct, others_pct=others_pct), name
    assert "busy-host" not in _beside(tmp_path / "e", host_pct=99.0, others_pct=20.0, cores=1), "a fifth of one core"
