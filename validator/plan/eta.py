"""How long a validation will still take: what the runbook expects, corrected by what has been seen.

Runbooks say how long each phase takes on the machine that they were written for. Another machine is faster or slower by
some factor, which the completed phases show; the current phase is estimated from its own progress when it has some.
Phases that train and those that do not have a factor each: how fast the tests ran says little of a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from validator.model.plan import PhasePlan, Plan

_TRUST_S = 20.0
"""Expected time that must have passed until what was seen weighs as much as what was expected."""

_MOST = 10.0
"""A machine that is ten times faster or slower than declared is no better estimate at a hundred times."""


@dataclass(frozen=True)
class Remaining:
    """Seconds to the end. `at_least` where some phase still to come has no expectation."""

    seconds: float
    at_least: bool


@dataclass
class _FinishedPhases:
    """Phases of one sort that are over: what they were expected to take, and took."""

    expected_s: float = 0.0
    took_s: float = 0.0


@dataclass
class Eta:
    """Follows a validation; all times are by one monotonic clock, given by the caller."""

    plan: Plan
    _done: set[str] = field(default_factory=set)
    _seen: dict[bool, _FinishedPhases] = field(
        default_factory=lambda: {one: _FinishedPhases() for one in (True, False)}
    )
    _phase: PhasePlan | None = None
    _began_s: float = 0.0
    _run: str | None = None
    _share: float = 0.0

    def phase_started(self, planned: PhasePlan, *, now_s: float, spent_s: float = 0.0) -> None:
        """A phase is about to run, as planned by now; `spent_s` is what an earlier runner spent on it."""
        again = self._phase is not None and self._phase.phase == planned.phase
        self._began_s = self._began_s if again else now_s - spent_s
        self._phase = planned
        self._run, self._share = None, 0.0

    def run_progress(self, run: str, share: float | None) -> None:
        """How far the present run is, from 0 to 1; None when that is not known."""
        self._run, self._share = run, share or 0.0

    def phase_finished(self, phase: str, *, now_s: float, took_s: float | None = None) -> None:
        """A phase is over, or is not going to run; `took_s` is given for one that an earlier runner ended."""
        self._done.add(phase)
        present = self._phase is not None and self._phase.phase == phase
        if present:
            took_s = now_s - self._began_s
        planned = self._phase if present else next((one for one in self.plan.phases if one.phase == phase), None)
        if planned is not None and planned.expected_s is not None and took_s is not None:
            seen = self._seen[_trains(planned)]
            seen.expected_s += planned.expected_s
            seen.took_s += took_s
        if present:
            self._phase = None

    def factor(self, planned: PhasePlan) -> float:
        """Seconds that pass for each second that is expected of a phase; near 1 until enough has been seen."""
        seen = self._seen[_trains(planned)]
        return min(max((seen.took_s + _TRUST_S) / (seen.expected_s + _TRUST_S), 1 / _MOST), _MOST)

    def remaining(self, *, now_s: float) -> Remaining | None:
        """The time to the end; None when no phase to come has an expectation and none under way has a pace."""
        present = None if self._phase is None else self._of_present(self._phase, now_s)
        known, open_ended = ([] if present is None else [present]), self._phase is not None and present is None
        for planned in self.plan.phases:
            if planned.phase in self._done or planned.skipped is not None:
                continue
            if self._phase is not None and planned.phase == self._phase.phase:
                continue
            if planned.expected_s is None:
                open_ended = open_ended or bool(planned.runs)
            else:
                known.append(planned.expected_s * self.factor(planned))
        return Remaining(sum(known), open_ended) if known else None

    def _of_present(self, planned: PhasePlan, now_s: float) -> float | None:
        """By expectation at first, by its own pace in the end."""
        elapsed_s, done = now_s - self._began_s, self._fraction(planned)
        expected_s = None if planned.expected_s is None else planned.expected_s * self.factor(planned)
        by_plan = None if expected_s is None else max(0.0, expected_s - elapsed_s)
        if done <= 0.0:
            return by_plan
        by_pace = elapsed_s / done * (1.0 - done)
        return by_pace if by_plan is None else done * by_pace + (1.0 - done) * by_plan

    def _fraction(self, planned: PhasePlan) -> float:
        """The share of the phase's runs that is over; a run that is not planned, such as a remedy's, counts as none."""
        names = [run.id for run in planned.runs]
        if self._run not in names:
            return 0.0
        return min(1.0, (names.index(self._run) + min(1.0, self._share)) / len(names))


def _trains(planned: PhasePlan) -> bool:
    return any(run.steps is not None for run in planned.runs)
