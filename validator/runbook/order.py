"""The order of phases: ids are unique, and what a phase needs or is compared with exists and runs before it."""

from __future__ import annotations

from collections.abc import Iterator

from validator.model.resolve import LAST_GO
from validator.model.runbook import Runbook, TrainingPhase, TrainPhase
from validator.model.settings import nproc_of
from validator.runbook.build import Built
from validator.runbook.document import mark_at
from validator.runbook.problems import Problem, nearest

__all__ = ["check_order"]


def check_order(built: Built, runbook: Runbook) -> Iterator[Problem]:
    """Problems of ids, `needs` and `scaling_against`."""
    yield from _duplicate_ids(built, runbook)
    yield from _needs(built, runbook)
    yield from _scaling(built, runbook)


def _duplicate_ids(built: Built, runbook: Runbook) -> Iterator[Problem]:
    seen: dict[str, int] = {}
    for index, phase in enumerate(runbook.phases):
        if phase.id == LAST_GO:
            mark = mark_at(built.root, ("phases", index, "id"))
            yield Problem.at(
                mark, f"{LAST_GO} stands for the last GO in criteria", f"rename the phase, such as {LAST_GO}_1"
            )
        if phase.id in seen:
            first = mark_at(built.root, ("phases", seen[phase.id], "id"))
            where = f", first in line {first.line}" if first.line else ""
            mark = mark_at(built.root, ("phases", index, "id"))
            yield Problem.at(mark, f"two phases are called {phase.id}{where}", f"rename one, such as {phase.id}_2")
        else:
            seen[phase.id] = index


def _needs(built: Built, runbook: Runbook) -> Iterator[Problem]:
    order = {phase.id: index for index, phase in reversed(list(enumerate(runbook.phases)))}
    reported: set[frozenset[str]] = set()
    for index, phase in enumerate(runbook.phases):
        for number, need in enumerate(phase.needs):
            mark = mark_at(built.root, ("phases", index, "needs", number))
            if need in built.lost:
                continue
            if need not in order:
                others = [other for other in order if order[other] < index]
                fix = nearest(need, others, otherwise=f"earlier phases: {', '.join(others)}" if others else "remove it")
                yield Problem.at(mark, f"phase {phase.id} needs {need}, which does not exist", fix)
            elif order[need] >= index:
                cycle = _cycle(runbook, phase.id, need)
                if cycle is None:
                    fix = f"move phase {need} in front of {phase.id}"
                    yield Problem.at(mark, f"phase {phase.id} needs {need}, which runs after it", fix)
                elif frozenset(cycle) not in reported:
                    reported.add(frozenset(cycle))
                    text = " → ".join((*cycle, cycle[0]))
                    fix = f"remove {need} from the needs of {phase.id}"
                    yield Problem.at(mark, f"the needs of phases form a cycle: {text}", fix)


def _cycle(runbook: Runbook, start: str, first: str) -> tuple[str, ...] | None:
    """The ids of a way from `start` over its need `first` back to `start`; None when there is no such way."""
    needs = {phase.id: phase.needs for phase in runbook.phases}
    ways: list[tuple[str, ...]] = [(start, first)] if first != start else []
    if first == start:
        return (start,)
    seen = {first}
    while ways:
        way = ways.pop(0)
        for need in needs.get(way[-1], ()):
            if need == start:
                return way
            if need not in seen:
                seen.add(need)
                ways.append((*way, need))
    return None


def _scaling(built: Built, runbook: Runbook) -> Iterator[Problem]:
    for index, phase in enumerate(runbook.phases):
        if not isinstance(phase, TrainPhase) or phase.scaling_against is None:
            continue
        target = phase.scaling_against
        if target in built.lost:
            continue
        mark = mark_at(built.root, ("phases", index, "scaling_against"))
        earlier = {other.id: other for other in runbook.phases[:index] if other.id != phase.id}
        other = earlier.get(target)
        if other is None:
            yield _no_target(built, runbook, index, target)
        elif not isinstance(other, TrainingPhase):
            message = f"scaling_against of {phase.id} names {target}, a phase of kind {other.kind} without a rate"
            yield Problem.at(mark, message, "name a phase that runs the trainer with more processes")
        elif max(1, nproc_of(runbook, other)) <= max(1, nproc_of(runbook, phase)):
            yield Problem.at(
                mark,
                f"scaling_against of {phase.id} names {target}, which has {max(1, nproc_of(runbook, other))} "
                f"process(es) against {max(1, nproc_of(runbook, phase))} here",
                "compare with a phase of more processes, or lower nproc here",
            )


def _no_target(built: Built, runbook: Runbook, index: int, target: str) -> Problem:
    phase = runbook.phases[index]
    mark = mark_at(built.root, ("phases", index, "scaling_against"))
    if target == phase.id:
        return Problem.at(mark, f"scaling_against of {phase.id} names itself", "name the phase with more processes")
    if any(other.id == target for other in runbook.phases):
        message = f"scaling_against of {phase.id} names {target}, which runs after it"
        return Problem.at(mark, message, f"move phase {target} in front of {phase.id}")
    ids = [other.id for other in runbook.phases[:index]]
    fix = nearest(target, ids, otherwise=f"earlier phases: {', '.join(ids)}" if ids else "remove it")
    return Problem.at(mark, f"scaling_against of {phase.id} names {target}, which does not exist", fix)
