"""A long run under the watchdog: rate and memory must last to the end."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from validator.kinds.base import Found, ImplicitCriterion, JudgedRun, Seen, TrainingKind
from validator.model.expression import Binary, ExpressionError, Number, parse_criterion, references
from validator.model.runbook import Runbook
from validator.model.training_phases import SoakPhase
from validator.stats.crowding import others_in, others_throughout
from validator.text import format_duration, format_number

if TYPE_CHECKING:
    from validator.stats.growth import RunMemory
    from validator.stats.measure import RunMeasurement
    from validator.stats.slowing import Fall

_MIN_SLOW_DOWN = 5.0
"""Per cent: 1 to 2 % of thermal settling is healthy."""

_CLEAR = 2.0
"""Times the limit, from which a fall is never taken for what a rate varies by."""

_BY_OTHERS_PCT = 25.0
"""A fall that may be below this may be that of what other programs leave, where they crowd the CPU all along."""

_LONGER = 3
"""Times as many steps, which show whether a rate comes back."""

_WORST_FIRST = ("FAIL", "INCONCLUSIVE", "PASS")
"""Which of several looks at a run decides."""

FARTHEST = 100
"""Times the growth that was seen, to which it is extrapolated: farther ahead, a longer soak must show it."""


class Soak(TrainingKind[SoakPhase]):
    """One long run."""

    schema = SoakPhase
    must_ask = True
    asks_unwritten = (
        ("halt", "sustained_rate", "sustained_memory"),
        "nothing halts the run; the rate lasts; the memory on the host does not grow until it is full",
    )

    def criteria(self, phase: SoakPhase, runbook: Runbook) -> Iterator[ImplicitCriterion]:
        """Nothing halts the run, and its rate and its memory last."""
        yield ImplicitCriterion("halt", "nothing halts the run", _halt, final=True)
        limit = _slow_down_limit(phase)
        yield ImplicitCriterion(
            "sustained_rate",
            f"the run does not lastingly become slower by {format_number(limit)} % or more",
            lambda run: _sustained_rate(run, limit),
            required=_has_rate,
        )
        yield ImplicitCriterion(
            "sustained_memory",
            "the memory on the host does not grow until it is full",
            lambda run: _sustained_memory(run, runbook),
            required=_has_memory,
        )


def _has_rate(runs: Sequence[JudgedRun]) -> bool:
    return any(run.result is not None and {"toks_per_s", "step_time_s"} & set(run.result.series) for run in runs)


def _has_memory(runs: Sequence[JudgedRun]) -> bool:
    return any(memory.lacks is None for run in runs for memory in _memories(run))


def _memories(run: JudgedRun) -> Sequence[RunMemory]:
    return () if run.measurement is None else run.measurement.memories


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
    """Whether the run ends slower than it lastingly was before, by more than its interval leaves in doubt."""
    measurement = run.measurement
    window = None if measurement is None else measurement.window_found
    if measurement is None or window is None:
        return Found("INCONCLUSIVE", "Whether the rate lasts is not known: the run was not measured.", None, limit)
    if not window.levels:
        return _over_few_rows(measurement, window.note, limit)
    found = [_of_fall(fall, run, limit) for fall in measurement.falls]
    # What is in doubt by the stamps of lines, the times that the trainer prints decide.
    beyond_doubt = (fall for fall in measurement.falls_by_arrival if 100 * fall.least >= limit)
    found += [_by_arrival(_of_fall(fall, run, limit)) for fall in beyond_doubt]
    least = Found("PASS", "The run does not lastingly become slower.", 0.0, limit)
    return min(found, key=lambda one: _WORST_FIRST.index(one.status), default=least)


def _by_arrival(found: Found) -> Found:
    return found._replace(message=f"By the validator's clock, when steps arrive: {found.message}")


def _of_fall(fall: Fall, run: JudgedRun, limit: float) -> Found:
    """What one fall of the rate says: it fails where even the least that it may be is too much."""
    lost, least = 100 * fall.lost, 100 * fall.least
    message = (
        f"From step {fall.from_step} on the rate is {format_number(lost)} % lower than in steps "
        f"{fall.first_step} to {fall.last_step}"
    )
    if lost < limit:
        return Found("PASS", f"{message}; less than {format_number(limit)} % is allowed.", lost, limit)
    if least <= 0 and lost < _CLEAR * limit:
        return Found("PASS", f"{message}, which is within what it varies by all along.", lost, limit)
    message = f"{message}, at least {format_number(max(least, 0.0))} % by its interval"
    if least < limit:
        window = None if run.measurement is None else run.measurement.window
        steps = None if window is None else _LONGER * window.last_step
        why = f"whether it is {format_number(limit)} % and does not come back, {_longer_soak(steps)} shows"
        return Found("INCONCLUSIVE", f"{message}; {why}.", lost, limit, steps=steps)
    series = {} if run.result is None else run.result.series
    end, before = (float(fall.from_step), math.inf), (-math.inf, float(fall.from_step - 1))
    if (others := others_in(series, slow=end, fast=before)) is not None:
        why = f"other programs used {format_number(others)} % of the machine's CPU then, and hardly any was left"
        return Found("INCONCLUSIVE", f"{message}; {why}: run it again without them.", lost, limit)
    if least < _BY_OTHERS_PCT and (all_along := others_throughout(series)) is not None:
        why = (
            f"other programs used {format_number(all_along)} % of the machine's CPU all along, and may leave less of it"
        )
        return Found("INCONCLUSIVE", f"{message}; {why}: run it again without them.", lost, limit)
    if _level_by_tokens(run, limit):
        why = "the tokens/s that the trainer prints do not fall"
        fix = "if a step has more tokens from there on, soak each such stage alone"
        return Found("INCONCLUSIVE", f"{message}; {why}: {fix}.", lost, limit)
    return Found("FAIL", f"{message}.", lost, limit)


def _level_by_tokens(run: JudgedRun, limit: float) -> bool:
    """Whether printed tokens/s stay level while steps become slower, as where a curriculum's sequences grow."""
    evidence = None if run.result is None else run.result.evidence
    if run.measurement is None or evidence is None or "toks_per_s" in evidence.derived or evidence.tokens_per_step:
        return False
    falls = run.measurement.falls_by_tokens
    return falls is not None and all(100 * fall.lost < limit for fall in falls)


