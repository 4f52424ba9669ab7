"""Logs on disk with a cap: the head and the tail of every log are kept, the middle of a flood is not.

Programs write to their log files directly, so a line costs them what it costs without a supervisor. While they write,
blocks in the middle of a file that grows too long are given back to the file system (a hole), which disturbs no
writer; after they have ended the file is rewritten as head, one line that says what is missing, and tail.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from validator.files import Tree, open_file, replacing
from validator.model.runbook import TrainerMetrics
from validator.text import format_size

_KEEP_SIZE, _PUNCH_HOLE = 1, 2
_BLOCK = 4096
_COPY = 1 << 20
_LINKED_BYTES = 1 << 30


@dataclass(frozen=True)
class LogCap:
    """How much of a log is kept, in bytes: `head` from its beginning and `tail` from its end."""

    head: int = 16 << 20
    tail: int = 48 << 20

    def __post_init__(self) -> None:
        if self.head < 0 or self.tail <= 0:
            raise ValueError(
                f"log cap of head {self.head} and tail {self.tail} bytes keeps nothing; give positive sizes"
            )

    @property
    def total(self) -> int:
        """Bytes kept of a long log."""
        return self.head + self.tail


def trim_while_written(path: Path, *, cap: LogCap) -> bool:
    """Give the middle of a log that is being written back to the file system. Returns whether there was one.

    The file's size does not change, so that a writer's position stays right. Where the file system knows no holes,
    nothing happens until `compact`.
    """
    with suppress(OSError):
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            size = os.fstat(fd).st_size
            first = -(-cap.head // _BLOCK) * _BLOCK
            last = (size - cap.tail) // _BLOCK * _BLOCK
            if last <= first:
                return False
            return _punch(fd, first, last - first)
        finally:
            os.close(fd)
    return False


def compact(path: Path, *, cap: LogCap) -> int:
    """Rewrite a log that has no writer any more as head, one line about the gap, and tail.

    Head and tail are cut at line ends. Returns the bytes left out; 0 when the log was short enough.
    """
    try:
        size = path.stat().st_size
    except OSError:
        return 0
    if size <= cap.total:
        return 0
    try:
        with open_file(path) as source, replacing(path) as target:
            head = source.read(cap.head).rstrip(b"\0")
            head = head[: head.rfind(b"\n") + 1] or head
            source.seek(size - cap.tail)
            first = source.readline().lstrip(b"\0")
            start = source.tell() if source.tell() < size else size - len(first)
            left_out = start - len(head)
            note = f"\n[… {left_out:,} bytes ({format_size(left_out)}) left out here; head and tail are kept …]\n"
            target.write(head)
            target.write(note.encode())
            source.seek(start)
            while chunk := source.read(_COPY):
                target.write(chunk)
    except OSError:  # a full disk: the log stays as it is
        return 0
    return left_out


def take_in(out: Path, metrics: TrainerMetrics, *, ranks: Iterable[int]) -> None:
    """Replace declared files that are links to below `link_roots` by copies, so that the folder is whole by itself."""
    names = [metrics.csv, metrics.env, metrics.metrics]
    names += [metrics.heartbeat.replace("{rank}", str(rank)) for rank in ranks] if metrics.heartbeat else []
    with suppress(OSError), Tree(out, link_roots=metrics.link_roots) as tree:
        for name in filter(None, names if metrics.link_roots else ()):
            if not (out / name).is_symlink():
                continue
            with suppress(OSError):  # it leads elsewhere, and stays a link, which is said when it is read
                written_ns = (out / name).stat().st_mtime_ns
                tree.write(name, tree.read(name, limit=_LINKED_BYTES))
                os.utime(out / name, ns=(written_ns, written_ns))


def logs_below(folder: Path) -> Iterable[Path]:
    """Every log file below a run's log folder, per-rank ones included; links are not followed."""
    with suppress(OSError), Tree(folder) as tree:
        yield from (
            folder / entry.path for entry in tree.walk() if entry.kind == "file" and entry.path.endswith(".log")
        )


def _punch(fd: int, offset: int, length: int) -> bool:
    try:
        fallocate = ctypes.CDLL(None, use_errno=True).fallocate
    except (OSError, AttributeError):
        return False
    fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    return bool(fallocate(fd, _KEEP_SIZE | _PUNCH_HOLE, offset, length) == 0)


