"""What a nightly job is: one file of settings per job, written by `install` and read by every start of it.

The file may hold addresses with tokens in them (a webhook is a secret), so only its owner may read it, and none of it
reaches a crontab, a unit file, a log or a report.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, field_validator

from validator.errors import ExitCode, FolderError, UserError
from validator.files import Tree, replacing, user_folder
from validator.model.units import Frozen, parse_duration, parse_size
from validator.runs.folder import RunFolder, Runner

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,60}")
_TIME = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)")


CARRIED = ("PATH", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "CUDA_HOME", "HF_HOME", "VIRTUAL_ENV", "LANG")
"""What a timer's environment lacks and a validation may need."""


class NightlyError(UserError):
    """A job that cannot be as it was requested; the message names the option, the value and the fix."""


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
    state: str = Field(description="Folder of the job's logs; a timer has another environment, so it is stored here.")
    cwd: str
    python: str
    environment: dict[str, str] = Field(default_factory=dict)
    lacking: tuple[str, ...] = Field((), description="Variables that the runbook reads, and its nights have not.")
    notify: tuple[str, ...] = Field((), description="Apprise URLs: webhook, Slack, mail and a hundred more.")
    notify_on: Literal["change", "always", "never"] = "change"
    command: str | None = Field(None, description="Shell command that gets the decision in its environment.")
    wait_s: float = Field(6 * 3600.0, ge=0, description="How long a start waits for the machine's locks.")
    keep_count: int | None = Field(None, ge=1)
    keep_days: float | None = Field(None, gt=0)
    keep_bytes: int | None = Field(None, gt=0)
    prometheus: str | None = Field(None, description="Textfile for the node exporter.")
    push: str | None = Field(None, description="Address of a service that gets the runs.")
    push_token_file: str | None = None
    push_ca_file: str | None = None

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

    def next_start(self, *, now: datetime | None = None) -> datetime:
        """The next moment, in local time, at which it is due."""
        moment = now or datetime.now()
        today = moment.replace(hour=self.hour_minute[0], minute=self.hour_minute[1], second=0, microsecond=0)
        days = (today + timedelta(days=ahead) for ahead in range(9))
        return next(day for day in days if day > moment and DAYS[day.weekday()] in (self.days or DAYS))

    @property
    def path(self) -> Path:
        """Where the settings are kept."""
        return config_dir() / f"{self.name}.json"


def config_dir() -> Path:
    """The folder of all jobs' settings."""
    return user_folder("XDG_CONFIG_HOME", ".config") / "validator" / "nightly"


def state_dir() -> Path:
    """The folder of all jobs' logs and of their last results."""
    return user_folder("XDG_STATE_HOME", ".local/state") / "validator" / "nightly"


def names() -> tuple[str, ...]:
    """Names of all jobs that are installed for this user."""
    return tuple(sorted(path.stem for path in config_dir().glob("*.json")))


def new_job(**given: Any) -> Nightly:
    """A job of this working directory, interpreter and environment.

    Raises:
        NightlyError: when a setting cannot be.
    """
    carried = {name: os.environ[name] for name in CARRIED if name in os.environ}
    state = str(state_dir() / given["name"])
    try:
        return Nightly(cwd=str(Path.cwd()), python=sys.executable, environment=carried, state=state, **given)
    except ValidationError as error:
        raise NightlyError(_first_message(error)) from None


def changed_job(job: Nightly, **changes: Any) -> Nightly:
    """A job with other settings; raises NightlyError as `new_job` does."""
    try:
        return Nightly.model_validate({**job.model_dump(), **changes})
    except ValidationError as error:
        raise NightlyError(_first_message(error)) from None


def parsed_limit(option: str, text: str) -> float:
    """`--keep-age 90d`, `--wait 6h` in seconds, `--keep-size 20GiB` in bytes; raises NightlyError for another text."""
    try:
        return float(parse_size(text)) if option == "--keep-size" else parse_duration(text)
    except ValueError as error:
        raise NightlyError(f"{option} {text}: {error}") from None


def _first_message(error: Any) -> str:
    """The first message of a pydantic error, without its prefix."""
    found = error.errors()[0]
    message = str(found["msg"]).removeprefix("Value error, ")
    return message if message.startswith("--") else f"--{str(found['loc'][-1]).replace('_', '-')}: {message}"


