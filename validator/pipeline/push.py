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
from collections.abc import Callable, Iterable, Iterator, Set
from contextlib import closing, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path, PurePosixPath
from typing import Annotated, NamedTuple, get_args
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, ValidationError, model_validator

from validator.documents import MAX_DEPTH, parse_json
from validator.errors import FolderError, Unable, UserError
from validator.files import Tree, sha256_of
from validator.history.read import PIN, read_entry
from validator.model.units import Frozen
from validator.model.verdict import Decision
from validator.runs.folder import JOURNAL, RunFolder
from validator.runs.pushed import PUSHED
from validator.runs.replay import ending, events_of, last_runner
from validator.secrets.private import private_text
from validator.system.host import is_loopback
from validator.text import clean, format_duration, format_size, one_line
from validator.times import parse_time, utc_now

MAX_FILES = 10_000
MAX_FILE_BYTES = 4 << 30
MAX_BYTES = 16 << 30
_MAX_PATH, _MAX_NAME = 1024, 255
"""Bytes of a path and of each of its parts."""

_MAX_PARSED = 16 << 20
"""Size of what a service reads whole."""

_OWN = frozenset({PIN, PUSHED})
"""Files that belong to the place where a folder lies, not to the run."""

_AHEAD = timedelta(minutes=5)
"""How far the clock of another machine may be ahead."""

_NO_SUM = "0" * 64

CHUNK = 1 << 20
"""Bytes of one request: what proxies take that are not configured, and what is repeated after a break behind them."""

_CHUNK_FILES = 100
"""Files of one request: each of them is synced before it is answered."""

_ANSWER_S = 60.0
_MAX_ANSWER = 64 << 10
_ATTEMPTS = 8
"""Requests without progress before it is given up."""

_PAUSE_S, _MAX_PAUSE_S = 0.5, 30.0
_LIMIT_S = 24 * 3600.0
_REFUSED = (400, 409, 413, 422)
"""Answers to a manifest that another attempt would not change."""


def _plain_path(path: str) -> str:
    parts = path.split("/")
    plain = path.isprintable() and len(path.encode()) <= _MAX_PATH and len(parts) <= MAX_DEPTH
    if not plain or any(part in ("", ".", "..") or len(part.encode()) > _MAX_NAME for part in parts) or path in _OWN:
        raise ValueError(f"the file name {path!r} cannot be pushed; rename the file, or remove it")
    return path


class ManifestFile(Frozen):
    """A regular file below a run folder. The time is part of the evidence: it says which process wrote the file."""

    path: Annotated[str, AfterValidator(_plain_path)]
    bytes: int = Field(ge=0, le=MAX_FILE_BYTES)
    mtime_ns: int = Field(ge=0, lt=2**62)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class Manifest(Frozen):
    """A run folder: its name, which `validator run` made from the time and the host, and its files."""

    run: str = Field(pattern=r"^[0-9]{8}T[0-9]{6}Z-[A-Za-z0-9._-]{1,200}$")
    files: tuple[ManifestFile, ...] = Field(max_length=MAX_FILES)

    @model_validator(mode="after")
    def _can_be_stored(self) -> Manifest:
        sizes = {one.path: one.bytes for one in self.files}
        folders = {str(folder) for path in sizes for folder in PurePosixPath(path).parents}
        if len(sizes) < len(self.files) or not folders.isdisjoint(sizes):
            raise ValueError("a path is there twice")
        for name, least in (("run.json", 1), ("result.json", 1), (JOURNAL, 0)):
            if not least <= sizes.get(name, 0) <= _MAX_PARSED:
                raise ValueError(f"{name} is missing, or larger than {format_size(_MAX_PARSED)}")
        if self.bytes > MAX_BYTES:
            most = format_size(MAX_BYTES)
            raise ValueError(f"the files have more than {most} together; remove checkpoints and traces")
        return self

    @property
    def bytes(self) -> int:
        """Size of all files."""
        return sum(one.bytes for one in self.files)

    @property
    def content(self) -> Set[tuple[str, str]]:
        """The path and checksum of each file."""
        return {(one.path, one.sha256) for one in self.files}


