"""Run one program, and end it with every process that comes from it when the test run is gone.

`python keeper.py COMMAND…` lives until its standard input closes, which the kernel does for a killed test run too, or
until the command ends. Then every process below it gets SIGKILL. Daemons cannot escape: it is the subreaper of all.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import selectors
import signal
import socket
import subprocess
import sys

import psutil

_PR_SET_CHILD_SUBREAPER = 36


def _reap() -> set[int]:
    """The pids of children that ended since the last call."""
    ended = set()
    with contextlib.suppress(ChildProcessError):
        while (pid := os.waitpid(-1, os.WNOHANG)[0]) > 0:
            ended.add(pid)
    return ended


def _kill_all() -> None:
    """SIGKILL to every process below, until there is none."""
    while below := psutil.Process().children(recursive=True):
        for process in below:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(below, timeout=0.05)
        _reap()


def main(command: list[str]) -> int:
    if ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        return 1
    awake, waker = socket.socketpair()
    for end in (awake, waker):
        end.setblocking(False)
    signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    started = subprocess.Popen(command, stdin=subprocess.DEVNULL).pid
    with selectors.DefaultSelector() as selector:
        selector.register(sys.stdin.fileno(), selectors.EVENT_READ)
        selector.register(awake, selectors.EVENT_READ)
        while started not in _reap():
            ready = {key.fd for key, _ in selector.select()}
            if sys.stdin.fileno() in ready:
                break
            with contextlib.suppress(BlockingIOError):
                awake.recv(4096)
    _kill_all()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
