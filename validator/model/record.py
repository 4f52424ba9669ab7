"""What is known of a phase before it is judged: its runs, how they ended and what was read from them.

Judgement and diagnosis take records and nothing else, so both can be repeated from disk at any time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from validator.model.extension import Extension
from validator.model.outcome import Outcome
from validator.model.plan import RunSpec
from validator.model.remedy import Remedy
from validator.model.result import Result
from validator.model.runbook import Phase, Runbook
from validator.model.verdict import Check, ValidationReport

__all__ = ["PhaseRecord", "PhaseState", "RunRecord", "Tried", "ValidationRecord"]

PhaseState = Literal["pending", "running", "done", "skipped", "not_run", "interrupted"]
"""`skipped` by the user (`--only`, `--skip`), `not_run` because a phase that it needs did not pass."""


@dataclass(frozen=True)
class RunRecord:
    """One run: what was asked for, how it ended (None while it runs) and what was read (None before it ran)."""

    spec: RunSpec
    outcome: Outcome | None
    result: Result | None


@dataclass(frozen=True)
class Tried:
    """A go at a phase that does not decide it: as declared (`remedy` None) and failed, or a remedy that was tried."""

    remedy: Remedy | None
    runs: tuple[RunRecord, ...]


@dataclass(frozen=True)
class PhaseRecord:
    """One phase. `reason` says why it is skipped or was not run; `checks` are preflight's.

    `runs` are those that decide: as declared, or of `remedy`, one that leaves the declared config as it is and after
    which the phase passed. `tried` are the other goes at the phase, in order.
    """

    phase: Phase
    state: PhaseState
    runs: tuple[RunRecord, ...] = ()
    checks: tuple[Check, ...] = ()
    reason: str | None = None
    duration_s: float | None = None
    remedy: Remedy | None = None
    tried: tuple[Tried, ...] = ()
    extended: Extension | None = None

    @property
    def every_run(self) -> tuple[RunRecord, ...]:
        """The runs that decide, then those of the other goes."""
        return (*self.runs, *(run for go in self.tried for run in go.runs))

    @property
    def measured(self) -> tuple[RunRecord, ...]:
        """The runs that decide the phase: not a loader's trial, nor a run that only leaves evidence."""
        return tuple(run for run in self.runs if run.spec.role == "measure")


@dataclass(frozen=True)
class ValidationRecord:
    """A whole validation as far as it has come. `environment` is the snapshot of the machine, `last_go` the report of
    the last GO of this runbook on this class of machine, as it was when this validation began; None if there was none.
    """

    runbook: Runbook
    phases: tuple[PhaseRecord, ...]
    environment: Mapping[str, Any] = field(default_factory=dict)
    last_go: ValidationReport | None = None

    def phase(self, phase_id: str) -> PhaseRecord:
        """The record of that phase; KeyError if there is none."""
        for record in self.phases:
            if record.phase.id == phase_id:
                return record
        raise KeyError(phase_id)
