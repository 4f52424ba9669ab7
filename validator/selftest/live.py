"""Cases with real processes: `trainer.py` runs with a fault, or is disturbed from outside."""

from __future__ import annotations

import resource
import socket
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from validator.selftest.case import Case, CaseRun, RunCase, Sandbox, read_result
from validator.selftest.recorded_case import book, case, train

_STARTED = ("runs/*/r1/logs/stdout.log",)
_ROWS = ("runs/*/r1/training.csv", "runs/*/r1/heartbeat_rank0.jsonl", "runs/*/r1/env.json")
_BUNDLE = ("runs/*/r1/dump/*",)


def run_book(text: str, *, before: Callable[[], None] | None = None) -> RunCase:
    """Run a runbook by `validator run`."""

    def run(sandbox: Sandbox) -> CaseRun:
        sandbox.write("runbook.yaml", text)
        rc, _, err = sandbox.call("run", "runbook.yaml", "--no-lock", before=before)
        return read_result(sandbox, rc, err)

    return run


def fault(name: str, *, nproc: int = 0, phase: Mapping[str, Any] | None = None, **args: Any) -> RunCase:
    """Run the faulty trainer with a fault, under `validator run`."""
    own = {"fault": name, **{key.replace("_", "-"): value for key, value in args.items()}}
    return run_book(book(train(**(phase or {})), nproc=nproc, args=own))


def _wait_for_rows(sandbox: Sandbox, rows: int) -> None:
    """Until the trainer has written so many rows, or half a minute has passed."""
    until = time.monotonic() + 30
    while time.monotonic() < until:
        tables = list(sandbox.folder.glob("reports/*/runs/*/r1/training.csv"))
        if tables and tables[0].read_bytes().count(b"\n") > rows:
            return
        time.sleep(0.02)


def kill_runner(*, nproc: int = 0) -> RunCase:
    """SIGKILL the runner in the middle; all else must end by itself; a resumed validation must reach GO."""

    def run(sandbox: Sandbox) -> CaseRun:
        args = {"fault": "none", "pace": 0.05, "at": 1}
        sandbox.write("runbook.yaml", book(nproc=nproc, args=args))
        runner = sandbox.start("run", "runbook.yaml", "--no-lock")
        _wait_for_rows(sandbox, 20)
        runner.kill()
        sandbox.finish(runner)
        wrong = [f"pid {pid} outlived the runner" for pid in sandbox.left(within_s=60)]
        folder = sandbox.run_folder()
        if folder is None:
            return CaseRun(-9, "", None, None, ("the runner left no run folder",))
        rc, _, err = sandbox.call("report", str(folder))
        between = read_result(sandbox, rc, err)
        decision = None if between.result is None else between.result["decision"]
        if (rc, decision) != (130, "INCONCLUSIVE"):
            wrong.append(f"a validation whose runner was killed is {decision}, exit code {rc}: {err[-200:]}")
        rc, _, err = sandbox.call("run", "--resume", str(folder), "--no-lock")
        after = read_result(sandbox, rc, err)
        return CaseRun(after.rc, after.stderr, after.folder, after.result, tuple(wrong))

    return run


def runner_disk_full(sandbox: Sandbox) -> CaseRun:
    """No file may grow beyond 12 KiB for runner and trainer; with space again, the validation is resumed."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (12 << 10, 12 << 10))

    sandbox.write("runbook.yaml", book(nproc=0))
    rc, _, err = sandbox.call("run", "runbook.yaml", "--no-lock", before=limit)
    wrong = [f"pid {pid} was left when the disk was full" for pid in sandbox.left()]
    folder = sandbox.run_folder()
    if folder is not None:
        again, _, _ = sandbox.call("run", "--resume", str(folder), "--no-lock")
        wrong += [] if again in (0, 1, 3) else [f"with room again, the validation ended with exit code {again}"]
    return CaseRun(rc, err, None, None, tuple(wrong))


def port_in_use(sandbox: Sandbox) -> CaseRun:
    """Another process listens on the port that the trainer wants."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        return fault("bind", port=other.getsockname()[1])(sandbox)


