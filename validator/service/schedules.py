"""Schedules: the nightly jobs of this user with their next start and last decision; their times, pauses and ends.

What is written is what `validator nightly` writes, by the same functions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from validator.errors import UserError
from validator.nightly.schedule import ScheduleError, choose, holder, place, unschedule
from validator.nightly.settings import Nightly, NightlyError, changed_job, config_dir, last_ended, load, names
from validator.report.elements import decision_status
from validator.service.access import posted
from validator.service.context import audit, page, to


def days_of(form: Mapping[str, str]) -> tuple[str, ...]:
    """The days that a form names: `mon, fri`."""
    return tuple(form.get("days", "").lower().replace(",", " ").split())


def add_schedule(request: Request, job: Nightly) -> Response:
    """Install a new job. Raises NightlyError when there is one of its name, ScheduleError when nothing can hold it."""
    if job.name in names():
        raise NightlyError(f"{job.name} is a schedule already; choose another name, or change its time")
    place(job)
    audit(request, "add schedule", f"{job.name} at {job.at}")
    return to("/schedules")


def list_schedules(request: Request) -> Response:
    """The jobs, and why none can be scheduled here where that is so."""
    missing = ""
    try:
        choose("auto")
    except ScheduleError as error:
        missing = str(error)
    return page(request, "schedules", jobs=[_row(name) for name in names()], missing=missing)


def _row(name: str) -> dict[str, Any]:
    try:
        job = load(name)
    except UserError as error:
        return {"name": name, "job": None, "trouble": str(error)}
    scheduler, last = holder(name), last_ended(job)
    row = {"name": name, "job": job, "last": last, "view": decision_status(last.decision) if last else None}
    return row | {"status": scheduler.status(name) if scheduler else None, "next": job.next_start()}


def change(request: Request, form: Mapping[str, str]) -> Response:
    """Change the time of a job, pause or remove it."""
    name = request.path_params["name"]
    if name not in names():
        raise HTTPException(404, "No schedule of this name is here.")
    do = form.get("do")
    if do == "save":
        place(changed_job(load(name), at=form.get("at", ""), days=days_of(form)))
    elif do in ("pause", "remove"):
        unschedule(name)
        if do == "remove":
            (config_dir() / f"{name}.json").unlink(missing_ok=True)
    else:
        raise HTTPException(400, "do must be save, pause or remove.")
    audit(request, f"{do} schedule", name)
    return to("/schedules")


ROUTES = (
    Route("/schedules", list_schedules),
    posted("/schedules/{name}", change),
)
