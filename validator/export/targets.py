"""The trackers, each with its own library, which is imported when it is asked for."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from importlib import import_module
from io import StringIO
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import validator
from validator.errors import Unable, UserError
from validator.export.content import Tracked, TrackedRun
from validator.secrets.redact import redact_output
from validator.text import one_line

T = TypeVar("T")


@dataclass(frozen=True)
class Options:
    """Where to: `uri` of a server or store, `project` that receives it, `out` for what is written to files."""

    uri: str | None = None
    project: str | None = None
    out: Path = Path()


def send(target: str, found: Tracked, options: Options) -> tuple[str, ...]:
    """Hand a validation to a tracker; the lines say where it is now.

    Raises:
        UserError: for a target that there is not.
        Unable: when its library is not installed, or the tracker does not take it.
    """
    if target not in TARGETS:
        raise UserError(f"--to {target}: there is no such target; write one of {', '.join(TARGETS)}")
    with _refusals(target):
        return TARGETS[target](found, options)


def _library(target: str, module: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        fix = "pip install 'training-validator[export]'"
        raise Unable(f"--to {target} needs {module}, which cannot be imported ({error}): {fix}") from None


_FIXES = {
    "mlflow": "check --uri, such as http://127.0.0.1:5000, that a server listens there, and "
    "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD where it asks who you are"
}
"""What to look at where a tracker refuses, by target."""


@contextmanager
def _refusals(target: str) -> Iterator[None]:
    try:
        yield
    except UserError:
        raise
    except Unable:
        raise
    except Exception as error:
        why = one_line(redact_output(str(error)), limit=500).rstrip(".")
        fix = f"; {_FIXES[target]}" if target in _FIXES else ""
        raise Unable(f"{target} did not take the validation: {type(error).__name__}: {why}{fix}") from error


def _id(*parts: str) -> str:
    """A name that every tracker takes as an id."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", "-".join(parts))[:120]


# Weights & Biases: a run for the validation and one for each of its runs, in one group.


def _wandb(found: Tracked, options: Options) -> tuple[str, ...]:
    wandb = _library("wandb", "wandb")
    mode = os.environ.get("WANDB_MODE", "offline")
    # Its own picture of the machine and of this process would be of the exporter, and not of the runs.
    settings = wandb.Settings(
        console="off",
        disable_git=True,
        host="validator",
        save_code=False,
        silent=True,
        x_disable_meta=True,
        x_disable_stats=True,
        x_save_requirements=False,
    )
    project = options.project or found.runbook

    def start(name: str, kind: str, config: dict[str, Any]) -> Any:
        return wandb.init(
            project=project,
            id=_id(found.name, name),
            name=name,
            group=found.name,
            job_type=kind,
            tags=[found.decision],
            config=config,
            dir=str(options.out),
            mode=mode,
            settings=settings,
        )

    whole = start("validation", "validation", {"runbook": found.runbook, **found.texts})
    whole.summary.update({"decision": found.decision, "why": found.why, **found.values})
    whole.summary.update({f"{name}.passed": passed for name, passed in found.passed.items()})
    whole.finish(exit_code=0)
    for run in found.runs:
        one = start(run.name, run.phase, {**run.config, **({"arm": run.arm} if run.arm else {})})
        for step, row in _rows(run):
            one.log(row, step=step)
        one.summary.update(dict(run.values))
        one.finish(exit_code=0 if run.ok else 1)
    places = f"{shlex.quote(str(options.out / 'wandb'))}/offline-run-*-{_id(found.name)}-*"
    next_step = (f"Next    wandb sync {places}",) if mode == "offline" else ()
    return (f"W&B     {1 + len(found.runs)} runs of the project {project}, group {found.name} ({mode})", *next_step)


def _rows(run: TrackedRun) -> Iterator[tuple[int, dict[str, float]]]:
    """Step to what was measured at it, steps in order, as W&B wants them; of a step that was repeated the last."""
    rows: dict[int, dict[str, float]] = {}
    for name, (steps, values) in run.series.items():
        for step, value in zip(steps.tolist(), values.tolist(), strict=True):
            rows.setdefault(int(step), {})[name] = float(value)
    yield from sorted(rows.items())


# MLflow: a run for the validation, and one below it for each of its runs.

_BATCH = 100
"""Metrics, parameters or tags in a request; servers take 100 parameters and 1,000 metrics."""


_RETRIES = "MLFLOW_HTTP_REQUEST_MAX_RETRIES"
"""By its own default of 7, MLflow tries two minutes to reach a server that is not there."""


def _mlflow(found: Tracked, options: Options) -> tuple[str, ...]:
    os.environ.setdefault(_RETRIES, "2")
    # It prints a link to each run, with the password that the address of the server may hold.
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        return _to_mlflow(found, options)


