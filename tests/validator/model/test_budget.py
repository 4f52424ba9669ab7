"""A pattern that would search for ever is ended, and said; one that is merely used a lot is not."""

from __future__ import annotations

import re
import threading
import time

import pytest

from validator.model import budget
from validator.model.budget import TooSlow, searching
from validator.model.parts import Hardware


def search(pattern: str, text: str, times: int = 1) -> int:
    wanted, found = re.compile(pattern), 0
    with searching(pattern) as count:
        for _ in range(times):
            count()
            found += wanted.search(text) is not None
    return found


@pytest.mark.timeout(60)
def test_a_pattern_that_backtracks_for_ever_is_ended_and_never_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "_TICK_S", 0.2)
    began = time.monotonic()
    with pytest.raises(TooSlow, match=r"takes too long: 1 lines in \d s of CPU time"):
        search(r"(?P<step>(a+)+)$", "a" * 5000 + "!")
    with pytest.raises(TooSlow):
        search(r"(?P<step>(a+)+)$", "harmless")
    assert time.monotonic() - began < 30
    assert search(r"(?P<step>a+)$", "a") == 1, "others are searched for as before"


@pytest.mark.timeout(60)
def test_a_pattern_that_is_slow_on_every_line_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "_TICK_S", 0.2)
    with pytest.raises(TooSlow, match="lines in"):
        search(r"a.*a.*a.*b", "a" * 300, times=100_000)


def test_nested_limits_and_other_threads_do_no_harm() -> None:
    with searching("outer") as outer:
        outer()
        assert search("b", "abc", times=1000) == 1000
        outer()
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(search("b", "abc")))
    thread.start()
    thread.join()
    assert found == [1]


def test_a_usual_pattern_is_far_from_the_limit() -> None:
    pattern = r"step (?P<step>\d+).*loss (?P<loss>[\d.]+).*tok/s (?P<toks_per_s>[\d.]+)"
    began = time.process_time()
    assert search(pattern, f"{'x' * 8000} step 5 loss 1.5 tok/s 1000.0", times=2000) == 2000
    assert 2000 / (time.process_time() - began) > 5 * 1000


@pytest.mark.timeout(20)
def test_the_declared_name_of_a_gpu_is_sought_under_the_limit() -> None:
    """A folder that was received holds the pattern and the name: its report must end."""
    assert not Hardware(name="(a+)+$").fits("a" * 40 + "!")
    assert Hardware(name="H[12]00.*HBM").fits("NVIDIA H200 141GB HBM3e")
    assert not Hardware(name="H[12]00").fits("NVIDIA A100-SXM4-80GB")
    assert Hardware().fits("any")
