"""Reads the heartbeats of a run, large ones in processes of their own: decoding is nearly all of `inspect`'s work."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from validator.collect.heartbeat import Heartbeat, read_heartbeat
from validator.collect.intake import Intake
from validator.files import reading_below, stat_file
from validator.python import calling

__all__ = ["Reading", "reading"]

LARGE_BYTES = 64 * 2**20
"""Total size from which further processes are worth their start, about a third of a second each."""

_MOST = 8


@dataclass(frozen=True)
class _Order:
    """One file to be read."""

    path: Path
    rank: int
    root: Path
    brief: bool
    limit_s: float


_Read = tuple[Heartbeat | None, Intake]


class Reading:
    """Heartbeats that are being read, or will be when they are asked for."""

    def __init__(self, orders: Mapping[int, _Order], futures: Mapping[int, Future[_Read]]) -> None:
        self._orders = orders
        self._futures = dict(futures)

    def take(self, rank: int, intake: Intake) -> Heartbeat | None:
        """A rank's heartbeat; what was noted while reading it goes to `intake`. None when it holds nothing."""
        future = self._futures.pop(rank, None)  # it would keep all columns of the file, wanted or not
        heartbeat, noted = _read(self._orders[rank]) if future is None else future.result()
        intake.irregularities.extend(noted.irregularities)
        intake.sources.update(noted.sources)
        return heartbeat


@contextmanager
def reading(paths: Mapping[int, Path], *, root: Path, limit_s: float) -> Iterator[Reading]:
    """Begin to read these heartbeats, by rank. Of the lowest rank everything is kept, of the others what all are
    judged by. However the context ends, no process of it is left.

    Args:
        root: what paths in the result are relative to.
        limit_s: longest span between records that can be silence.
    """
    lowest = min(paths, default=0)
    orders = {r: _Order(path, r, root, brief=r != lowest, limit_s=limit_s) for r, path in paths.items()}
    processes = min(_MOST, len(os.sched_getaffinity(0)), len(orders))
    if processes < 2 or sum(_size(path) for path in paths.values()) < LARGE_BYTES:
        yield Reading(orders, {})
        return
    crew = _Crew()
    pool = ThreadPoolExecutor(processes, thread_name_prefix="heartbeat")
    try:
        yield Reading(orders, {rank: pool.submit(crew.read, order) for rank, order in orders.items()})
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        crew.dismiss()
        pool.shutdown(wait=True)
        crew.close()


def _size(path: Path) -> int:
    try:
        return stat_file(path).st_size
    except OSError:
        return 0


def _read(order: _Order) -> _Read:
    noted = Intake(order.root)
    with reading_below(order.root):
        heartbeat = read_heartbeat(order.path, order.rank, noted, brief=order.brief, limit_s=order.limit_s)
    return heartbeat, noted


class _Crew:
    """Processes that read one file after another, one process for each thread that asks; `dismiss` ends them."""

    def __init__(self) -> None:
        self._own = threading.local()
        self._all: list[subprocess.Popen[bytes]] = []
        self._lock = threading.Lock()
        self._dismissed = False

    def read(self, order: _Order) -> _Read:
        """Read in this thread's process; here, where that process cannot be had or does not answer."""
        process = self._process()
        if process is None or process.stdin is None or process.stdout is None:
            return _read(order)
        try:
            pickle.dump(order, process.stdin)
            process.stdin.flush()
            found: _Read = pickle.load(process.stdout)  # straight from the pipe: the whole answer is there only once
        except (OSError, EOFError, pickle.UnpicklingError):
            if self._dismissed:
                raise
            process.kill()
            self._own.process = None
            return _read(order)
        return found

    def _process(self) -> subprocess.Popen[bytes] | None:
        if not hasattr(self._own, "process"):
            with self._lock:
                self._own.process = None if self._dismissed else _started()
                if self._own.process is not None:
                    self._all.append(self._own.process)
        process: subprocess.Popen[bytes] | None = self._own.process
        return process

    def dismiss(self) -> None:
        """End every process, whatever it is doing, and start no further one."""
        with self._lock:
            self._dismissed = True
            for process in self._all:
                process.kill()

    def close(self) -> None:
        """Wait for the processes' ends, once no thread asks any more."""
        for process in self._all:
            for pipe in (process.stdin, process.stdout):
                with suppress(OSError):  # what an ended process did not take
                    if pipe is not None:
                        pipe.close()
            process.wait()


def _started() -> subprocess.Popen[bytes] | None:
    try:
        return subprocess.Popen(
            calling("validator.collect.readers", "serve"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
    except OSError:
        return None


def serve() -> None:
    """Answer orders until there are no more: read each from stdin, write the heartbeat to stdout."""
    import gc

    gc.disable()  # millions of records without a cycle among them
    while True:
        try:
            order: _Order = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        pickle.dump(_read(order), sys.stdout.buffer, protocol=5)
        sys.stdout.buffer.flush()
