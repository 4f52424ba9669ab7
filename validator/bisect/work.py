"""A bisection carried out: both ends measured, the search run trial by trial, the answer written."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import Field

from validator.bisect.answer import Bisection, BisectionOutcome, bisection
from validator.bisect.commits import elsewhere
from validator.bisect.search import (
    BudgetSpent,
    Explanation,
    NoDifference,
    Trial,
    Trials,
    measured_ends,
    search,
    statistic_of,
)
from validator.bisect.side import End, differences, read_end, with_secrets, with_settings, without_secrets
from validator.errors import FolderError, disk_errors
from validator.files import Tree
from validator.ingest import collect_run
from validator.kinds.registry import kind_of
from validator.model.catalogue import METRICS, Metric, speeds
from validator.model.plan import RunSpec
from validator.model.record import Outcome
from validator.model.result import Result
from validator.model.runbook import Runbook
from validator.model.units import Frozen
from validator.pipeline.session import (
    RunContext,
    locked,
    open_runner,
    require_hardware,
    require_packages,
    working_folder,
)
from validator.plan import plan_phase
from validator.runs.folder import new_run_id, this_runner, utc_now
from validator.secrets.declared import declare_secrets_of
from validator.secrets.masking import clean_result, known_secrets, mask_of
from validator.stats.estimate import NORMAL_975
from validator.stats.measure import NotMeasured, RunMeasurement, measure
from validator.text import format_number

Note = Callable[[str], None]
"""Takes a line about the progress."""

_MIN_DIFFERENCE = 0.05
"""Smallest relative difference between the ends that short runs can be searched by."""

_UNSTEADY_CV = 0.05
"""Assumed of a run that never was steady or is too short for an interval: half the rate still shows."""

_VALUES = ("mean", "last")
"""Statistics of a whole run that a trial takes."""


class Interrupted(Exception):
    """The user asked to stop; what has been run is kept."""


class _Limits(Frozen):
    """What is compared, and how many runs of which length may be spent. No metric: the first of `speeds` there is."""

    metric: str | None = None
    statistic: Literal["mean", "p50"] = "mean"
    timeout_s: float = 600.0
    max_runs: int = 24
    repeats: int = 3


class BisectRequest(_Limits):
    """What the user asked for. None leaves it to what the good end declares."""

    good: Path
    bad: Path
    phase: str | None = None
    steps: int | None = None
    warmup_steps: int | None = None
    parent: Path = Path("reports")
    lock: bool = True


class BisectHeader(_Limits):
    """request.json: written once at the start, so that the bisection can be resumed."""

    schema_version: int = 1
    good: End
    bad: End
    steps: int
    warmup_steps: int
    started: str
    cwd: str
    python: str = Field(default_factory=lambda: sys.executable)


def bisect(request: BisectRequest, *, note: Note) -> Bisection:
    """Find the few settings that make `bad` differ from `good`.

    Raises:
        FolderError: when an end cannot be read, or the two run different trainers.
        Unable: when the machine is held by another validation, or the disk refuses.
    """
    good, bad = (with_secrets(read_end(end, phase=request.phase)) for end in (request.good, request.bad))
    _declare_secrets(good, bad)
    _require_metric(request.metric, _metrics_of(good))
    if not differences(good, bad):
        return _same_settings(request, good, bad)
    steps = good.steps if request.steps is None else request.steps
    warmup = min(good.warmup_steps, steps // 4) if request.warmup_steps is None else request.warmup_steps
    if warmup >= steps:
        raise FolderError(f"--warmup-steps {warmup} leaves nothing of {steps} steps; give fewer, or more --steps")
    limits = request.model_dump(include=set(_Limits.model_fields))
    started, cwd = utc_now(), str(Path.cwd())
    header = BisectHeader(good=good, bad=bad, steps=steps, warmup_steps=warmup, started=started, cwd=cwd, **limits)
    root = request.parent.resolve() / new_run_id(started, "bisect")
    with disk_errors(root, command="validator bisect GOOD BAD"):
        root.mkdir(parents=True)
        shown = header.model_copy(update={"good": without_secrets(good), "bad": without_secrets(bad)})
        (root / "request.json").write_text(shown.model_dump_json(indent=2) + "\n", encoding="utf-8")
    return _carry_out(header, root, lock=request.lock, note=note)


def _same_settings(request: BisectRequest, good: End, bad: End) -> Bisection:
    """The answer without a run: no setting can explain what two equal configs differ in."""
    why, commands = elsewhere(request.good, request.bad, phase=request.phase)
    metric = _metrics_of(good)[request.metric or "toks_per_s"]
    return Bisection(
        good=good.name,
        bad=bad.name,
        metric=f"{metric.name}.{statistic_of(metric, request.statistic)}",
        unit=metric.unit,
        outcome="not_in_settings",
        message=f"Not found: {why}.",
        differences=(),
        commands=commands,
    )


def resume(root: Path, *, lock: bool = True, max_runs: int | None = None, note: Note) -> Bisection:
    """Resume a bisection that was interrupted, or with a new `max_runs`; no run that has ended is repeated.

    Raises:
        FolderError: when `root` is no folder of a bisection.
        Unable: when the machine is held by another validation, or the disk refuses.
    """
    try:
        with Tree(root) as tree:
            header = BisectHeader.model_validate_json(tree.read("request.json"))
    except (OSError, ValueError) as error:
        raise FolderError(f"{root} is no folder of a bisection: request.json cannot be read") from error
    header = header.model_copy(update={"good": with_secrets(header.good), "bad": with_secrets(header.bad)})
    _declare_secrets(header.good, header.bad)
    header = header if max_runs is None else header.model_copy(update={"max_runs": max_runs})
    root = root.resolve()  # before the working directory changes
    with working_folder(cwd=header.cwd, python=header.python):
        return _carry_out(header, root, lock=lock, note=note)


def _carry_out(header: BisectHeader, root: Path, *, lock: bool, note: Note) -> Bisection:
    machine = _machine(header.good)
    require_hardware(machine)
    require_packages((trial_spec(header, frozenset(), number=1, run_dir=root),), runbook=header.good.name)
    with (
        locked(machine, enabled=lock) as held,
        disk_errors(root, command=f"validator bisect --resume {root}"),
        open_runner(root, busy=lambda: f"another process works on {root.name}; wait for it, or stop it") as runner,
    ):
        held.name(root)
        runner.journal.append("resumed" if runner.earlier else "started", marker=runner.token, runner=this_runner())
        before = [event.fields["trial"] for event in runner.earlier if event.event == "trial_ended"]
        trials = Trials(
            names=tuple(differences(header.good, header.bad)),
            metric=header.metric,
            statistic=header.statistic,
            run_cv=header.good.run_cv,
            budget=header.max_runs,
            # What the first run reported is what all are compared by.
            start=lambda number, names: _run_trial(header, runner, note, number, names, metric=trials.metric),
            known=_metrics_of(header.good),
            done=[Trial(**{**one, "names": frozenset(one["names"])}) for one in before],
        )
        answer = _bisected(header, root, trials)
        runner.journal.append("finished" if answer.outcome != "interrupted" else "interrupted", outcome=answer.outcome)
        (root / "bisect.json").write_text(answer.model_dump_json(indent=2) + "\n", encoding="utf-8")
    return answer


def _machine(good: End, *, secrets: Collection[str] = ()) -> Runbook:
    """A runbook of what the runs need of the machine."""
    phases = [{"id": "p", "kind": "preflight"}]
    return Runbook.model_validate(
        {"schema": 1, "name": "bisect", "hardware": good.hardware, "secrets": tuple(secrets), "phases": phases}
    )


def _declare_secrets(good: End, bad: End) -> None:
    """From here on the secrets of both ends are written nowhere, under whatever name they stand."""
    names = {*good.secrets, *bad.secrets}
    hidden: set[str] = set()
    for end in (good, bad):
        settings = {key: str(value) for key, value in (*end.env.items(), *end.args.items())}
        hidden |= known_secrets(settings, end.trainer.command, named=names)
    declare_secrets_of(_machine(good, secrets=names), hidden=hidden)


def _metrics_of(good: End) -> Mapping[str, Metric]:
    return {**METRICS, **good.trainer.metrics.declared}


def _require_metric(name: str | None, known: Mapping[str, Metric]) -> None:
    """Two ends can be compared by what is better in one direction, and has one value of a run: a mean, or its last."""
    usable = [
        one.name
        for one in known.values()
        if one.better is not None
        and (one.window == "steady" or one.name == "loss" or (one.name not in METRICS and one.statistic in _VALUES))
    ]
    if name is None or name in usable:
        return
    if name in known and name not in METRICS:
        fix = "give it better: higher or lower, and statistic: mean or last, in extra of trainer.metrics"
        raise FolderError(f"--metric {name}: it cannot be compared; {fix}")
    raise FolderError(
        f"--metric {name}: it must be one of {', '.join(usable)}, or declared in extra of trainer.metrics"
    )


def _run_trial(
    header: BisectHeader, runner: RunContext, note: Note, number: int, names: frozenset[str], *, metric: str | None
) -> Trial:
    """One short run of a combination, to its end or its time limit; it is in the journal before the next begins."""
    spec = trial_spec(header, names, number=number, run_dir=runner.run_dir)
    combination = _combination(names, differences(header.good, header.bad))
    note(f"run {number} of at most {header.max_runs}: {combination}")
    outcome = runner.carry_out(spec, mask=mask_of(spec))
    if runner.cancel.requested or outcome.reason == "interrupted":
        raise Interrupted
    read = kind_of(spec.kind).read
    result = clean_result(collect_run(spec, run_dir=runner.run_dir, outcome=outcome, read=read))
    known = _metrics_of(header.good)
    wanted = speeds(known) if metric is None else (metric,)
    found, value, half, why = measured_value(
        result, outcome, [known[one] for one in wanted], statistic=header.statistic, warmup_steps=header.warmup_steps
    )
    trial = Trial(number, names, value, half, why, outcome.duration_s, found)
    runner.journal.append("trial_ended", trial={**trial.__dict__, "names": sorted(names)})
    shown = f"{found} {format_number(value)}" if value is not None else f"no value: {why}"
    note(f"  {shown} in {outcome.duration_s:.0f} s")
    return trial


def _combination(names: frozenset[str], all_names: Collection[str]) -> str:
    if not names:
        return "good as it is"
    if len(names) == len(all_names):
        return "all settings from bad"
    return f"from bad: {', '.join(name for name in all_names if name in names)}"


def _bisected(header: BisectHeader, root: Path, trials: Trials) -> Bisection:
    """Measure both ends, search between them, and say what was found."""
    found: Explanation | None = None
    outcome: BisectionOutcome = "explained"
    why = ""
    try:
        min_effect = max(header.good.min_effect, _MIN_DIFFERENCE)
        trials.ends, why = measured_ends(trials, repeats=header.repeats, min_effect=min_effect)
        if trials.ends is None:
            outcome = "no_difference"
        else:
            found = search(trials.names, trials.ask, repeats=header.repeats)
            outcome = "explained" if found.complete else "budget_spent"
    except NoDifference as problem:
        outcome, why = "not_in_settings", str(problem)
    except BudgetSpent:
        outcome, why = "budget_spent", f"{header.max_runs} runs were not enough to measure both ends"
    except Interrupted:
        outcome, why = "interrupted", "stopped by the user"
    good, bad = without_secrets(header.good), without_secrets(header.bad)
    return bisection(good, bad, trials, found, outcome=outcome, why=why, folder=root)


def trial_spec(header: BisectHeader, names: frozenset[str], *, number: int, run_dir: Path) -> RunSpec:
    """The run of one combination, planned as a phase of a runbook would be."""
    end = with_settings(header.good, header.bad, names)
    watchdog, warmup = end.watchdog, header.warmup_steps
    runbook = Runbook.model_validate(
        {
            "schema": 1,
            "name": "bisect",
            "hardware": end.hardware,
            "trainer": end.trainer.model_copy(update={"args": end.args}),
            "defaults": {"nproc": end.nproc, "env": end.env, "watchdog": watchdog, "warmup_steps": warmup},
            "phases": [{"id": f"t{number:02d}", "kind": "train", "steps": header.steps}],
        }
    )
    (spec,) = plan_phase(runbook, runbook.phases[0], run_dir=run_dir, python=header.python).runs
    return spec.model_copy(update={"timeout_s": header.timeout_s})


def measured_value(
    result: Result, outcome: Outcome, metrics: Sequence[Metric], *, statistic: str = "mean", warmup_steps: int
) -> tuple[str | None, float | None, float, str | None]:
    """(metric, value, half width of its 95 % interval, why there is none): a trial's first of `metrics`.

    A short run that was never steady still counts, with a wide interval. `statistic` is `mean`, or `p50` where a stall
    of a shared machine would outweigh a handful of steps.
    """
    # A run that its time limit ended was slow, not broken, if it got as far as to be measured.
    if not outcome.ok and outcome.reason != "timeout":
        return None, None, 0.0, outcome.last.detail or f"it ended {outcome.reason} with exit code {outcome.rc}"
    measurement = measure(result, warmup_steps=warmup_steps)
    loss = measurement.windows.get("loss")
    if loss is not None and not np.isfinite(loss.values).all():
        return None, None, 0.0, "its loss is not finite"
    metric = next((one for one in metrics if _has_values(measurement, one.name)), None)
    if metric is None:
        if not outcome.ok:
            return None, None, 0.0, outcome.last.detail or "it ran into its time limit"
        # Of a time that can also be measured on the clock of the log, the plain name is the one that people know.
        names = " or ".join(one.name for one in metrics if one.name != "wall_step_time_s")
        return None, None, 0.0, f"it wrote no {names} after {warmup_steps} warm-up steps"
    name, wanted = metric.name, statistic_of(metric, statistic)
    windowed = measurement.windows[name]
    value = float(np.median(windowed.values) if wanted == "p50" else windowed.values[-1])
    value = windowed.mean() if wanted == "mean" else value
    if not math.isfinite(value) or value <= 0:
        return name, None, 0.0, f"its {name} is {value}"
    return name, value, _half_width(measurement, metric, wanted, value), None


def _has_values(measurement: RunMeasurement, name: str) -> bool:
    windowed = measurement.windows.get(name)
    return windowed is not None and len(windowed.values) > 0


def _half_width(measurement: RunMeasurement, metric: Metric, statistic: str, value: float) -> float:
    interval = None
    if metric.window == "steady":
        with suppress(NotMeasured):
            interval = measurement.estimate(metric.name, statistic).interval()
    return NORMAL_975 * _UNSTEADY_CV * value if interval is None else (interval[1] - interval[0]) / 2
