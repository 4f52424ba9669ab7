"""Bounds of the probes: by card, link and number, and never a pass for what was not measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.validator.judge.samples import runbook
from validator.ingest import collect_run
from validator.judge import judge_phase
from validator.kinds.preflight import bounds_for
from validator.kinds.registry import kind_of
from validator.model.record import Attempt, Outcome, PhaseRecord, RunRecord, ValidationRecord
from validator.model.verdict import PhaseReport
from validator.plan import plan_phase
from validator.text import quoted

A100 = "NVIDIA A100 80GB PCIe"
GOOD = {"gemm_bf16": 255.0, "copy": 1400.0, "host_to_device": 24.5, "device_to_host": 25.0, "peer_to_peer": 260.0}


def machine(name: str, count: int, *, nvlinks: int | None) -> dict[str, Any]:
    card = {"name": name, "nvlinks_active": nvlinks, "pcie_gen_max": 4, "pcie_width_max": 16}
    return {"gpus": {f"gpu{index}": dict(card) for index in range(count)}}


def least(name: str, count: int, *, nvlinks: int | None) -> dict[str, float]:
    return {
        b.name.removeprefix("probe."): b.least for b in bounds_for(machine(name, count, nvlinks=nvlinks), gpus=count)
    }


def test_bounds_follow_card_link_and_number() -> None:
    alone = {"gemm_best_tflops": 227.7, "copy_gb_s": 970.0, "host_to_device_gb_s": 21.0}
    assert least(A100, 1, nvlinks=None) == alone
    assert least(A100, 2, nvlinks=12) == {**alone, "peer_gb_s": 238.0, "all_reduce_gb_s": 193.0}
    assert least(A100, 2, nvlinks=0) == {**alone, "all_reduce_gb_s": 20.0}
    assert least("NVIDIA A100-SXM4-80GB", 8, nvlinks=12)["all_reduce_gb_s"] == 228.0
    h100 = least("NVIDIA H100 80GB HBM3", 8, nvlinks=18)
    assert h100 == {
        "gemm_best_tflops": 715.5,
        "host_to_device_gb_s": 48.0,
        "peer_gb_s": 335.0,
        "all_reduce_gb_s": 460.0,
    }
    assert "all_reduce_gb_s" not in least("NVIDIA H100 80GB HBM3", 2, nvlinks=18), "460 is what eight reach"


def test_bounds_of_a_relative_are_told_and_not_required() -> None:
    bounds = bounds_for(machine("NVIDIA H200", 2, nvlinks=18), gpus=2)
    assert {bound.required for bound in bounds} == {False}


def test_a_card_in_no_list_has_no_bounds() -> None:
    assert least("NVIDIA GeForce RTX 4090", 1, nvlinks=None) == {}
    mixed = {"gpus": {"gpu0": {"name": A100}, "gpu1": {"name": "NVIDIA H200"}}}
    assert bounds_for(mixed, gpus=2) == ()


def judged(
    folder: Path,
    rates: dict[str, float] | None,
    *,
    rc: int = 0,
    links: str = "1,16\n4,16\n",
    all_reduce: float = 200.0,
    accept: tuple[str, ...] = (),
) -> PhaseReport:
    """A preflight of two A100 with a bridge whose probes measured these rates on rank 0; rank 1 is a tenth faster."""
    book = runbook(
        {"id": "preflight", "kind": "preflight", "accept": list(accept)}, hardware={"gpus": 2}, defaults={"nproc": 2}
    )
    (spec,) = plan_phase(book, book.phases[0], run_dir=folder).runs
    out = folder / spec.out
    (out / "logs").mkdir(parents=True)
    if rates is not None:
        slow = {key: {"value": value, "best": value * 1.02, "unit": "x"} for key, value in rates.items()}
        slow["all_reduce"] = {"value": all_reduce, "unit": "GB/s", "latency_us": 30.0}
        fast = {
            key: {"value": rate["value"] * 1.1, "best": rate["value"] * 1.2, "unit": "x"} for key, rate in slow.items()
        }
        (out / "probe.json").write_text(json.dumps({"rates": slow, "ranks": [slow, fast]}))
    (out / "logs" / "telemetry.csv").write_text(
        "ts,gpu0_pcie_gen,gpu0_pcie_width\n" + "".join(f"{ts},{line}\n" for ts, line in enumerate(links.split()))
    )
    attempt = Attempt(
        number=1, command=spec.argv, pid=1, started="2026-01-01T00:00:00Z", duration_s=9.0, rc=rc, reason="exited"
    )
    outcome = Outcome(run=spec.id, attempts=(attempt,))
    run = RunRecord(spec, outcome, collect_run(spec, run_dir=folder, outcome=outcome, read=kind_of("preflight").read))
    record = PhaseRecord(phase=book.phases[0], state="done", runs=(run,))
    whole = ValidationRecord(book, (record,), environment=machine(A100, 2, nvlinks=12))
    return judge_phase(record, validation=whole, judged={})


def statuses(report: PhaseReport) -> dict[str, str]:
    return {one.id.removeprefix("preflight."): one.status for one in report.criteria}


def test_a_sound_machine_passes_and_its_rates_are_figures(tmp_path: Path) -> None:
    report = judged(tmp_path, GOOD, accept=("probe.gemm_tflops >= 250 TFLOP/s", "probe.all_reduce_latency_us < 100 us"))
    assert report.status == "PASS", report.message
    assert set(statuses(report).values()) == {"PASS"}
    scalars = report.runs[0].scalars
    assert (scalars["probe.gemm_tflops"].value, scalars["probe.all_reduce_gb_s"].value) == (255.0, 200.0)
    assert report.runs[0].tables[0].rows[0] == ("gemm_bf16", "x", 255.0, 280.5)


@pytest.mark.parametrize(
    ("what", "value", "name"),
    [("gemm_bf16", 200.0, "probe.gemm_best_tflops"), ("host_to_device", 12.0, "probe.host_to_device_gb_s")],
)
def test_the_slowest_card_decides(tmp_path: Path, what: str, value: float, name: str) -> None:
    report = judged(tmp_path, {**GOOD, what: value})
    assert report.status == "FAIL"
    assert statuses(report)[name] == "FAIL"
    assert "check clocks" in report.message


def test_a_slow_all_reduce_fails(tmp_path: Path) -> None:
    assert statuses(judged(tmp_path, GOOD, all_reduce=25.0))["probe.all_reduce_gb_s"] == "FAIL"


def test_what_was_not_measured_is_no_pass(tmp_path: Path) -> None:
    report = judged(tmp_path, {key: value for key, value in GOOD.items() if key != "peer_to_peer"})
    assert (report.status, statuses(report)["probe.peer_gb_s"]) == ("INCONCLUSIVE", "INCONCLUSIVE")


def test_probes_that_fail_or_leave_nothing_fail_the_phase(tmp_path: Path) -> None:
    assert statuses(judged(tmp_path / "a", None, rc=1))["probe"] == "FAIL"
    silent = judged(tmp_path / "b", None)
    assert silent.status == "FAIL"
    assert "no record" in silent.message


def test_pcie_counts_at_its_best_under_load(tmp_path: Path) -> None:
    assert statuses(judged(tmp_path / "a", GOOD, links="1,16\n4,16\n"))["probe.pcie_gen"] == "PASS"
    narrow = judged(tmp_path / "b", GOOD, links="1,8\n4,8\n")
    assert statuses(narrow)["probe.pcie_width"] == "FAIL"
    assert narrow.status == "PASS", "the bound of the transfer decides"


def test_the_probe_runs_where_there_are_gpus_or_where_it_is_asked_for(tmp_path: Path) -> None:
    phase = {"id": "preflight", "kind": "preflight"}
    for gpus, probe, words in (
        (2, None, ("torch.distributed.run", "nsa.probe", "cuda")),
        (1, None, ("nsa.probe", "cuda")),
        (0, True, ("nsa.probe", "cpu")),
        (0, None, ()),
        (2, False, ()),
    ):
        book = runbook({**phase, **({} if probe is None else {"probe": probe})}, hardware={"gpus": gpus})
        runs = plan_phase(book, book.phases[0], run_dir=tmp_path).runs
        assert len(runs) == bool(words)
        assert all(word in " ".join(runs[0].argv) for word in words)


def test_evidence_quotes_what_can_be_read() -> None:
    assert quoted(773.7262294751525) == "773.7262"
    assert (quoted(5.0), quoted(1e9), quoted(3), quoted("all 4 lanes")) == ("5", "1000000000", "3", "all 4 lanes")