def _longer_soak(steps: int | None) -> str:
    return f"a soak of {steps:,} steps" if steps else "a longer soak"


def _sustained_memory(run: JudgedRun, runbook: Runbook) -> Found:
    """Whether the memory of the run's processes lasts, on the node where it lasts least."""
    memories = _memories(run)
    enough = [memory for memory in memories if memory.lacks is None]
    found = [_lasts(memory, run, memory.must_last_s(_planned_s(run, runbook, memory))) for memory in enough or memories]
    unknown = Found("INCONCLUSIVE", "Whether the memory lasts is not known: it was not sampled.")
    return min(found, key=lambda one: _WORST_FIRST.index(one.status), default=unknown)


def _lasts(memory: RunMemory, run: JudgedRun, needed_s: float) -> Found:
    """The same of one node; it fails where a leak is beyond doubt."""
    if memory.lacks is not None:
        return Found("INCONCLUSIVE", f"Whether the memory lasts is not known: {memory.lacks}; run longer.")
    seen, growth = (Seen(memory.shown, memory.source),), memory.growth()
    if growth is None:
        return Found("PASS", f"{memory.text(None)}.", evidence=seen)
    message, lasts_s = memory.text(growth), growth.full_in_s(memory.left_mib)
    if lasts_s is not None and lasts_s > needed_s:
        message = f"{message}, which is longer than the {format_duration(needed_s)} of a long run."
        return Found("PASS", message, evidence=seen)
    if lasts_s is not None and growth.steady and lasts_s <= FARTHEST * growth.span_s:
        return Found("FAIL", f"{message}.", evidence=seen)
    steps = _LONGER * run.spec.steps if run.spec.steps else None
    text = f"{message}; whether it reaches a plateau, {_longer_soak(steps)} shows."
    return Found("INCONCLUSIVE", text, evidence=seen, steps=steps)


def _planned_s(run: JudgedRun, runbook: Runbook, memory: RunMemory) -> float | None:
    """Seconds of the planned run; None where it is not declared, or its pace is not known."""
    trainer = runbook.trainer
    if trainer.planned_steps is not None and memory.step_s is not None:
        return trainer.planned_steps * memory.step_s
    if trainer.planned_tokens is not None and run.result is not None and "toks_per_s" in run.result.series:
        rates = sorted(rate for rate in run.result.series["toks_per_s"].values.tolist() if rate > 0)
        return trainer.planned_tokens / rates[len(rates) // 2] if rates else None
    return None


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
