"""The events of viewers: one look serves all, only what changed is sent, and each gets the log of its page alone."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.validator.service.serving import client
from validator.service import events
from validator.service.events import Feed
from validator.service.live import Running
from validator.supervise.open_run import LogTail


class Looked:
    """What runs, as a test says; counts the looks."""

    def __init__(self) -> None:
        self.looks, self.step, self.fails = 0, 0, False

    def look(self, *, fresh: bool) -> tuple[Running, ...]:
        self.looks += 1
        if self.fails:
            raise OSError("the folder is gone")
        texts = {"remaining": "not known", "elapsed": f"{self.step} s"}
        named = dict.fromkeys(("run_id", "title", "runbook", "host", "started"), "x")
        return (Running(folder="f", working=True, stopping="", phases=(), run=None, **texts, **named),)

    def log(self, folder: str, name: str) -> LogTail:
        return LogTail(name, (name,), f"{folder} {name} {self.step}")


class Queue:
    """An empty queue of starts."""

    def stamp(self) -> str:
        return ""


async def received(stream: AsyncIterator[str], count: int) -> list[tuple[str, dict[str, Any]]]:
    """The next events of a stream."""
    found: list[tuple[str, dict[str, Any]]] = []
    while len(found) < count:
        for part in (await asyncio.wait_for(anext(stream), 5)).split("\n\n"):
            name, _, data = part.partition("\ndata: ")
            if data:
                found.append((name.removeprefix("event: "), json.loads(data)))
    return found


def test_one_look_serves_all_and_only_what_changed_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "_INTERVAL_S", 0.2)

    async def viewed() -> None:
        live = Looked()
        feed = Feed(live, Queue())  # type: ignore[arg-type]
        drawing = asyncio.create_task(feed.draw())
        plain = [feed.stream(allowed=lambda: True) for _ in range(20)]
        tailing = feed.stream(allowed=lambda: True, log=("f", "a.log"))
        first = await asyncio.gather(*(received(one, 2) for one in (*plain, tailing)))
        assert live.looks == 1
        assert first[0][0] == ("texts", {"f elapsed": "0 s", "f remaining": "not known"})
        assert [name for name, _ in first[0]] == ["texts", "shapes"]
        assert first[-1][0][1] == {**first[0][0][1], "f log": "f a.log 0"}
        live.step = 7
        then = await asyncio.gather(*(received(one, 1) for one in (*plain, tailing)))
        assert then[0] == [("texts", {"f elapsed": "7 s"})]
        assert then[-1] == [("texts", {"f elapsed": "7 s", "f log": "f a.log 7"})]
        late = feed.stream(allowed=lambda: True)
        assert (await received(late, 2))[0][1] == {"f elapsed": "7 s", "f remaining": "not known"}
        feed.close()
        for one in (*plain, tailing, late):
            assert [event async for event in one if event.startswith("event")] == []
        seen = live.looks
        await asyncio.sleep(0.5)
        assert live.looks == seen, "nobody looks"
        await drawing

    asyncio.run(viewed())


def test_a_look_that_fails_ends_the_streams_and_the_next_viewer_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "_INTERVAL_S", 0.1)

    async def viewed() -> None:
        live = Looked()
        feed = Feed(live, Queue())  # type: ignore[arg-type]
        drawing = asyncio.create_task(feed.draw())
        one = feed.stream(allowed=lambda: True)
        await received(one, 2)
        live.fails = True
        assert [event async for event in one] == []
        live.fails = False
        assert len(await received(feed.stream(allowed=lambda: True), 2)) == 2
        drawing.cancel()

    asyncio.run(viewed())


def test_the_service_ends_without_a_word(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It left a traceback: what runs beside the requests was cancelled, and nobody asked how it ended."""
    with client(tmp_path) as asking:
        assert asking.get("/").status_code == 200
    gc.collect()
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []
