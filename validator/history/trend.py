"""Metrics over many validations: where their level changed, and whether the latest value is out of line.

A change of level is found over all runs of a series, not by the difference of the last two, which says little: the
split with the largest Welch statistic in stretches of every size, significant with every split tried paid for
(Bonferroni), and material. Daly et al., "The Use of Change Point Detection to Identify Software
Performance Regressions" (ICPE 2020), show why. The latest run, which no test of levels can see yet, is compared with
the prediction interval of the level before it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Literal

import numpy as np
import numpy.typing as npt

from validator.history.read import HistoryEntry, Point
from validator.model.catalogue import Better
from validator.stats.distributions import t_quantile

Floats = npt.NDArray[np.float64]

MATERIAL = 0.02
"""Minimum relative change that is reported, the same as the smallest difference worth a decision."""

_LEVEL = 0.01
"""Error of the tests for a change, all splits of a series together."""

_MIN_RUNS = 3
"""Minimum of runs on either side of a change; fewer are left to the prediction interval."""

Judged = Literal["worse", "better", "changed"]


@dataclass(frozen=True)
class Change:
    """A change of level at run `index` of the series. `relative` is after over before, less one.

    `confirmed` is false for a single latest run outside of what the runs before it predict. `because` names the
    software that differs between the two runs at the change.
    """

    index: int
    before: float
    after: float
    relative: float
    judged: Judged
    confirmed: bool
    run_id: str
    because: tuple[str, ...] = ()


@dataclass(frozen=True)
class Trend:
    """One metric over the validations of one runbook on one class of machine, oldest first.

    `runs [n]` are positions in the group's entries, `values [n]` the metric. `left_out` counts the validations that
    measured it by another definition than the latest.
    """

    phase: str
    metric: str
    unit: str
    better: Better | None
    runs: tuple[int, ...]
    values: tuple[float, ...]
    changes: tuple[Change, ...]
    left_out: int = 0

    @property
    def name(self) -> str:
        """`baseline: toks_per_s.mean`."""
        return f"{self.phase}: {self.metric}"

    @property
    def regression(self) -> Change | None:
        """The last change, if it was for the worse: the level that still holds is the lower one."""
        return self.changes[-1] if self.changes and self.changes[-1].judged == "worse" else None


@dataclass(frozen=True)
class Group:
    """The validations that may be compared: one runbook, varied alike, on one class of machine, oldest first."""

    runbook: str
    variant: str
    machine: str
    title: str | None
    entries: tuple[HistoryEntry, ...]
    trends: tuple[Trend, ...]

    @property
    def regressions(self) -> tuple[tuple[Trend, Change], ...]:
        """The metrics whose last change was for the worse."""
        return tuple((trend, change) for trend in self.trends if (change := trend.regression) is not None)


def group_entries(entries: Sequence[HistoryEntry]) -> tuple[Group, ...]:
    """Entries by runbook, variant and class of machine, the group with the latest run first."""
    found: dict[tuple[str, str, str], list[HistoryEntry]] = {}
    for entry in entries:
        found.setdefault((entry.runbook, entry.variant, entry.machine), []).append(entry)
    groups = [Group(*key, kept[-1].title, tuple(kept), trends(kept)) for key, kept in found.items()]
    return tuple(sorted(groups, key=lambda group: group.entries[-1].started, reverse=True))


def trends(entries: Sequence[HistoryEntry]) -> tuple[Trend, ...]:
    """Every metric of comparable validations, in the order of the latest one. What has no decision does not count."""
    found: dict[tuple[str, str], list[tuple[int, Point]]] = {}
    for place, entry in enumerate(entries):
        if entry.decided:
            for point in entry.points:
                found.setdefault((point.phase, point.metric), []).append((place, point))
    order = {(p.phase, p.metric): place for place, p in enumerate(entries[-1].points)} if entries else {}
    names = sorted(found, key=lambda name: (order.get(name, len(order)), name))
    return tuple(_trend(entries, found[name]) for name in names)


def _trend(entries: Sequence[HistoryEntry], every: Sequence[tuple[int, Point]]) -> Trend:
    points = [one for one in every if one[1].version == every[-1][1].version]
    runs = tuple(place for place, _ in points)
    latest = points[-1][1]
    values = np.array([point.value for _, point in points], dtype=np.float64)
    changes = []
    for index, before, after, confirmed in _changes(values):
        relative = math.inf if before == 0 else (after - before) / abs(before)
        changes.append(
            Change(
                index=index,
                before=before,
                after=after,
                relative=relative,
                judged=_judged(relative, latest.better),
                confirmed=confirmed,
                run_id=entries[runs[index]].run_id,
                because=_software_changes(entries[runs[index - 1]], entries[runs[index]]),
            )
        )
    return Trend(
        latest.phase,
        latest.metric,
        latest.unit,
        latest.better,
        runs,
        tuple(values.tolist()),
        tuple(changes),
        len(every) - len(points),
    )


def _judged(relative: float, better: Better | None) -> Judged:
    if better is None:
        return "changed"
    return "better" if (relative > 0) == (better == "higher") else "worse"


def _software_changes(before: HistoryEntry, after: HistoryEntry) -> tuple[str, ...]:
    names = {**before.software, **after.software}
    return tuple(
        f"{name} {before.software.get(name, 'none')} → {after.software.get(name, 'none')}"
        for name in names
        if before.software.get(name) != after.software.get(name)
    )


def _changes(values: Floats) -> Iterator[tuple[int, float, float, bool]]:
    """(index, level before, level after, confirmed) of every change, in order."""
    cuts = level_changes(values)
    edges = [0, *cuts, len(values)]
    levels = [float(values[a:b].mean()) for a, b in pairwise(edges)]
    for cut, (before, after) in zip(cuts, pairwise(levels), strict=True):
        yield cut, before, after, True
    level = values[edges[-2] :] if len(values) else values
    if _out_of_line(level):
        yield len(values) - 1, float(level[:-1].mean()), float(level[-1]), False


def level_changes(values: Floats) -> list[int]:
    """Indices at which a new level begins, ascending. `values [n]`, one per run.

    Each change is sought in stretches of every size (seeded intervals), since a level that came back hides from a
    split of the whole. The clearest change is taken, the stretches that hold it are dropped, and so on.
    """
    stretches = _stretches(len(values))
    tried = sum(stop - start - 2 * _MIN_RUNS + 1 for start, stop in stretches)
    found = [
        (excess, start, stop, start + split)
        for start, stop in stretches
        for excess, split in _split(values[start:stop], tried)
    ]
    cuts: list[int] = []
    for _, start, stop, cut in sorted(found, key=lambda one: (-one[0], one[2] - one[1], one[1])):
        if not any(start < taken < stop for taken in cuts):
            cuts.append(cut)
    return _material(values, sorted(cuts))


def _stretches(n: int) -> list[tuple[int, int]]:
    """Stretches of n, n/2, n/4 … runs, each size moved on by half of itself (Kovács et al., Biometrika 2023)."""
    found = []
    length = float(n)
    while length >= 2 * _MIN_RUNS:
        moves = max(1, 2 * round(n / length) - 1)
        step = (n - length) / max(1, moves - 1)
        found += [(int(move * step), int(np.ceil(move * step + length))) for move in range(moves)]
        length /= 2
    return [(start, min(stop, n)) for start, stop in dict.fromkeys(found)]


def _split(values: Floats, tried: int) -> Iterator[tuple[float, int]]:
    """The best split and how far it is beyond chance, if it is significant after `tried` splits, and material."""
    n = len(values)
    if np.ptp(values) <= MATERIAL * abs(float(values.mean())):
        return
    lefts = np.arange(_MIN_RUNS, n - _MIN_RUNS + 1)
    statistics = _welch(values, lefts)
    best = int(statistics.argmax())
    split = int(lefts[best])
    if _differ(values[:split], values[split:]):
        excess = float(statistics[best]) / _critical(tried, max(min(split, n - split) - 1, _MIN_RUNS))
        if excess > 1.0:
            yield excess, split


@lru_cache(maxsize=4096)
def _critical(tried: int, freedom: int) -> float:
    """What |t| exceeds by chance in one of `tried` splits, at the level; freedom is the smaller side's."""
    return t_quantile(1 - _LEVEL / (2 * tried), freedom)


