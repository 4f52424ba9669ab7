"""Where warm-up ends, and the levels behind it."""

from __future__ import annotations

import numpy as np
import pytest

from tests.validator.judge.samples import ar1
from validator.stats.spacing import covered_steps
from validator.stats.window import MIN_ROWS, SteadyWindow, steady_window


def _steps(n: int) -> np.ndarray:
    return np.arange(1, n + 1)


def _window(times: np.ndarray, warmup_steps: int = 20) -> SteadyWindow:
    return steady_window(_steps(len(times)), times, warmup_steps=warmup_steps)


def _levels(*lengths_and_means: tuple[int, float], cv: float = 0.01, phi: float = 0.0, seed: int = 0) -> np.ndarray:
    profile = np.concatenate([np.full(length, mean) for length, mean in lengths_and_means])
    return profile * ar1(len(profile), cv=cv, phi=phi, seed=seed)


def test_declared_warmup_never_counts_even_if_it_looks_steady() -> None:
    window = _window(ar1(100, cv=0.01))
    assert window.steady
    assert window.after_step == 20
    assert (window.span.first_step, window.span.last_step) == (21, 100)
    assert len(window.levels) == 1


def test_warmup_longer_than_declared_is_found_at_the_change() -> None:
    window = _window(_levels((70, 1.3), (230, 1.0)))
    assert window.steady
    assert abs(window.after_step - 70) <= 2
    assert "warm-up ended" in window.note


def test_slowly_settling_run_is_cut_until_the_rest_is_flat() -> None:
    times = (1 + 0.5 * np.exp(-_steps(400) / 15)) * ar1(400, cv=0.005)
    window = _window(times)
    assert window.steady
    assert window.after_step <= 100
    assert times[window.after_step :].mean() == pytest.approx(1.0, rel=0.005)


def test_a_compilation_in_the_first_steps_is_left_out_undeclared() -> None:
    times = ar1(300, cv=0.02)
    times[:3] += 30
    window = _window(times, warmup_steps=0)
    assert window.after_step == 3
    assert window.steady


@pytest.mark.parametrize("phi", [0.0, 0.5, 0.8])
@pytest.mark.parametrize(
    ("before", "after", "at"), [(1.0, 2.0, 150), (1.0, 1.5, 180), (1.0, 1.25, 165), (1.0, 1.05, 150)]
)
def test_a_run_that_slows_down_is_not_warming_up(before: float, after: float, at: int, phi: float) -> None:
    times = _levels((at, before), (300 - at, after), cv=0.01, phi=phi)
    window = _window(times)
    assert window.after_step == 20
    assert not window.steady
    assert window.slowed
    assert not window.settling
    assert abs(window.levels[-1].first_step - at) <= 5 or len(window.levels) > 2
    assert window.levels[-1].low <= after <= window.levels[-1].high
    assert "became slower" in window.note


def test_a_run_that_becomes_faster_late_is_not_warming_up_either() -> None:
    window = _window(_levels((186, 2.0), (114, 1.0)))
    assert window.after_step == 20
    assert not window.steady
    assert not window.slowed
    assert not window.settling
    assert [round(level.mean) for level in window.levels] == [2, 1]


def test_of_a_slow_start_beyond_the_cap_the_rest_is_kept_and_settling() -> None:
    window = _window(_levels((90, 1.3), (210, 1.0)))
    assert window.after_step == 75
    assert window.settling
    assert not window.slowed
    assert "360 steps would show the rate after it" in window.note


def test_a_start_that_fades_over_a_short_run_is_settling() -> None:
    found = [_window(ar1(60, cv=0.02, seed=seed) * (1 + 0.5 * np.exp(-np.arange(60) / 15))) for seed in range(20)]
    assert np.mean([window.settling for window in found]) >= 0.9
    assert all(window.after_step == 20 for window in found)


@pytest.mark.parametrize(("before", "found"), [(1.3, True), (1.0, False)])
def test_a_slow_start_is_slow_from_the_first_step_on(before: float, found: bool) -> None:
    window = _window(_levels((20, before), (70, 1.3), (210, 1.0)))
    assert window.settling == found
    assert window.slow_start == found
    assert (window.after_step == 75) == found


@pytest.mark.filterwarnings("error")
def test_one_slow_row_of_most_of_the_steps_is_judged_without_a_warning() -> None:
    """Whether a start fades was read from half of a single row."""
    steps = np.array([330, 354, 380, 400, 439, 449, 461, 463, 466, 499])
    window = steady_window(
        steps, np.array([1.7, 1.0, 1.0, 1.002, 0.999, 1.002, 1.005, 0.994, 1.007, 0.998]), warmup_steps=0
    )
    assert not window.slow_start


def test_a_declared_warm_up_that_suffices_is_no_slow_start() -> None:
    assert not _window(_levels((20, 1.5), (280, 1.0))).slow_start


