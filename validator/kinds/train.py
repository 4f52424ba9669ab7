"""One configuration of the trainer, compared with a phase of more processes where it says so."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from validator import cluster
from validator.kinds.base import Found, ImplicitCriterion, JudgedRun, Rule, Site, TrainingKind, Words
from validator.model.runbook import Runbook
from validator.model.settings import ranks_of
from validator.model.training_phases import TrainingPhase, TrainPhase
from validator.runbook.problems import Problem
from validator.text import nearest

if TYPE_CHECKING:
    from validator.model.fleet import FleetOutlier
    from validator.model.record import PhaseRecord, RunRecord, ValidationRecord

_ENOUGH = 4
"""Repeats from which nodes that train alone are compared with each other."""


class Train(TrainingKind[TrainPhase]):
    """A run of the trainer, repeated."""

    schema = TrainPhase
    must_ask = True

    def check(self, phase: TrainPhase, site: Site) -> Iterator[Problem]:
        """The phase of `scaling_against` runs before this one, and with more processes."""
        yield from super().check(phase, site)
        target = phase.scaling_against
        if target is not None and target not in site.built.lost:
            wrong = _no_wider_phase(phase, target, site)
            if wrong is not None:
                yield site.problem(*wrong, "scaling_against")

    def measured_criteria(self, record: PhaseRecord, validation: ValidationRecord) -> Iterator[ImplicitCriterion]:
        """Nodes that train alone are compared with each other, where repeats show how much they vary."""
        cluster = validation.runbook.cluster
        if cluster is not None and record.phase.on == "each" and len(record.measured) >= _ENOUGH:
            rule = _not_slow(record.measured, cluster.nodes)
            yield ImplicitCriterion("slow", "enough nodes are left that are not slow", rule)

    def good_nodes(self, phase: TrainPhase, runbook: Runbook, runs: Sequence[RunRecord]) -> tuple[str, ...]:
        """Those that are not slow alone, where they are enough."""
        if runbook.cluster is None or phase.on != "each" or len(runs) < _ENOUGH:
            return ()
        names, outliers = _compared(runs)
        left = _left(names, outliers)
        return tuple(names[one] for one in left) if outliers and len(left) >= runbook.cluster.nodes else ()


def _compared(runs: Sequence[RunRecord]) -> tuple[tuple[str, ...], list[FleetOutlier]]:
    """The nodes that every run has, and which of them, by index, are slow or may be."""
    from validator.cluster.alone import outliers_alone, rates_of  # numpy, which `check` does without

    names, rates = rates_of([dict(run.evidence.node_rates) for run in runs])
    return names, outliers_alone(rates, measure="steps per second") if names else []


def _described(one: FleetOutlier, names: Sequence[str]) -> str:
    text = cluster.fleet.slow_text(one, dict(enumerate(names)))
    if one.against is None:
        return text
    return f"{text} than {names[int(one.against.nodes[0])]}, and of so few nothing shows which is odd"


def _left(names: Sequence[str], outliers: Sequence[FleetOutlier]) -> tuple[int, ...]:
    """The nodes that are neither slow nor may be."""
    out = {int(node) for one in outliers for end in (one.subject, one.against) if end for node in end.nodes}
    return tuple(index for index in range(len(names)) if index not in out)


def _not_slow(runs: Sequence[RunRecord], count: int) -> Rule:
    """As many nodes as the runbook names are not slow, by all repeats."""

    def rule(run: JudgedRun) -> Found:
        names, outliers = _compared(runs)
        left = len(_left(names, outliers))
        text = "; ".join(_described(one, names) for one in outliers)
        if left >= count:
            replaced = f", and others are used in place of what is slow: {text}" if text else ""
            return Found("PASS", f"{count} nodes are left that are not slow{replaced}.", left, count)
        if outliers and outliers[0].outcome == "confirmed":
            return Found("FAIL", f"Slow: {text}.", left, count)
        return Found("INCONCLUSIVE", f"Not decided: {text or 'a node did not measure anything'}.", left, count)

    return rule


def _no_wider_phase(phase: TrainPhase, target: str, site: Site) -> Words | None:
    """Why the phase cannot be compared with `target`, and what to write; None where it can."""
    runbook, what = site.runbook, f"scaling_against of {phase.id} names"
    earlier = {other.id: other for other in runbook.phases[: site.place] if other.id != phase.id}
    if target == phase.id:
        return f"{what} itself", "name the phase with more processes"
    other = earlier.get(target)
    if other is None:
        if any(one.id == target for one in runbook.phases):
            return f"{what} {target}, which runs after it", f"move phase {target} in front of {phase.id}"
        fix = f"earlier phases: {', '.join(earlier)}" if earlier else "remove it"
        return f"{what} {target}, which does not exist", nearest(target, earlier, fix)
    if not isinstance(other, TrainingPhase):
        message = f"{what} {target}, a phase of kind {other.kind} without a rate"
        return message, "name a phase that runs the trainer with more processes"
    theirs, own = max(1, ranks_of(runbook, other)), max(1, ranks_of(runbook, phase))
    if theirs <= own:
        message = f"{what} {target}, which has {theirs} process(es) against {own} here"
        return message, "compare with a phase of more processes, or lower nproc here"
    return None