def _to_mlflow(found: Tracked, options: Options) -> tuple[str, ...]:
    mlflow = _library("mlflow", "mlflow")
    entities = _library("mlflow", "mlflow.entities")
    uri = options.uri or mlflow.get_tracking_uri()
    client, shown = mlflow.MlflowClient(tracking_uri=uri), redact_output(uri)  # it may hold a password
    project = options.project or found.runbook
    known = client.get_experiment_by_name(project)
    if known is not None and known.lifecycle_stage == "deleted":
        raise UserError(
            f"the experiment {project} of {shown} is deleted; restore it there, or name another with --project"
        )
    experiment = client.create_experiment(project) if known is None else known.experiment_id
    if client.search_runs([experiment], filter_string=f"tags.`validator.run` = '{found.name}'", max_results=1):
        raise UserError(
            f"{found.name} is in the experiment {project} of {shown} already; delete it there to send it again"
        )
    time_ms = int(1000 * found.started_s)

    def start(name: str, tags: dict[str, str]) -> str:
        made = client.create_run(experiment, start_time=time_ms, run_name=name, tags=tags)
        return str(made.info.run_id)

    def log(run: str, metrics: list[tuple[str, float, int]], params: dict[str, Any], tags: dict[str, str]) -> None:
        values = [entities.Metric(_key(name), value, time_ms, step) for name, value, step in metrics]
        named = [entities.Param(_key(name), str(value)) for name, value in params.items()]
        marks = [entities.RunTag(_key(name), value) for name, value in tags.items()]
        for part in _parts(values, 10 * _BATCH):
            client.log_batch(run, metrics=part)
        for part in _parts(named, _BATCH):
            client.log_batch(run, params=part)
        for part in _parts(marks, _BATCH):
            client.log_batch(run, tags=part)

    whole = start(found.name, {"validator.why": found.why})
    verdicts = {f"{name}.passed": float(passed) for name, passed in found.passed.items()}
    log(whole, [(name, value, 0) for name, value in {**found.values, **verdicts}.items()], {}, dict(found.texts))
    for run in found.runs:
        child = start(run.name, {"mlflow.parentRunId": whole, "validator.phase": run.phase})
        rows = [(name, value, step) for step, row in _rows(run) for name, value in row.items()]
        rows += [(name, value, 0) for name, value in run.values.items()]
        log(child, rows, {**run.config, **({"arm": run.arm} if run.arm else {})}, {})
        client.set_terminated(child, "FINISHED" if run.ok else "FAILED")
    log(whole, [], {}, found.tags)  # last: it says that everything is there
    client.set_terminated(whole, "FINISHED")
    return (f"MLflow  {1 + len(found.runs)} runs of the experiment {project} at {shown}, the first is {whole}",)


def _key(name: str) -> str:
    """A name of the characters that MLflow takes."""
    return re.sub(r"[^A-Za-z0-9_. /-]", "_", name)[:250]


def _parts(values: list[T], size: int) -> Iterator[list[T]]:
    rest = iter(values)
    while part := list(islice(rest, size)):
        yield part


# OpenTelemetry: gauges of what the validation came to. They have no place for the series of a run that is over.


def _otel(found: Tracked, options: Options) -> tuple[str, ...]:
    metrics = _library("otel", "opentelemetry.sdk.metrics")
    export = _library("otel", "opentelemetry.sdk.metrics.export")
    resources = _library("otel", "opentelemetry.sdk.resources")
    otlp = _library("otel", "opentelemetry.exporter.otlp.proto.http.metric_exporter")
    observation = _library("otel", "opentelemetry.metrics").Observation
    resource = resources.Resource.create(
        {"service.name": "validator", "service.version": validator.__version__, **found.tags}
    )
    reader = export.InMemoryMetricReader()
    meter = metrics.MeterProvider(metric_readers=[reader], resource=resource).get_meter("validator")
    count = 0
    for name, description, points in _gauges(found):
        observed = [observation(value, attributes) for value, attributes in points]
        count += len(observed)
        meter.create_observable_gauge(name, callbacks=[lambda _, now=observed: now], description=description)
    endpoint = None if options.uri is None else f"{options.uri.rstrip('/').removesuffix('/v1/metrics')}/v1/metrics"
    exporter = otlp.OTLPMetricExporter(endpoint=endpoint)
    data = reader.get_metrics_data()
    gauges = [gauge for one in data.resource_metrics for scope in one.scope_metrics for gauge in scope.metrics]
    kept = sum(len(gauge.data.data_points) for gauge in gauges)
    taken = exporter.export(data)
    exporter.shutdown()
    if taken != export.MetricExportResult.SUCCESS:
        fix = "check --uri, or OTEL_EXPORTER_OTLP_ENDPOINT, and that a collector listens there"
        raise Unable(f"otel did not take the validation; {fix}")
    if kept < count:
        raise Unable(f"otel took {kept} of {count} values: the library limits the points of a gauge")
    return (f"OTLP    {count} values of validator.* for {found.name}",)


Points = list[tuple[float, dict[str, str]]]


def _gauges(found: Tracked) -> Iterator[tuple[str, str, Points]]:
    """Name, meaning and points of every gauge."""
    go = float(found.decision == "GO")
    yield "validator.go", "1 where the decision is GO", [(go, {"decision": found.decision})]
    passed: Points = [(float(value), {"name": name}) for name, value in found.passed.items()]
    yield "validator.passed", "1 where a phase or a criterion passed", passed
    yield (
        "validator.value",
        "Scalars of phases, and what criteria compare",
        [(value, {"name": name}) for name, value in found.values.items()],
    )
    by_name: dict[str, Points] = {}
    for run in found.runs:
        place = {"run": run.name, "phase": run.phase, **({"arm": run.arm} if run.arm else {})}
        for name, value in run.values.items():
            by_name.setdefault(re.sub(r"[^A-Za-z0-9_./-]", "_", name)[:200], []).append((value, place))
    # A gauge for each name: the library keeps 2,000 points of one.
    for name, own in by_name.items():
        yield f"validator.run.{name}", f"{name} of each run", own


TARGETS: dict[str, Callable[[Tracked, Options], tuple[str, ...]]] = {"wandb": _wandb, "mlflow": _mlflow, "otel": _otel}
"""Trackers by the name that `--to` takes."""
