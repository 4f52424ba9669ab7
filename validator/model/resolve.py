"""What the dotted names of criteria mean, for `check` and judgement alike.

Two parts name something of the phase itself (`loss.last`, `outcome.rc`), three begin with another phase
(`baseline.loss.last`). So a phase may be called like a metric without becoming ambiguous. `last_go.` in front of either
means the same of the last GO of this runbook on this class of machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, NamedTuple

from validator.model.catalogue import CURRENCY, METRICS, STATISTICS, Better, Metric, is_open_scalar
from validator.model.columns import NO_SERIES, PACES, TOTALS, WAITS, series_name
from validator.model.expression import Reference
from validator.model.loss_parts import summed_parts
from validator.model.pattern import PatternError, line_pattern
from validator.model.runbook import CommandPhase, Phase, Runbook, TrainerMetrics, TrainingPhase
from validator.model.schemas import SCALARS, SCHEMAS
from validator.model.settings import ranks_of, tokens_of
from validator.text import nearest

LAST_GO = "last_go"
"""The first part of names of an earlier validation's measurements; no phase may have this id."""

_SPREAD = {"cv": "", "n": "steps"}


class Resolved(NamedTuple):
    """What a reference means.

    `statistic` and `window` are None for a scalar. `unit` is empty where the value has none, and where only the trainer
    knows it (`effective.x`, `metrics.x`); `unit_known` is False in the second case. `text`: it is no number. `stored`:
    it is of the last GO. `better` is the good direction of a series that has one.
    """

    phase_id: str
    kind: Literal["series", "scalar"]
    name: str
    statistic: str | None
    unit: str
    window: Literal["steady", "whole"] | None
    unit_known: bool = True
    text: bool = False
    stored: bool = False
    better: Better | None = None

    @property
    def source(self) -> str:
        """What the value is taken from: a phase, or that phase of the last GO."""
        return f"{LAST_GO}.{self.phase_id}" if self.stored else self.phase_id


class UnresolvedReference(ValueError):
    """A name without a meaning. `column` is 0-based in the criterion and points at the unknown part."""

    def __init__(self, message: str, fix: str, *, column: int = 0) -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix
        self.column = column


@contextmanager
def _behind(columns: int) -> Iterator[None]:
    """What is resolved within begins that many columns further to the right."""
    try:
        yield
    except UnresolvedReference as error:
        error.column += columns
        raise


def _groups(pattern: str | None) -> tuple[str, ...]:
    if pattern is None:
        return ()
    try:
        return line_pattern(pattern).names
    except PatternError:
        return ()


def series_of(metrics: TrainerMetrics, *, tokens: bool = False) -> dict[str, Metric]:
    """The series that a trainer with these sources can yield; `tokens` says that the tokens of a step are declared.

    A CSV and the files of a reader may hold any column; heartbeats hold what the trainer contract lists; text holds its
    named groups, and the time of a step by the arrival of its lines where none gives a pace.
    `toks_per_s_per_rank` follows from `toks_per_s`, and with the FLOPs per token of the environment file the model's
    rate; `step_rate` from `toks_per_s` and `step_time_s`, and with the tokens of a step each of the two from the other.
    """
    names: set[str] = set()
    if metrics.csv is not None or metrics.heartbeat is not None:
        names |= set(METRICS) | set(metrics.extra)
    for pattern in metrics.patterns:
        names |= _printed_series({series_name(name) for name in _groups(pattern)})
    for reader in metrics.readers:
        if reader.files:
            names |= {*(reader.series or METRICS), "val_loss", *metrics.extra, *metrics.names}
        names |= {"step_time_s"} if reader.bar else set()
    if metrics.patterns and not names & {"toks_per_s", "step_time_s"}:
        names.add("step_time_s")  # by the arrival of the lines
    names |= {"toks_per_s"} if "toks_per_s_per_rank" in names else set()
    if tokens and names & {"toks_per_s", "step_time_s"}:
        names |= {"toks_per_s", "step_time_s"}
    names -= {"model_tflops_per_s_per_rank", "step_rate", *(("loss",) if metrics.no_loss else ())}
    if "toks_per_s" in names:
        names.add("toks_per_s_per_rank")
        names |= {"model_tflops_per_s_per_rank"} if metrics.env is not None else set()
        names |= {"step_rate"} if "step_time_s" in names else set()
    return {name: METRICS.get(name) or metrics.declared.get(name) or _undeclared(name) for name in sorted(names)}


