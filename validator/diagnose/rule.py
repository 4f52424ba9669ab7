"""What a rule is, and what it looks at: the facts of one run, of one phase, or of the whole validation.

A rule is a function that yields diagnoses, under a code and a severity.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Generic, Literal, TypeVar

import numpy as np
import numpy.typing as npt

from validator.judge.config import Obeyed
from validator.judge.data import measured
from validator.model.columns import OF_VALIDATION
from validator.model.plan import RunSpec
from validator.model.recipes import BY_EPOCHS
from validator.model.record import Outcome, PhaseRecord, RunRecord, ValidationRecord
from validator.model.result import Floats, Irregularity, LogHit, Result, RunEvidence, Series, Steps
from validator.model.settings import flat_name
from validator.model.verdict import Evidence, Finding, PhaseReport
from validator.stats.rows import PACES
from validator.stats.spacing import covered_steps, steps_to_next_row
from validator.stats.window import Level, SteadyWindow

_LASTING = 0.05
"""Share of the window that a level must hold to be more than a passing one."""

_UNEVEN = 0.5
"""By how much of itself the number of rows from one evaluation to the next may vary, as that of a bar does."""

MICRO_BATCHES = ("accum", "grad_accum", "accumulate_grad_batches", "gradient_accumulation_steps", "grad_accum_steps")
"""Names that trainers give to the micro-batches of a step."""

WORKLOAD = frozenset(
    {"seq_len", "batch_size", *MICRO_BATCHES, "global_batch_size", "vocab_size", "data"}
    | {"n_layers", "dim", "n_heads", "n_kv_groups", "d_k", "d_v", "ffn_dim", "attention"}
    | {"l", "d", "l_sel", "n_sel", "w"}
    | {"dtype", "param_dtype", "weight_dtype", "compute_dtype", "precision"}
)
"""Settings that decide how much work a step is. A rate measured with others is the rate of something else."""


@dataclass(frozen=True)
class RunFacts:
    """A run with a result. `machine` is the validation's snapshot, empty when a folder is inspected by itself.

    `obeyed` are settings whose effect a phase of the validation has shown, `undecided` the numbers of the command of
    which none has shown either.
    """

    spec: RunSpec
    result: Result
    outcome: Outcome | None
    machine: Mapping[str, Any] = field(default_factory=dict)
    obeyed: Obeyed = ()
    undecided: Sequence[str] = ()

    @classmethod
    def of(cls, record: RunRecord, machine: Mapping[str, Any]) -> RunFacts | None:
        """The facts of a record; None before it has a result."""
        return None if record.result is None else cls(record.spec, record.result, record.outcome, machine)

    @property
    def record(self) -> RunRecord:
        """The run as judgement takes it."""
        return RunRecord(self.spec, self.outcome, self.result)

    @property
    def training(self) -> bool:
        """Whether the run is one of a trainer."""
        return self.spec.trains

    @property
    def timed(self) -> bool:
        """Whether its rate is of interest."""
        return self.training and not self.spec.phase_model.instrumented

    @property
    def failed(self) -> bool:
        """Whether it is known that the run did not end well."""
        return self.outcome is not None and not self.outcome.ok

    @property
    def evidence(self) -> RunEvidence:
        """What was read besides series and scalars."""
        return self.result.evidence

    @property
    def world_size(self) -> int:
        """Ranks by the trainer's account, else as planned."""
        return self.evidence.world_size or self.spec.world_size

    @cached_property
    def requested(self) -> dict[str, Any]:
        """Every requested setting by flat name; what the validator passed wins over the trainer's account."""
        passed = {flat_name(key): value for key, value in self.spec.requested.items()}
        return {**(self.result.requested or {}), **passed}

    @property
    def effective(self) -> Mapping[str, Any]:
        """The effective config; empty when the trainer does not report it."""
        return self.result.effective or {}

    @property
    def environment(self) -> Mapping[str, Any]:
        """The trainer's own account of its software and size; empty when it gives none."""
        return self.result.environment or {}

    def setting(self, *names: str) -> Any:
        """The effective setting, else the requested one, under the first of its names that is known."""
        for source in (self.effective, self.requested):
            for name in names:
                if source.get(name) is not None:
                    return source[name]
        return None

    def effective_number(self, *names: str) -> float | None:
        """The first of these effective settings that is a number other than 0."""
        return next((n for name in names if (n := as_number(self.effective.get(name)))), None)

    def number(self, *names: str) -> float | None:
        """A setting as a number; None when there is none."""
        return as_number(self.setting(*names))

    def variable(self, name: str) -> str | None:
        """An environment variable given to the run, by the plan or by the trainer's account."""
        own = self.environment.get("env")
        found = self.spec.env.get(name, own.get(name) if isinstance(own, Mapping) else None)
        return None if found is None else str(found)

    def scalar(self, name: str) -> float | None:
        """A scalar as a number."""
        found = self.result.scalars.get(name)
        return as_number(found.value) if found is not None else None

    def series(self, name: str) -> Series | None:
        """A series with at least one row."""
        found = self.result.series.get(name)
        return found if found is not None and len(found.steps) else None

    @cached_property
    def validations(self) -> tuple[Series, ...]:
        """The losses of the validation, each evaluation once: some trainers repeat the last one in every row."""
        found = (self.result.series.get(name) for name in OF_VALIDATION)
        return tuple(_once_each(one) for one in found if one is not None and len(one.steps))

    @property
    def by_epochs(self) -> bool:
        """Whether a row is known to be an epoch, by the format of the log."""
        printed = self.evidence.printed
        return printed is not None and printed.format in BY_EPOCHS

    def irregular(self, *codes: str) -> list[Irregularity]:
        """Irregularities of these codes."""
        return [i for i in self.result.irregularities if i.code in codes]

    @property
    def planned(self) -> bool:
        """Whether the validator started the run, so that a runbook can answer what is found."""
        return self.outcome is not None

    @cached_property
    def levels(self) -> tuple[Level, ...]:
        """Levels of the time per step that last: those with at least a twentieth of the rows in the window."""
        levels = self.window.levels if self.window is not None else ()
        minimum = _LASTING * sum(level.rows for level in levels)
        return tuple(level for level in levels if level.rows >= minimum)

    def hits(self, kind: str) -> Sequence[LogHit]:
        """Lines of the logs that show this kind of trouble."""
        return self.evidence.log_hits.get(kind, ())

    @cached_property
    def times(self) -> tuple[Steps, Floats] | None:
        """Steps and a time per step or, where only rates are known, per :attr:`paced` unit; positive and finite."""
        found, unit = self.paced
        if found is None:
            return None
        usable = np.isfinite(found.values) & (found.values > 0)
        return found.steps[usable], found.values[usable] if unit == "step" else 1.0 / found.values[usable]

    @cached_property
    def paced(self) -> tuple[Series | None, str]:
        """The series that :attr:`times` are of, and what each is a time of: a step, a token, a sample."""
        for name, unit in PACES.items():
            found = self.series(name)
            if found is not None and (np.isfinite(found.values) & (found.values > 0)).any():
                return found, unit
        return None, "step"

    @cached_property
    def window(self) -> SteadyWindow | None:
        """The steady window that the criteria are judged on; None without a series of time."""
        measurement = measured(self.record)
        return measurement.window_found if measurement is not None and self.times is not None else None

    def in_window(self, steps: Steps) -> npt.NDArray[np.bool_]:
        """Which rows, by their step, lie in the steady window; those that follow warm-up where there is none."""
        if self.window is not None and self.window.span is not None:
            return self.window.contains(steps)
        return steps > self.spec.warmup_steps

    def inside(self, series: Series) -> Floats:
        """Finite values of a series within the steady window; all of them where there is none."""
        finite = np.isfinite(series.values)
        values = series.values[self.in_window(series.steps) & finite]
        return values if values.size else series.values[finite]

    @property
    def rate_per_rank(self) -> float:
        """The rate of one rank; 0 without usable rates."""
        return (self.rate or 0.0) / self.world_size

    @cached_property
    def rate(self) -> float | None:
        """Tokens over time in the window, global; None without usable rates."""
        found = self.series("toks_per_s")
        if found is None:
            return None
        positive = np.isfinite(found.values) & (found.values > 0)
        if not positive.any():
            return None
        inside = self.in_window(found.steps) & positive
        usable = inside if inside.any() else positive
        covered = covered_steps(found.steps)[usable]
        return float(covered.sum() / (covered / found.values[usable]).sum())

    @cached_property
    def step_time_s(self) -> float | None:
        """Median time of a step in the window."""
        found = self.series("step_time_s")
        if found is not None:
            values = self.inside(found)
            return float(np.median(values)) if values.size and np.median(values) > 0 else None
        tokens = self.tokens_per_step
        return tokens / self.rate if tokens and self.rate else None

    @property
    def tokens_per_step(self) -> float | None:
        """Tokens of one optimizer step over all ranks, as declared, as reported or as the settings give it."""
        return self.evidence.tokens_per_step or self.expected_tokens

    @property
    def tokens_by_rate(self) -> Floats:
        """Tokens of the steps behind warm-up by rate × step time; finite, and none where one of them is unknown."""
        rate, times = self.series("toks_per_s"), self.series("step_time_s")
        if rate is None or times is None:
            return np.empty(0)
        common, left, right = np.intersect1d(rate.steps, times.steps, return_indices=True)
        products = (rate.values[left] * times.values[right])[common > self.spec.warmup_steps]
        return np.asarray(products[np.isfinite(products)], dtype=np.float64)

    @property
    def cores(self) -> float | None:
        """Logical CPU cores of the machine; None where no snapshot of it says so."""
        cpu = self.machine.get("cpu")
        return as_number(cpu.get("cores_logical")) if isinstance(cpu, Mapping) else None

    @property
    def expected_tokens(self) -> float | None:
        """Tokens of a step by the settings: `batch_size × accum × seq_len × ranks`."""
        length, batch = self.number("seq_len"), self.number("batch_size")
        if length is None or batch is None:
            return None
        return length * batch * (self.number(*MICRO_BATCHES) or 1) * self.world_size

    @property
    def steps_done(self) -> float | None:
        """Optimizer steps that were finished."""
        return self.scalar("steps.done")

    @property
    def ended_early(self) -> bool:
        """Whether the trainer ended by itself with exit code 0 before its steps were done: where PHASE.steps fails."""
        outcome, done, wanted = self.outcome, self.steps_done, self.spec.steps
        if outcome is None or not outcome.ok or outcome.reason != "exited" or done is None or wanted is None:
            return False
        return done + steps_to_next_row(self.result) <= wanted

    @property
    def steps_requested(self) -> float | None:
        """Optimizer steps that should be done."""
        return float(self.spec.steps) if self.spec.steps else self.number("steps", "max_steps")

    @property
    def config_path(self) -> str | None:
        """The file that the effective config was read from."""
        scalars = self.result.scalars
        known = scalars.get("effective.seq_len") or next(
            (one for name, one in scalars.items() if name.startswith("effective.")), None
        )
        return known.source if known is not None else None

    @property
    def gpu_use(self) -> list[Series]:
        """Utilization of each GPU, by the machine's telemetry."""
        used = (one for name, one in self.result.series.items() if name.startswith("telemetry.gpu"))
        return [one for one in used if one.name.endswith("_util_pct") and not one.name.endswith("_mem_util_pct")]

    def source(self, name: str) -> str | None:
        """The file a series was read from."""
        found = self.series(name)
        return found.source.path if found is not None else None


