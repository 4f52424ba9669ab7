"""How far below good runs a bound must lie so that the next good run passes it, and no further.

Three distances add up. The next run differs from the mean of the good ones: a prediction interval. Its verdict needs
the whole interval on the right side: half of the width that the interval will have. And a margin that the user states.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from validator.judge.autocorrelation import t_quantile
from validator.judge.estimate import LEVEL, MIN_REPEATS
from validator.judge.means import pooled_cv
from validator.judge.wording import number
from validator.model.catalogue import METRICS
from validator.model.runbook import Phase, Runbook, SoakPhase, TrainPhase
from validator.model.settings import repeats_of
from validator.model.verdict import RunReport, ValidationReport

__all__ = ["Bound", "bounds_of"]

_Z_975 = 1.959963984540054
_FOLLOWED = (
    ("toks_per_s", "mean", ">="),
    ("gpu_mem_reserved_mib", "max", "<="),
    ("loss", "last", "<="),
)
"""What a good run fixes: its rate, its memory, what it learned."""


@dataclass(frozen=True)
class Bound:
    """One criterion: `phase`, `reference operator value`, and in words where it comes from."""

    phase: str
    reference: str
    operator: str
    value: float
    unit: str
    why: str

    @property
    def expr(self) -> str:
        """The criterion as a runbook has it."""
        return f"{self.reference} {self.operator} {_plain(self.value)}"


def bounds_of(reports: Sequence[ValidationReport], *, runbook: Runbook, margin: float) -> tuple[Bound, ...]:
    """The bounds for every train and soak phase of `runbook` that the good runs have carried out.

    Args:
        reports: the good validations, of this runbook on one class of machine.
        runbook: the one that receives the bounds; its repeats decide how wide the next interval will be.
        margin: share of the mean by which each bound is eased further.
    """
    return tuple(
        bound
        for phase in runbook.phases
        if isinstance(phase, (TrainPhase, SoakPhase))
        for bound in _of_phase(phase, reports, runbook, margin)
    )


def _of_phase(phase: Phase, reports: Sequence[ValidationReport], runbook: Runbook, margin: float) -> Iterator[Bound]:
    runs: list[RunReport] = []
    names: list[str] = []
    for report in reports:
        found = next((one for one in report.phases if one.id == phase.id), None)
        good = [run for run in found.measured if _ended_well(run)] if found is not None else []
        if good:
            runs += good
            names.append(report.run_id)
    for metric, statistic, operator in _FOLLOWED:
        values = [_value(run, metric, statistic) for run in runs]
        known = [value for value in values if value is not None and math.isfinite(value) and value > 0]
        if known:
            yield _bound(phase, (metric, statistic, operator), known, runs, names, runbook, margin)


def _ended_well(run: RunReport) -> bool:
    return run.outcome is not None and run.outcome.get("rc") == 0 and run.outcome.get("reason") == "exited"


def _value(run: RunReport, metric: str, statistic: str) -> float | None:
    stats = run.metrics.get(metric)
    if (
        stats is None
        or stats.version != METRICS[metric].version
        or (METRICS[metric].window == "steady" and stats.ci_low is None)
    ):
        return None  # of another definition, or without an interval: nothing to ask of others
    found = getattr(stats, statistic)
    return None if found is None else float(found)


def _bound(
    phase: Phase,
    what: tuple[str, str, str],
    values: Sequence[float],
    runs: Sequence[RunReport],
    names: Sequence[str],
    runbook: Runbook,
    margin: float,
) -> Bound:
    metric, statistic, operator = what
    mean, n = float(np.mean(values)), len(values)
    assert isinstance(phase, (TrainPhase, SoakPhase)), "only these are given bounds"
    repeats = repeats_of(runbook, phase)
    steady = METRICS[metric].window == "steady"
    cv, measured = _variation(values, runbook.defaults.run_cv)
    reach = t_quantile((1 + LEVEL) / 2, n - 1) if measured else _Z_975
    next_run = reach * cv * math.sqrt(1 / repeats + 1 / n)
    own = _interval(runs, metric, cv, repeats, runbook.defaults.run_cv) if steady else 0.0
    sign = -1.0 if operator == ">=" else 1.0
    value = mean
    for distance in (next_run, own, margin):
        value *= 1.0 + sign * min(distance, 0.9)
    parts = [f"{100 * next_run:.1f} % for the next run"]
    parts += [f"{100 * own:.1f} % for its interval"] if own else []
    parts += [f"{100 * margin:g} % margin"]
    known_by = "measured" if measured else "seen in few" if cv > runbook.defaults.run_cv else "assumed"
    source = f"{100 * cv:.2g} % between runs, {known_by}"
    plural = "run" if n == 1 else "runs"
    return Bound(
        phase=phase.id,
        reference=f"{metric}.{statistic}",
        operator=operator,
        value=_rounded(value, up=operator == "<="),
        unit=METRICS[metric].unit,
        why=f"{n} good {plural} gave {number(mean)} {METRICS[metric].unit} ({source}); {', '.join(parts)}; "
        f"from {', '.join(names)}",
    )


def _variation(values: Sequence[float], assumed: float) -> tuple[float, bool]:
    """Relative standard deviation between runs, and whether enough runs measured it."""
    cv = pooled_cv([values])
    if cv is None:
        return assumed, False
    return (cv, True) if len(values) >= MIN_REPEATS else (max(cv, assumed), False)


def _interval(runs: Sequence[RunReport], metric: str, cv: float, repeats: int, run_cv: float) -> float:
    """Half of the relative width that the next verdict's interval will have."""
    if repeats >= MIN_REPEATS:
        return t_quantile((1 + LEVEL) / 2, repeats - 1) * cv / math.sqrt(repeats)
    within = [
        (stats.ci_high - stats.ci_low) / 2 / stats.mean
        for run in runs
        if (stats := run.metrics.get(metric)) and stats.ci_low is not None and stats.ci_high is not None and stats.mean
    ]
    own = float(np.mean(within)) / math.sqrt(repeats) if within else 0.0
    return math.hypot(_Z_975 * run_cv / math.sqrt(repeats), own)


def _rounded(value: float, *, up: bool) -> float:
    """Three significant digits, rounded to the side that is easier to pass."""
    if value == 0 or not math.isfinite(value):
        return value
    scale = 10.0 ** (math.floor(math.log10(abs(value))) - 2)
    return (math.ceil if up else math.floor)(value / scale + (-1e-9 if up else 1e-9)) * scale


def _plain(value: float) -> str:
    """Without exponent and without the noise of binary fractions: `612000`, `38.4`, `0.0123`."""
    text = f"{value:.12f}".rstrip("0").rstrip(".")
    return text or "0"