def _differ(left: Floats, right: Floats) -> bool:
    before = float(left.mean())
    return bool(abs(float(right.mean()) - before) >= MATERIAL * abs(before))


def _material(values: Floats, cuts: list[int]) -> list[int]:
    """The cuts between levels that differ materially once all cuts are known."""
    kept = list(cuts)
    for cut in cuts:
        edges = [0, *kept, len(values)]
        place = edges.index(cut)
        if not _differ(values[edges[place - 1] : cut], values[cut : edges[place + 1]]):
            kept.remove(cut)
    return kept


def _welch(values: Floats, lefts: npt.NDArray[np.int64]) -> Floats:
    """|Welch t| of each split. `values [n]`, `lefts [k]` sizes of the left side → `[k]`."""
    n = len(values)
    centered = values - values.mean()
    sums, squares = np.cumsum(centered)[lefts - 1], np.cumsum(centered**2)
    rights = n - lefts
    left_mean, right_mean = sums / lefts, -sums / rights
    left_var = np.maximum(squares[lefts - 1] / lefts - left_mean**2, 0.0)
    right_var = np.maximum((squares[-1] - squares[lefts - 1]) / rights - right_mean**2, 0.0)
    # Equal runs have no spread of their own; a small share of the whole spread keeps them from looking certain.
    floor = 1e-4 * float(squares[-1]) / n
    spread: Floats = np.sqrt((left_var + floor) / (lefts - 1) + (right_var + floor) / (rights - 1))
    found: Floats = np.abs(left_mean - right_mean) / spread
    return found


def _out_of_line(level: Floats) -> bool:
    """Whether the last value lies outside of what the others of its level predict, and materially."""
    others = level[:-1]
    n = len(others)
    if n < _MIN_RUNS:
        return False
    mean, away = float(others.mean()), abs(float(level[-1]) - float(others.mean()))
    reach = t_quantile(1 - _LEVEL / 2, n - 1) * float(others.std(ddof=1)) * math.sqrt(1 + 1 / n)
    return away > reach and away >= MATERIAL * abs(mean) and away > 0
