"""What all sample reports have alike around their phases: the run, its runbook, the machine and the artifacts."""

from __future__ import annotations

import hashlib
from typing import Any

from validator.model.verdict import Artifact, PhaseReport, RunbookRef, ValidationReport

__all__ = ["report_of"]


def report_of(
    decision: str, why: str, exit_code: int | None, phases: tuple[PhaseReport, ...], **more: Any
) -> ValidationReport:
    """A report of these phases; ``more`` replaces fields of the frame."""
    values: dict[str, Any] = {
        "run_id": "20250827T140311Z-smoke-cpu-node7-3f9a",
        "runbook": RunbookRef(
            name="smoke-cpu",
            path="runbooks/smoke_cpu.yaml",
            sha256=hashlib.sha256(b"runbook").hexdigest(),
            title="Smoke run on the CPU",
            description="Two processes on real text, in under two minutes.",
            overrides=("baseline.steps=300",),
        ),
        "started": "2025-08-27T14:03:11+00:00",
        "finished": "2025-08-27T14:12:02+00:00",
        "duration_s": 531.2,
        "decision": decision,
        "why": why,
        "exit_code": exit_code,
        "phases": phases,
        "environment": {
            "host": "node7",
            "python": "3.11.9",
            "packages": {"torch": "2.7.1", "numpy": "2.1.0"},
            "cpu": {"model": "AMD EPYC 7B13", "cores_usable": 2, "affinity": [0, 1]},
            "memory_bytes": 12_884_901_888,
            "gpus": [{"index": 0, "name": "NVIDIA A100 80GB PCIe"}, {"index": 1, "name": "NVIDIA A100 80GB PCIe"}],
            "env": {"NCCL_ALGO": "Ring", "HF_TOKEN": "[redacted]"},
        },
        "artifacts": _artifacts(),
        "validator_version": "0.1.0",
    }
    return ValidationReport(**{**values, **more})


def _artifacts() -> tuple[Artifact, ...]:
    sizes = {"run.json": 4_212, "journal.jsonl": 18_233, "runs/baseline/r1/training.csv": 28_113}
    hashed = [
        Artifact(path=path, bytes=size, sha256=hashlib.sha256(path.encode()).hexdigest())
        for path, size in sizes.items()
    ]
    return (*hashed, Artifact(path="runs/baseline/r1/trace/rank 0.json", bytes=3_221_225_472, sha256=None))
