"""What is known of each phase, ready to be asked for by a criterion: runs by arm, measured once."""

from __future__ import annotations

import math
import weakref
import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from validator.judge.cost import COSTS, cost_of, rate_behind
from validator.model.catalogue import MIN_REPEATS, version_of
from validator.model.record import PhaseRecord, RunRecord, ValidationRecord
from validator.model.resolve import LAST_GO, Resolved
from validator.model.result import MetricStats, Result, ScalarValue
from validator.model.runbook import TrainPhase
from validator.model.verdict import Evidence, PhaseReport, RunReport, ValidationReport
from validator.stats.clock import OWN_WORD, OwnWord, own_word
from validator.stats.crowding import Others, others_held, others_in
from validator.stats.estimate import NORMAL_975, REPLICATES, UNKNOWN_REACH, Estimate, combine, exact, over_runs
from validator.stats.means import pooled_cv
from validator.stats.measure import EXACT_STATISTICS, NotMeasured, RunMeasurement, measure
from validator.stats.rate import MODEL_RATE
from validator.stats.window import SteadyWindow
from validator.text import quoted

Known = Estimate | str
"""A value of a criterion: a number with what it could also have been, or text."""

Run = TypeVar("Run", RunRecord, RunReport)

_SAMPLED_SCALARS = frozenset({"rate.drift_pct", "scaling.efficiency"}) | COSTS

_measurements: dict[int, tuple[weakref.ref[Result], RunMeasurement]] = {}


def measured(run: RunRecord) -> RunMeasurement | None:
    """The run's statistics, computed once for each Result; None before anything was collected."""
    if run.result is None:
        return None
    key = id(run.result)
    known = _measurements.get(key)
    if known is not None and known[0]() is run.result:
        return known[1]
    spec, declared = run.spec, run.spec.metrics.declared
    fresh = measure(run.result, warmup_steps=spec.warmup_steps, world_size=spec.world_size, declared=declared)
    _measurements[key] = (weakref.ref(run.result, lambda _: _measurements.pop(key, None)), fresh)
    return fresh


_OF_THE_RATE = frozenset({"toks_per_s", "toks_per_s_per_rank", MODEL_RATE})


def by_own_word(run: RunRecord) -> OwnWord | None:
    """What the rate of a run means of a step, where nothing else says whether its level is right; None elsewhere."""
    if run.result is None or not run.spec.trains:
        return None
    return own_word(run.result, after_step=run.spec.warmup_steps)


def is_exact(resolved: Resolved) -> bool:
    """Whether the value belongs to one run alone and has no interval."""
    if resolved.kind == "scalar":
        return resolved.name not in _SAMPLED_SCALARS
    return resolved.window == "whole" or resolved.statistic in EXACT_STATISTICS


def sign(resolved: Resolved) -> int:
    """How a slow run moves the value: up (times), down (rates) or not at all (ratios, whole-run metrics)."""
    if resolved.window != "steady" or resolved.statistic == "cv":
        return 0
    return -1 if resolved.better == "higher" else 1


def _misses_when_slow(resolved: Resolved, operator: str) -> bool:
    """Whether a slow run misses such a bound: one from below on a rate or a share of a peak, from above on a time."""
    if resolved.name in COSTS:
        return operator in ("<", "<=")
    if resolved.name == "scaling.efficiency":
        return operator in (">", ">=")
    of_time = resolved.unit in ("s", "ms", "") or resolved.unit.endswith("/s")
    if resolved.window != "steady" or not of_time:
        return False
    return operator in {"higher": (">", ">="), "lower": ("<", "<=")}.get(resolved.better or "", ())


def _by_arm(runs: Iterable[tuple[str | None, Run]]) -> Mapping[str, tuple[Run, ...]]:
    """Arm to its runs, in the order in which they come; "" where there are no arms."""
    found: dict[str, list[Run]] = {}
    for arm, run in runs:
        found.setdefault(arm or "", []).append(run)
    return {arm: tuple(own) for arm, own in found.items()}


def _recommended_arms(report: PhaseReport | None, arms: Collection[str]) -> tuple[str, ...]:
    """The arm that a report recommends where there is such an arm, else all."""
    recommended = report.comparison.recommended if report is not None and report.comparison is not None else None
    return (recommended,) if recommended is not None and recommended in arms else tuple(arms)


def _assumes_variation(resolved: Resolved, runs: Sequence[object]) -> bool:
    return not is_exact(resolved) and sign(resolved) != 0 and len(runs) < MIN_REPEATS


