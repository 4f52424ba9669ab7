"""One run seen by the rules: what was asked for, what ran, how fast, and what its logs say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from validator.judge.config import same_value
from validator.judge.window import Level, SteadyWindow, covered_steps, steady_window
from validator.model.measure import Irregularity
from validator.model.outcome import Outcome
from validator.model.plan import RunSpec
from validator.model.record import PhaseRecord, RunRecord, ValidationRecord
from validator.model.result import Result, Series
from validator.model.settings import flat_name
from validator.model.verdict import Evidence, PhaseReport

__all__ = ["MICRO_BATCHES", "LogHit", "PhaseFacts", "RunFacts", "ValidationFacts", "same_value"]

Floats = npt.NDArray[np.float64]

_LASTING = 0.05
"""Share of the window that a level must hold to be more than a passing one."""

MICRO_BATCHES = ("accum", "grad_accum", "accumulate_grad_batches", "gradient_accumulation_steps", "grad_accum_steps")
"""Names that trainers give to the micro-batches of a step."""


@dataclass(frozen=True)
class LogHit:
    """A line of a log that gives a kind of trouble away."""

    path: str
    line: int | None
    text: str

    @property
    def evidence(self) -> Evidence:
        """The line, for a finding."""
        return Evidence(path=self.path, where=f"line {self.line}" if self.line else "tail", text=self.text)


@dataclass(frozen=True)
class RunFacts:
    """A run with a result. `machine` is the validation's snapshot, empty when a folder is inspected by itself."""

    spec: RunSpec
    result: Result
    outcome: Outcome | None
    machine: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, record: RunRecord, machine: Mapping[str, Any]) -> RunFacts | None:
        """The facts of a record; None before it has a result."""
        return None if record.result is None else cls(record.spec, record.result, record.outcome, machine)

    @property
    def training(self) -> bool:
        """Whether the run is one of a trainer."""
        return self.spec.trains

    @property
    def timed(self) -> bool:
        """Whether its rate is of interest; an audit and a profile slow the steps that they look at."""
        return self.training and self.spec.kind not in ("audit", "profile")

    @property
    def failed(self) -> bool:
        """Whether it is known that the run did not end well."""
        return self.outcome is not None and not self.outcome.ok

    @property
    def world_size(self) -> int:
        """Ranks by the trainer's account, else as planned."""
        return int(self.result.extra.get("world_size", self.spec.world_size))

    @cached_property
    def asked(self) -> dict[str, Any]:
        """Everything asked for by flat name; what the validator passed wins over the trainer's account."""
        passed = {flat_name(key): value for key, value in self.spec.requested.items()}
        return {**(self.result.requested or {}), **passed}

    @property
    def ran(self) -> Mapping[str, Any]:
        """The effective config; empty when the trainer does not tell."""
        return self.result.effective or {}

    @property
    def environment(self) -> Mapping[str, Any]:
        """The trainer's own account of its software and size; empty when it gives none."""
        return self.result.environment or {}

    def setting(self, *names: str) -> Any:
        """A setting as it runs, else as asked for, under the first of its names that is known."""
        for source in (self.ran, self.asked):
            for name in names:
                if source.get(name) is not None:
                    return source[name]
        return None

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
        least = _LASTING * sum(level.rows for level in levels)
        return tuple(level for level in levels if level.rows >= least)

    def hits(self, kind: str) -> list[LogHit]:
        """Lines of the logs that show this kind of trouble."""
        found = self.result.extra.get("log_hits", {}).get(kind, [])
        return [LogHit(str(h["path"]), h.get("line"), str(h["text"])) for h in found]

    @cached_property
    def times(self) -> tuple[npt.NDArray[np.int64], Floats] | None:
        """Steps and a time per step or, where only rates are known, per token; positive and finite."""
        for name in ("step_time_s", "toks_per_s"):
            found = self.series(name)
            if found is None:
                continue
            usable = np.isfinite(found.values) & (found.values > 0)
            values = found.values[usable]
            if values.size:
                return found.steps[usable], values if name == "step_time_s" else 1.0 / values
        return None

    @cached_property
    def window(self) -> SteadyWindow | None:
        """The steady window, judged as the criteria judge it; None without a series of time."""
        if self.times is None:
            return None
        return steady_window(*self.times, warmup_steps=self.spec.warmup_steps)

    def inside(self, series: Series) -> Floats:
        """Finite values of a series within the steady window; all that follow warm-up where there is none."""
        inside = series.steps > self.spec.warmup_steps
        if self.window is not None and self.window.span is not None:
            inside = self.window.contains(series.steps)
        values = series.values[inside & np.isfinite(series.values)]
        return values if values.size else series.values[np.isfinite(series.values)]

    @cached_property
    def rate(self) -> float | None:
        """Tokens over time in the window, global; None without usable rates."""
        found = self.series("toks_per_s")
        if found is None:
            return None
        inside = found.steps > self.spec.warmup_steps
        if self.window is not None and self.window.span is not None:
            inside = self.window.contains(found.steps)
        usable = inside & np.isfinite(found.values) & (found.values > 0)
        if not usable.any():
            usable = np.isfinite(found.values) & (found.values > 0)
        if not usable.any():
            return None
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
        """Tokens of one optimizer step over all ranks, as the trainer tells it or as the settings give it."""
        told = as_number(self.environment.get("tokens_per_step")) or as_number(self.ran.get("tokens_per_step"))
        return told or self.expected_tokens

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
    def steps_asked(self) -> float | None:
        """Optimizer steps that should be done."""
        return float(self.spec.steps) if self.spec.steps else self.number("steps", "max_steps")

    def source(self, name: str) -> str | None:
        """The file a series was read from."""
        found = self.series(name)
        return found.source.path if found is not None else None


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