def _printed_series(groups: set[str]) -> set[str]:
    """The series that follow from the groups of a pattern: times of a step also from clocks."""
    names = groups - NO_SERIES
    if groups & PACES:
        names |= {"step_time_s"} if "step_time_s" not in names else {"wall_step_time_s"}
    names |= {"dt_fetch_s"} if groups & WAITS else set()
    names |= {"loss"} if not groups & {"loss", "mean_reward"} and summed_parts(groups) else set()
    for total, rate in TOTALS.items():
        names |= {rate} if {total, "step_time_s"} <= names else set()
    return names


def _series_in(runbook: Runbook, phase: Phase) -> dict[str, Metric]:
    """The series that the trainer can yield in a phase."""
    tokens = isinstance(phase, TrainingPhase) and tokens_of(runbook, phase) is not None
    return series_of(runbook.trainer.metrics, tokens=tokens)


def _undeclared(name: str) -> Metric:
    return Metric(name=name, unit="", window="whole", better=None, meaning="a group of the pattern")


def resolve(reference: Reference, *, runbook: Runbook, phase: Phase) -> Resolved:
    """The meaning of `reference` in a criterion or `choose` of `phase`.

    Raises:
        UnresolvedReference: when there is no such phase, metric, statistic or scalar, when the phase that is named
            does not run before this one, or when its value could never be known.
    """
    parts = reference.name.split(".")
    with _behind(reference.column):
        if parts[0] == LAST_GO:
            with _behind(len(LAST_GO) + 1):
                return _of_last_go(parts[1:], runbook=runbook, phase=phase)
        if len(parts) not in (2, 3):
            counted = f"{len(parts)} part{'s' if len(parts) > 1 else ''}"
            message = f"{reference.name} has {counted}, a measurement has two or three"
            raise UnresolvedReference(message, _complete(reference.name))
        target = _other_phase(parts[0], runbook=runbook, phase=phase) if len(parts) == 3 else phase
        with _behind(len(parts[0]) + 1 if len(parts) == 3 else 0):
            return _resolve_measurement(parts[-2], parts[-1], runbook=runbook, phase=target)


def _of_last_go(parts: list[str], *, runbook: Runbook, phase: Phase) -> Resolved:
    """`[phase.]metric.statistic` of the last GO: any phase of this runbook, and of its series what was kept."""
    if len(parts) not in (2, 3):
        message = f"{'.'.join((LAST_GO, *parts))} is not a measurement of the last GO"
        raise UnresolvedReference(message, "write last_go.metric.statistic or last_go.phase.metric.statistic")
    known = {one.id: one for one in runbook.phases}
    if len(parts) == 3 and parts[0] not in known:
        fix = nearest(parts[0], known, f"phases: {', '.join(known)}")
        raise UnresolvedReference(f"there is no phase called {parts[0]}", fix)
    target = known[parts[0]] if len(parts) == 3 else phase
    with _behind(len(parts[0]) + 1 if len(parts) == 3 else 0):
        found = _resolve_measurement(parts[-2], parts[-1], runbook=runbook, phase=target)
        if found.kind != "series":
            raise UnresolvedReference(f"{found.name} of the last GO is not stored", "name a series: metric.statistic")
        if found.window == "steady" and found.statistic != "mean":
            message = f"of {found.name} in the last GO only the mean has an interval"
            raise UnresolvedReference(message, f"write {found.name}.mean")
    return found._replace(stored=True)


