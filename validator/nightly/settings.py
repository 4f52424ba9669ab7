"""What a nightly job is: one file of settings per job, written by `install` and read by every start of it.

The file may hold addresses with tokens in them (a webhook is a secret), so only its owner may read it, and none of it
reaches a crontab, a unit file, a log or a report.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote

from pydantic import Field, ValidationError, field_validator

from validator.errors import UserError
from validator.files import Tree, replacing, user_folder
from validator.model.units import Frozen, parse_duration, parse_size
from validator.secrets.masking import Mask, known_secrets

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
    notify: tuple[str, ...] = Field((), description="Apprise URLs: webhook, Slack, mail and a hundred more.")
    notify_on: Literal["change", "always", "never"] = "change"
    command: str | None = Field(None, description="Shell command that gets the decision in its environment.")
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
    """`--keep-age 90d` in seconds, `--keep-size 20GiB` in bytes; raises NightlyError for another text."""
    try:
        return parse_duration(text) if option == "--keep-age" else float(parse_size(text))
    except ValueError as error:
        raise NightlyError(f"{option} {text}: {error}") from None


def _first_message(error: Any) -> str:
    """The first message of a pydantic error, without its prefix."""
    found = error.errors()[0]
    message = str(found["msg"]).removeprefix("Value error, ")
    return message if message.startswith("--") else f"--{str(found['loc'][-1]).replace('_', '-')}: {message}"


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


# Notifications of how a start ended: Apprise for webhooks, chat and mail; a command for everything else.

_SEND_S = 60
_COMMAND_S = 120
_COMPLAINT_CHARS = 300
_MIN_CHARS = 6
"""Shorter parts of an address are words such as `hook`, and would be found in others."""

_ADDRESS = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<rest>[^\s'\"]+)")
_WITH_HOST = re.compile(r"(https?|jsons?|xmls?|forms?|mailtos?)", re.I)
"""Addresses that name a host; where others do, apprise expects a token."""

UNSENT = "unsent.json"

_TYPES = {"GO": "success", "NO_GO": "failure", "INCONCLUSIVE": "warning"}


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


def last_ended(job: Nightly) -> NightlyRun | None:
    """How the job's last start ended; None when it has not been started yet."""
    try:
        with Tree(Path(job.state)) as tree:
            return NightlyRun(**tree.json("last.json"))
    except (OSError, ValueError, TypeError):
        return None


def unsent_runs(job: Nightly) -> tuple[str, ...]:
    """Names of the runs that the job's service has not got yet, the oldest first."""
    try:
        with Tree(Path(job.state)) as tree:
            return tuple(map(str, tree.json(UNSENT)))
    except (OSError, ValueError, TypeError):
        return ()


@dataclass(frozen=True)
class Notification:
    """What is reported of one start: how it ended, and a sentence for each metric that got worse."""

    run: NightlyRun
    regressions: tuple[str, ...]

    @property
    def report(self) -> str:
        """Where to read on: the report, or the log of a start that made none."""
        return f"{self.run.folder}/report.html" if self.run.folder else self.run.log

    @property
    def title(self) -> str:
        """`NO-GO (was GO): nightly ddp`."""
        run = self.run
        was = f" (was {_decision_text(run.before)})" if run.before not in (None, run.decision) else ""
        return f"{_decision_text(run.decision)}{was}: nightly {run.name}"

    @property
    def body(self) -> str:
        """Why, what got worse, and where to read on."""
        worse = [f"Worse than before: {sentence}" for sentence in self.regressions]
        return "\n".join([self.run.why, *worse, f"Report: {self.report}"])


def _decision_text(decision: str | None) -> str:
    return (decision or "").replace("_", "-")


