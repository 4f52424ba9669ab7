"""Logs on disk with a cap: the head and the tail of every log are kept, the middle of a flood is not.

Programs write to their log files directly, so a line costs them what it costs without a supervisor. While they write,
blocks in the middle of a file that grows too long are given back to the file system (a hole), which disturbs no
writer; after they have ended the file is rewritten as head, one line that says what is missing, and tail.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from validator.files import Tree, new_file, open_file
from validator.model.runbook import TrainerMetrics
from validator.model.units import format_size

__all__ = ["LogCap", "compact", "take_in", "trim_while_written"]

_KEEP_SIZE, _PUNCH_HOLE = 1, 2
_BLOCK = 4096
_COPY = 1 << 20
_LINKED_BYTES = 1 << 30


class LogCap:
    """How much of a log is kept, in bytes: `head` from its beginning and `tail` from its end."""

    def __init__(self, *, head: int = 16 << 20, tail: int = 48 << 20) -> None:
        if head < 0 or tail <= 0:
            raise ValueError(f"log cap of head {head} and tail {tail} bytes keeps nothing; give positive sizes")
        self.head = head
        self.tail = tail

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
    """Rewrite a log that nobody writes any more as head, one line about the gap, and tail.

    Head and tail are cut at line ends. Returns the bytes left out; 0 when the log was short enough.
    """
    try:
        size = path.stat().st_size
    except OSError:
        return 0
    if size <= cap.total:
        return 0
    part = path.with_name(path.name + ".part")
    try:
        with open_file(path) as source, new_file(part) as target:
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
        part.replace(path)
    except OSError:  # a full disk: the log stays as it is
        with suppress(OSError):
            part.unlink(missing_ok=True)
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
