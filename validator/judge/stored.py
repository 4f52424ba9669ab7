"""What the last GO measured, as criteria ask for it: the figures of its result.json, with the interval of each run."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from validator.judge.data import is_exact, sign
from validator.judge.estimate import MIN_REPEATS, REPLICATES, UNKNOWN_REACH, Estimate, exact, over_runs
from validator.judge.measure import NotMeasured
from validator.judge.window import SteadyWindow
from validator.model.catalogue import version_of
from validator.model.measure import MetricStats
from validator.model.record import PhaseRecord, RunRecord, ValidationRecord
from validator.model.resolve import LAST_GO, Resolved
from validator.model.runbook import Criterion
from validator.model.verdict import Evidence, PhaseReport, RunReport, ValidationReport, Verdict

__all__ = ["StoredPhase", "run_name", "without_last_go"]

_HALF_WIDTH = 1.959963984540054
"""Standard errors from the mean to an end of its 95 % interval."""


def without_last_go(criterion: Criterion, *, id: str) -> Verdict:
    """The verdict where there is nothing to compare with: never PASS, and SKIPPED only if the runbook says so."""
    skip = criterion.without_last_go == "skip"
    lack = "No earlier GO of this runbook on this class of machine was beside this run when it began"
    rest = (
        "the criterion is left out, as without_last_go: skip has it."
        if skip
        else "a first GO needs without_last_go: skip, or required: false."
    )
    return Verdict(
        id=id,
        text=criterion.expr,
        required=criterion.required and not skip,
        status="SKIPPED" if skip else "INCONCLUSIVE",
        message=f"{lack}; {rest}",
    )


def run_name(run: RunRecord | RunReport) -> str:
    """A run's id, of this validation or of the last GO."""
    return f"{LAST_GO}.{run.id}" if isinstance(run, RunReport) else run.spec.id


@dataclass(frozen=True)
class StoredPhase:
    """A phase of the last GO, with the face of `PhaseData`. `record` is the same phase of the validation at hand."""

    record: PhaseRecord
    validation: ValidationRecord
    last_go: ValidationReport

    @cached_property
    def report(self) -> PhaseReport | None:
        """The phase as it was reported; None where the runbook had no such phase then."""
        return next((one for one in self.last_go.phases if one.id == self.record.phase.id), None)

    @cached_property
    def arms(self) -> Mapping[str, tuple[RunReport, ...]]:
        """Arm to its runs."""
        found: dict[str, list[RunReport]] = {}
        for run in self.report.measured if self.report is not None else ():
            found.setdefault(run.arm or "", []).append(run)
        return {arm: tuple(runs) for arm, runs in found.items()}

    def chosen_arms(self) -> tuple[str, ...]:
        """The arm that was recommended then, else all."""
        comparison = self.report.comparison if self.report is not None else None
        if comparison is not None and comparison.recommended in self.arms:
            return (str(comparison.recommended),)
        return tuple(self.arms)

    def value(self, resolved: Resolved, *, arm: str, index: int | None) -> Estimate:
        """A reference's value: of run `index` when it is exact, else over the arm's runs.

        Raises:
            NotMeasured: when the last GO did not measure it.
        """
        runs = self.arms[arm]
        if is_exact(resolved):
            return exact(self._figure(runs[index or 0], resolved))
        values = [self._mean(run, resolved, alone=len(runs) < MIN_REPEATS) for run in runs]
        seed = f"{self.last_go.run_id}/{resolved.phase_id}/{arm}"
        return over_runs(values, run_cv=self.variation(resolved), sign=sign(resolved), seed=seed)

    def assumes_variation(self, resolved: Resolved, *, arm: str) -> bool:
        """Whether the interval rests on an assumed variation between runs, for want of four repeats."""
        return not is_exact(resolved) and sign(resolved) != 0 and len(self.arms.get(arm, ())) < MIN_REPEATS

    def variation(self, resolved: Resolved) -> float:
        """Assumed standard deviation between runs over their mean."""
        return self.validation.runbook.defaults.run_cv

    def windows(self, resolved: Resolved, *, arm: str) -> tuple[SteadyWindow, ...]:
        """The report of a run does not hold its window."""
        return ()

    def evidence(self, resolved: Resolved, *, arm: str) -> tuple[Evidence, ...]:
        """The run that was compared with, and its figure."""
        found = []
        for run in self.arms.get(arm, ()):
            stats = run.metrics.get(resolved.name)
            if stats is not None:
                text = f"{resolved.name} of {run.id} in the last GO, {self.last_go.run_id}: n={stats.n}"
                found.append(Evidence(path="last_go.json", where=run.id, text=text))
        return tuple(found)

    def _stats(self, run: RunReport, resolved: Resolved) -> MetricStats:
        stats = run.metrics.get(resolved.name)
        if stats is None:
            raise NotMeasured(f"run {run.id} of the last GO has no {resolved.name}")
        if stats.version != version_of(resolved.name):
            raise NotMeasured(
                f"{resolved.name} has another definition since the last GO, {self.last_go.run_id}, whose folder no "
                "longer holds what it would be computed from"
            )
        return stats

    def _figure(self, run: RunReport, resolved: Resolved) -> float:
        value = getattr(self._stats(run, resolved), resolved.statistic or "mean")
        if not isinstance(value, (int, float)):
            raise NotMeasured(f"run {run.id} of the last GO has no {resolved.name}.{resolved.statistic}")
        return float(value)

    def _mean(self, run: RunReport, resolved: Resolved, *, alone: bool) -> Estimate:
        """The run's mean, with its own interval, each side of which may have another width, if it stands `alone`."""
        stats, point = self._stats(run, resolved), self._figure(run, resolved)
        known = stats.ci_low is not None and stats.ci_high is not None and math.isfinite(stats.ci_high - stats.ci_low)
        if not known or stats.ci_low is None or stats.ci_high is None:
            reach = UNKNOWN_REACH if stats.min is None or stats.max is None else (stats.min, stats.max)
            why = f"run {run.id} of the last GO states no interval of {resolved.name}"
            return Estimate(point, None, reach if resolved.statistic == "mean" else UNKNOWN_REACH, why)
        reach = (min(stats.ci_low, point), max(stats.ci_high, point))
        if not alone:
            return Estimate(point, None, reach, "its interval is that over the runs")
        draw = np.random.default_rng(zlib.crc32(f"{self.last_go.run_id}/{run.id}".encode()))
        normal = draw.standard_normal(REPLICATES)
        width = np.where(normal < 0, point - stats.ci_low, stats.ci_high - point) / _HALF_WIDTH
        return Estimate(point, np.asarray(point + normal * width, dtype=np.float64), reach)
