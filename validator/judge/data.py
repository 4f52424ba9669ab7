"""What is known of each phase, ready to be asked for by a criterion: runs by arm, measured once."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from validator.judge.estimate import MIN_REPEATS, Estimate, combine, exact, over_runs
from validator.judge.means import pooled_cv
from validator.judge.measure import EXACT_STATISTICS, NotMeasured, RunMeasurement, measure
from validator.judge.window import SteadyWindow
from validator.judge.wording import quoted
from validator.model.catalogue import METRICS
from validator.model.measure import ScalarValue
from validator.model.record import PhaseRecord, RunRecord, ValidationRecord
from validator.model.resolve import Resolved
from validator.model.result import Result
from validator.model.runbook import TrainPhase
from validator.model.verdict import Evidence, PhaseReport

__all__ = ["Known", "PhaseData", "is_exact", "measured", "scaling_efficiency", "sign"]

Known = Estimate | str
"""A value of a criterion: a number with what it could also have been, or text."""

_SAMPLED_SCALARS = frozenset({"rate.drift_pct", "scaling.efficiency"})

_measurements: dict[int, tuple[weakref.ref[Result], RunMeasurement]] = {}


def measured(run: RunRecord) -> RunMeasurement | None:
    """The run's statistics, computed once for each Result; None before anything was collected."""
    if run.result is None:
        return None
    key = id(run.result)
    known = _measurements.get(key)
    if known is not None and known[0]() is run.result:
        return known[1]
    fresh = measure(run.result, warmup_steps=run.spec.warmup_steps, world_size=run.spec.world_size)
    _measurements[key] = (weakref.ref(run.result, lambda _: _measurements.pop(key, None)), fresh)
    return fresh


def is_exact(resolved: Resolved) -> bool:
    """Whether the value belongs to one run alone and has no interval."""
    if resolved.kind == "scalar":
        return resolved.name not in _SAMPLED_SCALARS
    return resolved.window == "whole" or resolved.statistic in EXACT_STATISTICS


def sign(resolved: Resolved) -> int:
    """How a slow run moves the value: up (times), down (rates) or not at all (ratios, whole-run metrics)."""
    metric = METRICS.get(resolved.name)
    if resolved.kind == "scalar" or metric is None or metric.window != "steady" or resolved.statistic == "cv":
        return 0
    return -1 if metric.better == "higher" else 1


