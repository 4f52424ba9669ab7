"""What no schema can say: names that must exist, values that must fit together."""

from __future__ import annotations

from collections.abc import Iterator

from validator.model.runbook import Runbook
from validator.runbook.asking import check_asking, check_observing
from validator.runbook.build import Built
from validator.runbook.criteria import check_choose, check_criteria
from validator.runbook.kinds import check_kinds
from validator.runbook.launch import check_groups, check_launch
from validator.runbook.order import check_order
from validator.runbook.problems import Problem

__all__ = ["check_meaning", "warnings_of"]


def check_meaning(built: Built, runbook: Runbook) -> Iterator[Problem]:
    """Every problem of meaning in what could be built."""
    yield from check_order(built, runbook)
    yield from check_launch(built, runbook)
    for index, _ in enumerate(runbook.phases):
        yield from check_kinds(built, runbook, index)
        yield from check_criteria(built, runbook, index)
        yield from check_choose(built, runbook, index)
        yield from check_observing(built, runbook, index)


def warnings_of(built: Built, runbook: Runbook) -> Iterator[Problem]:
    """What a runbook may be run with, and yet is said by `check`."""
    yield from check_asking(built, runbook)
    yield from check_groups(built, runbook)
