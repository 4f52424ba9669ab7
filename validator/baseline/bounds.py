"""What a runbook should ask of the next run, from good ones: so far from them that the next good run passes it.

Three distances add up. The next run differs from the mean of the good ones: a prediction interval. Its verdict needs
the whole interval on the right side: half of the width that the interval will have. And a margin that the user states.

The interval of a few rows that wander may hold half of the mean, though no row was that slow. The next run passes if
all its parts do, so the bound then starts from the worst row, by the rows' own scatter.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from validator.model.catalogue import METRICS, MIN_REPEATS, STATISTICS, Better, Metric, headlines
from validator.model.expression import open_reference
from validator.model.findings import DISTURBED
from validator.model.runbook import Runbook, TrainingPhase
from validator.model.settings import repeats_of
from validator.model.verdict import RunReport, ValidationReport
from validator.stats.distributions import t_quantile
from validator.stats.estimate import LEVEL, NORMAL_975
from validator.stats.means import is_flat, pooled_cv
from validator.text import format_number, format_percent, listed, plural

_LEARNED = 0.1
"""Share of what the good runs learned that the next one must learn, however much a single row may vary."""

_WANDER = 0.7
"""Share of the half width of a run's own 95 % interval by which its mean is taken to be off, to one side and beside the
other distances: by simulation (benchmarks/bounds.py) the least of a few at which 95 % of healthy runs pass, whatever
the noise of the steps and its memory."""

_ROW_NOISE = 0.05
"""Noise of one row over its value, where the run does not say it: that of a batch of some thousand tokens."""

_FAR = 0.25
"""Distance of a bound from what was measured, beyond which it says little."""

_MOST_BELOW = 0.9
"""Share of a value by which each distance takes a lower bound away from it at most, so that it stays above 0."""

_SAME_LENGTH = 1.25
"""Times as many steps as the phase has, or the inverse, from which runs are of another length."""

Lengths = Mapping[str, Mapping[str, int]]
"""Steps that were asked of each phase, by the id of a validation."""


@dataclass(frozen=True)
class MetricBound:
    """One criterion: `phase`, `reference operator value`, and a sentence that says where it comes from.

    `warnings` are clauses that say why it may be too tight, or too easy to pass. `room`: how many times as slow as the
    good runs one may be that passes; 1 for what is no rate.
    """

    phase: str
    reference: str
    operator: str
    value: float
    unit: str
    why: str
    warnings: tuple[str, ...] = ()
    room: float = 1.0

    @property
    def expr(self) -> str:
        """The criterion as a runbook has it."""
        return f"{self.reference} {self.operator} {_decimal_text(self.value)}"


def bounds_of(
    reports: Sequence[ValidationReport], *, runbook: Runbook, margin: float, lengths: Lengths | None = None
) -> tuple[MetricBound, ...]:
    """The bounds for every phase of `runbook` that runs one config and that the good runs have carried out.

    Args:
        reports: the good validations, of this runbook on one class of machine.
        runbook: the one that receives the bounds; its repeats decide how wide the next interval will be.
        margin: share of the mean by which each bound is eased further.
        lengths: steps of the phases in each validation, where they may be others than those of `runbook`.
    """
    return tuple(
        bound
        for phase, good in _good_runs(reports, runbook, lengths or {})
        for metric, values in good.values(phase, runbook)
        if not (good.other_length and metric.statistic == "last")
        for bound in [_metric_bound(phase, metric, values, good, runbook, margin)]
    )


def left_out(reports: Sequence[ValidationReport], *, runbook: Runbook, lengths: Lengths) -> tuple[str, ...]:
    """What gets no bound although it was measured, as sentences: the end of a curve of another length."""
    return tuple(
        f"{phase.id}: no bound on {metric.name}.{metric.statistic}: {good.other_length}, and where the curve ends "
        "depends on its length; run the phase with its own steps for one"
        for phase, good in _good_runs(reports, runbook, lengths)
        if good.other_length
        for metric, _ in good.values(phase, runbook)
        if metric.statistic == "last"
    )


@dataclass(frozen=True)
class _Good:
    """The good runs of a phase: the validations that they are of, how these were disturbed, and as a clause how their
    length differs from that of the phase."""

    runs: tuple[RunReport, ...]
    names: tuple[str, ...]
    findings: tuple[str, ...]
    other_length: str

    def values(self, phase: TrainingPhase, runbook: Runbook) -> Iterator[tuple[Metric, list[float]]]:
        """Every metric that a bound is asked of, and what the runs show of it."""
        measured = {name for run in self.runs for name in run.metrics}
        for metric in _asked_metrics(phase, runbook, measured):
            values = [_usable_value(run, metric) for run in self.runs]
            known = [value for value in values if value is not None and math.isfinite(value) and value > 0]
            if known:
                yield metric, known


def _good_runs(
    reports: Sequence[ValidationReport], runbook: Runbook, lengths: Lengths
) -> Iterator[tuple[TrainingPhase, _Good]]:
    for phase in runbook.phases:
        if not isinstance(phase, TrainingPhase) or not phase.one_config:
            continue
        runs: list[RunReport] = []
        names: list[str] = []
        codes: list[str] = []
        steps: list[int] = []
        for report in reports:
            found = next((one for one in report.phases if one.id == phase.id), None)
            good = [run for run in found.measured if _ended_well(run)] if found is not None else []
            if good:
                runs += good
                names.append(report.run_id)
                codes += [one.code for one in report.findings if one.phase == phase.id and one.severity != "info"]
                steps.append(lengths.get(report.run_id, {}).get(phase.id, phase.steps))
        disturbed = tuple(dict.fromkeys(code for code in codes if code in DISTURBED))
        yield phase, _Good(tuple(runs), tuple(names), disturbed, _other_length(steps, phase.steps))


def _other_length(steps: Sequence[int], wanted: int) -> str:
    """How runs differ in length from what the phase has, as a clause; empty where they do not."""
    others = [one for one in steps if not 1 / _SAME_LENGTH <= one / wanted <= _SAME_LENGTH]
    return f"the run had {others[0]:,} steps, and the phase has {wanted:,}" if others else ""


def _asked_metrics(phase: TrainingPhase, runbook: Runbook, measured: set[str]) -> Iterator[Metric]:
    """What a verdict on these measurements rests on; and what the phase leaves open, by the statistic that it names."""
    left_open = {}
    for criterion in phase.accept:
        found = open_reference(criterion.expr)
        name, _, statistic = found[0].name.rpartition(".") if found is not None else ("", "", "")
        left_open[name] = (statistic, found[1] if found is not None else None)
    metrics = {**METRICS, **runbook.trainer.metrics.declared}
    rests = headlines(measured, metrics)
    for metric in metrics.values():
        statistic, operator = left_open.get(metric.name, ("", None))
        if operator is not None and statistic in STATISTICS:
            better: Better = "higher" if operator in (">=", ">") else "lower"
            yield metric._replace(statistic=statistic, better=better)
        elif metric.name in rests:
            yield metric


def _ended_well(run: RunReport) -> bool:
    outcome = run.outcome or {}
    return outcome.get("reason") == "at_steps" or (outcome.get("rc") == 0 and outcome.get("reason") == "exited")


def _usable_value(run: RunReport, metric: Metric) -> float | None:
    stats = run.metrics.get(metric.name)
    if stats is None or stats.version != metric.version or (metric.window == "steady" and stats.ci_low is None):
        return None  # of another definition, or without an interval: nothing to ask of others
    found = getattr(stats, metric.statistic)
    return None if found is None else float(found)


def _metric_bound(
    phase: TrainingPhase,
    metric: Metric,
    values: Sequence[float],
    good: _Good,
    runbook: Runbook,
    margin: float,
) -> MetricBound:
    operator = ">=" if metric.better == "higher" else "<="
    sign = -1.0 if operator == ">=" else 1.0
    runs, mean, n = good.runs, float(np.mean(values)), len(values)
    cv, measured = _variation(values, runbook.defaults.run_cv)
    within = _within(runs, metric.name) if metric.window == "steady" else 0.0
    row = _noise(runs, metric)
    # What enough runs differ by has the noise of a row, and of a run, in it.
    noise = 0.0 if measured else (_ROW_NOISE * abs(mean) if row is None else row) / abs(mean)
    spread = _Spread(cv, measured, noise, n, repeats_of(runbook, phase), runbook.defaults.run_cv)
    distances = spread.distances(within, margin, steady=metric.window == "steady")
    value, parts = distances.beyond(mean, sign), distances.parts()
    if within and (found := _worst_row(runs, metric, sign)) is not None:
        worst, scatter = found
        distances = spread.distances(min(scatter, within), margin, steady=True)
        by_row = distances.beyond(worst, sign)
        if sign * by_row < sign * value:  # a few rows that wander leave their mean open to more than any of them shows
            value, parts = by_row, distances.parts(f"from its worst row of {format_number(worst)} on: ")
    value = _rounded(value, up=operator == "<=")
    first = _first(runs, metric)
    if first is not None and sign * mean < sign * first and sign * _between(mean, first) < sign * value:
        start = f"the first value of {format_number(first)}"
        if all(is_flat(one) for run in runs if (one := run.metrics.get(metric.name)) is not None):
            parts += [f"and not below {start}, for one row varies by {format_number(row or 0.0)}"]
        else:
            value = _between(mean, first)
            parts += [f"but {'below' if sign > 0 else 'above'} {start}, where a run ends that learned nothing"]
    known_by = "measured" if measured else "seen in few" if cv > runbook.defaults.run_cv else "assumed"
    source = f"{format_percent(cv)} between runs, {known_by}"
    assumed = ", assumed, since the run does not say it" if row is None and noise else ""
    source += f"; {format_percent(noise)} of noise in one row{assumed}" if noise else ""
    source += f"; {format_percent(within)} by its own interval" if within and not measured else ""
    distance = abs(value / mean - 1)
    return MetricBound(
        phase=phase.id,
        reference=f"{metric.name}.{metric.statistic}",
        operator=operator,
        value=value,
        unit=metric.unit,
        why=f"{plural(n, 'good run')} gave {format_number(mean)} {metric.unit} ({source}); "
        f"{', '.join(parts)}; from {', '.join(good.names)}",
        warnings=tuple(_warnings(metric, good, distance, row is None and not measured)),
        room=max(mean / value, value / mean) if metric.window == "steady" and not measured else 1.0,
    )


@dataclass(frozen=True)
class _Distances:
    """By how much of a value its bound lies beyond it, each on top of the one before; `interval` is 0 where the
    next verdict has none."""

    next_run: float
    interval: float
    margin: float

    def beyond(self, value: float, sign: float) -> float:
        """The bound by which the next run passes that may lie at `value`."""
        for distance in (self.next_run, self.interval, self.margin):
            value *= 1.0 + distance if sign > 0 else 1.0 - min(distance, _MOST_BELOW)
        return value

    def parts(self, start: str = "") -> list[str]:
        """As text, which says first from where on."""
        own = [f"{format_percent(self.interval)} for its interval"] if self.interval else []
        next_run = f"{start}{format_percent(self.next_run)} for the next run"
        return [next_run, *own, f"{format_percent(self.margin)} margin"]


@dataclass(frozen=True)
class _Spread:
    """What `n` runs show of the next, of as many `repeats`: by `cv` of the mean they differ, `measured` or assumed, and
    by `noise` one row does."""

    cv: float
    measured: bool
    noise: float
    n: int
    repeats: int
    run_cv: float

    def distances(self, within: float, margin: float, *, steady: bool) -> _Distances:
        """Those of a mean that each run knows to `within`."""
        reach = t_quantile((1 + LEVEL) / 2, self.n - 1) if self.measured else NORMAL_975
        wander = 0.0 if self.measured else within
        one = math.hypot(reach * self.cv, NORMAL_975 * self.noise, _WANDER * wander)
        own = _interval(self.cv, within, self.repeats, self.run_cv) if steady else 0.0
        return _Distances(one * math.sqrt(1 / self.repeats + 1 / self.n), own, margin)


def _warnings(metric: Metric, good: _Good, distance: float, noise_unknown: bool) -> Iterator[str]:
    """What a person should know before relying on a bound."""
    if good.other_length:
        yield f"{good.other_length}: repeat it with the phase's own steps"
    if good.findings and metric.window == "steady":
        yield f"it rests on a run that had {listed(list(good.findings))}: repeat it on a quiet machine"
    if noise_unknown:
        yield (
            f"the run does not show how much one row of {metric.name} varies, by too few rows or as a folder of an "
            f"earlier version, so {format_percent(_ROW_NOISE)} is assumed"
        )
    if distance > _FAR and metric.window == "steady":
        away = format_percent(distance)
        yield f"it lies {away} from what was measured, so uneven was the run: a longer one gives a tighter bound"


def _variation(values: Sequence[float], assumed: float) -> tuple[float, bool]:
    """Relative standard deviation between runs, and whether enough runs measured it."""
    cv = pooled_cv([values])
    if cv is None:
        return assumed, False
    return (cv, True) if len(values) >= MIN_REPEATS else (max(cv, assumed), False)


def _noise(runs: Sequence[RunReport], metric: Metric) -> float | None:
    """Standard deviation of the one row that a statistic takes: 0 for one of many rows, None where it is unknown."""
    if metric.statistic not in ("first", "last"):
        return 0.0
    seen = [stats.noise for run in runs if (stats := run.metrics.get(metric.name)) and stats.noise is not None]
    return float(np.mean(seen)) if seen else None


def _first(runs: Sequence[RunReport], metric: Metric) -> float | None:
    """Where the curve began of which a bound takes the last value; None for another statistic."""
    seen = [stats.first for run in runs if (stats := run.metrics.get(metric.name)) and stats.first is not None]
    return float(np.mean(seen)) if seen and metric.statistic == "last" else None


def _worst_row(runs: Sequence[RunReport], metric: Metric, sign: float) -> tuple[float, float] | None:
    """The slowest row of the runs, beyond which no mean of theirs can lie, and by how much of the mean rows vary. None
    where a run does not say it."""
    seen = [stats for run in runs if (stats := run.metrics.get(metric.name)) is not None]
    rows = [one.min if sign < 0 else one.max for one in seen]
    known = [one for one in rows if one is not None and one > 0]
    scatter = [one.cv for one in seen if one.cv is not None]
    if not known or not len(known) == len(scatter) == len(seen):
        return None
    return (min if sign < 0 else max)(known), float(np.mean(scatter))


def _between(last: float, first: float) -> float:
    """A bound that the last value passes and the first one fails, of as few digits as that takes."""
    value = first + _LEARNED * (last - first)
    rounded = (_rounded(value, up=last > first, digits=digits) for digits in range(3, 12))
    return next((one for one in rounded if min(last, first) < one < max(last, first)), value)


def _within(runs: Sequence[RunReport], metric: str) -> float:
    """Half of the relative width of the interval of one run: its noise from step to step, with its memory."""
    found = [
        stats.half_width / stats.mean
        for run in runs
        if (stats := run.metrics.get(metric)) and stats.half_width is not None and stats.mean
    ]
    return float(np.mean(found)) if found else 0.0


def _interval(cv: float, within: float, repeats: int, run_cv: float) -> float:
    """Half of the relative width that the next verdict's interval will have."""
    if repeats >= MIN_REPEATS:
        return t_quantile((1 + LEVEL) / 2, repeats - 1) * cv / math.sqrt(repeats)
    return math.hypot(NORMAL_975 * run_cv, within) / math.sqrt(repeats)


def _rounded(value: float, *, up: bool, digits: int = 3) -> float:
    """So many significant digits, rounded to one side: for a bound to the one that is easier to pass."""
    if value == 0 or not math.isfinite(value):
        return value
    scale = 10.0 ** (math.floor(math.log10(abs(value))) - digits + 1)
    return (math.ceil if up else math.floor)(value / scale + (-1e-9 if up else 1e-9)) * scale


def _decimal_text(value: float) -> str:
    """Without exponent and without the noise of binary fractions: `612000`, `38.4`, `0.0123`."""
    text = f"{value:.12f}".rstrip("0").rstrip(".")
    return text or "0"