# Takes secrets out of the files of a run that has ended: a program may print, or write down, what it was given.

_PIECE = 4 << 20
_LOOK_AT = 4096
_MAX_BYTES = 256 << 20
"""Larger files are neither logs, which are capped, nor settings; a report quotes none of them."""


def mask_files(folder: Path, *, mask: Callable[[bytes], bytes]) -> tuple[Path, ...]:
    """Apply `mask` to the texts below a folder, whole lines at a time, and to the names of all files in it; returns
    the files whose texts were changed, by their names before.

    Links are not followed. A file that cannot be rewritten, as on a full disk, stays as it is: what it says is cleaned
    again wherever it is quoted.
    """
    changed = tuple(path for path in _texts(folder) if mask_file(path, mask=mask))
    _rename(folder, mask)
    return changed


def _rename(folder: Path, mask: Callable[[bytes], bytes]) -> None:
    """Names are listed in reports, so they must not hold a secret either. Two that become the same are numbered."""
    for root, names in reversed(_folders(folder)):
        for name in names:
            _redirect(Path(root, name), mask)
            clean = os.fsdecode(mask(os.fsencode(name))).replace("/", "_")
            if clean == name:
                continue
            target, number = Path(root, clean), 1
            while os.path.lexists(target):
                number += 1
                target = Path(root, f"{clean}.{number}")
            with suppress(OSError):
                Path(root, name).rename(target)


def _redirect(path: Path, mask: Callable[[bytes], bytes]) -> None:
    """What a link leads to is a text like any other."""
    if not path.is_symlink():
        return
    with suppress(OSError):
        target = os.fsencode(path.readlink())
        if (clean := mask(target)) != target:
            path.unlink()
            path.symlink_to(os.fsdecode(clean))


def mask_file(path: Path, *, mask: Callable[[bytes], bytes]) -> bool:
    """Apply `mask` to a file; it is replaced as a whole, and only when something in it has to change."""
    try:
        with open_file(path) as source:
            blocks, unchanged = _blocks(source.fileno()), 0
            for block in blocks:
                clean = mask(block)
                if clean != block:
                    break
                unchanged += len(block)
            else:
                return False
            # Its age says which run wrote a file, so the times stay.
            with replacing(path, keep_stat=True) as target:
                _copy(path, target, unchanged)
                target.write(clean)
                target.writelines(map(mask, blocks))
    except OSError:
        return False
    return True


def _blocks(fd: int) -> Iterator[bytes]:
    """The file in pieces that end where a line does, but for a line that is longer than a piece."""
    rest = b""
    while chunk := os.read(fd, _PIECE):
        chunk = rest + chunk
        end = chunk.rfind(b"\n") + 1 or (len(chunk) if len(chunk) > 2 * _PIECE else 0)
        rest = chunk[end:]
        if end:
            yield chunk[:end]
    if rest:
        yield rest


def _copy(path: Path, target: BinaryIO, count: int) -> None:
    """The first `count` bytes of a file."""
    with open_file(path) as source:
        while count > 0 and (chunk := source.read(min(count, _PIECE))):
            target.write(chunk)
            count -= len(chunk)


def _folders(folder: Path) -> list[tuple[str, list[str]]]:
    """Every folder from `folder` on, before those within it, with the sorted names in it.

    `os.walk` calls itself for each level, up to Python 3.11, and a trainer may nest folders deeper than that goes.
    """
    found, open_ = list[tuple[str, list[str]]](), [str(folder)]
    while open_:
        root = open_.pop()
        with suppress(OSError), os.scandir(root) as entries:  # gone, or deeper than a path can be
            listed = sorted(entries, key=lambda entry: entry.name)
            found.append((root, [entry.name for entry in listed]))
            open_ += [entry.path for entry in reversed(listed) if entry.is_dir(follow_symlinks=False)]
    return found


def _texts(folder: Path) -> Iterator[Path]:
    """Regular files that begin like a text, or are a log."""
    for root, names in _folders(folder):
        for name in names:
            path = Path(root, name)
            with suppress(OSError):
                if path.is_symlink() or not path.is_file() or not 0 < path.stat().st_size <= _MAX_BYTES:
                    continue
                with open_file(path) as file:
                    is_text = b"\0" not in file.read(_LOOK_AT)
                if is_text or name.endswith(".log"):
                    yield path
