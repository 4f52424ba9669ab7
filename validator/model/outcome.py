"""How a run ended, as the supervisor saw it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from validator.model.base import Frozen, PathBelow

__all__ = ["Attempt", "Outcome", "Reason"]

Reason = Literal["exited", "timeout", "stalled", "halted", "interrupted", "infrastructure"]
"""How an attempt ended.

`exited` by itself, with any code; `timeout` past its budget; `stalled` without progress or activity; `halted` by the
watchdog for an anomaly; `interrupted` by the user; `infrastructure` when it could not be started or the machine failed.
"""


class Attempt(Frozen):
    """One start of a run's process tree."""

    number: int = Field(ge=1)
    command: tuple[str, ...]
    pid: int | None
    started: str = Field(description="UTC, ISO 8601.")
    duration_s: float = Field(description="By the monotonic clock.")
    rc: int | None = Field(description="Exit code; negative is the signal that ended it; None when it never started.")
    reason: Reason
    detail: str | None = Field(None, description="A sentence for people: what ended it.")
    killed: tuple[int, ...] = Field((), description="Descendants that had to be killed.")
    disk_full: bool = Field(False, description="Whether it failed because a disk had no room.")
    code: dict[str, str] = Field(
        default_factory=dict, description="SHA-256 of each file of code or configuration that the command names."
    )
    bundle: tuple[PathBelow, ...] = Field(
        (), description="Evidence saved before it was stopped, relative to the run folder."
    )


class Outcome(Frozen):
    """The last attempt decides; all are kept."""

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
        """Whether it ended by itself with exit code 0."""
        return self.last.reason == "exited" and self.last.rc == 0

    @property
    def duration_s(self) -> float:
        """Duration of the last attempt in seconds."""
        return self.last.duration_s
