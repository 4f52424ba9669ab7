"""Runbooks as trees, and what `check` says of them."""

from __future__ import annotations

from typing import Any

import yaml

from validator.kinds.registry import loads
from validator.runbook import RunbookError

Tree = dict[str, Any]


def check(*phases: Tree, **top: Any) -> list[str]:
    """`message | fix` of each problem of a runbook with these phases."""
    tree = {"schema": 1, "name": "test", **top, "phases": list(phases)}
    try:
        loads(yaml.safe_dump(tree, sort_keys=False, width=10_000), file="f")
    except RunbookError as error:
        return [f"{problem.message} | {problem.fix}" for problem in error.problems]
    return []
