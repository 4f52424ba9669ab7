"""What the collectives of a network phase gave, as its kind judges it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

AS_HOST = 1.25
"""A path between GPUs that carries at most so much more than one to the host goes over the same PCIe, or through it."""

_CLEARLY = 2.0
"""The other way round: a path that carries so many times as much as one to the host is a link of its own. NVLink
carries up to seven times as much, and PCIe no more, unless the slot of a card is slow."""

_LARGE = 256 * 2**20
"""Bytes of an all-reduce in which its latency is no part of the time."""


class FitValue(NamedTuple):
    """A quantity of the fit, with its 95 % interval."""

    value: float
    low: float
    high: float


class Curve(NamedTuple):
    """One collective: `times_s` by bytes, bus bandwidths, and t = a + n / B over all sizes, B as bus bandwidth."""

    name: str
    n_bytes: tuple[int, ...]
    times_s: tuple[float, ...]
    bus_gb_s: tuple[float, ...]
    latency_us: FitValue | None
    fit_gb_s: FitValue | None


class Pair(NamedTuple):
    """How the collectives of two ranks of one machine reach each other.

    Attributes:
        ranks: the lower one first.
        by: transports as NCCL names them; empty where its log says nothing of the pair.
        path: what they are: from GPU to GPU, through the host's memory, over the network, or not known.
        linked: whether NVLinks (or XGMI links) join their GPUs in NCCL's topology; None where it does not say.
        copy_gb_s: of copies between the two GPUs; None where they were not measured.
        host_gb_s: of copies between one of them and the host.
        source: the log of the lower rank.
    """

    ranks: tuple[int, int]
    by: tuple[str, ...]
    path: Literal["direct", "host", "network", "unknown"]
    linked: bool | None = None
    copy_gb_s: float | None = None
    host_gb_s: float | None = None
    source: str = ""

    @property
    def outruns_host(self) -> bool:
        """Whether copies between them are so much faster than to the host that they go over links of their own."""
        return self.copy_gb_s is not None and self.host_gb_s is not None and self.copy_gb_s > _CLEARLY * self.host_gb_s


_DISABLES = {"NCCL_P2P_DISABLE": "direct", "NCCL_SHM_DISABLE": "host"}
_LEVEL = "NCCL_P2P_LEVEL"


def forbids_peers(level: str) -> bool:
    """Whether no two GPUs reach each other directly at that NCCL_P2P_LEVEL."""
    return level.strip().upper() in ("LOC", "0")


def is_on(value: str) -> bool:
    """Whether NCCL takes a variable for set: a number other than 0."""
    try:
        return int(value) != 0
    except ValueError:
        return False


class Transports(NamedTuple):
    """What NCCL says of its connections: `pairs` of one machine, transports `between` machines.

    `settings` are variables that it took notice of, those of `configured` from its own file; `refused` its lines about
    GPUs that may not reach each other.
    """

    pairs: tuple[Pair, ...] = ()
    between: tuple[str, ...] = ()
    settings: Mapping[str, str] = {}
    configured: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    version: str = ""

    @property
    def known(self) -> bool:
        """Whether NCCL's log was understood."""
        return bool(self.between) or any(one.path != "unknown" for one in self.pairs)

    def forbidding(self, path: str) -> dict[str, str]:
        """The variables that forbid what is better than `path`."""
        better = ("direct",) if path == "host" else ("direct", "host")
        found = {
            name: value
            for name, value in self.settings.items()
            if (_DISABLES.get(name) in better and is_on(value)) or (name == _LEVEL and forbids_peers(value))
        }
        return found if "direct" in {_DISABLES.get(name, "direct") for name in found} else {}


class NetworkRecord(NamedTuple):
    """All collectives by `backend`; `late_s` by collective and rank, `wrong` elements by the rank that sent them."""

    backend: str
    devices: tuple[str, ...]
    curves: tuple[Curve, ...]
    late_s: Mapping[str, tuple[float, ...]]
    wrong: Mapping[int, int]
    skipped: Mapping[str, str]
    source: str
    transports: Transports = Transports()

    @property
    def all_reduce(self) -> Curve | None:
        """The curve of the all-reduce."""
        return next((one for one in self.curves if one.name == "all_reduce"), None)

    @property
    def forced(self) -> tuple[Pair, ...]:
        """Pairs of GPUs that do not reach each other directly, although NVLink joins them: as NCCL's topology says or,
        where it says nothing, as copies show that are far faster than any to the host."""
        indirect = (one for one in self.transports.pairs if one.path in ("host", "network"))
        return tuple(one for one in indirect if one.linked or (one.linked is None and one.outruns_host))

    @property
    def outpaced(self) -> tuple[Pair, ...]:
        """The same by measurement alone, where NCCL's log is not understood: a ring of GPUs of one machine that copy to
        each other far faster than to the host, while the all-reduce carries no more than a path to the host does."""
        pairs, curve, count = self.transports.pairs, self.all_reduce, len(self.devices)
        ring = {(at, at + 1) for at in range(count - 1)} | {(0, count - 1)}
        if self.transports.known or curve is None or curve.n_bytes[-1] < _LARGE or count < 2:
            return ()
        if not ring <= {one.ranks for one in pairs} or not all(one.outruns_host for one in pairs):
            return ()
        return pairs if curve.bus_gb_s[-1] <= min(one.host_gb_s or 0.0 for one in pairs) else ()

    def device(self, rank: int) -> str:
        """The device of a rank, by its name where the record has it."""
        return self.devices[rank] if rank < len(self.devices) else f"rank {rank}"

    @property
    def latest(self) -> tuple[float, str, int] | None:
        """Seconds by which a rank begins after the first, in which collective, and which rank: the worst of all."""
        every = ((late, name, rank) for name, each in self.late_s.items() for rank, late in enumerate(each))
        return max(every, default=None)
