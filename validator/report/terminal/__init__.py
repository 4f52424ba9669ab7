"""What is seen in a terminal while a validation runs and when it has ended. `rich` is imported only by the live table."""

from __future__ import annotations

from validator.report.terminal.observer import Observer, SilentObserver, make_observer, wants_color

__all__ = ["Observer", "SilentObserver", "make_observer", "wants_color"]
