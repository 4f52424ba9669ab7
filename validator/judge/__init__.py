"""Judgement: from what was collected to statistics, verdicts and the decision. Nothing here reads a file."""

from __future__ import annotations

from validator.judge.decision import decide, exit_code, recommend, settled
from validator.judge.extension import extension_of
from validator.judge.measure import RunMeasurement, measure
from validator.judge.phase import judge_phase, run_report
from validator.judge.remedies import trigger_of

__all__ = [
    "RunMeasurement",
    "decide",
    "exit_code",
    "extension_of",
    "judge_phase",
    "measure",
    "recommend",
    "run_report",
    "settled",
    "trigger_of",
]
