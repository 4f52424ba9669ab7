"""NCCL's log: what its versions print of a connection, and what is not one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from nsa import collectives
from nsa.nccl_log import Connections, NcclLog
from nsa.parallel import World


def read(*texts: str, who: str = "node:41:41 [0]") -> Connections:
    return Connections.read(f"{who} NCCL INFO {text}" for text in texts)


@pytest.mark.parametrize(
    ("text", "one"),
    [
        ("Ring 00 : 0[1a000] -> 1[3d000] via P2P/direct pointer", (0, 1, "P2P/direct pointer")),  # 2.5
        ("Channel 01 : 2[89000] -> 3[b2000] via direct shared memory", (2, 3, "direct shared memory")),  # 2.8
        ("Channel 00 : 9[1b000] -> 11[3e000] via P2P/IPC/read", (9, 11, "P2P/IPC/read")),  # 2.10
        ("Channel 03 : 7[b2000] -> 14[b1000] [receive] via NET/IB/0/GDRDMA", (7, 14, "NET/IB/0/GDRDMA")),
        ("Channel 00/0 : 0[1000] -> 1[9000] via P2P/direct pointer", (0, 1, "P2P/direct pointer")),  # 2.15
        ("Channel 02/0 : 10[201c0] -> 9[101d0] via P2P/IPC/read", (10, 9, "P2P/IPC/read")),
        ("Channel 02/0 : 0[0] -> 2[2] via P2P/indirect/1[1]", (0, 2, "P2P/indirect/1[1]")),
        ("Channel 00/0 : 9[1] -> 0[0] [send] via NET/IB/0(8)/GDRDMA", (9, 0, "NET/IB/0(8)/GDRDMA")),  # by another GPU
        ("Channel 06/0 : 36[4] -> 20[4] [send] via NET/IBext_v8/3", (36, 20, "NET/IBext_v8/3")),
        (
            "Channel 01/1 : 1[0] -> 2[1] [receive] via NET/NCCL RDMA Plugin v6/0/GDRDMA/Shared",
            (1, 2, "NET/NCCL RDMA Plugin v6/0/GDRDMA/Shared"),
        ),
        ("Channel 01/1 : 4[0] -> 0[0] [receive] via NET/AWS Libfabric/7/GDRDMA", (4, 0, "NET/AWS Libfabric/7/GDRDMA")),
        ("Channel 00 : 1[1] -> 0[0] via SHM/direct/direct", (1, 0, "SHM/direct/direct")),
        ("Channel 02 : 0[0] -> 1[1] via SHM/CE/direct", (0, 1, "SHM/CE/direct")),
        ("Channel 00/0 : 4[0] -> 3[3] via P2P/MNNVL", (4, 3, "P2P/MNNVL")),  # 2.21
        ("Channel 16/1 : 0[0] -> 1[1] via P2P/CUMEM/read", (0, 1, "P2P/CUMEM/read")),  # 2.28
        ("Channel 00/0 : 7[ce000] -> 5[c6000] via P2P/IPC comm 0xfb16e30 nRanks 08", (7, 5, "P2P/IPC")),  # RCCL
        (
            "Channel 03/0 : 3[ce000] -> 6[c9000] [receive] via NET/Socket/2 comm 0x9b02320 nRanks 08",
            (3, 6, "NET/Socket/2"),
        ),
    ],
)
def test_a_connection_of_any_version_is_read_once(text: str, one: tuple[int, int, str]) -> None:
    assert read(text, text).via == [one]


@pytest.mark.parametrize(
    "text",
    [
        "Channel 00/24 :    0   1",
        "Channel 00/02 : 0 1",
        "Ring 00 : 0 -> 1 -> 0",
        "Trees [0] 1/-1/-1->0->-1 [1] -1/-1/-1->0->1",
        "Channel 00/0 : 0[0] -> 1[1]",
        "Channel 00/0 : 0[0] -> 1[1] via ",
        "Channel ab/0 : 0[0] -> 1[1] via P2P/IPC",
        "Channel 00/0 : x[0] -> 1[1] via P2P/IPC",
        "CollNet 00/0 : 0 [send] via COLLNET/IB/0/GDRDMA",
        "P2P Chunksize set to 524288",
        "Connected all rings, use ring PXN 0 GDR 1",
    ],
)
def test_other_lines_are_no_connection(text: str) -> None:
    assert read(text).via == []


def test_the_torn_lines_of_a_shared_file_name_no_transport() -> None:
    torn = "Channel 00/0 : 0[0] -> 1[1] via SHM/direct/dirnode:42:42 [1] NCCL INFO Channel 00 : 1[1] -> 0[0] via SHM/d"
    assert [by for *_, by in read(torn).via] not in ([], ["SHM/direct/direct"])


def test_settings_and_refusals_are_kept() -> None:
    found = read(
        "NCCL_P2P_DISABLE set by environment to 1",
        "NCCL_SHM_DISABLE set by environment to 1.",
        "NCCL_P2P_LEVEL set by environment to LOC",
        "NCCL_DEBUG_X was never seen",
        "P2P is disabled between connected GPUs 1 and 0. You can repress this message with NCCL_IGNORE_DISABLED_P2P=1.",
        "Could not enable P2P between dev 1(=3d000) and dev 0(=1a000)",
        "NCCL version 2.21.5+cuda12.4",
    )
    assert found.settings == {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1", "NCCL_P2P_LEVEL": "LOC"}
    assert [line[:12] for line in found.refused] == ["P2P is disab", "Could not en"]
    assert found.version == "2.21.5+cuda12.4"


SWITCHED = """\
=== System : maxBw 370.8 totalBw 370.8 ===
CPU/0-ffffffffffffff (1/1/4)
+ PCI[5000.0] - NIC/0-0
                + NET[1.2] - NET/0-0 (0/0/0/1.250000)
