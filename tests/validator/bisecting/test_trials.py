"""Trials without processes: what both ends must show before a search, and what an earlier session has measured."""

from __future__ import annotations

import pytest

from validator.bisect.search import BudgetSpent, Trial, Trials, measured_ends

GOOD, BAD = frozenset[str](), frozenset({"a", "b"})


def _trials(good: float | None, bad: float | None, *, half: float = 0.5, budget: int = 9, done: int = 0) -> Trials:
    """Trials of two settings that take no time; the first `done` are those of an earlier session."""

    def start(number: int, names: frozenset[str]) -> Trial:
        value = good if names == GOOD else bad
        return Trial(number, names, value, half, why=None if value else "it ended with exit code 1")

    kept = [start(number, (BAD, GOOD)[number % 2]) for number in range(1, done + 1)]
    return Trials(("a", "b"), "toks_per_s", "mean", run_cv=0.02, budget=budget, start=start, done=kept)


def _ends(trials: Trials) -> tuple[float | None, float | None, bool] | str:
    ends, why = measured_ends(trials, repeats=3, min_effect=0.05)
    if ends is None:
        return why
    return ends.good and ends.good.point, ends.bad and ends.bad.point, ends.works


def test_ends_that_differ_significantly_need_one_run_each() -> None:
    trials = _trials(100.0, 50.0)
    assert _ends(trials) == (100.0, 50.0, False)
    assert [trial.names for trial in trials.done] == [GOOD, BAD]


def test_a_bad_end_that_fails_is_searched_for_what_makes_it_fail() -> None:
    assert _ends(_trials(100.0, None)) == (100.0, None, True)


@pytest.mark.parametrize(("bad", "half", "change"), [(99.0, 0.1, "-1.0 %"), (80.0, 60.0, "-20.0 %")])
def test_ends_that_are_equal_or_too_noisy_are_run_alternately(bad: float, half: float, change: str) -> None:
    trials = _trials(100.0, bad, half=half)
    why = _ends(trials)
    assert "good and bad do not differ significantly after 3 runs each" in why
    assert f"differs by {change}; the minimum is 5 %" in why
    assert [trial.names for trial in trials.done] == [GOOD, BAD] * 3


def test_a_good_end_that_fails_is_no_end() -> None:
    assert _ends(_trials(None, 50.0)) == "good itself does not run: it ended with exit code 1"


def test_what_an_earlier_session_measured_is_not_run_again() -> None:
    trials = _trials(100.0, 50.0, budget=2, done=2)
    trials.start = pytest.fail
    assert _ends(trials) == (100.0, 50.0, False)
    with pytest.raises(BudgetSpent):
        trials.next(GOOD)


def test_trials_of_another_order_than_the_search_asks_for_are_dropped() -> None:
    trials = _trials(100.0, 50.0, done=3)
    del trials.done[0]
    assert _ends(trials) == (100.0, 50.0, False)
    assert [trial.number for trial in trials.done] == [1, 2]
