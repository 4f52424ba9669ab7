"""Trials: short runs of combinations of settings, each measured and kept, so that a bisection can be taken up again."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from validator.bisect.search import BudgetSpent, Reply
from validator.bisect.side import End, with_settings
from validator.judge.estimate import Estimate, over_runs
from validator.judge.measure import NotMeasured, measure
from validator.model.catalogue import METRICS
from validator.model.outcome import Outcome
from validator.model.plan import RunSpec
from validator.model.result import Result
from validator.model.runbook import Runbook

__all__ = ["Ends", "Trial", "Trials", "measured_rate", "trial_spec"]

_UNSTEADY_CV = 0.05
"""Assumed of a run that never was steady or is too short for an interval: it still tells twice as slow from as fast."""


@dataclass(frozen=True)
class Trial:
    """One run of one combination. `value` is the metric's mean, None when the run gives none; `why` says why."""

    number: int
    names: frozenset[str]
    value: float | None
    half: float = 0.0
    why: str | None = None
    duration_s: float = 0.0


@dataclass(frozen=True)
class Ends:
    """Both ends as measured, and how their distance is counted.

    `works` is set when good runs to its end and bad does not: then a combination shows the difference by failing.
    """

    good: Estimate | None
    bad: Estimate | None
    works: bool

    def share(self, value: Estimate) -> tuple[float, float, float]:
        """Share of the distance from good to bad, in logarithms, with its 95 % interval."""
        assert self.good is not None, "a rate is compared only where good has one"
        assert self.bad is not None, "a rate is compared only where bad has one"
        total = math.log(self.good.point / self.bad.point)
        replicates = np.log(_positive(self.good) / _positive(value)) / total
        low, high = (float(end) for end in np.quantile(replicates, [0.025, 0.975]))
        return math.log(self.good.point / value.point) / total, low, high


def _positive(estimate: Estimate) -> np.ndarray:
    values = np.full(1, estimate.point) if estimate.replicates is None else estimate.replicates
    return np.maximum(values, 1e-9 * abs(estimate.point))


@dataclass
class Trials:
    """Runs combinations and remembers them. `start` carries one trial out; `budget` is the most runs in all."""

    names: tuple[str, ...]
    metric: str
    statistic: str
    run_cv: float
    budget: int
    start: Callable[[int, frozenset[str]], Trial]
    done: list[Trial] = field(default_factory=list)
    told: int = 0
    ends: Ends | None = None
    asked: set[frozenset[str]] = field(default_factory=set)

    def next(self, names: frozenset[str]) -> tuple[Trial, ...]:
        """One more run of a combination (taken from an earlier sitting if there is one), with those before it.

        Raises:
            BudgetSpent: when no further run is allowed.
        """
        asked = [trial for trial in self.done[: self.told] if trial.names == names]
        # An earlier sitting asked the same questions in the same order, since the search has no other memory.
        if self.told < len(self.done) and self.done[self.told].names == names:
            trial = self.done[self.told]
        else:
            del self.done[self.told :]
            if len(self.done) >= self.budget:
                raise BudgetSpent
            trial = self.start(len(self.done) + 1, names)
            self.done.append(trial)
        self.told += 1
        return (*asked, trial)

    def estimate(self, trials: tuple[Trial, ...]) -> Estimate | None:
        """The metric over the runs of one combination; None when none gave a value."""
        known = [trial for trial in trials if trial.value is not None and trial.value > 0]
        if not known:
            return None
        rng = np.random.default_rng([trial.number for trial in known])
        runs = [
            Estimate(
                float(trial.value or 0.0), float(trial.value or 0.0) + trial.half / 1.96 * rng.standard_normal(4000)
            )
            for trial in known
        ]
        sign = -1 if METRICS[self.metric].better == "higher" else 1
        seed = "/".join(str(trial.number) for trial in known)
        return over_runs(runs, run_cv=self.run_cv, sign=sign, seed=seed)

    def ask(self, names: frozenset[str]) -> Reply:
        """What the search wants to know of a combination, by one more run."""
        assert self.ends is not None, "both ends are measured before the search begins"
        # All settings taken from bad make the bad end, which has been run before the search began.
        known = self._of(names) if names not in self.asked else ()
        self.asked.add(names)
        trials = known or self.next(names)
        failed = [trial for trial in trials if trial.value is None]
        if self.ends.works:
            share = 1.0 if failed else 0.0
            return Reply(share, share, share, runs=len(trials))
        value = self.estimate(trials)
        if value is None:
            return Reply(None, runs=len(trials), why=failed[-1].why)
        share, low, high = self.ends.share(value)
        return Reply(share, low, high, runs=len(trials))

    def _of(self, names: frozenset[str]) -> tuple[Trial, ...]:
        return tuple(trial for trial in self.done[: self.told] if trial.names == names)


def trial_spec(
    good: End,
    bad: End,
    names: frozenset[str],
    *,
    number: int,
    steps: int,
    warmup_steps: int,
    timeout_s: float,
    run_dir: Path,
) -> RunSpec:
    """The run of one combination, planned as a phase of a runbook would be."""
    from validator.plan import plan_phase

    end = with_settings(good, bad, names)
    runbook = Runbook.model_validate(
        {
            "schema": 1,
            "name": "bisect",
            "hardware": end.hardware,
            "trainer": end.trainer.model_copy(update={"args": end.args}),
            "defaults": {"nproc": end.nproc, "env": end.env, "watchdog": end.watchdog, "warmup_steps": warmup_steps},
            "phases": [{"id": f"t{number:02d}", "kind": "train", "steps": steps}],
        }
    )
    (spec,) = plan_phase(runbook, runbook.phases[0], run_dir=run_dir).runs
    return spec.model_copy(update={"timeout_s": timeout_s})


def measured_rate(
    result: Result, outcome: Outcome, *, metric: str, statistic: str = "mean", warmup_steps: int
) -> tuple[float | None, float, str | None]:
    """(value, half width of its 95 % interval, why there is none) of a trial's metric.

    A short run that was never steady still counts, with a wide interval. `statistic` is `mean`, or `p50` where a stall
    of a shared machine would outweigh a handful of steps.
    """
    # A run that its time limit ended was slow, not broken, if it got as far as to be measured.
    if not outcome.ok and outcome.reason != "timeout":
        return None, 0.0, outcome.last.detail or f"it ended {outcome.reason} with exit code {outcome.rc}"
    measurement = measure(result, warmup_steps=warmup_steps)
    loss = measurement.windows.get("loss")
    if loss is not None and not np.isfinite(loss.values).all():
        return None, 0.0, "its loss is not finite"
    windowed = measurement.windows.get(metric)
    if windowed is None or len(windowed.values) == 0:
        if not outcome.ok:
            return None, 0.0, outcome.last.detail or "it ran into its time limit"
        return None, 0.0, f"it wrote no {metric} after {warmup_steps} warm-up steps"
    mean = windowed.mean() if statistic == "mean" else float(np.median(windowed.values))
    if not math.isfinite(mean) or mean <= 0:
        return None, 0.0, f"its {metric} is {mean}"
    try:
        interval = measurement.estimate(metric, statistic).interval()
    except NotMeasured:
        interval = None
    half = 1.96 * _UNSTEADY_CV * mean if interval is None else (interval[1] - interval[0]) / 2
    return mean, half, None
