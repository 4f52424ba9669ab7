"""How long a validation that goes on will still take, by its journal: the same for its runner and for a reader."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from validator.folder import RunFolder
from validator.model.plan import PhasePlan, Plan
from validator.model.verdict import Outlook
from validator.plan import make_plan
from validator.plan.eta import Eta
from validator.stages.disk import events_of, sittings

if TYPE_CHECKING:
    from validator.execute.journal import Event

__all__ = ["outlook", "outlook_of"]


def outlook_of(folder: RunFolder, plan: Plan | None = None) -> Outlook:
    """The outlook of a run folder, now. The plan is made from its runbook unless it is at hand."""
    header = folder.header
    made = plan or make_plan(
        header.runbook, run_dir=folder.root, python=header.python, only=header.only, skip=header.skip
    )
    return outlook(made, events_of(folder), now=datetime.now(timezone.utc))


def outlook(plan: Plan, events: Sequence[Event], *, now: datetime) -> Outlook:
    """What remains at `now`, by what the runbook expects and by what the journal says was seen.

    The runners' sittings are put end to end, so that the time in which nothing was run does not count.
    """
    eta, planned = Eta(plan), {phase.phase: phase for phase in plan.phases}
    passed_s = 0.0
    latest: Event | None = None
    every = tuple(sittings(events))
    for sitting in every:
        # What an earlier runner left out, or did not come to, is decided again.
        over = ("done",) if sitting is not every[-1] else ("done", "skipped", "not_run")
        for event in sitting:
            _follow(eta, planned, event, over=over, now_s=passed_s + max(0.0, event.mono - sitting[0].mono))
        passed_s += max(0.0, sitting[-1].mono - sitting[0].mono)
        latest = sitting[-1]
    if latest is not None:
        passed_s += _since(latest.ts, now)
    remaining = eta.remaining(now_s=passed_s)
    return Outlook(
        as_of=now.isoformat(timespec="seconds"),
        remaining_s=None if remaining is None else round(remaining.seconds, 1),
        at_least=remaining is not None and remaining.at_least,
    )


def _follow(eta: Eta, planned: dict[str, PhasePlan], event: Event, *, over: Sequence[str], now_s: float) -> None:
    phase = event.fields.get("phase")
    if event.event == "phase_started" and phase in planned:
        eta.phase_started(planned[phase], now_s=now_s)
    elif event.event == "phase_ended" and phase in planned and event.fields["state"] in over:
        eta.phase_finished(phase, now_s=now_s)
    elif event.event in ("run_started", "run_ended"):
        eta.run_progress(str(event.fields.get("run")), 1.0 if event.event == "run_ended" else None)


def _since(iso: str, now: datetime) -> float:
    """Seconds since a time of the journal; 0 when the clock was set back, or it says no time."""
    try:
        return max(0.0, (now - datetime.fromisoformat(iso.replace("Z", "+00:00"))).total_seconds())
    except (ValueError, TypeError):
        return 0.0
