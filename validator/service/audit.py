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

_MAX_BYTES = 16 << 20
"""Of a file that is then renamed to `.1`, where it takes the place of the one before."""

_MAX_REFUSED = 60
"""Lines a minute about what was refused: more would drive all others out of the log."""

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
        try:
            self._append(line)
        except OSError as error:
            sys.stderr.write(f"the audit log cannot be written: {error}: {line.decode()}")

    def _append(self, line: bytes) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(self.path, flags, 0o600), "ab", buffering=0) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            before = os.fstat(file.fileno())
            if file.write(line) < len(line):
                os.ftruncate(file.fileno(), before.st_size)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            with suppress(FileNotFoundError):  # another server has renamed it, and this line is in the older file
                if before.st_size > _MAX_BYTES and os.path.samestat(before, self.path.stat()):
                    self.path.replace(f"{self.path}.1")
