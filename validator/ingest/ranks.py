"""Reads the heartbeats of a run, large ones in processes of their own: decoding is nearly all of `inspect`'s work."""

from __future__ import annotations

import gc
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from validator.files import reading_below, stat_file
from validator.ingest.heartbeat import Heartbeat, read_heartbeat
from validator.ingest.read_log import CLOCK_SLACK_S, LEAN, ReadLog
from validator.ingest.result_builder import ResultBuilder
from validator.ingest.rows import misnamed
from validator.model.result import Series
from validator.startup import call_argv

LARGE_BYTES = 64 * 2**20
"""Total size from which further processes are worth their start, about a third of a second each."""

_MAX_PROCESSES = 8


@dataclass(frozen=True)
class _Order:
    """One file to be read."""

    path: Path
    rank: int
    root: Path
    brief: bool
    limit_s: float


_Read = tuple[Heartbeat | None, ReadLog]


class PendingHeartbeats:
    """Heartbeats that are being read, or will be when they are taken."""

    def __init__(self, orders: Mapping[int, _Order], futures: Mapping[int, Future[_Read]]) -> None:
        self._orders = orders
        self._futures = dict(futures)

    def take(self, rank: int, read_log: ReadLog) -> Heartbeat | None:
        """A rank's heartbeat; what was noted while reading it goes to `read_log`. None when it holds nothing."""
        future = self._futures.pop(rank, None)  # it would keep all columns of the file, wanted or not
        heartbeat, noted = _read_order(self._orders[rank]) if future is None else future.result()
        read_log.irregularities.extend(noted.irregularities)
        read_log.sources.update(noted.sources)
        return heartbeat


@contextmanager
def reading(paths: Mapping[int, Path], *, root: Path, limit_s: float) -> Iterator[PendingHeartbeats]:
    """Begin to read these heartbeats, by rank. Of the lowest rank everything is kept, of the others what all are
    judged by. However the context ends, no process of it is left.

    Args:
        root: what paths in the result are relative to.
        limit_s: longest span between records that can be silence.
    """
    lowest = min(paths, default=0)
    orders = {r: _Order(path, r, root, brief=r != lowest, limit_s=limit_s) for r, path in paths.items()}
    processes = min(_MAX_PROCESSES, len(os.sched_getaffinity(0)), len(orders))
    if processes < 2 or sum(one.st_size for one in map(_status, paths.values()) if one) < LARGE_BYTES:
        yield PendingHeartbeats(orders, {})
        return
    crew = _Crew()
    pool = ThreadPoolExecutor(processes, thread_name_prefix="heartbeat")
    try:
        yield PendingHeartbeats(orders, {rank: pool.submit(crew.read, order) for rank, order in orders.items()})
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        crew.dismiss()
        pool.shutdown(wait=True)
        crew.close()


def _status(path: Path) -> os.stat_result | None:
    try:
        return stat_file(path)
    except OSError:
        return None


def _read_order(order: _Order) -> _Read:
    noted = ReadLog(order.root)
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
            return _read_order(order)
        try:
            pickle.dump(order, process.stdin)
            process.stdin.flush()
            found: _Read = pickle.load(process.stdout)  # straight from the pipe: the whole answer is there only once
        except (OSError, EOFError, pickle.UnpicklingError):
            if self._dismissed:
                raise
            process.kill()
            self._own.process = None
            return _read_order(order)
        return found

    def _process(self) -> subprocess.Popen[bytes] | None:
        if not hasattr(self._own, "process"):
            with self._lock:
                self._own.process = None if self._dismissed else _start_reader()
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


