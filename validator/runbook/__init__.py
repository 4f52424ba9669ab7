"""YAML to a checked Runbook: `load` one, `find` it, list those `available`, describe the format."""

from __future__ import annotations

from validator.runbook.load import LoadedRunbook, load, loads
from validator.runbook.locate import RunbookInfo, available, find
from validator.runbook.problems import Mark, Problem, RunbookError
from validator.runbook.reference import json_schema, reference_markdown

__all__ = [
    "LoadedRunbook",
    "Mark",
    "Problem",
    "RunbookError",
    "RunbookInfo",
    "available",
    "find",
    "json_schema",
    "load",
    "loads",
    "reference_markdown",
]
