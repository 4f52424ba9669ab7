"""Ending a run: politely, with patience, then by force; and what had to be done."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from validator.execute.procfs import Stat
from validator.execute.tree import ProcessTree

__all__ = ["Grace", "Stopped", "await_exit", "clear_leftovers", "stop"]

_POLL_S = 0.02


@dataclass(frozen=True)
class Grace:
    """Patience, in seconds.

    `term_s`: between SIGTERM and SIGKILL; torchrun itself gives its workers 30 s, so less than 40 would orphan them.
    `halt_s`: for a trainer to honor `.HALT` before SIGTERM. `leftover_s`: for processes that outlive the root of the
    run to end by themselves, and again after SIGTERM. `kill_s`: for the kernel to remove what was killed.
    `gpu_memory_s`: for the GPUs' memory to come back. `stacks_s`: for ranks to write their stacks.
    """

    term_s: float = 40.0
    halt_s: float = 10.0
    leftover_s: float = 5.0
    kill_s: float = 10.0
    gpu_memory_s: float = 60.0
    stacks_s: float = 3.0


@dataclass(frozen=True)
class Stopped:
    """How the end went: pids that had to be killed, and pids that even SIGKILL did not remove in time."""

    killed: tuple[int, ...] = ()
    surviving: tuple[int, ...] = ()


def stop(
    process: subprocess.Popen[bytes], tree: ProcessTree, *, launcher: str, grace: Grace, urgent: Callable[[], bool]
) -> Stopped:
    """SIGTERM, up to `term_s` of patience, shorter once nothing is left or `urgent` says so, then SIGKILL.

    torchrun forwards SIGTERM to its workers, so only it is told; of any other launcher the whole process group is, as
    a terminal would do it.
    """
    if process.poll() is None:
        with suppress(ProcessLookupError, PermissionError):
            if launcher == "torchrun":
                process.send_signal(signal.SIGTERM)
            else:
                os.killpg(process.pid, signal.SIGTERM)
        # A stopped process answers no signal but SIGKILL until it is told to go on.
        tree.signal(signal.SIGCONT, (stat for stat in tree.scan(deep=True) if stat.state == "T"))
    if await_exit(process, within_s=grace.term_s, urgent=urgent) and not urgent():
        return clear_leftovers(process, tree, grace=grace, urgent=urgent, at_once=True)
    return _kill(process, tree, tree.scan(deep=True), grace=grace)


def await_exit(process: subprocess.Popen[bytes], *, within_s: float, urgent: Callable[[], bool]) -> bool:
    """Whether the root of the run ends within the time; `urgent` cuts the wait short."""
    until = time.monotonic() + within_s
    while process.poll() is None and time.monotonic() < until and not urgent():
        time.sleep(_POLL_S)
    return process.poll() is not None


def clear_leftovers(
    process: subprocess.Popen[bytes],
    tree: ProcessTree,
    *,
    grace: Grace,
    urgent: Callable[[], bool],
    at_once: bool = False,
) -> Stopped:
    """End what outlives the root of a run. Helpers that end by themselves within `leftover_s` are not counted."""
    left = tree.scan(deep=True)
    if not left:
        return Stopped()
    if not at_once:
        left = _await_end(tree, left, until=time.monotonic() + min(1.0, grace.leftover_s), urgent=urgent)
    if not left:
        return Stopped()
    asked = left
    tree.signal(signal.SIGTERM, left)
    left = _await_end(tree, left, until=time.monotonic() + grace.leftover_s, urgent=urgent)
    killed = _kill(process, tree, left, grace=grace) if left else Stopped()
    pids = {stat.pid for stat in asked} if not at_once else set()
    return Stopped(killed=tuple(sorted(pids | set(killed.killed))), surviving=killed.surviving)


def _await_end(
    tree: ProcessTree, left: tuple[Stat, ...], *, until: float, urgent: Callable[[], bool]
) -> tuple[Stat, ...]:
    while left and time.monotonic() < until and not urgent():
        time.sleep(_POLL_S)
        left = tree.scan(deep=True)
    return left


def _kill(process: subprocess.Popen[bytes], tree: ProcessTree, left: tuple[Stat, ...], *, grace: Grace) -> Stopped:
    surviving = tree.kill(within_s=grace.kill_s)
    with suppress(subprocess.TimeoutExpired):
        process.wait(timeout=grace.kill_s)
    return Stopped(killed=tuple(stat.pid for stat in left), surviving=tuple(stat.pid for stat in surviving))
