"""Preflight's checks of how GPUs, memory and network reach each other: ports, NUMA, PCIe, pages.

None is required on one machine: nothing says that a run uses the network. On a cluster the ports are. What is absent
is "not present".
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from functools import partial

from validator.model.verdict import Check
from validator.system.checks import check
from validator.system.sysfs import Paths, Port

_SERIOUS = {
    **dict.fromkeys(("symbol_error", "link_error_recovery", "local_link_integrity_errors", "port_rcv_errors"), 1),
    **dict.fromkeys(("excessive_buffer_overrun_errors", "unresponsive_remote_events"), 1),
    "link_downed": 5,  # the limit of azurehpc-health-checks' check_ib_link_flapping; a driver that starts counts one
}
"""Counters of the link itself, and from which count on they are worth a look; others grow with congestion as well."""

_path_check = partial(check, where="paths")
"""A check whose evidence is `paths` in environment.json."""


def path_checks(paths: Paths, *, gpus: int, links: bool, cluster: bool) -> Iterator[Check]:
    """All of them.

    Args:
        gpus: how many the runbook uses.
        links: whether the GPUs have NVLink, so that PCIe does not carry what they send each other.
        cluster: whether the runbook uses several machines.
    """
    yield from _port_checks(paths.ports, required=cluster)
    yield _huge_pages(paths)
    if gpus:
        yield _affinity(paths)
        yield _nics_beside_gpus(paths)
    if gpus > 1 and not links:
        yield _peer_path(paths)


def _absent(check_id: str, title: str, what: str) -> Check:
    """What the machine does not have is recorded, and never fails."""
    message = f"This machine has no {what}."
    return _path_check(check_id, title, ok=True, required=False, observed="not present", good=message)


def _port_checks(ports: tuple[Port, ...], *, required: bool) -> Iterator[Check]:
    """A port that is down while others of its kind are up is broken; where all are down they are not used."""
    if not ports:
        yield _absent("network_ports", "InfiniBand, RoCE and EFA ports", "InfiniBand, RoCE or EFA port")
        return
    alike: dict[str, list[Port]] = defaultdict(list)
    for port in ports:
        alike[port.kind].append(port)
    down = [port for port in ports if not port.active and any(other.active for other in alike[port.kind])]
    shown = ", ".join(f"{one.name} {one.kind} {one.state or '?'}/{one.physical or '?'}" for one in ports)
    yield _path_check(
        "network_ports",
        "InfiniBand, RoCE and EFA ports",
        ok=not down,
        required=required,
        observed=shown,
        expected="all active, or none of a kind",
        good=f"{sum(port.active for port in ports)} of {len(ports)} ports are active.",
        bad=f"{_named(down)} is down while others of its kind are up: traffic between machines shares the remaining "
        f"ports, or the run does not start; check cable, switch and driver (ibstat), or leave it out with NCCL_IB_HCA.",
    )
    fastest = {kind: max((one.rate_gbps or 0 for one in found), default=0) for kind, found in alike.items()}
    slow = [one for one in ports if one.active and (one.rate_gbps or 0) < fastest[one.kind]]
    yield _path_check(
        "network_rates",
        "Rates of the ports",
        ok=not slow,
        required=False,
        observed=", ".join(f"{one.name} {one.rate_gbps or 0:g} Gb/s" for one in ports if one.active) or "none active",
        expected="the same of each kind",
        good="Ports of a kind have the same rate.",
        bad=f"{_named(slow)} runs below the rate of others of its kind: collectives between machines wait for the "
        f"slowest port; check cable and switch, or leave it out with NCCL_IB_HCA if it is a management port.",
    )
    counted = [one for one in ports if one.errors]
    wrong = [
        one for one in counted if any(count >= _SERIOUS.get(name, count + 1) for name, count in one.errors.items())
    ]
    yield _path_check(
        "network_errors",
        "Errors of the ports",
        ok=not wrong,
        required=False,
        observed="; ".join(f"{one.name} {_counts(one)}" for one in counted) or "none",
        expected="no error of the link itself",
        good="No port has counted errors of its link.",
        bad=f"{_named(wrong)} has counted errors since the machine started: packets are sent again, and a link that "
        f"goes down ends the run; watch whether they grow under load (counters.json of a run), then have cable and "
        f"port replaced.",
    )


def _named(ports: list[Port]) -> str:
    return ", ".join(port.name for port in ports)


def _counts(port: Port) -> str:
    return ", ".join(f"{name} {count}" for name, count in port.errors.items())


def _affinity(paths: Paths) -> Check:
    """Whether this process may run on the CPUs next to every GPU."""
    title = "CPUs next to the GPUs"
    nodes = {node for node in paths.gpu_nodes.values() if node is not None}
    if not nodes:
        return _absent("gpu_affinity", title, "choice of CPUs by NUMA node")
    far = sorted(node for node in nodes if not paths.node_cpus.get(node, frozenset()) & paths.allowed_cpus)
    listed = ", ".join(f"{address} on node {node}" for address, node in paths.gpu_nodes.items())
    return _path_check(
        "gpu_affinity",
        title,
        ok=not far,
        required=False,
        observed=listed,
        expected="some on the NUMA node of every GPU",
        good="This process may use CPUs on the NUMA node of every GPU.",
        bad=f"This process may use no CPU of NUMA node {', '.join(map(str, far))}, where GPUs are: batches and "
        f"collectives through the host cross the link between the CPUs; start without that binding (taskset, numactl, "
        f"--cpuset-cpus).",
    )


def _nics_beside_gpus(paths: Paths) -> Check:
    """Whether the node of every GPU has an active port."""
    title = "Network ports next to the GPUs"
    gpu_nodes = {node for node in paths.gpu_nodes.values() if node is not None}
    port_nodes = {port.numa_node for port in paths.ports if port.active and port.numa_node is not None}
    if not gpu_nodes or not port_nodes:
        return _absent("nic_affinity", title, "choice of ports by NUMA node")
    without = sorted(gpu_nodes - port_nodes)
    return _path_check(
        "nic_affinity",
        title,
        ok=not without,
        required=False,
        observed=f"GPUs on nodes {sorted(gpu_nodes)}, active ports on {sorted(port_nodes)}",
        expected="an active port on the NUMA node of every GPU",
        good="Every GPU has an active port on its NUMA node.",
        bad=f"NUMA node {', '.join(map(str, without))} has GPUs and no active port: what they send to other machines "
        f"crosses the link between the CPUs; bring up the ports there, or ask the provider for the intended wiring.",
    )


def _peer_path(paths: Paths) -> Check:
    """Whether GPUs without NVLink may send to each other without the CPU between them."""
    title = "Direct path between GPUs"
    if paths.iommu is None and paths.redirecting is None:
        message = "The kernel does not report the settings of IOMMU and PCIe bridges here."
        return _path_check("peer_path", title, ok=None, required=False, observed="not known", bad=message)
    blocked = paths.redirecting or ()
    translating = paths.iommu == "translating"
    observed = f"IOMMU {paths.iommu or 'not known'}"
    if paths.redirecting is not None:
        observed += f", {len(blocked)} bridges that redirect peer traffic"
    why = (
        f"PCIe bridges {', '.join(blocked)} redirect peer traffic to the CPU (ACS)"
        if blocked
        else "The IOMMU translates"
    )
    return _path_check(
        "peer_path",
        title,
        ok=not translating and not blocked,
        required=False,
        observed=observed,
        expected="IOMMU off or passthrough, no bridge that redirects",
        good="Nothing on the way redirects what the GPUs send each other over PCIe.",
        bad=f"{why}: GPUs without NVLink send to each other through the host, at a fraction of the rate, and NCCL may "
        f"hang; boot with iommu=pt, and turn ACS off in the firmware (on bare metal), or declare the rate that is "
        f"left.",
    )


def _huge_pages(paths: Paths) -> Check:
    """Pages for EFA, whose library reserves huge ones; else what is set is recorded."""
    title = "Huge pages"
    observed = f"transparent {paths.transparent_huge_pages or '?'}, {paths.huge_pages or 0} reserved"
    if paths.numa_balancing:
        observed += ", automatic NUMA balancing"
    if paths.transparent_huge_pages is None and paths.huge_pages is None:
        return _absent("huge_pages", title, "huge pages")
    missing = any(port.kind == "EFA" for port in paths.ports) and not paths.huge_pages
    several = len(paths.node_cpus) > 1 and bool(paths.numa_balancing) and bool(paths.gpu_nodes)
    bad = "EFA finds no reserved huge pages: its buffers take more time to register; reserve some (vm.nr_hugepages)."
    if several and not missing:
        bad = (
            "The kernel moves pages between NUMA nodes by itself, which stops host threads of the GPUs in between: "
            "steps vary; turn it off: sysctl kernel.numa_balancing=0."
        )
    return _path_check(
        "huge_pages",
        title,
        ok=not missing and not several,
        required=False,
        observed=observed,
        expected="reserved for EFA; no automatic NUMA balancing with GPUs on several nodes",
        good="Nothing in the settings of pages costs a run.",
        bad=bad,
    )
