"""Telling people and programs how a night ended: Apprise for webhooks, chat and mail; a command for all else.

An address is a secret: whoever has it may write there. Libraries and commands repeat it when they fail, so what is said
of a sending goes through a mask that knows every address of the job.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import threading
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from validator.nightly.settings import Nightly, NightlyError
from validator.observe.masking import Mask, known_secrets

__all__ = ["Told", "notify", "require_apprise"]

_SEND_S = 60
_COMMAND_S = 120
_COMPLAINT_CHARS = 300
_LEAST_CHARS = 6
"""Shorter parts of an address are words such as `hook`, and would be found in others."""

_ADDRESS = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<rest>[^\s'\"]+)")
_WITH_HOST = re.compile(r"(https?|jsons?|xmls?|forms?|mailtos?)", re.I)
"""Addresses that name a host; where others do, apprise expects a token."""

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
    mask = _mask(job)
    for number, url in enumerate(job.notify, start=1):
        yield f"address {number} ({url.partition('://')[0]}): {_send(url, told, mask)}"
    if job.command:
        yield f"command: {_command(job.command, told, mask, cwd=job.cwd)}"


def _mask(job: Nightly) -> Mask:
    """What knows the secrets of a job's addresses, of its command, and of the environment that both have."""
    command = job.command or ""
    try:
        words = shlex.split(command)
    except ValueError:  # a quote that the shell may understand, or complain of itself
        words = command.split()
    return Mask({*known_secrets(os.environ, words), *_parts((*job.notify, command))})


def _parts(texts: Iterable[str]) -> Iterator[str]:
    """What stands in addresses beside scheme and host: as a whole and each part, as it is and unquoted."""
    for match in (match for text in texts for match in _ADDRESS.finditer(text)):
        before, slash, after = match["rest"].partition("/")
        user, _, host = before.rpartition("@")
        rest = [user, after] if _WITH_HOST.fullmatch(match["scheme"]) else [user, host, slash and after]
        for text in rest:
            for part in (text, *re.split(r"[/?&=#:+;,]", text)):
                yield from (one for one in {part, unquote(part)} if len(one) >= _LEAST_CHARS)


def _send(url: str, told: Told, mask: Mask) -> str:
    """How the sending went. Libraries limit each read, not the whole: an answer of a byte a second has no end."""
    answers: list[str] = []
    # A daemon does not keep the process from ending.
    sending = threading.Thread(target=lambda: answers.append(_sent(url, told, mask)), daemon=True)
    sending.start()
    sending.join(_SEND_S)
    return answers[0] if answers else f"was given up after {_SEND_S} s"


def _sent(url: str, told: Told, mask: Mask) -> str:
    try:
        with _apprise() as apprise:
            sender = apprise.Apprise()
            sender.add(url)
            kind = apprise.NotifyType(_TYPES.get(told.decision, "failure"))
            sent = sender.notify(title=told.title, body=told.body, notify_type=kind)
    except Exception as error:  # noqa: BLE001 -- the other addresses are still to be told
        return f"failed: {mask.sentence(f'{type(error).__name__}: {error}')[-_COMPLAINT_CHARS:]}"
    return "sent" if sent else "could not be reached"


def _command(command: str, told: Told, mask: Mask, *, cwd: str) -> str:
    """Start the user's command in the job's folder, with the decision in its environment."""
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
            cwd=cwd,
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
    if done.returncode == 0:
        return "ended well"
    # Cut last: half of a secret is known to nobody any more.
    return f"ended with {done.returncode}: {mask.sentence(done.stderr.strip())[-_COMPLAINT_CHARS:]}"
