"""Collected only where the interpreter is on; memory that a kernel should write starts as NaN, and none but a launch's
own tensors may be touched."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch

from tests.interpreting import mend_indices

collect_ignore_glob = [] if os.environ.get("TRITON_INTERPRET") == "1" else ["test_*.py"]
if not collect_ignore_glob:
    mend_indices()


@pytest.fixture(autouse=True)
def _poisoned_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    original = torch.Tensor.new_empty

    def new_empty(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        x = original(self, *args, **kwargs)
        return x.fill_(float("nan")) if x.is_floating_point() else x

    monkeypatch.setattr(torch.Tensor, "new_empty", new_empty)


@pytest.fixture(autouse=True)
def _checked_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.kernels.interpreted.bounds import check_bounds

    check_bounds(monkeypatch)


@pytest.fixture(autouse=True)
def _cheaper(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.kernels.interpreted.cheaper import make_cheaper

    make_cheaper(monkeypatch)
