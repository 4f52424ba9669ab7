"""A long run under the watchdog: rate, memory and gates must stay steady to the end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from validator.kinds.base import Found, ImplicitCriterion, JudgedRun, Seen, TrainingKind
from validator.model.expression import Binary, ExpressionError, Number, parse_criterion, references
from validator.model.runbook import Runbook
from validator.model.training_phases import SoakPhase
from validator.text import format_number

if TYPE_CHECKING:
    from validator.stats.measure import RunMeasurement
    from validator.stats.window import Level

_MIN_SLOW_DOWN = 5.0
"""Per cent: 1 to 2 % of thermal settling is healthy."""

_OTHERS_PCT, _FULL_PCT, _MOST = 10.0, 85.0, 0.5
"""Share of all cores that other programs use, share that is busy, and share of a level's samples in which both are so,
from which the level is not this machine's."""


class Soak(TrainingKind[SoakPhase]):
    """One long run."""

    schema = SoakPhase
    must_ask = True
    asks_unwritten = (("halt", "sustained_rate"), "nothing halts the run; the rate lasts")

    def criteria(self, phase: SoakPhase, runbook: Runbook) -> Iterator[ImplicitCriterion]:
        """Nothing halts the run, and its rate lasts."""
        yield ImplicitCriterion("halt", "nothing halts the run", _halt, final=True)
        limit = _slow_down_limit(phase)
        yield ImplicitCriterion(
            "sustained_rate",
            f"the run does not lastingly become slower by {format_number(limit)} % or more",
            lambda run: _sustained_rate(run, limit),
            required=_has_rate,
        )


def _has_rate(runs: Sequence[JudgedRun]) -> bool:
    return any(run.result is not None and {"toks_per_s", "step_time_s"} & set(run.result.series) for run in runs)


def _halt(run: JudgedRun) -> Found:
    halt = run.evidence.halt
    if run.outcome is not None and run.outcome.reason == "halted":
        return Found("FAIL", f"The watchdog halted the run: {run.outcome.last.detail or 'no reason was given'}.")
    if halt is not None and not halt.stale:
        return Found("FAIL", f"`.HALT` was written: {halt.why}.", "halted", None, (Seen(halt.why, halt.path),))
    if run.outcome is None:
        return Found("INCONCLUSIVE", "The run has not ended.")
    return Found("PASS", "Nothing halted the run.")


def _slow_down_limit(phase: SoakPhase) -> float:
    """Per cent by which a soak may become slower: as a bound on `rate.drift_pct` declares, and never below 5 %."""
    limits = [_MIN_SLOW_DOWN]
    for criterion in phase.accept:
        with suppress(ExpressionError):
            comparison = parse_criterion(criterion.expr)
            sides = [side.right if isinstance(side, Binary) else side for side in (comparison.left, comparison.right)]
            if [one.name for one in references(comparison)] == ["rate.drift_pct"]:
                limits += [abs(side.value) for side in sides if isinstance(side, Number)]
    return max(limits)


def _sustained_rate(run: JudgedRun, limit: float) -> Found:
    """Whether the last level is slower than the fastest before it, by more than its interval leaves in doubt."""
    measurement = run.measurement
    window = None if measurement is None else measurement.window_found
    if measurement is None or window is None:
        return Found("INCONCLUSIVE", "Whether the rate lasts is not known: the run was not measured.", None, limit)
    if not window.levels:
        return _over_few_rows(measurement, window.note, limit)
    if not window.slowed:
        return Found("PASS", "The run does not lastingly become slower.", 0.0, limit)
    *earlier, last = window.levels
    fastest = min(earlier, key=lambda level: level.mean)
    lost, least = 100 * (1 - fastest.mean / last.mean), 100 * (1 - fastest.high / last.low)
    message = (
        f"From step {last.first_step} on the rate is {format_number(lost)} % lower than in steps "
        f"{fastest.first_step} to {fastest.last_step}, at least {format_number(max(least, 0.0))} % by its interval"
    )
    if lost < limit:
        return Found("PASS", f"{message}; less than {format_number(limit)} % is allowed.", lost, limit)
    if least < limit:
        return Found(
            "INCONCLUSIVE", f"{message}; more steps would show whether it is {format_number(limit)} %.", lost, limit
        )
    if (others := _others_in(run, last)) is not None:
        why = f"other programs used {format_number(others)} % of the machine's CPU then, and hardly any was left"
        return Found("INCONCLUSIVE", f"{message}; {why}: run it again without them.", lost, limit)
    return Found("FAIL", f"{message}.", lost, limit)


def _others_in(run: JudgedRun, level: Level) -> float | None:
    """Per cent of all cores that other programs used in a level most of whose samples they crowd; None in any other."""
    series = {} if run.result is None else run.result.series
    busy, others = (series.get(f"telemetry.{name}") for name in ("host_cpu_pct", "host_other_cpu_pct"))
    if busy is None or others is None:
        return None
    used = dict(zip(busy.steps.tolist(), busy.values.tolist(), strict=True))
    both = [
        (used[step], taken)
        for step, taken in zip(others.steps.tolist(), others.values.tolist(), strict=True)
        if level.first_step <= step <= level.last_step and step in used
    ]
    crowded = sum(full >= _FULL_PCT and taken >= _OTHERS_PCT for full, taken in both)
    return sum(taken for _, taken in both) / len(both) if both and crowded >= _MOST * len(both) else None


def _over_few_rows(measurement: RunMeasurement, why: str, limit: float) -> Found:
    """The same where too few rows show levels: no row may be slower than another by the limit."""
    found = (measurement.windows.get(name) for name in ("step_time_s", "toks_per_s"))
    values = next((rows.values for rows in found if rows is not None and len(rows.values) > 1), None)
    if values is None or not (values > 0).all():
        return Found("INCONCLUSIVE", f"Whether the rate lasts is not known: {why}.", None, limit)
    lost = 100 * (1 - float(values.min() / values.max()))
    if lost < limit:
        return Found("PASS", f"The {len(values)} rows differ by {format_number(lost)} % at most.", lost, limit)
    message = (
        f"The {len(values)} rows differ by up to {format_number(lost)} %, and so few show no lasting level: {why}."
    )
    return Found("INCONCLUSIVE", message, lost, limit)
