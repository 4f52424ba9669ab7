"""From when on other programs take CPU time that a run needs: they use some, and hardly any is left."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from validator.model.result import Series

OTHERS_PCT, FULL_PCT = 10.0, 85.0
"""Share of all cores that other programs use, and share that is busy, from which they take time from the run."""

_OTHER_CORES = 0.25
"""Cores below which what other programs use is a system's housekeeping, also on a machine that has few."""

_OWN_CORES = 0.2
"""Cores below which what the run and the validator use, itself some 0.1, is no work that waits for other programs."""

_FAIR = 0.5
"""Of what one program gets of a crowded CPU, the share from which a run is taken to want more."""

_SHARED = 2.0
"""Times as fast a run may be, for the same time of the CPU, whose caches and clocks nobody shares."""

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
    samples = _samples(series)
    own = [one for one in samples if slow[0] <= one.step <= slow[1]]
    before = [one.others for one in samples if fast[0] <= one.step <= fast[1]]
    if not _crowd(own, OTHERS_PCT):
        return None
    mean = _mean_pct(one.others for one in own)
    return None if before and mean < _mean_pct(before) + OTHERS_PCT else mean


def others_throughout(series: Mapping[str, Series]) -> float | None:
    """Per cent of all cores that other programs used in a run; None unless they crowd most of its samples."""
    samples = _samples(series)
    return _mean_pct(one.others for one in samples) if _crowd(samples, OTHERS_PCT) else None


class Others(NamedTuple):
    """CPU that other programs used, in percent of all cores, and how many times as fast a run may be without them."""

    pct: float
    gain: float = math.inf


def others_held(series: Mapping[str, Series], *, within: Stretch, cores: float | None) -> Others | None:
    """What other programs used in a stretch; None where they do not explain that all of it is slow.

    They do where they crowd most samples there. A run that hardly computes on the CPU does not wait for it, unless so
    many programs want it that little is all that one of them gets.
    """
    own = [one for one in _samples(series) if within[0] <= one.step <= within[1]]
    if not _crowd(own, least_others_pct(cores)):
        return None
    used_pct = _mean_pct(one.busy - one.others for one in own)
    if used_pct < min(100 * _OWN_CORES / (cores or 1.0), _FAIR * _share_of_one_pct(series, within, cores)):
        return None
    return Others(_mean_pct(one.others for one in own), gain=_SHARED * 100 / used_pct)


def _share_of_one_pct(series: Mapping[str, Series], within: Stretch, cores: float | None) -> float:
    """Per cent of all cores that one program gets where more want to compute than there are cores; else infinite."""
    load = series.get("telemetry.load_1m")
    if load is None or cores is None:
        return math.inf
    wanted = load.values[(load.steps >= within[0]) & (load.steps <= within[1])]
    mean = float(wanted.mean()) if wanted.size else 0.0
    return 100 / mean if mean > cores else math.inf


class _Sample(NamedTuple):
    """CPU in percent of all cores, of everything and of other programs, and the step that was under way."""

    step: int
    busy: float
    others: float


def _samples(series: Mapping[str, Series]) -> list[_Sample]:
    busy, others = (series.get(f"telemetry.{name}") for name in ("host_cpu_pct", "host_other_cpu_pct"))
    if busy is None or others is None:
        return []
    used = dict(zip(busy.steps.tolist(), busy.values.tolist(), strict=True))
    known = zip(others.steps.tolist(), others.values.tolist(), strict=True)
    return [_Sample(step, used[step], taken) for step, taken in known if step in used]


def _crowd(samples: Sequence[_Sample], least_pct: float) -> bool:
    """Whether other programs, which use at least so much, crowd most of the samples."""
    crowded = sum(one.others >= least_pct and one.busy >= FULL_PCT for one in samples)
    return bool(samples) and crowded >= _MOST * len(samples)


def _mean_pct(values: Iterable[float]) -> float:
    listed = list(values)
    return math.fsum(listed) / len(listed)
