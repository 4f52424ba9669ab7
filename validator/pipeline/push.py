"""Run folders handed in to a service on another machine, over connections that may break anywhere.

The manifest is sent first. The service answers with the place where it needs more: a file and an offset in it. What is
sent from there may go through several files. After a break the manifest is sent again, and the answer says where to
continue; when all files are there, it says that the run is stored.
"""

from __future__ import annotations

import http.client
import os
import random
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from validator.documents import parse_json
from validator.errors import FolderError, Unable, UserError
from validator.files import Tree
from validator.pipeline.manifest import Manifest, Receipt, decided_run, manifest_of
from validator.runs.folder import RunFolder
from validator.runs.replay import ending, events_of, last_runner
from validator.system.host import is_loopback
from validator.text import clean, format_duration

CHUNK = 1 << 20
"""Bytes of one request: what proxies take that are not configured, and what is repeated after a break behind them."""

_CHUNK_FILES = 100
"""Files of one request: each of them is synced before it is answered."""

_PIECE = 64 << 10
_ANSWER_S = 60.0
_MAX_ANSWER = 64 << 10
_MAX_TOKEN = 4 << 10
_ATTEMPTS = 8
"""Requests without progress before it is given up."""

_PAUSE_S, _MAX_PAUSE_S = 0.5, 30.0
_LIMIT_S = 24 * 3600.0
_REFUSED = (400, 409, 413, 422)
"""Answers to a manifest that another attempt would not change."""


class PushRefused(UserError):
    """The service does not take this run; the message has its reason."""


class _Broken(Exception):
    """A request that failed, and may succeed when it is repeated."""


@dataclass(frozen=True)
class Destination:
    """The service that gets the results. `token` is empty for one that needs none."""

    url: str
    token: str = field(default="", repr=False)
    ca_file: Path | None = None

    @classmethod
    def of(
        cls, url: str, *, token: str = "", token_file: Path | None = None, ca_file: Path | None = None
    ) -> Destination:
        """The service at `url`, with the token in a file or the given one.

        Raises:
            UserError: when the address or the token is none, or a file cannot be read.
        """
        if not is_http(url) or urlsplit(url).query or urlsplit(url).fragment:
            raise UserError("the service's address must be http://HOST:PORT or https://HOST, without a name or a token")
        token = (private_text(token_file, "--token-file") if token_file else token).strip()
        if not (token.isascii() and token.isprintable()):
            raise UserError("the token is not what `validator token add` printed; copy it again")
        made = cls(url.rstrip("/"), token, ca_file)
        made.connection()  # which reads the certificates
        return made

    @property
    def in_the_clear(self) -> bool:
        """Whether those who see the network can read the token."""
        parts = urlsplit(self.url)
        return bool(self.token) and parts.scheme == "http" and not is_loopback(parts.hostname or "")

    def connection(self) -> http.client.HTTPConnection:
        """A connection, which is made when it is first used; raises UserError for certificates that cannot be read."""
        parts = urlsplit(self.url)
        if parts.scheme == "http":
            return http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=_ANSWER_S)
        try:
            context = ssl.create_default_context(cafile=self.ca_file)
        except OSError as error:
            raise UserError(f"--ca-file {self.ca_file} holds no certificates that can be read: {error}") from error
        return http.client.HTTPSConnection(parts.hostname or "", parts.port, timeout=_ANSWER_S, context=context)


def is_http(url: str) -> bool:
    """Whether a text is an address of http or https, with a host and without a user."""
    try:
        parts = urlsplit(url)
        whole = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
    return whole and parts.username is None and url.isprintable() and " " not in url


def private_text(path: Path, option: str, *, limit: int = _MAX_TOKEN) -> str:
    """The text of a file that its owner alone may read, or the group of root where it is root's; links that lead to it
    are followed, for it is the operator's.

    Raises:
        UserError: when others may read it, or it cannot be read; the message begins with the option.
    """
    path = Path(os.path.realpath(path))
    try:
        with Tree(path.parent) as tree:
            found = tree.stat(path.name)
            if found.st_mode & (0o077 if found.st_uid else 0o037) or found.st_uid not in (os.getuid(), 0):
                raise UserError(f"{option} {path} is open to other users; chmod 600 {path}")
            return tree.text(path.name, limit=limit)
    except OSError as error:
        raise UserError(f"{option} {path} cannot be read: {error.strerror}") from error


class Pushed(NamedTuple):
    """A run that a service has. `left_out` counts links and special files, `breaks` failed requests."""

    run: str
    files: int
    bytes: int
    left_out: int
    breaks: int


