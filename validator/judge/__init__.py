"""Judgement: from what was collected to statistics, verdicts and the decision. Nothing here reads a file."""

from __future__ import annotations

from validator.judge.decision import decide, extension_of, recommend, settled, trigger_of
from validator.judge.phase import judge_phase, run_report
from validator.stats.measure import RunMeasurement, measure

__all__ = [
    "RunMeasurement",
    "decide",
    "extension_of",
    "judge_phase",
    "measure",
    "recommend",
    "run_report",
    "settled",
    "trigger_of",
]