@dataclass(frozen=True)
class PhaseData:
    """One phase's runs by arm (the key is "" when there are no arms).

    `pauses` is whether rates count pauses of which a run holds too few to show how often they come; `at_end` whether a
    run that became slower counts as it was at its end alone.
    """

    record: PhaseRecord
    validation: ValidationRecord
    report: PhaseReport | None = None
    pauses: bool = True
    at_end: bool = False

    @cached_property
    def arms(self) -> Mapping[str, tuple[RunRecord, ...]]:
        """Arm to its runs, in the order in which they were first started."""
        return _by_arm((run.spec.arm, run) for run in self.record.measured)

    @property
    def smoke(self) -> RunRecord:
        """The loader's trial.

        Raises:
            NotMeasured: when there was none.
        """
        trial = next((run for run in self.record.runs if run.spec.role == "smoke"), None)
        if trial is None:
            raise NotMeasured(f"phase {self.record.phase.id} did not run a data-loader smoke test")
        return trial

    def slowest_round(self, name: str) -> RunRecord:
        """The round of the slow-node search in which a link was the slowest.

        Raises:
            NotMeasured: when no round measured a link.
        """
        found = [
            (float(one.value), run)
            for run in self.record.runs
            if run.spec.role == "round" and (one := _known_scalars(run).get(name)) is not None
            if isinstance(one.value, (int, float))
        ]
        if not found:
            raise NotMeasured(f"phase {self.record.phase.id} measured no pair of nodes")
        return min(found, key=lambda one: one[0])[1]

    def chosen_arms(self) -> tuple[str, ...]:
        """The arms that a reference from another phase means: the recommended one, else all."""
        return _recommended_arms(self.report, self.arms)

    def value(self, resolved: Resolved, *, arm: str, index: int | None) -> Known:
        """A reference's value in one arm; of run `index` when it is exact, else over the arm's runs.

        Raises:
            NotMeasured: when it is not known; the message says which run lacks what.
        """
        runs = self.arms[arm]
        if resolved.name.startswith("smoke."):
            return self.of_run(self.smoke, resolved)
        if resolved.name.startswith("links."):
            return self.of_run(self.slowest_round(resolved.name), resolved)
        if is_exact(resolved):
            return self.of_run(runs[index or 0], resolved)
        if resolved.name == "scaling.efficiency":
            return scaling_efficiency(self)
        if resolved.name in COSTS:
            rate = self.value(rate_behind(resolved), arm=arm, index=None)
            assert isinstance(rate, Estimate), "a series is a number"
            runbook, phase = self.validation.runbook, self.record.phase
            return cost_of(resolved.name, rate, runbook=runbook, phase=phase, runs=runs)
        # From four repeats on, the scatter of the run means is the interval; a run need not have one of its own.
        values = [self.of_run(run, resolved, alone=len(runs) < MIN_REPEATS) for run in runs]
        estimates = [value for value in values if isinstance(value, Estimate)]
        run_cv = self.variation(resolved)
        return over_runs(estimates, run_cv=run_cv, sign=sign(resolved), seed=f"{resolved.phase_id}/{arm}")

    def variation(self, resolved: Resolved) -> float:
        """Assumed standard deviation between runs over their mean.

        As the runbook declares it or, if that is more, as four runs or more of the last GO showed it.
        """
        resolved = rate_behind(resolved)
        declared, last_go = self.validation.runbook.defaults.run_cv, self.validation.last_go
        phase = next((one for one in last_go.phases if one.id == resolved.phase_id), None) if last_go else None
        means: dict[str | None, list[float]] = {}
        for run in phase.measured if phase is not None else ():
            if (stats := run.metrics.get(resolved.name)) is not None and stats.mean:
                means.setdefault(run.arm, []).append(stats.mean)
        return max(declared, pooled_cv([runs for runs in means.values() if len(runs) >= MIN_REPEATS]) or 0.0)

    def windows(self, resolved: Resolved, *, arm: str) -> tuple[SteadyWindow, ...]:
        """The windows of the runs from which a value predicts a long run; none for an exact value."""
        if is_exact(resolved):
            return ()
        if resolved.name == "scaling.efficiency":
            rate = Resolved(resolved.phase_id, "series", "toks_per_s_per_rank", "mean", "tok/s", "steady")
            wide = _scaled_against(self)
            return tuple(window for side in (wide, self) for arm in side.arms for window in side.windows(rate, arm=arm))
        resolved, measurements = rate_behind(resolved), [measured(run) for run in self.arms.get(arm, ())]
        found = [one.window_found for one in measurements if one is not None and one.window_found is not None]
        # The drift is the slow-down itself, so it needs no second proof.
        return tuple(replace(one, slowed=False) if resolved.kind == "scalar" else one for one in found)

    def slowed_by_others(self, run: RunRecord, resolved: Resolved, *, operator: str) -> Others | None:
        """What other programs used of the CPU, where they may be why a run misses a bound of pace."""
        measurement = measured(run)
        if run.result is None or measurement is None:
            return None
        series, window = run.result.series, measurement.window
        within = (-math.inf, math.inf) if window is None else (float(window.first_step), float(window.last_step))
        if resolved.name == "rate.drift_pct":
            third = (within[1] - within[0]) / 3
            fast, slow = (within[0], within[0] + third), (within[1] - third, within[1])
            fell = isinstance(drift := _known_scalars(run)[resolved.name].value, float) and drift < 0
            pct = others_in(series, slow=slow, fast=fast) if fell else None
            return None if pct is None else Others(pct)
        if not _misses_when_slow(resolved, operator):
            return None
        cpu = self.validation.environment.get("cpu")
        cores = cpu.get("cores_logical") if isinstance(cpu, Mapping) else None
        return others_held(series, within=within, cores=cores if isinstance(cores, (int, float)) else None)

    def recorded(self, run: RunRecord, resolved: Resolved) -> float | None:
        """What was recorded of a value in one run, whether or not anything may be concluded from it."""
        measurement = measured(run)
        stats = None if measurement is None else measurement.metrics.get(resolved.name)
        return None if stats is None or resolved.statistic is None else getattr(stats, resolved.statistic)

    def assumes_variation(self, resolved: Resolved, *, arm: str) -> bool:
        """Whether the interval rests on an assumed variation between runs, for want of four repeats."""
        resolved = rate_behind(resolved)
        return resolved.name == "scaling.efficiency" or _assumes_variation(resolved, self.arms.get(arm, ()))

    def of_run(self, run: RunRecord, resolved: Resolved, *, alone: bool = True) -> Known:
        """A reference's value in one run, with the interval within that run if it stands `alone`.

        Raises:
            NotMeasured: when it is not known.
        """
        if resolved.kind == "scalar":
            return _scalar(run, resolved.name, alone=alone)
        measurement = measured(run)
        if measurement is None or resolved.statistic is None:
            raise NotMeasured(f"run {run.spec.id} was not measured")
        measurement = measurement.at_end if self.at_end else measurement
        measurement = measurement if self.pauses else measurement.without_pauses
        return measurement.estimate(resolved.name, resolved.statistic, alone=alone)

    def few_pauses(self, resolved: Resolved, *, arm: str) -> str | None:
        """The run of an arm whose rate holds pauses, but too few to show how often they come; None where none does."""
        resolved = rate_behind(resolved)
        for run in self.arms.get(arm, ()):
            measurement = measured(run)
            rows = measurement.windows.get(resolved.name) if measurement is not None else None
            if rows is not None and rows.without_pauses is not None:
                return run.spec.id
        return None

    def remark(self, resolved: Resolved, *, arm: str) -> str:
        """What was noted of the value where it was read, as a sentence after a space; empty where nothing was."""
        behind = rate_behind(resolved)
        if behind.name in _OF_THE_RATE and behind.statistic != "cv":
            return f" {OWN_WORD}" if any(by_own_word(run) for run in self.arms.get(arm, ())) else ""
        results = (run.result for run in self.arms.get(arm, ()) if resolved.kind == "scalar")
        noted = [one.scalars[resolved.name].note for one in results if one and resolved.name in one.scalars]
        return "".join(f" {note}." for note in dict.fromkeys(noted) if note)

    def evidence(self, resolved: Resolved, *, arm: str) -> tuple[Evidence, ...]:
        """Where the value was read: one entry for each run."""
        found, resolved = [], rate_behind(resolved)
        role = {"smoke": "smoke", "links": "round"}.get(resolved.name.partition(".")[0])
        apart = [run for run in self.record.runs if run.spec.role == role]
        for run in apart if role is not None else self.arms.get(arm, ()):
            measurement = measured(run)
            if resolved.kind == "scalar":
                scalar = _known_scalars(run).get(resolved.name)
                if scalar is not None:
                    text = f"{resolved.name} = {quoted(scalar.value)}" + (f" {scalar.unit}" if scalar.unit else "")
                    found.append(Evidence(path=scalar.source, where=run.spec.id, text=text))
            elif measurement is not None and resolved.name in measurement.metrics:
                stats = measurement.metrics[resolved.name]
                where = f"steps {stats.window.first_step}–{stats.window.last_step}" if stats.window else None
                text = f"{resolved.name} of {run.spec.id}: n={stats.n}" + (f"; {stats.note}" if stats.note else "")
                found.append(Evidence(path=stats.source, where=where, text=text))
        return tuple(found)


