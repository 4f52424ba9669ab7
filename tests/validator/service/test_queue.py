"""The queue: what is started, when, and by whom; nothing twice, and nothing while the machine is in use."""

from __future__ import annotations

import hashlib
import os
import threading
from pathlib import Path

import pytest

from validator.errors import Unable
from validator.runs.folder import Runner
from validator.service import queue as module
from validator.service.queue import QueueEntry, RunQueue
from validator.supervise.lock import LockHeld, MachineLock

GONE = Runner(pid=2**22, pid_created=1.0, host=os.uname().nodename)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    (tmp_path / "book.yaml").write_text("name: x", encoding="utf-8")
    return tmp_path


@pytest.fixture
def queue(home: Path) -> RunQueue:
    return RunQueue(home / "queue.json")


def entry(home: Path, number: int = 0) -> QueueEntry:
    book = home / "book.yaml"
    return QueueEntry(
        id=f"{number:032x}", runbook="x", path=str(book), sha256=hashlib.sha256(book.read_bytes()).hexdigest(),
        out=str(home / "reports"), cwd=str(home), locks=("cpu",), by="me", asked="2026-11-23T00:00:00+00:00",
    )  # fmt: skip


def states(queue: RunQueue) -> list[str]:
    return [one.state for one in queue.entries()]


def test_an_entry_is_claimed_once_by_however_many(home: Path, queue: RunQueue) -> None:
    queue.add(entry(home))
    queue.add(entry(home, 1))
    claimed: list[QueueEntry | None] = []
    claims = [
        threading.Thread(target=lambda: claimed.append(RunQueue(home / "queue.json").claim(entry(home).id)))
        for _ in range(8)
    ]
    for one in claims:
        one.start()
    for one in claims:
        one.join()
    assert sum(one is not None for one in claimed) == 1
    assert states(queue) == ["running", "waiting"]
    assert queue.claim(entry(home, 1).id) is None, "one at a time"
    assert queue.claim("f" * 32) is None


def test_the_queue_is_idle_from_the_last_end_to_the_next_entry(home: Path, queue: RunQueue) -> None:
    queue.step()
    assert queue.stamp() == queue.idle == ""
    RunQueue(home / "queue.json").add(entry(home).but(state="running", runner=GONE))
    assert queue.stamp() != queue.idle
    for ended in (False, True):  # the step that notices the end changes the file
        queue.step()
        assert (queue.stamp() == queue.idle) == ended
    assert states(queue) == ["ended"]
    queue.add(entry(home, 1))
    assert queue.stamp() != queue.idle


def test_a_runbook_that_was_edited_is_not_started(home: Path, queue: RunQueue) -> None:
    queue.add(entry(home))
    (home / "book.yaml").write_text("name: y", encoding="utf-8")
    assert queue.claim(entry(home).id) is None
    (one,) = queue.entries()
    assert (one.state, one.note) == ("ended", "the runbook was edited after its check; ask again")


def test_nothing_is_started_while_the_machine_is_in_use(
    home: Path, queue: RunQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[list[str]] = []

    class Child:
        def __init__(self, command: list[str], **_: object) -> None:
            started.append(command)

        def poll(self) -> None:
            return None

    monkeypatch.setattr(module.subprocess, "Popen", Child)
    queue.step()
    queue.add(entry(home))
    with MachineLock(("cpu",)):
        queue.step()
        assert "in use by another validation: process" in queue.blocked(queue.entries()[0])
    with MachineLock(("gpu-0",)):
        assert queue.blocked(queue.entries()[0]) == ""
    assert started == []
    queue.step()
    queue.step()
    assert [command[-1] for command in started] == [entry(home).id], "and not again at once"


def test_a_start_that_another_was_quicker_than_waits_again(home: Path, queue: RunQueue) -> None:
    said = {0: str(LockHeld("cpu", {"pid": 1, "command": "x"})), 1: "no GPU\nAPI_TOKEN=hunter2hunter2", 2: ""}
    for number, text in said.items():
        queue.add(entry(home, number))
        log = home / f"queue.{entry(home, number).id}.log"
        log.write_text(text, encoding="utf-8")
    with queue._changing() as entries:
        for name, one in entries.items():
            entries[name] = one.but(state="running", runner=GONE, started=one.asked)
    found = queue.entries()
    assert [one.state for one in found] == ["waiting", "ended", "ended"]
    assert found[1].note == "no GPU\\nAPI_TOKEN=[redacted]"
    assert found[2].note == "it was not started"


def test_entries_are_cancelled_limited_and_forgotten(
    home: Path, queue: RunQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MOST_WAITING", 3)
    monkeypatch.setattr(module, "_MOST_ENDED", 2)
    for number in range(3):
        queue.add(entry(home, number))
    with pytest.raises(Unable, match="3 validations wait already"):
        queue.add(entry(home, 3))
    for number in range(3):
        queue.cancel(entry(home, number).id, note="cancelled by you")
    assert [(one.id[-1], one.note) for one in queue.entries()] == [("1", "cancelled by you"), ("2", "cancelled by you")]
    with pytest.raises(Unable, match="no such validation waits"):
        queue.cancel(entry(home, 1).id, note="cancelled by you")


def test_what_cannot_be_started_says_why(home: Path, queue: RunQueue) -> None:
    queue.add(entry(home).but(cwd=str(home / "gone")))
    queue.step()
    (one,) = queue.entries()
    assert (one.state, "it cannot be started" in one.note, "gone" in one.note) == ("ended", True, True)


def test_a_damaged_queue_is_named_and_kept(home: Path, queue: RunQueue) -> None:
    queue.add(entry(home))
    (path,) = home.glob("*.json")
    assert path.stat().st_mode & 0o077 == 0
    path.write_text("{", encoding="utf-8")
    with pytest.raises(Unable, match="damaged; move it away"):
        queue.entries()
    assert path.read_text(encoding="utf-8") == "{"
    path.with_suffix(".lock").unlink()
    path.with_suffix(".lock").mkdir()
    with pytest.raises(Unable, match="cannot be written"):
        queue.entries()
