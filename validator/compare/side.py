"""One side of a comparison: its runs by phase and arm, its verdicts, its findings and its facts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from validator.model.contrast import Subject
from validator.model.machine import machine_class
from validator.model.runbook import Runbook
from validator.model.verdict import Finding, RunReport, ValidationReport, Verdict

__all__ = ["Cell", "Side", "run_side", "validation_side"]

Cell = tuple[str | None, str | None]
"""Phase and arm; (None, None) for a trainer folder, which knows neither."""

_TRAINING = ("train", "sweep", "ab", "soak")


@dataclass(frozen=True)
class Side:
    """What is compared. `facts` are machine and software, flat; `min_effect` and `run_cv` are the runbook's."""

    subject: Subject
    cells: Mapping[Cell, tuple[RunReport, ...]]
    criteria: Mapping[str, Verdict] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    facts: Mapping[str, str] = field(default_factory=dict)
    min_effect: float = 0.02
    run_cv: float = 0.02


def validation_side(
    report: ValidationReport, *, runbook: Runbook, path: str | None = None, facts: Mapping[str, str] | None = None
) -> Side:
    """A validation: every phase that trains, arm by arm."""
    cells: dict[Cell, list[RunReport]] = {}
    for phase in report.phases:
        for run in phase.measured if phase.kind in _TRAINING else ():
            cells.setdefault((phase.id, run.arm), []).append(run)
    subject = Subject(
        kind="validation",
        name=report.run_id,
        path=path,
        decision=report.decision,
        runbook=report.runbook.name,
        machine=machine_class(report.environment),
        started=report.started,
    )
    return Side(
        subject=subject,
        cells={cell: tuple(runs) for cell, runs in cells.items()},
        criteria={verdict.id: verdict for phase in report.phases for verdict in phase.criteria},
        findings=report.findings,
        facts=facts or {},
        min_effect=runbook.defaults.min_effect,
        run_cv=runbook.defaults.run_cv,
    )


def run_side(
    run: RunReport, findings: tuple[Finding, ...], *, name: str, path: str, facts: Mapping[str, str] | None = None
) -> Side:
    """A trainer's folder, which is one run."""
    subject = Subject(kind="run", name=name, path=path)
    return Side(subject=subject, cells={(None, None): (run,)}, findings=findings, facts=facts or {})
