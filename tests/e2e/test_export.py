"""A validation handed to trackers: doubles of their libraries write down what they were given."""

from __future__ import annotations

import json
import time
from base64 import b64encode
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

import pytest

from tests.e2e.conftest import RATED_TRAINER, REPOSITORY
from tests.webhooks import listening, served

WANDB = """
import json, os, pathlib
class Settings:
    def __init__(self, **more): self.more = more
class Run:
    def __init__(self, **given):
        self.given, self.summary, self.rows = given, {}, []
        self.given["settings"] = given["settings"].more
    def log(self, row, step): self.rows.append([step, row])
    def finish(self, exit_code):
        with open(os.environ["DOUBLE"], "a") as file:
            file.write(json.dumps({**self.given, "summary": self.summary, "rows": self.rows, "rc": exit_code}) + "\\n")
def init(**given): return Run(**given)
"""
MLFLOW = """
import json, os, types
from mlflow import entities
path = os.environ["DOUBLE"]
def get_tracking_uri(): return "default"
class MlflowClient:
    def __init__(self, tracking_uri):
        self.runs = json.load(open(path)) if os.path.exists(path) else {}
        self.uri = tracking_uri
    def get_experiment_by_name(self, name):
        known = types.SimpleNamespace(experiment_id=name, lifecycle_stage="deleted")
        return known if name == "gone" else None
    def create_experiment(self, name): return name
    def search_runs(self, experiments, filter_string, max_results):
        return [one for one in self.runs.values() if f"= '{one['tags'].get('validator.run')}'" in filter_string]
    def create_run(self, experiment, start_time, run_name, tags):
        run = f"id{len(self.runs)}"
        self.runs[run] = {"experiment": experiment, "name": run_name, "tags": tags, "metrics": [], "params": {}}
        return types.SimpleNamespace(info=types.SimpleNamespace(run_id=run))
    def log_batch(self, run, metrics=(), params=(), tags=()):
        assert len(metrics) <= 1000 and len(params) <= 100 and len(tags) <= 100
        found = self.runs[run]
        found["metrics"] += [list(one) for one in metrics]
        found["params"] |= dict(params)
        found["tags"] |= dict(tags)
    def set_terminated(self, run, status):
        self.runs[run]["status"] = status
        print("View run at:", self.uri, flush=True)
        json.dump(self.runs, open(path, "w"))
"""
ENTITIES = """
from collections import namedtuple
Metric = namedtuple("Metric", "key value timestamp step")
Param = namedtuple("Param", "key value")
RunTag = namedtuple("RunTag", "key value")
"""


@pytest.fixture
def rated(cli: Any, workdir: Path) -> Path:
    """The folder of a run that ended GO."""
    (workdir / "train.py").write_text(RATED_TRAINER)
    (workdir / "rated.yaml").write_text(
        "schema: 1\nname: rated\nhardware: {price_per_gpu_hour: 3.6, currency: USD}\n"
        "trainer: {command: [train.py], metrics: {csv: training.csv}}\ndefaults: {nproc: 0, timeout: 60s}\n"
        "phases:\n  - {id: baseline, kind: train, steps: 200, accept: [loss.last < loss.first]}\n"
    )
    assert cli("run", "rated.yaml").rc == 0
    (folder,) = (path.parent for path in (workdir / "reports").glob("*/run.json"))
    return folder


@pytest.fixture
def doubles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Libraries of trackers on Python's path; gives the file that they write."""
    library = tmp_path / "library"
    (library / "mlflow").mkdir(parents=True)
    (library / "wandb.py").write_text(WANDB)
    (library / "mlflow/__init__.py").write_text(MLFLOW)
    (library / "mlflow/entities.py").write_text(ENTITIES)
    monkeypatch.setenv("PYTHONPATH", f"{library}:{REPOSITORY}")
    monkeypatch.setenv("DOUBLE", str(tmp_path / "double.json"))
    monkeypatch.delenv("WANDB_MODE", raising=False)
    return tmp_path / "double.json"


