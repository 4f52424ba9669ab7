"""How far a run is, as one frozen value: what the live table and the plain lines show."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Progress", "ProgressState"]

ProgressState = Literal["starting", "running", "slow", "stopping", "ended"]
"""`starting` until the first step, `slow` past the watchdog's limit but still busy, `stopping` while being ended."""


@dataclass(frozen=True)
class Progress:
    """One look at a run. What is not known is None, never a guess.

    `step` counts finished optimizer steps of `steps` wanted; `toks_per_s` is the newest row's global rate in tokens/s;
    `mem_mib` the GPU memory allocated on rank 0; `heartbeat_age_s` the longest silence of any rank; `eta_s` the time
    to the last step at the pace observed lately, by this process's own clock and never the trainer's claim.
    """

    phase: str
    run: str
    arm: str | None = None
    repeat: int = 1
    attempt: int = 1
    state: ProgressState = "starting"
    step: int | None = None
    steps: int | None = None
    toks_per_s: float | None = None
    loss: float | None = None
    mem_mib: float | None = None
    heartbeat_age_s: float | None = None
    elapsed_s: float = 0.0
    eta_s: float | None = None
    timeout_s: float | None = None
    note: str | None = None
