"""Waiting for a process to end, for a request to stop, or for the next look, whichever comes first."""

from __future__ import annotations

import os
import select
import subprocess
import threading
import time
from contextlib import suppress
from types import TracebackType

from validator.execute.cancel import CancelToken

__all__ = ["Waiter"]


class Waiter:
    """Sleeps until something happens. The end of the process is a file descriptor, so it is noticed at once.

    A thread of its own notes when that was: whoever waits may be busy with something else by then.
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

    def wait(self, timeout_s: float, *, also: int | None = None) -> bool:
        """Sleep up to `timeout_s`, or until `also` can be read. Returns whether the process has ended."""
        if self._process.poll() is None:
            if also is not None:
                self._poll.register(also, select.POLLIN)
            self._poll.poll(max(0.0, timeout_s) * 1000)
            if also is not None:
                self._poll.unregister(also)
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
