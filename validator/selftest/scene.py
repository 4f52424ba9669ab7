"""Cases that start no trainer: a run folder is laid out as a validation leaves it; `validator report` judges it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from validator.execute.journal import Journal
from validator.folder import RunFolder
from validator.model.plan import RunSpec
from validator.model.verdict import Check
from validator.plan import make_plan
from validator.runbook import load
from validator.selftest.case import Played
from validator.selftest.outcome import read_result
from validator.selftest.runbooks import book
from validator.selftest.sheet import Sheet
from validator.selftest.stage import Stage

__all__ = ["Play", "Scene", "lay_out", "one", "scene"]

Play = Callable[[Stage], Played]
Sheets = Callable[[RunSpec], Sheet]


@dataclass(frozen=True)
class Scene:
    """Lays out a validation of a runbook, and has it judged.

    `sheets` tells what each run left, `machine` is the snapshot of the machine, `checks` are preflight's by phase.
    """

    text: str
    sheets: Sheets
    machine: Mapping[str, Any] = field(default_factory=dict)
    checks: Mapping[str, Sequence[Check]] = field(default_factory=dict)

    def __call__(self, stage: Stage) -> Played:
        """Play it."""
        rc, _, err = stage.call("report", str(self.lay_out(stage)))
        return read_result(stage, rc, err)

    def lay_out(self, stage: Stage) -> Path:
        """The run folder, not yet judged."""
        return lay_out(stage, self.text, self.sheets, machine=self.machine, checks=self.checks)


def scene(
    text: str,
    sheets: Sheets,
    *,
    machine: Mapping[str, Any] | None = None,
    checks: Mapping[str, Sequence[Check]] | None = None,
) -> Play:
    """The play of a `Scene`."""
    return Scene(text, sheets, machine or {}, checks or {})


def one(sheet: Sheet, text: str | None = None) -> Play:
    """A validation whose runs all left the same."""
    return scene(book() if text is None else text, lambda spec: sheet)


def lay_out(
    stage: Stage,
    text: str,
    sheets: Sheets,
    *,
    machine: Mapping[str, Any],
    checks: Mapping[str, Sequence[Check]],
) -> Path:
    """The run folder of a validation that came to its end: header, journal, snapshot, and every run's files."""
    loaded = load(stage.write("runbook.yaml", text))
    parent = stage.folder / "reports"
    folder = RunFolder.create(loaded, parent=parent, python=sys.executable, only=(), skip=())
    plan = make_plan(loaded.runbook, run_dir=folder.root, python=sys.executable, only=(), skip=())
    folder.save_environment(machine)
    with Journal.open(folder.journal) as journal:
        journal.append("started", sync=False, run_id=folder.header.run_id, marker=stage.token, as_it_is={"plan": plan})
        for phase in plan.phases:
            journal.append("phase_started", sync=False, phase=phase.phase)
            if phase.phase in checks:
                journal.append("phase_checks", sync=False, phase=phase.phase, checks=list(checks[phase.phase]))
            for spec in phase.runs:
                outcome = sheets(spec).write(folder.root, spec)
                journal.append("run_started", sync=False, run=spec.id, as_it_is={"spec": spec})
                journal.append("run_ended", sync=False, run=spec.id, outcome=outcome)
            journal.append("phase_ended", sync=False, phase=phase.phase, state="done", reason=None, duration_s=1.0)
        journal.append("finished", finished=folder.header.started, duration_s=1.0)
    return folder.root
