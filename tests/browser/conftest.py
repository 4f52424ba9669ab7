"""A real browser, and reports made by real runs to open in it."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright

REPOSITORY = Path(__file__).resolve().parents[2]
LINE_TRAINER = REPOSITORY / "tests" / "contract" / "line_trainer.py"

RUNBOOK = """
schema: 1
name: line
title: A line, learned
trainer:
  command: ["{trainer}"]
  args: {{steps: "{{steps}}", out: "{{out}}", batch-size: {batch}}}
  metrics: {{csv: training.csv, heartbeat: "heartbeat_rank{{rank}}.jsonl"}}
defaults: {{nproc: 0, timeout: 15m, warmup_steps: 10}}
phases:
  - {{id: words, kind: command, run: "echo it is 42", stdout: 'is (?P<it>\\d+)', accept: [metrics.it == 42]}}
  - id: baseline
    kind: train
    steps: {steps}
    accept: [{accept}]
  - id: rates
    kind: sweep
    steps: 40
    repeats: {repeats}
    needs: [words]
    over: {{args.lr: [0.1, 0.2]}}
    choose: {{lowest: loss.last}}
    required: false
"""

# No decision rests on a time, which a machine that is busy with other tests stretches; a best moment decides nothing.
# What is in progress would take ten minutes, and is stopped once it has a report, which may take a busy machine one.
CASES = {
    "go": {"steps": 120, "batch": 500, "accept": "loss.last < loss.first", "repeats": 4},
    "no_go": {"steps": 120, "batch": 500, "accept": "loss.last >= 1000", "repeats": 2},
    "inconclusive": {"steps": 25, "batch": 500, "accept": "toks_per_s.max >= 1 tok/s", "repeats": 1},
    "in_progress": {"steps": 40_000, "batch": 20_000, "accept": "loss.last < loss.first", "repeats": 1},
}
DECISIONS = {"go": "GO", "no_go": "NO_GO", "inconclusive": "INCONCLUSIVE", "in_progress": "IN_PROGRESS"}


@pytest.fixture(scope="session")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Run folders by decision, made once for all workers of a test run."""
    shared = tmp_path_factory.getbasetemp()
    shared = (shared.parent if os.environ.get("PYTEST_XDIST_WORKER") else shared) / "browser-reports"
    shared.mkdir(exist_ok=True)
    with (shared / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        wanted = [name for name in CASES if not (shared / name / "report.html").is_file()]
        with ThreadPoolExecutor(max_workers=len(CASES)) as together:
            for made in [together.submit(_make, shared, name) for name in wanted]:
                made.result()
    return {name: shared / name for name in CASES}


def _make(shared: Path, name: str) -> None:
    """One validation to its end, or, for the one in progress, the report as it stands in the middle."""
    work = shared / f"work-{name}"
    work.mkdir()
    text = RUNBOOK.format(trainer=LINE_TRAINER, **CASES[name])
    (work / "line.yaml").write_text(text, encoding="utf-8")
    with (work / "output.txt").open("w") as output:
        runner = subprocess.Popen(
            [sys.executable, "-m", "validator", "run", "line.yaml"],
            cwd=work,
            env={**os.environ, "XDG_RUNTIME_DIR": str(work), "NO_COLOR": "1"},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        folder = _wait(runner, work, until_report=name == "in_progress")
        shutil.copytree(folder, shared / name, ignore=shutil.ignore_patterns(".*.tmp"))  # still being written
    finally:
        runner.terminate()
        runner.wait(timeout=60)
    found = json.loads((shared / name / "result.json").read_text(encoding="utf-8"))
    told = (work / "output.txt").read_text(encoding="utf-8", errors="replace")
    assert found["decision"] == DECISIONS[name], f"{found['why']}\n{told}"


def _wait(runner: subprocess.Popen[bytes], work: Path, *, until_report: bool) -> Path:
    end = time.monotonic() + 180
    while time.monotonic() < end:
        folders = [path.parent for path in work.glob("reports/*/report.html")]
        ended = runner.poll() is not None
        if folders and (until_report or ended):
            return folders[0]
        assert not ended, (work / "output.txt").read_text(encoding="utf-8", errors="replace")
        time.sleep(0.1)
    raise AssertionError(f"no report below {work} within three minutes")


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Debian's Chromium. Without it these tests are skipped, and fail where `.ci/run` requires it: a page that was not
    opened was not tested."""
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    missing = "the tests of pages need Chromium: apt-get install chromium (`.ci/run` does it)"
    assert program or "REQUIRE_BROWSER" not in os.environ, missing
    if program is None:
        pytest.skip(missing)
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        yield started
        started.close()
