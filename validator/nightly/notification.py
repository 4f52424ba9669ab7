"""Notifications of how a start ended: Apprise for webhooks, chat and mail; a command for everything else.

What an address or the command did not take waits in the job's state folder, and is sent again by the next starts.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import subprocess
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from validator.files import Tree, replace_file
from validator.nightly.settings import Nightly, NightlyError, NightlyRun
from validator.secrets.masking import Mask, known_secrets

WAITING = "undelivered.json"
_WAITING_KEPT = 30

_SEND_S = 60
_COMMAND_S = 120
_COMPLAINT_CHARS = 300
_MIN_CHARS = 6
"""Shorter parts of an address are words such as `hook`, and would be found in others."""

_ADDRESS = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<rest>[^\s'\"]+)")
_WITH_HOST = re.compile(r"(https?|jsons?|xmls?|forms?|mailtos?)", re.I)
"""Addresses that name a host; where others do, apprise expects a token."""

_TYPES = {"GO": "success", "NO_GO": "failure", "INCONCLUSIVE": "warning"}


@dataclass(frozen=True)
class Notification:
    """What is reported of one start: how it ended, and a sentence for each metric that got worse.

    `delivered` are the checksums of the addresses that have it. A `late` one is sent by a later start.
    """

    run: NightlyRun
    regressions: tuple[str, ...]
    delivered: tuple[str, ...] = ()
    late: bool = False

    @property
    def report(self) -> str:
        """Where to read on: the report, or the log of a start that made none."""
        return f"{self.run.folder}/report.html" if self.run.folder else self.run.log

    @property
    def title(self) -> str:
        """`NO-GO (was GO): nightly ddp`."""
        run = self.run
        was = f" (was {_decision_text(run.before)})" if run.before not in (None, run.decision) else ""
        of = f", of {self.moment}" if self.late else ""
        return f"{self.decision}{was}: nightly {run.name}{of}"

    @property
    def decision(self) -> str:
        """The decision in words: `NO-GO`."""
        return _decision_text(self.run.decision)

    @property
    def moment(self) -> str:
        """When the start began: `2026-01-02 03:04:05 UTC`."""
        return self.run.started.replace("T", " ").replace("+00:00", " UTC")

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


def waiting_notifications(job: Nightly) -> tuple[Notification, ...]:
    """What has not reached every address yet, the oldest first."""
    try:
        with Tree(Path(job.state)) as tree:
            return tuple(
                Notification(NightlyRun(**one["run"]), tuple(one["regressions"]), tuple(one["delivered"]))
                for one in tree.json(WAITING)
            )
    except (OSError, ValueError, TypeError, KeyError):
        return ()


def deliver(job: Nightly, new: Sequence[Notification], *, started: str) -> Iterator[str]:
    """Send what earlier starts could not deliver and then `new`, the oldest first; a line for each attempt.

    What is not delivered waits for the next start. An address that fails gets no more of what waits, only the newest.

    Args:
        started: when the start that sends them began; those of other starts are marked as late.
    """
    waiting = [*waiting_notifications(job), *new][-_WAITING_KEPT:]
    if not waiting:
        return
    mask, targets, failed = _mask(job), _targets(job), set[str]()
    newest = waiting[-1]
    yield from keep(job, waiting)  # before the first is sent: sending may take minutes, and be killed
    for one in tuple(waiting):
        shown, delivered = replace(one, late=one.run.started != started), set(one.delivered)
        for name, (label, send) in targets.items():
            if name in delivered or (name in failed and one is not newest):
                continue
            good, how = send(shown, mask)
            yield f"{label}: {how}" + (f" (of {shown.moment})" if shown.late else "")
            (delivered if good else failed).add(name)
        at = next(index for index, other in enumerate(waiting) if other.run == one.run)
        waiting[at : at + 1] = [] if delivered >= set(targets) else [replace(one, delivered=tuple(sorted(delivered)))]
        yield from keep(job, waiting)


def keep(job: Nightly, waiting: Sequence[Notification]) -> tuple[str, ...]:
    """Write what waits; where that fails, a line that says so, for it is sent nevertheless."""
    stored = [{"run": asdict(one.run), "regressions": one.regressions, "delivered": one.delivered} for one in waiting]
    path = Path(job.state) / WAITING
    try:
        if stored or path.exists():
            replace_file(path, json.dumps(stored), mode=0o600)
    except OSError as error:
        return (f"what is not delivered cannot be kept for the next start: {error.strerror or error}",)
    return ()


_Send = Callable[[Notification, Mask], tuple[bool, str]]


def _targets(job: Nightly) -> dict[str, tuple[str, _Send]]:
    """The label and the sending of each address and of the command, by checksum: addresses are secrets."""
    found: dict[str, tuple[str, _Send]] = {}
    if job.notify_on == "never":
        return found
    for number, url in enumerate(job.notify, start=1):
        label = f"address {number} ({url.partition('://')[0]})"
        found[_checksum(url)] = label, partial(_sending_result, url)
    if job.command:
        found[_checksum(job.command)] = "command", partial(_command_result, job.command, job.cwd)
    return found


def _checksum(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


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


def _sending_result(url: str, notification: Notification, mask: Mask) -> tuple[bool, str]:
    """How the sending went. Libraries limit each read, not the whole: an answer of a byte a second has no end."""
    answers: list[tuple[bool, str]] = []
    # A daemon does not keep the process from ending.
    sending = threading.Thread(target=lambda: answers.append(_send_now(url, notification, mask)), daemon=True)
    sending.start()
    sending.join(_SEND_S)
    return answers[0] if answers else (False, f"was given up after {_SEND_S} s")


def _send_now(url: str, notification: Notification, mask: Mask) -> tuple[bool, str]:
    try:
        with _apprise() as apprise:
            sender = apprise.Apprise()
            sender.add(url)
            kind = apprise.NotifyType(_TYPES.get(notification.run.decision, "failure"))
            sent = sender.notify(title=notification.title, body=notification.body, notify_type=kind)
    except Exception as error:  # noqa: BLE001 -- the other addresses still get theirs
        return False, f"failed: {mask.sentence(f'{type(error).__name__}: {error}')[-_COMPLAINT_CHARS:]}"
    return (True, "sent") if sent else (False, "could not be reached")


def _command_result(command: str, cwd: str, notification: Notification, mask: Mask) -> tuple[bool, str]:
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
        "VALIDATOR_STARTED": run.started,
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
        return False, f"was ended after {_COMMAND_S} s"
    if done.returncode == 0:
        return True, "ended well"
    # Cut last: half of a secret is not recognized any more.
    return False, f"ended with {done.returncode}: {mask.sentence(done.stderr.strip())[-_COMPLAINT_CHARS:]}"
