"""From when on other programs take CPU time that a run needs: they use some, and hardly any is left."""

from __future__ import annotations

OTHERS_PCT, FULL_PCT = 10.0, 85.0
"""Share of all cores that other programs use, and share that is busy, from which they take time from the run."""

_OTHER_CORES = 0.25
"""Cores below which what other programs use is a system's housekeeping, also on a machine that has few."""


def least_others_pct(cores: float | None) -> float:
    """`OTHERS_PCT`, or more on a machine of few cores; `cores` is None where their number is not known."""
    return OTHERS_PCT if cores is None else max(OTHERS_PCT, 100 * _OTHER_CORES / cores)
