"""Distributions without SciPy, compared with SciPy's."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import special

from validator.stats import rate
from validator.stats.distributions import binomial_above, f_above, t_below, t_quantile

PROBABILITIES = (1e-9, 0.001, 0.2, 0.4999, 0.51, 0.74, 0.76, 0.9, 0.975, 0.995, 1 - 1e-6, 1 - 1e-9)


@pytest.mark.parametrize("df", [0.5, 1, 1.5, 2, 3, 4, 9, 30, 37.2, 499, 1999, 2000, 5000, 1e6, 1e12])
def test_quantiles_are_scipys(df: float) -> None:
    for probability in PROBABILITIES:
        expected = float(special.stdtrit(df, probability))
        assert t_quantile(probability, df) == pytest.approx(expected, rel=1e-8, abs=1e-10)


def test_a_t_of_endless_freedom_is_normal() -> None:
    for probability in PROBABILITIES:
        assert t_quantile(probability, math.inf) == pytest.approx(float(special.ndtri(probability)), rel=1e-12)
    assert t_below(-1.5, math.inf) == pytest.approx(float(special.ndtr(-1.5)), rel=1e-12)


def test_the_median_is_zero_and_the_tails_are_alike() -> None:
    assert t_quantile(0.5, 7) == 0.0
    assert t_quantile(0.025, 7) == pytest.approx(-t_quantile(0.975, 7))


@pytest.mark.parametrize(("probability", "df"), [(0.0, 3), (1.0, 3), (-0.1, 3), (0.9, 0), (0.9, math.nan)])
def test_what_has_no_quantile_has_no_number(probability: float, df: float) -> None:
    assert math.isnan(t_quantile(probability, df))


@pytest.mark.parametrize("df", [1, 2, 3.3, 10, 50, 1000, 1e5, 1e6])
def test_probabilities_of_t_are_scipys(df: float) -> None:
    for t in (-1e200, -30, -10, -2, -1, -0.01, 0, 0.3, 1, 5, 1e200):
        assert t_below(t, df) == pytest.approx(float(special.stdtr(df, t)), rel=1e-8, abs=1e-300)
    assert math.isnan(t_below(math.nan, df))


@pytest.mark.parametrize(("df", "df_below"), [(1, 1), (2, 2), (3, 9), (7, 7), (30, 30), (500, 500)])
def test_probabilities_of_f_are_scipys(df: int, df_below: int) -> None:
    for ratio in (0.0, 0.1, 0.5, 1.0, 1.5, 3.0, 100.0, 1e6, math.inf):
        expected = float(special.fdtrc(df, df_below, ratio)) if math.isfinite(ratio) else 0.0
        assert f_above(ratio, df, df_below) == pytest.approx(expected, rel=1e-8, abs=1e-300)


@pytest.mark.parametrize("of", [3, 10, 100, 5000, 100_000])
@pytest.mark.parametrize("probability", [0.5, 0.125, 0.01, 0.0, 1.0])
def test_probabilities_of_a_count_are_scipys(of: int, probability: float) -> None:
    for count in {0, 1, of // 100, int(of * probability), of // 2, of - 1, of}:
        expected = float(special.bdtrc(count, of, probability))
        assert binomial_above(count, of, probability) == pytest.approx(expected, rel=1e-8, abs=1e-300)
    assert binomial_above(-1, of, probability) == 1.0


@pytest.mark.parametrize("rows", [1, 2, 5, 11, 12, 500, 200])
def test_a_running_median_is_that_of_eleven_neighbors(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rate, "_BLOCK", 64)
    values = np.random.default_rng(rows).gamma(2.0, size=rows)
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(values, 5, mode="edge"), 11)
    np.testing.assert_array_equal(rate._running_median(values), np.median(windows, axis=1))
    assert rate._running_median(values[:0]).size == 0
