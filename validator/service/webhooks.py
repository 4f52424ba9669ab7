"""Webhooks: each decision is posted, signed, to the addresses that the operator named when the service was started.

What an address has is in a file of its own beside the index, written after the answer: a service that is killed sends
again what it may not have sent. An address that is new gets what is decided from then on. Each has a thread of its own,
so that none waits for another one, and no page for any.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import HTTPRedirectHandler, Request, build_opener

from validator.errors import UserError
from validator.files import Tree
from validator.history.read import HistoryEntry
from validator.pipeline.push import is_http
from validator.runs.pushed import was_pushed
from validator.secrets.private import private_text
from validator.service.index import RunFilter, RunIndex
from validator.text import one_line
from validator.times import iso_now, unix_seconds

_LEAST_SECRET = 16
_LOOK_S = 2.0
_LONGEST_S = 300.0
"""Longest wait between two tries; each is twice the one before."""

_TIMEOUT_S = 10.0
_MAX_AGE_S = 7 * 86400.0
"""A decision that is older is not sent any more: an address that was gone for long must not get all of the past."""

_LATEST = 1000
"""Decisions that are looked at, the latest: no address is owed more, and twice as many are remembered of each."""


def read_secret(path: Path | None) -> bytes:
    """The key of the signatures: the first line of a file that its owner alone can read.

    Raises:
        UserError: when there is none, it is short, or others may read the file.
    """
    secret = b"" if path is None else private_text(path, "--webhook-secret").partition("\n")[0].strip().encode()
    if len(secret) < _LEAST_SECRET:
        give = f"give --webhook-secret FILE with at least {_LEAST_SECRET} characters in its first line"
        raise UserError(f"--webhook needs a secret to sign with, and there are {len(secret)} characters; {give}")
    return secret


class _NoRedirect(HTTPRedirectHandler):
    """A redirect would lead the decision to where the operator did not say."""

    def redirect_request(self, *_: Any) -> None:
        """None makes it an error with the answer's code."""


class Webhook:
    """Sends the decisions of an index to one address, from `start` on, in a thread that ends with the process.

    Neither the name of its file nor the log has the address itself, which may be a secret.

    Args:
        url: the operator's address.
        address: where readers reach the service, without a last stroke; for links.

    Raises:
        UserError: when the address is none of HTTP.
    """

    def __init__(self, url: str, secret: bytes, index: RunIndex, *, address: str) -> None:
        if not (is_http(url) and url.isascii()):
            shown = one_line(url.partition("?")[0], limit=60)
            raise UserError(f"--webhook {shown}: give an address that begins with https://, without a user")
        self._url, self._secret, self._index, self._address = url, secret, index, address
        self._path = index.path.with_suffix(f".webhook.{hashlib.sha256(url.encode()).hexdigest()[:16]}.json")
        self._sent: dict[str, str] = {}  # the decision of each run folder, what was sent last at the end
        self._version: tuple[int, int] | None = None
        self._post = build_opener(_NoRedirect).open
        self.ended = threading.Event()  # set, no more is sent; what is under way may still arrive

    def start(self) -> None:
        """Begin to send; an address that is new gets nothing of the past.

        Raises:
            UserError: when what was delivered cannot be read or written.
        """
        try:
            if self._path.exists():
                with Tree(self._path.parent) as tree:
                    self._sent = dict(tree.json(self._path.name))
            else:
                self._note({one.folder: _what(one) for one in self._due()})
        except (OSError, ValueError, TypeError) as error:
            raise UserError(f"--webhook: {self._path} cannot be used: {error}; without it no past is sent") from error
        threading.Thread(target=self._serve, name="webhook", daemon=True).start()

    def _serve(self) -> None:
        failures = 0
        while not self.ended.wait(min(_LONGEST_S, _LOOK_S * 2 ** min(failures, 10))):
            failed = ""
            try:
                for entry in self._due():
                    try:
                        self._send(entry)
                    except HTTPError as error:  # of this one; the next may be taken
                        failed = f"HTTP {error.code} to the decision of {entry.folder}"
            except Exception as error:  # noqa: BLE001 -- a receiver, a disk or the index: tried again later
                failed = f"{type(error).__name__}: {error}"
            failures = failures + 1 if failed else 0
            if failures == 1:
                place = "/".join(self._url.split("/")[:3])
                text = one_line(f"{place}: {failed}; it is tried again", limit=400)
                sys.stderr.write(f"{iso_now('seconds')} webhook {text}\n")

    def _due(self) -> list[HistoryEntry]:
        """The decisions that the address does not have, the oldest first."""
        version, oldest = self._index.version(), time.time() - _MAX_AGE_S
        found = self._index.find(RunFilter(), limit=_LATEST)[0] if version != self._version else ()
        decided = [one for one in reversed(found) if one.decided]
        recent = [one for one in decided if (unix_seconds(one.finished) or oldest) >= oldest]
        due = [one for one in recent if self._sent.get(one.folder) != _what(one)]
        self._version = None if due else version
        return due

    def _send(self, entry: HistoryEntry) -> None:
        named = ("runbook", "machine", "host", "branch", "decision", "why", "started", "finished")
        message = {
            "event": "decision",
            "run": entry.folder,
            **{name: one_line(getattr(entry, name) or "", limit=300) for name in named},
            "link": f"{self._address}/runs/{quote(entry.folder, safe='')}/",
            "pushed": was_pushed(self._index.reports / entry.folder),
        }
        body, timestamp, what = json.dumps(message).encode(), str(int(time.time())), _what(entry)
        signed = hmac.new(self._secret, timestamp.encode() + b"." + body, hashlib.sha256)
        headers = {
            "Content-Type": "application/json",
            "X-Validator-Delivery": hashlib.sha256(f"{entry.folder}\n{what}".encode()).hexdigest()[:32],
            "X-Validator-Timestamp": timestamp,
            "X-Validator-Signature": f"sha256={signed.hexdigest()}",
        }
        self._post(Request(self._url, body, headers), timeout=_TIMEOUT_S).close()
        self._note({entry.folder: what})

    def _note(self, sent: Mapping[str, str]) -> None:
        """Remember what the address has, here and in the file."""
        before = [one for one in self._sent.items() if one[0] not in sent]
        self._sent = dict([*before, *sent.items()][-2 * _LATEST :])
        with Tree(self._path.parent) as tree:
            tree.write(self._path.name, json.dumps(self._sent))


def _what(entry: HistoryEntry) -> str:
    """What is new of a run that ended again: judging it again alone changes its decision at most."""
    return f"{entry.decision} {entry.finished}"
