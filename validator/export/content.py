"""What a tracker gets of a validation: the decision, every criterion, and of each run its config, results and series.

It holds no command and no absolute path, and every text has been through the masks of the run folder. Its name holds
the host's, but for that of a sanitized copy.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from validator.model.machine import machine_class
from validator.model.record import RunRecord, ValidationRecord
from validator.model.result import Floats, MetricStats, ScalarValue, Steps
from validator.model.verdict import PhaseReport, RunReport, ValidationReport
from validator.text import one_line
from validator.times import parse_time

_STATISTICS = ("mean", "ci_low", "ci_high", "stdev", "min", "p50", "p95", "max", "first", "last")

Plain = str | int | float | bool


@dataclass(frozen=True)
class TrackedRun:
    """One run of a trainer or a program.

    `values` holds `metric.statistic` and scalars by name, `series` metric to (steps `[n]`, values `[n]`).
    """

    name: str
    phase: str
    arm: str | None
    ok: bool
    config: Mapping[str, Plain]
    values: Mapping[str, float]
    series: Mapping[str, tuple[Steps, Floats]]


@dataclass(frozen=True)
class Tracked:
    """A whole validation. `values` and `texts` are named `PHASE.…` as criteria name them; `started_s` is UNIX time."""

    name: str
    runbook: str
    decision: str
    why: str
    started_s: float
    values: Mapping[str, float]
    texts: Mapping[str, str]
    passed: Mapping[str, bool]
    runs: tuple[TrackedRun, ...]

    @property
    def tags(self) -> dict[str, str]:
        """What a tracker lists a validation by."""
        return {"validator.run": self.name, "validator.runbook": self.runbook, "validator.decision": self.decision}


def tracked(report: ValidationReport, record: ValidationRecord) -> Tracked:
    """A validation as a tracker gets it, from its report and from what was read of its runs."""
    records = {run.spec.id: run for phase in record.phases for run in phase.every_run}
    values: dict[str, float] = {}
    texts = {"machine": machine_class(report.environment), "validator": report.validator_version}
    passed: dict[str, bool] = {}
    for phase in report.phases:
        passed[phase.id], texts[f"{phase.id}.status"] = phase.status == "PASS", phase.status
        values |= {f"{phase.id}.{name}": value for name, value in _scalar_numbers(phase.scalars)}
        for verdict in phase.criteria:
            passed[verdict.id] = verdict.status == "PASS"
            texts[f"{verdict.id}.criterion"] = one_line(f"{verdict.status}: {verdict.text}", limit=250)
            for name, value in (("observed", verdict.observed), ("bound", verdict.bound)):
                if (number := _finite(value)) is not None:
                    values[f"{verdict.id}.{name}"] = number
    moment = parse_time(report.started)
    return Tracked(
        name=report.run_id,
        runbook=report.runbook.name,
        decision=report.decision.replace("_", "-"),
        why=one_line(report.why, limit=1000),
        started_s=0.0 if moment is None else moment.timestamp(),
        values=values,
        texts=texts,
        passed=passed,
        runs=tuple(_tracked_run(phase, run, records.get(run.id)) for phase in report.phases for run in phase.runs),
    )


def _tracked_run(phase: PhaseReport, run: RunReport, record: RunRecord | None) -> TrackedRun:
    found = {} if record is None or record.result is None else record.result.series
    settings = {**(run.requested or {}), **(run.effective or {})}
    outcome = run.outcome or {}
    return TrackedRun(
        name=run.id,
        phase=phase.id,
        arm=run.arm,
        ok=outcome.get("reason") == "exited" and outcome.get("rc") == 0,
        config={one_line(name, limit=200): _as_plain(value) for name, value in settings.items() if not _is_path(value)},
        values={**dict(_scalar_numbers(run.scalars)), **dict(_statistics(run.metrics))},
        series={name: (series.steps, series.values) for name, series in found.items()},
    )


def _as_plain(value: object) -> Plain:
    return value if isinstance(value, (bool, int, float)) else one_line(value, limit=500)


def _is_path(value: object) -> bool:
    """Whether it is an absolute path, which says more about the machine than about the training."""
    return isinstance(value, str) and value.startswith(("/", "~"))


def _finite(value: object) -> float | None:
    known = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if known and isinstance(value, (int, float)) and math.isfinite(value) else None


def _scalar_numbers(scalars: Mapping[str, ScalarValue]) -> Iterator[tuple[str, float]]:
    for name, scalar in scalars.items():
        for suffix, value in (("", scalar.value), (".ci_low", scalar.ci_low), (".ci_high", scalar.ci_high)):
            if (number := _finite(value)) is not None:
                yield f"{name}{suffix}", number


def _statistics(metrics: Mapping[str, MetricStats]) -> Iterator[tuple[str, float]]:
    for name, stats in metrics.items():
        for statistic in _STATISTICS:
            if (number := _finite(getattr(stats, statistic))) is not None:
                yield f"{name}.{statistic}", number
