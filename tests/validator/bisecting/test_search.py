"""The search against trainers that are only arithmetic: one cause, two, noise, combinations that do not run."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest

from validator.bisect.search import BudgetSpent, NoDifference, Reply, search

NAMES = tuple("abcdefgh")


class Fake:
    """Rates of combinations: good is 100, and `slow` tells the factor of a set. Noise as between real runs."""

    def __init__(
        self,
        slow: Callable[[frozenset[str]], float],
        *,
        cv: float = 0.0,
        budget: int = 100,
        breaks: Callable[[frozenset[str]], bool] = lambda _: False,
        seed: int = 0,
    ) -> None:
        self.slow, self.cv, self.budget, self.breaks = slow, cv, budget, breaks
        self.rng = np.random.default_rng(seed)
        self.runs = 2  # good and bad, which every search begins with
        self.rates: dict[frozenset[str], list[float]] = {}
        self.total = math.log(slow(frozenset(NAMES)))

    def __call__(self, subset: frozenset[str]) -> Reply:
        if subset == frozenset(NAMES):
            return Reply(1.0, 1.0, 1.0)
        if self.runs >= self.budget:
            raise BudgetSpent
        self.runs += 1
        if self.breaks(subset):
            return Reply(None)
        known = self.rates.setdefault(subset, [])
        known.append(math.log(self.slow(subset)) + self.cv * self.rng.standard_normal())
        share = float(np.mean(known)) / self.total
        half = 1.96 * self.cv * math.sqrt(2 / len(known)) / self.total
        return Reply(share, share - half, share + half, runs=len(known))


def _factor(**causes: float) -> Callable[[frozenset[str]], float]:
    return lambda subset: math.prod(factor for name, factor in causes.items() if name in subset)


@pytest.mark.parametrize("cause", NAMES)
def test_one_of_eight_is_found_in_few_runs_wherever_it_stands(cause: str) -> None:
    fake = Fake(_factor(**{cause: 5.0}), cv=0.02)
    found = search(NAMES, fake)
    assert found.names == (cause,)
    assert found.complete
    assert found.contributions[0].share == pytest.approx(1.0, abs=0.1)
    assert found.rest_share == pytest.approx(0.0, abs=0.1)
    assert fake.runs <= 8


@pytest.mark.parametrize("pair", list(itertools.combinations(NAMES, 2)))
def test_two_that_matter_only_together_are_found_in_twelve_runs(pair: tuple[str, str]) -> None:
    """Neither slows anything alone: a search that looks at one setting at a time finds nothing."""
    fake = Fake(lambda subset: 5.0 if set(pair) <= subset else 1.0, cv=0.02)
    found = search(NAMES, fake)
    assert set(found.names) == set(pair)
    assert all(one.share == pytest.approx(1.0, abs=0.15) for one in found.contributions)
    assert fake.runs <= 12


@pytest.mark.parametrize("pair", list(itertools.combinations(NAMES, 2)))
def test_two_that_each_slow_are_found_with_their_shares(pair: tuple[str, str]) -> None:
    fake = Fake(_factor(**{pair[0]: 2.0, pair[1]: 4.0}), cv=0.02)
    found = search(NAMES, fake)
    assert set(found.names) == set(pair)
    assert [one.names for one in found.contributions] == [(pair[1],), (pair[0],)]
    assert found.contributions[0].share == pytest.approx(2 / 3, abs=0.1)
    assert found.contributions[1].share == pytest.approx(1 / 3, abs=0.1)
    assert fake.runs <= 12


def test_three_causes_are_found_with_what_each_shows_alone() -> None:
    fake = Fake(_factor(b=2.0, e=2.0, h=2.0))
    found = search(NAMES, fake)
    assert set(found.names) == {"b", "e", "h"}
    assert all(one.alone == pytest.approx(1 / 3) for one in found.contributions)


@pytest.mark.parametrize("seed", range(20))
def test_noise_of_a_shared_machine_leads_nowhere_wrong(seed: int) -> None:
    """Runs that vary by 10 %, and a difference of 60 %: near answers are asked again."""
    fake = Fake(_factor(c=1.6, f=1.03), cv=0.10, seed=seed)
    found = search(NAMES, fake, repeats=6)
    assert "c" in found.names
    assert len(found.names) <= 2


def test_a_setting_that_speeds_up_does_not_hide_the_cause() -> None:
    found = search(NAMES, Fake(_factor(a=0.9, g=5.0)))
    assert found.names == ("g",)


def test_combinations_that_do_not_run_are_passed_around() -> None:
    """`d` needs `c`: a prefix that ends between them does not start."""
    fake = Fake(_factor(f=5.0), breaks=lambda subset: ("d" in subset) != ("c" in subset))
    found = search(NAMES, fake)
    assert found.names == ("f",)


def test_settings_that_only_run_together_are_named_together() -> None:
    fake = Fake(_factor(c=5.0), breaks=lambda subset: len(subset & {"b", "c", "d"}) in (1, 2))
    found = search(NAMES, fake)
    assert set(found.names) == {"b", "c", "d"}
    assert found.contributions[0].names == ("b", "c", "d")
    assert found.broken


def test_a_spent_budget_leaves_the_suspects() -> None:
    found = search(NAMES, Fake(_factor(c=5.0), budget=4))
    assert not found.complete
    assert "c" in found.suspects
    assert len(found.suspects) < len(NAMES)


def test_a_difference_that_is_not_in_the_settings_is_said() -> None:
    class Elsewhere(Fake):
        def __call__(self, subset: frozenset[str]) -> Reply:
            return Reply(0.1, 0.0, 0.2)

    with pytest.raises(NoDifference, match="10 %"):
        search(NAMES, Elsewhere(_factor(a=2.0)))


def test_a_single_difference_needs_no_further_run() -> None:
    fake = Fake(_factor(a=2.0))
    fake.total = math.log(2.0)

    def ask(subset: frozenset[str]) -> Reply:
        assert subset == {"a"}
        return Reply(1.0, 1.0, 1.0)

    found = search(("a",), ask)
    assert found.names == ("a",)
    assert found.contributions[0].share == pytest.approx(1.0)
