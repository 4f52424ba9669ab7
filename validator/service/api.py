"""The API: what the pages show as JSON, by the models of result.json, with its description, metrics and badges."""

from __future__ import annotations

import re
from dataclasses import asdict
from functools import lru_cache, partial
from typing import Any, Literal, NamedTuple

from prometheus_client import CollectorRegistry, Gauge, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from pydantic import TypeAdapter
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
from validator.service.start import QueueRequest, enqueue, list_queue
from validator.text import one_line
from validator.times import unix_seconds

BASE = "/api/v1"
_DECISIONS = ("GO", "NO_GO", "INCONCLUSIVE")


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
    return streamed(
        request, service_of(request).folder(request.path_params["run"]), "result.json", media_type="application/json"
    )


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
    counted = gauge("validator_runs", "Validations in the folder.", ["runbook", "machine", "decision"])
    for runbook, machine, decision, count in service.index.counts():
        counted.labels(runbook, machine, decision).set(count)
    working = sum(one.working for one in service.live.look())
    gauge("validator_running", "Validations that a runner works on.").set(working)
    named = ["runbook", "machine", "host"]
    decided = gauge("validator_decision", "1 for the latest decision.", [*named, "decision"])
    started = gauge("validator_start_timestamp_seconds", "Start of the latest decided run.", named)
    took = gauge("validator_duration_seconds", "Duration of the latest decided run.", named)
    for entry in service.index.latest("runbook", "machine", "host"):
        labels = (entry.runbook, entry.machine, entry.host)
        for decision in _DECISIONS:
            decided.labels(*labels, decision).set(decision == entry.decision)
        started.labels(*labels).set(unix_seconds(entry.started) or 0.0)
        if entry.duration_s is not None:
            took.labels(*labels).set(entry.duration_s)
    return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)


def badge(request: Request) -> Response:
    """The latest decision of a runbook as an SVG; `machine`, `branch` and `host` in the address narrow it."""
    wanted = run_filter(request)._replace(runbook=str(request.path_params["runbook"]), decision="")
    found, _ = service_of(request).index.find(wanted, limit=20)
    decision = next((one.decision for one in found if one.decision != "IN_PROGRESS"), "")
    view = decision_status(decision) if decision else StatusView("NO RUN", "", "muted")
    name = one_line(wanted.runbook, limit=60)
    made = environment().get_template("service/badge.svg.j2").render(name=name, word=view.word, tone=view.tone)
    return Response(made, media_type="image/svg+xml")


# The description of the API, from the routes and the models.


class Endpoint(NamedTuple):
    """One address of the API. `answer` is the model of its JSON; `query` what the address may name besides; `body` the
    model of the JSON that is posted to it."""

    path: str
    function: Any
    answer: Any
    query: tuple[str, ...] = ()
    listed: str = ""
    """Name of the list that holds the models, where the answer is one."""

    method: Literal["get", "post", "put"] = "get"
    body: Any = None
    """Model of the body's JSON, or `bytes`."""


_RUNS_QUERY = (*FILTERS, "limit", "offset")
ENDPOINTS = (
    Endpoint("/runs", list_runs, HistoryEntry, _RUNS_QUERY, "runs"),
    Endpoint("/runs/{run}", one_run, HistoryEntry),
    Endpoint("/runs/{run}/result", result, ValidationReport),
    Endpoint("/running", running, Running, (), "running"),
    Endpoint("/compare", contrast, ContrastReport, ("a", "b")),
    Endpoint("/queue", list_queue, QueueEntry, (), "queue"),
    Endpoint("/queue", enqueue, QueueEntry, method="post", body=QueueRequest),
    Endpoint("/push", begin_push, Receipt, method="post", body=Manifest),
    Endpoint("/push/{upload}", continue_push, Receipt, ("file", "at"), method="put", body=bytes),
)


def openapi(request: Request) -> Response:
    """The description of the API."""
    return JSONResponse(description())


@lru_cache(maxsize=1)
def description() -> dict[str, Any]:
    """The API as OpenAPI 3.1."""
    models = {(one.answer, "serialization") for one in ENDPOINTS}
    models |= {(one.body, "validation") for one in ENDPOINTS if one.body not in (None, bytes)}
    inputs = [(model.__name__, mode, TypeAdapter(model)) for model, mode in models]
    paths: dict[str, dict[str, Any]] = {}
    for one in ENDPOINTS:
        paths.setdefault(one.path, {})[one.method] = _operation(one)
    schemas, shared = TypeAdapter.json_schemas(inputs, ref_template="#/components/schemas/{model}")  # type: ignore[arg-type]
    defined = {**{name: schema for (name, _), schema in schemas.items()}, **shared.get("$defs", {})}
    error = {"type": "object", "required": ["error"], "properties": {"error": {"type": "string"}}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "validator", "version": validator.__version__},
        "servers": [{"url": BASE}],
        "security": [{}, {"token": []}],
        "paths": paths,
        "components": {
            "schemas": {**defined, "Error": error},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(one: Endpoint) -> dict[str, Any]:
    answer = _model(one.answer.__name__)
    if one.listed:
        total = {"total": {"type": "integer"}} if "limit" in one.query else {}
        answer = {"type": "object", "properties": {one.listed: {"type": "array", "items": answer}, **total}}
    names = [(name, "path") for name in re.findall(r"{(\w+)", one.path)] + [(name, "query") for name in one.query]
    operation = {
        "operationId": one.function.__name__,
        "summary": str(one.function.__doc__).partition("\n")[0],
        "parameters": [_parameter(name, where) for name, where in names],
        "responses": {
            "2XX": {"description": "OK", "content": _json_content(answer)},
            "default": {"description": "Why it is refused.", "content": _json_content(_model("Error"))},
        },
    }
    if one.body:
        content = {"application/octet-stream": {}} if one.body is bytes else _json_content(_model(one.body.__name__))
        operation["requestBody"] = {"required": True, "content": content}
    return operation


def _model(name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{name}"}


def _json_content(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _parameter(name: str, where: str) -> dict[str, Any]:
    required = where == "path" or name in ("a", "b")
    schema: dict[str, Any] = {"type": "string", "minLength": int(required)}
    if name in NUMBERS:
        least, most, default = NUMBERS[name]
        schema = {"type": "integer", "minimum": least, "maximum": most, "default": default}
    return {"name": name, "in": where, "required": required, "schema": schema}


ROUTES = (
    Route(f"{BASE}/openapi.json", openapi),
    *(Route(BASE + one.path, one.function, methods=[one.method.upper()]) for one in ENDPOINTS),
    Route("/metrics", metrics),
    Route("/badge/{runbook}.svg", badge),
)
