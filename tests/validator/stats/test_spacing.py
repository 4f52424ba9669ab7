"""Rows that come seldom by a rule are told from rows that are missing."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest

from tests.validator.judge.samples import result, series
from validator.stats.measure import NotMeasured, measure
from validator.stats.spacing import (
    Thinning,
    at_even_times,
    even_rows,
    joined,
    late_thinning,
    next_due,
    on_two_grids,
    pace_of_regular_gaps,
    thins_out,
)


def at(steps: Iterable[float]) -> np.ndarray:
    return np.unique(np.array([int(step) for step in steps], dtype=np.int64))


POWERS = [2**n for n in range(9)]  # 1 to 256
RULES = {
    "powers": (POWERS, 512),
    "powers and the last step": ([*POWERS, 300], 512),
    "powers and a later last step": ([*POWERS, 400], 512),
    "powers behind 0": ([0, *POWERS], 512),
    "1, 2, 5": ([1, 2, 5, 10, 20, 50, 100, 200], 500),
    "1, 3, 10": ([1, 3, 10, 30, 100, 300], 1000),
    "evenly spaced logarithms": (np.geomspace(1, 250, 30), 303),
    "tens of tens": ([*range(1, 10), *range(10, 100, 10), *range(100, 1000, 100)], 1000),
    "powers, then even": ([*POWERS, 512, *range(1000, 5000, 1000)], 5000),
    "each step, then each tenth": ([*range(1, 10), *range(10, 301, 10)], 310),
    "each step, then each tenth, and the last": ([*range(1, 10), *range(10, 301, 10), 305], 310),
}


@pytest.mark.parametrize(("steps", "due"), RULES.values(), ids=list(RULES))
def test_a_rule_is_seen_in_the_rows(steps: Iterable[float], due: int) -> None:
    assert thins_out(at(steps))
    assert next_due(at(steps)) == pytest.approx(due, rel=0.02)


@pytest.mark.parametrize(
    "steps",
    [
        range(1, 301),
        range(10, 301, 10),
        [*range(1, 101), 200],
        [*range(10, 101, 10), 200],
        [*range(10, 101, 10), 150, 250],
        [*range(1, 100), *range(200, 300)],
        [40, 50, 60, 70, 80, 90, 100, 120],
        [step for step in POWERS if step != 16],
        [step for step in POWERS if step != 128],
        [1, 2, 4, 8],
        [50, 60, 72, 86, 104, 125],
    ],
)
def test_what_stops_or_was_lost_follows_none(steps: Iterable[float]) -> None:
    assert not thins_out(at(steps))
    assert not at_even_times(at(steps))


@pytest.mark.parametrize("pace", [1, 5])
def test_a_stretch_that_was_taken_out_leaves_no_rule(pace: int) -> None:
    """Rows at 1, 2, 3, 4 and 8 looked like a ratio, behind which single steps go on."""
    every = np.arange(pace, 60 * pace + 1, pace)
    for low in range(1, 58):
        for high in range(low + 1, min(low + 12, 59)):
            left = np.delete(every, slice(low, high))
            assert not thins_out(left), left


def test_rows_that_were_lost_at_random_follow_none() -> None:
    rng = np.random.default_rng(0)
    for pace in (1, 5, 10):
        for share in (0.5, 0.7, 0.9):
            for _ in range(200):
                every = np.arange(pace, 301, pace)
                left = every[rng.random(len(every)) < share]
                assert not thins_out(left), left
                assert not at_even_times(left), left


def test_rows_of_a_grid_from_which_some_are_missing_are_on_no_two_grids() -> None:
    rng = np.random.default_rng(1)
    for pace in (1, 5, 20):
        every = np.arange(pace, 60 * pace + 1, pace)
        for nth in range(2, 12):
            assert pace_of_regular_gaps(np.diff(every[np.arange(1, 61) % nth > 0])) == (
                pace if nth > 2 and (pace > 1 or nth < 6) else None
            ), nth
            assert nth == 2 or not on_two_grids(every[np.arange(1, 61) % nth > 0]), nth
        for share in (0.5, 0.7, 0.9, 0.97):
            for _ in range(100):
                left = every[rng.random(60) < share]
                assert not on_two_grids(left) or np.diff(left).max() == pace, left
                assert pace_of_regular_gaps(np.diff(left)) is None, left
    assert on_two_grids(at([n for n in range(1, 400) if n % 20 == 0 or n % 30 == 0]))
    assert on_two_grids(at([n for n in range(400) if (n + 1) % 20 == 0 or (n + 1) % 50 == 0]))


@pytest.mark.parametrize(
    ("steps", "found"),
    [
        ([*range(1, 61), *range(62, 101, 2)], Thinning(60, 1, 2, 20)),
        ([*range(1, 61), *range(63, 101, 3)], Thinning(60, 1, 3, 26)),
        ([*range(5, 61, 5), *range(70, 121, 10), 122], Thinning(60, 5, 10, 6)),
        ([*range(1, 61), *range(70, 101, 10)], Thinning(60, 1, 10, 36)),
        ([*range(1, 10), *range(10, 601, 10), *range(620, 1001, 20)], Thinning(600, 10, 20, 20)),
        ([*range(5001, 5061), *range(5062, 5101, 2)], Thinning(5060, 1, 2, 20)),
    ],
)
def test_rows_that_are_dropped_in_a_regular_pattern_are_no_rule(steps: Iterable[float], found: Thinning) -> None:
    assert late_thinning(at(steps)) == found


@pytest.mark.parametrize(
    "steps",
    [
        *(steps for steps, _ in RULES.values()),
        [*range(1, 11), *range(12, 201, 2)],
        [*range(1, 101), *range(110, 301, 10)],
        [*range(1, 51), *range(52, 101, 2), *range(104, 201, 4)],
        [*range(1, 10), *range(10, 100, 10), *range(100, 301, 100)],
        range(1, 301),
    ],
)
def test_a_pace_that_is_lowered_at_the_start_or_by_a_rule_drops_no_rows(steps: Iterable[float]) -> None:
    assert late_thinning(at(steps)) is None


def test_a_clock_leaves_strides_that_vary_within_bounds() -> None:
    steps = at(np.cumsum([4, 37, 41, 39, 52, 38, 40, 44, 36, 11]))
    assert at_even_times(steps)
    assert next_due(steps) > steps[-1]
    assert not at_even_times(np.delete(steps, [4, 5])), "two rows are missing"
    assert not at_even_times(at(np.cumsum([41, 40, 12, 43, 39, 44, 38, 40, 11]))), "one came far too early"


def _told(steps: Iterable[int]) -> str:
    """What is said of a gradient norm that was logged at these of 300 steps."""
    steps = list(steps)
    found = result(series={"grad_norm": series("grad_norm", np.linspace(2, 1, len(steps)), steps=steps)})
    try:
        return f"{measure(found, warmup_steps=20).estimate('grad_norm', 'max').point:g}"
    except NotMeasured as problem:
        return str(problem)


def test_a_series_that_thins_out_by_a_rule_is_measured() -> None:
    assert _told(POWERS) == "2"
    assert _told([*POWERS, 300]) == "2"
    assert _told([1, 2, 5, 10, 20, 50, 100, 200, 300]) == "2"


def test_a_series_that_leaves_the_end_of_a_run_untold_is_not_measured_by_whatever_rule() -> None:
    told = "grad_norm has 8 rows, the last at step 200, where others continue to 300"
    assert _told([1, 2, 5, 10, 20, 50, 100, 200]) == told


def test_a_series_that_only_seems_to_is_not() -> None:
    assert _told(POWERS[:-1]) == "grad_norm has 8 rows, the last at step 128, where others continue to 300"
    assert "no row between steps 64 and 256" in _told([1, 2, 4, 8, 16, 32, 64, 256])
    assert "no row between steps 20 and 300" in _told([*range(1, 21), 300])
    late = [*range(150, 160), *range(160, 301, 10)]
    assert thins_out(at(late)), "by a rule, but most of a run late"
    assert "no row between steps 0 and 150" in _told(late)


def test_a_bar_that_is_drawn_at_most_so_often_misses_no_rows() -> None:
    """A step of 22 ms, drawn when 50 ms have passed and at the end of an epoch: strides of 2, 3 and, at ends, 1."""
    random = np.random.default_rng(0)
    ends = np.cumsum(0.022 * random.lognormal(0, 0.2, 400))
    drawn, last = [], -1.0
    for step, end in enumerate(ends, 1):
        if end - last >= 0.05 or step % 100 == 0:
            drawn.append(step)
            last = float(end)
    bar = at(drawn)
    assert at_even_times(bar)
    for pace in (1, 2, 3, 5):
        even = np.arange(pace, 400, pace)
        assert not at_even_times(np.delete(even, random.choice(len(even) - 2, len(even) // 4, replace=False) + 1)), pace


def test_rows_that_cover_alike_are_not_joined() -> None:
    each, tens = np.ones(500), np.full(50, 10.0)
    for covered in (each, tens, np.r_[1, 9, tens], np.r_[tens, 3], np.r_[each, 200, each], np.r_[tens, 30, tens]):
        assert even_rows(covered) is None, "a first row, a last one or a gap is no other pace"


@pytest.mark.parametrize(
    ("covered", "pace"),
    [
        (np.r_[np.full(60, 10), np.full(28, 50)], 50),
        (np.r_[np.full(24, 50), np.full(80, 10)], 50),
        (np.r_[np.ones(400), np.full(160, 10)], 10),
        (np.tile([1, 49], 40), 49),
        (np.tile([3, 17, 9, 1, 20], 40), 20),
    ],
)
def test_fine_rows_are_joined_to_the_pace_of_coarse_ones(covered: np.ndarray, pace: int) -> None:
    groups = even_rows(covered.astype(float))
    made = joined(covered.astype(float), groups)
    assert made.sum() == covered.sum()
    assert np.median(made) == pytest.approx(pace, rel=0.1)
    assert pace / 2 <= made.min() <= made.max() < 2.5 * pace
