"""Trials without processes: what both ends must show before a search, and what an earlier session has measured."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.validator.judge.samples import outcome, result
from validator.bisect.answer import bisection, bisection_lines
from validator.bisect.search import BudgetSpent, Explanation, Trial, Trials, measured_ends
from validator.bisect.side import End
from validator.bisect.work import measured_value
from validator.model.catalogue import METRICS, Metric, speeds
from validator.model.runbook import Trainer

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


@pytest.mark.parametrize(
    ("without", "metric", "value"),
    [
        ((), "toks_per_s", 100.0),
        (("toks_per_s",), "step_time_s", 1.0),
        (("toks_per_s", "step_time_s"), "loss", 3.0),
    ],
)
def test_a_trial_is_measured_by_what_its_trainer_reports(without: tuple[str, ...], metric: str, value: float) -> None:
    known = [METRICS[name] for name in speeds(METRICS)]
    name, found, half, why = measured_value(result(without=without), outcome("t01"), known, warmup_steps=5)
    assert (name, why) == (metric, None)
    assert found == pytest.approx(value, rel=0.05)
    assert half > 0


def test_what_a_runbook_declares_comes_before_times() -> None:
    samples = Metric("samples_per_s", "samples/s", "steady", "higher", "declared")
    assert speeds({**METRICS, "samples_per_s": samples})[:2] == ("toks_per_s", "samples_per_s")


def test_a_run_without_any_says_what_there_could_be() -> None:
    found = result(without=("toks_per_s", "step_time_s", "loss"))
    known = [METRICS[name] for name in speeds(METRICS)]
    *_, why = measured_value(found, outcome("t01"), known, warmup_steps=5)
    assert why == "it wrote no toks_per_s or step_time_s or loss after 5 warm-up steps"


def test_the_first_run_decides_what_all_are_compared_by() -> None:
    def start(number: int, names: frozenset[str]) -> Trial:
        return Trial(number, names, 0.1 if names == GOOD else 0.2, 0.001, metric="step_time_s")

    trials = Trials(("a", "b"), None, "mean", run_cv=0.02, budget=9, start=start)
    assert _ends(trials) == (0.1, 0.2, False)
    assert trials.reference == "step_time_s.mean"


def test_a_spent_budget_is_resumed_with_a_larger_one() -> None:
    trials = _trials(100.0, 50.0, budget=2)
    measured_ends(trials, repeats=1, min_effect=0.05)
    end = End(name="x", trainer=Trainer(command=("t.py",)))
    found = Explanation(names=(), contributions=(), complete=False, suspects=("a", "b"))
    answer = bisection(end, end, trials, found, outcome="budget_spent", why="", folder=Path("re ports/b"))
    assert bisection_lines(answer)[-1] == "Next    validator bisect --resume 're ports/b' --max-runs 4"