def _known_scalars(run: RunRecord) -> dict[str, ScalarValue]:
    scalars: dict[str, ScalarValue] = {}
    if run.outcome is not None:
        scalars["outcome.rc"] = ScalarValue(value=run.outcome.rc)
        scalars["outcome.duration_s"] = ScalarValue(value=run.outcome.duration_s, unit="s")
    measurement = measured(run)
    if run.result is not None and measurement is not None:
        scalars |= measurement.scalars
        scalars |= run.result.scalars
    return scalars


def _scalar(run: RunRecord, name: str, *, alone: bool) -> Known:
    family, _, key = name.partition(".")
    if family in ("effective", "requested"):
        return _config_value(run, family, key)
    measurement = measured(run)
    if measurement is not None and name in measurement.derived:
        return measurement.derived[name]
    scalar = _known_scalars(run).get(name)
    if scalar is None or scalar.value is None:
        raise NotMeasured(f"run {run.spec.id} has no {name}")
    if name in _SAMPLED_SCALARS and alone:
        raise NotMeasured(f"run {run.spec.id}: {name} has no interval" + (f" ({scalar.note})" if scalar.note else ""))
    return _known(scalar.value)


def _config_value(run: RunRecord, family: str, key: str) -> Known:
    config: Mapping[str, Any] | None = None
    if run.result is not None:
        config = run.result.effective if family == "effective" else run.result.requested
    if config is None:
        raise NotMeasured(f"run {run.spec.id} does not report its {family} config")
    if key not in config or config[key] is None:
        raise NotMeasured(f"run {run.spec.id} has no {family}.{key}")
    return _known(config[key])


