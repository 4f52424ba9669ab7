"""The journal of a validation: what happened, in order, in a file that survives the runner.

One JSON object per line, each line written in a single call and fsynced before `append` returns, unless the caller
says that another event follows at once. Order in the file is the order of events; the wall clock may jump, so nothing
is ever sorted by it.
"""

from __future__ import annotations

import errno
import fcntl
import json
import math
import os
import stat
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel

from validator.documents import parse_json
from validator.errors import Unable
from validator.files import Tree, Unreadable, sync_folder
from validator.model.plan import RunSpec
from validator.model.record import Attempt, Outcome, PhaseState
from validator.model.verdict import Check, Extension
from validator.runs.folder import Runner
from validator.times import iso_now


class JournalBusy(Unable):
    """Another process is writing this journal; two writers would tear each other's lines."""


@dataclass(frozen=True)
class Event:
    """One line of a journal. `ts` is UTC, ISO 8601; `mono` seconds of the writer's monotonic clock."""

    event: str
    ts: str
    mono: float
    fields: Mapping[str, Any]


class Journal:
    """The single writer of a journal. Use `Journal.open`; safe to use as a context manager."""

    def __init__(self, fd: int, path: Path, *, redact: Callable[[str], str] | None) -> None:
        self._fd = fd
        self.path = path
        self._redact = redact

    @classmethod
    def open(cls, path: Path, *, redact: Callable[[str], str] | None = None) -> Journal:
        """Open or create the journal at `path` for appending.

        A last line that a crash truncated is removed first: it was never acknowledged, and the next event must not be
        glued to it. `redact` is applied to every text that is written.

        Raises:
            JournalBusy: when another process holds it.
            OSError: when it cannot be written, or is a link or no regular file.
        """
        created = not path.exists()
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        fd = os.open(path, flags, 0o644)
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise Unreadable(errno.EINVAL, f"{path.name} is not a regular file")
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise JournalBusy(
                    f"{path.name} is being written by another validator; wait for it or use another folder"
                ) from error
            _drop_torn_tail(fd)
            if created:
                sync_folder(path.parent)
        except BaseException:
            os.close(fd)
            raise
        return cls(fd, path, redact=redact)

    def append(
        self, event: str, *, sync: bool = True, as_it_is: Mapping[str, Any] | None = None, **fields: Any
    ) -> Event:
        """Write one event and wait until it is on disk.

        With `sync=False` the wait is left to the next event: the line survives a crash of this process, but maybe not
        of the machine. Models are written as their JSON form; numbers that JSON cannot hold become null.

        Fields in `as_it_is` are not redacted: they hold patterns that must stay whole, and have been cleaned by the
        caller.

        Raises:
            OSError: when the disk refuses; the line is then not in the journal, not even in part.
        """
        entry = Event(
            event=event,
            ts=iso_now(),
            mono=round(time.monotonic(), 4),
            fields={
                **{name: _plain(value, self._redact) for name, value in fields.items()},
                **{name: _plain(value, None) for name, value in (as_it_is or {}).items()},
            },
        )
        line = {"ts": entry.ts, "mono": entry.mono, "event": event, **entry.fields}
        data = json.dumps(line, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        before = os.fstat(self._fd).st_size
        try:
            _write_all(self._fd, data.encode("utf-8", "replace") + b"\n")
        except OSError:
            with suppress(OSError):  # the next one to open it drops a torn line as well
                os.ftruncate(self._fd, before)
            raise
        if sync:
            os.fsync(self._fd)
        return entry

    def close(self) -> None:
        """Release the file. Closing twice is harmless."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def read(path: Path) -> tuple[Event, ...]:
    """Every whole event of a journal, in order; () when there is no file, or none that is read.

    A last line without its newline is what a crash leaves behind and is passed over, as is any line that is not an
    event, so that a damaged journal is read as far as it can be.
    """
    try:
        with Tree(path.parent) as tree:
            data = tree.read(path.name)
    except (FileNotFoundError, Unreadable):
        return ()
    events = []
    for line in data.split(b"\n")[:-1]:
        if b'"event"' not in line:
            continue  # a parser that fails a million times takes seconds
        try:
            entry = parse_json(line)
            fields = {key: value for key, value in entry.items() if key not in ("ts", "mono", "event")}
            mono = float(entry["mono"])
            if math.isfinite(mono):
                events.append(Event(str(entry["event"]), str(entry["ts"]), mono, fields))
        except (ValueError, KeyError, TypeError, AttributeError):
            continue
    return tuple(events)


def _drop_torn_tail(fd: int) -> None:
    end = os.fstat(fd).st_size
    keep = end
    while keep > 0:
        start = max(0, keep - 65536)
        newline = os.pread(fd, keep - start, start).rfind(b"\n")
        if newline >= 0:
            keep = start + newline + 1
            break
        keep = start
    if keep != end:
        os.ftruncate(fd, keep)
        os.fsync(fd)


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _plain(value: Any, redact: Callable[[str], str] | None) -> Any:
    """`value` as JSON knows it: dict, list, text, finite number, bool or None."""
    if isinstance(value, BaseModel):
        return _plain(value.model_dump(mode="json", by_alias=True), redact)
    if isinstance(value, str):
        return redact(value) if redact else value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, Mapping):
        return {str(key): _entry(str(key), item, redact) for key, item in value.items()}
    if isinstance(value, (Sequence, set, frozenset)) and not isinstance(value, (bytes, bytearray)):
        return [_plain(item, redact) for item in value]
    return _plain(str(value), redact)


def _entry(key: str, value: Any, redact: Callable[[str], str] | None) -> Any:
    """A value under its name: what is secret often shows only by the name of the variable that holds it."""
    if redact is None or not isinstance(value, str):
        return _plain(value, redact)
    clean = redact(f"{key}={value}")
    return clean[len(key) + 1 :] if clean.startswith(f"{key}=") else redact(value)


# Which events of a journal can be relied on. One whose fields were garbled is passed over.

_Fields = Mapping[str, Any]


def _require_text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _ended(fields: _Fields) -> object:
    seconds = fields.get("duration_s")
    if seconds is not None and not (isinstance(seconds, (int, float)) and math.isfinite(seconds)):
        raise ValueError(f"{seconds!r} is no number of seconds")
    return [_require_text(fields.get(name) or "") for name in ("finished", "reason")]


def _phase_ended(fields: _Fields) -> object:
    if fields["state"] not in get_args(PhaseState):
        raise ValueError(f"state {fields['state']!r} is none of a phase's")
    return _require_text(fields["phase"]), _ended(fields)


def _remedy_ended(fields: _Fields) -> object:
    return _require_text(fields["remedy"] or ""), fields["decides"]


def _attempt_started(fields: _Fields) -> object:
    started = {"number": 1, "started": "", "duration_s": 0.0, "rc": None, "reason": "interrupted"}
    return Attempt.model_validate({**started, "command": fields.get("command") or (), "pid": fields.get("pid")})


_READERS: Mapping[str, Callable[[_Fields], object]] = {
    "run_started": lambda fields: (_require_text(fields["run"]), RunSpec.model_validate(fields["spec"])),
    "run_ended": lambda fields: (_require_text(fields["run"]), Outcome.model_validate(fields["outcome"])),
    "attempt_started": _attempt_started,
    "attempt_ended": lambda fields: Attempt.model_validate(fields["attempt"]),
    "run_read": lambda fields: {str(path): str(digest) for path, digest in fields["sources"].items()},
    "phase_checks": lambda fields: [Check.model_validate(check) for check in fields["checks"]],
    "phase_ended": _phase_ended,
    "phase_extended": lambda fields: Extension.model_validate(fields["extension"]),
    "remedy_ended": _remedy_ended,
    "resumed": lambda fields: Runner.model_validate(fields["runner"]),
    "finished": _ended,
    "interrupted": _ended,
    "nodes": lambda fields: [_require_text(node["name"]) for node in fields["allocation"]["nodes"]],
    "nodes_lost": lambda fields: [_require_text(name) for name in fields["nodes"]],
    "node_replaced": lambda fields: (_require_text(fields["node"]), _require_text(fields["by"])),
    "phase_reopened": lambda fields: (_require_text(fields["phase"]), [_require_text(run) for run in fields["runs"]]),
    "adopted": lambda fields: (_require_text(fields["phase"]), dict(fields["settings"])),
}


def sound(events: Iterable[Event]) -> tuple[Event, ...]:
    """The events whose fields are what their kind has."""
    return tuple(event for event in events if _is_sound(event))


def _is_sound(event: Event) -> bool:
    if not all(isinstance(event.fields.get(name), (str, type(None))) for name in ("run", "phase")):
        return False
    try:
        _READERS.get(event.event, dict)(event.fields)
    except (ArithmeticError, AttributeError, KeyError, RecursionError, TypeError, ValueError):
        return False
    return True
