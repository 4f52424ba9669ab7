"""Ways to act in the middle of a run that trains in this process."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import nsa.loop

__all__ = ["at_step", "has_rows", "until"]


def at_step(monkeypatch: pytest.MonkeyPatch, step: int, action: Callable[[Any], None]) -> None:
    """Do something right before the given step is launched."""
    launch = nsa.loop._launch

    def wrapped(run: Any, number: int) -> Any:
        if number == step:
            action(run)
        return launch(run, number)

    monkeypatch.setattr(nsa.loop, "_launch", wrapped)


def has_rows(table: Path, count: int) -> bool:
    """Whether so many rows, and the head, have been written."""
    return table.exists() and table.read_text().count("\n") > count


def until(condition: Callable[[], object], *, within_s: float = 5.0) -> None:
    """Come back once the condition holds, or after this time: what it was for is then found missing by the test."""
    deadline = time.monotonic() + within_s
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.001)
