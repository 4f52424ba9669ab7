"""Ports, NUMA, PCIe and pages, from made-up trees of /sys: what is read, and what preflight makes of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from validator.model.verdict import Check
from validator.system.path_checks import path_checks
from validator.system.sysfs import Paths, pci_address, read_paths

GPU = "00000000:17:00.0"


class Tree:
    """A machine's /sys and /proc."""

    def __init__(self, root: Path) -> None:
        self.sys, self.proc = root / "sys", root / "proc"

    def write(self, path: str, text: str | bytes) -> None:
        file = self.sys / path if not path.startswith("proc/") else self.proc / path[5:]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text if isinstance(text, bytes) else f"{text}\n".encode())

    def port(
        self,
        device: str,
        *,
        state: str = "4: ACTIVE",
        rate: str = "400 Gb/sec (4X NDR)",
        layer: str = "InfiniBand",
        driver: str = "mlx5_core",
        node: int = 0,
        errors: dict[str, int] | None = None,
    ) -> None:
        base = f"class/infiniband/{device}"
        for name, text in {"state": state, "phys_state": "5: LinkUp", "rate": rate, "link_layer": layer}.items():
            self.write(f"{base}/ports/1/{name}", text)
        for name, count in {"symbol_error": 0, "port_rcv_data": 4711, **(errors or {})}.items():
            self.write(f"{base}/ports/1/counters/{name}", str(count))
        self.write(f"{base}/device/numa_node", str(node))
        (self.sys / "bus/drivers" / driver).mkdir(parents=True, exist_ok=True)
        (self.sys / base / "device/driver").symlink_to(self.sys / "bus/drivers" / driver)

    def nodes(self, *cpus: str) -> None:
        for number, listed in enumerate(cpus):
            self.write(f"devices/system/node/node{number}/cpulist", listed)

    def gpu(self, *, node: int = 0, acs: int | None = None) -> None:
        """A GPU below one bridge, whose control bits of ACS are `acs`; None: only root may read them."""
        bridge = self.sys / "devices/pci0000:16/0000:16:01.0"
        self.write("devices/pci0000:16/0000:16:01.0/0000:17:00.0/numa_node", str(node))
        config = bytearray(4096)
        config[0x100:0x104] = (0x000D | 0x1 << 16).to_bytes(4, "little")
        config[0x106:0x108] = (acs or 0).to_bytes(2, "little")
        (bridge / "config").write_bytes(bytes(config) if acs is not None else bytes(64))
        link = self.sys / "bus/pci/devices/0000:17:00.0"
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(bridge / "0000:17:00.0")

    def read(self, *gpus: str) -> Paths:
        return read_paths(gpus, sys=self.sys, proc=self.proc)

    def checks(self, *gpus: str, links: bool = False, cluster: bool = False) -> dict[str, Check]:
        found = path_checks(self.read(*gpus), gpus=len(gpus), links=links, cluster=cluster)
        return {check.id: check for check in found}


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def test_an_empty_tree_is_not_present_and_fails_nothing(tree: Tree) -> None:
    assert tree.read(GPU, "?").as_json() == {}
    found = tree.checks(GPU, GPU)
    assert {(one.status, one.observed) for one in found.values()} == {("PASS", "not present"), ("SKIPPED", "not known")}
    assert not any(one.required for one in found.values())


def test_addresses_of_nvml_are_those_of_sys() -> None:
    assert pci_address("00000000:17:00.0") == "0000:17:00.0"
    assert pci_address("00000001:C1:00.0") == "0001:c1:00.0"
    assert pci_address("../../etc") is None


def test_ports_have_kind_state_rate_and_errors(tree: Tree) -> None:
    tree.port("mlx5_0", errors={"symbol_error": 3, "link_downed": 0})
    tree.port("mlx5_1", layer="Ethernet", rate="200 Gb/sec (4X HDR)", node=1)
    tree.port("rdmap0", driver="efa", layer="Unspecified", rate="400 Gb/sec (8X HDR)")
    first, second, third = tree.read().ports
    assert (first.name, first.kind, first.active, first.rate_gbps) == ("mlx5_0:1", "InfiniBand", True, 400.0)
    assert (first.errors, second.errors) == ({"symbol_error": 3}, {})
    assert (second.kind, second.rate_gbps, second.numa_node) == ("RoCE", 200.0, 1)
    assert third.kind == "EFA"


