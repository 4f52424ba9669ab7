"""The two ends of an agent's line to the head: what is read and written, and the files that are sent where no folder is
shared.
"""

from __future__ import annotations

import json
import os
import select
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from validator.documents import parse_json
from validator.engine.lines import packed
from validator.files import open_file


class Head:
    """The head, at the other end of standard input and output. Nothing here waits for it unless it says so."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._in, self._out = b"", bytearray()
        self._lines: deque[bytes] = deque()
        # Whatever else prints on this process's standard output goes to its standard error.
        self._out_fd = os.dup(1)
        os.dup2(2, 1)
        for fd in (0, self._out_fd):
            os.set_blocking(fd, False)
        self.gone = False
        self.heard = time.monotonic()

    def say(self, what: str, **facts: Any) -> None:
        """Send a line, now or as soon as there is room."""
        line = json.dumps({"node": self._node, "is": what, **facts}, separators=(",", ":"))
        self._out += packed(self._node, line.encode())
        self._write()

    @property
    def waiting(self) -> int:
        """Bytes that the head has not taken yet."""
        return len(self._out)

    def commands(self) -> Iterator[dict[str, Any]]:
        """The lines that have arrived. The end of them sets `gone`."""
        self._write()
        while not self.gone:
            try:
                data = os.read(0, 1 << 20)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            if not data:
                self.gone = True
                break
            self.heard = time.monotonic()
            self._in += data
        *lines, self._in = self._in.split(b"\n")
        self._lines.extend(lines)
        while self._lines:  # whoever leaves early finds the rest at the next call
            with suppress(ValueError):
                found = parse_json(self._lines.popleft())
                if isinstance(found, dict):
                    yield found

    def wait(self, timeout_s: float) -> None:
        """Sleep until a line arrives, at most so long."""
        select.select([0], [self._out_fd] if self._out else [], [], timeout_s)

    def flush(self, *, within_s: float) -> bool:
        """Whether the head has taken everything within the time."""
        until = time.monotonic() + within_s
        while self._out and not self.gone and time.monotonic() < until:
            self._write()
            time.sleep(0.01)
        return not self._out

    def _write(self) -> None:
        while self._out and not self.gone:
            try:
                del self._out[: os.write(self._out_fd, self._out)]
            except BlockingIOError:
                return
            except OSError:
                self.gone = True


class GrownFiles:
    """What has grown below a folder since the last look, in pieces. Model files stay where they are."""

    _PIECE = 256 << 10
    _MOST = 64 << 20
    _HEAVY = frozenset({".pt", ".pth", ".bin", ".safetensors", ".ckpt", ".npy", ".npz"})

    def __init__(self, folder: Path, root: Path) -> None:
        self._folder, self._root = folder, root
        self._sent: dict[Path, int] = {}

    def grown(self) -> Iterator[tuple[str, int, bytes]]:
        """Path relative to the root, place in the file, and the bytes there."""
        for place, _, names in os.walk(self._folder):
            for name in sorted(names):
                path = Path(place, name)
                if path.suffix not in self._HEAVY and path.is_file() and not path.is_symlink():
                    yield from self._pieces(path)

    def _pieces(self, path: Path) -> Iterator[tuple[str, int, bytes]]:
        with suppress(OSError), open_file(path) as file:
            size = min(os.fstat(file.fileno()).st_size, self._MOST)
            at = self._sent.get(path, 0)
            at = 0 if size < at else at  # it was written again
            while at < size:
                file.seek(at)
                data = file.read(min(self._PIECE, size - at))
                if not data:
                    return
                self._sent[path] = at + len(data)
                yield str(path.relative_to(self._root)), at, data
                at += len(data)
