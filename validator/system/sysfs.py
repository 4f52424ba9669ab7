"""What Linux reports in /sys of the machine's paths: network ports, PCIe, NUMA, pages. The only reader of it.

What is absent is empty or None, never an error. Nothing is written, and nothing here needs root, except for the
settings of PCIe bridges (`redirecting`), which are None without it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from validator.system.processes import read_proc, read_proc_text

SYS = Path("/sys")
PROC = Path("/proc")

_ERROR_COUNTERS = re.compile(
    r"symbol_error|link_downed|link_error_recovery|local_link_integrity_errors|port_rcv_errors|port_xmit_discards"
    r"|excessive_buffer_overrun_errors|out_of_sequence|packet_seq_err|local_ack_timeout_err|rnr_nak_retry_err"
    r"|roce_slow_restart|retrans_(pkts|timeout_events)|unresponsive_remote_events|rx_drops"
)
"""Counters of InfiniBand, RoCE and EFA that stay at 0 on a sound port, or grow slowly."""

_PCI_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_EXTENDED = 0x100
_ACS_ID = 0x000D
_REDIRECTS = 0x4 | 0x8 | 0x10  # request redirect, completion redirect, upstream forwarding


@dataclass(frozen=True)
class Port:
    """A port of an InfiniBand, RoCE or EFA device. `errors` holds the counters that are not 0."""

    device: str
    number: int
    kind: str
    state: str
    physical: str
    rate_gbps: float | None
    numa_node: int | None
    errors: dict[str, int] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """As `ibstat` and NCCL write it."""
        return f"{self.device}:{self.number}"

    @property
    def active(self) -> bool:
        """Whether data can pass."""
        return self.state == "ACTIVE"


@dataclass(frozen=True)
class Paths:
    """How the machine's devices reach each other.

    Attributes:
        ports: of devices that programs use without the kernel.
        gpu_nodes: PCI address of a GPU to its NUMA node; None where the machine has one node alone.
        node_cpus: NUMA node to its CPUs.
        allowed_cpus: CPUs that this process may use.
        iommu: "off", "passthrough" or "translating".
        redirecting: PCIe bridges above the GPUs that send peer traffic to the CPU; None where they may not be read.
        huge_pages: reserved pages.
        transparent_huge_pages: "always", "madvise" or "never".
        numa_balancing: whether the kernel moves pages between nodes by itself.
    """

    ports: tuple[Port, ...] = ()
    gpu_nodes: dict[str, int | None] = field(default_factory=dict)
    node_cpus: dict[int, frozenset[int]] = field(default_factory=dict)
    allowed_cpus: frozenset[int] = frozenset()
    iommu: str | None = None
    redirecting: tuple[str, ...] | None = None
    huge_pages: int | None = None
    transparent_huge_pages: str | None = None
    numa_balancing: bool | None = None

    def as_json(self) -> dict[str, Any]:
        """For `environment.json`, by port; what is absent is left out."""
        facts = {
            "iommu": self.iommu,
            "transparent_huge_pages": self.transparent_huge_pages,
            "huge_pages": self.huge_pages,
            "numa_nodes": len(self.node_cpus) or None,
            "numa_balancing": self.numa_balancing,
            "ports": {port.name: asdict(port) for port in self.ports} or None,
        }
        return {key: value for key, value in facts.items() if value is not None}


def read_paths(gpus: tuple[str, ...] = (), *, sys: Path = SYS, proc: Path = PROC) -> Paths:
    """Everything but a few hundred files; `gpus` are PCI addresses as NVML writes them."""
    addresses = [address for gpu in gpus if (address := pci_address(gpu)) is not None]
    nodes = _node_cpus(sys)
    return Paths(
        ports=read_ports(sys),
        gpu_nodes={one: _numa_node(sys / "bus/pci/devices" / one) for one in addresses} if len(nodes) > 1 else {},
        node_cpus=nodes,
        allowed_cpus=frozenset(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else frozenset(),
        iommu=_iommu(sys, proc),
        redirecting=_redirecting(sys, addresses),
        huge_pages=number(proc / "sys/vm/nr_hugepages"),
        transparent_huge_pages=_chosen(sys / "kernel/mm/transparent_hugepage/enabled"),
        numa_balancing=None if (found := number(proc / "sys/kernel/numa_balancing")) is None else found > 0,
    )


def pci_address(text: str) -> str | None:
    """`0000:17:00.0` for NVML's `00000000:17:00.0`; None for what is no address."""
    found = text.strip().lower()
    if _PCI_ADDRESS.fullmatch(found) is None:
        return None
    domain, _, rest = found.partition(":")
    return f"{int(domain, 16):04x}:{rest}"


