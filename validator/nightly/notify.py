"""Telling people and programs how a night ended: Apprise for webhooks, chat and mail; a command for all else."""

from __future__ import annotations

import os
import subprocess
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from validator.nightly.settings import Nightly, NightlyError

__all__ = ["Told", "notify", "require_apprise"]

_COMMAND_S = 120

_TYPES = {"GO": "success", "NO_GO": "failure", "INCONCLUSIVE": "warning"}


@dataclass(frozen=True)
class Told:
    """What there is to tell."""

    name: str
    decision: str
    before: str | None
    why: str
    report: str
    regressions: tuple[str, ...]
    exit_code: int

    @property
    def title(self) -> str:
        """`NO-GO (was GO): nightly ddp`."""
        was = f" (was {_word(self.before)})" if self.before not in (None, self.decision) else ""
        return f"{_word(self.decision)}{was}: nightly {self.name}"

    @property
    def body(self) -> str:
        """Why, what got worse, and where to read on."""
        worse = [f"Worse than before: {sentence}" for sentence in self.regressions]
        return "\n".join([self.why, *worse, f"Report: {self.report}"])


def _word(decision: str | None) -> str:
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


def notify(job: Nightly, told: Told) -> Iterator[str]:
    """Send to every address and start the command; a line for each that says how it went."""
    for number, url in enumerate(job.notify, start=1):
        yield f"address {number} ({url.partition('://')[0]}): {_send(url, told)}"
    if job.command:
        yield f"command: {_command(job.command, told)}"


def _send(url: str, told: Told) -> str:
    with _apprise() as apprise:
        sender = apprise.Apprise()
        sender.add(url)
        kind = apprise.NotifyType(_TYPES.get(told.decision, "failure"))
        return "sent" if sender.notify(title=told.title, body=told.body, notify_type=kind) else "could not be reached"


def _command(command: str, told: Told) -> str:
    """Start the user's command with the decision in its environment."""
    environment = {
        **os.environ,
        "VALIDATOR_NAME": told.name,
        "VALIDATOR_DECISION": told.decision,
        "VALIDATOR_DECISION_BEFORE": told.before or "",
        "VALIDATOR_EXIT_CODE": str(told.exit_code),
        "VALIDATOR_WHY": told.why,
        "VALIDATOR_REPORT": told.report,
    }
    try:
        done = subprocess.run(
            command,
            shell=True,  # the user's own line, as in a crontab
            env=environment,
            input=f"{told.title}\n{told.body}\n",
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            timeout=_COMMAND_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"was ended after {_COMMAND_S} s"
    return "ended well" if done.returncode == 0 else f"ended with {done.returncode}: {done.stderr.strip()[-300:]}"
