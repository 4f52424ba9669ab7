"""YAML to a Runbook: `find` one, list those `available`; `reference` describes the format.

`validator.kinds.registry` has the `load` that checks with what the kinds of phases know. The models of a runbook are
not imported here: the list of runbooks needs none of them.
"""

from __future__ import annotations

from validator.runbook.find import RunbookInfo, available, find
from validator.runbook.problems import Mark, Problem, RunbookError

__all__ = [
    "Mark",
    "Problem",
    "RunbookError",
    "RunbookInfo",
    "available",
    "find",
]