def push(root: Path, to: Destination, *, say: Callable[[str], None], limit_s: float = _LIMIT_S) -> Pushed:
    """Hand in a run folder, within `limit_s` seconds; `say` gets a sentence for each request that failed.

    Raises:
        FolderError: when it is no run folder, still runs, has no decision, or holds what cannot be pushed.
        PushRefused: when the service does not take this run.
        Unable: when the service cannot be reached, refuses the token, or has no room.
    """
    manifest, left_out = manifest_of(root, _ended_run(root))
    until, best, failures, breaks = time.monotonic() + limit_s, (0, -1), 0, 0
    with closing(_Sending(root, manifest, to)) as sending:
        while True:
            broken = sending.step()
            found = sending.found
            if found is not None and found.stored:
                total = sum(one.bytes for one in manifest.files)
                return Pushed(manifest.run, len(manifest.files), total, left_out, breaks)
            if found is not None and (found.file, found.offset) > best:
                best, failures = (found.file, found.offset), 0
            elif broken or not sending.asked:
                failures += 1
            late = time.monotonic() > until
            why = broken or ("the time is over" if late else "it makes no progress")
            if failures > _ATTEMPTS or late:
                raise Unable(f"{to.url} has not got all of {manifest.run}: {why}; the next push continues there")
            if broken:
                breaks += 1
                pause = min(_MAX_PAUSE_S, _PAUSE_S * 2**failures) * random.uniform(0.5, 1.0)
                say(f"{why}; the next attempt is in {format_duration(pause)}")
                time.sleep(pause)


def _ended_run(root: Path) -> str:
    """The name of a run that has ended with a decision; raises FolderError for another one."""
    folder = RunFolder.open(root)
    run, events = folder.header.run_id, events_of(folder)
    if last_runner(folder, events).alive():
        raise FolderError(f"{run} is still being run; push it when it has ended")
    if events and ending(events) is None:
        raise FolderError(f"{run} has no decision; bring it to one by: validator run --resume {root}")
    return decided_run(root, run).run_id


class _Sending:
    """One run on its way: `found` is what the service said last, `asked` whether the last step was to ask it."""

    def __init__(self, root: Path, manifest: Manifest, to: Destination) -> None:
        self.found: Receipt | None = None
        self.asked = False
        self._root, self._manifest, self._to = root, manifest, to
        self._connection = to.connection()

    def close(self) -> None:
        """Close the connection; the next step opens it again."""
        self._connection.close()

    def step(self) -> str:
        """Send the manifest, or a chunk of the files where the service said that it needs them.

        Returns why it failed, where the next step may not; raises as `push` does.
        """
        files, last = self._manifest.files, self.found
        self.asked, self.found = last is None or last.file >= len(files), None
        try:
            if last is None or self.asked:
                text = self._manifest.model_dump_json().encode()
                self.found = self._ask("POST", "", text, len(text))
            else:
                part = sum(one.bytes for one in files[last.file : last.file + _CHUNK_FILES])
                length = min(CHUNK, part - last.offset)
                path = f"/{last.upload}?file={last.file}&at={last.offset}"
                self.found = self._ask("PUT", path, self._chunk(last, length), length)
        except ssl.SSLCertVerificationError as error:
            raise Unable(f"{self._to.url}: {error.verify_message}; --ca-file names certificates to trust") from error
        except (OSError, http.client.HTTPException, _Broken) as error:
            self.close()
            return clean(str(error) or type(error).__name__, limit=300)
        return ""

    def _ask(self, method: str, path: str, body: bytes | Iterator[bytes], length: int) -> Receipt:
        kind = "application/json" if method == "POST" else "application/octet-stream"
        headers = {"content-type": kind, "content-length": str(length)}
        headers |= {"authorization": f"Bearer {self._to.token}"} if self._to.token else {}
        if self._connection.sock is None:
            self._connection.connect()
        with suppress(BrokenPipeError, ConnectionResetError):  # it may have answered before it had read all
            self._connection.request(method, f"{urlsplit(self._to.url).path}/api/v1/push{path}", body, headers)
        answer = self._connection.getresponse()
        status, data = answer.status, answer.read(_MAX_ANSWER)
        try:
            if status == 200:
                return Receipt.model_validate_json(data)
            why = clean(parse_json(data)["error"], limit=500)
        except (ValueError, TypeError, KeyError):
            why = f"HTTP {status} {clean(answer.reason, limit=100)}"
        raise self._failure(method, status, why)

    def _failure(self, method: str, status: int, why: str) -> Exception:
        if status in (401, 403):
            return Unable(f"{self._to.url} refuses the token: {why}; give one with the role push")
        if status == 507:
            return Unable(f"{self._to.url}: {why}")
        if method == "POST" and status in _REFUSED:
            return PushRefused(f"{self._to.url} does not take {self._manifest.run}: {why}")
        if method == "POST" and status < 408:
            return Unable(f"{self._to.url} is not a service of validator ({why}); look at the address")
        return _Broken(why)

    def _chunk(self, at: Receipt, length: int) -> Iterator[bytes]:
        """So many bytes of the files, from the place where the service needs them."""
        offset = at.offset
        with Tree(self._root) as tree:
            for one in self._manifest.files[at.file :]:
                with tree.open(one.path) as file:
                    status = os.fstat(file.fileno())
                    if (status.st_size, status.st_mtime_ns) != (one.bytes, one.mtime_ns):
                        raise FolderError(f"{one.path} is being written; push the folder when nothing writes to it")
                    file.seek(offset)
                    offset = 0
                    while length and (data := file.read(min(_PIECE, length))):
                        length -= len(data)
                        yield data
                if not length:
                    return
