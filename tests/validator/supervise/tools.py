"""Shared tools of the supervisor's tests: short limits and short patience."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from validator.model.plan import RunSpec
from validator.model.record import Outcome
from validator.model.runbook import TrainerMetrics, Watchdog
from validator.supervise.termination import Grace

Make = Callable[..., RunSpec]
Run = Callable[..., Outcome]
"""Types of the fixtures."""

TRAINER_FILES = TrainerMetrics(csv="training.csv", heartbeat="heartbeat_rank{rank}.jsonl")
SHORT = Grace(term_s=1.0, halt_s=0.5, leftover_s=0.3, kill_s=3.0, gpu_memory_s=0.5, stacks_s=1.0)


def watchdog(**changes: Any) -> Watchdog:
    """A watchdog whose limits suit a test; durations in seconds."""
    settings = {"first_step": 3.0, "stall": 0.5, "interval": 0.05, "stall_factor": 3.0, **changes}
    durations = {name: f"{settings[name]}s" for name in ("first_step", "stall", "interval")}
    return Watchdog.model_validate({**settings, **durations})


def runs(pid: int) -> bool:
    """Whether the process exists and is no zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def eventually(condition: Callable[[], bool], *, within_s: float = 10.0) -> bool:
    """Whether the condition comes true in time."""
    until = time.monotonic() + within_s
    while time.monotonic() < until:
        if condition():
            return True
        time.sleep(0.02)
    return condition()


def marked(token: str) -> list[int]:
    """Every living process that carries the token, found independently of the code under test."""
    needle = f"VALIDATOR_RUN_TOKEN={token}".encode()
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            variables = Path(f"/proc/{name}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if needle in variables and runs(int(name)):
            found.append(int(name))
    return found
