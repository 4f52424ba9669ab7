"""Intervals against a second implementation, by simulation, and at the edges."""

from __future__ import annotations

import inspect
import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from tests.validator.judge.samples import ar1
from validator.model.catalogue import MAY_MISS, QUANTILES
from validator.stats.autocorrelation import effective_size, lag1, mean_half_width
from validator.stats.distributions import t_quantile
from validator.stats.estimate import (
    UNKNOWN_REACH,
    Estimate,
    TooFewSamples,
    combine,
    exact,
    over_runs,
    sampled_mean,
    sampled_quantile,
    sampled_spread,
)


def _width(estimate: Estimate) -> float:
    low, high = estimate.interval() or (math.nan, math.nan)
    return high - low


def test_interval_of_independent_values_agrees_with_scipys_bootstrap() -> None:
    values = np.random.default_rng(3).normal(10, 1, 400)
    ours = sampled_mean(values, np.ones(400), seed="r")
    name = "rng" if "rng" in inspect.signature(stats.bootstrap).parameters else "random_state"  # up to scipy 1.14
    seeded: dict[str, Any] = {name: np.random.default_rng(1)}
    theirs = stats.bootstrap((values,), np.mean, n_resamples=4000, **seeded).confidence_interval
    assert ours.point == pytest.approx(values.mean())
    # Ours allows for autocorrelation that the rows do not exclude; it is never the narrower one.
    assert 0.97 <= _width(ours) / (theirs.high - theirs.low) <= 1.4
    low, high = ours.interval() or (0, 0)
    assert low == pytest.approx(theirs.low, abs=0.03)
    assert high == pytest.approx(theirs.high, abs=0.03)


def test_a_few_rows_that_wander_know_their_mean_to_what_they_span() -> None:
    """28 rows on a shared machine: 1,284 tok/s, with an interval of 1,021 to 1,543."""
    rows = np.array(
        [1296, 1284, 1279, 1242, 1293, 1327, 1279, 1292, 1317, 1330, 1325, 1310, 1322, 1314, 1323, 1299, 1275, 1286,
         1234, 1260, 1277, 1276, 1252, 1251, 1240, 1242, 1256, 1286.0]
    )  # fmt: skip
    assert mean_half_width(rows) == pytest.approx(60 / 28 * 96)
    assert mean_half_width(np.tile(rows, 3)) <= np.ptp(rows)


@pytest.mark.parametrize(("n", "phi"), [(28, 0.8), (28, 0.95), (28, 0.98), (60, 0.98), (14, 0.9)])
def test_the_span_of_a_few_rows_holds_the_error_of_their_mean(n: int, phi: float) -> None:
    held = [
        abs(series.mean() - 1) <= mean_half_width(series) for series in (ar1(n, phi=phi, seed=k) for k in range(300))
    ]
    assert np.mean(held) >= 0.93


def test_interval_of_a_ratio_agrees_with_the_delta_method() -> None:
    rng = np.random.default_rng(5)
    tokens, times = np.full(500, 4096.0), rng.normal(2.0, 0.1, 500)
    ours = sampled_mean(tokens, times, seed="r")
    rate = 4096.0 / times.mean()
    error = rate * times.std(ddof=1) / times.mean() / math.sqrt(500)
    assert ours.point == pytest.approx(rate)
    assert 0.97 <= _width(ours) / (2 * 1.96 * error) <= 1.4


def test_autocorrelation_widens_the_interval_as_theory_says() -> None:
    phi, n = 0.8, 4000
    values = ar1(n, phi=phi, cv=0.02, seed=4)
    naive = 2 * 1.96 * values.std(ddof=1) / math.sqrt(n)
    assert _width(sampled_mean(values, np.ones(n), seed="r")) / naive == pytest.approx(3.0, rel=0.2)


@pytest.mark.parametrize(("phi", "n"), [(0.0, 30), (0.5, 60), (0.8, 60), (0.8, 280)])
def test_stated_intervals_cover_the_truth(phi: float, n: int) -> None:
    """At least 90 % of stated intervals hold the true mean; a refusal is not a miss."""
    stated = covered = 0
    for seed in range(300):
        try:
            low, high = sampled_mean(ar1(n, phi=phi, seed=seed), np.ones(n), seed="r").interval() or (0, 0)
        except TooFewSamples:
            continue
        stated += 1
        covered += low <= 1.0 <= high
    assert stated >= 120
    assert covered / stated >= 0.9


