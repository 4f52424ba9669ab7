"""Nodes that ran the same work alone, at the same time, repeat by repeat: which of them are slow.

There is no second measurement to confirm suspects by, so that every node is tested, by Holm's test over all of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from validator.cluster.judgement import differing, outlier_of
from validator.cluster.judging import alone_contrasts, decide, screen
from validator.model.fleet import FleetOutlier, FleetSubject
from validator.model.result import Floats
from validator.stats.estimate import LEVEL


def outliers_alone(rates: Floats, *, measure: str) -> list[FleetOutlier]:
    """Nodes, by their index, that are slow or may be, the surest first.

    Args:
        rates: `[nodes, repeats]`, larger is better; 0 or NaN where nothing was measured.
    """
    values = np.log(np.where(rates > 0, rates, np.nan))
    subjects = [FleetSubject(nodes=(str(node),)) for node in range(len(rates))]
    found = screen(values)
    if not found.majority:
        return differing(found.difference(), subjects, measure)
    known = np.flatnonzero(found.enough)
    contrasts = alone_contrasts(values, known.tolist(), found.reference)
    verdicts = decide(contrasts, level=LEVEL)
    outliers = [
        outlier_of(subjects[node], measure, one, verdict, "none")
        for node, one, verdict in zip(known.tolist(), contrasts, verdicts, strict=True)
        if verdict.outcome == "confirmed" or (verdict.outcome == "inconclusive" and found.suspect[node])
    ]
    return sorted(outliers, key=lambda one: (one.outcome != "confirmed", one.effect or 0.0))


def rates_of(repeats: Sequence[dict[str, float]]) -> tuple[tuple[str, ...], Floats]:
    """The nodes that every repeat has, and their rates `[nodes, repeats]`."""
    names = tuple(name for name in repeats[0] if all(name in one for one in repeats))
    return names, np.array([[one[name] for one in repeats] for name in names]).reshape(len(names), len(repeats))
