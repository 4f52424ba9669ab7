"""What the collectives of a network phase gave, as its kind judges it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


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


class NetworkRecord(NamedTuple):
    """All collectives by `backend`; `late_s` by collective and rank, `wrong` elements by the rank that sent them."""

    backend: str
    devices: tuple[str, ...]
    curves: tuple[Curve, ...]
    late_s: Mapping[str, tuple[float, ...]]
    wrong: Mapping[int, int]
    skipped: Mapping[str, str]
    source: str

    def device(self, rank: int) -> str:
        """The device of a rank, by its name where the record has it."""
        return self.devices[rank] if rank < len(self.devices) else f"rank {rank}"

    @property
    def latest(self) -> tuple[float, str, int] | None:
        """Seconds by which a rank begins after the first, in which collective, and which rank: the worst of all."""
        every = ((late, name, rank) for name, each in self.late_s.items() for rank, late in enumerate(each))
        return max(every, default=None)
