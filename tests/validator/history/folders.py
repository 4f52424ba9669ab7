"""Run folders made from a sample report: many validations, with figures as a test wants them."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from tests.validator.report import samples
from validator.pipeline.write import render_json

__all__ = ["BEGIN", "make_run"]

BEGIN = datetime(2026, 1, 1, 2, 0, tzinfo=timezone.utc)


def make_run(
    parent: Path,
    number: int,
    *,
    scale: float = 1.0,
    decision: str = "GO",
    gpus: int = 2,
    torch: str = "2.11.0",
    **changes: Any,
) -> Path:
    """A run folder whose rates are those of the sample times `scale`, begun `number` days after `BEGIN`."""
    found = json.loads(render_json(samples.go()))
    started = BEGIN + timedelta(days=number)
    name = f"{started:%Y%m%dT%H%M%SZ}-ddp-2xa100-host-{number:04d}"
    found |= {"run_id": name, "started": started.isoformat(), "decision": decision, **changes}
    found["environment"] = {
        "host": "host",
        "gpus": {f"gpu{index}": {"name": "NVIDIA H200", "nvlinks_active": 18} for index in range(gpus)},
        "packages": {"torch": torch},
    }
    found["runbook"]["overrides"] = []
    for phase in found["phases"]:
        for criterion in phase["criteria"]:
            if criterion["text"].startswith("toks_per_s"):
                criterion["observed"] *= scale
        for run in phase["runs"]:
            for metric, stats in run["metrics"].items():
                if metric.startswith("toks_per_s"):
                    stats["mean"] *= scale
    folder = parent / name
    folder.mkdir(parents=True)
    (folder / "result.json").write_text(json.dumps(found), encoding="utf-8")
    (folder / "run.json").write_text(json.dumps({"run_id": name}), encoding="utf-8")
    return folder
