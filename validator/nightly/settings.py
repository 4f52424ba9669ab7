"""What a nightly job is: one file of settings per job, written by `install` and read by every start of it.

The file may hold addresses with tokens in them (a webhook is a secret), so only its owner may read it, and none of it
reaches a crontab, a unit file, a log or a report.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError, field_validator

from validator.model.base import Frozen

__all__ = ["DAYS", "Nightly", "NightlyError", "config_dir", "load", "names", "save", "state_dir"]

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,60}")
_TIME = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)")


class NightlyError(ValueError):
    """A job that cannot be as it was asked for; the message names the option, the value and the fix."""


class Nightly(Frozen):
    """One job.

    Paths are absolute, since timers start elsewhere. `environment` is what the shell that installed the job had and a
    timer's does not (PATH above all). `keep_bytes` is the space for all run folders of the runbook together.
    """

    schema_version: Literal[1] = 1
    name: str
    runbook: str
    at: str = Field(description="HH:MM, local time.")
    days: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()
    out: str
    state: str = Field(description="Folder of the job's logs; a timer has another environment, so it is settled here.")
    cwd: str
    python: str
    environment: dict[str, str] = Field(default_factory=dict)
    notify: tuple[str, ...] = Field((), description="Apprise URLs: webhook, Slack, mail and a hundred more.")
    notify_on: Literal["change", "always", "never"] = "change"
    command: str | None = Field(None, description="Shell command that is told the decision in its environment.")
    keep_count: int | None = Field(None, ge=1)
    keep_days: float | None = Field(None, gt=0)
    keep_bytes: int | None = Field(None, gt=0)
    prometheus: str | None = Field(None, description="Textfile for the node exporter.")

    @field_validator("name")
    @classmethod
    def _plain_name(cls, name: str) -> str:
        if not _NAME.fullmatch(name):
            raise ValueError(f"--name {name!r}: use letters, digits, - and _, at most 61")
        return name

    @field_validator("at")
    @classmethod
    def _a_time(cls, at: str) -> str:
        if not _TIME.fullmatch(at):
            raise ValueError(f"--at {at!r} is no time of day; write 02:00")
        hour, minute = at.split(":")
        return f"{int(hour):02d}:{minute}"

    @field_validator("days")
    @classmethod
    def _known_days(cls, days: tuple[str, ...]) -> tuple[str, ...]:
        unknown = [day for day in days if day not in DAYS]
        if unknown:
            raise ValueError(f"--on {unknown[0]!r} is no day; write one or more of {', '.join(DAYS)}")
        return tuple(sorted(set(days), key=DAYS.index))

    @property
    def hour_minute(self) -> tuple[int, int]:
        """Hour and minute of the day."""
        hour, minute = self.at.split(":")
        return int(hour), int(minute)

    @property
    def path(self) -> Path:
        """Where the settings are kept."""
        return config_dir() / f"{self.name}.json"


def config_dir() -> Path:
    """The folder of all jobs' settings."""
    base = os.environ.get("XDG_CONFIG_HOME")
    return (Path(base) if base else Path.home() / ".config") / "validator" / "nightly"


def state_dir() -> Path:
    """The folder of all jobs' logs and of what they ended with."""
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "validator" / "nightly"


def names() -> tuple[str, ...]:
    """Names of all jobs that are installed for this user."""
    return tuple(sorted(path.stem for path in config_dir().glob("*.json")))


def save(job: Nightly) -> Path:
    """Write the settings, readable for their owner alone; returns their path."""
    path = job.path
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.unlink(missing_ok=True)
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(job.model_dump_json(indent=2) + "\n")
    part.replace(path)
    return path


def load(name: str) -> Nightly:
    """The job of that name, or in the file of that path.

    Raises:
        NightlyError: when there is none, or its settings cannot be read.
    """
    path = Path(name) if name.endswith(".json") else config_dir() / f"{name}.json"
    try:
        return Nightly.model_validate_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        known = ", ".join(names()) or "none"
        raise NightlyError(
            f"{name} is no nightly job of this user; installed are: {known}. `validator nightly install` makes one"
        ) from None
    except (OSError, ValidationError) as error:
        raise NightlyError(f"{path} cannot be read ({str(error).splitlines()[0]}); install the job again") from error