def _start_reader() -> subprocess.Popen[bytes] | None:
    try:
        return subprocess.Popen(
            call_argv("validator.ingest.ranks", "serve"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
    except OSError:
        return None


def serve() -> None:
    """Answer orders until there are no more: read each from stdin, write the heartbeat to stdout."""
    gc.disable()  # millions of records without a cycle among them
    while True:
        try:
            order: _Order = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        pickle.dump(_read_order(order), sys.stdout.buffer, protocol=5)
        sys.stdout.buffer.flush()


# Arrays that are equal are kept once: all ranks record the same steps, and usually the same loss.

_MAX_ARRAYS = 4
"""Different arrays of one name that a further one is compared with."""


class ArrayInterner:
    """Remembers arrays by name."""

    def __init__(self) -> None:
        self._known: dict[str, list[npt.NDArray[Any]]] = {}

    def intern(self, name: str, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The first array of that name that is equal to `array`, or `array` itself. NaN equals nothing."""
        known = self._known.setdefault(name, [])
        for one in known:
            if one is array or (one.dtype == array.dtype and np.array_equal(one, array)):
                return one
        if len(known) < _MAX_ARRAYS:
            known.append(array)
        return array


# What every rank recorded, and what the lowest one did where no table holds it.

_COPIED_S = 60.0
_LONG_S = 3600.0


def read_heartbeats(state: ResultBuilder, paths: Mapping[int, Path], heartbeats: PendingHeartbeats) -> None:
    """Every rank's heartbeat becomes its series; equal arrays are kept once, and none twice."""
    pattern = state.metrics.heartbeat
    if pattern is None:
        return
    if not paths:
        if not state.lenient:
            state.read_log.note("missing-file", f"heartbeat {pattern} was not written", state.out / pattern)
        return
    interner, lowest = ArrayInterner(), min(paths)
    for rank, path in paths.items():
        state.check_age(path, f"heartbeat of rank {rank}")
        heartbeat = heartbeats.take(rank, state.read_log)
        if heartbeat is None:
            continue
        _check_first_record(state, path, heartbeat.gaps.first)
        if rank == lowest:
            _check_names(state, heartbeat)
        state.rank_series[rank] = {
            name: Series(
                name=name,
                unit=state.unit_of(name),
                steps=interner.intern("step", steps),
                values=interner.intern(name, values),
                source=heartbeat.source,
                rank=rank,
            )
            for name, (steps, values) in heartbeat.columns.items()
            if name in LEAN or name not in state.series
        }
        state.heartbeats[rank] = replace(heartbeat, columns={})  # held in memory once
    _check_ranks(state, pattern, set(paths))
    if state.texts is not None:
        _check_times(state, paths)


def _check_first_record(state: ResultBuilder, path: Path, first_s: float | None) -> None:
    """A heartbeat whose first record is dated before the run's start, or after its end, is of another run."""
    if first_s is None or state.started_s is None:
        return
    late_s = 0.0 if state.duration_s is None else first_s - (state.started_s + state.duration_s)
    early_s = state.started_s - first_s
    if late_s > CLOCK_SLACK_S or early_s > CLOCK_SLACK_S:
        when = (
            f"{late_s:.0f} s after this run had ended" if late_s > 0 else f"{early_s:.0f} s before this run was started"
        )
        state.read_log.note("foreign-results", f"its first record is dated {when}", path, 1)


def _check_times(state: ResultBuilder, paths: Mapping[int, Path]) -> None:
    """Heartbeats that were complete long before the table was written, in a folder whose run has no known
    start. A copied file, which is younger than its last record, proves nothing."""
    table = _status(state.out / (state.metrics.csv or "training.csv"))
    for rank, heartbeat in state.heartbeats.items():
        first_s, end_s = heartbeat.gaps.first, heartbeat.gaps.last
        if table is None or first_s is None or end_s is None:
            continue
        if _stale(paths[rank], end_s, end_s - first_s, table.st_mtime):
            message = (
                f"its last record is {table.st_mtime - end_s:.0f} s older than the table, so it is of an earlier run"
            )
            state.read_log.note("foreign-results", message, paths[rank])


def _stale(path: Path, end_s: float, took_s: float, table_s: float) -> bool:
    status = _status(path)
    return status is not None and abs(status.st_mtime - end_s) <= _COPIED_S and table_s - end_s > max(_LONG_S, took_s)


def _check_names(state: ResultBuilder, heartbeat: Heartbeat) -> None:
    """A column of the table with a garbled name is recognized by its values, which rank 0 recorded as well."""
    path = state.out / (state.metrics.csv or "training.csv")
    own = state.read_log.name(path)
    table = {name: (one.steps, one.values) for name, one in state.series.items() if one.source.path == own}
    for wrong in misnamed(table, heartbeat.columns):
        state.read_log.note("garbage-header", wrong, path, 1)


def _check_ranks(state: ResultBuilder, pattern: str, present: set[int]) -> None:
    known = state.world_size
    if known is None and present:
        known = max(present) + 1  # where the number is unknown, ranks below the highest are present or missing
    if "{rank}" not in pattern or known is None:
        return
    where = state.out / pattern
    missing = sorted(set(range(known)) - present)
    surplus = sorted(rank for rank in present if rank >= known)
    if missing:
        state.read_log.note("missing-rank", f"no heartbeat of rank {', '.join(map(str, missing))}", where)
    if surplus:
        state.read_log.note(
            "foreign-results",
            f"heartbeat of rank {', '.join(map(str, surplus))} in a run of {known} ranks",
            where,
        )


def fill_from_rank_0(state: ResultBuilder) -> None:
    """What no table holds is taken from the lowest rank's heartbeat; by rank only what all are judged by is kept."""
    if not state.rank_series:
        return
    lowest = min(state.rank_series)
    for name, own in state.rank_series[lowest].items():
        state.series.setdefault(name, own)
    brief = {name: own for name, own in state.rank_series[lowest].items() if name in LEAN}
    state.rank_series[lowest] = brief
