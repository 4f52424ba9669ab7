"""The entry point: whatever happens to the terminal or to the program, the exit code says what was decided, or 4.

Nothing heavy is imported here, so that an installation that is broken, or a limit that is too low, ends in 4 as well.
"""

from __future__ import annotations

import errno
import gc
import io
import os
import re
import select
import sys
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

    from validator.text import CommandGuard


_INTERNAL_ERROR = 4
_CHUNK_BYTES = 4096
"""A pipe that is ready takes at least this much without blocking."""

_PATIENCE_S = 5.0

_ACTING = re.compile(
    r"\x1b(?!\[(?:[0-9;]*m|[0-9]*[AK]|\?25[hl]))|[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]"
)
"""Control characters and direction overrides, but for line ends, tabs and the sequences that are the command's own."""

_PRINT_ONLY = ("plan", "list", "history", "baseline", "token", "schema")
"""Commands whose answer is what they print: output that was lost is a failure. Of the others it is the exit code."""


def main() -> None:
    """Entry point of the console script. An error of the program itself ends in 4: Python's own 1 would say NO-GO."""
    out, _ = _steady_streams()
    code: int | str | None
    try:
        _run()
        code = 0
    except SystemExit as ended:
        code = ended.code
    except Exception:  # noqa: BLE001 -- whatever it is, it is not a decision
        import traceback

        traceback.print_exc()
        sys.stderr.write("validator: an internal error, not a decision; please report the lines above\n")
        code = _INTERNAL_ERROR
    sys.stdout.flush()
    if out.error is not None and out.error.errno != errno.EPIPE:
        sys.stderr.write(f"validator: standard output cannot be written: {out.error.strerror}\n")
        code = _INTERNAL_ERROR if not code and sys.argv[1:2] and sys.argv[1] in _PRINT_ONLY else code
    gc.freeze()  # the interpreter's last collection would visit every module once more
    sys.exit(code)


def _run() -> None:
    from validator.startup import trim_imports

    trim_imports()  # what it prevents must not have happened: before every other import
    from validator.commands.app import app

    app(prog_name="validator")


class _Steady(io.FileIO):
    """A standard stream that never fails: after the first error, kept in `error`, what is written goes nowhere.

    With `patience_s`, output that nobody takes for so long (a terminal that was stopped by Ctrl-S, a pager) is dropped
    until somebody does: progress must not stop the runner.
    """

    def __init__(self, fd: int, *, patience_s: float | None) -> None:
        super().__init__(fd, "w", closefd=False)
        self.error: OSError | None = None
        self._patience_s = self._wait_s = patience_s

    def write(self, data: ReadableBuffer, /) -> int:
        """Write some of it; what cannot be written counts as written."""
        view = memoryview(data)
        while self.error is None:
            try:
                ready = select.select([], [self], [], self._wait_s)[1]
                if not ready:
                    self._wait_s = 0.0
                    break
                written = super().write(view[:_CHUNK_BYTES])
            except (OSError, ValueError) as error:
                self.error = error if isinstance(error, OSError) else OSError(errno.EBADF, str(error))
            else:
                self._wait_s = self._patience_s
                if written is not None:  # None: somebody else filled it meanwhile
                    return written
        return len(view)


def _steady_streams() -> tuple[_Steady, _Steady]:
    """Replace standard output and error, and open those that are closed: a file must not get their numbers."""
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free, which is this one
    if sys.stdin is None:
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 -- a number, and for good
    out, err = _Steady(1, patience_s=None), _Steady(2, patience_s=_PATIENCE_S)
    sys.stdout, sys.stderr = _text_layer(out, sys.stdout, lines=False), _text_layer(err, sys.stderr, lines=True)
    return out, err


class _Plain(io.TextIOWrapper):
    """Text without what could act on a terminal, as a last line of defense: escaped as JSON writes it, so that JSON
    stays the same value. Colors, and the cursor movements of the live table, are let through."""

    guard: CommandGuard | None = None
    """In a job of GitHub Actions, whose runner takes some lines for commands."""

    def write(self, text: str, /) -> int:
        """Write it; the answer counts the characters that were given."""
        plain = _ACTING.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
        super().write(plain if self.guard is None else self.guard.guarded(plain))
        return len(text)

    def write_command(self, line: str) -> None:
        """Write a line that the runner of GitHub Actions shall carry out."""
        if self.guard is not None and not self.guard.at_start:
            self.write("\n")
        super().write(_ACTING.sub("", f"{line}\n"))


def _text_layer(raw: _Steady, before: TextIO | None, *, lines: bool) -> TextIO:
    """The text layer as Python makes it, except that what the encoding lacks is escaped."""
    encoding = getattr(before, "encoding", None) or "utf-8"
    made = _Plain(
        io.BufferedWriter(raw), encoding=encoding, errors="backslashreplace", line_buffering=lines or raw.isatty()
    )
    if os.environ.get("GITHUB_ACTIONS"):
        from validator.text import CommandGuard

        made.guard = CommandGuard()
    return made
