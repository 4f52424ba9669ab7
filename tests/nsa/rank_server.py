"""Forks trainers from a process that has already imported what they need, and knows nothing of pytest.

Importing torch and its compiler takes every process some four seconds, and a run of two ranks takes less than one.
Each line on standard input is an order: program, arguments, environment, the files for standard output and error, and
the file for the exit code. The answer is its pid. In everything else the forked process is the command: its arguments,
signals, threads and exit are its own.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

import torch._dynamo
import torch.distributed.fsdp  # noqa: F401 - imported for those that are forked

import nsa.attention.batched
import nsa.loop
import nsa.probe
import nsa.train  # noqa: F401


def run(program: str) -> int:
    """Run a module, or a file that ends in .py, as the main program; returns its exit code."""
    try:
        if program.endswith(".py"):
            runpy.run_path(program, run_name="__main__")
        else:
            runpy.run_module(program, run_name="__main__", alter_sys=True)
    except SystemExit as ending:
        return ending.code if isinstance(ending.code, int) else int(ending.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def serve(order: dict[str, Any]) -> None:
    """What a forked process does; never returns."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for place, (name, flags) in enumerate(
        ((os.devnull, os.O_RDONLY), *((order[n], os.O_WRONLY | os.O_CREAT | os.O_TRUNC) for n in ("out", "err")))
    ):
        os.dup2(os.open(name, flags), place)
    os.environ.clear()
    os.environ.update(order["env"])
    sys.argv = [order["program"], *order["args"]]
    sys.modules.pop(order["program"], None)  # it is the main program now
    leave = os._exit

    def leave_word(code: int) -> None:
        Path(order["code"]).write_text(str(code))
        leave(code)

    os._exit = leave_word  # type: ignore[assignment]
    code = run(order["program"])
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)  # a forked interpreter has nothing else to end


def main() -> None:
    """Fork until standard input ends. Nobody waits for the processes: the kernel forgets those that ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    print("ready", flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        pid = os.fork()
        if not pid:
            serve(order)
        print(pid, flush=True)


if __name__ == "__main__":
    main()
