"""What the validator samples of the machine during a run, laid onto its steps."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.validator.ingest.folders import (
    START_S,
    healthy,
    outcome,
    spec,
    write_arrivals,
    write_csv,
)
from validator.ingest import collect_run
from validator.model.result import InvalidWindow


def test_the_machines_samples_are_laid_onto_steps(tmp_path: Path) -> None:
    """Steps 1 to 6 end 5 to 10 s after the start; rank 0's clock tells."""
    healthy(tmp_path)
    rows = [(4.0, 5, 0), (5.2, 10, 0), (5.8, 30, 0), (7.5, 50, 4), (8.5, 60, 0x28), (9.5, 70, 0x40), (99.0, 99, 8)]
    lines = [f"{START_S + t},{cpu},,{mask}" for t, cpu, mask in rows]
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs/telemetry.csv").write_text(
        "ts,host_cpu_pct,disk_free_mib,gpu0_throttle_mask\n" + "\n".join(lines) + "\n17600000"
    )
    result = collect_run(spec(), run_dir=tmp_path, outcome=outcome())
    cpu = result.series["telemetry.host_cpu_pct"]
    assert cpu.steps.tolist() == [2, 4, 5, 6]
    assert cpu.values.tolist() == [20, 50, 60, 70]
    assert cpu.unit == "%"
    assert result.series["host_cpu_pct"].values.tolist() == cpu.values.tolist()
    assert not {"telemetry.disk_free_mib", "gpu_power_w"} & result.series.keys()
    reason = "gpu0 throttled: hardware slowdown, software thermal slowdown"
    assert result.evidence.invalid_windows == [InvalidWindow(5, 6, reason, "logs/telemetry.csv")]
    assert result.irregularities == ()


def test_foreign_processes_and_driver_events_spoil_the_steps_beside_them(tmp_path: Path) -> None:
    healthy(tmp_path)
    rows = [(5.5, "", 0), (6.5, "", 1), (7.5, "", 1), (8.5, 79, 0), (9.5, 63, 0)]
    lines = [f"{START_S + t},{xid},{foreign}" for t, xid, foreign in rows]
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs/telemetry.csv").write_text("ts,xid,gpu1_foreign_processes\n" + "\n".join(lines) + "\n")
    stranger = {"ts": START_S + 6.4, "gpu": 1, "pid": 4711, "name": "/usr/bin/python3", "used_mib": 2048}
    (tmp_path / "logs/gpu_processes.jsonl").write_text(json.dumps(stranger) + "\n{torn")
    windows = collect_run(spec(), run_dir=tmp_path, outcome=outcome()).evidence.invalid_windows
    assert [(one.first_step, one.last_step, one.reason) for one in windows] == [
        (5, 5, "driver event Xid 79: the GPU has fallen off the bus; reboot the machine"),
        (3, 4, "gpu1 was used by another program: pid 4711 (/usr/bin/python3, 2048 MiB)"),
    ]


@pytest.mark.parametrize("burst", [False, True])
def test_without_heartbeats_the_samples_are_laid_onto_the_rows_as_they_arrive(tmp_path: Path, burst: bool) -> None:
    """Rows that come together, as from a buffer, say of no step when it ended."""
    write_csv(tmp_path, [100.0] * 6)
    write_arrivals(tmp_path, [1.0, *([0.0] * 4 if burst else [1.0] * 4), 1.0])  # step 1 ends 4 s after the start
    rows = [(3.0, 10, 0), (5.5, 20, 4), (6.5, 30, 0x28), (8.5, 40, 0)]
    lines = [f"{START_S + t},{cpu},{mask}" for t, cpu, mask in rows]
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs/telemetry.csv").write_text("ts,host_other_cpu_pct,gpu0_throttle_mask\n" + "\n".join(lines) + "\n")
    result = collect_run(spec(), run_dir=tmp_path, outcome=outcome())
    windows = [(one.first_step, one.last_step) for one in result.evidence.invalid_windows]
    if burst:
        assert "telemetry.host_other_cpu_pct" not in result.series
        assert windows == [(1, 6)]
    else:
        assert result.series["telemetry.host_other_cpu_pct"].steps.tolist() == [3, 4, 6]
        assert windows == [(4, 4)]


@pytest.mark.parametrize("text", ["", "\n", "ts,x\n", "a,b\n1,2\n", "ts,gpu0_throttle_mask\nnan,nan\ninf,1e400\n"])
def test_broken_telemetry_gives_nothing(tmp_path: Path, text: str) -> None:
    healthy(tmp_path)
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs/telemetry.csv").write_text(text)
    result = collect_run(spec(), run_dir=tmp_path, outcome=outcome())
    assert not any(name.startswith("telemetry.") for name in result.series)
    assert not result.evidence.invalid_windows
