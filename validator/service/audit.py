"""The audit log: who changed what through the service, a line of JSON each, beside the index.

Servers may share it. Where it cannot be written, its lines go to standard error: a full disk must not keep anybody
from stopping a validation.
"""

from __future__ import annotations

import json
import re
import sys
import time
from pathlib import Path

from validator.files import Tree
from validator.text import one_line
from validator.times import iso_now

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
        line = json.dumps({"time": iso_now(), **shown})
        try:
            with Tree(self.path.parent) as tree:
                tree.append(self.path.name, f"{line}\n".encode(), mode=0o600)
        except OSError as error:
            sys.stderr.write(f"the audit log cannot be written: {error}: {line}\n")
