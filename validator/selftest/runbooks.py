"""The runbooks of the self-proof, put together from their phases."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["ACCEPT", "ALL_FILES", "TRAINER", "book", "train"]

TRAINER = Path(__file__).with_name("trainer.py")

ALL_FILES: Mapping[str, str] = {
    "csv": "training.csv",
    "heartbeat": "heartbeat_rank{rank}.jsonl",
    "env": "env.json",
    "metrics": "metrics.json",
}

ACCEPT = ("toks_per_s.mean >= 1000", "loss.last < loss.first", "heartbeat.max_gap_s <= 60 s")
"""Bounds that every healthy run here meets by far."""


def train(id: str = "baseline", **fields: Any) -> dict[str, Any]:
    """A phase that trains."""
    return {"id": id, "kind": "train", "steps": 120, "accept": list(ACCEPT), **fields}


def book(
    *phases: Mapping[str, Any],
    nproc: int = 2,
    metrics: Mapping[str, str] = ALL_FILES,
    args: Mapping[str, Any] | None = None,
    **defaults: Any,
) -> str:
    """A runbook as text; JSON is YAML."""
    watchdog = {"first_step": "20s", "stall": "3s", "interval": "100ms", "stall_factor": 4, "gates": True}
    content = {
        "schema": 1,
        "name": "selftest",
        "trainer": {
            "command": [str(TRAINER)],
            "args": {"steps": "{steps}", "out": "{out}", **(args or {})},
            "metrics": dict(metrics),
        },
        "defaults": {"nproc": nproc, "timeout": "60s", "warmup_steps": 10, "watchdog": watchdog, **defaults},
        "phases": [dict(phase) for phase in (phases or (train(),))],
    }
    return json.dumps(content, indent=1)
