"""Two configurations, interleaved."""

from __future__ import annotations

from collections.abc import Iterator

from validator.kinds.base import PlannedArm, Site, TrainingKind
from validator.model.arms_phases import AbPhase
from validator.runbook.meaning import check_reaches
from validator.runbook.problems import Problem


class Ab(TrainingKind[AbPhase]):
    """An arm for each side."""

    schema = AbPhase

    def check(self, phase: AbPhase, site: Site) -> Iterator[Problem]:
        """The sides differ, and what they differ in reaches the runs."""
        yield from super().check(phase, site)
        (one, first), (other, second) = phase.arms.items()
        if first.env == second.env and first.args == second.args:
            message = f"the arms {one} and {other} are the same, so there is nothing to compare"
            yield site.problem(message, "give one of them an env or args of its own", "arms")
        for arm in self.arms(phase):
            for key in arm.settings:
                yield from check_reaches(
                    site.built, site.runbook, phase, site.path("arms", str(arm.name), *key.split(".", 1)), key
                )

    def varied(self, phase: AbPhase) -> Iterator[str]:
        """What either side sets."""
        yield from (key for arm in self.arms(phase) for key in arm.settings)

    def arms(self, phase: AbPhase) -> tuple[PlannedArm, ...]:
        """The present one first."""
        return tuple(PlannedArm(name, arm.env, arm.args) for name, arm in phase.arms.items())
