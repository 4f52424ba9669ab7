"""Stopping on request: a token that a signal handler sets and a waiting supervisor wakes up to.

The first request asks for an orderly stop of the present run, the second for an immediate one.
"""

from __future__ import annotations

import os
import select
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

__all__ = ["CancelToken", "cancel_on_signals"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class CancelToken:
    """Requests to stop, counted. Safe to use from any thread and from a signal handler."""

    def __init__(self) -> None:
        self._requests = 0
        self._read_fd, self._write_fd = os.pipe()
        os.set_blocking(self._read_fd, False)
        os.set_blocking(self._write_fd, False)
        self.why: str | None = None

    def request(self, why: str = "stopped on request") -> None:
        """Ask for an orderly stop; asked again, for an immediate one."""
        self._requests += 1
        self.why = self.why or why
        with suppress(OSError):  # a full pipe wakes the supervisor just as well
            os.write(self._write_fd, b"!")

    @property
    def requested(self) -> bool:
        """Whether anybody asked to stop."""
        return self._requests > 0

    @property
    def urgent(self) -> bool:
        """Whether a second request came: no more waiting for anybody."""
        return self._requests > 1

    def fileno(self) -> int:
        """A file descriptor that becomes readable at each request."""
        return self._read_fd

    def wait(self, timeout_s: float) -> bool:
        """Sleep up to `timeout_s`; returns at once, and True, when a stop was or is requested."""
        if not self.requested:
            select.select([self._read_fd], [], [], timeout_s)
        return self.requested

    def drain(self) -> None:
        """Forget the wake-up, not the request, so that the next wait sleeps again."""
        with suppress(BlockingIOError):
            while os.read(self._read_fd, 64):
                pass

    def close(self) -> None:
        """Release the file descriptors."""
        for fd in (self._read_fd, self._write_fd):
            with suppress(OSError):
                os.close(fd)


@contextmanager
def cancel_on_signals(token: CancelToken) -> Iterator[CancelToken]:
    """Let SIGINT, SIGTERM and SIGHUP set `token` while the context is open.

    A signal that was ignored when the process started stays ignored (`nohup`). Outside the main thread Python cannot
    set handlers; there the token is the only way to stop.
    """
    if threading.current_thread() is not threading.main_thread():
        yield token
        return

    def on_signal(number: int, frame: FrameType | None) -> None:
        token.request(f"received {signal.Signals(number).name}")

    previous = {}
    try:
        for number in _SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                previous[number] = signal.signal(number, on_signal)
        yield token
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