def test_wandb_gets_a_group_of_runs(cli: Any, rated: Path, doubles: Path) -> None:
    answer = cli("export", str(rated), "--to", "wandb", "--out", "there")
    assert answer.rc == 0, answer.err
    assert f"Next    wandb sync there/wandb/offline-run-*-{rated.name}-*" in answer.out
    whole, run = (json.loads(line) for line in doubles.read_text().splitlines())
    assert {whole["group"], run["group"]} == {rated.name}
    assert (whole["mode"], whole["project"], whole["tags"], whole["dir"]) == ("offline", "rated", ["GO"], "there")
    assert whole["summary"]["decision"] == "GO"
    assert whole["summary"]["baseline.1.passed"] is True
    assert whole["summary"]["baseline.cost.per_million_tokens"] > 0
    assert whole["id"] != run["id"]
    assert (run["name"], run["job_type"], run["rc"]) == ("baseline/r1", "baseline", 0)
    assert run["config"]["steps"] == 200
    assert [step for step, _ in run["rows"]] == list(range(1, 201))
    assert run["rows"][-1][1]["loss"] == 2.0
    assert run["summary"]["loss.last"] == 2.0
    assert run["settings"]["x_disable_meta"] is True
    assert str(rated) not in doubles.read_text(), "no path leaves the machine"


def test_mlflow_gets_a_run_with_children_once(cli: Any, rated: Path, doubles: Path) -> None:
    uri = "postgresql://me:s3cretpw9@db/x"
    answer = cli("export", str(rated), "--to", "mlflow", "--uri", uri, "--project", "mine")
    assert answer.rc == 0, answer.err
    assert "s3cretpw9" not in answer.out + answer.err, "the library prints it"
    assert len(answer.out.splitlines()) == 1
    whole, run = json.loads(doubles.read_text()).values()
    assert (whole["experiment"], whole["status"], run["status"]) == ("mine", "FINISHED", "FINISHED")
    assert whole["tags"]["validator.decision"] == "GO"
    assert whole["tags"]["baseline.1.criterion"] == "PASS: loss.last < loss.first"
    assert run["tags"]["mlflow.parentRunId"] == "id0"
    assert run["params"]["steps"] == "200"
    losses = {step: value for key, value, _, step in run["metrics"] if key == "loss"}
    assert (len(losses), losses[200]) == (200, 2.0)
    again = cli("export", str(rated), "--to", "mlflow", "--uri", uri, "--project", "mine")
    assert again.rc == 2
    assert "s3cretpw9" not in again.out + again.err
    assert "already; delete it there" in again.err
    assert len(json.loads(doubles.read_text())) == 2
    deleted = cli("export", str(rated), "--to", "mlflow", "--project", "gone")
    assert (deleted.rc, "is deleted; restore it there, or name another" in deleted.err) == (2, True)


def test_a_missing_library_and_an_unknown_target_are_named(cli: Any, rated: Path, monkeypatch: Any) -> None:
    blocked = rated.parents[1] / "blocked"
    for name in ("wandb", "mlflow", "opentelemetry"):
        (blocked / name).mkdir(parents=True)
        (blocked / name / "__init__.py").write_text(f"raise ModuleNotFoundError('No module named {name}')")
    monkeypatch.setenv("PYTHONPATH", f"{blocked}:{REPOSITORY}")
    for target in ("wandb", "mlflow", "otel"):
        answer = cli("export", str(rated), "--to", target)
        assert answer.rc == 4
        assert "pip install 'training-validator[export]'" in answer.err
    answer = cli("export", str(rated), "--to", "excel", "--json")
    assert answer.rc == 2
    assert "write one of wandb, mlflow, otel" in answer.json["error"]


def test_what_a_tracker_refuses_is_said(cli: Any, rated: Path, doubles: Path, tmp_path: Path) -> None:
    (tmp_path / "library/wandb.py").write_text(WANDB + "def init(**given): raise RuntimeError('no\\nroom')\n")
    answer = cli("export", str(rated), "--to", "wandb")
    assert answer.rc == 4
    assert answer.err == "wandb did not take the validation: RuntimeError: no\\nroom\n"


def test_a_folder_without_a_run_is_refused(cli: Any, workdir: Path) -> None:
    assert cli("export", str(workdir), "--to", "wandb").rc == 2


# The libraries themselves, where they are installed.