def test_sound_ports_pass(tree: Tree) -> None:
    for device in ("mlx5_0", "mlx5_1"):
        tree.port(device, errors={"link_downed": 1, "port_xmit_discards": 12})
    found = tree.checks(cluster=True)
    assert {found[one].status for one in ("network_ports", "network_rates", "network_errors")} == {"PASS"}
    assert "port_xmit_discards 12" in found["network_errors"].observed


@pytest.mark.parametrize("cluster", [False, True])
def test_a_port_that_is_down_is_required_where_the_run_needs_it(tree: Tree, cluster: bool) -> None:
    tree.port("mlx5_0")
    tree.port("mlx5_1", state="1: DOWN")
    found = tree.checks(cluster=cluster)["network_ports"]
    assert (found.status, found.required) == ("FAIL", cluster)
    assert "mlx5_1:1 is down" in found.message
    assert "cable" in found.message


def test_ports_that_are_all_down_are_not_used(tree: Tree) -> None:
    tree.port("mlx5_0", state="1: DOWN")
    assert tree.checks(cluster=True)["network_ports"].status == "PASS"


@pytest.mark.parametrize(
    ("odd", "check_id", "words"),
    [
        ({"rate": "200 Gb/sec (2X NDR)"}, "network_rates", "mlx5_1:1 runs below"),
        ({"errors": {"symbol_error": 7}}, "network_errors", "mlx5_1:1 has counted errors"),
        ({"errors": {"link_downed": 5}}, "network_errors", "ends the run"),
    ],
)
def test_what_is_odd_of_a_port_is_shown(tree: Tree, odd: dict[str, object], check_id: str, words: str) -> None:
    tree.port("mlx5_0")
    tree.port("mlx5_1", **odd)  # type: ignore[arg-type]
    found = tree.checks()[check_id]
    assert (found.status, found.required) == ("FAIL", False)
    assert words in found.message


def test_gpus_on_a_node_without_cpus_or_ports_are_named(tree: Tree) -> None:
    tree.nodes("0-4095", "4096-8191")
    tree.gpu(node=1)
    tree.port("mlx5_0", node=0)
    found = tree.checks(GPU)
    assert "no CPU of NUMA node 1" in found["gpu_affinity"].message
    assert "NUMA node 1 has GPUs and no active port" in found["nic_affinity"].message


def test_gpus_beside_their_cpus_and_ports_pass(tree: Tree) -> None:
    tree.nodes("0-4095", "4096-8191")
    tree.gpu(node=0)
    tree.port("mlx5_0", node=0)
    found = tree.checks(GPU)
    assert {found[one].status for one in ("gpu_affinity", "nic_affinity")} == {"PASS"}


@pytest.mark.parametrize(
    ("acs", "iommu", "cmdline", "status", "words"),
    [
        (0, False, "", "PASS", ""),
        (0x1C, False, "", "FAIL", "0000:16:01.0 redirect"),
        (0x1, False, "", "PASS", ""),
        (None, True, "ro quiet", "FAIL", "IOMMU translates"),
        (None, True, "ro iommu=pt", "PASS", ""),
    ],
)
def test_what_redirects_peer_traffic_is_shown(
    tree: Tree, acs: int | None, iommu: bool, cmdline: str, status: str, words: str
) -> None:
    tree.gpu(acs=acs)
    tree.write("class/iommu/dmar0/device" if iommu else "class/iommu/.keep", "")
    if not iommu:
        (tree.sys / "class/iommu/.keep").unlink()
    tree.write("proc/cmdline", cmdline)
    found = tree.checks(GPU, GPU)["peer_path"]
    assert (found.status, found.required) == (status, False)
    assert words in found.message
    assert "peer_path" not in tree.checks(GPU, GPU, links=True), "PCIe does not carry it"


def test_pages_are_recorded_and_warned_of_where_they_cost(tree: Tree) -> None:
    tree.write("kernel/mm/transparent_hugepage/enabled", "always [madvise] never")
    tree.write("proc/sys/vm/nr_hugepages", "0")
    tree.write("proc/sys/kernel/numa_balancing", "1")
    found = tree.checks()["huge_pages"]
    assert (found.status, found.observed) == (
        "PASS",
        "transparent madvise, 0 reserved, automatic NUMA balancing",
    )
    tree.nodes("0-3", "4-7")
    tree.gpu()
    assert "numa_balancing=0" in tree.checks(GPU)["huge_pages"].message
    tree.port("rdmap0", driver="efa")
    assert "EFA finds no reserved huge pages" in tree.checks(GPU)["huge_pages"].message
