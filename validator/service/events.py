"""Server-sent events: the texts of running validations that have changed, once a second, while somebody looks."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import AsyncIterator, Callable, Sequence

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from validator.service.live import LiveRuns, Running
from validator.service.queue import RunQueue

_INTERVAL_S = 1.0
_SIGN_S = 15.0
"""Time between two signs of life, which proxies wait for; the viewer's rights are looked at as often."""

MAX_VIEWERS = 200

QUEUE = "/queue"
"""The shape of the queue's page, by a name that no folder has."""


def shape_of(running: Sequence[Running]) -> str:
    """A short text that changes when a page needs other elements, and not when only their texts change."""
    return hashlib.sha256(repr([one.shape for one in running]).encode()).hexdigest()[:16]


def _shapes(running: Sequence[Running]) -> dict[str, str]:
    """The shape of the page of all, by an empty name, and of each run's own."""
    return {"": shape_of(running), **{one.folder: shape_of([one]) for one in running}}


class Feed:
    """The events of all viewers. After `close` each stream ends, so that the server can."""

    def __init__(self, live: LiveRuns, queue: RunQueue) -> None:
        self._live = live
        self._queue = queue
        self._viewers = 0
        self._closing = asyncio.Event()

    def close(self) -> None:
        """End every stream; called within the event loop."""
        self._closing.set()

    def stream(self, *, allowed: Callable[[], bool]) -> AsyncIterator[str]:
        """The events of one viewer, until `allowed` says no.

        Raises:
            HTTPException: 503 when too many look already.
        """
        if self._viewers >= MAX_VIEWERS:
            raise HTTPException(503, "Too many viewers: reload the page instead.", {"retry-after": "60"})
        return self._events(allowed)

    async def _events(self, allowed: Callable[[], bool]) -> AsyncIterator[str]:
        self._viewers += 1
        try:
            shown: dict[str, str] = {}
            shapes: dict[str, str] = {}
            sign_s = time.monotonic()
            yield "retry: 3000\n\n"
            while not self._closing.is_set():
                running = await run_in_threadpool(self._live.look)
                texts = dict(text for one in running for text in one.texts())
                changed = {name: text for name, text in texts.items() if shown.get(name) != text}
                if changed:
                    yield _event("texts", changed)
                shown = texts
                if shapes != (shapes := {**_shapes(running), QUEUE: self._queue.stamp()}):
                    yield _event("shapes", shapes)
                if time.monotonic() - sign_s >= _SIGN_S:
                    if not await run_in_threadpool(allowed):
                        return
                    sign_s = time.monotonic()
                    yield ": still here\n\n"
                try:
                    await asyncio.wait_for(self._closing.wait(), _INTERVAL_S)
                except asyncio.TimeoutError:
                    continue
        finally:
            self._viewers -= 1


def _event(name: str, value: object) -> str:
    return f"event: {name}\ndata: {json.dumps(value, ensure_ascii=False)}\n\n"