def _once_each(validation: Series) -> Series:
    """The evaluations of a series that repeats each of them in row after row, once each; else the series itself.

    One that is the same as the one before shows by how many rows pass until the next change would be due.
    """
    changed = np.flatnonzero(np.diff(validation.values)) + 1
    between = np.diff(changed)
    if len(between) < 1 or between.min() < 2 or np.ptp(between) > max(1.0, _UNEVEN * float(np.median(between))):
        return validation
    every, last = int(np.median(between)), int(changed[-1])
    late = last + every + (int(_UNEVEN * every) if np.ptp(between) > 1 else 0)
    rows = np.concatenate([[max(0, changed[0] - every)], changed, np.arange(late, len(validation.values), every)])
    return replace(validation, steps=validation.steps[rows], values=validation.values[rows])


def as_number(value: Any) -> float | None:
    """A finite number, also from text; truth values are none."""
    if isinstance(value, bool) or value is None:
        return None
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if np.isfinite(number) else None


@dataclass(frozen=True)
class PhaseFacts:
    """A phase with the runs that have a result. `report` is None when a folder is inspected by itself."""

    record: PhaseRecord
    report: PhaseReport | None
    runs: tuple[RunFacts, ...]


@dataclass(frozen=True)
class ValidationFacts:
    """The whole validation."""

    record: ValidationRecord
    phases: tuple[PhaseFacts, ...]

    @property
    def runs(self) -> tuple[RunFacts, ...]:
        """Every training run that has a result."""
        return tuple(run for phase in self.phases for run in phase.runs if run.training)

    @property
    def required_runs(self) -> Iterator[RunFacts]:
        """Every training run of a required phase, in the order of the phases."""
        for phase in self.phases:
            if phase.record.phase.required:
                yield from (run for run in phase.runs if run.training)


