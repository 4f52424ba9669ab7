"""Errors that links and memories counted during a run (`counters.json`), and which of them matter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

MAX_REPLAYS_PER_MINUTE = 80.0
"""Of PCIe, the default limit of DCGM's test of PCIe."""

_GRAVE = {
    "ecc_uncorrected": "what it computed after it cannot be trusted",
    "nvlink_failed_recoveries": "collectives over that link fail",
}
_WORTH_A_LOOK = {
    "nvlink_recoveries": "collectives stop while the link is trained again",
    "link_downed": "a run that uses the port ends",
    "link_error_recovery": "traffic stops meanwhile",
    "symbol_error": "packets are sent again",
    "local_link_integrity_errors": "packets are sent again",
    "port_rcv_errors": "packets are sent again",
    "unresponsive_remote_events": "another machine did not answer",
}
"""Counters of which one count matters, and what it costs."""


@dataclass(frozen=True)
class Growth:
    """One counter that grew by more than a sound machine's does; `grave` ones forbid to trust the machine."""

    device: str
    counter: str
    by: int
    cost: str
    grave: bool

    @property
    def text(self) -> str:
        """As a clause."""
        return f"{self.device} counted {self.by} {self.counter.replace('_', ' ')} under load: {self.cost}"


@dataclass(frozen=True)
class Counted:
    """What grew during a run: `GPU 0 pcie_replays` to its growth, within `seconds`; `path` is the file. `node` names
    the machine in a run across nodes."""

    seconds: float
    grown: Mapping[str, int] = field(default_factory=dict)
    path: str = ""
    node: str = ""

    def worse(self) -> tuple[Growth, ...]:
        """What grew by more than it may, the grave ones first."""
        found = []
        for name, by in self.grown.items():
            device, _, counter = name.rpartition(" ")
            device = ", ".join(filter(None, (self.node, device)))
            if counter in _GRAVE:
                found.append(Growth(device, counter, by, _GRAVE[counter], grave=True))
            elif counter in _WORTH_A_LOOK:
                found.append(Growth(device, counter, by, _WORTH_A_LOOK[counter], grave=False))
            elif counter == "pcie_replays" and by > MAX_REPLAYS_PER_MINUTE * max(1.0, self.seconds / 60):
                cost = "each transfer to the host that is repeated takes twice as long"
                found.append(Growth(device, counter, by, cost, grave=False))
        return tuple(sorted(found, key=lambda one: not one.grave))