def read_ports(sys: Path = SYS) -> tuple[Port, ...]:
    """The ports in /sys/class/infiniband, where RoCE and EFA are listed as well."""
    return tuple(
        _port(device, port) for device in entries(sys / "class/infiniband") for port in entries(device / "ports")
    )


def _port(device: Path, port: Path) -> Port:
    # "4: ACTIVE", "5: LinkUp", "400 Gb/sec (4X NDR)"
    state = read_proc_text(port / "state").partition(":")[2].strip()
    physical = read_proc_text(port / "phys_state").partition(":")[2].strip()
    rate = re.match(r"[\d.]+", read_proc_text(port / "rate"))
    driver = (device / "device/driver").resolve().name
    layer = read_proc_text(port / "link_layer")
    return Port(
        device=device.name,
        number=int(port.name) if port.name.isdecimal() else 0,
        kind="EFA" if driver == "efa" else "RoCE" if layer == "Ethernet" else layer or "unknown",
        state=state,
        physical=physical,
        rate_gbps=float(rate[0]) if rate else None,
        numa_node=_numa_node(device / "device"),
        errors=dict(_errors(port)),
    )


def _errors(port: Path) -> Iterator[tuple[str, int]]:
    for folder in ("counters", "hw_counters"):
        for file in entries(port / folder):
            if _ERROR_COUNTERS.fullmatch(file.name):
                count = number(file)
                if count:
                    yield file.name, count


def entries(folder: Path) -> list[Path]:
    """What is in a folder, sorted; empty where it may not be read."""
    with suppress(OSError):
        return sorted(folder.iterdir())
    return []


def number(path: Path) -> int | None:
    """A file that holds a whole number; None where it does not."""
    text = read_proc_text(path)
    return int(text) if re.fullmatch(r"-?\d+", text) else None


def _chosen(path: Path) -> str | None:
    """`madvise` of `always [madvise] never`."""
    found = re.search(r"\[(\w+)\]", read_proc_text(path))
    return found[1] if found else None


def _numa_node(device: Path) -> int | None:
    node = number(device / "numa_node")
    return None if node is None or node < 0 else node


def _node_cpus(sys: Path) -> dict[int, frozenset[int]]:
    folders = [one for one in entries(sys / "devices/system/node") if re.fullmatch(r"node\d+", one.name)]
    return {int(folder.name[4:]): _cpus(read_proc_text(folder / "cpulist")) for folder in folders}


def _cpus(text: str) -> frozenset[int]:
    """`0-3,8` as numbers."""
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        if first.isdecimal() and (last or first).isdecimal():
            found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)


def _iommu(sys: Path, proc: Path) -> str | None:
    """Whether devices reach memory through translated addresses."""
    if not (sys / "class/iommu").is_dir():
        return None
    if not entries(sys / "class/iommu"):
        return "off"
    words = read_proc_text(proc / "cmdline").split()
    types = {read_proc_text(group / "type") for group in entries(sys / "kernel/iommu_groups")}
    through = "iommu=pt" in words or "iommu.passthrough=1" in words or types == {"identity"}
    return "passthrough" if through else "translating"


def _redirecting(sys: Path, gpus: list[str]) -> tuple[str, ...] | None:
    """Bridges above the GPUs whose access control services send peer traffic up to the CPU."""
    bridges: dict[str, bool | None] = {}
    for gpu in gpus:
        real = (sys / "bus/pci/devices" / gpu).resolve()
        for folder in real.parents:
            if _PCI_ADDRESS.fullmatch(folder.name) and folder.name not in bridges:
                bridges[folder.name] = _redirects(read_proc(folder / "config"))
    if not bridges or all(one is None for one in bridges.values()):
        return None
    return tuple(name for name, redirects in bridges.items() if redirects)


def _redirects(config: bytes) -> bool | None:
    """By the bridge's configuration; None where only its first part may be read."""
    if len(config) <= _EXTENDED:
        return None
    at = _EXTENDED
    for _ in range(64):  # as many capabilities as can be, should they point at each other
        header = int.from_bytes(config[at : at + 4], "little")
        if header & 0xFFFF == _ACS_ID:
            return bool(int.from_bytes(config[at + 6 : at + 8], "little") & _REDIRECTS)
        at = header >> 20
        if at < _EXTENDED:
            break
    return False