def _complete(name: str) -> str:
    word = name.split(".")[0]
    if word in METRICS:
        return f"write {word}.mean, or another of {', '.join(STATISTICS)}"
    return nearest(word, METRICS, "write metric.statistic, phase.metric.statistic or a scalar such as outcome.rc")


def _other_phase(name: str, *, runbook: Runbook, phase: Phase) -> Phase:
    """The phase that a name of three parts begins with; it must run before this one."""
    earlier: dict[str, Phase] = {}
    for candidate in runbook.phases:
        if candidate is phase or candidate.id == phase.id:
            break
        earlier[candidate.id] = candidate
    if name == phase.id:
        return phase
    if name in earlier:
        return earlier[name]
    if any(candidate.id == name for candidate in runbook.phases):
        message = f"phase {name} runs after {phase.id}, so its measurements are not known yet"
        raise UnresolvedReference(message, f"move phase {name} in front of {phase.id}")
    listed = f"earlier phases: {', '.join(earlier)}" if earlier else f"no phase runs before {phase.id}"
    raise UnresolvedReference(f"there is no phase called {name}", nearest(name, earlier, listed))


def _resolve_measurement(family: str, last: str, *, runbook: Runbook, phase: Phase) -> Resolved:
    name = f"{family}.{last}"
    unmeasured = phase.unmeasured(name, runbook.hardware, scalar=name in SCALARS)
    if unmeasured is not None:
        raise UnresolvedReference(*unmeasured)
    if name in SCALARS:
        return _resolve_scalar(name, runbook=runbook, phase=phase)
    if is_open_scalar(name):
        return _resolve_open_scalar(name, runbook=runbook, phase=phase)
    return _resolve_series(family, last, runbook=runbook, phase=phase)


def _resolve_scalar(name: str, *, runbook: Runbook, phase: Phase) -> Resolved:
    scalar = SCALARS[name]
    if name not in phase.known_scalars():
        kinds = [kind for kind, schema in SCHEMAS.items() if name in schema.known_scalars()]
        message = f"{name} is not known in a phase of kind {phase.kind}"
        raise UnresolvedReference(message, f"it exists in phases of kind {', '.join(kinds)}")
    obstacle = _obstacle(name, runbook=runbook, phase=phase)
    if obstacle is not None:
        raise UnresolvedReference(f"{name} can never be known: {obstacle[0]}", obstacle[1])
    unit = runbook.hardware.currency if scalar.unit == CURRENCY else scalar.unit
    return Resolved(phase.id, "scalar", name, None, unit, None, unit_known=not scalar.text, text=scalar.text)


def _obstacle(name: str, *, runbook: Runbook, phase: Phase) -> tuple[str, str] | None:
    """Why a known scalar cannot be measured in this phase, and the fix; None when it can."""
    metrics = runbook.trainer.metrics
    if SCALARS[name].cuda_only and runbook.hardware.gpus == 0:
        return "it is measured on a GPU, and hardware.gpus is 0", "set hardware.gpus, or drop the criterion"
    own = phase.obstacle(name, runbook.hardware, runbook.trainer)
    if own is not None:
        return own
    if name in ("heartbeat.max_gap_s", "straggler.score", "startup.first_batch_s") and metrics.heartbeat is None:
        return (
            "the trainer declares no heartbeat",
            'declare trainer.metrics.heartbeat, such as "heartbeat_rank{rank}.jsonl"',
        )
    if name == "straggler.score" and ranks_of(runbook, phase) == 1:  # with 0 the trainer may start its own
        return f"phase {phase.id} has one process", "set nproc to 2 or more, or drop the criterion"
    if (name == "rate.drift_pct" or SCALARS[name].unit == CURRENCY) and "toks_per_s" not in _series_in(runbook, phase):
        return "the trainer declares no source of toks_per_s", "declare trainer.metrics.csv or a group toks_per_s"
    return None


