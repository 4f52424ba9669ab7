"""Where the steady window begins, and when there is none."""

from __future__ import annotations

import numpy as np
import pytest

from validator.judge.window import MIN_ROWS, covered_steps, steady_window

from .samples import ar1


def _steps(n: int) -> np.ndarray:
    return np.arange(1, n + 1)


def test_declared_warmup_never_counts_even_if_it_looks_steady() -> None:
    window = steady_window(_steps(100), ar1(100, cv=0.01), warmup_steps=20)
    assert window.steady
    assert window.after_step == 20
    assert window.span is not None
    assert (window.span.first_step, window.span.last_step) == (21, 100)


def test_warmup_longer_than_declared_is_found_at_the_change() -> None:
    times = ar1(300, cv=0.01)
    times[:70] *= 1.3
    window = steady_window(_steps(300), times, warmup_steps=20)
    assert window.steady
    assert window.after_step is not None
    assert abs(window.after_step - 70) <= 2
    assert "warm-up ended" in window.note


def test_slowly_settling_run_is_cut_until_the_rest_is_flat() -> None:
    times = (1 + 0.5 * np.exp(-_steps(400) / 25)) * ar1(400, cv=0.005)
    window = steady_window(_steps(400), times, warmup_steps=20)
    assert window.steady
    assert window.after_step is not None
    assert times[window.after_step :].mean() == pytest.approx(1.0, rel=0.01)


@pytest.mark.parametrize(
    "times",
    [
        pytest.param(1 / np.linspace(229, 696, 60), id="rate keeps rising from 229 to 696"),
        pytest.param(1 / np.r_[np.full(25, 594.0), np.full(25, 656.0), np.full(10, 177.0)], id="594, 656, then 177"),
        pytest.param(np.linspace(1.0, 1.1, 200) * ar1(200, cv=0.005), id="a tenth slower at the end"),
    ],
)
def test_never_steady_says_so_with_its_trend(times: np.ndarray) -> None:
    window = steady_window(_steps(len(times)), times, warmup_steps=0)
    assert not window.steady
    assert "never steady" in window.note
    assert "%" in window.note


def test_three_points_of_a_ramp_are_too_few_to_be_steady() -> None:
    window = steady_window(np.array([1, 20, 40]), 1 / np.array([229.0, 480.0, 696.0]), warmup_steps=0)
    assert not window.steady
    assert f"{MIN_ROWS} are needed" in window.note


def test_one_long_pause_is_not_a_change() -> None:
    times = ar1(200, cv=0.01)
    times[120] = 40.0
    window = steady_window(_steps(200), times, warmup_steps=20)
    assert window.steady
    assert window.after_step == 20


def test_disturbance_that_passes_is_kept_and_told() -> None:
    times = ar1(300, cv=0.002)
    times[30:60] *= 1.3
    window = steady_window(_steps(300), times, warmup_steps=20)
    assert window.steady
    assert window.after_step == 20
    assert "passing change" in window.note


@pytest.mark.parametrize("phi", [0.0, 0.5, 0.8])
def test_healthy_autocorrelated_runs_are_called_steady(phi: float) -> None:
    verdicts = [
        steady_window(_steps(300), ar1(300, phi=phi, cv=0.02, seed=seed), warmup_steps=20).steady for seed in range(60)
    ]
    assert np.mean(verdicts) >= 0.9


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
    window = steady_window(_steps(100), times, warmup_steps=20)
    assert window.steady
    assert window.rows == 80


def test_nothing_recorded_and_everything_unusable() -> None:
    assert steady_window(np.zeros(0, np.int64), np.zeros(0), warmup_steps=0).span is None
    window = steady_window(_steps(50), np.full(50, np.nan), warmup_steps=0)
    assert not window.steady
    assert "usable" in window.note


def test_run_shorter_than_its_warmup_has_an_empty_window() -> None:
    window = steady_window(_steps(15), ar1(15), warmup_steps=20)
    assert not window.steady
    assert window.rows == 0
    assert not window.contains(_steps(15)).any()


def test_constant_series_is_steady() -> None:
    assert steady_window(_steps(50), np.full(50, 0.1), warmup_steps=10).steady


def test_a_change_too_small_to_matter_harms_no_comparison() -> None:
    """Twelve short runs of a sweep are compared by their means; a twentieth of them drifts by chance."""
    drifting = np.linspace(1.0, 1.009, 14)
    found = steady_window(np.arange(1, 21), np.concatenate([np.full(6, 1.5), drifting]), warmup_steps=6)
    assert not found.steady
    assert found.comparable
    ramp = np.concatenate([np.full(6, 1.5), np.linspace(1.0, 1.06, 14)])
    assert not steady_window(np.arange(1, 21), ramp, warmup_steps=6).comparable