class TrackingServer(BaseHTTPRequestHandler):
    """As much of MLflow's REST API as an export needs, behind a password."""

    runs: ClassVar[dict[str, dict[str, Any]]]

    def _answer(self, asked: dict[str, Any]) -> tuple[int, Any]:
        if self.headers.get("Authorization") != "Basic " + b64encode(b"me:s3cretpw9").decode():
            return 401, "who are you?"
        what = urlsplit(self.path).path.removeprefix("/api/2.0/mlflow/")
        run = self.runs.get(asked.get("run_id", ""), {})
        if what == "experiments/get-by-name":
            return 404, {"error_code": "RESOURCE_DOES_NOT_EXIST", "message": "none"}
        if what == "runs/create":
            made = f"{len(self.runs):032x}"
            self.runs[made] = {"metrics": [], "params": [], "tags": [], "info": {"run_id": made, "run_uuid": made}}
            return 200, {"run": {"info": self.runs[made]["info"], "data": {}}}
        for part in ("metrics", "params", "tags") if what == "runs/log-batch" else ():
            run[part] += asked.get(part, [])
        if what == "runs/update":
            run["status"] = asked["status"]
        return 200, {"experiment_id": "7"} if what == "experiments/create" else {"run": {"info": run.get("info", {})}}

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        status, found = self._answer(json.loads(body) if body else {})
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(found).encode())

    do_GET = do_POST

    def log_message(self, *_: object) -> None:
        pass


def test_a_running_mlflow_server_takes_it(cli: Any, rated: Path) -> None:
    pytest.importorskip("mlflow")
    TrackingServer.runs = {}
    with served(TrackingServer) as address:
        uri = f"http://{address}"
        refused = cli("export", str(rated), "--to", "mlflow", "--uri", uri)
        assert (refused.rc, "MLFLOW_TRACKING_PASSWORD" in refused.err) == (4, True)
        given = uri.replace("//", "//me:s3cretpw9@")
        answer = cli("export", str(rated), "--to", "mlflow", "--uri", f"{given}/")
    assert answer.rc == 0, answer.err
    assert answer.out.startswith("MLflow  2 runs of the experiment rated")
    assert "s3cretpw9" not in answer.out + answer.err
    whole, child = TrackingServer.runs.values()
    assert {"key": "validator.decision", "value": "GO"} in whole["tags"]
    assert [one["step"] for one in child["metrics"] if one["key"] == "loss"] == list(range(1, 201))
    assert (whole["status"], child["status"]) == ("FINISHED", "FINISHED")
    began = time.monotonic()
    gone = cli("export", str(rated), "--to", "mlflow", "--uri", uri)
    assert (gone.rc, "that a server listens there" in gone.err) == (4, True)
    assert time.monotonic() - began < 60


@pytest.mark.filterwarnings("ignore")  # of what reads it back here
def test_mlflow_itself_takes_it(cli: Any, rated: Path, workdir: Path) -> None:
    mlflow = pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy")
    uri = f"sqlite:///{workdir}/mlflow.db"
    assert cli("export", str(rated), "--to", "mlflow", "--uri", uri, timeout_s=300).rc == 0
    client = mlflow.MlflowClient(uri)
    runs = client.search_runs([client.get_experiment_by_name("rated").experiment_id])
    (child,) = (one for one in runs if one.info.run_name == "baseline/r1")
    assert len(client.get_metric_history(child.info.run_id, "loss")) == 200


def test_wandb_itself_takes_it(cli: Any, rated: Path, workdir: Path) -> None:
    pytest.importorskip("wandb")
    answer = cli("export", str(rated), "--to", "wandb", "--out", "there", timeout_s=300)
    assert answer.rc == 0, answer.err
    assert len(list(workdir.glob(f"there/wandb/offline-run-*-{rated.name}-*/*.wandb"))) == 2


def test_a_collector_takes_every_value(cli: Any, rated: Path) -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http.metric_exporter")
    with listening() as (address, posts):
        answer = cli("export", str(rated), "--to", "otel", "--uri", f"http://{address}")
    assert answer.rc == 0, answer.err
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

    request = ExportMetricsServiceRequest.FromString(posts[0].body)
    metrics = {one.name: one.gauge.data_points for one in request.resource_metrics[0].scope_metrics[0].metrics}
    assert metrics["validator.go"][0].as_double == 1.0
    assert metrics["validator.run.loss.last"][0].as_double == 2.0
    assert f"OTLP    {sum(map(len, metrics.values()))} values" in answer.out
