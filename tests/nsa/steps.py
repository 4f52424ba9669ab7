"""Ways to act in the middle of a run that trains in this process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import nsa.loop

__all__ = ["at_step"]


def at_step(monkeypatch: pytest.MonkeyPatch, step: int, action: Callable[[Any], None]) -> None:
    """Do something right before the given step is launched."""
    launch = nsa.loop._launch

    def wrapped(run: Any, number: int) -> Any:
        if number == step:
            action(run)
        return launch(run, number)

    monkeypatch.setattr(nsa.loop, "_launch", wrapped)
