"""`python -m nsa.parity.speed`: both pairs of paths agree, and a difference is not passed over."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
import torch

from nsa.parity import speed
from validator.kinds.registry import load
from validator.runbook import find


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Small products on a busy machine: two threads that wait for each other cost a hundred times the work."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def test_it_prints_what_the_runbooks_read(capsys: pytest.CaptureFixture[str]) -> None:
    assert speed.main(["--device", "cpu", "--seq-len", "96"]) == 0
    printed = capsys.readouterr().out
    for name in ("ddp_1gpu", "ddp_2xa100", "ddp_2xh200", "ddp_8xh100"):
        phase = load(find(name)).runbook.phase("fast_paths")
        pattern = getattr(phase, "stdout", None)
        assert pattern is not None
        found: dict[str, float] = {}
        for match in re.finditer(pattern, printed):
            found |= {group: float(text) for group, text in match.groupdict().items() if text is not None}
        assert set(found) == {"ranges_equal", "ranges_speedup", "prefill_equal", "prefill_speedup"}
        assert (found["ranges_equal"], found["prefill_equal"]) == (1, 1)
        assert min(found["ranges_speedup"], found["prefill_speedup"]) > 0


def test_paths_that_differ_are_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(speed, "ranges_v2", lambda blocks, *args, **kwargs: torch.zeros(1))
    assert speed.main(["--device", "cpu", "--seq-len", "64"]) == 1
    assert "ranges_equal 0" in capsys.readouterr().out
