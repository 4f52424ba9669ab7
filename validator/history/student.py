"""Quantiles of Student's t without scipy, whose import takes longer than all else that `validator history` does.

The distribution function is the regularized incomplete beta function, by its continued fraction (Abramowitz and
Stegun 26.5.8 and 26.7.1, evaluated from the front as Lentz does); the quantile is found on it by halving.
"""

from __future__ import annotations

import math

__all__ = ["t_quantile"]

_SMALL = 1e-300
_TERMS = 1000


def t_quantile(probability: float, df: float) -> float:
    """The t that a variable with `df` degrees of freedom stays below with this probability, to about 1e-10 of itself.

    Raises:
        ValueError: when the probability is not between 0 and 1, or df not above 0.
    """
    if not 0.0 < probability < 1.0:
        raise ValueError(f"probability {probability}: must lie between 0 and 1, both excluded")
    if not df > 0.0:
        raise ValueError(f"df {df}: must be above 0")
    if probability == 0.5:
        return 0.0
    within = abs(2.0 * probability - 1.0)
    if within < 0.5:  # near the median, t² ÷ (df + t²) keeps the digits; in the tails, df ÷ (df + t²) does
        part = _share(within, 0.5, df / 2)
        size = math.sqrt(df * part / (1.0 - part))
    else:
        part = _share(2.0 * min(probability, 1.0 - probability), df / 2, 0.5)
        size = math.sqrt(df * (1.0 - part) / part)
    return size if probability > 0.5 else -size


def _share(wanted: float, a: float, b: float) -> float:
    """The x at which the incomplete beta function is `wanted`, found on a logarithmic scale, by halving."""
    low, high = -745.0, 0.0
    while high - low > 1e-15 * abs(low):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        if _beta(math.exp(middle), a, b) < wanted:
            low = middle
        else:
            high = middle
    return math.exp((low + high) / 2)


def _beta(x: float, a: float, b: float) -> float:
    """The regularized incomplete beta function of x, between 0 and 1."""
    if x <= 0.0 or x >= 1.0:
        return float(x >= 1.0)
    if x > (a + 1.0) / (a + b + 2.0):
        return 1.0 - _beta(1.0 - x, b, a)
    front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    return math.exp(front) / (a * _fraction(x, a, b))


def _fraction(x: float, a: float, b: float) -> float:
    """The continued fraction 1 + d1/(1 + d2/(1 + ...)) of the incomplete beta function."""
    value, c, d = 1.0, 1.0, 0.0
    for term in range(1, _TERMS):
        m = term // 2
        if term % 2 == 0:
            part = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        else:
            part = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        d = 1.0 / _away(1.0 + part * d)
        c = _away(1.0 + part / c)
        value *= c * d
        if abs(c * d - 1.0) < 1e-16:
            break
    return value


def _away(value: float) -> float:
    """The value, moved off zero, which the next step divides by."""
    return value if abs(value) > _SMALL else _SMALL