+ PCI[48.0] - GPU/0-60 (0)
              + NVL[370.8] - NVS/0-0
+ PCI[48.0] - GPU/0-70 (1)
              + NVL[370.8] - NVS/0-0
=========================================="""
BRIDGED = """\
CPU/0 (1/2/-1)
+ PCI[24.0] - PCI/31000 (1000c01010000000)
              + PCI[24.0] - GPU/4C000 (1)
                            + XGMI[24.0] - GPU/47000
              + PCI[24.0] - GPU/47000 (0)
                            + XGMI[24.0] - GPU/4C000
+ PCI[24.0] - GPU/51000 (2)
+ NVL[24.0] - GPU/47000
+ SYS[10.0] - CPU/1"""
SINCE_2_30 = """\
ncclCommInitRankConfig comm 0x1e18a3a0 rank 1 nranks 2 cudaDev 1 nvmlDev 1 busId e000 commId 0xc3 - Init START
+ PCI[12.0] - PCI/0-7000 (10b5874710b58747)
              + PCI[12.0] - DEV/0-b000 (100266a3106b0203)
                            + LOC[5000.0] - GPU/0-b000
                            + NVL[24.0] - DEV/0-e000
              + PCI[12.0] - DEV/0-e000 (100266a3106b0203)
                            + LOC[5000.0] - GPU/0-e000
                            + NVL[24.0] - DEV/0-b000"""


@pytest.mark.parametrize(
    ("text", "ids", "links"),
    [
        (SWITCHED, {0: "0-60", 1: "0-70"}, {"0-60": ["NVS/0-0"], "0-70": ["NVS/0-0"]}),
        (
            BRIDGED,
            {0: "47000", 1: "4c000", 2: "51000"},
            {"4c000": ["GPU/47000"], "47000": ["GPU/4c000"], "51000": []},  # the last link is that of the CPU
        ),
        (SINCE_2_30, {1: "0-e000"}, {"0-b000": ["GPU/0-e000"], "0-e000": ["GPU/0-b000"]}),
    ],
    ids=["switches", "bridges", "since 2.30"],
)
def test_the_links_of_each_gpu_are_those_below_it(text: str, ids: dict[int, str], links: dict[str, list[str]]) -> None:
    found = read(*text.splitlines())
    assert (found.ids, found.links) == (ids, links)


def test_two_ranks_in_one_file_are_kept_apart() -> None:
    first, second = (SWITCHED.splitlines()[5:6], SWITCHED.splitlines()[4:6])
    ours, theirs = "node:41:41 [0] NCCL INFO ", "node:42:42 [1] NCCL INFO "
    found = Connections.read(
        [ours + "+ PCI[48.0] - GPU/0-70 (1)", theirs + second[0], ours + "CPU/1", theirs + first[0]]
    )
    assert found.links == {"0-70": [], "0-60": ["NVS/0-0"]}


def test_connections_between_machines_are_kept_by_transport_alone() -> None:
    found = read(
        "Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM",
        *(f"Channel 00/0 : 0[0] -> {other}[0] [send] via NET/IB/0/GDRDMA" for other in range(8, 64)),
        "Channel 00/0 : 3[3] -> 1[1] via P2P/CUMEM",
    )
    kept = found.of_ranks(range(8), 0)
    assert (kept["via"], kept["far"]) == ([(0, 1, "P2P/CUMEM")], ["NET/IB/0/GDRDMA"])


def _said(**via: list[Any]) -> dict[str, Any]:
    return {"via": [], "far": [], **via}


def test_copies_are_measured_where_a_connection_is_not_direct_or_none_is_known() -> None:
    mixed = [
        _said(via=[[0, 1, "P2P/CUMEM"], [0, 2, "SHM/direct/direct"]]),
        _said(),
        _said(via=[[2, 0, "SHM/direct/direct"]]),
    ]
    assert [collectives._to_measure(mixed, range(3), rank) for rank in range(3)] == [[2], [], []]
    unknown = [_said()] * 3
    assert [collectives._to_measure(unknown, range(3), rank) for rank in range(3)] == [[1], [2], [0]]
    assert collectives._to_measure([_said(via=[[0, 1, "P2P/IPC"]]), _said(via=[[1, 0, "P2P/IPC"]])], range(2), 0) == []
    assert collectives._to_measure([_said(far=["NET/IB/0"])] * 2, range(1), 0) == []


def test_the_record_of_two_ranks_that_talk_through_the_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As rank 0 of two sees it: its own log, the other's part, and copies to the GPU that both see."""
    log = NcclLog.begin("0", tmp_path, env := {"NCCL_P2P_DISABLE": "1"})
    said = ["NCCL_P2P_DISABLE set by environment to 1", "NCCL_ALGO set by environment to RING", *SWITCHED.splitlines()]
    said += ["Channel 00 : 0[0] -> 1[1] via SHM/direct/direct"]
    log.path.write_text("".join(f"vm:41:41 [0] NCCL INFO {line}\n" for line in said))
    cuda, turns = torch.device("cuda", 0), list[None]()
    monkeypatch.setattr(collectives, "_everyones", lambda mine, world: [mine, [] if isinstance(mine, list) else mine])
    monkeypatch.setattr(collectives, "_uuid", lambda device: f"uuid{device.index}")
    monkeypatch.setattr(collectives, "_copied", lambda device, other: {"gb_s": 371.0, "to_index": other.index})
    monkeypatch.setattr(collectives.dist, "barrier", lambda: turns.append(None))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    devices = [{"group": "0", "uuid": f"uuid{at}"} for at in range(2)]
    found = collectives.connections(World(0, 0, 2, cuda, "nccl"), log, devices)
    assert found["copies"] == [{"from": 0, "to": 1, "gb_s": 371.0, "to_index": 1}]
    assert len(turns) == 2, "each rank of a machine has its turn, also where it measures nothing"
    first = found["ranks"][0]
    assert (first["log"], first["via"]) == ("nccl_rank0.txt", [(0, 1, "SHM/direct/direct")])
    assert first["configured"] == ["NCCL_ALGO"], "which the environment did not hold"
    assert first["gpus"]["1"] == {"id": "0-70", "links": ["NVS/0-0"]}
    apart = [{"group": None, "uuid": ""}, {"group": None, "uuid": ""}]
    found = collectives.connections(World(0, 0, 2, cuda, "nccl"), log, apart)
    assert (found["ranks"][0]["far"], found["copies"]) == (["SHM/direct/direct"], []), "nothing shows one machine"
    assert env["NCCL_DEBUG"] == "INFO"