class Receipt(Frozen):
    """How far an upload is: the number of the first file that is not whole, and how many bytes of it are there."""

    run: str
    upload: str = Field(pattern=r"^[0-9a-f]{64}$")
    stored: bool
    file: int = Field(ge=0)
    offset: int = Field(ge=0)


def manifest_of(root: Path, run: str) -> tuple[Manifest, int]:
    """The manifest of a run folder, and how many links and special files it leaves out.

    Raises:
        FolderError: when it holds what cannot be pushed.
        OSError: when a file cannot be read.
    """
    with Tree(root, follow=False) as tree:
        found = [entry for entry in tree.walk() if entry.kind != "folder" and entry.path not in _OWN]
        plain = [(one.path, one.bytes, one.mtime_ns) for one in found if one.kind == "file"]
        try:  # the limits, before everything is read
            listed = (ManifestFile(path=path, bytes=size, mtime_ns=at, sha256=_NO_SUM) for path, size, at in plain)
            made = Manifest(run=run, files=tuple(listed))
        except ValidationError as error:
            raise FolderError(f"{root} cannot be pushed: {first_message(error)}") from None
        return made.model_copy(update={"files": tuple(_summed(tree, made.files))}), len(found) - len(plain)


def _summed(tree: Tree, files: Iterable[ManifestFile]) -> Iterator[ManifestFile]:
    for one in files:
        with tree.open(one.path) as file:
            yield one.model_copy(update={"sha256": sha256_of(file)})


def require_decided(root: Path, run: str) -> None:
    """Make sure that a run folder, which may come from anywhere, is the decided run of that name.

    Raises:
        FolderError: when it is another run's, has no decision, or did not start when its name says. A start in the
            future would be the latest for long, and hide what is decided until then.
    """
    header, entry = None, read_entry(root)
    with suppress(OSError, ValueError), Tree(root) as tree:
        header = tree.json("run.json")
    if entry is None or not isinstance(header, dict) or not header.get("run_id") == entry.run_id == run:
        raise FolderError(f"run.json and result.json are not those of {run}")
    if entry.decision not in get_args(Decision) or entry.decision == "IN_PROGRESS":
        raise FolderError(f"{run} has no decision; bring it to one by: validator run --resume {run}")
    moment = parse_time(entry.started) or utc_now()
    times = f"{moment:%Y%m%dT%H%M%SZ}", f"{moment:%Y-%m-%dT%H:%M:%S}", entry.started  # lists sort by the text
    if times != (run[:16], entry.started[:19], header.get("started")):
        raise FolderError(f"{run} started by its run.json and result.json at another time than by its name")
    if moment - utc_now() > _AHEAD:
        raise FolderError(f"{run} lies in the future of this machine; set the clocks of both")


def first_message(error: ValidationError) -> str:
    """The first thing that is wrong with a manifest: its field, the value and why."""
    first = error.errors()[0]
    place = "".join(f"{part} " for part in first["loc"])
    value = f"{place}{one_line(repr(first['input']), limit=80)}: " if place else ""
    return value + first["msg"].removeprefix("Value error, ")


