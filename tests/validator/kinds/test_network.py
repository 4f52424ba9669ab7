"""The kind `network`: the fit of latency and bandwidth, what is named, and whether a value is usual."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.validator.kinds.machines import found, judged
from tests.validator.report import samples
from validator.ingest.network import fit, read_network
from validator.kinds.registry import loads
from validator.model.network import NetworkRecord
from validator.model.result import ScalarValue
from validator.model.verdict import PhaseReport, RunReport, ValidationReport
from validator.runbook import RunbookError
from validator.secrets import masking

SIZES = [2**10 * 4**at for at in range(12)]
"""1 KiB to 4 GiB."""


def rows(bus_gb_s: float, *, ranks: int = 2, late_ms: float = 0.0, wrong: dict[str, Any] | None = None) -> list[Any]:
    """An all-reduce of 20 us latency that reaches this bus bandwidth."""
    share = 2 * (ranks - 1) / ranks
    times = [20e-6 + n * share / bus_gb_s / 1e9 for n in SIZES]
    late = [0.0] * (ranks - 1) + [late_ms / 1e3]
    return [
        {"bytes": n, "seconds": t, "bus_gb_s": n * share / t / 1e9, "late_s": late, "wrong": wrong or {}}
        for n, t in zip(SIZES, times, strict=True)
    ]


def measured(
    folder: Path,
    collectives: dict[str, Any],
    *,
    gpus: int = 2,
    last_go: ValidationReport | None = None,
    connections: Any = None,
    **phase: Any,
) -> PhaseReport:
    write = left_by(collectives, gpus=gpus, connections=connections)
    return judged(folder, {"kind": "network", **phase}, write, gpus=gpus, last_go=last_go)


DIRECT, HOST, SOCKET = "P2P/CUMEM", "SHM/direct/direct", "NET/Socket/0"
SWITCHES = {str(at): {"id": f"0-{60 + 10 * at}", "links": ["NVS/0-0"]} for at in range(8)}
NO_LINKS = {str(at): {"id": f"0-{60 + 10 * at}", "links": []} for at in range(8)}
OFF = {"NCCL_P2P_DISABLE": "1"}


def connected(
    by: dict[tuple[int, int], str] | str,
    *,
    gpus: dict[str, Any] | None = SWITCHES,
    settings: dict[str, str] | None = None,
    copies: tuple[float, float] | None = None,
    **more: Any,
) -> dict[str, Any]:
    """Connections as the probe writes them; `copies` are GB/s between GPUs, and to the host. One transport is that of
    two GPUs."""
    via = {(0, 1): by} if isinstance(by, str) else by
    rank = {
        "version": "2.28.9+cuda13.0",
        "settings": settings or {},
        "gpus": gpus or {},
        "far": [],
        "refused": [],
        **more,
    }
    ranks = [
        {**rank, "log": f"nccl_rank{at}.txt", "via": [[at, b, name] for (a, b), name in via.items() if a == at]}
        for at in range(1 + max((max(pair) for pair in via), default=1))
    ]
    measured = [
        {"from": a, "to": b, "gb_s": copies[0], "host_gb_s": copies[1], "direct": True} for a, b in via if copies
    ]
    return {"ranks": ranks, "copies": measured}


def left_by(collectives: dict[str, Any], *, gpus: int = 2, connections: Any = None) -> Callable[[Path], None]:
    """Writes the record of the collectives."""

    def write(out: Path) -> None:
        devices = [
            {"rank": at, "index": at, "name": "NVIDIA H200", "uuid": f"uuid{at}"} if gpus else {"rank": at}
            for at in range(gpus or 2)
        ]
        record = {"backend": "nccl", "devices": devices, "collectives": collectives, "skipped": {}}
        if connections is not None:
            record["connections"] = connections
        (out / "collectives.json").write_text(json.dumps(record))

    return write


def test_the_fit_gives_latency_and_bandwidth_back() -> None:
    latency, bandwidth = fit(SIZES, [20e-6 + n / 400e9 for n in SIZES])
    assert latency is not None
    assert bandwidth is not None
    assert (latency.value, bandwidth.value) == (pytest.approx(20e-6), pytest.approx(400e9))


def test_the_intervals_of_the_fit_cover_the_truth() -> None:
    noise, covered = random.Random(1), [0, 0]
    for _ in range(400):
        times = [(20e-6 + n / 400e9) * noise.gauss(1, 0.03) for n in SIZES]
        latency, bandwidth = fit(SIZES, times)
        assert latency is not None
        assert bandwidth is not None
        covered[0] += latency.low <= 20e-6 <= latency.high
        covered[1] += bandwidth.low <= 400e9 <= bandwidth.high
    assert min(covered) >= 0.93 * 400, covered


@pytest.mark.parametrize("times", [[], [1e-6], [1e-6, 2e-6], [1e-6] * 4])
def test_few_sizes_or_flat_times_give_no_bandwidth(times: list[float]) -> None:
    assert fit(SIZES[: len(times)], times)[1] is None or len(times) >= 3


def test_a_sound_machine_passes_with_its_curve(tmp_path: Path) -> None:
    names = {name: rows(360.0) for name in ("all_reduce", "all_gather")}
    report = measured(tmp_path, names, accept=["collective.errors == 0", "collective.all_gather_bus_gb_s >= 300"])
    assert report.status == "PASS", report.message
    scalars = {name: one.value for name, one in report.runs[0].scalars.items()}
    assert scalars["collective.all_reduce_bus_gb_s"] == pytest.approx(360, rel=0.01)
    assert scalars["collective.all_reduce_fit_gb_s"] == pytest.approx(360, rel=0.001)
    assert scalars["collective.all_reduce_latency_us"] == pytest.approx(20, rel=0.001)
    by_size, fitted = report.runs[0].tables
    assert (len(by_size.rows), by_size.rows[-1][0]) == (12, "4.0 GiB")
    assert [row[0] for row in fitted.rows] == ["all-reduce", "all-gather"]


def test_a_late_rank_is_named_with_its_collective(tmp_path: Path) -> None:
    report = measured(tmp_path, {"all_reduce": rows(360.0, late_ms=20), "all_gather": rows(360.0)})
    status, message = found(report, "late")
    assert (status, report.status) == ("FAIL", "FAIL")
    assert message.startswith("GPU 1 (NVIDIA H200, uuid1) begins the all-reduce 20 ms after the first")
    assert report.runs[0].scalars["collective.late_ms"].value == 20
    assert found(measured(tmp_path / "b", {"all_reduce": rows(360.0, late_ms=1)}), "late")[0] == "PASS"


def test_wrong_elements_are_charged_to_the_device_that_sent_them(tmp_path: Path) -> None:
    report = measured(tmp_path, {"all_to_all": rows(360.0, wrong={"0": {"1": 7}})}, accept=["collective.errors == 0"])
    assert found(report, "collectives")[1].startswith("84 wrong elements sent by GPU 1 (NVIDIA H200, uuid1)")
    assert [one.status for one in report.criteria if one.id == "it.1"] == ["FAIL"]


def test_an_all_reduce_below_its_public_bound_fails_with_the_source(tmp_path: Path) -> None:
    report = measured(tmp_path / "a", {"all_reduce": rows(150.0, ranks=8)}, gpus=8)
    one = next(one for one in report.criteria if one.id == "it.collective.all_reduce_bus_gb_s")
    assert one.status == "FAIL" or not one.required
    assert any("https://" in seen.text for seen in one.evidence)
    assert found(measured(tmp_path / "b", {"all_reduce": rows(480.0, ranks=8)}, gpus=8), one.id[3:])[0] == "PASS"
    without = found(measured(tmp_path / "c", {"all_reduce": rows(150.0, ranks=3)}, gpus=3), one.id[3:])
    assert without == ("SKIPPED", "NVIDIA H200: measured, no public bound.")


def test_a_rate_below_that_of_the_last_go_is_worth_a_look(tmp_path: Path) -> None:
    name = "collective.all_reduce_bus_gb_s"
    run = RunReport(id="it/r1", scalars={name: ScalarValue(value=400.0, unit="GB/s")})
    phase = PhaseReport(id="it", kind="network", title="it", status="PASS", runs=(run,))
    last_go = samples.go().model_copy(update={"phases": (phase,)})
    report = measured(tmp_path, {"all_reduce": rows(300.0)}, last_go=last_go)
    status, message = found(report, f"usual.{name}")
    assert (status, report.status) == ("FAIL", "PASS")
    assert "-25" in message


def test_gpus_that_nvlink_joins_and_that_talk_through_the_host_fail_with_the_cause(tmp_path: Path) -> None:
    """Two H200 with NV18 and NCCL_P2P_DISABLE=1, as they were measured: 27 GB/s of 345."""
    slow, forced = {"all_reduce": rows(27.2)}, connected(HOST, settings=OFF, copies=(371.0, 55.4))
    report = measured(tmp_path / "a", slow, connections=forced)
    status, message = found(report, "paths")
    assert (status, report.status) == ("FAIL", "FAIL")
    assert message == (
        "GPU 0 (NVIDIA H200, uuid0) and GPU 1 (NVIDIA H200, uuid1) reach each other through the host's memory "
        "(SHM/direct/direct), although NVLink joins them and copies between them reach 371 GB/s: the all-reduce "
        "carries 27.2 GB/s. NCCL_P2P_DISABLE=1 (set in the environment) forbids the direct path."
    )
    one = next(one for one in report.criteria if one.id == "it.paths")
    assert str(one.evidence[0].path).endswith("/nccl_rank0.txt")
    table = report.runs[0].tables[-1]
    assert table.rows == (("GPU 0 and GPU 1", HOST, "through the host's memory", "yes", 371.0),)
    own = connected(SOCKET, settings={**OFF, "NCCL_SHM_DISABLE": "1"}, configured=["NCCL_P2P_DISABLE"])
    message = found(measured(tmp_path / "b", slow, connections=own), "paths")[1]
    assert "over the network (NET/Socket/0)" in message
    assert "NCCL_P2P_DISABLE=1 (set in NCCL's own file" in message
    assert "NCCL_SHM_DISABLE=1 (set in the environment)" in message
    refused = "P2P is disabled between connected GPUs 1 and 0. You can repress this message."
    message = found(measured(tmp_path / "c", slow, connections=connected(HOST, refused=[refused])), "paths")[1]
    assert "NCCL says: P2P is disabled between connected GPUs 1 and 0" in message


MESH = {(0, 1): DIRECT, (2, 3): DIRECT, (1, 2): HOST, (0, 3): HOST}
BRIDGES = {str(at): {"id": f"{at + 1}000", "links": [f"GPU/{other + 1}000"]} for at, other in enumerate((1, 0, 3, 2))}


@pytest.mark.parametrize(
    ("connections", "gpus", "status", "said"),
    [
        (connected(DIRECT), 2, "PASS", "1 pair from GPU to GPU (P2P/CUMEM)."),
        (connected("P2P/IPC/read", gpus=None), 2, "PASS", "from GPU to GPU"),
        (connected("P2P/of 2.40"), 2, "PASS", "from GPU to GPU"),
        (
            connected(HOST, gpus=NO_LINKS),
            2,
            "PASS",
            "through the host's memory (SHM/direct/direct). No NVLink is known",
        ),
        (connected(HOST, gpus=NO_LINKS, copies=(25.0, 12.0)), 2, "PASS", "No NVLink is known"),
        (connected(HOST, gpus=None, copies=(26.0, 25.0)), 2, "PASS", "No NVLink is known"),
        (connected(HOST, gpus=None, copies=(240.0, 25.0)), 2, "FAIL", "although copies between them reach 240 GB/s"),
        (connected("direct shared memory"), 2, "FAIL", "although NVLink joins them"),
        (connected("NET/IB/0/GDRDMA"), 2, "FAIL", "over the network"),
        (connected(MESH, gpus=BRIDGES), 4, "PASS", "2 pairs from GPU to GPU (P2P/CUMEM); 2 pairs through the host"),
        (connected({**MESH, (2, 3): HOST}, gpus=BRIDGES), 4, "FAIL", "GPU 2 (NVIDIA H200, uuid2) and GPU 3"),
        (connected("SHM/direct/dirnode:42"), 2, "SKIPPED", "The transports are not known"),
        (connected("XYZ/0"), 2, "SKIPPED", "NCCL 2.28.9+cuda13.0"),
        (connected({}), 2, "SKIPPED", "not known"),
        (None, 2, "SKIPPED", "not known"),
        ({"ranks": 3, "copies": [None, {"from": "x"}]}, 2, "SKIPPED", "not known"),
        ({"ranks": [{"via": [[0], [0, "1", 2], None], "gpus": {"a": 3, "0": {}}, "settings": []}]}, 2, "SKIPPED", ""),
    ],
)
def test_only_what_could_be_direct_fails(tmp_path: Path, connections: Any, gpus: int, status: str, said: str) -> None:
    names = {"all_reduce": rows(27.2, ranks=gpus)}
    report = measured(tmp_path, names, gpus=gpus, connections=connections)
    is_now, message = found(report, "paths")
    assert (is_now, report.status) == (status, "FAIL" if status == "FAIL" else "PASS")
    assert said in message


@pytest.mark.parametrize(
    ("bus_gb_s", "copies", "status"),
    [
        (27.2, (371.0, 55.4), "FAIL"),
        (345.0, (371.0, 55.4), "SKIPPED"),
        (60.0, (371.0, 55.4), "SKIPPED"),
        (20.0, (26.0, 25.0), "SKIPPED"),
    ],
)
def test_where_no_transport_is_known_copies_decide_what_is_clear(
    tmp_path: Path, bus_gb_s: float, copies: tuple[float, float], status: str
) -> None:
    unknown = connected("of another version", copies=copies)
    report = measured(tmp_path / "a", {"all_reduce": rows(bus_gb_s)}, connections=unknown)
    assert found(report, "paths")[0] == status
    short = {"all_reduce": rows(bus_gb_s)[:8]}
    assert found(measured(tmp_path / "b", short, connections=unknown), "paths")[0] == "SKIPPED", "latency counts there"


def test_one_gpu_has_nothing_to_measure_and_passes(tmp_path: Path) -> None:
    report = measured(tmp_path, {}, gpus=1, accept=["collective.errors == 0"])
    assert report.status == "PASS"
    assert found(report, "collectives")[1] == "One GPU: there is nothing to measure between GPUs."
    with pytest.raises(RunbookError, match="it needs two GPUs"):
        loads(
            "schema: 1\nname: a\nhardware: {gpus: 1}\nphases:\n"
            "  - {id: n, kind: network, accept: [collective.all_reduce_bus_gb_s >= 1]}\n"
        )


def test_what_was_read_can_be_masked() -> None:
    """A validation hides secrets in what it read before it judges that."""
    record = read_network({"backend": "token=hunter2abc", "collectives": {"all_reduce": rows(300.0)}}, "c.json")
    masked = masking._clean_account(record)
    assert isinstance(masked, NetworkRecord)
    assert "hunter2abc" not in masked.backend
    assert masked.curves == record.curves


def test_no_collective_is_no_pass(tmp_path: Path) -> None:
    assert measured(tmp_path, {}).status == "INCONCLUSIVE"


@pytest.mark.parametrize(
    "bad", [None, [], 3, {"all_reduce": 3}, {"all_reduce": [3, {"bytes": "x"}, {"late_s": [None]}]}]
)
def test_no_record_raises(tmp_path: Path, bad: Any) -> None:
    assert measured(tmp_path, bad).status == "INCONCLUSIVE"
