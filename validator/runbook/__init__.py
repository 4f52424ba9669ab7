"""YAML to a Runbook: `find` one, list those `available`; `reference` describes the format.

`validator.kinds.registry` has the `load` that checks with what the kinds of phases know.
"""

from __future__ import annotations

from validator.runbook.load import LoadedRunbook, RunbookInfo, available, find
from validator.runbook.problems import Mark, Problem, RunbookError

__all__ = [
    "LoadedRunbook",
    "Mark",
    "Problem",
    "RunbookError",
    "RunbookInfo",
    "available",
    "find",
]
