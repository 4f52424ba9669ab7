"""Reading a trainer's files with care: in blocks, hashed while read, every oddity noted and none fatal.

Many heartbeat lines or table rows are decoded at a time, by `msgspec`. What a decoder refuses, the caller reads line by
line.
"""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import re
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

from validator.documents import parse_json
from validator.files import Unreadable, open_file, stat_file
from validator.model.logged_names import plain_key
from validator.model.result import Floats, Irregularity, SourceFile

LEAN = ("loss", "compute_time_s", "step_time_s")
"""What is read of every rank; of the lowest one everything is read."""


@dataclass(frozen=True)
class Shape:
    """What the records of a sound block look like: who writes them, and which fields they may have.

    `numbers` hold plain numbers where they are there at all, `others` anything, `single` a value that is neither list
    nor object. A record with a further field is out of shape when `closed`; else that field is passed over.
    """

    rank: int
    pids: tuple[int, ...]
    numbers: tuple[str, ...]
    others: tuple[str, ...] = ()
    single: tuple[str, ...] = ()
    closed: bool = False


def decode_all(block: bytes, count: int) -> list[dict[str, Any]] | None:
    """All records of a block of `count` lines; None unless each is exactly one JSON object."""
    try:
        records = _whole(block)
    except (ValueError, RecursionError):
        return None
    if len(records) != count or not all(type(record) is dict for record in records):
        return None
    return records


def decode_shaped(block: bytes, count: int, shape: Shape) -> list[Any] | None:
    """The records as objects with `ts, step, msg`, `n0, n1, …` (`numbers`, NaN if absent) and `o0, o1, …` (`others`).

    None unless each line is one record of that shape. A number that is `null` is None.
    """
    decoder = _shaped(shape)
    if decoder is None:
        return None
    try:
        if not block.isascii():
            block.decode("utf-8")  # fields that are passed over are not looked at by the decoder
        records: list[Any] = decoder(block)
    except (ValueError, RecursionError):
        return None
    return records if len(records) == count else None


def _whole(block: bytes) -> list[Any]:
    try:
        return _RECORDS.decode_lines(block)
    except ValueError:  # NaN and infinities as bare words are no JSON, and yet what Python's encoder writes
        return list(json.loads(b"[" + b",".join(block.split(b"\n")[:-1]) + b"]"))


_RECORDS, _NUMBERS = msgspec.json.Decoder(), msgspec.json.Decoder(list[float])


@lru_cache(maxsize=4)
def _shaped(shape: Shape) -> Callable[[bytes], list[Any]] | None:
    fields: list[tuple[str, Any] | tuple[str, Any, Any]]
    fields = [("ts", float), ("pid", Literal[shape.pids]), ("rank", Literal[shape.rank]), ("step", int), ("msg", str)]
    names: dict[str, str] = {}
    for letter, keys, kind, absent in (
        ("n", shape.numbers, float | None, float("nan")),
        ("o", shape.others, Any, None),
        ("s", shape.single, str | float | int | bool | None, None),
    ):
        fields += [(f"{letter}{i}", kind, absent) for i in range(len(keys))]
        names |= {f"{letter}{i}": key for i, key in enumerate(keys)}
    try:
        record = msgspec.defstruct("Beat", fields, gc=False, rename=names, forbid_unknown_fields=shape.closed)
    except ValueError:  # a name with a quote or a control character
        return None
    decode: Callable[[bytes], list[Any]] = msgspec.json.Decoder(record).decode_lines
    return decode


def decode_numbers(body: bytes, rows: int, width: int) -> Floats | None:
    """Cells of a block as numbers `[rows, width]`; None where one is no number by JSON's rules (NaN is none).

    Several times as fast as numpy's reader.
    """
    text = np.frombuffer(body, dtype=np.uint8)
    ends = np.flatnonzero((text == ord(",")) | (text == ord("\n")))
    if ends.size != rows * width or not (text[ends[width - 1 :: width]] == ord("\n")).all():
        return None
    try:
        cells = _NUMBERS.decode(b"[" + body[:-1].replace(b"\n", b",") + b"]")
    except ValueError:
        return None
    return np.array(cells, dtype=np.float64).reshape(rows, width)


def load_numbers(body: bytes) -> Floats | None:
    """Cells of a block by numpy's own reader, which knows more ways to write a number; None when one is none."""
    try:
        return np.loadtxt(io.BytesIO(body), delimiter=",", dtype=np.float64, ndmin=2, comments=None, encoding="ascii")
    except (ValueError, OverflowError, UnicodeError):
        return None


BLOCK_BYTES = 2**20
"""What is read at once: little enough to stay in a CPU's cache with what is made of it."""

SMALL_BYTES = 64 * 2**20
LARGEST_BYTES = 4 * 2**30
CLOCK_SLACK_S = 2.0
"""File systems and clocks disagree by up to a second or two; less than this is not evidence of anything."""

_CONTROL = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069]")
_CLEAN_DEPTH = 12
_CLEAN_ITEMS = 20_000


