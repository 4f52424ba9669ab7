"""Other programs on the GPUs of a run."""

from __future__ import annotations

from typing import NamedTuple

BUSY_PCT = 10.0
"""Utilization from which a GPU computes for somebody."""


class OtherProgram(NamedTuple):
    """Another program on a GPU of a run that has no steps.

    Attributes:
        node: its name; empty on a single machine.
        gpu: by the driver's number.
        who: pid, name and memory of the processes; empty where the driver lists none.
        share: of the samples in which it was there.
        alone_pct: median utilization of the GPU in samples in which no process of the run was on it; None where there
            are too few of them.
        source: the file of the samples.
    """

    node: str
    gpu: int
    who: str
    share: float
    alone_pct: float | None
    source: str

    @property
    def computes(self) -> bool | None:
        """Whether it used the GPU; None where the run's own use hides it."""
        return None if self.alone_pct is None else self.alone_pct >= BUSY_PCT

    @property
    def place(self) -> str:
        """`n2, GPU 1`, or `GPU 1`."""
        return f"{self.node}, GPU {self.gpu}" if self.node else f"GPU {self.gpu}"

    @property
    def text(self) -> str:
        """`another program used n2, GPU 1: pid 4808 (python3, 1002 MiB)`."""
        verb = "held memory of" if self.computes is False else "used"
        said = f"another program {verb} {self.place}"
        return f"{said}: {self.who}" if self.who else f"{said}, of which the driver lists no process"
