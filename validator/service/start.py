"""Starting validations: runbooks of the server with a form for their settings, their check and plan, and the queue.

A runbook comes from a folder of the server alone, by its name in a list; of a form only settings that it offered are
taken, and each becomes one argument of `validator run`.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from pydantic import Field, ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from validator.errors import ExitCode, Unable
from validator.kinds.registry import arms_of, load
from validator.model.settings import repeats_of
from validator.model.training_phases import TrainingPhase
from validator.model.units import Frozen
from validator.nightly.settings import new_job
from validator.pipeline.session import require_hardware, require_start
from validator.plan import Eta, first_plan
from validator.report.elements import decision_status
from validator.report.terminal.planned import plan_lines
from validator.runbook import Problem, RunbookError, RunbookInfo, available
from validator.runbook.load import LoadedRunbook
from validator.runbook.offered import OfferedSetting, offered_settings
from validator.secrets.masking import clean_plan
from validator.service.access import posted, require, require_own_origin, visitor_of
from validator.service.context import audit, page, service_of, to
from validator.service.queue import ENTRY_ID, QueueEntry
from validator.service.schedules import add_schedule, days_of
from validator.supervise.lock import lock_names
from validator.text import one_line
from validator.times import iso_now

_MAX_FIELDS, _MAX_VALUE = 1000, 100
_MAX_RUNS = 1000
_WIDTH = 110


class WantedRun(NamedTuple):
    """A runbook with values for some of its settings: read and checked, or the problems that it has with them."""

    info: RunbookInfo
    settings: tuple[OfferedSetting, ...]
    values: Mapping[str, str]
    loaded: LoadedRunbook | None
    problems: tuple[Problem, ...]


def _wanted(request: Request, name: str, values: Mapping[str, str]) -> WantedRun:
    """What is asked for, checked as `validator check` does.

    Raises:
        HTTPException: 404 for a name that is not listed, 400 for a setting that is not offered or a value that is none.
    """
    info = next((one for one in available(service_of(request).runbooks) if one.name == name), None)
    if info is None:
        raise HTTPException(404, "No runbook of this name is here.")
    settings = tuple(offered_settings(info.path))
    for path, value in values.items():
        if all(path != one.path for one in settings):
            raise HTTPException(400, f"{one_line(path, limit=100)} cannot be set here.")
        if len(value) > _MAX_VALUE or not value.isprintable():
            raise HTTPException(400, f"{path} must be a text of at most {_MAX_VALUE} characters.")
    try:
        loaded = load(info.path, overrides=[f"{path}={value}" for path, value in values.items()])
        _require_few_runs(loaded)
    except RunbookError as error:
        return WantedRun(info, settings, values, None, error.problems)
    return WantedRun(info, settings, values, loaded, ())


def _require_few_runs(loaded: LoadedRunbook) -> None:
    """Raises RunbookError for so many runs that their plan would keep the server from all else."""
    training = [one for one in loaded.runbook.phases if isinstance(one, TrainingPhase)]
    runs = sum(repeats_of(loaded.runbook, phase) * len(arms_of(phase)) for phase in training)
    if runs > _MAX_RUNS:
        fix = f"lower repeats to {_MAX_RUNS} runs or less, or start it by `validator run`"
        problem = Problem(str(loaded.path), None, None, f"its phases have {runs} runs with these repeats", fix)
        raise RunbookError([problem])


def _require_machine(loaded: LoadedRunbook) -> None:
    """Raises Unable where this machine could not begin with a runbook."""
    require_start(f"{one.message}; {one.fix}" for one in loaded.absent)
    if loaded.runbook.cluster is None:
        require_hardware(loaded.runbook)


def _enqueue(request: Request, wanted: WantedRun, entry_id: str) -> QueueEntry:
    """Put what is asked for into the queue. Raises Unable where this machine cannot run it, or too many wait."""
    if wanted.loaded is None:
        raise HTTPException(400, "\n".join(map(str, wanted.problems)))
    _require_machine(wanted.loaded)
    runbook, service = wanted.loaded.runbook, service_of(request)
    entry = QueueEntry(
        id=entry_id,
        runbook=wanted.info.name,
        path=str(wanted.info.path.resolve()),
        sha256=wanted.loaded.sha256,
        overrides=wanted.loaded.overrides,
        out=str(service.index.reports),
        cwd=str(Path.cwd()),
        locks=lock_names(runbook.hardware.gpus) if runbook.cluster is None else (),
        by=visitor_of(request).name,
        asked=iso_now("seconds"),
    )
    service.queue.add(entry)
    changed = (one.partition("=")[0] for one in entry.overrides)  # their values may be secrets
    audit(request, "queue", " ".join((entry.runbook, *changed)))
    return entry


# Pages.


def list_runbooks(request: Request) -> Response:
    """The runbooks of this server."""
    return page(request, "start", runbooks=available(service_of(request).runbooks))


def show_runbook(request: Request) -> Response:
    """A runbook with the form of its settings."""
    require(request, "run")
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
        _enqueue(request, wanted, entry)
        return to("/queue")
    if shown and do == "schedule":
        name, at, days = form.get("job", ""), form.get("at", ""), days_of(form)
        path, out = str(wanted.info.path.resolve()), str(service_of(request).index.reports)
        job = new_job(name=name, at=at, days=days, runbook=path, overrides=wanted.loaded.overrides, out=out)
        return add_schedule(request, job)
    return _show_plan(request, wanted, wanted.loaded)


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
    views = {one.note: decision_status(one.note) for one in entries if one.note in ExitCode.__members__}
    return page(request, "queue", entries=entries, blocked=blocked, stamp=queue.stamp(), decisions=views)


def cancel(request: Request, form: Mapping[str, str]) -> Response:
    """Take an entry that waits out of the queue."""
    entry = str(request.path_params["entry"])
    service_of(request).queue.cancel(entry, note=f"cancelled by {visitor_of(request).name}")
    audit(request, "cancel", entry)
    return to("/queue")


# The same for programs.


class QueueRequest(Frozen):
    """What is asked for: a runbook by its name on the server, and values of settings that its form offers."""

    runbook: str
    set: dict[str, bool | int | float | str] = Field(default_factory=dict)


def list_queue(request: Request) -> Response:
    """What waits, runs and has ended in the queue of this machine, in the order in which it was asked for."""
    return JSONResponse({"queue": [one.model_dump(mode="json") for one in service_of(request).queue.entries()]})


async def enqueue(request: Request) -> Response:
    """Check a runbook of the server with values for its settings, and put it into the queue."""
    require(request, "run")
    require_own_origin(request)
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise HTTPException(415, "The request is application/json.")  # which no form of another site can send
    try:
        given = QueueRequest.model_validate_json(await request.body())
    except ValidationError as error:
        raise HTTPException(400, str(error)) from error
    values = {path: one if isinstance(one, str) else json.dumps(one) for path, one in given.set.items()}
    wanted = await run_in_threadpool(_wanted, request, given.runbook, values)
    entry = await run_in_threadpool(_enqueue, request, wanted, secrets.token_hex(16))
    return JSONResponse(entry.model_dump(mode="json"), 201)


ROUTES = (
    Route("/start", list_runbooks),
    Route("/start/{name}", show_runbook),
    posted("/start/{name}", send_form, most=_MAX_FIELDS),
    Route("/queue", show_queue),
    posted("/queue/{entry}", cancel),
)
