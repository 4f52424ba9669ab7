"""What the slow-node search found, as a report shows it: nodes, pairs, outliers with intervals, who is good."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from validator.cluster.judging import LIMIT, Contrast, UnitVerdict
from validator.cluster.rounds import Group, Round
from validator.model.fleet import FleetCell, FleetGroup, FleetNode, FleetOutlier, FleetSubject, How, Outcome
from validator.model.machine import MIN_EFFECT


def outlier_of(subject: FleetSubject, measure: str, of: Contrast, verdict: UnitVerdict, by: How) -> FleetOutlier:
    """A suspect by its new readings alone, relative to the known-good ones.

    An inconclusive one is tolerable if they leave room for a loss of about the smallest effect that counts, and not for
    twice that much: what is that near the limit is not worth a node.
    """
    effect, low, high = (math.expm1(of.center + sign * verdict.reach) for sign in (0, -1, 1))
    near = effect > -MIN_EFFECT and low > -2 * MIN_EFFECT
    return FleetOutlier(
        subject=subject,
        measure=measure,
        outcome=verdict.outcome,
        effect=effect,
        low=low,
        high=high,
        mads=of.mads,
        p_value=verdict.p_value,
        repeats=of.count,
        often=of.slow / max(1, of.count),
        intermittent=verdict.intermittent,
        by=by,
        tolerable=near and verdict.outcome == "inconclusive" and not verdict.intermittent,
    )


def differing(
    found: tuple[int, int, float, float] | None, subjects: Sequence[FleetSubject], measure: str
) -> list[FleetOutlier]:
    """The slowest and the fastest of units without a majority, by `Screen.difference`: one, if the minimum effect lies
    between them."""
    if found is None or found[2] >= -LIMIT:
        return []
    slow, fast, log, reach = found
    outcome: Outcome = "differs" if log + reach < -LIMIT else "inconclusive"
    effect, low, high = (math.expm1(log + sign * reach) for sign in (0, -1, 1))
    known = {"subject": subjects[slow], "against": subjects[fast], "measure": measure, "outcome": outcome}
    return [FleetOutlier(**known, effect=effect, low=low, high=high)]


@dataclass(frozen=True)
class Judgement:
    """Everything that a report shows. `complete` is False while rounds are missing."""

    nodes: tuple[FleetNode, ...]
    outliers: tuple[FleetOutlier, ...]
    cells: tuple[FleetCell, ...]
    together: tuple[FleetGroup, ...]
    rounds: tuple[Round, ...]
    complete: bool

    @property
    def slow(self) -> tuple[FleetOutlier, ...]:
        """What is confirmed to be slow."""
        return tuple(one for one in self.outliers if one.outcome == "confirmed")

    @property
    def compatible(self) -> Group:
        """As many good nodes as can work together, the fastest first: without both ends of a link that is slow or may
        be, and without all of the nodes that are slow together. The first `n` are the ones to run on."""
        apart = [
            set(one.subject.nodes)
            for one in self.outliers
            if one.code == "slow-link" and one.outcome != "acquitted" and not one.tolerable
        ]
        apart += [set(one.nodes) for one in self.together]
        good = sorted((-(one.effect or 0.0), one.name) for one in self.nodes if one.state == "good")
        chosen: list[str] = []
        for _, name in good:
            if not any(group <= {*chosen, name} for group in apart):
                chosen.append(name)
        return tuple(chosen)
