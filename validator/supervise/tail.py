"""The new lines of a file that grows."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

from validator.files import Tree

_LOOK_BYTES = 4 << 20  # per file and look; a larger backlog is caught up with at the next looks
_HEAD_BYTES = 4096


class Tail:
    """The new whole lines of a file that grows. One that is replaced, truncated or rewritten is read from its start.

    Some trainers rewrite a table when a column is added; its first bytes then differ. A carriage return ends a
    line too, since a progress bar may write nothing else, and is kept to mark the text as one that is redrawn.
    """

    def __init__(
        self,
        path: Path,
        *,
        root: Path | None = None,
        skip_to_last_bytes: int | None = None,
        link_roots: Sequence[str] = (),
    ) -> None:
        self.path = path
        self._root = path.parent if root is None else root
        self._name = os.path.relpath(path, self._root)
        self._link_roots = link_roots
        self._offset = 0
        self._inode = -1
        self._rest = b""
        self._head = b""
        self._skip = skip_to_last_bytes
        self.again = False

    @property
    def read_to(self) -> int:
        """Bytes read so far, up to the end of the last whole line."""
        return self._offset - len(self._rest)

    def lines(self) -> list[bytes]:
        """Lines finished since the last call, without their line feeds."""
        return [line for line, _ in self.lines_with_ends()]

    def new_bytes(self) -> tuple[bytes, bool]:
        """What the file grew by since the last call, and whether that begins at its start."""
        data = self._grown()
        return data, self.again

    def lines_with_ends(self, *, newest: int | None = None) -> list[tuple[bytes, int]]:
        """Lines finished since the last call, without their line feeds, and the byte behind each; the `newest` alone.

        A bar begins with the carriage return that ends the one before it, so it is whole without the next one: the byte
        behind it is that return.
        """
        data = self._grown()
        if not data:
            return []
        begin, text = self._offset - len(data) - len(self._rest), self._rest + data
        if newest is not None:
            at = len(text)
            for _ in range(newest + 1):
                at = text.rfind(b"\n", 0, at) if at >= 0 else at
            begin, text = begin + at + 1, text[at + 1 :]
        whole = text.splitlines(keepends=True)
        self._rest = whole.pop() if whole and not whole[-1].endswith((b"\n", b"\r")) else b""
        if len(self._rest) > _LOOK_BYTES:  # a line that never ends must not fill the memory
            self._rest = b""
        ends = accumulate(map(len, whole), initial=begin)
        next(ends)
        return [
            (line[:-1].rstrip(b"\r"), end) if line.endswith(b"\n") else (line, end - 1)
            for line, end in zip(whole, ends, strict=True)
        ]

    def _grown(self) -> bytes:
        """Bytes since the last call; of a file that was written again, from its start."""
        self.again = False
        try:
            stat = os.lstat(self.path)
            if stat.st_ino == self._inode and stat.st_size == self._offset:
                return b""  # most files of a run are not written to between two looks
            with Tree(self._root, link_roots=self._link_roots) as tree, tree.open(self._name) as file:
                fd = file.fileno()
                stat, head = os.fstat(fd), os.pread(fd, _HEAD_BYTES, 0)
                if stat.st_ino != self._inode or stat.st_size < self._offset or not head.startswith(self._head):
                    self.again = self._inode >= 0
                    self._offset, self._inode, self._rest = 0, stat.st_ino, b""
                    self._jump(stat.st_size)
                self._head = head
                data = os.pread(fd, min(_LOOK_BYTES, max(0, stat.st_size - self._offset)), self._offset)
        except OSError:
            return b""
        self._offset += len(data)
        return data

    @property
    def first_line(self) -> bytes:
        """The file's first line, as far as a few thousand bytes go; empty while nothing was read."""
        return self._head.partition(b"\n")[0].rstrip(b"\r")

    def _jump(self, size: int) -> None:
        if self._skip is not None and size > self._skip:
            self._offset = size - self._skip
            self._skip = None
