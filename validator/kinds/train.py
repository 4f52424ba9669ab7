"""One configuration of the trainer, compared with a phase of more processes where it says so."""

from __future__ import annotations

from collections.abc import Iterator

from validator.kinds.base import Site, TrainingKind, Words
from validator.model.settings import ranks_of
from validator.model.training_phases import TrainingPhase, TrainPhase
from validator.runbook.problems import Problem
from validator.text import nearest


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


def _no_wider_phase(phase: TrainPhase, target: str, site: Site) -> Words | None:
    """Why the phase cannot be compared with `target`, and what to write; None where it can."""
    runbook, what = site.runbook, f"scaling_against of {phase.id} names"
    earlier = {other.id: other for other in runbook.phases[: site.index] if other.id != phase.id}
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