@pytest.mark.parametrize("seed", range(5))
def test_never_more_than_a_quarter_is_left_out_undeclared(seed: int) -> None:
    rng = np.random.default_rng(seed)
    slow = rng.integers(10, 200)
    window = _window(_levels((slow, 1 + rng.random()), (300 - slow, 1.0), seed=seed), warmup_steps=0)
    assert (window.after_step or 0) <= 75
    assert window.settling == (77 < slow <= 150)


def test_a_declared_warm_up_beyond_a_quarter_may_be_used_whole() -> None:
    window = _window(_levels((120, 1.3), (180, 1.0)), warmup_steps=130)
    assert window.after_step == 130
    assert window.steady


def test_three_points_of_a_ramp_are_too_few_to_be_steady() -> None:
    window = steady_window(np.array([1, 20, 40]), 1 / np.array([229.0, 480.0, 696.0]), warmup_steps=0)
    assert not window.steady
    assert f"{MIN_ROWS} are needed" in window.note


def test_one_long_pause_is_not_a_change() -> None:
    times = ar1(200, cv=0.01)
    times[120] = 40.0
    window = _window(times)
    assert window.steady
    assert window.after_step == 20


def test_regular_pauses_are_no_levels() -> None:
    times = ar1(400, cv=0.01)
    times[::50] += 10.0
    window = _window(times)
    assert window.steady
    assert window.after_step == 20


def test_a_slow_pace_that_returns_is_no_warm_up() -> None:
    window = _window(_levels((40, 1.3), (100, 1.0), (60, 1.3), (100, 1.0)), warmup_steps=0)
    assert window.after_step is None


@pytest.mark.parametrize("height", [1.2, 2.0])
def test_a_level_that_passes_is_kept_and_reported(height: float) -> None:
    window = _window(_levels((110, 1.0), (100, height), (90, 1.0)))
    assert window.after_step == 20
    assert not window.steady
    assert not window.slowed
    assert [level.mean for level in window.levels] == pytest.approx([1.0, height, 1.0], rel=0.02)


def test_levels_cover_the_window_without_gaps() -> None:
    window = _window(_levels((110, 1.0), (100, 1.2), (90, 1.4)))
    assert window.levels[0].first_step == window.span.first_step
    assert window.levels[-1].last_step == window.span.last_step
    assert all(a.last_step + 1 == b.first_step for a, b in zip(window.levels, window.levels[1:], strict=False))
    assert sum(level.rows for level in window.levels) == window.rows


@pytest.mark.parametrize("phi", [0.0, 0.5, 0.8])
def test_healthy_autocorrelated_runs_are_called_steady(phi: float) -> None:
    found = [_window(ar1(300, phi=phi, cv=0.02, seed=seed)) for seed in range(60)]
    assert np.mean([window.steady for window in found]) >= 0.9
    assert np.mean([window.slowed for window in found]) <= 0.05
    assert np.mean([window.settling for window in found]) <= 0.05


def test_window_counts_steps_when_rows_are_twenty_steps_apart() -> None:
    steps = np.arange(20, 601, 20)
    window = steady_window(steps, ar1(len(steps), cv=0.01), warmup_steps=20)
    assert window.after_step == 20
    assert window.rows == 29
    # The row at step 40 stands for steps 21 to 40; with 30 warm-up steps it holds some of them and must go.
    assert steady_window(steps, ar1(len(steps), cv=0.01), warmup_steps=30).after_step == 40


def test_covered_steps_of_gaps_and_of_counting_from_zero() -> None:
    assert covered_steps(np.array([1, 20, 40])).tolist() == [1, 19, 20]
    assert covered_steps(np.array([20, 40])).tolist() == [20, 20]
    assert covered_steps(np.array([0, 1, 2])).tolist() == [1, 1, 1]


def test_counting_from_zero_leaves_out_as_many_steps() -> None:
    one = steady_window(np.arange(1, 101), ar1(100), warmup_steps=20)
    zero = steady_window(np.arange(0, 100), ar1(100), warmup_steps=20)
    assert one.rows == zero.rows == 80
    assert zero.after_step == 19


@pytest.mark.parametrize("value", [np.nan, np.inf, 0.0, -1.0])
def test_unusable_times_do_not_break_the_search(value: float) -> None:
    times = ar1(100, cv=0.01)
    times[50] = value
    window = _window(times)
    assert window.steady
    assert window.rows == 80


def test_nothing_recorded_and_everything_unusable() -> None:
    assert steady_window(np.zeros(0, np.int64), np.zeros(0), warmup_steps=0).span is None
    window = _window(np.full(50, np.nan), warmup_steps=0)
    assert not window.steady
    assert window.levels == ()
    assert "usable" in window.note


def test_run_shorter_than_its_warmup_has_an_empty_window() -> None:
    window = _window(ar1(15))
    assert not window.steady
    assert window.rows == 0
    assert not window.contains(_steps(15)).any()


def test_constant_series_is_steady() -> None:
    window = _window(np.full(50, 0.1), warmup_steps=10)
    assert window.steady
    assert (window.levels[0].low, window.levels[0].high) == pytest.approx((0.1, 0.1))
