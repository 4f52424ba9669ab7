"""What is seen in a terminal: progress while a validation runs, the summary, and the tables of other commands."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, TextIO

from validator.report.terminal.lines import wants_color

if TYPE_CHECKING:
    from validator.report.terminal.observer import Observer

__all__ = ["make_observer"]


def make_observer(*, quiet: bool = False, stream: TextIO | None = None) -> Observer:
    """The observer that suits a stream (stderr by default); with `quiet` one that shows nothing.

    Live on a terminal that can draw the table (Unicode, cursor movement), plain lines elsewhere.
    """
    from validator.report.terminal.observer import Observer, PlainObserver

    out = stream or sys.stderr
    if quiet:
        return Observer()
    unicode = (getattr(out, "encoding", None) or "").lower().replace("-", "") == "utf8"
    if out.isatty() and unicode and os.environ.get("TERM", "") != "dumb":
        from validator.report.terminal.live import LiveObserver

        return LiveObserver(stream=out, color=wants_color(out))
    return PlainObserver(stream=out)
