"""Reading foreign files with care: in blocks, hashed while read, every oddity noted and none fatal."""

from __future__ import annotations

import errno
import hashlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np

from validator.files import Unreadable, open_file, stat_file
from validator.model.measure import Irregularity, SourceFile

__all__ = ["Intake", "age_before", "blocks", "clean", "line_ends", "parse_time_s", "printable", "read_small"]

BLOCK_BYTES = 2**20
"""What is read at once: little enough to stay in a processor's cache with what is made of it."""

SMALL_BYTES = 64 * 2**20
LARGEST_BYTES = 4 * 2**30
CLOCK_SLACK_S = 2.0
"""File systems and clocks disagree by up to a second or two; less than this is not evidence of anything."""

_CONTROL = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069]")
_CLEAN_DEPTH = 12
_CLEAN_ITEMS = 20_000


def printable(text: str, *, limit: int = 300) -> str:
    """Foreign text fit to be shown: no control or direction characters, no lone surrogates, at most `limit` long."""
    shown = _CONTROL.sub("", text[: 4 * limit].replace("\t", " ")).encode("utf-8", "replace").decode("utf-8").strip()
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"


def clean(value: Any, *, depth: int = 0) -> Any:
    """A JSON value with its texts made printable, cut where it is nested or long beyond reason."""
    if isinstance(value, str):
        return printable(value, limit=2000)
    if isinstance(value, dict):
        if depth >= _CLEAN_DEPTH:
            return "…"
        items = list(value.items())[:_CLEAN_ITEMS]
        return {printable(str(k), limit=200): clean(v, depth=depth + 1) for k, v in items}
    if isinstance(value, list):
        return "…" if depth >= _CLEAN_DEPTH else [clean(v, depth=depth + 1) for v in value[:_CLEAN_ITEMS]]
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > 2**63:
        return float(value) if abs(value) < 10**300 else printable(f"{hex(value)[:20]}…")
    return value


def parse_time_s(text: str | None) -> float | None:
    """Unix seconds of an ISO 8601 time; without a zone it is UTC. None when it cannot be read."""
    if not text:
        return None
    try:
        moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)).timestamp()


def age_before(path: Path, started_s: float | None) -> float | None:
    """Seconds by which a file was last written before `started_s`; None when it was not, or nobody can tell."""
    if started_s is None:
        return None
    try:
        age_s = started_s - stat_file(path).st_mtime
    except OSError:
        return None
    return age_s if age_s > CLOCK_SLACK_S else None


@dataclass
class Intake:
    """What has been read for one run so far. `root` is the folder that all paths are relative to."""

    root: Path
    irregularities: list[Irregularity] = field(default_factory=list)
    sources: dict[str, SourceFile] = field(default_factory=dict)

    def name(self, path: Path) -> str:
        """The path as it is written into results: relative to the root, with forward slashes."""
        try:
            return path.relative_to(self.root).as_posix()
        except ValueError:
            return path.name

    def note(self, code: str, message: str, path: Path, line: int | None = None) -> None:
        """Record an irregularity."""
        self.irregularities.append(Irregularity(code, printable(message, limit=500), self.name(path), line))

    def add_source(self, path: Path, *, sha256: str, size: int) -> SourceFile:
        """Record a file that was read to its end."""
        source = SourceFile(path=self.name(path), sha256=sha256, bytes=size)
        self.sources[source.path] = source
        return source


class Digest:
    """Hash and size of what has been read, filled by `blocks`."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self.size = 0

    def update(self, data: bytes) -> None:
        """Take in the next bytes."""
        self._hash.update(data)
        self.size += len(data)

    @property
    def sha256(self) -> str:
        """Hexadecimal digest of everything so far."""
        return self._hash.hexdigest()


def blocks(path: Path, digest: Digest, *, block_bytes: int = BLOCK_BYTES) -> Iterator[bytes]:
    """The file in blocks that end at a line's end, except perhaps the last; a leading byte-order mark is left out.

    A single line longer than a block is cut into blocks, so that memory stays bounded.

    Raises:
        OSError: when the file cannot be opened or read.
    """
    rest, first = b"", True
    with open_file(path) as handle:
        if os.fstat(handle.fileno()).st_size > LARGEST_BYTES:
            raise Unreadable(errno.EFBIG, f"it is larger than {LARGEST_BYTES >> 30} GiB, the limit for any file")
        while data := handle.read(block_bytes):
            digest.update(data)
            if first:
                data, first = data.removeprefix(b"\xef\xbb\xbf"), False
            data = rest + data
            cut = data.rfind(b"\n") + 1
            if not cut and len(data) >= 4 * block_bytes:
                cut = len(data)
            rest = data[cut:]
            if cut:
                yield data[:cut]
    if rest:
        yield rest


def line_ends(block: bytes) -> int:
    """Number of line ends in a block; on long lines several times as fast as `bytes.count`."""
    return int(np.count_nonzero(np.frombuffer(block, dtype=np.uint8) == 10))


def read_small(path: Path, intake: Intake, *, what: str) -> tuple[bytes, SourceFile] | None:
    """A whole file of moderate size with its source; None, and an irregularity, when that cannot be."""
    digest = Digest()
    try:
        with open_file(path) as file:
            data = file.read(SMALL_BYTES + 1)
        if len(data) > SMALL_BYTES:
            intake.note("too-large", f"{what} has more than {SMALL_BYTES} bytes; it was not read", path)
            return None
    except OSError as error:
        intake.note("unreadable", f"{what} cannot be read: {error.strerror or error}", path)
        return None
    digest.update(data)
    return data, intake.add_source(path, sha256=digest.sha256, size=digest.size)