def printable(text: str, *, limit: int = 300) -> str:
    """A trainer's text, safe to show: no control or direction characters, no lone surrogates, at most `limit` long."""
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


def age_before(path: Path, started_s: float | None) -> float | None:
    """Seconds by which a file was last written before `started_s`; None when it was not, or the time is unknown."""
    if started_s is None:
        return None
    try:
        age_s = started_s - stat_file(path).st_mtime
    except OSError:
        return None
    return age_s if age_s > CLOCK_SLACK_S else None


@dataclass
class ReadLog:
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


def read_raw(path: Path, read_log: ReadLog, *, what: str) -> Iterator[tuple[bytes, SourceFile | None]]:
    """The bytes of a file in pieces; with the last one, which is empty, the file as a source.

    Where it cannot be read to its end, an irregularity is noted and no source is given.
    """
    digest = Digest()
    try:
        with open_file(path) as handle:
            if os.fstat(handle.fileno()).st_size > LARGEST_BYTES:
                raise Unreadable(errno.EFBIG, f"it is larger than {LARGEST_BYTES >> 30} GiB, the limit for any file")
            while digest.size <= LARGEST_BYTES and (data := handle.read(BLOCK_BYTES)):
                digest.update(data)
                yield data, None
    except OSError as error:
        read_log.note("unreadable", f"{what} cannot be read: {error.strerror or error}", path)
        return
    yield b"", read_log.add_source(path, sha256=digest.sha256, size=digest.size)


def read_blocks(path: Path, read_log: ReadLog, take: Callable[[bytes, int], int], *, what: str) -> SourceFile | None:
    """Hand a file to `take(block, first_line)` block by block, which returns the line ends in it.

    Returns the file as a source; None, and an irregularity, where it cannot be read to its end.
    """
    digest, line = Digest(), 1
    try:
        for block in blocks(path, digest):
            line += take(block, line)
    except OSError as error:
        read_log.note("unreadable", f"{what} cannot be read: {error.strerror or error}", path)
        return None
    return read_log.add_source(path, sha256=digest.sha256, size=digest.size)


@dataclass
class FaultLog:
    """Flaws of one file by kind: how many there are, and the line and the text of the first one."""

    seen: dict[str, tuple[int, int, str]] = field(default_factory=dict)

    def add(self, kind: str, line: int, sample: str, *, times: int = 1) -> None:
        """Count a flaw; the first of its kind is kept as a sample."""
        count, first, text = self.seen.get(kind, (0, line, sample))
        self.seen[kind] = (count + times, first, text)

    def note(self, read_log: ReadLog, path: Path, meanings: Mapping[str, str], *, ignored: Container[str] = ()) -> None:
        """One irregularity for each kind, but for those `ignored`; `meanings` continue a number of flaws."""
        for kind, (count, first, sample) in self.seen.items():
            if kind not in ignored:
                read_log.note(kind, f"{count} {meanings[kind]}; first: {sample!r}", path, first)


def line_ends(block: bytes) -> int:
    """Number of line ends in a block; on long lines several times as fast as `bytes.count`."""
    return int(np.count_nonzero(np.frombuffer(block, dtype=np.uint8) == 10))


def read_small(path: Path, read_log: ReadLog, *, what: str) -> tuple[bytes, SourceFile] | None:
    """A whole file of moderate size with its source; None, and an irregularity, when that cannot be."""
    digest = Digest()
    try:
        with open_file(path) as file:
            data = file.read(SMALL_BYTES + 1)
        if len(data) > SMALL_BYTES:
            read_log.note("too-large", f"{what} has more than {SMALL_BYTES} bytes; it was not read", path)
            return None
    except OSError as error:
        read_log.note("unreadable", f"{what} cannot be read: {error.strerror or error}", path)
        return None
    digest.update(data)
    return data, read_log.add_source(path, sha256=digest.sha256, size=digest.size)


def _rows_of(columns: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Records of lists of numbers beside each other, as many as that of a loss has; a row is a step where none says."""
    lists = {re.sub("(?i)losses$", "loss", name): one for name, one in columns.items() if isinstance(one, list)}
    rows = next((len(one) for name, one in lists.items() if name.lower().endswith("loss")), 0)
    same = {name: one for name, one in lists.items() if len(one) == rows}
    counted = any(plain_key(name) in ("step", "epoch", "iter", "iteration", "global_step") for name in same)
    own = {} if counted else {"step": range(1, rows + 1)}
    return [dict(zip((*own, *same), row, strict=True)) for row in zip(*own.values(), *same.values(), strict=True)]


def document_lines(text: str) -> Iterator[tuple[int, str]]:
    """The records of one JSON document, as a trainer saves its history, a line each; nothing for any other text."""
    try:
        found: Any = parse_json(text)
    except ValueError:
        return
    if isinstance(found, dict):
        lists = [value for value in found.values() if isinstance(value, list) and value and isinstance(value[0], dict)]
        found = max(lists, key=len, default=[]) or _rows_of(found)
    for number, record in enumerate(found if isinstance(found, list) else [], 1):
        if isinstance(record, dict):
            yield number, json.dumps(record)
