"""What the slow-node search found, as a report shows it: nodes, pairs, outliers with intervals, who is good."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from validator.cluster.judging import Contrast, UnitVerdict
from validator.cluster.rounds import Group, Round

State = Literal["good", "slow", "inconclusive", "unmeasured"]
Outcome = Literal["confirmed", "acquitted", "inconclusive", "suspected", "differs"]


@dataclass(frozen=True)
class Subject:
    """A node, a GPU of a node, or the link between two nodes."""

    nodes: Group
    gpu: int | None = None

    @property
    def kind(self) -> Literal["node", "gpu", "link"]:
        """What it is."""
        return "link" if len(self.nodes) == 2 else "node" if self.gpu is None else "gpu"


@dataclass(frozen=True)
class Outlier:
    """A suspect, and what its confirmation gave, from the new readings alone.

    `effect` with its interval is relative to the known-good ones (-0.05: 5 % slower), `mads` the distance from their
    median in the fleet's robust spread, `p_value` Holm's over all suspects. An `intermittent` one is slow in the share
    `often` of its `repeats`. An inconclusive one is `tolerable` if its new readings leave room for a loss of about the
    smallest effect that counts, and not for twice that much: what is that near the limit is not worth a node.
    `suspected` has no new readings yet. One that `differs`, from the faster `against`, is one
    of units without a majority: it is not accused.
    """

    subject: Subject
    measure: str
    outcome: Outcome
    effect: float
    low: float = math.nan
    high: float = math.nan
    mads: float = math.nan
    p_value: float = math.nan
    repeats: int = 0
    often: float = 0.0
    intermittent: bool = False
    by: Literal["swap", "alone", "none"] = "none"
    against: Subject | None = None
    tolerable: bool = False

    @property
    def code(self) -> Literal["slow-node", "slow-link"]:
        """The code of the finding."""
        return "slow-link" if self.subject.kind == "link" else "slow-node"


def outlier_of(
    subject: Subject, measure: str, of: Contrast, verdict: UnitVerdict, by: Literal["swap", "alone"]
) -> Outlier:
    """A suspect by its new readings."""
    effect, low, high = (math.expm1(of.center + sign * verdict.reach) for sign in (0, -1, 1))
    often = of.slow / max(1, of.count)
    return Outlier(
        *(subject, measure, verdict.outcome, effect, low, high, of.mads),
        *(verdict.p_value, of.count, often, verdict.intermittent, by),
    )


def differing(
    found: tuple[int, int, float, float] | None, subjects: Sequence[Subject], measure: str, *, min_effect: float
) -> list[Outlier]:
    """The slowest and the fastest of units without a majority, by `Screen.difference`: one, if the minimum effect lies
    between them."""
    limit = -math.log1p(-min_effect)
    if found is None or found[2] >= -limit:
        return []
    slow, fast, effect, reach = found
    outcome: Outcome = "differs" if effect + reach < -limit else "inconclusive"
    low, high = math.expm1(effect - reach), math.expm1(effect + reach)
    return [Outlier(subjects[slow], measure, outcome, math.expm1(effect), low, high, against=subjects[fast])]


@dataclass(frozen=True)
class Cell:
    """One field of the matrix of nodes and GPUs, or of that of pairs (a link), from the screening.

    `value` is in the measure's unit, NaN for a node's part in its pairs, which has none. `effect`, with its 95 %
    interval, is relative to the fleet's median, for a link to what its nodes explain; `mads` is its distance in MADs.
    """

    subject: Subject
    measure: str
    value: float
    effect: float
    low: float
    high: float
    mads: float


@dataclass(frozen=True)
class Together:
    """Nodes that are slow (or silent: `value` is NaN) only together, as far as halving them shows; in the unit."""

    nodes: Group
    measure: str
    value: float
    reference: float


@dataclass(frozen=True)
class Standing:
    """A node's state, its worst effect in any measure (-0.05; NaN: none known), and why it is not good."""

    node: str
    state: State
    effect: float
    why: str = ""


@dataclass(frozen=True)
class Judgement:
    """Everything that a report shows. `complete` is False while rounds are missing."""

    nodes: tuple[Standing, ...]
    outliers: tuple[Outlier, ...]
    cells: tuple[Cell, ...]
    together: tuple[Together, ...]
    rounds: tuple[Round, ...]
    complete: bool

    @property
    def slow(self) -> tuple[Outlier, ...]:
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
        chosen: list[str] = []
        for one in sorted((one for one in self.nodes if one.state == "good"), key=lambda one: (-one.effect, one.node)):
            if not any(group <= {*chosen, one.node} for group in apart):
                chosen.append(one.node)
        return tuple(chosen)
