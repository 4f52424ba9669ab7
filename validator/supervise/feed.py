"""This run's part of a log that the trainer writes outside its output folder, copied into it while it grows.

Lines that were there before are of earlier runs. A file that is renamed while it is written is read to its end, and
then the one that has its name.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from validator.files import Tree
from validator.model.metrics import FED_LOGS

_MAX_FILES = 64
_PIECE = 4 << 20


@dataclass
class _Source:
    """A log that is held open, read up to the byte `at`, and its copy, which has `copied` bytes."""

    fd: int
    inode: int
    at: int
    copy: str
    copied: int = 0


@dataclass
class LogFeed:
    """Copies what is added to the files of `pattern`, an absolute path that may have `*`, to below `out / logs`.

    Files count from the bytes that they have when the feed is made; those that come later from their start. Without a
    pattern it copies those that are given to `hold`.
    """

    pattern: str | None
    out: Path
    _sources: dict[str, _Source] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for path in self._files():
            self.hold(path, at=None)

    def hold(self, path: str, *, at: int | None = 0) -> None:
        """Follow a file from the byte `at` on, or from its end for None. One that is held already stays as it is."""
        if path in self._sources or len(self._sources) >= _MAX_FILES:
            return
        with suppress(OSError):
            fd = _opened(path)
            found = os.fstat(fd)
            name = Path(path).name
            if any(one.copy == name for one in self._sources.values()):
                name = f"{len(self._sources)}-{name}"
            self._sources[path] = _Source(fd, found.st_ino, found.st_size if at is None else at, name)

    def take(self) -> None:
        """Copy what is new."""
        for path in self._files():
            with suppress(OSError):  # gone since it was listed
                if path not in self._sources and os.lstat(path).st_ino not in self._inodes:
                    self.hold(path)
        for path, source in self._sources.items():
            self._copy(source)
            with suppress(OSError):
                if os.lstat(path).st_ino != source.inode:  # renamed by its handler
                    self._reopen(path, source)
                    self._copy(source)

    def close(self) -> None:
        """Hold no file any more."""
        for source in self._sources.values():
            os.close(source.fd)
        self._sources.clear()

    @property
    def paths(self) -> Iterable[Path]:
        """The files that are held."""
        return map(Path, self._sources)

    @property
    def _inodes(self) -> set[int]:
        return {source.inode for source in self._sources.values()}

    def _files(self) -> list[str]:
        pattern = (self.pattern or "").replace("[", "[[]")
        return sorted(glob.glob(pattern, recursive=True))[:_MAX_FILES]  # noqa: PTH207 - it is absolute

    def _copy(self, source: _Source) -> None:
        if os.fstat(source.fd).st_size < source.at:  # truncated
            source.at = 0
        with suppress(OSError), Tree(self.out) as tree:  # what could not be written is tried again at the next look
            while data := os.pread(source.fd, _PIECE, source.at):
                tree.write_at(f"{FED_LOGS}/{source.copy}", data, source.copied)
                source.at += len(data)
                source.copied += len(data)

    @staticmethod
    def _reopen(path: str, source: _Source) -> None:
        fd = _opened(path)
        os.close(source.fd)
        source.fd, source.inode, source.at = fd, os.fstat(fd).st_ino, 0


def _opened(path: str) -> int:
    """A descriptor of a regular file, which stays that file when it is renamed."""
    with Tree(Path(path).parent) as tree, tree.open(Path(path).name) as file:
        return os.dup(file.fileno())
