"""What phases that measure the machine show: which device it is, what to do, and a command; and healthy twins."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.validator.kinds import test_burnin, test_determinism, test_network
from tests.validator.kinds.machines import explained, machine
from tests.validator.report import samples
from validator.ingest.other_programs import read_other_programs
from validator.ingest.read_log import ReadLog
from validator.model.nodes import NodeRecord
from validator.model.verdict import Finding, PhaseReport, ValidationReport
from validator.report.machine_ticket import machine_ticket
from validator.report.terminal.summary import summary_lines
from validator.runs.folder import ReportPaths

Write = Callable[[Path], None]


def shown(folder: Path, kind: str, write: Write, *, gpus: int = 2, **phase: Any) -> tuple[PhaseReport, list[Finding]]:
    """The phase, and what was found but for what is not known of it."""
    found = explained(folder, {"kind": kind, **phase}, lambda spec, out: write(out), gpus=gpus)
    return found[0], [one for one in found[1] if one.code != "not-judged"]


def a_wrong_element(rank: int, lines: list[dict[str, Any]]) -> None:
    if rank == 1:
        lines[2]["products"]["bf16"] |= {"wrong": 12, "again": []}


def probed(rates: dict[str, list[float]]) -> Write:
    """A probe of as many ranks as each rate has values."""

    def write(out: Path) -> None:
        count = len(next(iter(rates.values())))
        one = [
            {k: {"value": v[rank], "best": v[rank], "unit": "GB/s"} for k, v in rates.items()} for rank in range(count)
        ]
        (out / "probe.json").write_text(json.dumps({"rates": one[0], "ranks": one}))

    return write


SOUND = {
    "gemm_bf16": [799.2, 788.1],
    "copy": [4134.7, 4151.2],
    "host_to_device": [55.5, 55.4],
    "device_to_host": [55.3, 55.4],
    "peer_to_peer": [371.0, 370.5],
}
"""Of two H200 with NVLink, measured."""


@pytest.mark.parametrize(
    ("kind", "write"),
    [
        ("burnin", test_burnin.left_by()),
        ("network", test_network.left_by({"all_reduce": test_network.rows(340.0)})),
        ("preflight", probed(SOUND)),
    ],
)
def test_a_healthy_machine_has_no_finding(tmp_path: Path, kind: str, write: Write) -> None:
    more = {"probe": True} if kind == "preflight" else {}
    report, found = shown(tmp_path, kind, write, **more)
    assert (report.status, found) == ("PASS", []), report.message


@pytest.mark.parametrize(
    ("kind", "write", "code", "device", "command"),
    [
        ("burnin", test_burnin.left_by(a_wrong_element), "device-corrupts", "GPU 1", "cat {run}/ticket.txt"),
        ("burnin", test_burnin.left_by(test_burnin.scale(0.38)), "device-slow", "GPU 1", "nvidia-smi -i 1 -q"),
        ("burnin", test_burnin.left_by(mask=0x40, hot=94.0), "throttled", "GPU 1", "nvidia-smi -q"),
        (
            "network",
            test_network.left_by({"all_reduce": test_network.rows(340.0, late_ms=20.34)}),
            "rank-late",
            "GPU 1",
            "ps -eo pid,psr,pcpu,args",
        ),
        (
            "network",
            test_network.left_by({"all_reduce": test_network.rows(340.0, wrong={"0": {"1": 3}})}),
            "device-corrupts",
            "GPU 1",
            "cat {run}/ticket.txt",
        ),
        (
            "network",
            test_network.left_by(
                {"all_reduce": test_network.rows(27.2)},
                connections=test_network.connected(test_network.HOST, settings=test_network.OFF, copies=(371.0, 55.4)),
            ),
            "path-through-host",
            "GPU 1",
            "nvidia-smi topo -p2p r",
        ),
        ("preflight", probed(SOUND | {"gemm_bf16": [799.0, 306.0]}), "device-slow", "Rank 1", "nvidia-smi -q"),
        ("preflight", probed(SOUND | {"peer_to_peer": [41.0, 40.5]}), "link-slow", "NVLink", "nvidia-smi topo -m"),
        ("preflight", probed(SOUND | {"host_to_device": [55.0, 12.0]}), "link-slow", "Rank 1", "nvidia-smi topo -m"),
    ],
)
def test_a_fault_has_one_cause_with_its_device_and_a_step(
    tmp_path: Path, kind: str, write: Write, code: str, device: str, command: str
) -> None:
    more = {"probe": True} if kind == "preflight" else {}
    report, found = shown(tmp_path, kind, write, **more)
    assert report.status == "FAIL"
    assert [one.code for one in found] == [code]
    assert (found[0].severity, found[0].confidence) == ("warning", "high")
    assert device in found[0].message
    assert code == "path-through-host" or "GPU 0" not in found[0].message
    assert found[0].command.startswith(command)
    assert agrees(report, found[0], tmp_path)


def agrees(report: PhaseReport, finding: Finding, folder: Path) -> bool:
    """Terminal and ticket say what the finding says."""
    changes = {"phases": (report,), "findings": (finding,), "decision": "NO_GO", "exit_code": 1, "fleet": None}
    whole: ValidationReport = samples.go().model_copy(update=changes)
    names = ("result.json", "report.html", "report.md", "junit.xml", "recommended.env")
    text = "\n".join(summary_lines(whole, ReportPaths(*(folder / name for name in names)), width=2000))
    step = text.partition("\nNext    ")[2].partition("\n")[0]
    command = text.partition("\nCommand ")[2].partition("\n")[0]
    assert "No known cause" not in text
    assert step == finding.next_step
    assert command.startswith(finding.command.partition("{")[0])
    assert "{run}" not in command
    return f"{finding.code}: {finding.message}" in machine_ticket(whole)


def test_a_path_that_the_user_forbids_is_the_users_to_free(tmp_path: Path) -> None:
    """The setting comes first; without one the driver, the IOMMU and the container."""
    slow = {"all_reduce": test_network.rows(27.2)}
    for name, settings, said in (("a", test_network.OFF, "Unset NCCL_P2P_DISABLE"), ("b", {}, "IOMMU")):
        connections = test_network.connected(test_network.HOST, settings=settings)
        write = test_network.left_by(slow, connections=connections)
        report, (found,) = shown(tmp_path / name, "network", write)
        assert said in found.next_step
        changes = {"phases": (report,), "findings": (found,), "decision": "NO_GO", "exit_code": 1, "fleet": None}
        assert "Before this is sent: " in machine_ticket(samples.go().model_copy(update=changes))


@pytest.mark.parametrize(
    ("connections", "ports", "said"),
    [
        (
            test_network.connected(test_network.HOST, gpus=test_network.NO_LINKS, settings=test_network.OFF),
            {},
            "because of NCCL_P2P_DISABLE=1",
        ),
        (test_network.connected(test_network.HOST, gpus=test_network.NO_LINKS), {}, None),
        (
            test_network.connected(test_network.DIRECT, far=["NET/Socket/0"], settings={"NCCL_IB_DISABLE": "1"}),
            {"mlx5_0:1": {"kind": "InfiniBand", "state": "ACTIVE"}, "mlx5_1:1": {"kind": "RoCE", "state": "DOWN"}},
            "though mlx5_0:1 is active; set: NCCL_IB_DISABLE=1",
        ),
        (test_network.connected(test_network.DIRECT, far=["NET/Socket/0"]), {}, None),
        (
            test_network.connected(test_network.DIRECT, far=["NET/IB/0/GDRDMA"]),
            {"mlx5_0:1": {"kind": "InfiniBand", "state": "ACTIVE"}},
            None,
        ),
    ],
)
def test_a_slower_path_by_choice_is_information(
    tmp_path: Path, connections: Any, ports: dict[str, Any], said: str | None
) -> None:
    write = test_network.left_by({"all_reduce": test_network.rows(300.0)}, connections=connections)
    facts = {**machine(2), "paths": {"ports": ports}}
    report, every = explained(tmp_path, {"kind": "network"}, lambda spec, out: write(out), gpus=2, facts=facts)
    found = [one for one in every if one.code == "path-through-host"]
    assert report.status == "PASS"
    assert [one.severity for one in found] == ([] if said is None else ["info"])
    assert all(said in one.message for one in found if said)


def test_a_path_through_the_host_is_told_from_a_slow_link(tmp_path: Path) -> None:
    """2 × H200 with peer access forbidden copy through the host; 300 GB/s is NVLink with links that are down."""
    (forced,) = shown(tmp_path / "a", "preflight", probed(SOUND | {"peer_to_peer": [41.0, 40.5]}), probe=True)[1]
    assert "copy to each other at 40.5 GB/s, no faster than to the host" in forced.message
    (weak,) = shown(tmp_path / "b", "preflight", probed(SOUND | {"peer_to_peer": [300.0, 300.0]}), probe=True)[1]
    assert weak.code == "link-slow"
    assert "host" not in weak.message


def test_a_slow_gpu_beside_another_program_is_told_once_and_as_that(tmp_path: Path) -> None:
    report, found = shown(tmp_path / "a", "burnin", test_burnin.beside(load=373), gpus=1)
    assert [one.code for one in found] == ["busy-gpu"]
    assert "GPU 0: pid 4808 (python3, 1002 MiB)" in found[0].message
    assert (found[0].severity, found[0].confidence) == ("warning", "high")
    assert agrees(report, found[0], tmp_path)
    _, late = shown(tmp_path / "b", "burnin", test_burnin.beside(load=373, since=20), gpus=1)
    assert [(one.code, one.confidence) for one in late] == [("busy-gpu", "medium")], "its use cannot be told from ours"


def test_a_program_that_only_holds_memory_is_no_reason(tmp_path: Path) -> None:
    def write(out: Path) -> None:
        test_burnin.beside(load=740, idle=True)(out)

    report, found = shown(tmp_path, "burnin", write, gpus=1)
    assert report.status == "PASS"
    assert [(one.code, one.severity) for one in found] == [("busy-gpu", "info")]
    assert "held memory of GPU 0" in found[0].message


@pytest.mark.parametrize(
    ("where", "confidence", "said"),
    [
        ([("gpu1", 1), ("gpu1", 2)], "medium", "which of them is wrong"),
        ([("gpu1", 2)], "high", "Do not train on GPU 1"),
    ],
)
def test_losses_that_differ_between_gpus_have_a_next_step(
    tmp_path: Path, where: list[tuple[str, int]], confidence: str, said: str
) -> None:
    write = test_determinism.wrote(test_determinism.wrong(*where))
    report, every = explained(tmp_path, {"kind": "determinism", "steps": 3}, write, gpus=2)
    (found,) = (one for one in every if one.severity == "warning")
    assert (report.status, found.code, found.confidence) == ("FAIL", "devices-differ", confidence)
    assert said in found.next_step
    assert "--only burnin" in found.command
    assert agrees(report, found, tmp_path)


def test_workers_of_a_cpu_share_cores_by_right(tmp_path: Path) -> None:
    def edit(rank: int, lines: list[dict[str, Any]]) -> None:
        for one in lines[1:-1] if rank else ():
            one["products"]["fp32"]["tflops"] *= 0.5

    report, found = shown(tmp_path, "burnin", test_burnin.left_by(edit, gpus=0), gpus=0)
    assert (report.status, [(one.code, one.severity) for one in found]) == ("PASS", [("device-slow", "info")])


# Other programs, by the samples of nodes.


def sampled(folder: Path, gpu: int, rows: list[tuple[float, int, int, int]]) -> None:
    """Second, utilization, processes, those of others."""
    folder.mkdir(parents=True)
    head = f"ts,gpu{gpu}_util_pct,gpu{gpu}_processes,gpu{gpu}_foreign_processes"
    (folder / "telemetry.csv").write_text("\n".join([head, *(",".join(map(str, one)) for one in rows)]) + "\n")


def at(*parts: tuple[int, int, int]) -> list[tuple[float, int, int, int]]:
    """Ten samples in a second for each part."""
    return [(1000 + part + step / 10, *row) for part, row in enumerate(parts) for step in range(10)]


def node(name: str, *, group: int, rank: int) -> NodeRecord:
    return NodeRecord.model_validate(
        {"node": name, "group": group, "rank": rank, "host": "h", "ended": "exited", "rc": 0}
    )


def test_each_node_is_read_where_its_part_lies(tmp_path: Path) -> None:
    loaded, quiet = at((100, 1, 1), (100, 1, 1), (100, 2, 1)), at((0, 0, 0), (0, 0, 0), (100, 1, 0))
    sampled(tmp_path / "a" / "g0" / "logs", 0, quiet)
    sampled(tmp_path / "a" / "g1" / "logs", 1, loaded)
    nodes = (node("n1", group=0, rank=0), node("n2", group=1, rank=0))
    (found,) = read_other_programs(tmp_path / "a", nodes, 2, ReadLog(tmp_path))
    assert (found.node, found.gpu, found.computes, found.alone_pct) == ("n2", 1, True, 100.0)
    sampled(tmp_path / "b" / "logs", 0, quiet)
    sampled(tmp_path / "b" / "nodes" / "n2" / "logs", 1, loaded)
    nodes = (node("n1", group=0, rank=0), node("n2", group=0, rank=1))
    assert [one.node for one in read_other_programs(tmp_path / "b", nodes, 1, ReadLog(tmp_path))] == ["n2"]


@pytest.mark.parametrize(
    ("parts", "computes"),
    [
        (((0, 0, 0), (0, 0, 0), (100, 1, 0)), "nothing"),
        (((90, 0, 0), (0, 0, 0), (0, 0, 0), (100, 1, 0)), "nothing"),  # the run before this one
        (((90, 0, 0), (90, 0, 0), (90, 0, 0), (100, 1, 0)), True),  # a container hides the process
        (((100, 0, 0), (100, 0, 0)), "nothing"),  # it hides ours as well, so that the load may be ours
        (((100, 1, 1), (100, 1, 1)), "nothing"),  # a GPU that the run does not use
        (((0, 1, 1), (0, 1, 1), (100, 2, 1)), False),
        (((100, 1, 0), (100, 2, 1)), None),
    ],
)
def test_what_samples_say_of_other_programs(
    tmp_path: Path, parts: tuple[tuple[int, int, int], ...], computes: bool | str | None
) -> None:
    sampled(tmp_path / "logs", 0, at(*parts))
    found = read_other_programs(tmp_path, (), 0, ReadLog(tmp_path))
    assert [one.computes for one in found] == ([] if computes == "nothing" else [computes])
