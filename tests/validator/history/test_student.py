"""Student's t without scipy, held against scipy's."""

from __future__ import annotations

import pytest
from scipy.special import stdtrit

from validator.history.trend import t_quantile


@pytest.mark.parametrize("df", [1, 2, 3, 4, 9, 30, 499, 5000, 1.5, 37.2])
def test_quantiles_are_scipy_s(df: float) -> None:
    for probability in (1e-9, 0.001, 0.2, 0.4999, 0.51, 0.9, 0.975, 0.995, 1 - 1e-6, 1 - 1e-9):
        assert t_quantile(probability, df) == pytest.approx(float(stdtrit(df, probability)), rel=1e-8, abs=1e-10)


def test_the_median_is_zero_and_the_tails_are_alike() -> None:
    assert t_quantile(0.5, 7) == 0.0
    assert t_quantile(0.025, 7) == pytest.approx(-t_quantile(0.975, 7))


@pytest.mark.parametrize(("probability", "df"), [(0.0, 3), (1.0, 3), (-0.1, 3), (0.9, 0), (0.9, float("nan"))])
def test_what_has_no_quantile_is_refused(probability: float, df: float) -> None:
    with pytest.raises(ValueError, match="must"):
        t_quantile(probability, df)