def hostile(sandbox: Sandbox) -> CaseRun:
    """Control sequences, markup, NULs and a line of 200 kB in the log; none may act in a report."""
    done = fault("hostile")(sandbox)
    if done.folder is None:
        return done
    wrong = []
    for name, raw in (
        ("report.html", "<script>alert('selftest')"),
        ("report.html", "<img src=x"),
        ("report.md", "\x1b"),
    ):
        path = done.folder / name
        if path.is_file() and raw in path.read_text(encoding="utf-8", errors="replace"):
            wrong.append(f"{name} contains the log's {raw[:12]!r} unescaped")
    return CaseRun(done.rc, done.stderr, done.folder, done.result, tuple(wrong))


_TESTS = """\
import pytest

def test_parity():
    assert 1 + 1 == 2

def test_parity_on_cuda():
    pytest.skip("no CUDA device")
"""


def tests(body: str) -> RunCase:
    """Tests as a gate."""

    def run(sandbox: Sandbox) -> CaseRun:
        path: Path = sandbox.write("test_gate.py", body)
        return run_book(book({"id": "sanity", "kind": "pytest", "targets": [path.name]}))(sandbox)

    return run


_SHORT = {"timeout": "4s"}
_TWO = 2

_case = partial(case, evidence=_ROWS)