def at_the_same_time(job: Nightly) -> Iterator[str]:
    """Names of the other jobs that start at the time of this one, on one of its days."""
    for name in names():
        with suppress(NightlyError):
            other = load(name)
            if name != job.name and other.at == job.at and set(other.days or DAYS) & set(job.days or DAYS):
                yield name


def save(job: Nightly) -> Path:
    """Write the settings, readable for their owner alone; returns their path."""
    path = job.path
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path, mode=0o600) as file:
        file.write(f"{job.model_dump_json(indent=2)}\n".encode())
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


# How its starts ended.

UNSENT = "unsent.json"
BEGUN = "begun.json"
_DECISIONS = ("GO", "NO_GO", "INCONCLUSIVE")


@dataclass(frozen=True)
class NightlyRun:
    """How one start ended. `decision` is UNABLE when there was none; `before` is that of the start before it."""

    name: str
    exit_code: int
    decision: str
    why: str
    started: str
    duration_s: float
    run_id: str | None
    folder: str | None
    log: str
    before: str | None = None


class Begun(Frozen):
    """A start that has begun: written at its beginning, removed when its result is recorded and reported.

    `validation` is the process id of its `validator run`, `waits` who has what it needs of the machine.
    """

    started: str
    log: str
    runner: Runner
    validation: int | None = None
    waits: str = ""


def begun_start(job: Nightly) -> Begun | None:
    """The start that has not ended, or whose end nobody recorded; None where the last one ended."""
    try:
        with Tree(Path(job.state)) as tree:
            return Begun.model_validate(tree.json(BEGUN))
    except (OSError, ValueError):
        return None


def last_ended(job: Nightly, *, alone: bool = False) -> NightlyRun | None:
    """How the job's last start ended; None when it has not been started yet.

    A start that was killed, or ended with its machine, is UNABLE, whatever its run folder says.

    Args:
        alone: the caller holds the job's lock, so that no other start is in progress.
    """
    recorded, begun = None, begun_start(job)
    with suppress(OSError, ValueError, TypeError), Tree(Path(job.state)) as tree:
        recorded = NightlyRun(**tree.json("last.json"))
    if begun is None or (recorded and recorded.started == begun.started) or (begun.runner.alive() and not alone):
        return recorded
    return _unrecorded_start(job, begun, before=None if recorded is None else recorded.decision)


def _unrecorded_start(job: Nightly, begun: Begun, *, before: str | None) -> NightlyRun:
    """A start that nobody recorded the end of, with its run folder where it had made one."""
    folder, validation = _unrecorded_folder(job, begun), ""
    if folder is not None:
        decision = _stored_decision(folder)
        state = f"ended with {decision.replace('_', '-')}" if decision else "has no decision"
        state = "still runs" if folder.header.runner.alive() else state
        validation = f"; its validation {folder.header.run_id} {state}"
    return NightlyRun(
        name=job.name,
        exit_code=int(ExitCode.UNABLE),
        decision=ExitCode.UNABLE.name,
        why=f"the start was interrupted before its result was recorded: killed, or the machine went down{validation}",
        started=begun.started,
        duration_s=0.0,
        run_id=None if folder is None else folder.header.run_id,
        folder=None if folder is None else str(folder.root),
        log=begun.log,
        before=before,
    )


def _stored_decision(folder: RunFolder) -> str:
    """The decision in its result.json; empty where there is none yet."""
    with suppress(OSError, ValueError, KeyError, TypeError), Tree(folder.root) as tree:
        decision = tree.json("result.json")["decision"]
        return decision if decision in _DECISIONS else ""
    return ""


def _unrecorded_folder(job: Nightly, begun: Begun) -> RunFolder | None:
    """The run folder that its validation made."""
    if begun.validation is None:
        return None
    since = begun.started.replace("-", "").replace(":", "")[:15]
    for path in sorted(Path(job.out).glob("[0-9]*Z-*/run.json")):
        with suppress(FolderError):
            folder = RunFolder.open(path.parent)
            if folder.header.run_id >= since and folder.header.runner.pid == begun.validation:
                return folder
    return None


def unsent_runs(job: Nightly) -> tuple[str, ...]:
    """Names of the runs that the job's service has not got yet, the oldest first."""
    try:
        with Tree(Path(job.state)) as tree:
            return tuple(map(str, tree.json(UNSENT)))
    except (OSError, ValueError, TypeError):
        return ()
