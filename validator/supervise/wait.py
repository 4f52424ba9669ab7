"""Stopping on request: a token that a signal handler sets and a waiting supervisor wakes up to.

The first request asks for an orderly stop of the present run, the second for an immediate one.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType

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
        """Whether a stop was requested."""
        return self._requests > 0

    @property
    def urgent(self) -> bool:
        """Whether a second request came: nothing is waited for any more."""
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


# Waiting for a process to end, for a request to stop, or for the next look, whichever comes first.


class Waiter:
    """Sleeps until something happens. The end of the process is a file descriptor, so it is noticed at once.

    A separate thread records the time of the end: the waiting thread may be busy by then.
    """

    def __init__(self, process: subprocess.Popen[bytes], cancel: CancelToken) -> None:
        self._process = process
        self._cancel = cancel
        self._ended_s: float | None = None
        self._fd = _end_of(process)
        self._closing = os.pipe()
        self._noting = threading.Thread(target=self._note_end, name="note-end-of-run", daemon=True)
        self._noting.start()
        self._poll = select.poll()
        self._poll.register(self._fd, select.POLLIN)
        self._poll.register(cancel.fileno(), select.POLLIN)

    def wait(self, timeout_s: float, *, also: Sequence[int | None] = ()) -> bool:
        """Sleep up to `timeout_s`, or until one of `also` can be read. Returns whether the process has ended."""
        if self._process.poll() is None:
            watched = [fd for fd in also if fd is not None]
            for fd in watched:
                self._poll.register(fd, select.POLLIN)
            self._poll.poll(max(0.0, timeout_s) * 1000)
            for fd in watched:
                self._poll.unregister(fd)
            self._cancel.drain()
        return self._process.poll() is not None

    @property
    def ended_s(self) -> float:
        """When the process ended, by the monotonic clock; now, where it has not."""
        return time.monotonic() if self._ended_s is None else self._ended_s

    def _note_end(self) -> None:
        poll = select.poll()
        for fd in (self._fd, self._closing[0]):
            poll.register(fd, select.POLLIN)
        if any(fd == self._fd for fd, _ in poll.poll()):
            self._ended_s = time.monotonic()

    def close(self) -> None:
        """Release the file descriptors."""
        os.close(self._closing[1])
        self._noting.join()
        for fd in (self._fd, self._closing[0]):
            with suppress(OSError):
                os.close(fd)

    def __enter__(self) -> Waiter:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _end_of(process: subprocess.Popen[bytes]) -> int:
    """A descriptor that becomes readable when the process ends: a pidfd, or a pipe closed by a waiting thread."""
    with suppress(OSError, AttributeError):
        return os.pidfd_open(process.pid)
    read_fd, write_fd = os.pipe()

    def wait_and_close() -> None:
        process.wait()
        os.close(write_fd)

    threading.Thread(target=wait_and_close, name="wait-for-run", daemon=True).start()
    return read_fd
