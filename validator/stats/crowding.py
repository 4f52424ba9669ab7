"""From when on other programs take CPU time that a run needs: they use some, and hardly any is left."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from validator.model.result import Series

OTHERS_PCT, FULL_PCT = 10.0, 85.0
"""Share of all cores that other programs use, and share that is busy, from which they take time from the run."""

_OTHER_CORES = 0.25
"""Cores below which what other programs use is a system's housekeeping, also on a machine that has few."""

_MOST = 0.5
"""Share of the samples of a slow stretch that other programs crowd, from which it is not this machine's."""

Stretch = tuple[float, float]
"""The first and the last step of a stretch of a run; infinite where it has no end."""


def least_others_pct(cores: float | None) -> float:
    """`OTHERS_PCT`, or more on a machine of few cores; `cores` is None where their number is not known."""
    return OTHERS_PCT if cores is None else max(OTHERS_PCT, 100 * _OTHER_CORES / cores)


def others_in(series: Mapping[str, Series], *, slow: Stretch, fast: Stretch) -> float | None:
    """Per cent of all cores that other programs used in a slow stretch; None where they do not explain it.

    They do where they crowd most samples there, and took clearly less in the fast stretch.
    """
    busy, others = (series.get(f"telemetry.{name}") for name in ("host_cpu_pct", "host_other_cpu_pct"))
    if busy is None or others is None:
        return None
    used = dict(zip(busy.steps.tolist(), busy.values.tolist(), strict=True))
    known = [pair for pair in zip(others.steps.tolist(), others.values.tolist(), strict=True) if pair[0] in used]
    own = [(step, taken) for step, taken in known if slow[0] <= step <= slow[1]]
    before = [taken for step, taken in known if fast[0] <= step <= fast[1]]
    crowded = sum(taken >= OTHERS_PCT and used[step] >= FULL_PCT for step, taken in own)
    if not own or crowded < _MOST * len(own):
        return None
    mean = math.fsum(taken for _, taken in own) / len(own)
    return None if before and mean < math.fsum(before) / len(before) + OTHERS_PCT else mean
