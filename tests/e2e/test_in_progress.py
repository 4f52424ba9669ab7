"""The report of a validation that goes on: there soon after a phase began, and not for phases that are over at once."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from tests.processes import start_validator, wait_until

RUNBOOK = """\
schema: 1
name: waits
defaults: {timeout: 60s}
phases:
  - {id: short, kind: command, run: "true"}
  - {id: long, kind: command, run: "while ! test -e gate; do sleep 0.05; done", expected: 30s}
  - {id: last, kind: command, run: "true", accept: [outcome.rc == 0]}
"""


def test_it_is_written_beside_a_run_that_goes_on(workdir: Path) -> None:
    (workdir / "waits.yaml").write_text(RUNBOOK, encoding="utf-8")
    own = {"XDG_RUNTIME_DIR": str(workdir), "NO_COLOR": "1"}
    streams = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    runner = start_validator("run", "waits.yaml", cwd=workdir, env=own, **streams)
    try:
        wait_until(lambda: any((workdir / "reports").glob("*/result.json")), "a report")
        (written,) = (workdir / "reports").glob("*/result.json")
        so_far = json.loads(written.read_text(encoding="utf-8"))
    finally:  # whatever was found, the run goes on to its end
        (workdir / "gate").touch()
        _, told = runner.communicate(timeout=60)
    assert runner.returncode == 0, told
    statuses = {phase["id"]: phase["status"] for phase in so_far["phases"]}
    assert (so_far["decision"], statuses) == ("IN_PROGRESS", {"short": "PASS", "long": "RUNNING", "last": "NOT_RUN"})
    assert json.loads(written.read_text(encoding="utf-8"))["decision"] == "GO"