@contextmanager
def _apprise() -> Iterator[Any]:
    """The library. Its plugins, loaded at first use, warn of modules of Python's own that they replace."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        import apprise

        yield apprise


def require_apprise(urls: tuple[str, ...]) -> None:
    """Check, when a job is installed, that its notifications can be sent at night.

    Raises:
        NightlyError: when the library is missing, or does not understand an address. The address itself is not shown:
            it may hold a token.
    """
    if not urls:
        return
    try:
        with _apprise() as apprise:
            wrong = next((number for number, url in enumerate(urls, 1) if not apprise.Apprise().add(url)), None)
    except ImportError:
        raise NightlyError(
            "--notify needs the library apprise: pip install 'training-validator[nightly]', or use --notify-command"
        ) from None
    if wrong is not None:
        raise NightlyError(
            f"--notify number {wrong} ({urls[wrong - 1].partition('://')[0]}://…) is no address that apprise "
            "understands; write jsons://host/path for a webhook, slack://…, mailtos://…"
        )


def notify(job: Nightly, notification: Notification) -> Iterator[str]:
    """Send to every address and start the command; a line for each that says how it went."""
    mask = _mask(job)
    for number, url in enumerate(job.notify, start=1):
        yield f"address {number} ({url.partition('://')[0]}): {_sending_result(url, notification, mask)}"
    if job.command:
        yield f"command: {_command_result(job.command, notification, mask, cwd=job.cwd)}"


def _mask(job: Nightly) -> Mask:
    """What knows the secrets of a job's addresses, of its command, and of the environment that both have."""
    command = job.command or ""
    try:
        arguments = shlex.split(command)
    except ValueError:  # a quote that the shell may understand, or complain about itself
        arguments = command.split()
    return Mask({*known_secrets(os.environ, arguments), *_address_parts((*job.notify, command))})


def _address_parts(texts: Iterable[str]) -> Iterator[str]:
    """What addresses hold besides scheme and host: as a whole and each part, as it is and unquoted."""
    for match in (match for text in texts for match in _ADDRESS.finditer(text)):
        before, slash, after = match["rest"].partition("/")
        user, _, host = before.rpartition("@")
        rest = [user, after] if _WITH_HOST.fullmatch(match["scheme"]) else [user, host, slash and after]
        for text in rest:
            for part in (text, *re.split(r"[/?&=#:+;,]", text)):
                yield from (one for one in {part, unquote(part)} if len(one) >= _MIN_CHARS)


def _sending_result(url: str, notification: Notification, mask: Mask) -> str:
    """How the sending went. Libraries limit each read, not the whole: an answer of a byte a second has no end."""
    answers: list[str] = []
    # A daemon does not keep the process from ending.
    sending = threading.Thread(target=lambda: answers.append(_send_now(url, notification, mask)), daemon=True)
    sending.start()
    sending.join(_SEND_S)
    return answers[0] if answers else f"was given up after {_SEND_S} s"


def _send_now(url: str, notification: Notification, mask: Mask) -> str:
    try:
        with _apprise() as apprise:
            sender = apprise.Apprise()
            sender.add(url)
            kind = apprise.NotifyType(_TYPES.get(notification.run.decision, "failure"))
            sent = sender.notify(title=notification.title, body=notification.body, notify_type=kind)
    except Exception as error:  # noqa: BLE001 -- the other addresses still get theirs
        return f"failed: {mask.sentence(f'{type(error).__name__}: {error}')[-_COMPLAINT_CHARS:]}"
    return "sent" if sent else "could not be reached"


def _command_result(command: str, notification: Notification, mask: Mask, *, cwd: str) -> str:
    """Start the user's command in the job's folder, with the decision in its environment."""
    run = notification.run
    environment = {
        **os.environ,
        "VALIDATOR_NAME": run.name,
        "VALIDATOR_DECISION": run.decision,
        "VALIDATOR_DECISION_BEFORE": run.before or "",
        "VALIDATOR_EXIT_CODE": str(run.exit_code),
        "VALIDATOR_WHY": run.why,
        "VALIDATOR_REPORT": notification.report,
    }
    try:
        done = subprocess.run(
            command,
            shell=True,  # the user's own line, as in a crontab
            cwd=cwd,
            env=environment,
            input=f"{notification.title}\n{notification.body}\n",
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            timeout=_COMMAND_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"was ended after {_COMMAND_S} s"
    if done.returncode == 0:
        return "ended well"
    # Cut last: half of a secret is not recognized any more.
    return f"ended with {done.returncode}: {mask.sentence(done.stderr.strip())[-_COMPLAINT_CHARS:]}"
