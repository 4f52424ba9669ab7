"""What is known of a phase before it is judged: its runs, how they ended and what was read from them.

Judgement and diagnosis take records and nothing else, so both can be repeated from the run folder at any time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import Field

from validator.model.plan import RunSpec
from validator.model.remedy import Remedy
from validator.model.result import Result, RunEvidence
from validator.model.runbook import Phase, Runbook
from validator.model.units import Frozen, PathBelow
from validator.model.verdict import Check, Extension, ValidationReport

Reason = Literal["exited", "at_steps", "timeout", "stalled", "halted", "interrupted", "infrastructure", "node_lost"]
"""How an attempt ended.

`exited` by itself, with any code; `at_steps` by validator, as the runbook asks, once its steps were done; `timeout`
past its budget; `stalled` without progress or activity; `halted` by the watchdog for an anomaly; `interrupted` by the
user; `infrastructure` when it could not be started or the machine failed; `node_lost` when a node
of it answered no more.
"""


class LastWords(Frozen):
    """What the rank that failed first said at its end: its exception or, without one, the last line of its log."""

    text: str
    rank: int | None = Field(None, description="None where the log of no rank, or of all of them, says it.")

    def __str__(self) -> str:
        return f"last words{'' if self.rank is None else f' of rank {self.rank}'}: {self.text}"


class Attempt(Frozen):
    """One start of a run's process tree, and how it ended."""

    number: int = Field(ge=1)
    command: tuple[str, ...]
    pid: int | None
    started: str = Field(description="UTC, ISO 8601.")
    duration_s: float = Field(description="By the monotonic clock.")
    rc: int | None = Field(description="Exit code; negative is the signal that ended it; None when it never started.")
    reason: Reason
    detail: str | None = Field(None, description="A sentence for people: what ended it.")
    words: LastWords | None = Field(None, description="Of an attempt that failed; None where nothing was said.")
    killed: tuple[int, ...] = Field((), description="Descendants that had to be killed.")
    disk_full: bool = Field(False, description="Whether it failed because a disk had no room.")
    code: dict[str, str] = Field(
        default_factory=dict, description="SHA-256 of each file of code or configuration that the command names."
    )
    bundle: tuple[PathBelow, ...] = Field(
        (), description="Evidence saved before it was stopped, relative to the run folder."
    )


class Outcome(Frozen):
    """All attempts of a run, in order; the last one decides."""

    run: str
    attempts: tuple[Attempt, ...] = Field(min_length=1)

    @property
    def last(self) -> Attempt:
        """The attempt that decides."""
        return self.attempts[-1]

    @property
    def rc(self) -> int | None:
        """Exit code of the last attempt."""
        return self.last.rc

    @property
    def reason(self) -> Reason:
        """Why the last attempt ended."""
        return self.last.reason

    @property
    def ok(self) -> bool:
        """Whether it ended by itself with exit code 0, or was ended as the runbook asks."""
        return self.exited_well or self.last.reason == "at_steps"

    @property
    def exited_well(self) -> bool:
        """Whether it ended by itself with exit code 0, and closed its files."""
        return self.last.reason == "exited" and self.last.rc == 0

    @property
    def cut(self) -> bool:
        """Whether the machine ended it, or a node: what it did not reach says nothing of the trainer."""
        return self.last.reason in ("infrastructure", "node_lost")

    @property
    def duration_s(self) -> float:
        """Duration of the last attempt in seconds."""
        return self.last.duration_s


PhaseState = Literal["pending", "running", "done", "skipped", "not_run", "interrupted"]
"""`skipped` by the user (`--only`, `--skip`), `not_run` because a phase that it needs did not pass."""


@dataclass(frozen=True)
class RunRecord:
    """One run: its plan, how it ended (None while it runs) and what was read (None before it ran)."""

    spec: RunSpec
    outcome: Outcome | None
    result: Result | None

    @property
    def evidence(self) -> RunEvidence:
        """What was read besides series and scalars; empty before it ran."""
        return RunEvidence() if self.result is None else self.result.evidence


@dataclass(frozen=True)
class Tried:
    """An attempt at a phase that does not decide it: as declared (`remedy` None), which failed, or with a remedy."""

    remedy: Remedy | None
    runs: tuple[RunRecord, ...]


@dataclass(frozen=True)
class PhaseRecord:
    """One phase. `reason` says why it is skipped or was not run; `checks` are preflight's.

    `runs` are those that decide: as declared, or of `remedy`, one that leaves the declared config as it is and after
    which the phase passed. `tried` are the other attempts at the phase, in order.
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
        """The runs that decide, then those of the other attempts."""
        return (*self.runs, *(run for attempt in self.tried for run in attempt.runs))

    @property
    def measured(self) -> tuple[RunRecord, ...]:
        """The runs that decide the phase: no data-loader smoke test, and no run that only leaves evidence."""
        return tuple(run for run in self.runs if run.spec.role == "measure")


@dataclass(frozen=True)
class ValidationRecord:
    """A whole validation, finished or in progress. `environment` is the snapshot of the machine, `last_go` the report
    of the last GO of this runbook on this class of machine when this validation began; None if there was none.
    `written_steps` are those in the runbook's file of each phase whose steps were changed for this validation.
    `of_command`: the runbook was made for a bare command, and no file of it is the user's.
    """

    runbook: Runbook
    phases: tuple[PhaseRecord, ...]
    environment: Mapping[str, Any] = field(default_factory=dict)
    last_go: ValidationReport | None = None
    written_steps: Mapping[str, int] = field(default_factory=dict)
    of_command: bool = False

    def phase(self, phase_id: str) -> PhaseRecord:
        """The record of that phase; KeyError if there is none."""
        for record in self.phases:
            if record.phase.id == phase_id:
                return record
        raise KeyError(phase_id)
