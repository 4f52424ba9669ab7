"""Student's t without scipy, whose import alone takes more time of a processor than the judgement of a run.

The distribution function is the regularized incomplete beta function, by its continued fraction (Abramowitz and
Stegun 26.5.8 and 26.7.1, evaluated from the front as Lentz does). The quantile is found on it by Newton's steps from
the expansion around the normal quantile (Abramowitz and Stegun 26.7.5), or by halving where that is far off.
"""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist

__all__ = ["t_quantile", "t_tail"]

_SMALL = 1e-300
_TERMS = 1000
_STEPS = 20
_FAR = 1e-5
"""Share of a tail below which, or with few degrees of freedom, the expansion says nothing."""


def t_tail(t: float, df: float) -> float:
    """The probability that a variable with `df` degrees of freedom is beyond `t`, on the side on which `t` lies."""
    return 0.5 * _beta(df / (df + t * t), df / 2, 0.5) if t else 0.5


@lru_cache(maxsize=4096)
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
        tail = min(probability, 1.0 - probability)
        found = _by_newton(tail, df) if df >= 3 and tail > _FAR else None
        size = _by_halving(tail, df) if found is None else found
    return size if probability > 0.5 else -size


def _by_halving(tail: float, df: float) -> float:
    part = _share(2.0 * tail, df / 2, 0.5)
    return math.sqrt(df * (1.0 - part) / part)


def _by_newton(tail: float, df: float) -> float | None:
    """The t above 0 beyond which `tail` lies; None where the steps do not come to rest."""
    z = -NormalDist().inv_cdf(tail)
    t = z + (z**3 + z) / (4 * df) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * df**2)
    scale = math.exp(math.lgamma((df + 1) / 2) - math.lgamma(df / 2)) / math.sqrt(df * math.pi)
    for _ in range(_STEPS):
        step = (t_tail(t, df) - tail) / (scale * math.exp(-(df + 1) / 2 * math.log1p(t * t / df)))
        t += step
        if not t > 0:
            return None
        if abs(step) <= 1e-12 * t:
            return t
    return None


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