def _known(value: object) -> Known:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return exact(float(value))
    return str(value)


def scaling_efficiency(data: PhaseData) -> Estimate:
    """Per-rank rate of the phase named by `scaling_against` over this phase's, with the interval of the ratio.

    Raises:
        NotMeasured: when either rate is not known.
    """
    return combine("/", [mean_rate(side, "toks_per_s_per_rank") for side in (_scaled_against(data), data)])


def mean_rate(data: PhaseData, name: str) -> Estimate:
    """A rate in tokens/s over the runs of a phase of one config.

    Raises:
        NotMeasured: when it is not known.
    """
    phase = data.record.phase.id
    if not data.arms:
        raise NotMeasured(f"phase {phase} has no runs")
    rate = Resolved(phase, "series", name, "mean", "tok/s", "steady", better="higher")
    value = data.value(rate, arm=next(iter(data.arms)), index=None)
    if not isinstance(value, Estimate) or not value.point > 0:
        raise NotMeasured(f"phase {phase} has no rate above 0")
    return value


def _scaled_against(data: PhaseData) -> PhaseData:
    """The phase whose rate per rank is compared with that of this one."""
    phase = data.record.phase
    if not isinstance(phase, TrainPhase) or phase.scaling_against is None:
        raise NotMeasured(f"phase {phase.id} names no phase to compare with by scaling_against")
    return PhaseData(data.validation.phase(phase.scaling_against), data.validation)


# What the last GO measured, as criteria ask for it: the figures of its result.json, with the interval of each run.


def run_name(run: RunRecord | RunReport) -> str:
    """A run's id, of this validation or of the last GO."""
    return f"{LAST_GO}.{run.id}" if isinstance(run, RunReport) else run.spec.id


@dataclass(frozen=True)
class StoredPhase:
    """A phase of the last GO, with the interface of `PhaseData`. `record` is the same phase of this validation."""

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
        return _by_arm((run.arm, run) for run in (self.report.measured if self.report is not None else ()))

    def chosen_arms(self) -> tuple[str, ...]:
        """The arm that was recommended then, else all."""
        return _recommended_arms(self.report, self.arms)

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
        return _assumes_variation(resolved, self.arms.get(arm, ()))

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
        width = np.where(normal < 0, point - stats.ci_low, stats.ci_high - point) / NORMAL_975
        return Estimate(point, np.asarray(point + normal * width, dtype=np.float64), reach)
