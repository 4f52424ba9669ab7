"""Lines of any length through a client of an engine.

`srun` passes on a line whole only if it has at most 1024 bytes; longer ones of several nodes are mixed. So a long line
is sent in pieces, each a line of its own: `+NODE LENGTH CHUNK`, and `.NODE LENGTH CHUNK` for the last one. A line also
begins with a line break: what a killed agent left unfinished on another node does not damage it.
"""

from __future__ import annotations

from collections.abc import Iterator

_CHUNK = 900
_WHOLE = 1000
"""Bytes of a line that is sent as it is; a node's name has at most 64."""
_MOST = 64 << 20
"""Bytes of one line, beyond which the rest of it is dropped."""


def packed(node: str, line: bytes) -> bytes:
    """What an agent writes for a line, which has no line break in it and begins with `{`."""
    return b"".join(b"\n" + piece + b"\n" for piece in _pieces(node.encode(), line))


def _pieces(node: bytes, line: bytes) -> Iterator[bytes]:
    if len(line) <= _WHOLE:
        yield line
        return
    for start in range(0, len(line), _CHUNK):
        chunk = line[start : start + _CHUNK]
        sign = b"." if start + _CHUNK >= len(line) else b"+"
        yield b"%s%s %d %s" % (sign, node, len(chunk), chunk)


class Lines:
    """Lines of agents out of the bytes of one channel. A damaged piece costs its line, and no other."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._begun: dict[bytes, bytearray | None] = {}
        """By node, the pieces of its line up to now; None where one was damaged."""

    def take(self, data: bytes) -> list[bytes]:
        """The lines that these bytes complete, also those that no agent wrote, such as a banner."""
        self._rest += data
        *whole, rest = bytes(self._rest).split(b"\n") if b"\n" in data else [bytes(self._rest)]
        self._rest = bytearray(rest) if len(rest) <= _MOST else bytearray()
        return [line for raw in whole if raw and (line := self._joined(raw))]

    def _joined(self, raw: bytes) -> bytes | None:
        """A whole line, or None for a piece that does not end one."""
        sign, (node, length, chunk) = raw[:1], (*raw[1:].split(b" ", 2), b"", b"")[:3]
        if sign not in (b"+", b".") or not length.isdigit():
            return raw
        begun = self._begun.setdefault(node, bytearray())
        if begun is None or len(chunk) != int(length) or len(begun) + len(chunk) > _MOST:
            self._begun[node] = None
        else:
            begun += chunk
        if sign == b"+":
            return None
        line = self._begun.pop(node)
        return None if line is None else bytes(line)
