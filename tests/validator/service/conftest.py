"""What every test of the service has."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from validator.service.index import RunIndex


@pytest.fixture(autouse=True)
def closed_indexes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Close what a test has opened: from Python 3.13 on a database that is forgotten is a warning."""
    monkeypatch.setattr("validator.service.serve._TICK_S", 0.05)  # a server ends sooner
    opened: list[RunIndex] = []
    open_index = RunIndex.__init__

    def remember(index: RunIndex, *given: Any, **named: Any) -> None:
        open_index(index, *given, **named)
        opened.append(index)

    monkeypatch.setattr(RunIndex, "__init__", remember)
    yield
    for index in opened:
        index.close()
