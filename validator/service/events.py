"""Server-sent events: the texts of running validations that have changed, while somebody looks.

One look serves all viewers. A viewer of a run's page also gets the end of the log that the page shows.
"""

from __future__ import annotations

import asyncio
import json
import time
import zlib
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import NamedTuple

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from validator.service.live import LiveRuns, Running
from validator.service.queue import RunQueue

_INTERVAL_S = 0.8
_SIGN_S = 15.0
"""Time between two signs of life, which proxies wait for; the viewer's rights are looked at as often."""

MAX_VIEWERS = 200

QUEUE = "/queue"
"""The shape of the queue's page, by a name that no folder has."""


LogName = tuple[str, str]
"""A run folder, and a log of its open run."""


def shape_of(running: Sequence[Running]) -> str:
    """A short text that changes when a page needs other elements, and not when only their texts change."""
    return f"{zlib.crc32(''.join(one.shape for one in running).encode()):x}"


class _Frame(NamedTuple):
    """One look: all texts, the shapes of pages (that of all by an empty name); the ends of logs."""

    texts: Mapping[str, str]
    shapes: Mapping[str, str]
    logs: Mapping[LogName, str]


def _frame(live: LiveRuns, queue: RunQueue, wanted: Iterable[LogName]) -> _Frame:
    running = live.look(fresh=True)  # else one that a page has made would make these late
    texts = {name: text for one in running for name, text in one.texts().items()}
    shapes = {"": shape_of(running), QUEUE: queue.stamp(), **{one.folder: shape_of([one]) for one in running}}
    return _Frame(texts, shapes, {name: live.log(*name).text for name in wanted})


class Feed:
    """The events of all viewers. After `close` each stream ends, so that the server can."""

    def __init__(self, live: LiveRuns, queue: RunQueue) -> None:
        self._live = live
        self._queue = queue
        self._viewers: dict[object, LogName | None] = {}
        self._frame: _Frame | None = None
        self._drawn = asyncio.Event()
        self._closing = False

    def close(self) -> None:
        """End every stream; called within the event loop."""
        self._closing, self._frame = True, None
        self._drawn.set()

    def stream(self, *, allowed: Callable[[], bool], log: LogName | None = None) -> AsyncIterator[str]:
        """The events of one viewer, until `allowed` says no; those of a log too.

        Raises:
            HTTPException: 503 when too many look already.
        """
        if len(self._viewers) >= MAX_VIEWERS:
            raise HTTPException(503, "Too many viewers: reload the page instead.", {"retry-after": "60"})
        return self._events(allowed, log)

    async def _events(self, allowed: Callable[[], bool], log: LogName | None) -> AsyncIterator[str]:
        viewer = object()
        self._viewers[viewer] = log
        try:
            shown, shapes, sign_s = dict[str, str](), dict[str, str](), time.monotonic()
            yield "retry: 3000\n\n"
            while True:
                await self._drawn.wait()
                if self._frame is None:  # the server ends, or the look failed: then the browser asks again
                    return
                texts, now, logs = self._frame
                if log is not None and (lines := logs.get(log)):
                    texts = {**texts, f"{log[0]} log": lines}
                changed = {name: text for name, text in texts.items() if shown.get(name) != text}
                events = _event("texts", changed) if changed else ""
                events += _event("shapes", now) if shapes != now else ""
                shown, shapes = {**shown, **changed}, {**now}
                if time.monotonic() - sign_s >= _SIGN_S:
                    if not await run_in_threadpool(allowed):
                        return
                    sign_s = time.monotonic()
                    events += ": still here\n\n"
                if events:
                    yield events
        finally:
            del self._viewers[viewer]

    async def draw(self) -> None:
        """Look again and again while there is a viewer, as long as the server runs."""
        loop, looking = asyncio.get_running_loop(), ThreadPoolExecutor(1)  # for less than a thread of requests costs
        while not self._closing:
            due_s = time.monotonic() + _INTERVAL_S
            if self._viewers:
                wanted, frame = {log for log in self._viewers.values() if log is not None}, None
                with suppress(Exception):  # the folder may be gone for a while: the streams end, and begin again
                    frame = await loop.run_in_executor(looking, _frame, self._live, self._queue, wanted)
                if not self._closing:
                    drawn, self._drawn, self._frame = self._drawn, asyncio.Event(), frame
                    drawn.set()
            await asyncio.sleep(max(0.1, due_s - time.monotonic()))


def _event(name: str, value: object) -> str:
    return f"event: {name}\ndata: {json.dumps(value, ensure_ascii=False)}\n\n"
