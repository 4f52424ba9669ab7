"""Nodes that ran the same work alone, at the same time, repeat by repeat: which of them are slow.

There is no second measurement to confirm suspects by, so that every node is tested, by Holm's test over all of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from validator.cluster.judgement import Outcome, Outlier, Subject
from validator.cluster.judging import alone_contrasts, decide, screen
from validator.model.machine import MIN_EFFECT
from validator.model.result import Floats
from validator.stats.estimate import LEVEL

REPEATS = 4
"""Repeats without which nothing is said."""


def outliers_alone(rates: Floats, *, measure: str) -> list[Outlier]:
    """Nodes, by their index, that are slow or may be, the surest first.

    Args:
        rates: `[nodes, repeats]`, larger is better; 0 or NaN where nothing was measured.
    """
    values = np.log(np.where(rates > 0, rates, np.nan))
    found = screen(values, repeats=REPEATS, min_effect=MIN_EFFECT)
    if not found.majority:
        return _differing(found.difference(), measure)
    known = np.flatnonzero(found.enough)
    contrasts = alone_contrasts(values, known.tolist(), found.reference, repeats=REPEATS)
    verdicts = decide(contrasts, min_effect=MIN_EFFECT, level=LEVEL)
    outliers = [
        Outlier(
            Subject((str(node),)),
            measure,
            verdict.outcome,
            math.expm1(one.center),
            math.expm1(one.center - verdict.reach),
            math.expm1(one.center + verdict.reach),
            one.mads,
            verdict.p_value,
            one.count,
            one.slow / one.count,
            verdict.intermittent,
            "alone",
        )
        for node, one, verdict in zip(known.tolist(), contrasts, verdicts, strict=True)
        if verdict.outcome == "confirmed" or (verdict.outcome == "inconclusive" and found.suspect[node])
    ]
    return sorted(outliers, key=lambda one: (one.outcome != "confirmed", one.effect))


def _differing(found: tuple[int, int, float, float] | None, measure: str) -> list[Outlier]:
    """The slowest and the fastest of two or three nodes, of which nothing shows who is slow."""
    limit = -math.log1p(-MIN_EFFECT)
    if found is None or found[2] >= -limit:
        return []
    slow, fast, effect, reach = found
    outcome: Outcome = "differs" if effect + reach < -limit else "inconclusive"
    low, high = math.expm1(effect - reach), math.expm1(effect + reach)
    ends = Subject((str(slow),)), Subject((str(fast),))
    return [Outlier(ends[0], measure, outcome, math.expm1(effect), low, high, against=ends[1])]


def rates_of(repeats: Sequence[dict[str, float]]) -> tuple[tuple[str, ...], Floats]:
    """The nodes that every repeat has, and their rates `[nodes, repeats]`."""
    names = tuple(name for name in repeats[0] if all(name in one for one in repeats))
    return names, np.array([[one[name] for one in repeats] for name in names]).reshape(len(names), len(repeats))
