"""The API: what the pages show as JSON, by the models of result.json, with its description, metrics and badges."""

from __future__ import annotations

from dataclasses import asdict
from functools import lru_cache, partial
from typing import Any, NamedTuple

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Gauge, generate_latest
from pydantic import TypeAdapter, create_model
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

import validator
from validator.history.read import HistoryEntry
from validator.model.contrast import ContrastReport
from validator.model.verdict import ValidationReport
from validator.pipeline.push import Manifest, Receipt
from validator.report.elements import decision_status
from validator.report.page import StatusView
from validator.report.templates import environment
from validator.service.context import NUMBERS, number_of, run_filter, service_of
from validator.service.files import streamed
from validator.service.inbox import begin_push, continue_push
from validator.service.index import FILTERS
from validator.service.live import Running
from validator.service.pages import contrast_of
from validator.service.queue import QueueEntry
from validator.service.start import list_queue
from validator.times import unix_seconds

BASE = "/api/v1"


def list_runs(request: Request) -> Response:
    """Runs of a filter, the latest first, and how many there are."""
    limit, offset = number_of(request, "limit"), number_of(request, "offset")
    found, total = service_of(request).index.find(run_filter(request), limit=limit, offset=offset)
    return JSONResponse({"total": total, "runs": [asdict(one) for one in found]})


def one_run(request: Request) -> Response:
    """What the history keeps of one run."""
    found = service_of(request).index.entry(str(request.path_params["run"]))
    if found is None:
        raise HTTPException(404, "No run of this name is here.")
    return JSONResponse(asdict(found))


def result(request: Request) -> Response:
    """A run's result.json as it is."""
    folder = service_of(request).folder(request.path_params["run"])
    return streamed(request, folder, "result.json", media_type="application/json")


def running(request: Request) -> Response:
    """What runs now, with the texts that the pages show."""
    return JSONResponse({"running": [asdict(one) for one in service_of(request).live.look()]})


def contrast(request: Request) -> Response:
    """Two runs compared, as `validator compare --json` prints it."""
    found = contrast_of(request)
    if found is None:
        raise HTTPException(400, "a and b must name the two runs.")
    return Response(found.model_dump_json(), media_type="application/json")


def metrics(request: Request) -> Response:
    """The metrics in Prometheus' text format."""
    service, registry = service_of(request), CollectorRegistry()
    gauge = partial(Gauge, registry=registry)
    working = sum(one.working for one in service.live.look())
    gauge("validator_running", "Validations that a runner works on.").set(working)
    named = ["runbook", "machine", "host"]
    decided = gauge("validator_decision", "1 for the latest decision.", [*named, "decision"])
    started = gauge("validator_start_timestamp_seconds", "Start of the latest decided run.", named)
    took = gauge("validator_duration_seconds", "Duration of the latest decided run.", named)
    for entry in service.index.latest("runbook", "machine", "host"):
        labels = (entry.runbook, entry.machine, entry.host)
        for decision in ("GO", "NO_GO", "INCONCLUSIVE"):
            decided.labels(*labels, decision).set(decision == entry.decision)
        started.labels(*labels).set(unix_seconds(entry.started) or 0.0)
        if entry.duration_s is not None:
            took.labels(*labels).set(entry.duration_s)
    return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)


def badge(request: Request) -> Response:
    """The latest decision of a runbook as an SVG; `machine`, `branch` and `host` in the address narrow it."""
    wanted = run_filter(request)._replace(runbook=str(request.path_params["runbook"]), decision="")
    found, _ = service_of(request).index.find(wanted, limit=20)
    decision = next((one.decision for one in found if one.decided), "")
    view = decision_status(decision) if decision else StatusView("NO RUN", "", "muted")
    made = environment().get_template("service/badge.svg.j2").render(name=wanted.runbook, view=view)
    return Response(made, media_type="image/svg+xml")


# The description of the API, from the routes and the models.


Runs = create_model("Runs", total=(int, ...), runs=(list[HistoryEntry], ...))
Open = create_model("Open", running=(list[Running], ...))
Queue = create_model("Queue", queue=(list[QueueEntry], ...))


class Endpoint(NamedTuple):
    """One address of the API. `answer` is the model of its JSON; `query` what the address may name besides; `body` the
    model of the JSON that is sent to it, or `bytes`."""

    method: str
    path: str
    function: Any
    answer: Any
    query: tuple[str, ...] = ()
    body: Any = None


ENDPOINTS = (
    Endpoint("get", "/runs", list_runs, Runs, (*FILTERS, "limit", "offset")),
    Endpoint("get", "/runs/{run}", one_run, HistoryEntry),
    Endpoint("get", "/runs/{run}/result", result, ValidationReport),
    Endpoint("get", "/running", running, Open),
    Endpoint("get", "/compare", contrast, ContrastReport, ("a", "b")),
    Endpoint("get", "/queue", list_queue, Queue),
    Endpoint("post", "/push", begin_push, Receipt, body=Manifest),
    Endpoint("put", "/push/{upload}", continue_push, Receipt, ("file", "at"), bytes),
)


def openapi(request: Request) -> Response:
    """The description of the API."""
    return Response(description(), media_type="application/json")


@lru_cache(maxsize=1)
def description() -> str:
    """The API as OpenAPI 3.1."""
    models: list[Any] = [(one, "serialization", TypeAdapter(one.answer)) for one in ENDPOINTS]
    models += [(one, "validation", TypeAdapter(one.body)) for one in ENDPOINTS if one.body]
    schemas, shared = TypeAdapter.json_schemas(models, ref_template="#/components/schemas/{model}")
    return environment().get_template("service/openapi.json.j2").render(
        base=BASE, version=validator.__version__, endpoints=ENDPOINTS, numbers=NUMBERS, schemas=schemas,
        defined=shared["$defs"],
    )  # fmt: skip


ROUTES = (
    Route(f"{BASE}/openapi.json", openapi),
    *(Route(BASE + one.path, one.function, methods=[one.method.upper()]) for one in ENDPOINTS),
    Route("/metrics", metrics),
    Route("/badge/{runbook}.svg", badge),
)
