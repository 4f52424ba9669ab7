"""Whether all ranks are equally fast: each one's own work per step, compared with the median of the others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from validator.diagnose.facts import RunFacts
from validator.diagnose.rule import evidence, found, percent
from validator.judge.autocorrelation import effective_size, lag1, long_run_stdev
from validator.judge.means import holm
from validator.model.verdict import Finding

__all__ = ["straggler"]

Floats = npt.NDArray[np.float64]

_LAG_INFO, _LAG_WARNING = 0.03, 0.10
_COST_WARNING = 0.02
_LEVEL = 0.01
_LEAST_STEPS = 12
_DRAWS = 4000
_OUTLIER, _OUTLIER_NOISE = 0.10, 6.0
"""A step in which a rank is slow now and then: a tenth, and six robust deviations, above its own median lag."""


@dataclass(frozen=True)
class _Lag:
    """How a rank lags: `share` of its work over the others', `p_value` of less than a percent, `cost` of the step that
    would be saved if it were as fast as the slowest of the others, `often` the share of steps that it is slow in."""

    rank: int
    share: float
    p_value: float
    cost: float
    often: float


def straggler(run: RunFacts) -> Iterator[Finding]:
    """One rank takes longer than the others for its own work, always or now and then, and all wait for it."""
    ranks, steps, work = _work(run)
    if len(ranks) < 2 or len(steps) < _LEAST_STEPS:
        return
    lags = _lags(run, ranks, steps, work)
    adjusted = holm([lag.p_value for lag in lags])  # 1 for ranks that lag too little to be told
    slow = [lag for lag, p_value in zip(lags, adjusted, strict=True) if p_value < _LEVEL]
    if not slow:
        return
    worst = max(slow, key=lambda lag: lag.share)
    mean = work.mean(axis=1)
    listed = ", ".join(f"rank {rank}: {mean[i]:.3g} s" for i, rank in enumerate(ranks[:8]))
    now_and_then = f", in {percent(worst.often)} of the steps" if worst.often < 0.5 else ""
    others = "the other one" if len(ranks) == 2 else "the median of the others"
    subject = f"Ranks {ranks[0]} and {ranks[1]} differ: rank {worst.rank}" if len(ranks) == 2 else f"Rank {worst.rank}"
    heartbeat = run.result.extra.get("heartbeats", {}).get(worst.rank, {})
    yield found(
        "straggler",
        f"{subject} needs {percent(worst.share)} more time for its own work than {others}{now_and_then}, which costs "
        f"{percent(worst.cost)} of a step (score {1 / (1 + worst.share):.2f}).",
        severity="warning" if worst.share >= _LAG_WARNING or worst.cost >= _COST_WARNING else "info",
        because=[evidence(f"compute_time_s, mean over {len(steps)} steps: {listed}", heartbeat.get("path"))],
        next_step=f"Look at rank {worst.rank}'s device: clocks, temperature, PCIe width, other processes (nvidia-smi "
        "-q), and at the length of its data; swap devices by CUDA_VISIBLE_DEVICES to see whether it moves along.",
    )


def _work(run: RunFacts) -> tuple[list[int], npt.NDArray[np.int64], Floats]:
    """Ranks `[r]`, the steps `[n]` that all of them recorded after warm-up, and their own work `[r, n]` in seconds."""
    own = {
        rank: series["compute_time_s"]
        for rank, series in sorted(run.result.rank_series.items())
        if "compute_time_s" in series
    }
    columns = {}
    for rank, one in own.items():
        usable = (one.steps > run.spec.warmup_steps) & np.isfinite(one.values) & (one.values > 0)
        steps, first = np.unique(one.steps[usable], return_index=True)
        if steps.size >= _LEAST_STEPS:
            columns[rank] = (steps, one.values[usable][first])
    if not columns:
        return [], np.empty(0, dtype=np.int64), np.empty((0, 0))
    shared = next(iter(columns.values()))[0]
    for steps, _ in columns.values():
        shared = np.intersect1d(shared, steps, assume_unique=True)
    work = np.array([values[np.searchsorted(steps, shared)] for steps, values in columns.values()])
    return list(columns), shared, work


def _lags(run: RunFacts, ranks: list[int], steps: npt.NDArray[np.int64], work: Floats) -> list[_Lag]:
    """Each rank beside the median of the others, step by step."""
    times = run.result.series.get("step_time_s")
    whole = float(work.max(axis=0).mean())
    if times is not None and np.isfinite(times.values).any():
        whole = max(whole, float(np.median(times.values[np.isfinite(times.values)])))
    others = np.array([np.median(np.delete(work, i, axis=0), axis=0) for i in range(len(ranks))])
    ratios = work / others - 1
    limit = np.maximum(_OUTLIER, _OUTLIER_NOISE * 1.4826 * np.median(np.abs(ratios - np.median(ratios)), axis=1))
    outliers = (ratios > limit[:, None]).sum(axis=1)
    lags = []
    for i, rank in enumerate(ranks):
        share = float(work[i].mean() / others[i].mean() - 1)
        often = float((ratios[i] > max(_LAG_INFO, share / 2)).mean())
        p_value = 1.0
        if share >= _LAG_INFO:
            seldom = _by_chance(int(outliers[i]), int(outliers.sum()), len(ranks))
            always = max(_bootstrapped(work[i], others[i]), _t_test(ratios[i]))
            p_value = min(1.0, 2 * min(seldom, always))
        lags.append(_Lag(rank, share, p_value, _cost(work, i) / whole, often))
    return lags


def _cost(work: Floats, i: int) -> float:
    """Seconds of a step that rank `i` costs all others, beyond what any further rank of the usual noise would."""
    rest = np.delete(work, i, axis=0)
    if len(rest) == 1:
        return max(0.0, float(work[i].mean() - rest[0].mean()))
    without = float(rest.max(axis=0).mean())
    further = [without - float(np.delete(rest, j, axis=0).max(axis=0).mean()) for j in range(len(rest))]
    return max(0.0, float(work.max(axis=0).mean()) - without - float(np.median(further)))


def _t_test(ratios: Floats) -> float:
    """p value of a lag above one percent, by the long-run error of the mean: correlated steps are worth few."""
    from scipy.special import stdtr

    phi = lag1(ratios - ratios.mean(), fitted=1)
    freedom = effective_size(len(ratios), phi) - 1.0
    error = long_run_stdev(ratios - ratios.mean(), phi) / np.sqrt(len(ratios))
    if error <= 0:
        return 0.0
    return float(stdtr(freedom, -(ratios.mean() - _LAG_INFO / 3) / error)) if freedom >= 2 else 1.0


def _by_chance(own: int, of_all: int, ranks: int) -> float:
    """Chance that so many of all outliers fall on one rank, if each falls on any; three at least say anything."""
    from scipy.special import bdtrc

    return float(bdtrc(own - 1, of_all, 1 / ranks)) if own >= 3 else 1.0


def _bootstrapped(work: Floats, others: Floats) -> float:
    """The same, by drawing blocks of steps."""
    drawn, length = _blocks(len(work))
    own, other = (_sums(one, length)[drawn].sum(axis=1) for one in (work, others))
    return float((1 + (own / other - 1 <= _LAG_INFO / 3).sum()) / (1 + _DRAWS))


def _blocks(n: int) -> tuple[npt.NDArray[np.int64], int]:
    """First rows of the blocks of each resample `[draws, blocks]`, and the rows of a block: the square root of `n`."""
    length = max(1, round(n**0.5))
    return np.random.default_rng(n).integers(0, n, size=(_DRAWS, -(-n // length))), length


def _sums(values: Floats, length: int) -> Floats:
    """Sum of the block of `length` rows that begins at each row `[n]`, around the end."""
    sums = np.concatenate(([0.0], np.cumsum(np.concatenate([values, values[: length - 1]]))))
    blocks: Floats = sums[length:] - sums[:-length]
    return blocks
