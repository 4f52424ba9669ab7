"""A limit on the CPU time of a search, since the pattern of a runbook may backtrack without end.

Python's `re` looks for signals while it matches, so a timer that counts the process's own CPU time ends a search that
does not end by itself. CPU time, not wall time: a busy machine must not make a pattern slow. Timers work in the main
thread alone, which is where logs are searched; elsewhere there is no limit. See docs/adr/0019.
"""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

_TICK_S = 1.0
_GRACE_TICKS = 5
_MIN_LINES_PER_S = 1000.0
"""A usual pattern searches ten to a hundred times as many lines of the maximum length."""

_too_slow: dict[str, str] = {}
"""Patterns that were too slow in this process, and the message; none is tried twice."""


class TooSlow(Exception):
    """A pattern takes too long; the message says how long, and what to do."""


@contextmanager
def searching(pattern: str) -> Iterator[Callable[[], None]]:
    """Search lines for a pattern under the limit; call the yielded function once for each line.

    Raises:
        TooSlow: when a line takes more than two seconds of CPU time, or many lines more than a millisecond each; and at
            once when the pattern was too slow before.
    """
    if pattern in _too_slow:
        raise TooSlow(_too_slow[pattern])
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return
    lines = before = ticks = 0

    def count() -> None:
        nonlocal lines
        lines += 1

    def on_tick(number: int, frame: FrameType | None) -> None:
        nonlocal before, ticks
        ticks += 1
        stuck = lines == before and ticks > 1
        if stuck or (ticks >= _GRACE_TICKS and lines < _MIN_LINES_PER_S * _TICK_S * ticks):
            _too_slow[pattern] = (
                f"the pattern {pattern[:200]!r} takes too long: {lines} lines in {_TICK_S * ticks:.0f} s of CPU time, "
                "so it is not searched again; write it without a repetition inside a repetition, as in (a+)+, "
                "and with fewer .*"
            )
            signal.setitimer(
                signal.ITIMER_VIRTUAL, 0
            )  # once: the handler of TooSlow must not be interrupted by the next tick
            raise TooSlow(_too_slow[pattern])
        before = lines

    handler = signal.signal(signal.SIGVTALRM, on_tick)
    left = signal.setitimer(signal.ITIMER_VIRTUAL, _TICK_S, _TICK_S)
    try:
        yield count
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, *left)
        signal.signal(signal.SIGVTALRM, handler)


def found_in(pattern: str, text: str) -> bool:
    """Whether a pattern occurs in a text; False where the search takes too long."""
    with suppress(TooSlow), searching(pattern):
        return re.search(pattern, text) is not None
    return False
