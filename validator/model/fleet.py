"""The nodes of a cluster as the search and result.json have them: what each measured, which are slow, how they differ.

Effects are relative (-0.05: 5 % slower). A value that does not exist is None, in the search also NaN.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from validator.model.cluster import EngineName
from validator.model.units import Frozen

NodeState = Literal["good", "slow", "inconclusive", "unmeasured", "lost"]
Outcome = Literal["confirmed", "acquitted", "inconclusive", "suspected", "differs"]
How = Literal["swap", "alone", "bound", "none"]


class FleetSubject(Frozen):
    """A node, a GPU of a node, or the link between two nodes."""

    nodes: tuple[str, ...] = Field(min_length=1, max_length=2)
    gpu: int | None = None

    @property
    def kind(self) -> Literal["node", "gpu", "link"]:
        """What it is."""
        return "link" if len(self.nodes) == 2 else "node" if self.gpu is None else "gpu"

    @property
    def label(self) -> str:
        """Its name in tables: `n1`, `n1 GPU 3`, `n1 – n2`."""
        return " – ".join(self.nodes) if self.gpu is None else f"{self.nodes[0]} GPU {self.gpu}"


class FleetGpu(Frozen):
    """What identifies a GPU."""

    index: int
    name: str | None = None
    uuid: str | None = None
    serial: str | None = None


class FleetNode(Frozen):
    """A node, its state, its worst effect in any measure, and what identifies it."""

    name: str
    state: NodeState
    effect: float | None = None
    why: str = Field("", description="Why it is not good.")
    before: str = Field("", description="How it was slow in earlier validations beside this one.")
    host: str | None = None
    gpus: tuple[FleetGpu, ...] = ()


class FleetMeasure(Frozen):
    """What was measured, of each node alone or of groups of nodes."""

    name: str
    unit: str
    per: Literal["node", "group"]
    least: float | None = Field(None, description="The public bound of the fleet's GPUs, where there is one.")
    accuses: bool = Field(False, description="A node below `least` is slow where no majority of others can show that.")


class FleetCell(Frozen):
    """One subject in one measure, from the screening: its value, and how far it is from the fleet's median."""

    subject: FleetSubject
    measure: str
    value: float | None = Field(description="In the measure's unit; none for a node's part in its pairs.")
    effect: float | None
    low: float | None
    high: float | None
    mads: float | None = Field(description="Distance from the median in the fleet's robust spread.")


class FleetOutlier(Frozen):
    """A subject that may be slow, and what its confirmation gave; a suspected one was not measured again yet.

    One that differs, from the faster `against`, is one of units without a majority: it is not accused,
    unless its best reading is below the public bound of its model and that of the other is not.
    """

    subject: FleetSubject
    measure: str
    outcome: Outcome
    effect: float | None
    low: float | None = None
    high: float | None = None
    mads: float | None = None
    p_value: float | None = Field(None, description="Adjusted by Holm over all suspects of its judgement.")
    repeats: int = 0
    often: float = Field(0.0, description="Share of its repeats that was slow.")
    intermittent: bool = False
    by: How = Field("none", description="How it was measured again, or `bound`: by a public bound.")
    against: FleetSubject | None = Field(None, description="The faster one, where there is no majority.")
    tolerable: bool = Field(False, description="Inconclusive, and not slow enough to leave its node out.")

    @property
    def code(self) -> Literal["slow-node", "slow-link"]:
        """The code of the finding."""
        return "slow-link" if self.subject.kind == "link" else "slow-node"


class FleetGroup(Frozen):
    """Nodes that are slow, or give nothing (`value` is None), only together."""

    nodes: tuple[str, ...]
    measure: str
    value: float | None
    reference: float | None


class ScalingPoint(Frozen):
    """The rate of so many nodes together, with its 95 % interval."""

    nodes: int = Field(ge=1)
    value: float
    low: float | None = None
    high: float | None = None
    unit: str = "tok/s"


class NodeDifference(Frozen):
    """A fact of the environment that is not the same on all nodes.

    `usual` is the value of more than half of the nodes; None where no value has so many.
    """

    fact: str
    usual: str | None
    count: int = Field(description="Nodes that have the usual value.")
    odd: dict[str, tuple[str, ...]] = Field(description="Every other value, and the nodes that have it.")


class Fleet(Frozen):
    """All that is known of the nodes. `good` are those that can work together, the fastest first."""

    engine: EngineName
    wanted: int = Field(description="Nodes that the decision is about.")
    min_effect: float
    complete: bool = Field(description="Whether no round of the search is missing.")
    rounds: int
    nodes: tuple[FleetNode, ...]
    good: tuple[str, ...]
    measures: tuple[FleetMeasure, ...]
    cells: tuple[FleetCell, ...] = ()
    outliers: tuple[FleetOutlier, ...] = ()
    together: tuple[FleetGroup, ...] = ()
    scaling: tuple[ScalingPoint, ...] = ()
    differences: tuple[NodeDifference, ...] = ()