@pytest.mark.parametrize("n", [4, 8, 30])
def test_a_short_autocorrelated_window_has_a_wide_interval_rather_than_none(n: int) -> None:
    found = [sampled_mean(ar1(n, phi=0.95, seed=seed), np.ones(n), seed="r").interval() for seed in range(200)]
    assert np.mean([low <= 1.0 <= high for low, high in found]) >= 0.9  # type: ignore[misc]


def test_same_seed_same_interval() -> None:
    values = ar1(100)
    first, second = (sampled_mean(values, np.ones(100), seed="a/r1").interval() for _ in range(2))
    assert first == second
    assert first != sampled_mean(values, np.ones(100), seed="a/r2").interval()


def test_constant_series_has_an_interval_without_width() -> None:
    assert sampled_mean(np.full(50, 0.1), np.ones(50), seed="r").interval() == pytest.approx((0.1, 0.1))


def test_a_single_row_has_no_interval() -> None:
    with pytest.raises(TooFewSamples, match="a single row has no spread"):
        sampled_mean(np.ones(1), np.ones(1), seed="r")


def test_two_rows_have_students_interval() -> None:
    low, high = sampled_mean(np.array([99.0, 101.0]), np.ones(2), seed="r").interval() or (0, 0)
    assert high - low == pytest.approx(2 * 12.7, rel=0.4)
    assert low < 100 < high


def test_median_interval_agrees_with_order_statistics() -> None:
    values = np.random.default_rng(8).exponential(1.0, 300)
    ours = sampled_quantile(values, 0.5, seed="r").interval() or (0, 0)
    ordered = np.sort(values)
    low, high = stats.binom.ppf([0.025, 0.975], 300, 0.5).astype(int)
    assert ours[0] == pytest.approx(ordered[low - 1], abs=0.06)
    assert ours[1] == pytest.approx(ordered[high], abs=0.06)


def test_a_tail_that_the_sample_does_not_reach_is_refused() -> None:
    values = np.random.default_rng(8).normal(1.0, 0.01, 100)
    assert sampled_quantile(values, 0.95, seed="r").interval()
    with pytest.raises(TooFewSamples, match="99th percentile"):
        sampled_quantile(values, 0.99, seed="r")


def test_spread_is_the_populations_and_its_interval_holds_the_truth() -> None:
    values = np.random.default_rng(2).normal(10, 2, 400)
    stdev = sampled_spread(values, relative=False, seed="r")
    cv = sampled_spread(values, relative=True, seed="r")
    assert stdev.point == pytest.approx(values.std())
    assert cv.point == pytest.approx(values.std() / values.mean())
    low, high = stdev.interval() or (0, 0)
    assert low < 2 < high


def test_arithmetic_carries_the_interval() -> None:
    a = sampled_mean(np.random.default_rng(0).normal(10, 1, 400), np.ones(400), seed="a")
    b = sampled_mean(np.random.default_rng(1).normal(5, 1, 400), np.ones(400), seed="b")
    difference = combine("-", [a, b])
    assert difference.point == pytest.approx(a.point - b.point)
    assert _width(difference) == pytest.approx(math.hypot(_width(a), _width(b)), rel=0.1)
    ratio = combine("/", [a, b])
    low, high = ratio.interval() or (0, 0)
    assert low < 2 < high
    assert combine("abs", [exact(-3.0)]).point == 3.0
    assert combine("max", [a, exact(0.0)]).point == a.point
    assert combine("*", [exact(2.0), exact(3.0)]).exact


def test_what_two_values_share_cancels() -> None:
    a = sampled_mean(ar1(200), np.ones(200), seed="r")
    assert _width(combine("-", [a, a])) == 0.0


def test_regular_pauses_vary_in_number_by_one_and_rare_ones_by_the_root_of_their_number() -> None:
    rng = np.random.default_rng(4)
    regular, rare = (1 + 0.01 * rng.standard_normal(400) for _ in range(2))
    regular[10::25] += 5
    rare[rng.choice(400, 16, replace=False)] += 5
    assert _width(sampled_mean(regular, np.ones(400), seed="r")) == pytest.approx(2 * 1.96 * 0.5 * 5 / 400, rel=0.2)
    assert _width(sampled_mean(rare, np.ones(400), seed="r")) == pytest.approx(2 * 1.96 * 4 * 5 / 400, rel=0.2)


