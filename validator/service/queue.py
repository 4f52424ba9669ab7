"""The queue of this machine: validations that were asked for, started one after another as soon as the machine is free.

It is a file in the user's state folder, one for each reports folder and machine; all of its changes are made under a
lock of the kernel. What is started is a process of a session of its own, which enters itself as the runner before it
becomes `validator run`: so an entry is started once, whichever server is killed and however many there are.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from validator.documents import parse_json
from validator.errors import Unable
from validator.files import Tree, replace_file
from validator.history.read import read_entry
from validator.model.units import Frozen
from validator.report.terminal.observer import RESULTS_IN
from validator.runs.folder import Runner, this_runner
from validator.secrets.redact import redact
from validator.startup import call_argv
from validator.supervise.lock import IN_USE, LockHeld, holders
from validator.text import one_line
from validator.times import iso_now

ENTRY_ID = r"^[0-9a-f]{32}$"
_MOST_WAITING, _MOST_ENDED = 100, 50
_PAUSE_S = 5.0
"""Time between two starts: those that are refused at once must not disturb what others measure on the machine."""


class QueueEntry(Frozen):
    """One validation that was asked for.

    `runbook` is the name that `path` had in the list, `sha256` that of the file when it was checked. `locks` are those
    of the machine that must be free. `folder` is the run folder's name, `note` the decision, or why there is none.
    """

    id: str = Field(pattern=ENTRY_ID)
    runbook: str
    path: str
    sha256: str
    overrides: tuple[str, ...] = ()
    out: str
    cwd: str
    locks: tuple[str, ...] = ()
    by: str
    asked: str
    state: Literal["waiting", "running", "ended"] = "waiting"
    runner: Runner | None = None
    started: str = ""
    folder: str = ""
    note: str = ""

    def but(self, **changes: Any) -> QueueEntry:
        """The entry with some fields changed."""
        return self.model_copy(update=changes)


class _QueueFile(Frozen):
    """The file."""

    schema_version: Literal[1] = 1
    entries: tuple[QueueEntry, ...] = ()


class RunQueue:
    """The queue in a file. Safe to use from several threads and processes.

    Every method raises Unable when the file is damaged or cannot be written. As long as the stamp is `idle`, there is
    nothing to do for `step`.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._child: subprocess.Popen[bytes] | None = None
        self._next_s = float("-inf")
        self.idle: str | None = None

    def stamp(self) -> str:
        """A text that changes when the queue does."""
        with suppress(FileNotFoundError):
            found = self._path.stat()
            return f"{found.st_ino}-{found.st_mtime_ns}"  # a new file has another inode than the one that it replaces
        return ""

    def entries(self) -> tuple[QueueEntry, ...]:
        """All entries as they are now, in the order in which they were asked for."""
        with self._changing() as entries:
            return tuple(entries.values())

    def add(self, entry: QueueEntry) -> None:
        """Put an entry at the end, unless it is there already. Raises Unable when too many wait."""
        with self._changing() as entries:
            if sum(one.state == "waiting" for one in entries.values()) >= _MOST_WAITING:
                raise Unable(f"{_MOST_WAITING} validations wait already; cancel some")
            entries.setdefault(entry.id, entry)

    def cancel(self, entry_id: str, *, note: str) -> None:
        """Take an entry out that waits, with the reason. Raises Unable for any other."""
        with self._changing() as entries:
            one = entries.get(entry_id)
            if one is None or one.state != "waiting":
                raise Unable("no such validation waits any more; one that runs is stopped on its page")
            entries[entry_id] = one.but(state="ended", note=note)

    def claim(self, entry_id: str) -> QueueEntry | None:
        """Make this process the runner of an entry that waits, and return it; None where it may not be started."""
        with self._changing() as entries:
            one = entries.get(entry_id)
            if one is None or one.state != "waiting" or any(other.state == "running" for other in entries.values()):
                return None
            if hashlib.sha256(Path(one.path).read_bytes()).hexdigest() != one.sha256:
                entries[entry_id] = one.but(state="ended", note="the runbook was edited after its check; ask again")
                return None
            entries[entry_id] = one.but(state="running", runner=this_runner(), started=iso_now("seconds"))
            return entries[entry_id]

    def blocked(self, entry: QueueEntry) -> str:
        """Who has what an entry needs of the machine, as a sentence; empty where it is free."""
        try:
            held = holders()
        except OSError as error:
            return str(error)
        return next((str(LockHeld(one, held[one])).partition("; wait")[0] for one in entry.locks if one in held), "")

    def step(self) -> None:
        """Notice what has ended, and start the next entry where the machine is free."""
        stamp, none_left = self.stamp(), self._child is None or self._child.poll() is not None  # else a zombie stays
        first = next((one for one in self.entries() if one.state != "ended"), None)
        self.idle = stamp if first is None and none_left else None
        if first is None or first.state == "running" or time.monotonic() < self._next_s or self.blocked(first):
            return
        self._next_s = time.monotonic() + _PAUSE_S
        command = [*call_argv("validator.service.queue", "begin"), str(self._path), first.id]
        try:
            with open(self._log(first), "wb", opener=lambda path, flags: os.open(path, flags, 0o600)) as log:
                self._child = subprocess.Popen(
                    command, cwd=first.cwd, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
                )
        except OSError as error:
            self.cancel(first.id, note=f"it cannot be started: {error}")

    def _settled(self, entry: QueueEntry) -> QueueEntry:
        """A running entry with its folder once that is there, and ended once its runner has."""
        if entry.state != "running" or entry.runner is None:
            return entry
        alive, log = entry.runner.alive(), self._log(entry)  # first: what it wrote before it ended is there then
        if alive and entry.folder:
            return entry
        said = log.read_text("utf-8", "replace") if log.exists() else ""
        folder = entry.folder or Path(said.partition(RESULTS_IN)[2].partition("\n")[0]).name
        if alive:
            return entry.but(folder=folder)
        if folder:
            result = read_entry(Path(entry.out) / folder)
            note = result.decision if result and result.decision != "IN_PROGRESS" else "its runner was killed"
            return entry.but(folder=folder, state="ended", note=note)
        if IN_USE in said:  # another was quicker to take the machine
            return entry.but(state="waiting", runner=None, started="")
        return entry.but(state="ended", note=one_line(redact(said.strip()), limit=400) or "it was not started")

    def _log(self, entry: QueueEntry) -> Path:
        return self._path.with_name(f"{self._path.stem}.{entry.id}.log")

    @contextmanager
    def _changing(self) -> Iterator[dict[str, QueueEntry]]:
        """The entries by id, under the lock; what the block makes of them is written, without the oldest ended ones."""
        try:
            with Tree(self._path.parent) as tree, tree.locked(self._path.with_suffix(".lock").name):
                stored = tree.read(self._path.name) if self._path.exists() else b"{}"
                before = _QueueFile.model_validate(parse_json(stored)).entries
                entries = {one.id: self._settled(one) for one in before}
                yield entries
                for one in [one for one in entries.values() if one.state == "ended"][:-_MOST_ENDED]:
                    del entries[one.id]
                    self._log(one).unlink(missing_ok=True)
                left = tuple(entries.values())
                if left != before:
                    replace_file(self._path, _QueueFile(entries=left).model_dump_json(indent=1), mode=0o600)
        except ValueError as error:
            raise Unable(f"the queue {self._path} is damaged; move it away, which loses its entries") from error
        except OSError as error:
            raise Unable(f"the queue {self._path} cannot be written: {error.strerror or error}") from error


def begin() -> int:
    """What a started process does: take the entry, then become `validator run` under the same process id."""
    entry = RunQueue(Path(sys.argv[1])).claim(sys.argv[2])
    if entry is not None:
        sets = [word for override in entry.overrides for word in ("--set", override)]
        run = call_argv("validator.cli", "main")
        os.execv(run[0], [*run, "run", entry.path, *sets, "--out", entry.out])
    return 0
