"""How a process that loaded data ends.

A thread that waits for a server cannot be stopped. When the interpreter shuts down around such a thread, code of
other libraries that returns to Python in it aborts the process, and the exit code is lost. So a process with a loader
thread still alive is ended by the operating system instead, after everything that is written has been flushed.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from typing import NoReturn

__all__ = ["THREAD_NAME", "leave"]

THREAD_NAME = "nsa-loader"
_OTHERS = "fsspecIO"  # the reader of http and s3 paths in `datasets`, which has no end


def leave(code: int) -> NoReturn:
    """End this process with `code`, also where a loader's thread hangs. To be called last, from `__main__`."""
    if not any(thread.name.startswith((THREAD_NAME, _OTHERS)) for thread in threading.enumerate()):
        sys.exit(code)
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)