def test_readings_follow_the_arithmetic_and_span_all_that_it_can_give() -> None:
    a, b = Estimate(2.0, reach=(1.0, 3.0)), Estimate(-1.0, reach=(-2.0, 1.0))
    assert combine("+", [a, b]).reach == (-1.0, 4.0)
    assert combine("-", [a, b]).reach == (0.0, 5.0)
    assert combine("*", [a, b]).reach == (-6.0, 3.0)
    assert combine("/", [b, a]).reach == (-2.0, 1.0)
    assert combine("/", [a, b]).reach == UNKNOWN_REACH
    assert combine("abs", [b]).reach == (0.0, 2.0)
    assert combine("max", [a, b]).reach == (1.0, 3.0)
    assert combine("*", [a, exact(2.0)]).reach == (2.0, 6.0)
    assert combine("+", [a, Estimate(1.0, unknown="why")]).unknown == "why"
    assert combine("-", [Estimate(1.0), a]).reach == UNKNOWN_REACH


def test_readings_of_several_runs_are_joined_and_allow_for_the_variation_between_runs() -> None:
    runs = [Estimate(100.0, reach=(98.0, 102.0)), Estimate(101.0, reach=(99.0, 103.0))]
    low, high = over_runs(runs, run_cv=0.02, sign=-1, seed="p").reach
    share = 1.96 * 0.02 / math.sqrt(2)
    assert (low, high) == pytest.approx((98 * (1 - share), 103 * (1 + share)), rel=1e-4)
    assert over_runs(runs, run_cv=0.02, sign=0, seed="p").reach == (98.0, 103.0)


def test_division_by_zero_is_an_error_and_not_an_infinity() -> None:
    with pytest.raises(ZeroDivisionError):
        combine("/", [exact(1.0), exact(0.0)])


def test_four_repeats_give_students_interval_of_the_run_means() -> None:
    means = [100.0, 101.0, 99.0, 100.4]
    low, high = over_runs([exact(m) for m in means], run_cv=0.02, sign=0, seed="p").interval() or (0, 0)
    expected = stats.t.interval(0.95, 3, loc=np.mean(means), scale=stats.sem(means))
    assert low == pytest.approx(expected[0], abs=0.15)
    assert high == pytest.approx(expected[1], abs=0.15)


def test_a_single_run_is_given_the_assumed_variation() -> None:
    one = over_runs([exact(100.0)], run_cv=0.02, sign=-1, seed="p")
    assert one.point == 100.0
    assert _width(one) == pytest.approx(2 * 1.96 * 2.0, rel=0.06)
    assert _width(over_runs([exact(100.0)] * 2, run_cv=0.02, sign=-1, seed="p")) < _width(one)
    assert _width(over_runs([exact(100.0)], run_cv=0.02, sign=0, seed="p")) == 0.0


def test_a_slow_run_moves_rate_and_time_of_that_run_together() -> None:
    """The product of rate and time of one run does not depend on how slow the run was."""
    rate = over_runs([exact(100.0)], run_cv=0.02, sign=-1, seed="p")
    time = over_runs([exact(0.01)], run_cv=0.02, sign=1, seed="p")
    assert _width(combine("*", [rate, time])) == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("q", QUANTILES.values())
def test_a_percentile_has_an_interval_where_most_samples_enclose_it(q: float) -> None:
    least = math.ceil(math.log(MAY_MISS) / math.log(q))
    rng = np.random.default_rng(5)
    alternating = np.tile([1.0, 2.0], 200) + rng.normal(0, 0.1, 400)
    sampled_quantile(np.full(least, 3.0), q, seed="r")
    for short in (np.full(least - 1, 3.0), alternating[: least - 1], rng.normal(1, 0.1, least - 1)):
        with pytest.raises(TooFewSamples):
            sampled_quantile(short, q, seed="r")


def test_t_quantile_is_scipys() -> None:
    assert t_quantile(0.975, 3) == pytest.approx(stats.t.ppf(0.975, 3))


def test_lag1_is_unbiased_in_short_series() -> None:
    found = [lag1(ar1(60, phi=0.5, seed=seed)) for seed in range(300)]
    assert np.mean(found) == pytest.approx(0.5, abs=0.03)
    assert effective_size(280, 0.8) == pytest.approx(280 / 9)
    assert lag1(np.full(30, 0.1)) == 0.0


def test_rare_long_steps_do_not_hide_the_wander_of_the_others() -> None:
    """Two noises: slow wander of all steps, and independent long ones that carry most of the variance."""
    rng = np.random.default_rng(3)
    values = ar1(2000, phi=0.8, cv=0.02, seed=1) + 0.5 * (rng.random(2000) < 0.02)
    wander, bursts = 0.02**2 * 9 / 2000, 0.25 * 0.02 * 0.98 / 2000
    width = 2 * 1.96 * math.sqrt(wander + bursts)
    assert _width(sampled_mean(values, np.ones(2000), seed="r")) == pytest.approx(width, rel=0.2)
