"""The plan of a whole runbook, and which of its phases were asked for."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from validator.errors import UserError
from validator.model.plan import PhasePlan, Plan
from validator.model.runbook import Runbook
from validator.plan.runs import plan_phase
from validator.secrets.declared import declare_secrets_of
from validator.text import nearest


class PlanError(UserError):
    """A phase that was asked for does not exist; the message names the nearest one."""


def make_plan(
    runbook: Runbook,
    *,
    run_dir: Path,
    python: str = sys.executable,
    only: Sequence[str] = (),
    skip: Sequence[str] = (),
) -> Plan:
    """The plan of a whole runbook, as far as it is known before anything has run (no winner adopted yet).

    Args:
        run_dir: folder of the validation; runs are filed below it.
        python: interpreter that starts the trainer.
        only: phases to run, with those that they need; every phase when empty.
        skip: phases to leave out.

    Raises:
        PlanError: when `only` or `skip` names a phase that does not exist.
    """
    reasons = selected(runbook, only=only, skip=skip)
    return Plan(
        runbook=runbook.name,
        phases=tuple(
            PhasePlan(phase=phase.id, kind=phase.kind, runs=(), skipped=reasons[phase.id])
            if phase.id in reasons
            else plan_phase(runbook, phase, run_dir=run_dir, python=python)
            for phase in runbook.phases
        ),
    )


def first_plan(runbook: Runbook, *, only: Sequence[str] = (), skip: Sequence[str] = ()) -> Plan:
    """The plan before there is a run folder, which is written as `reports/RUN`.

    From here on this process takes the runbook's secrets for secrets, wherever they stand.

    Raises:
        PlanError: when `only` or `skip` names a phase that does not exist.
    """
    declare_secrets_of(runbook)
    return make_plan(runbook, run_dir=Path("reports/RUN"), only=only, skip=skip)


def selected(runbook: Runbook, *, only: Sequence[str] = (), skip: Sequence[str] = ()) -> dict[str, str]:
    """Phases that will not run because of `only` and `skip`: id to reason.

    Raises:
        PlanError: when either names a phase that does not exist.
    """
    ids = [phase.id for phase in runbook.phases]
    for option, names in (("--only", only), ("--skip", skip)):
        for name in names:
            if name not in ids:
                fix = nearest(name, ids, f"phases: {', '.join(ids)}")
                raise PlanError(f"{option} {name}: the runbook has no such phase; {fix}")
    wanted = _with_needs(runbook, only) if only else set(ids)
    reasons = {phase_id: f"not among --only {' '.join(only)}" for phase_id in ids if phase_id not in wanted}
    reasons.update((name, "left out by --skip") for name in skip)
    return reasons


def _with_needs(runbook: Runbook, names: Sequence[str]) -> set[str]:
    found: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += runbook.phase(name).needs
    return found
