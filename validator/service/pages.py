"""The pages: now, past, fleet, a run, two compared, and how a validation is stopped. All work without scripts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, get_args
from urllib.parse import urlencode

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from validator.files import Tree
from validator.history.page import SPARK, group_section, node_before, run_row
from validator.history.read import HistoryEntry
from validator.history.trend import Group, group_entries
from validator.model.contrast import ContrastReport
from validator.pipeline.evaluate import result_in
from validator.pipeline.inspect import compare
from validator.report.build import build_page
from validator.report.build_criteria import MAX_OPEN
from validator.report.contrast import since_view
from validator.report.elements import decision_status
from validator.report.fleet import STATES
from validator.report.page import Page as ReportPage
from validator.runs.folder import is_run_folder
from validator.service.access import audit, inner_path, posted, visitor_of, with_cookie
from validator.service.context import assets, number_of, page, run_address, run_filter, service_of, to
from validator.service.events import shape_of
from validator.service.files import listed_logs, run_file
from validator.service.index import RunFilter, RunIndex
from validator.service.live import StopHow
from validator.supervise.open_run import LOG_LINES, LogTail

PAGE = 50
_TREND_RUNS = 1000
_RECENT = 10


def row(entry: HistoryEntry) -> dict[str, Any]:
    """A line of a table of runs."""
    return run_row(entry) | {"entry": entry, "href": run_address(entry.folder)}


def now(request: Request) -> Response:
    """What runs, and what was decided last."""
    service = service_of(request)
    running = service.live.look()
    recent, _ = service.index.find(RunFilter(), limit=_RECENT)
    decided = [row(one) for one in recent if one.decided]
    reports = str(service.index.reports)
    return page(request, "now", running=running, shape=shape_of(running), runs=decided, reports=reports)


def past(request: Request) -> Response:
    """The runs of a filter, page by page, and the metrics of one runbook on one class of machine over time."""
    index, wanted = service_of(request).index, run_filter(request)
    number = number_of(request, "page")
    found, total = index.find(wanted, limit=PAGE, offset=(number - 1) * PAGE)
    groups = _groups(index, index.version(), wanted) if wanted.runbook and wanted.machine else ()
    trends = [group_section(number, group) for number, group in enumerate(groups, start=1)]
    return page(
        request, "past", choices=index.choices(), chosen=wanted.chosen, runs=[row(one) for one in found], total=total,
        number=number, size=PAGE, sections=trends, spark=SPARK, decision=decision_status,
    )  # fmt: skip


@lru_cache(maxsize=16)
def _groups(index: RunIndex, version: tuple[int, int], wanted: RunFilter) -> tuple[Group, ...]:
    """The comparable runs of a filter, without the decision: a trend of good runs alone would show no change."""
    found, _ = index.find(wanted._replace(decision=""), limit=_TREND_RUNS)
    return group_entries(tuple(reversed(found)))


def _node_rows(entries: Sequence[HistoryEntry]) -> Iterator[dict[str, Any]]:
    """Each node of the clusters in `entries`, which are oldest first, by its name."""
    latest = {node.name: (place, node) for place, entry in enumerate(entries) for node in entry.nodes}
    for name, (place, node) in sorted(latest.items()):
        state, before = STATES.get(node.state), node_before(entries[:place], name)
        yield {"node": node, "state": state, "before": before, "run": row(entries[place])}


def fleet(request: Request) -> Response:
    """The latest decision of each machine, and the latest state of each node."""
    index = service_of(request).index
    machines = [row(one) for one in index.latest("host", "machine", "runbook")]
    return page(request, "fleet", machines=machines, nodes=list(_node_rows(index.with_nodes())))


def run(request: Request) -> Response:
    """A run: what it does now, or its decision and what decided it; its files, and others to compare it with."""
    service = service_of(request)
    folder = service.folder(request.path_params["run"])
    entry, running = service.index.entry(folder.name), service.live.of(folder.name)
    files, count = listed_logs(folder)
    like = RunFilter(runbook=entry.runbook, machine=entry.machine) if entry else RunFilter()
    log = service.live.log(folder.name, request.query_params.get("log", "")[:300]) if running else LogTail()
    others = [one for one in service.index.find(like, limit=PAGE)[0] if one.folder != folder.name] if entry else []
    return page(
        request, "run", folder=folder.name, href=run_address(folder.name), running=running,
        shape=shape_of([running] if running else []), page=_first_screen(folder) if entry and not running else None,
        open_limit=MAX_OPEN, files=files, count=count, log=log, log_lines=LOG_LINES,
        events="/events?" + urlencode({"run": folder.name, "log": log.name}) if log.name else "/events",
        others=[row(one) for one in others], has_report=any(one.path == "report.html" for one in files),
    )  # fmt: skip


def _first_screen(folder: Path) -> ReportPage | None:
    """That of its report; None for a result that is damaged, of another version, or cannot be shown."""
    with suppress(Exception), Tree(folder) as tree:  # parts of it are as its trainer wrote them
        return build_page(result_in(tree))
    return None


def contrast_of(request: Request) -> ContrastReport | None:
    """The two runs that an address names, compared; None where it does not name both.

    Raises:
        HTTPException: 404 for a run that is not here, 409 for one without a header.
        UserError: where they cannot be compared.
    """
    a, b = (request.query_params.get(side, "") for side in ("a", "b"))
    if not a or not b:
        return None
    sides = [service_of(request).folder(name) for name in (a, b)]
    if not all(map(is_run_folder, sides)):  # as logs of unknown trainers they would be read, for minutes
        raise HTTPException(409, "Only run folders can be compared: there is no run.json.")
    return compare(sides[0], sides[1])


def compared(request: Request) -> Response:
    """Two runs compared: metrics with intervals, criteria, findings and settings."""
    found = contrast_of(request)
    chosen = [request.query_params.get(side, "") for side in ("a", "b")]
    index = service_of(request).index
    rows = [row(entry) if (entry := index.entry(name)) else None for name in chosen]
    recent = [row(one) for one in index.find(RunFilter(), limit=PAGE)[0]] if found is None else []
    return page(request, "compare", contrast=since_view(found, ("A", "B")), sides=rows, runs=recent)


# Stopping: asked for on the run's page, asked again on a page of its own, and sent by a form.


_HOW: dict[str, StopHow] = {how: how for how in get_args(StopHow)}


def ask_stop(request: Request) -> Response:
    """The second question, with the form that stops."""
    service = service_of(request)
    folder, how = service.folder(request.path_params["run"]), _HOW.get(request.query_params.get("how", "stop"), "stop")
    running = service.live.of(folder.name, fresh=True)  # it may have started a moment ago
    if running is None or not running.working:
        raise HTTPException(409, "This validation is not running here any more.")
    return page(request, "stop", how=how, running=running)


def stop(request: Request, form: Mapping[str, str]) -> Response:
    """Stop a validation, as its page asked for."""
    service, how = service_of(request), _HOW.get(form.get("how", ""))
    if how is None:
        raise HTTPException(400, "how must be stop or halt.")
    folder = service.folder(request.path_params["run"])
    service.live.stop(folder, how)
    audit(request, how, folder.name)
    return to(run_address(folder.name))


# Logging in, with tokens.


def ask_token(request: Request) -> Response:
    """The form for a token."""
    return page(request, "login", next=inner_path(request.query_params.get("next", "/")), wrong=False)


def log_in(request: Request, form: Mapping[str, str]) -> Response:
    """Begin a session; a wrong token gets the form again."""
    access, target = service_of(request).access, inner_path(form.get("next", "/"))
    token = access.checked(form.get("token", ""), request)
    if token is None or not token.allows("read"):
        if token is not None:
            audit(request, "log in", outcome="refused: it may not read", who=token.name)
        return page(request, "login", status=403, next=target, wrong=True)
    audit(request, "log in", who=token.name)
    return with_cookie(request, to(target), access.log_in(form["token"]))


def log_out(request: Request, form: Mapping[str, str]) -> Response:
    """End a session."""
    service_of(request).access.log_out(visitor_of(request).session)
    audit(request, "log out")
    return with_cookie(request, to("/login"), "")


# What pages load.


def events(request: Request) -> Response:
    """What runs, as it changes."""
    service, name = service_of(request), request.query_params.get("run")
    log = (service.folder(name).name, request.query_params.get("log", "")[:300]) if name else None
    stream = service.feed.stream(allowed=lambda: service.access.visitor(request).may("read"), log=log)
    return StreamingResponse(stream, media_type="text/event-stream", headers={"x-accel-buffering": "no"})


def asset(request: Request) -> Response:
    """The style sheet or the script; its address changes with its content."""
    name = request.path_params["name"]
    if name not in assets():
        raise HTTPException(404, "No such file.")
    content, kind, _ = assets()[name]
    return Response(content, headers={"cache-control": "public, max-age=31536000, immutable"}, media_type=kind)


ROUTES = (
    Route("/", now),
    Route("/past", past),
    Route("/fleet", fleet),
    Route("/compare", compared),
    # Without its last stroke the links of a run's page would lead elsewhere.
    Route("/runs/{run}", lambda request: to(run_address(request.path_params["run"]))),
    Route("/runs/{run}/", run),
    Route("/runs/{run}/{path:path}", run_file),
    Route("/stop/{run}", ask_stop),
    posted("/stop/{run}", stop),
    Route("/login", ask_token),
    posted("/login", log_in, keyed=False),
    posted("/logout", log_out),
    Route("/events", events),
    Route("/static/{name}", asset),
)
