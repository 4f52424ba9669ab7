"""Whether a phase is worth extending, and by how many runs.

A phase is extended by runs of its declared length, not by steps (docs/adr/0024): most of what makes a single run
undecided is the variation between runs, which no length of one run shows.
"""

from __future__ import annotations

from validator.judge.estimate import MIN_REPEATS
from validator.model.extension import Extension
from validator.model.record import PhaseRecord
from validator.model.runbook import Runbook
from validator.model.settings import extends
from validator.model.verdict import PhaseReport

__all__ = ["extension_of"]


def extension_of(record: PhaseRecord, report: PhaseReport, *, runbook: Runbook) -> Extension | None:
    """The extension of a phase that has been run as planned; None when it is decided, or more runs would not decide.

    To four runs, from which their variation is measured, or to twice as many. A phase is extended only when nothing
    but open intervals keeps it from passing, and only once.
    """
    if not extends(runbook, record.phase) or record.extended is not None or report.status != "INCONCLUSIVE":
        return None
    if any(run.outcome is None or not run.outcome.ok for run in record.runs):
        return None
    held_up = [one for one in report.criteria if one.required and one.status != "PASS"]
    if not held_up or any(one.open_for is None for one in held_up):
        return None
    runs = len(record.measured)
    return Extension(criteria=tuple(one.id for one in held_up), runs_before=runs, runs_after=max(MIN_REPEATS, 2 * runs))
