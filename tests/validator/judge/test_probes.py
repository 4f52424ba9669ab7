"""Bounds of the probes: by card, link and number, and never a pass for what was not measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.validator.judge.samples import runbook
from validator.ingest import collect_run
from validator.judge import judge_phase
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


def judged(
    folder: Path,
    rates: dict[str, float] | None,
    *,
    rc: int = 0,
    links: str = "1,16\n4,16\n",
    counters: dict[str, int] | None = None,
    all_reduce: float = 200.0,
    payload_gib: float = 1.0,
    card: str = A100,
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
        slow["all_reduce"] = {"value": all_reduce, "unit": "GB/s", "latency_us": 30.0, "bytes": payload_gib * 2**30}
        fast = {
            key: {"value": rate["value"] * 1.1, "best": rate["value"] * 1.2, "unit": "x"} for key, rate in slow.items()
        }
        (out / "probe.json").write_text(json.dumps({"rates": slow, "ranks": [slow, fast]}))
    (out / "logs" / "telemetry.csv").write_text(
        "ts,gpu0_pcie_gen,gpu0_pcie_width\n" + "".join(f"{ts},{line}\n" for ts, line in enumerate(links.split()))
    )
    if counters is not None:
        record = {"schema_version": 1, "seconds": 30.0, "before": {"GPU 0 pcie_replays": 7}, "after": counters}
        (out / "logs" / "counters.json").write_text(json.dumps(record))
    attempt = Attempt(
        number=1, command=spec.argv, pid=1, started="2026-01-01T00:00:00Z", duration_s=9.0, rc=rc, reason="exited"
    )
    outcome = Outcome(run=spec.id, attempts=(attempt,))
    run = RunRecord(spec, outcome, collect_run(spec, run_dir=folder, outcome=outcome, read=kind_of("preflight").read))
    record = PhaseRecord(phase=book.phases[0], state="done", runs=(run,))
    whole = ValidationRecord(book, (record,), environment=machine(card, 2, nvlinks=12))
    return judge_phase(record, validation=whole, judged={})


def statuses(report: PhaseReport) -> dict[str, str]:
    return {one.id.removeprefix("preflight."): one.status for one in report.criteria}


def test_a_sound_machine_passes_and_its_rates_are_figures(tmp_path: Path) -> None:
    report = judged(tmp_path, GOOD, accept=("probe.gemm_tflops >= 250 TFLOP/s", "probe.all_reduce_latency_us < 100 us"))
    assert report.status == "PASS", report.message
    assert set(statuses(report).values()) == {"PASS", "SKIPPED"}
    assert [name for name, status in statuses(report).items() if status == "SKIPPED"] == ["counters"]
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


@pytest.mark.parametrize(
    ("rate", "payload_gib", "status"),
    [(25.0, 1.0, "FAIL"), (180.0, 1.0, "PASS"), (180.0, 16.0, "FAIL"), (194.0, 16.0, "PASS"), (25.0, 0.25, "SKIPPED")],
)
def test_an_all_reduce_is_compared_at_its_payload(tmp_path: Path, rate: float, payload_gib: float, status: str) -> None:
    """The source's 193 GB/s are at 16 GiB; at 1 GiB nine tenths of it decide."""
    report = judged(tmp_path, GOOD, all_reduce=rate, payload_gib=payload_gib)
    assert statuses(report)["probe.all_reduce_gb_s"] == status
    assert report.status == ("FAIL" if status == "FAIL" else "PASS"), report.message


def test_a_failed_bound_names_its_source_and_what_it_costs(tmp_path: Path) -> None:
    report = judged(tmp_path, {**GOOD, "host_to_device": 12.0})
    (failed,) = (one for one in report.criteria if one.status == "FAIL")
    assert "loading batches" in failed.message
    assert any("https://github.com/Azure" in one.text for one in failed.evidence)


def test_a_card_without_public_bounds_is_measured_and_not_judged(tmp_path: Path) -> None:
    report = judged(tmp_path, GOOD, card="NVIDIA GeForce RTX 4090")
    assert report.status == "PASS", report.message
    (bounds,) = (one for one in report.criteria if one.id == "preflight.bounds")
    assert (bounds.status, bounds.required) == ("SKIPPED", False)
    assert "NVIDIA GeForce RTX 4090, measured, no public bound: probe.gemm_best_tflops" in bounds.message
    assert not [one for one in report.criteria if one.id == "preflight.probe.copy_gb_s"]


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


@pytest.mark.parametrize(
    ("counters", "status", "decision", "words"),
    [
        (None, "SKIPPED", "PASS", "Nobody counted"),
        ({"GPU 0 pcie_replays": 60, "GPU 0 nvlink_replays": 9}, "PASS", "PASS", "No link"),
        ({"GPU 0 pcie_replays": 107}, "FAIL", "PASS", "GPU 0 counted 100 pcie replays under load"),
        ({"mlx5_0:1 symbol_error": 2}, "FAIL", "PASS", "mlx5_0:1 counted 2 symbol error under load: packets"),
        ({"GPU 1 ecc_uncorrected": 1}, "FAIL", "FAIL", "GPU 1 counted 1 ecc uncorrected under load"),
    ],
)
def test_errors_under_load_are_named_and_only_grave_ones_decide(
    tmp_path: Path, counters: dict[str, int] | None, status: str, decision: str, words: str
) -> None:
    report = judged(tmp_path, GOOD, counters=counters)
    (found,) = (one for one in report.criteria if one.id == "preflight.counters")
    assert (found.status, report.status) == (status, decision)
    assert words in found.message