LIVE: tuple[Case, ...] = (
    _case(
        "stall-of-one-rank",
        "one of two ranks stops for good; the other waits for it",
        *("processes", "NO_GO", fault("stall-rank", nproc=_TWO), "hang"),
        evidence=(*_ROWS, *_BUNDLE),
        torch=True,
        about_s=30,
    ),
    _case(
        "stall",
        "a trainer stops for good after step 39",
        *("processes", "NO_GO", fault("stall"), "hang"),
        evidence=(*_ROWS, *_BUNDLE),
        about_s=20,
    ),
    _case(
        "live-lock",
        "a trainer uses its CPU and finishes no step",
        *("processes", "NO_GO", fault("spin"), "hang"),
        about_s=30,
    ),
    _case(
        "never-starts",
        "a trainer never reaches its first step",
        "processes",
        "NO_GO",
        fault("never-starts", phase={"watchdog": {"first_step": "2s", "interval": "100ms"}}),
        "hang",
        evidence=(),
        about_s=18,
    ),
    _case(
        "slow-rank",
        "one of two ranks has twice the compute time",
        "processes",
        "NO_GO",
        fault("slow-rank", nproc=_TWO, phase={"accept": ["straggler.score >= 0.75"]}),
        "straggler",
        torch=True,
        about_s=12,
    ),
    _case("nan", "the loss becomes NaN at step 40", "learning", "NO_GO", fault("nan"), "nan-loss"),
    _case("inf", "the loss becomes infinite", "learning", "NO_GO", fault("inf"), "nan-loss"),
    _case("zero-rate", "the rate falls to zero", "pace", "NO_GO", fault("zero-rate"), "zero-rate"),
    _case(
        "frozen-table", "rows are still written, all of them of step 40", "pace", "NO_GO", fault("frozen"), "zero-rate"
    ),
    _case(
        "gate-collapse",
        "the gates send everything through one branch",
        *("learning", "NO_GO", fault("gates"), "gate-collapse"),
    ),
    _case(
        "zero-gradient",
        "the gradient norm becomes exactly zero",
        *("learning", "NO_GO", fault("zero-grad"), "zero-grad"),
    ),
    _case("out-of-memory", "GPU memory runs out at step 40", "processes", "NO_GO", fault("oom"), "oom"),
    _case("exit-at-a-step", "exit code 7 at step 40", "processes", "NO_GO", fault("exit"), "crashed"),
    _case("exception", "an exception at step 40", "processes", "NO_GO", fault("raise"), "crashed"),
    _case(
        "sigkill-of-a-worker",
        "one of two ranks is killed",
        *("processes", "NO_GO", fault("kill-worker", nproc=_TWO), "crashed"),
        torch=True,
        about_s=15,
    ),
    _case(
        "sigkill-of-torchrun",
        "the launcher is killed; its workers are in sessions of their own",
        *("processes", "NO_GO", fault("kill-launcher", nproc=_TWO), "crashed", "leftover-process"),
        torch=True,
        about_s=20,
    ),
    _case(
        "sigkill-of-the-runner",
        "validator itself is killed, then resumed",
        *("processes", "GO", kill_runner()),
        about_s=20,
    ),
    _case(
        "sigkill-of-the-runner-under-torchrun",
        "validator is killed while torchrun runs two ranks, then resumed",
        *("processes", "GO", kill_runner(nproc=_TWO)),
        torch=True,
        about_s=40,
    ),
    _case(
        "ignores-sigterm",
        "the trainer runs out of time and ignores every signal but SIGKILL",
        *("processes", "NO_GO", fault("deaf", phase={**_SHORT, "watchdog": {"stall": "60s"}}), "over-budget"),
        about_s=55,
    ),
    _case(
        "past-its-budget",
        "the steps need more time than the phase has",
        *("pace", "NO_GO", fault("none", pace=0.2, phase={**_SHORT, "watchdog": {"stall": "60s"}}), "over-budget"),
        about_s=8,
    ),
    _case(
        "forks",
        "the trainer leaves a process behind",
        *("processes", "GO", fault("fork"), "leftover-process"),
        about_s=14,
    ),
    _case(
        "forks-with-a-cleared-environment",
        "the trainer leaves a daemon without our environment variables behind",
        *("processes", "GO", fault("fork-cleared"), "leftover-process"),
        about_s=14,
    ),
    _case(
        "fault-that-a-remedy-cures",
        "the trainer crashes as declared, and runs with another setting",
        "settings",
        "NO_GO",
        fault("exit", phase={"on_failure": [{"name": "calm", "args": {"fault": "none"}}]}),
        "remedied",
        evidence=("runs/**/training.csv",),
        about_s=6,
    ),
    _case(
        "port-in-use",
        "another process listens on the trainer's port",
        *("processes", "NO_GO", port_in_use, "port-in-use"),
    ),
    _case("disk-full", "a checkpoint finds no space left", "machine", "NO_GO", fault("disk-full"), "disk-full"),
    _case(
        "disk-full-for-the-runner",
        "the results themselves find no space, until there is some again",
        *("machine", "UNABLE", runner_disk_full),
        evidence=(),
        about_s=7,
    ),
    _case(
        "missing-table",
        "the trainer writes no training.csv",
        *("files", "INCONCLUSIVE", fault("no-csv"), "missing-evidence"),
        evidence=(),
    ),
    _case(
        "flags-ignored",
        "seq_len 512 was requested, 128 ran",
        *("settings", "NO_GO", fault("ignore-config"), "config-ignored"),
    ),
    _case(
        "skipped-tests",
        "pytest ends with exit code 0 although the CUDA test was skipped",
        *("settings", "INCONCLUSIVE", tests(_TESTS), "skipped-as-pass"),
        evidence=("runs/sanity/r1/junit.xml",),
    ),
    _case("hostile-log", "control sequences, markup and NULs in the log", "processes", "GO", hostile),
    _case(
        "slow-logging",
        "a record every three seconds where a stall is three seconds; slow is not stalled",
        "pace",
        "GO",
        fault("none", pace=0.15, log_every=20, phase={"steps": 80, "accept": ["loss.last < loss.first"]}),
        about_s=14,
    ),
    _case(
        "ten-thousand-lines-a-second",
        "the trainer floods its standard output",
        *("processes", "GO", fault("flood")),
        evidence=(*_ROWS, *_STARTED),
        about_s=6,
    ),
    _case(
        "ten-thousand-heartbeats-a-second",
        "the trainer floods its heartbeat",
        *("processes", "GO", fault("flood-beats")),
        about_s=6,
    ),
)