# What a rule makes of them.

Severity = Literal["veto", "warning", "info"]
Confidence = Literal["high", "medium", "low"]
Scope = Literal["run", "phase", "validation"]
Facts = TypeVar("Facts", RunFacts, PhaseFacts, ValidationFacts)


@dataclass(frozen=True)
class Diagnosis:
    """What a rule recognized: the cause in a sentence, its evidence and the next step with a command that helps.

    The rule adds its code, and its severity where none is given; the engine adds the phase and the run that the rule
    looked at, where no other is named.
    """

    message: str
    next_step: str
    severity: Severity | None = None
    confidence: Confidence = "high"
    because: Iterable[Evidence] = ()
    phase: str | None = None
    run: RunFacts | None = None
    command: str = ""
    lost: float | None = None


@dataclass(frozen=True)
class Rule(Generic[Facts]):
    """Looks at one run, at one phase with all its runs, or across phases. `severity` is the highest of its findings."""

    code: str
    severity: Severity
    of: Scope
    look: Callable[[Facts], Iterator[Diagnosis]]

    def findings(self, facts: Facts) -> Iterator[Finding]:
        """What the rule recognizes in these facts."""
        for one in self.look(facts):
            yield Finding(
                code=self.code,
                severity=one.severity or self.severity,
                confidence=one.confidence,
                message=one.message,
                evidence=tuple(one.because),
                next_step=one.next_step,
                phase=one.phase if one.run is None else one.run.spec.phase,
                run=None if one.run is None else one.run.spec.id,
                command=one.command,
                lost=one.lost,
            )


def rule(
    code: str, severity: Severity, *, of: Scope
) -> Callable[[Callable[[Facts], Iterator[Diagnosis]]], Rule[Facts]]:
    """Makes a rule of a function; the engine finds it in its module. Its docstring is the cause in docs/findings.md."""
    return lambda look: Rule(code, severity, of, look)


def evidence(text: str, path: str | None = None, where: str | None = None) -> Evidence:
    """A piece of evidence."""
    return Evidence(path=path, where=where, text=text)


def hit_evidence(hit: LogHit) -> Evidence:
    """A line of a log as evidence."""
    return evidence(hit.text, hit.path, f"line {hit.line}" if hit.line else "tail")
