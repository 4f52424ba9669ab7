"""What every phase must satisfy although no runbook asks for it: it ended well, did its steps, ran what was declared.

Each implicit criterion has a name in place of a number: `baseline.exit`, `baseline.steps`, `baseline.finite`. What only
one kind of phase must satisfy is in `validator/kinds`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Literal

import numpy as np

from validator.judge.config import Obeyed, differences, obeyed_settings, obeyed_text, unreported
from validator.judge.data import measured
from validator.kinds.registry import Found, ImplicitCriterion, JudgedRun, Rule, Seen, arms_of, kind_of
from validator.model.loss_parts import is_opposed
from validator.model.recipes import BY_LINES
from validator.model.record import PhaseRecord, RunRecord, ValidationRecord
from validator.model.resolve import series_of
from validator.model.result import Series
from validator.model.runbook import Phase, ProcessPhase, Runbook, TrainingPhase
from validator.model.settings import repeats_of
from validator.model.verdict import Evidence, Needed, Status, Verdict
from validator.stats.spacing import core_steps, steps_to_next_row
from validator.text import listed

_RANK: dict[Status, int] = {"FAIL": 0, "INCONCLUSIVE": 1, "SKIPPED": 2, "PASS": 3}

_MAX_UNREPORTED = 0.1
"""Share of a run that may lie behind the last row of a trainer that logs every so many steps."""


def implicit_criteria(
    phase: Phase, runbook: Runbook, *, has_loss: bool = False, obeyed: Obeyed = ()
) -> Iterator[ImplicitCriterion]:
    """The implicit criteria of a phase, in order.

    Args:
        has_loss: whether a run of it, or of a phase before it, has a loss.
        obeyed: settings that were changed with an effect.
    """
    if isinstance(phase, ProcessPhase):
        yield ImplicitCriterion("exit", _ended_text(phase, runbook), _exit)
    if isinstance(phase, TrainingPhase):
        yield ImplicitCriterion("steps", "every run does all its steps", partial(_steps, guess=phase.steps_open))
        declared = "loss" in series_of(runbook.trainer.metrics)
        lacks = _UNDECLARED if has_loss else _UNREPORTED if declared else None
        text, rule = "loss is finite at every step", partial(_finite, lacks=lacks)
        yield ImplicitCriterion("finite", text, rule, required=lambda runs: lacks is not None, final=True)
        for n, text in enumerate(phase.log_contains, start=1):
            yield ImplicitCriterion(f"log.{n}", f"rank 0 prints {text!r}", _log_rule(text))
    yield from kind_of(phase.kind).criteria(phase, runbook)
    if isinstance(phase, TrainingPhase):
        text = "the declared config is the one that ran"
        yield ImplicitCriterion("config", text, _config_rule(obeyed), required=_reports_config, final=True)


def _ended_text(phase: Phase, runbook: Runbook) -> str:
    if isinstance(phase, TrainingPhase) and runbook.trainer.stop == "at_steps":
        if phase.steps == runbook.trainer.max_steps:
            return "every run ends by itself with exit code 0, or is ended by validator behind its steps"
        return "every run continues until validator ends it behind its steps"
    return "every run ends by itself with exit code 0"


def implicit_verdicts(record: PhaseRecord, *, validation: ValidationRecord) -> tuple[Verdict, ...]:
    """The verdicts on the implicit criteria of a phase that has ended."""
    has_loss, obeyed = _has_loss(record, validation), obeyed_settings(validation)
    criteria = list(implicit_criteria(record.phase, validation.runbook, has_loss=has_loss, obeyed=obeyed))
    if record.runs:
        criteria += kind_of(record.phase.kind).measured_criteria(record, validation)
    every = judged_runs(record)
    planned = _planned(record, validation)
    found = []
    for one in criteria:
        runs = [run for run in every if run.spec.role == one.role]
        if runs or one.role == "measure":
            found.append(_verdict(one, record, every, runs, planned=planned if one.name == "exit" else 0))
    return tuple(found)


def judged_runs(record: PhaseRecord) -> tuple[JudgedRun, ...]:
    """The runs that decide a phase, with what was measured of each."""
    return tuple(JudgedRun(run, measured(run)) for run in record.runs)


def out_of_reach(record: PhaseRecord) -> str | None:
    """Why a phase could not be carried out from this machine; None where it could."""
    return kind_of(record.phase.kind).out_of_reach(judged_runs(record))


def _log_rule(text: str) -> Rule:
    return lambda run: _log(run, text)


def _reports_config(runs: Sequence[JudgedRun]) -> bool:
    return any(differences(run.record) is not None for run in runs)


def _planned(record: PhaseRecord, validation: ValidationRecord) -> int:
    """Runs without which a phase that has ended is not complete."""
    if record.state != "done" or not isinstance(record.phase, TrainingPhase):
        return 1
    repeats = repeats_of(validation.runbook, record.phase)
    if record.extended is not None:
        repeats = max(repeats, record.extended.runs_after)
    return repeats * len(arms_of(record.phase))


def _verdict(
    criterion: ImplicitCriterion,
    record: PhaseRecord,
    every: Sequence[JudgedRun],
    runs: Sequence[JudgedRun],
    *,
    planned: int,
) -> Verdict:
    """The worst of `runs` decides; the others of the same status are counted. Fewer than `planned` are no pass."""
    found = [(run, _as_far_as_it_came(criterion, run)) for run in (runs[:1] if criterion.whole else runs)]
    missing = planned - len(found)
    if not found or (missing > 0 and all(one.status == "PASS" for _, one in found)):
        worst = Found("INCONCLUSIVE", "No run of the phase was started.")
        if found:
            message = f"{len(found)} of {planned} runs reported an outcome; the outcome of the others is unknown."
            worst = Found("INCONCLUSIVE", message)
    else:
        run, worst = min(found, key=lambda pair: _RANK[pair[1].status])
        worst = worst._replace(message=_message(run, worst, found))
    return Verdict(
        id=f"{record.phase.id}.{criterion.name}",
        text=criterion.text,
        required=criterion.required(every),
        status=worst.status,
        observed=worst.observed,
        unit=worst.unit,
        bound=worst.bound,
        margin=worst.margin,
        message=worst.message,
        open_for="rows" if worst.steps else None,
        needed=Needed(steps={record.phase.id: worst.steps}) if worst.steps else None,
        evidence=tuple(Evidence(path=one.path, where=one.where, text=one.text) for one in worst.evidence),
    )


def _as_far_as_it_came(criterion: ImplicitCriterion, run: JudgedRun) -> Found:
    """What the rule says; a failure of a run that the machine interrupted is open, if something further can undo it."""
    found = criterion.rule(run)
    if found.status != "FAIL" or criterion.final or run.outcome is None or not run.outcome.cut:
        return found
    why = "lost a node" if run.outcome.reason == "node_lost" else "was ended by the machine"
    return found._replace(status="INCONCLUSIVE", message=f"The run {why}, so this is open. So far: {found.message}")


def _message(run: JudgedRun, worst: Found, found: Sequence[tuple[JudgedRun, Found]]) -> str:
    if len(found) == 1:
        return worst.message
    alike = [other.spec.id for other, one in found if one.status == worst.status]
    if len(alike) == len(found) and worst.status == "PASS":
        return f"{worst.message[:-1]}: all {len(found)} runs."
    others = f" {len(alike)} of {len(found)} runs: {listed(alike)}." if len(alike) > 1 else ""
    return f"{run.spec.id}: {worst.message}{others}"


def _exit(run: JudgedRun) -> Found:
    if run.outcome is None:
        return Found("INCONCLUSIVE", "The run has not ended.", bound=0)
    last = run.outcome.last
    evidence = _log_evidence(run)
    if last.reason == "exited" and run.outcome.ok and (other := _other_end(run)) is not None:
        return Found("FAIL", f"Ended with exit code 0, but {other.text}.", other.text, 0, (other,))
    if last.reason == "at_steps" and (other := _other_end(run)) is not None:
        return Found("FAIL", f"Was ended by validator behind its steps, but {other.text}.", other.text, 0, (other,))
    if last.reason == "at_steps":
        message = f"Was ended by validator behind its {run.spec.steps} steps, as stop: at_steps asks."
        return Found("PASS", message, last.rc, 0)
    if run.outcome.ok:
        attempts = len(run.outcome.attempts)
        return Found("PASS", "Ended with exit code 0" + (f" at attempt {attempts}." if attempts > 1 else "."), 0, 0)
    detail = f": {last.detail.rstrip('.')}" if last.detail else ""
    if last.reason == "exited":
        how = (
            f"was ended by signal {-last.rc}" if last.rc is not None and last.rc < 0 else f"exited with code {last.rc}"
        )
        if last.detail and last.detail.startswith(("exited with code", "was ended by")):
            how, detail = last.detail.rstrip("."), ""  # it says the same, and more
        return Found("FAIL", f"The run {how}{detail}.", last.rc, 0, evidence)
    how = {
        "timeout": "ran past its budget",
        "stalled": "stalled",
        "halted": "was halted by the watchdog",
        "interrupted": "was interrupted",
        "infrastructure": "could not be run on this machine",
        "node_lost": "lost a node",
    }[last.reason]
    status: Literal["INCONCLUSIVE", "FAIL"] = (
        "INCONCLUSIVE" if last.reason in ("interrupted", "infrastructure", "node_lost") else "FAIL"
    )
    return Found(status, f"The run {how}{detail}.", last.rc if last.rc is not None else last.reason, 0, evidence)


_ENDS = frozenset({"error", "halted", "anomaly", "unreachable", "interrupted", "terminated"})
"""What a trainer writes as its `status` when it did not come to its end; an exit code may be lost on the way."""

_BY_SIGNAL = frozenset({"interrupted", "terminated"})
"""Those that say no more than that validator ended it behind its steps."""


def _other_end(run: JudgedRun) -> Seen | None:
    """What a run left that ended otherwise than its exit code says; None when nothing contradicts that."""
    if not run.spec.trains:
        return None
    halt, status = run.evidence.halt, run.scalar("metrics.status")
    if halt is not None and not halt.stale:
        return Seen(path=halt.path, text=f"`.HALT` was written: {halt.why}")
    ends = _ENDS if run.outcome is None or run.outcome.reason == "exited" else _ENDS - _BY_SIGNAL
    if str(status).lower() in ends:
        source = run.scalar_source("metrics.status")
        return Seen(path=source, where="status", text=f"it says `{status}` of itself")
    return None


def _log_evidence(run: JudgedRun) -> tuple[Seen, ...]:
    if run.result is None or run.result.log_path is None:
        return ()
    tail = [line for line in run.result.log_tail if line.strip()]
    return (Seen(path=run.result.log_path, where="last line", text=tail[-1] if tail else "the log is empty"),)


def _steps(run: JudgedRun, *, guess: bool) -> Found:
    """All steps, and these: a run that continued an earlier one did fewer, one that counts differently did others.

    `guess`: nothing says how many steps the trainer does by itself.
    """
    wanted, done = run.spec.steps, run.number("steps.done")
    if done is None or wanted is None:
        return Found("INCONCLUSIVE", "The trainer reported no number of steps.", None, wanted)
    evidence = (Seen(path=run.scalar_source("steps.done"), text=f"steps.done = {done:g}"),)
    if done < wanted:
        return _fewer(run, done, wanted, evidence, guess=guess)
    began, stride = _rows_of(run)
    if began is not None and began > max(stride, run.spec.warmup_steps):
        own = done - began + stride
        if abs(own - wanted) < max(stride, 1.5):
            message = f"The trainer continued from step {began - stride} and did {own:g} of {wanted} steps."
            return Found("PASS", message, own, wanted, evidence)
        message = (
            f"The record begins at step {began}, so it shows about {own:g} of {wanted} steps: the trainer continued "
            "from an earlier run, or does not log its first steps."
        )
        return Found("INCONCLUSIVE", message, own, wanted, evidence)
    if done > wanted + stride:
        message = (
            f"{done:g} steps were recorded where {wanted} were requested: the trainer ignores how many, or `step` does "
            "not count optimizer steps."
        )
        return Found("INCONCLUSIVE", message, done, wanted, evidence)
    return Found("PASS", f"All {wanted} steps were done.", done, wanted, evidence)


def _fewer(run: JudgedRun, done: float, wanted: int, evidence: tuple[Seen, ...], *, guess: bool) -> Found:
    """Fewer steps are known than were requested. A log with a row every so many steps says no more of the last ones."""
    ahead = 1 if run.result is None else steps_to_next_row(run.result)
    by_itself = run.outcome is not None and run.outcome.ok and run.outcome.last.reason == "exited"
    counted = not BY_LINES.isdisjoint(run.spec.metrics.patterns)
    if done + ahead <= wanted and by_itself and (guess or counted):
        why = (
            f"Nothing said how many it does, and validator had chosen {wanted}: if these are all of them"
            if guess
            else f"Its format prints no step, so each line counts as one: if one is several of {wanted}"
        )
        message = (
            f"The trainer ended by itself with exit code 0 after {done:g} steps. {why}, ask for no more: "
            f"--steps {done:g}, or --set {run.spec.phase}.steps={done:.0f} where a runbook has them."
        )
        return Found("INCONCLUSIVE", message, done, wanted, evidence)
    if done + ahead <= wanted:
        return Found("FAIL", f"{done:g} of {wanted} steps were done.", done, wanted, evidence)
    reported = (
        f"The log reports {done:g} of {wanted} steps; its next row, {ahead} steps later, would come after the end"
    )
    if _MAX_UNREPORTED * wanted >= wanted - done:
        return Found("PASS", f"{reported}.", done, wanted, evidence)
    message = f"{reported}, and so much of the run is not known: let the trainer log its last step too, or more often."
    return Found("INCONCLUSIVE", message, done, wanted, evidence)


def _rows_of(run: JudgedRun) -> tuple[int | None, int]:
    """The step of the first row of loss, rate or time, None where three rows do not show a pace; the widest stride."""
    steps = [] if run.result is None else [steps for steps in core_steps(run.result) if len(steps) >= 3]
    if not steps:
        return None, 1
    return min(int(one[0]) for one in steps), max(int(np.diff(one).max()) for one in steps)


_UNREPORTED = "where the trainer reports none, write no_loss: true in trainer.metrics"
_UNDECLARED = "another run of this phase, or of one before it, has one"


def _has_loss(record: PhaseRecord, validation: ValidationRecord) -> bool:
    """Whether a run of the phase, or of one before it, reported a loss, so that a run without one lost it."""
    earlier = itertools.takewhile(lambda one: one.phase.id != record.phase.id, validation.phases)
    return any(_loss_of(run) is not None for one in (*earlier, record) for run in one.runs)


def _loss_of(run: RunRecord) -> Series | None:
    loss = None if run.result is None else run.result.series.get("loss")
    return loss if loss is not None and len(loss.values) else None


def _finite_parts(run: JudgedRun) -> Found:
    """Whether losses that work against each other are finite, where no line names the whole one."""
    series = {} if run.record.result is None else run.record.result.series
    parts = {name: one for name, one in series.items() if is_opposed(name)}
    if not parts:
        return Found("SKIPPED", "No loss is read: NaN or divergence would not be seen.")
    passed = Found("PASS", f"No line names the whole loss; its parts {listed(list(parts))} are finite in every row.")
    return next(filter(None, (_not_finite(name, one) for name, one in parts.items())), passed)


def _not_finite(name: str, series: Series) -> Found | None:
    """A failure where a loss of this name is not finite in every row."""
    bad = np.flatnonzero(~np.isfinite(series.values))
    if not bad.size:
        return None
    step, value = int(series.steps[bad[0]]), float(series.values[bad[0]])
    message = f"{name} is {value} at step {step}, and not finite in {len(bad)} of {len(series.values)} rows."
    where = Seen(path=series.source.path, where=f"step {step}", text=f"{series.name} = {value}")
    return Found("FAIL", message, str(value), "finite", (where,))


def _finite(run: JudgedRun, *, lacks: str | None) -> Found:
    """Whether every loss is finite; `lacks` says why the absence of any leaves that open, None if none is expected."""
    loss = _loss_of(run.record)
    if loss is None and lacks is None:
        return _finite_parts(run)
    if loss is None:
        return Found("INCONCLUSIVE", f"No loss was recorded; {lacks}.")
    failed = _not_finite("Loss", loss)
    if failed is not None:
        return failed
    rows = Seen(path=loss.source.path, text=f"{len(loss.values)} rows")
    found = None if run.measurement is None else run.measurement.windows.get("loss")
    if found is not None and found.invalid is not None:
        message = f"Loss is finite where it is read, but {found.invalid}: what is no number may be printed there."
        return Found("INCONCLUSIVE", message, "finite", "finite", (rows,))
    return Found("PASS", "Loss is finite in every row.", "finite", "finite", (rows,))


def _log(run: JudgedRun, text: str) -> Found:
    wanted = run.evidence.log_contains
    if text not in wanted:
        return Found("INCONCLUSIVE", "Rank 0's log could not be read.", None, text)
    place = wanted[text]
    if place is None:
        return Found("FAIL", f"Rank 0 never printed {text!r}.", "absent", text, _log_evidence(run))
    where = Seen(path=place.path, where=f"line {place.line}", text=text)
    return Found("PASS", f"Rank 0 printed {text!r}.", "present", text, (where,))


def _config_rule(obeyed: Obeyed) -> Rule:
    return lambda run: _config(run, obeyed)


def _config(run: JudgedRun, obeyed: Obeyed) -> Found:
    found = differences(run.record)
    if found is None and obeyed:
        message = f"The trainer does not report its effective config; {obeyed_text(obeyed)}. Others are not verified."
        return Found("PASS", message, "by effect")
    if found is None:
        return Found("INCONCLUSIVE", "The trainer does not report its effective config.")
    path = run.source("env.json")
    evidence = tuple(
        Seen(path=path, where=key, text=f"requested {asked}, effective {ran}") for key, (asked, ran) in found.items()
    )
    if found:
        shown = listed([f"{key} is {ran}, not {asked}" for key, (asked, ran) in found.items()], most=4)
        return Found("FAIL", f"The run had another config: {shown}.", len(found), 0, evidence)
    silent = unreported(run.record)
    rest = f" It does not report {listed(list(silent))}." if silent else ""
    return Found("PASS", f"Every setting that the trainer reports is the requested one.{rest}", 0, 0)
