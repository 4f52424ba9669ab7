"""A runbook becomes a plan: every process that will be started, with its exact command, folder and budget.

Pure: the plan of the same runbook, folder, interpreter and environment is always the same, so that `--dry-run` shows
what `run` does. Arms of a sweep or an A/B are interleaved (forwards, backwards, forwards …), so that a drift of the
machine hits every arm alike.
"""

from __future__ import annotations

from validator.plan.command import FLIGHT_RECORDER, launch_words
from validator.plan.eta import Eta
from validator.plan.runs import plan_further, plan_phase
from validator.plan.whole import PlanError, first_plan, make_plan, selected

__all__ = [
    "FLIGHT_RECORDER",
    "Eta",
    "PlanError",
    "first_plan",
    "launch_words",
    "make_plan",
    "plan_further",
    "plan_phase",
    "selected",
]
