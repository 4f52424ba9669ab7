"""What a short window cannot show: a pause it missed, the end of a warm-up. Its interval must hold the truth anyway."""

from __future__ import annotations

import numpy as np
import pytest

from validator.judge.estimate import Estimate, exact
from validator.judge.measure import measure
from validator.judge.unseen import TREND_ROWS, allow_for_unseen

from .samples import ar1, result

WARMUP = 20


def _intervals(make: object, runs: int) -> list[tuple[float, float]]:
    """The stated intervals of the rate of simulated runs whose true rate is 100."""
    found = []
    for seed in range(runs):
        stats = measure(result("r", times=make(seed)), warmup_steps=WARMUP).metrics["toks_per_s"]  # type: ignore[operator]
        if stats.ci_low is not None and stats.ci_high is not None:
            found.append((stats.ci_low, stats.ci_high))
    return found


def _held(intervals: list[tuple[float, float]]) -> float:
    return sum(low <= 100.0 <= high for low, high in intervals) / len(intervals)


@pytest.mark.parametrize("phi", [0.0, 0.8])
@pytest.mark.parametrize("steps", [60, 120])
def test_rare_slow_steps_that_a_short_window_may_lack_are_allowed_for(steps: int, phi: float) -> None:
    def bursts(seed: int) -> np.ndarray:
        slow = np.random.default_rng([seed, 1]).random(steps) < 0.02
        return (ar1(steps, phi=phi, cv=0.02, seed=seed) + 0.5 * slow) / 1.01

    intervals = _intervals(bursts, 80)
    assert len(intervals) >= 30
    assert _held(intervals) >= 0.9


def test_a_start_that_fades_over_the_window_is_refused_or_covered() -> None:
    """Half as slow again at first: at 60 steps the tail is still several per cent, and 58 % of intervals held it."""

    def ramp(seed: int) -> np.ndarray:
        return ar1(60, cv=0.02, seed=seed) * (1 + 0.5 * np.exp(-np.arange(60) / 15))

    intervals = _intervals(ramp, 80)
    assert len(intervals) <= 40
    assert sum(low > 100.0 or high < 100.0 for low, high in intervals) <= 0.05 * 80


def test_refusing_a_short_run_says_how_long_a_run_would_tell() -> None:
    times = 1 + 0.5 * np.exp(-np.arange(60) / 15)
    note = measure(result("r", times=times), warmup_steps=WARMUP).note
    assert "never steady" in note
    assert "120 rows after warm-up would tell" in note


def _of(values: np.ndarray) -> Estimate:
    rng = np.random.default_rng(0)
    return Estimate(float(values.mean()), values.mean() + 0.1 * rng.standard_normal(4000))


@pytest.mark.parametrize(("slow", "low", "high"), [(-1, 0.05, 0.0), (1, 0.0, 0.05)])
def test_one_more_slow_step_widens_the_slow_side_alone(slow: int, low: float, high: float) -> None:
    values = np.full(200, 10.0)
    before, ones = _of(values), np.ones(200)
    after = allow_for_unseen(before, values, ones, slow=slow)
    assert (before.interval() or (0, 0))[0] - (after.interval() or (0, 0))[0] == pytest.approx(low, abs=0.005)
    assert (after.interval() or (0, 0))[1] - (before.interval() or (0, 0))[1] == pytest.approx(high, abs=0.005)
    assert after.point == before.point


def test_a_trend_extends_the_interval_to_where_it_leads_unless_the_window_is_long() -> None:
    falling = np.linspace(11.0, 9.0, TREND_ROWS - 1)
    low, high = allow_for_unseen(_of(falling), falling, np.ones(len(falling)), slow=1).interval() or (0, 0)
    assert low == pytest.approx(10.0 - 0.196 - 2.0, abs=0.05)
    assert high < 10.5
    longer = np.linspace(11.0, 9.0, TREND_ROWS)
    low, _ = allow_for_unseen(_of(longer), longer, np.ones(len(longer)), slow=1).interval() or (0, 0)
    assert low == pytest.approx(10.0 - 0.196, abs=0.05)


def test_a_window_without_scatter_still_may_have_missed_a_pause() -> None:
    values = np.full(50, 10.0)
    low, high = allow_for_unseen(Estimate(10.0, np.full(4000, 10.0)), values, np.ones(50), slow=-1).interval() or (0, 0)
    assert low == pytest.approx(10.0 - 10.0 / 50, abs=0.01)
    assert high == pytest.approx(10.0)


def test_exact_values_and_metrics_without_a_slow_side_stay_as_they_are() -> None:
    values = np.linspace(1, 2, 20)
    assert allow_for_unseen(exact(3.0), values, np.ones(20), slow=1).exact
    estimate = _of(values)
    assert allow_for_unseen(estimate, values, np.ones(20), slow=0) is estimate
