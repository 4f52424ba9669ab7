"""How a process that loaded data ends.

A thread that waits for a server cannot be stopped. When the interpreter shuts down around such a thread, code of
other libraries that returns to Python in it aborts the process, and the exit code is lost. And where no thread is left,
the interpreter takes half a second to put torch away. So such a process is ended by the operating system instead, after
everything that is written has been flushed.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from typing import NoReturn

__all__ = ["THREAD_NAME", "leave"]

THREAD_NAME = "nsa-loader"


def leave(code: int) -> NoReturn:
    """End this process with `code`, also where a loader's thread hangs. To be called last, from `__main__`."""
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):  # a pipe that nobody reads any more
            stream.flush()
    os._exit(code)
