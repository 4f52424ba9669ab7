"""The audit log: who changed what through the service, a line of JSON each, beside the index.

Servers may share it. Where it cannot be written, its lines go to standard error: a full disk must not keep anybody
from stopping a validation.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import sys
import time
from contextlib import suppress
from pathlib import Path

from validator.text import one_line
from validator.times import iso_now

_MAX_BYTES = 4 << 20
_KEPT = 4
"""Full files beside the one that is written: `.1` is the latest."""

_MAX_REFUSED = 60
"""Lines a minute about what was refused: more would drive all others out of the log."""

_TRIES = 9

_TOKEN = re.compile(r"vt_[\w-]{20,}")


class AuditLog:
    """The log of a file, which only its owner can read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._minute, self._refused = 0, 0

    def write(self, *, who: str, address: str, action: str, what: str = "", outcome: str = "done") -> None:
        """Add a line; texts are cut and hold no token.

        Args:
            who: the name of a token, `loopback` where none is needed, empty for a visitor without one.
            address: the visitor's.
            action: what was asked for, in a word or two.
            what: the run, runbook or path that it was asked for.
            outcome: `done`, or how it ended, beginning with `failed`, `refused` or `wrong`.
        """
        if outcome.startswith(("refused", "wrong")):
            minute = int(time.monotonic() // 60)
            self._refused = self._refused + 1 if minute == self._minute else 1
            self._minute = minute
            if self._refused > _MAX_REFUSED:
                return
        texts = {"who": who, "address": address, "action": action, "object": what, "outcome": outcome}
        shown = {name: _TOKEN.sub("[redacted]", one_line(text, limit=300)) for name, text in texts.items()}
        line = json.dumps({"time": iso_now(), **shown}).encode() + b"\n"
        why: object = "another server renames it"
        for _ in range(_TRIES):
            try:
                if self._append(line):
                    return
            except OSError as error:
                why = error
        sys.stderr.write(f"the audit log cannot be written: {why}: {line.decode()}")

    def _append(self, line: bytes) -> bool:
        """Add a line under a lock; False where the file was full, or has been renamed since it was opened."""
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(self.path, flags, 0o600), "ab", buffering=0) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            opened = os.fstat(file.fileno())
            if not os.path.samestat(opened, self.path.stat()):
                return False
            if opened.st_size and opened.st_size + len(line) > _MAX_BYTES:
                self._rotate()
                return False
            if file.write(line) < len(line):
                os.ftruncate(file.fileno(), opened.st_size)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return True

    def _rotate(self) -> None:
        names = [self.path, *(self.path.with_name(f"{self.path.name}.{number}") for number in range(1, _KEPT + 1))]
        for older, newer in zip(names[:0:-1], names[-2::-1], strict=True):
            with suppress(FileNotFoundError):
                newer.replace(older)
