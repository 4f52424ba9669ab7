"""A service over run folders that tests make, asked by the framework's test client."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from starlette.testclient import TestClient

from validator.kinds.registry import load
from validator.model.plan import RunSpec
from validator.runs.folder import RunFolder
from validator.runs.journal import Journal
from validator.service.index import RunIndex
from validator.service.serve import make_app
from validator.service.tokens import Tokens

__all__ = ["RUNBOOK", "client", "form_key", "make_running", "spec"]

RUNBOOK = """
schema: 1
name: line
title: {title}
trainer: {{command: [train.py], args: {{steps: "{{steps}}", out: "{{out}}"}}, metrics: {{csv: training.csv}}}}
defaults: {{nproc: 0, timeout: 2m}}
phases:
  - {{id: first, kind: train, steps: 100, accept: [loss.last < loss.first]}}
  - {{id: second, kind: train, steps: 100, accept: [loss.last < loss.first]}}
"""


def client(reports: Path, tokens: Tokens | None = None, *, runbooks: Path | None = None, **headers: str) -> TestClient:
    """A client of a service over `reports`, as a browser on this machine asks it."""
    reports.mkdir(exist_ok=True)
    app = make_app(RunIndex(reports, reports.parent / "state" / "index.sqlite"), tokens, runbooks)
    return TestClient(app, base_url="http://127.0.0.1:8700", headers=headers, follow_redirects=False)


def make_running(reports: Path, *, title: str = "A line") -> tuple[RunFolder, Journal]:
    """A validation whose runner is this process, in its first phase; the journal is open until the test closes it."""
    reports.mkdir(exist_ok=True)
    book = reports.parent / "line.yaml"
    book.write_text(RUNBOOK.format(title=title), encoding="utf-8")
    folder = RunFolder.create(load(book), parent=reports, python=sys.executable, only=(), skip=())
    journal = Journal.open(folder.journal)
    journal.append("started", sync=False, run_id=folder.header.run_id)
    journal.append("phase_started", sync=False, phase="first")
    return folder, journal


def spec(folder: RunFolder, **changes: Any) -> RunSpec:
    """A run of the first phase, whose folder exists."""
    out = "runs/first/r1"
    (folder.root / out).mkdir(parents=True)
    metrics = folder.header.runbook.trainer.metrics
    fields = {"id": "first/r1", "phase": "first", "kind": "train", "launcher": "exec", "argv": ("train.py",), "env": {}}
    return RunSpec(**{**fields, "out": out, "steps": 100, "timeout_s": 60.0, "metrics": metrics, **changes})


def form_key(html: str) -> str:
    """The key that a page's form carries."""
    found = re.search(r'name="key" value="([0-9a-f]{64})"', html)
    assert found, html
    return found[1]