@pytest.mark.parametrize(
    ("given", "level", "subsystems", "printed"),
    [
        ({}, "INFO", "INIT,ENV,GRAPH,P2P", []),
        ({"NCCL_DEBUG": "WARN"}, "INFO", "INIT,ENV,GRAPH,P2P", ["it WARN"]),
        ({"NCCL_DEBUG": "INFO"}, "INFO", "INIT,BOOTSTRAP,ENV,GRAPH,P2P", ["it INFO", "it WARN"]),
        (
            {"NCCL_DEBUG": "trace", "NCCL_DEBUG_SUBSYS": "COLL"},
            "trace",
            "COLL,INIT,ENV,GRAPH,P2P",
            ["it INFO", "it WARN"],
        ),
        ({"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "^NET"}, "INFO", "^NET", ["it INFO", "it WARN"]),
    ],
)
def test_what_the_user_asks_nccl_to_print_is_printed(
    given: dict[str, str],
    level: str,
    subsystems: str,
    printed: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    env = dict(given)
    log = NcclLog.begin("1", tmp_path, env)
    assert (env["NCCL_DEBUG"], env["NCCL_DEBUG_SUBSYS"]) == (level, subsystems)
    assert env["NCCL_DEBUG_FILE"] == str(tmp_path / "nccl_rank1.txt")
    log.path.write_text("n:1:1 [0] NCCL INFO it INFO\nn:1:1 [0] NCCL WARN it WARN\n")
    log.end()
    assert [line[-7:] for line in capsys.readouterr().out.splitlines()] == printed
    log.end(failed=True)
    assert "it WARN" in capsys.readouterr().err


def test_a_file_that_the_user_names_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    env = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": str(tmp_path / "a.%p.txt")}
    log = NcclLog.begin("0", tmp_path, env)
    assert log.path == tmp_path / f"a.{os.getpid()}.txt"
    log.path.write_text("n:1:1 [0] NCCL INFO x\n")
    log.end()
    assert capsys.readouterr().out == ""
    assert len(log.lines()) == 1
    assert NcclLog.begin("0", None, {"NCCL_DEBUG_FILE": "/dev/stderr"}).lines() == []


def test_without_a_folder_the_file_goes_with_the_run(tmp_path: Path) -> None:
    log = NcclLog.begin("0", tmp_path / "none", {})
    assert log.path.parent.is_dir()
    log.end()
    assert not log.path.parent.exists()