@dataclass(frozen=True)
class PhaseData:
    """One phase's runs by arm (the key is "" when there are no arms).

    `pauses` is whether rates count pauses of which a run holds too few to show how often they come.
    """

    record: PhaseRecord
    validation: ValidationRecord
    report: PhaseReport | None = None
    pauses: bool = True

    @cached_property
    def arms(self) -> Mapping[str, tuple[RunRecord, ...]]:
        """Arm to its runs, in the order in which they were first started."""
        found: dict[str, list[RunRecord]] = {}
        for run in self.record.measured:
            found.setdefault(run.spec.arm or "", []).append(run)
        return {arm: tuple(runs) for arm, runs in found.items()}

    @property
    def smoke(self) -> RunRecord:
        """The loader's trial.

        Raises:
            NotMeasured: when there was none.
        """
        trial = next((run for run in self.record.runs if run.spec.role == "smoke"), None)
        if trial is None:
            raise NotMeasured(f"phase {self.record.phase.id} did not try the loader alone")
        return trial

    def chosen_arms(self) -> tuple[str, ...]:
        """The arms that a reference from another phase means: the recommended one, else all."""
        recommended = (
            None if self.report is None or self.report.comparison is None else self.report.comparison.recommended
        )
        if recommended is not None and recommended in self.arms:
            return (recommended,)
        return tuple(self.arms)

    def value(self, resolved: Resolved, *, arm: str, index: int | None) -> Known:
        """A reference's value in one arm; of run `index` when it is exact, else over the arm's runs.

        Raises:
            NotMeasured: when it is not known; the message says which run lacks what.
        """
        runs = self.arms[arm]
        if resolved.name.startswith("smoke."):
            return self.of_run(self.smoke, resolved)
        if is_exact(resolved):
            return self.of_run(runs[index or 0], resolved)
        if resolved.name == "scaling.efficiency":
            return scaling_efficiency(self)
        # From four repeats on, the scatter of the run means is the interval; a run need not have one of its own.
        values = [self.of_run(run, resolved, alone=len(runs) < MIN_REPEATS) for run in runs]
        estimates = [value for value in values if isinstance(value, Estimate)]
        run_cv = self.variation(resolved)
        return over_runs(estimates, run_cv=run_cv, sign=sign(resolved), seed=f"{resolved.phase_id}/{arm}")

    def variation(self, resolved: Resolved) -> float:
        """Assumed standard deviation between runs over their mean.

        As the runbook declares it or, if that is more, as four runs or more of the last GO showed it.
        """
        declared, last_go = self.validation.runbook.defaults.run_cv, self.validation.last_go
        phase = next((one for one in last_go.phases if one.id == resolved.phase_id), None) if last_go else None
        means: dict[str | None, list[float]] = {}
        for run in phase.measured if phase is not None else ():
            if (stats := run.metrics.get(resolved.name)) is not None and stats.mean:
                means.setdefault(run.arm, []).append(stats.mean)
        return max(declared, pooled_cv([runs for runs in means.values() if len(runs) >= MIN_REPEATS]) or 0.0)

    def windows(self, resolved: Resolved, *, arm: str) -> tuple[SteadyWindow, ...]:
        """The windows of the runs that a value stands for a long run by; none for an exact value."""
        if is_exact(resolved):
            return ()
        if resolved.name == "scaling.efficiency":
            rate = Resolved(resolved.phase_id, "series", "toks_per_s_per_rank", "mean", "tok/s", "steady")
            wide = _scaled_against(self)
            return tuple(window for side in (wide, self) for arm in side.arms for window in side.windows(rate, arm=arm))
        measurements = [measured(run) for run in self.arms.get(arm, ())]
        found = [one.window_found for one in measurements if one is not None and one.window_found is not None]
        # The drift is the slow-down itself, so it needs no second proof.
        return tuple(replace(one, slowed=False) if resolved.kind == "scalar" else one for one in found)

    def recorded(self, run: RunRecord, resolved: Resolved) -> float | None:
        """What was recorded of a value in one run, whether or not anything may be concluded from it."""
        measurement = measured(run)
        stats = None if measurement is None else measurement.metrics.get(resolved.name)
        return None if stats is None or resolved.statistic is None else getattr(stats, resolved.statistic)

    def assumes_variation(self, resolved: Resolved, *, arm: str) -> bool:
        """Whether the interval rests on an assumed variation between runs, for want of four repeats."""
        if resolved.name == "scaling.efficiency":
            return True
        return not is_exact(resolved) and sign(resolved) != 0 and len(self.arms.get(arm, ())) < MIN_REPEATS

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
        measurement = measurement if self.pauses else measurement.without_pauses
        return measurement.estimate(resolved.name, resolved.statistic, alone=alone)

    def few_pauses(self, resolved: Resolved, *, arm: str) -> str | None:
        """The run of an arm whose rate holds pauses, but too few to show how often they come; None where none does."""
        for run in self.arms.get(arm, ()):
            measurement = measured(run)
            rows = measurement.windows.get(resolved.name) if measurement is not None else None
            if rows is not None and rows.without_pauses is not None:
                return run.spec.id
        return None

    def evidence(self, resolved: Resolved, *, arm: str) -> tuple[Evidence, ...]:
        """Where the value was read: one entry for each run."""
        found = []
        trial = [run for run in self.record.runs if run.spec.role == "smoke"]
        for run in trial if resolved.name.startswith("smoke.") else self.arms.get(arm, ()):
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
        raise NotMeasured(f"run {run.spec.id} does not tell its {family} config")
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
    wide = _scaled_against(data)
    rates = []
    for side in (wide, data):
        if not side.arms:
            raise NotMeasured(f"phase {side.record.phase.id} has no runs")
        rate = Resolved(side.record.phase.id, "series", "toks_per_s_per_rank", "mean", "tok/s", "steady")
        value = side.value(rate, arm=next(iter(side.arms)), index=None)
        if not isinstance(value, Estimate) or not value.point > 0:
            raise NotMeasured(f"phase {side.record.phase.id} has no rate above 0")
        rates.append(value)
    return combine("/", rates)


def _scaled_against(data: PhaseData) -> PhaseData:
    """The phase whose rate per rank is compared with that of this one."""
    phase = data.record.phase
    if not isinstance(phase, TrainPhase) or phase.scaling_against is None:
        raise NotMeasured(f"phase {phase.id} names no phase to compare with by scaling_against")
    return PhaseData(data.validation.phase(phase.scaling_against), data.validation)