# The sender.


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
        UserError: when the service does not take this run.
        Unable: when the service cannot be reached, refuses the token, or has no room.
    """
    root, manifest, left_out = _described(root)
    until, best, failures, breaks = time.monotonic() + limit_s, (0, -1), 0, 0
    found: Receipt | None = None
    with closing(to.connection()) as connection:
        while found is None or not found.stored:
            why = "it takes too long"
            try:
                if found is None or found.file >= len(manifest.files):
                    found = _ask(connection, to, "POST", "", manifest.model_dump_json().encode())
                else:
                    place = f"/{found.upload}?file={found.file}&at={found.offset}"
                    found = _ask(connection, to, "PUT", place, _chunk(root, manifest, found))
            except ssl.SSLCertVerificationError as error:
                raise Unable(f"{to.url}: {error.verify_message}; --ca-file names certificates to trust") from error
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                found, why = None, clean(str(error) or type(error).__name__, limit=300)
            failures += 1
            if found is not None and (found.file, found.offset) > best:
                best, failures = (found.file, found.offset), 0
            if failures > _ATTEMPTS or (time.monotonic() > until and not (found and found.stored)):
                raise Unable(f"{to.url} has not got all of {manifest.run}: {why}; the next push continues there")
            if found is None:
                breaks += 1
                pause = min(_MAX_PAUSE_S, _PAUSE_S * 2**failures) * random.uniform(0.5, 1.0)
                say(f"{why}; the next attempt is in {format_duration(pause)}")
                time.sleep(pause)
    return Pushed(manifest.run, len(manifest.files), manifest.bytes, left_out, breaks)


def _described(root: Path) -> tuple[Path, Manifest, int]:
    """The path and manifest of a run that has ended with a decision, as `manifest_of`; raises FolderError."""
    folder = RunFolder.open(root)
    run, events = folder.header.run_id, events_of(folder)
    if last_runner(folder, events).alive():
        raise FolderError(f"{run} is still being run; push it when it has ended")
    if events and ending(events) is None:
        raise FolderError(f"{run} has no decision; bring it to one by: validator run --resume {root}")
    require_decided(folder.root, run)
    return folder.root, *manifest_of(folder.root, run)


def _ask(connection: http.client.HTTPConnection, to: Destination, method: str, place: str, body: bytes) -> Receipt:
    """What the service answers to the manifest, or to a piece of the files; raises as `push` does, or
    HTTPException for what may succeed when it is repeated."""
    headers = {"authorization": f"Bearer {to.token}"} if to.token else {}
    if connection.sock is None:
        connection.connect()
    with suppress(BrokenPipeError, ConnectionResetError):  # it may have answered before it had read all
        connection.request(method, f"{urlsplit(to.url).path}/api/v1/push{place}", body, headers)
    answer = connection.getresponse()
    status, data = answer.status, answer.read(_MAX_ANSWER)
    try:
        if status == 200:
            return Receipt.model_validate_json(data)
        why, spoken = clean(parse_json(data)["error"], limit=500).rstrip("."), True
    except (ValueError, TypeError, KeyError):  # a page, or another program: it has not looked at the token
        why, spoken = f"HTTP {status} {clean(answer.reason, limit=100)}", False
    if status in (401, 403) and spoken:
        why = "it is revoked, or of another service" if status == 401 and to.token else why
        raise Unable(f"{to.url} refuses the token: {why}; give one with the role push")
    if status == 507:
        raise Unable(f"{to.url}: {why}")
    if method == "POST" and status in _REFUSED:
        raise UserError(f"{to.url} does not take this run: {why}")
    if method == "POST" and status < 408:
        raise Unable(f"{to.url} is not a service of validator ({why}); look at the address")
    raise http.client.HTTPException(why)


def _chunk(root: Path, manifest: Manifest, at: Receipt) -> bytes:
    """A piece of the files, from the place where the service needs them."""
    data, offset = b"", at.offset
    with Tree(root) as tree:
        for one in manifest.files[at.file : at.file + _CHUNK_FILES]:
            with tree.open(one.path) as file:
                status = os.fstat(file.fileno())
                if (status.st_size, status.st_mtime_ns) != (one.bytes, one.mtime_ns):
                    raise FolderError(f"{one.path} is being written; push the folder when nothing writes to it")
                file.seek(offset)
                data, offset = data + file.read(CHUNK - len(data)), 0
            if len(data) == CHUNK:
                break
    return data
