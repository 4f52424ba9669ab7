"""YAML to a checked Runbook: `load` one, `find` it, list those `available`. `reference` describes the format."""

from __future__ import annotations

from validator.runbook.load import LoadedRunbook, load, loads
from validator.runbook.locate import RunbookInfo, available, find
from validator.runbook.problems import Mark, Problem, RunbookError

__all__ = [
    "LoadedRunbook",
    "Mark",
    "Problem",
    "RunbookError",
    "RunbookInfo",
    "available",
    "find",
    "load",
    "loads",
]
