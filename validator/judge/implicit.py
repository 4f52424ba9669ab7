"""What every phase must satisfy without being told: it ended well, did all its steps, and ran what was declared.

Each implicit criterion has a name in place of a number: `baseline.exit`, `baseline.steps`, `baseline.finite`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from validator.judge.config import differences, untold
from validator.judge.kinds import Found, Rule, kind_names, kind_rules
from validator.judge.spacing import next_due
from validator.judge.wording import listed
from validator.model.record import PhaseRecord, RunRecord, ValidationRecord
from validator.model.resolve import series_of
from validator.model.result import Series
from validator.model.runbook import Phase, PytestPhase, SoakPhase, TrainingPhase
from validator.model.settings import repeats_of
from validator.model.verdict import Evidence, Status, Verdict
from validator.plan.arms import arms_of

__all__ = ["implicit_names", "implicit_verdicts"]

_RANK: dict[Status, int] = {"FAIL": 0, "INCONCLUSIVE": 1, "SKIPPED": 2, "PASS": 3}


def implicit_names(phase: Phase) -> tuple[tuple[str, str], ...]:
    """Name and text of each implicit criterion of a phase, in order."""
    if isinstance(phase, TrainingPhase):
        names = [("exit", _EXIT), ("steps", "every run does all its steps"), ("finite", "loss is finite at every step")]
        names += [(f"log.{n}", f"rank 0 prints {text!r}") for n, text in enumerate(phase.log_contains, start=1)]
        if isinstance(phase, SoakPhase):
            names.append(("halt", "nothing halts the run"))
        return (*names, *kind_names(phase), ("config", "the declared config is the one that ran"))
    if isinstance(phase, PytestPhase):
        allowed = "" if phase.allow_skipped else ", none is skipped"
        return (("exit", _EXIT), ("tests", f"at least one test passes, none fails{allowed}"))
    return (("exit", _EXIT),) if phase.kind == "command" else ()


_EXIT = "every run ends by itself with exit code 0"

_MOST_UNTOLD = 0.1
"""Share of a run that may lie behind the last row of a trainer that logs every so many steps."""


def implicit_verdicts(record: PhaseRecord, *, validation: ValidationRecord) -> tuple[Verdict, ...]:
    """The verdicts on the implicit criteria of a phase that has ended."""
    rules = dict(_rules(record.phase))
    planned = _planned(record, validation)
    trials = tuple(run for run in record.runs if run.spec.role == "smoke")
    return tuple(
        _over_runs(
            f"{record.phase.id}.{name}",
            text,
            trials if name == "smoke" else record.measured,
            rules[name],
            required=_required(name, record, validation),
            planned=planned if name == "exit" else 0,
        )
        for name, text in implicit_names(record.phase)
        if name != "smoke" or trials
    )


def _rules(phase: Phase) -> Iterator[tuple[str, Rule]]:
    yield "exit", _exit
    if isinstance(phase, PytestPhase):
        yield "tests", lambda run: _tests(run, allow_skipped=phase.allow_skipped)
    if isinstance(phase, TrainingPhase):
        yield from (("steps", _steps), ("finite", _finite), ("config", _config), ("halt", _halt))
        for n, text in enumerate(phase.log_contains, start=1):
            yield f"log.{n}", _log_rule(text)
        yield from kind_rules(phase)


def _log_rule(text: str) -> Rule:
    return lambda run: _log(run, text)


def _required(name: str, record: PhaseRecord, validation: ValidationRecord) -> bool:
    """A trainer that cannot tell its loss or its config is recorded as such, and not failed for it."""
    if name == "finite":
        return "loss" in series_of(validation.runbook.trainer.metrics)
    if name == "sustained_rate":
        return any(
            run.result is not None and {"toks_per_s", "step_time_s"} & set(run.result.series) for run in record.runs
        )
    if name == "config":
        return any(differences(run) is not None for run in record.runs)
    if name == "first_batch":
        return validation.runbook.trainer.metrics.heartbeat is not None
    return True


def _planned(record: PhaseRecord, validation: ValidationRecord) -> int:
    """Runs without which a phase that has ended is not complete."""
    if record.state != "done" or not isinstance(record.phase, TrainingPhase):
        return 1
    repeats = repeats_of(validation.runbook, record.phase)
    if record.extended is not None:
        repeats = max(repeats, record.extended.runs_after)
    return repeats * len(arms_of(record.phase))


def _over_runs(
    id: str, text: str, runs: Sequence[RunRecord], rule: Rule, *, required: bool, planned: int = 0
) -> Verdict:
    """The worst run decides; the others of the same kind are counted. Fewer runs than `planned` are no pass."""
    found = [(run, rule(run)) for run in runs]
    missing = planned - len(found)
    if not found or (missing > 0 and all(one.status == "PASS" for _, one in found)):
        message = "No run of the phase was started."
        if found:
            message = f"{len(found)} of {planned} runs are known; what became of the others, nothing tells."
        return Verdict(id=id, text=text, required=required, status="INCONCLUSIVE", message=message)
    run, worst = min(found, key=lambda pair: _RANK[pair[1].status])
    alike = [other.spec.id for other, one in found if one.status == worst.status]
    message = worst.message
    if len(found) > 1:
        message = (
            f"{message[:-1]}: all {len(found)} runs."
            if len(alike) == len(found) and worst.status == "PASS"
            else (
                f"{run.spec.id}: {message}"
                + (f" {len(alike)} of {len(found)} runs: {listed(alike)}." if len(alike) > 1 else "")
            )
        )
    return Verdict(
        id=id,
        text=text,
        required=required,
        status=worst.status,
        observed=worst.observed,
        bound=worst.bound,
        message=message,
        evidence=worst.evidence,
    )


def _exit(run: RunRecord) -> Found:
    if run.outcome is None:
        return Found("INCONCLUSIVE", "The run has not ended.", bound=0)
    last = run.outcome.last
    evidence = _log_evidence(run)
    if run.outcome.ok and (other := _other_end(run)) is not None:
        return Found("FAIL", f"Ended with exit code 0, but {other.text}.", other.text, 0, (other,))
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
    }[last.reason]
    status: Status = "INCONCLUSIVE" if last.reason in ("interrupted", "infrastructure") else "FAIL"
    return Found(status, f"The run {how}{detail}.", last.rc if last.rc is not None else last.reason, 0, evidence)


_ENDS = frozenset({"error", "halted", "anomaly", "unreachable", "interrupted", "terminated"})
"""What a trainer writes as its `status` when it did not come to its end; an exit code may be lost on the way."""


def _other_end(run: RunRecord) -> Evidence | None:
    """What a run left that ended otherwise than its exit code says; None when nothing contradicts that."""
    if run.result is None or not run.spec.trains:
        return None
    halt, status = run.result.extra.get("halt"), run.result.scalars.get("metrics.status")
    if halt and not halt.get("stale"):
        why = halt.get("anomaly") or halt.get("text") or "no reason was given"
        return Evidence(path=halt.get("path"), text=f"`.HALT` was written: {why}")
    if status is not None and str(status.value).lower() in _ENDS:
        return Evidence(path=status.source, where="status", text=f"it says `{status.value}` of itself")
    return None


def _log_evidence(run: RunRecord) -> tuple[Evidence, ...]:
    if run.result is None or run.result.log_path is None:
        return ()
    tail = [line for line in run.result.log_tail if line.strip()]
    return (Evidence(path=run.result.log_path, where="last line", text=tail[-1] if tail else "the log is empty"),)


def _steps(run: RunRecord) -> Found:
    """All steps, and these: a run that went on from an earlier one did fewer, one that counts otherwise did others."""
    wanted = run.spec.steps
    scalar = None if run.result is None else run.result.scalars.get("steps.done")
    if scalar is None or not isinstance(scalar.value, (int, float)) or wanted is None:
        return Found("INCONCLUSIVE", "Nothing that the trainer wrote tells how many steps were done.", None, wanted)
    done = scalar.value
    evidence = (Evidence(path=scalar.source, text=f"steps.done = {done:g}"),)
    if done < wanted:
        return _fewer(run, done, wanted, evidence)
    began, stride = _rows_of(run)
    if began is not None and began > max(stride, run.spec.warmup_steps):
        own = done - began + stride
        if abs(own - wanted) < max(stride, 1.5):
            message = f"The trainer continued from step {began - stride} and did {own:g} of {wanted} steps."
            return Found("PASS", message, own, wanted, evidence)
        message = (
            f"The record begins at step {began}, so it shows about {own:g} of {wanted} steps: the trainer went on from "
            "an earlier run, or does not log its first steps."
        )
        return Found("INCONCLUSIVE", message, own, wanted, evidence)
    if done > wanted + stride:
        message = (
            f"{done:g} steps were recorded where {wanted} were asked for: the trainer ignores how many, or `step` does "
            "not count optimizer steps."
        )
        return Found("INCONCLUSIVE", message, done, wanted, evidence)
    return Found("PASS", f"All {wanted} steps were done.", done, wanted, evidence)


def _fewer(run: RunRecord, done: float, wanted: int, evidence: tuple[Evidence, ...]) -> Found:
    """Fewer steps are known than were asked for. A log with a row every so many steps says no more of the last ones."""
    assert run.result is not None
    exact = run.result.extra.get("heartbeats") or "metrics.step" in run.result.scalars
    steps = max((one.steps for one in _core(run)), key=lambda one: one[-1], default=None)
    ahead = 1 if exact or steps is None or len(steps) < 3 else next_due(steps) - int(steps[-1])
    if done + ahead <= wanted:
        return Found("FAIL", f"{done:g} of {wanted} steps were done.", done, wanted, evidence)
    told = f"The log tells of {done:g} of {wanted} steps; its next row, {ahead} steps later, would come after the end"
    if _MOST_UNTOLD * wanted >= wanted - done:
        return Found("PASS", f"{told}.", done, wanted, evidence)
    message = f"{told}, and so much of the run is not known: let the trainer log its last step too, or more often."
    return Found("INCONCLUSIVE", message, done, wanted, evidence)


def _core(run: RunRecord) -> list[Series]:
    """The series of loss, rate and time that have rows."""
    found = {} if run.result is None else run.result.series
    return [found[name] for name in ("loss", "toks_per_s", "step_time_s") if name in found and len(found[name].steps)]


def _rows_of(run: RunRecord) -> tuple[int | None, int]:
    """The step of the first row of loss, rate or time, None where three rows do not show a pace; the widest stride."""
    steps = [one.steps for one in _core(run) if len(one.steps) >= 3]
    if not steps:
        return None, 1
    return min(int(one[0]) for one in steps), max(int(np.diff(one).max()) for one in steps)


def _finite(run: RunRecord) -> Found:
    loss = None if run.result is None else run.result.series.get("loss")
    if loss is None or len(loss.values) == 0:
        return Found("INCONCLUSIVE", "No loss was recorded.")
    bad = np.flatnonzero(~np.isfinite(loss.values))
    if len(bad):
        step, value = int(loss.steps[bad[0]]), float(loss.values[bad[0]])
        message = f"Loss is {value} at step {step}, and not finite in {len(bad)} of {len(loss.values)} rows."
        return Found(
            "FAIL",
            message,
            str(value),
            "finite",
            (Evidence(path=loss.source.path, where=f"step {step}", text=f"loss = {value}"),),
        )
    return Found(
        "PASS",
        "Loss is finite in every row.",
        "finite",
        "finite",
        (Evidence(path=loss.source.path, text=f"{len(loss.values)} rows"),),
    )


def _log(run: RunRecord, text: str) -> Found:
    wanted = None if run.result is None else run.result.extra.get("log_contains")
    if wanted is None or text not in wanted:
        return Found("INCONCLUSIVE", "Rank 0's log could not be read.", None, text)
    place = wanted[text]
    if place is None:
        return Found("FAIL", f"Rank 0 never printed {text!r}.", "absent", text, _log_evidence(run))
    where = Evidence(path=place.get("path"), where=f"line {place.get('line')}", text=text)
    return Found("PASS", f"Rank 0 printed {text!r}.", "present", text, (where,))


def _halt(run: RunRecord) -> Found:
    halt = None if run.result is None else run.result.extra.get("halt")
    if run.outcome is not None and run.outcome.reason == "halted":
        return Found("FAIL", f"The watchdog halted the run: {run.outcome.last.detail or 'no reason was given'}.")
    if halt and not halt.get("stale"):
        anomaly = halt.get("anomaly") or halt.get("text") or "no reason was given"
        return Found(
            "FAIL",
            f"`.HALT` was written: {anomaly}.",
            "halted",
            None,
            (Evidence(path=halt.get("path"), text=str(anomaly)),),
        )
    if run.outcome is None:
        return Found("INCONCLUSIVE", "The run has not ended.")
    return Found("PASS", "Nothing halted the run.")


def _config(run: RunRecord) -> Found:
    found = differences(run)
    if found is None:
        return Found("INCONCLUSIVE", "The trainer does not tell its effective config, so what ran is not known.")
    evidence = tuple(
        Evidence(
            path="env.json" if run.result is None else _env_path(run),
            where=key,
            text=f"requested {asked}, effective {ran}",
        )
        for key, (asked, ran) in found.items()
    )
    if found:
        shown = listed([f"{key} is {ran}, not {asked}" for key, (asked, ran) in found.items()], most=4)
        return Found("FAIL", f"The run had another config: {shown}.", len(found), 0, evidence)
    silent = untold(run)
    rest = f" It does not tell {listed(list(silent))}." if silent else ""
    return Found("PASS", f"Every setting that the trainer tells is the requested one.{rest}", 0, 0)


def _env_path(run: RunRecord) -> str | None:
    if run.result is None:
        return None
    return next((source.path for source in run.result.sources if source.path.endswith("env.json")), None)


def _tests(run: RunRecord, *, allow_skipped: bool) -> Found:
    counts = {name: _count(run, f"tests.{name}") for name in ("passed", "failed", "errors", "skipped")}
    if any(count is None for count in counts.values()):
        return Found(
            "INCONCLUSIVE", "No test report was written, so nothing is known of the tests.", None, "≥ 1 passed"
        )
    passed, failed, errors, skipped = (int(count or 0) for count in counts.values())
    observed = f"{passed} passed, {failed} failed, {errors} errors, {skipped} skipped"
    evidence = _test_evidence(run)
    if failed or errors:
        names = listed([str(one["name"]) for kind in ("failed", "errors") for one in _named_tests(run, kind)])
        return Found("FAIL", f"{observed}: {names}." if names else f"{observed}.", observed, "0 failed", evidence)
    wanted = run.result.extra.get("tests_to_run") if run.result is not None else None
    known = passed + skipped
    if isinstance(wanted, int) and known < wanted:
        message = (
            f"{observed}, of {wanted} that were to be run: what became of the others, nothing tells. A conftest.py "
            "that leaves tests out has to call pytest_deselected."
        )
        return Found("INCONCLUSIVE", message, observed, f"{wanted} tests", evidence)
    if passed == 0:
        status: Status = "SKIPPED" if skipped else "FAIL"
        return Found(status, f"No test passed: {observed}.", observed, "≥ 1 passed", evidence)
    if skipped and not allow_skipped:
        names = listed([str(one["name"]) for one in _named_tests(run, "skipped")])
        message = f"{observed}; a skipped test is not a pass" + (f": {names}." if names else ".")
        return Found("SKIPPED", message, observed, "0 skipped", evidence)
    return Found("PASS", f"{observed}.", observed, "≥ 1 passed", evidence)


def _count(run: RunRecord, name: str) -> float | None:
    scalar = None if run.result is None else run.result.scalars.get(name)
    return scalar.value if scalar is not None and isinstance(scalar.value, (int, float)) else None


def _named_tests(run: RunRecord, kind: str) -> list[dict[str, str]]:
    tests = None if run.result is None else run.result.extra.get("tests")
    return list(tests.get(kind, ())) if tests else []


def _test_evidence(run: RunRecord) -> tuple[Evidence, ...]:
    scalar = None if run.result is None else run.result.scalars.get("tests.total")
    path = None if scalar is None else scalar.source
    return tuple(
        Evidence(path=path, where=str(one["name"]), text=str(one.get("message") or kind)[:300])
        for kind in ("failed", "errors", "skipped")
        for one in _named_tests(run, kind)[:10]
    )
