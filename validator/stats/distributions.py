"""Student's t, Fisher's F and the binomial distribution, by the incomplete beta function that all three have in common.

The standard library has none of them, and SciPy would be the largest dependency by far (docs/adr/0074). Tests compare
each with SciPy's. What has no answer, such as a quantile for a share of 2, is NaN.
"""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist

_NORMAL = NormalDist()
_MANY = 2000.0
"""Degrees of freedom from which the quantile of t follows from the normal one by a series, to 1e-11 of itself."""

_SMALL = 1e-300
_TERMS = 20_000
_STEPS = 200


@lru_cache(maxsize=4096)
def t_quantile(probability: float, df: float) -> float:
    """The t that a variable with `df` degrees of freedom stays below with this probability, to 1e-10 of itself."""
    if not 0.0 < probability < 1.0 or not df > 0.0:
        return math.nan
    if probability == 0.5:
        return 0.0
    # Plain floats: those of numpy are slow here, and warn where these are infinite.
    probability, df = float(probability), float(df)
    sign = 1.0 if probability > 0.5 else -1.0
    tail = min(probability, 1.0 - probability)
    start = _from_normal(-_NORMAL.inv_cdf(tail), df)
    return sign * (start if df >= _MANY else _solved(2.0 * tail, df, start))


def t_below(t: float, df: float) -> float:
    """Probability that a variable with `df` degrees of freedom is below `t`."""
    if math.isnan(t) or not df > 0.0:
        return math.nan
    half = 0.5 * _both_tails(abs(float(t)), float(df))
    return half if t <= 0.0 else 1.0 - half


def f_above(ratio: float, df: float, df_below: float) -> float:
    """Probability that the ratio of two variances, with `df` and `df_below` degrees of freedom, is above `ratio`."""
    if not (ratio >= 0.0 and df > 0.0 and df_below > 0.0):
        return math.nan
    share = 1.0 / (1.0 + float(df) * float(ratio) / float(df_below))
    return _beta(share, 1.0 - share, df_below / 2, df / 2)


def binomial_above(count: int, of: int, probability: float) -> float:
    """Probability that more than `count` of `of` independent trials succeed."""
    if not 0.0 <= probability <= 1.0:
        return math.nan
    if count < 0 or count >= of:
        return float(count < 0)
    return _beta(float(probability), 1.0 - float(probability), float(count) + 1.0, float(of) - float(count))


def _from_normal(z: float, df: float) -> float:
    """The quantile of t from the normal one, by a series in 1/df (Abramowitz and Stegun 26.7.5)."""
    square = z * z
    terms = (
        (square + 1.0) / 4.0,
        ((5.0 * square + 16.0) * square + 3.0) / 96.0,
        (((3.0 * square + 19.0) * square + 17.0) * square - 15.0) / 384.0,
        ((((79.0 * square + 776.0) * square + 1482.0) * square - 1920.0) * square - 945.0) / 92160.0,
    )
    return z * (1.0 + sum(term / df**power for power, term in enumerate(terms, 1)))


def _solved(tails: float, df: float, start: float) -> float:
    """The t > 0 beyond which both tails together hold `tails`, by Newton's method.

    The tails are convex in t, so that from the left of the answer every step stays left of it and none goes astray.
    """
    t = start if _both_tails(start, df) >= tails else 0.0
    scale = math.lgamma((df + 1.0) / 2) - math.lgamma(df / 2) - 0.5 * math.log(df * math.pi)
    for _ in range(_STEPS):
        density = math.exp(scale - (df + 1.0) / 2 * math.log1p(t * t / df))
        step = (_both_tails(t, df) - tails) / (2.0 * density)
        t += step
        if abs(step) <= 1e-8 * t:  # the error is about the square of the last step
            break
    return t


def _both_tails(t: float, df: float) -> float:
    """Probability that a variable with `df` degrees of freedom is `t` or more away from 0."""
    if math.isinf(df):
        return math.erfc(t / math.sqrt(2.0))
    square = t * t
    whole = df + square
    return 0.0 if math.isinf(whole) else _beta(df / whole, square / whole, df / 2, 0.5)


def _beta(x: float, rest: float, a: float, b: float) -> float:
    """The regularized incomplete beta function of `x`; `rest` is 1 - x, which the caller may know with more digits."""
    if x <= 0.0 or rest <= 0.0:
        return float(rest <= 0.0)
    if x > (a + 1.0) / (a + b + 2.0):
        return 1.0 - _beta(rest, x, b, a)
    front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log(rest)
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
        if abs(c * d - 1.0) < 1e-15:
            break
    return value


def _away(value: float) -> float:
    """The value, moved off zero, which the next step divides by."""
    return value if abs(value) > _SMALL else _SMALL
