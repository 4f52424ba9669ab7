"""Hands one rank its micro-batches in order, prepared ahead by a thread, and times every wait."""

from __future__ import annotations

import math
import queue
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

from nsa.config import SetupError, UnreachableError
from nsa.data.ending import THREAD_NAME
from nsa.data.source import SampleSource, StreamSource

__all__ = ["BatchLoader", "FetchStats", "LoaderError", "share_of_step"]


class LoaderError(RuntimeError):
    """No batch arrived in time (`reason` is "timeout"), or preparing one failed ("failed"); the cause is chained."""

    def __init__(self, message: str, *, reason: Literal["timeout", "failed"] = "failed") -> None:
        super().__init__(message)
        self.reason: Literal["timeout", "failed"] = reason


@dataclass(frozen=True)
class FetchStats:
    """Waits of the last fetches: seconds waited since the last call, and percentiles in milliseconds."""

    wait_s: float
    p50_ms: float
    p95_ms: float


@dataclass(frozen=True)
class _Prepared:
    """A micro-batch and, behind a step's last one, the place that a streaming source has reached."""

    tokens_BT: torch.Tensor
    position: dict[int, dict[str, Any]] | None


def share_of_step(step: int, micro: int, *, rank: int, world: int, batch_size: int, accum: int) -> range:
    """Sample numbers of micro-batch `micro` of `step` (both from 0) on `rank`.

    Every cut of the same global batch (`batch_size * accum * world` samples) into ranks and micro-batches covers
    the same numbers: those from step · global batch on.
    """
    first = (step * accum + micro) * world * batch_size + rank * batch_size
    return range(first, first + batch_size)


class BatchLoader:
    """Iterates over (step, micro-batch) from `start_step` on and yields int64 tokens `[batch_size, seq_len + 1]`.

    With `prefetch` > 0 a daemon thread stays that many micro-batches ahead, and ends after number `batches`, if given.
    Without it a wait cannot be abandoned, and `timeout_s` has no effect. Pinned memory is used where `pin`.
    """

    def __init__(
        self,
        source: SampleSource,
        *,
        rank: int,
        world: int,
        batch_size: int,
        accum: int,
        start_step: int = 0,
        prefetch: int = 4,
        batches: int | None = None,
        timeout_s: float = 120.0,
        pin: bool = False,
    ) -> None:
        self._source, self._pin, self._timeout_s = source, pin, timeout_s
        self._left = math.inf if batches is None else batches
        self._share = {"rank": rank, "world": world, "batch_size": batch_size, "accum": accum}
        self._step, self._micro, self._accum = start_step, 0, accum
        self._waits_s: deque[float] = deque(maxlen=256)
        self._wait_since_take_s = 0.0
        self._position: dict[int, dict[str, Any]] = {}
        self._ready: queue.Queue[_Prepared | Exception] = queue.Queue(maxsize=max(prefetch, 1))
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        if prefetch > 0:
            self._thread = threading.Thread(target=self._fill, name=THREAD_NAME, daemon=True)
            self._thread.start()

    def _prepare(self) -> _Prepared:
        indices = share_of_step(self._step, self._micro, **self._share)
        tokens = torch.from_numpy(np.ascontiguousarray(self._source.batch(indices)))
        self._micro += 1
        if self._micro == self._accum:
            self._step, self._micro = self._step + 1, 0
        # A checkpoint comes between steps, so the place behind a step's last micro-batch is all that is needed.
        position = None
        if self._micro == 0 and isinstance(self._source, StreamSource):
            position = self._source.position()
        return _Prepared(tokens.pin_memory() if self._pin else tokens, position)

    def _fill(self) -> None:
        while self._left > 0 and not self._stop.is_set():
            self._left -= 1
            try:
                item: _Prepared | Exception = self._prepare()
            except Exception as error:  # noqa: BLE001 - handed to the consumer, who raises it
                item = error
            while not self._stop.is_set():
                try:
                    self._ready.put(item, timeout=0.2)
                    break
                except queue.Full:
                    continue
            if isinstance(item, Exception):
                return

    @property
    def position(self) -> dict[int, dict[str, Any]]:
        """The place of a streaming source behind the last whole step that was handed out; else empty."""
        return self._position

    def next(self) -> torch.Tensor:
        """The next micro-batch.

        Raises LoaderError after `timeout_s` without one, or when preparing it failed; UnreachableError when the source
        waits for another machine; DataError when the data is not what it must be.
        """
        began = time.perf_counter()
        item = self._take()
        waited = time.perf_counter() - began
        self._waits_s.append(waited)
        self._wait_since_take_s += waited
        if isinstance(item, (SetupError, LoaderError)):
            raise item  # says itself what is wrong and what to do
        if isinstance(item, Exception):
            raise LoaderError(f"preparing a batch failed: {item}") from item
        self._position = self._position if item.position is None else item.position
        return item.tokens_BT

    def _take(self) -> _Prepared | Exception:
        if self._thread is None:
            try:
                return self._prepare()
            except Exception as error:  # noqa: BLE001 - raised by the caller, like one from the thread
                return error
        try:
            return self._ready.get(timeout=self._timeout_s)
        except queue.Empty:
            limit = f"no batch within loader_timeout_s={self._timeout_s:g}"
        waiting_for = self._waiting_for
        if waiting_for:
            return UnreachableError(
                f"{limit}: no answer from {waiting_for}. Check the connection and HF_ENDPOINT, raise the limit, or "
                "train on a local copy (data=local)"
            )
        return LoaderError(
            f"{limit}: the source is too slow or hangs; check the storage or raise the limit", reason="timeout"
        )

    @property
    def _waiting_for(self) -> str | None:
        """What the source waits for, if it is another machine's answer."""
        waiting_for: str | None = getattr(self._source, "waiting_for", None)
        return waiting_for

    def take_stats(self) -> FetchStats:
        """Waits since the last call, with percentiles over the last 256 fetches."""
        wait_s, self._wait_since_take_s = self._wait_since_take_s, 0.0
        if not self._waits_s:
            return FetchStats(wait_s, 0.0, 0.0)
        p50, p95 = np.percentile(np.fromiter(self._waits_s, float), (50, 95)) * 1e3
        return FetchStats(wait_s, float(p50), float(p95))

    def close(self) -> None:
        """Stop the thread; prepared batches are dropped. One that waits for another machine is left behind."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=0.1 if self._waiting_for else 2.0)