def _resolve_open_scalar(name: str, *, runbook: Runbook, phase: Phase) -> Resolved:
    family, key = name.split(".")
    metrics = runbook.trainer.metrics
    problem: tuple[str, str] | None = None
    if isinstance(phase, CommandPhase):
        groups = _groups(phase.stdout)
        if family != "metrics":
            problem = "a command has no config", f"name a group of its `stdout` pattern as metrics.{key}"
        elif key not in groups:
            listed = f"groups: {', '.join(groups)}" if groups else f"add stdout: '… {{{key}}}' to phase {phase.id}"
            problem = f"phase {phase.id} has no `stdout` group called {key}", nearest(key, groups, listed)
    elif not isinstance(phase, TrainingPhase):
        problem = f"a phase of kind {phase.kind} runs no trainer", "name a phase that runs the trainer"
    elif family == "metrics" and metrics.metrics is None:
        problem = "the trainer declares no final metrics", "declare trainer.metrics.metrics, such as metrics.json"
    elif family != "metrics" and metrics.env is None:
        problem = "the trainer does not record its config", "declare trainer.metrics.env, such as env.json"
    if problem is not None:
        raise UnresolvedReference(f"{name} can never be known: {problem[0]}", problem[1])
    return Resolved(phase.id, "scalar", name, None, "", None, unit_known=False)


def _resolve_series(metric: str, statistic: str, *, runbook: Runbook, phase: Phase) -> Resolved:
    if not isinstance(phase, TrainingPhase):
        known = list(phase.known_scalars())
        message = f"phase {phase.id} is of kind {phase.kind} and measures no {metric}.{statistic}"
        raise UnresolvedReference(message, nearest(f"{metric}.{statistic}", known, f"it knows {', '.join(known)}"))
    series = _series_in(runbook, phase)
    if metric not in series:
        _reject_metric(metric, statistic, series, metrics=runbook.trainer.metrics)
    if statistic not in STATISTICS:
        fix = nearest(statistic, STATISTICS, f"statistics: {', '.join(STATISTICS)}")
        raise UnresolvedReference(f"{statistic} is not a statistic", fix, column=len(metric) + 1)
    if series[metric].cuda_only and runbook.hardware.gpus == 0:
        message = f"{metric} is measured on a GPU, and hardware.gpus is 0"
        raise UnresolvedReference(message, "set hardware.gpus, or drop the criterion")
    unit = _SPREAD.get(statistic, series[metric].unit)
    declared = metric in METRICS or metric in runbook.trainer.metrics.extra
    return Resolved(
        phase.id,
        "series",
        metric,
        statistic,
        unit,
        series[metric].window,
        unit_known=declared or statistic in _SPREAD,
        better=series[metric].better,
    )


def _reject_metric(metric: str, statistic: str, series: dict[str, Metric], *, metrics: TrainerMetrics) -> None:
    if metric in METRICS:
        fix = f"declare trainer.metrics.csv, heartbeat or a reader, or write {{{metric}}} in trainer.metrics.stdout"
        if metric == "toks_per_s" and "step_time_s" in series:
            fix = "declare trainer.tokens_per_step, from which it follows with the time of a step"
        if metric == "loss" and metrics.no_loss:
            fix = "remove no_loss from trainer.metrics, or the criterion"
        raise UnresolvedReference(f"{metric} can never be known: the trainer declares no source of it", fix)
    if metric in metrics.extra:
        lacks = "the pattern of stdout has" if metrics.stdout is not None else "trainer.metrics has"
        message = f"{metric} is declared in trainer.metrics.extra, and can never be known: {lacks} no {{{metric}}}"
        fix = f"write {{{metric}}} in trainer.metrics.stdout where it is printed, or declare csv or heartbeat"
        raise UnresolvedReference(message, fix)
    whole = f"{metric}.{statistic}"
    scalar = nearest(whole, SCALARS, "", cutoff=0.8)
    if scalar:
        raise UnresolvedReference(f"there is no {whole}", scalar)
    fix = nearest(metric, series, "declare it in trainer.metrics.extra as name: unit if the trainer writes it")
    raise UnresolvedReference(f"there is no metric called {metric}", fix)
