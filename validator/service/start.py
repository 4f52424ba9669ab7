"""Starting validations: runbooks of the server with a form for their settings, their check and plan; the queue; and
the nightly jobs of this user, which are written by the functions of `validator nightly`.

A runbook comes from a folder of the server alone, by its name in a list; of a form only settings that it offered are
taken, and each becomes one argument of `validator run`.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from validator.errors import Unable, UserError
from validator.kinds.registry import arms_of, load
from validator.model.phases import PreflightPhase
from validator.model.settings import repeats_of
from validator.model.training_phases import TrainingPhase
from validator.nightly import schedule, settings
from validator.pipeline.session import require_hardware, require_start
from validator.plan import Eta, first_plan
from validator.report.elements import decision_status
from validator.report.terminal.planned import plan_lines
from validator.runbook import Problem, RunbookError, RunbookInfo, available
from validator.runbook.load import LoadedRunbook
from validator.runbook.offered import OfferedSetting, offered_settings
from validator.secrets.masking import clean_plan
from validator.service.access import audit, posted, visitor_of
from validator.service.context import page, service_of, to
from validator.service.queue import ENTRY_ID, QueueEntry
from validator.supervise.lock import lock_names
from validator.text import one_line
from validator.times import iso_now

_MAX_VALUE = 100
_MAX_RUNS = 1000
_WIDTH = 110


class WantedRun(NamedTuple):
    """A runbook with values for some of its settings: read and checked, or the problems that it has with them."""

    info: RunbookInfo
    settings: tuple[OfferedSetting, ...]
    values: Mapping[str, str]
    loaded: LoadedRunbook | None = None
    problems: tuple[Problem, ...] = ()


def _wanted(request: Request, name: str, values: Mapping[str, str]) -> WantedRun:
    """What is asked for, checked as `validator check` does.

    Raises:
        HTTPException: 404 for a name that is not listed, 400 for a setting that is not offered or a value that is none.
    """
    info = next((one for one in available(service_of(request).runbooks) if one.name == name), None)
    if info is None:
        raise HTTPException(404, "No runbook of this name is here.")
    wanted = WantedRun(info, tuple(offered_settings(info.path)), values)
    offered = {one.path for one in wanted.settings}
    for path, value in values.items():
        if path not in offered or len(value) > _MAX_VALUE or not value.isprintable():
            what = f"a text of at most {_MAX_VALUE} characters" if path in offered else "changed in the runbook alone"
            raise HTTPException(400, f"{one_line(path, limit=100)} must be {what}.")
    try:
        loaded = load(info.path, overrides=[f"{path}={value}" for path, value in values.items()])
        _require_few_runs(loaded)
    except RunbookError as error:
        return wanted._replace(problems=error.problems)
    return wanted._replace(loaded=loaded)


def _require_few_runs(loaded: LoadedRunbook) -> None:
    """Raises RunbookError for so many runs that their plan would keep the server from all else."""
    book = loaded.runbook
    runs = sum(repeats_of(book, one) * len(arms_of(one)) for one in book.phases if isinstance(one, TrainingPhase))
    runs += sum(one.rounds or 0 for one in book.phases if isinstance(one, PreflightPhase))
    if runs > _MAX_RUNS:
        what = f"its phases have {runs} runs with these values"
        fix = f"lower repeats and rounds to {_MAX_RUNS} runs or less, or start it by `validator run`"
        raise RunbookError([Problem(str(loaded.path), None, None, what, fix)])


def _require_machine(loaded: LoadedRunbook) -> None:
    """Raises Unable where this machine could not begin with a runbook."""
    require_start(f"{one.message}; {one.fix}" for one in loaded.absent)
    if loaded.runbook.cluster is None:
        require_hardware(loaded.runbook)


# Pages.


def list_runbooks(request: Request) -> Response:
    """The runbooks of this server."""
    return page(request, "start", runbooks=available(service_of(request).runbooks))


def show_runbook(request: Request) -> Response:
    """A runbook with the form of its settings."""
    return page(request, "setup", wanted=_wanted(request, str(request.path_params["name"]), {}))


def send_form(request: Request, form: Mapping[str, str]) -> Response:
    """Check what the form asks for and show its plan, or start or schedule what was shown."""
    values = {path: value.strip() for path, value in form.items() if "." in path and value.strip()}
    wanted, do = _wanted(request, str(request.path_params["name"]), values), form.get("do")
    if wanted.loaded is None or do == "edit":
        return page(request, "setup", wanted=wanted)
    shown = form.get("sha256") == wanted.loaded.sha256  # else the runbook was edited meanwhile
    entry = form.get("entry", "")
    if shown and do == "start" and re.fullmatch(ENTRY_ID, entry):
        return _enqueue(request, wanted, wanted.loaded, entry)
    if shown and do == "schedule":
        path, out = str(wanted.info.path.resolve()), str(service_of(request).index.reports)
        job = settings.new_job(
            name=form.get("job", ""), runbook=path, overrides=wanted.loaded.overrides, out=out, **_times(form)
        )
        if job.name in settings.names():
            raise Unable(f"{job.name} is a schedule already; choose another name, or change its time")
        schedule.place(job)
        audit(request, "add schedule", f"{job.name} at {job.at}")
        return to("/schedules")
    return _show_plan(request, wanted, wanted.loaded)


def _enqueue(request: Request, wanted: WantedRun, loaded: LoadedRunbook, entry: str) -> Response:
    """Put what was shown into the queue. Raises Unable where this machine cannot run it, or too many wait."""
    _require_machine(loaded)
    runbook, service = loaded.runbook, service_of(request)
    asked = QueueEntry(
        id=entry,
        runbook=wanted.info.name,
        path=str(wanted.info.path.resolve()),
        sha256=loaded.sha256,
        overrides=loaded.overrides,
        out=str(service.index.reports),
        cwd=str(Path.cwd()),
        locks=lock_names(runbook.hardware.gpus) if runbook.cluster is None else (),
        by=visitor_of(request).name,
        asked=iso_now("seconds"),
    )
    service.queue.add(asked)
    audit(request, "queue", " ".join((wanted.info.name, *wanted.values)))  # their values may be secrets
    return to("/queue")


def _show_plan(request: Request, wanted: WantedRun, loaded: LoadedRunbook) -> Response:
    planned = clean_plan(first_plan(loaded.runbook))
    lines = plan_lines(loaded, planned, Eta(planned).remaining(now_s=0.0), width=_WIDTH, color=False)
    obstacle = ""
    try:
        _require_machine(loaded)
    except Unable as error:
        obstacle = str(error)
    # The entry has its name already, so that a form which is sent twice starts once.
    entry, plan = secrets.token_hex(16), "\n".join(lines)
    return page(request, "planned", wanted=wanted, loaded=loaded, obstacle=obstacle, entry=entry, plan=plan)


def show_queue(request: Request) -> Response:
    """What runs and waits, and what has ended, the latest first."""
    queue = service_of(request).queue
    entries = queue.entries()
    first = next((one for one in entries if one.state != "ended"), None)
    blocked = queue.blocked(first) if first and first.state == "waiting" else ""
    return page(request, "queue", entries=entries, blocked=blocked, stamp=queue.stamp(), view=decision_status)


def list_queue(request: Request) -> Response:
    """What waits, runs and has ended in the queue of this machine, in the order in which it was asked for."""
    return JSONResponse({"queue": [one.model_dump(mode="json") for one in service_of(request).queue.entries()]})


def cancel(request: Request, form: Mapping[str, str]) -> Response:
    """Take an entry that waits out of the queue."""
    entry = str(request.path_params["entry"])
    service_of(request).queue.cancel(entry, note=f"cancelled by {visitor_of(request).name}")
    audit(request, "cancel", entry)
    return to("/queue")


def list_schedules(request: Request) -> Response:
    """The nightly jobs with their next start and last decision."""
    return page(request, "schedules", jobs=[_job_row(name) for name in settings.names()])


def _job_row(name: str) -> dict[str, Any]:
    try:
        job = settings.load(name)
    except UserError as error:
        return {"name": name, "job": None, "trouble": str(error)}
    scheduler, last = schedule.holder(name), settings.last_ended(job)
    row = {"name": name, "job": job, "last": last, "view": decision_status(last.decision) if last else None}
    return row | {"status": scheduler.status(name) if scheduler else None, "next": job.next_start()}


def _times(form: Mapping[str, str]) -> dict[str, Any]:
    """When a job starts, as its form says: the time, and days such as `mon, fri`."""
    return {"at": form.get("at", ""), "days": tuple(form.get("days", "").lower().replace(",", " ").split())}


def change_schedule(request: Request, form: Mapping[str, str]) -> Response:
    """Change the time of a job, pause or remove it."""
    name, do = request.path_params["name"], form.get("do")
    if name not in settings.names():
        raise HTTPException(404, "No schedule of this name is here.")
    if do == "save":
        schedule.place(settings.changed_job(settings.load(name), **_times(form)))
    elif do in ("pause", "remove"):
        schedule.unschedule(name)
        if do == "remove":
            (settings.config_dir() / f"{name}.json").unlink(missing_ok=True)
    else:
        raise HTTPException(400, "do must be save, pause or remove.")
    audit(request, f"{do} schedule", name)
    return to("/schedules")


ROUTES = (
    Route("/start", list_runbooks),
    Route("/start/{name}", show_runbook),
    posted("/start/{name}", send_form),
    Route("/queue", show_queue),
    posted("/queue/{entry}", cancel),
    Route("/schedules", list_schedules),
    posted("/schedules/{name}", change_schedule),
)
