"""What a burn-in found of each device, as the kind judges it: rates, wrong answers, temperature."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from itertools import pairwise
from types import MappingProxyType
from typing import NamedTuple

from validator.text import format_change, format_interval

_BLOCKS = 12
"""Rates are compared by the means of as many parts of the time: single rounds follow each other too closely."""


NOTHING: Mapping[str, int] = MappingProxyType({})
"""No wrong answer of any part."""


class RelativeChange(NamedTuple):
    """A relative difference with its 95 % interval, adjusted for the number of devices."""

    effect: float
    low: float
    high: float

    @property
    def text(self) -> str:
        """`-12.3 % [-13.1 %, -11.5 %]`."""
        return f"{format_change(self.effect)} {format_interval(self.low, self.high, format_change)}"


class Device(NamedTuple):
    """What one rank reported of its device. `errors` are wrong answers by part; `seen` quotes the first of them. `node`
    is empty without a cluster."""

    rank: int
    label: str
    source: str
    gpu: int | None = None
    identity: str = ""
    bits: str | None = None
    rates: tuple[float, ...] = ()
    times_s: tuple[float, ...] = ()
    memory_gb_s: float | None = None
    errors: Mapping[str, int] = NOTHING
    seen: str = ""
    done: bool = False
    node: str = ""

    @property
    def wrong(self) -> int:
        """Wrong answers of all parts."""
        return sum(self.errors.values())

    @property
    def rate(self) -> float | None:
        """Mean over the rounds."""
        return statistics.fmean(self.rates) if self.rates else None

    @property
    def blocks(self) -> tuple[float, ...]:
        """Means of parts of the time."""
        n = min(_BLOCKS, len(self.rates))
        edges = [len(self.rates) * edge // n for edge in range(n + 1)] if n else []
        return tuple(statistics.fmean(self.rates[a:b]) for a, b in pairwise(edges))


class Load(NamedTuple):
    """A GPU during the run, by the samples of the machine."""

    temperature_c: float | None
    power_w: float | None
    clock_mhz: float | None
    throttled: float | None
    reasons: tuple[str, ...] = ()


class BurninRecord(NamedTuple):
    """All devices in the order of their ranks, of so many that were `planned`; `slower` than the others and `sag` over
    time by rank, and `loads` of their GPUs."""

    devices: tuple[Device, ...]
    slower: Mapping[int, RelativeChange]
    sag: Mapping[int, RelativeChange]
    loads: Mapping[int, Load]
    planned: int

    @property
    def whole(self) -> bool:
        """Whether every planned device came to the end."""
        return len(self.devices) >= self.planned and all(one.done for one in self.devices)

    @property
    def slowest(self) -> Device | None:
        """The device with the least rate."""
        known = [one for one in self.devices if one.rate is not None]
        return min(known, key=lambda one: one.rate or 0.0, default=None)
