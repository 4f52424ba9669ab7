"""Cases with real processes: a stand-in for a trainer runs and goes wrong, or is made to."""

from __future__ import annotations

import resource
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from validator.selftest.case import Case, Played
from validator.selftest.outcome import read_result
from validator.selftest.runbooks import book, train
from validator.selftest.stage import Stage

__all__ = ["LIVE", "run_book"]

Play = Callable[[Stage], Played]

_STARTED = ("runs/*/r1/logs/stdout.log",)
_ROWS = ("runs/*/r1/training.csv", "runs/*/r1/heartbeat_rank0.jsonl", "runs/*/r1/env.json")
_BUNDLE = ("runs/*/r1/dump/*",)


def run_book(text: str, *, before: Callable[[], None] | None = None) -> Play:
    """Run a runbook by `validator run`."""

    def play(stage: Stage) -> Played:
        stage.write("runbook.yaml", text)
        rc, _, err = stage.call("run", "runbook.yaml", "--no-lock", before=before)
        return read_result(stage, rc, err)

    return play


def fault(name: str, *, nproc: int = 0, phase: Mapping[str, Any] | None = None, **args: Any) -> Play:
    """Run the stand-in with a fault."""
    own = {"fault": name, **{key.replace("_", "-"): value for key, value in args.items()}}
    return run_book(book(train(**(phase or {})), nproc=nproc, args=own))


def _wait_for_rows(stage: Stage, rows: int) -> None:
    """Until the trainer has written so many rows, or half a minute has passed."""
    until = time.monotonic() + 30
    while time.monotonic() < until:
        tables = list(stage.folder.glob("reports/*/runs/*/r1/training.csv"))
        if tables and tables[0].read_bytes().count(b"\n") > rows:
            return
        time.sleep(0.02)


def kill_runner(fault_name: str = "none", *, nproc: int = 0) -> Play:
    """SIGKILL the runner in the middle; all else must end by itself; a resumed validation must reach GO."""

    def play(stage: Stage) -> Played:
        args = {"fault": fault_name, "pace": 0.05, "at": 1}
        stage.write("runbook.yaml", book(nproc=nproc, args=args))
        runner = stage.start("run", "runbook.yaml", "--no-lock")
        _wait_for_rows(stage, 20)
        runner.kill()
        stage.finish(runner)
        amiss = [f"pid {pid} outlived the runner" for pid in stage.left(within_s=60)]
        folder = stage.run_folder()
        if folder is None:
            return Played(-9, "", None, None, ("the runner left no run folder",))
        rc, _, err = stage.call("report", str(folder))
        between = read_result(stage, rc, err)
        decision = None if between.result is None else between.result["decision"]
        if (rc, decision) != (130, "INCONCLUSIVE"):
            amiss.append(f"a validation whose runner was killed is {decision}, exit code {rc}: {err[-200:]}")
        rc, _, err = stage.call("run", "--resume", str(folder), "--no-lock")
        after = read_result(stage, rc, err)
        return Played(after.rc, after.stderr, after.folder, after.result, tuple(amiss))

    return play


def runner_disk_full(stage: Stage) -> Played:
    """No file may grow beyond 12 KiB for runner and trainer alike; with room again, the validation goes on to GO."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (12 << 10, 12 << 10))

    stage.write("runbook.yaml", book(nproc=0))
    rc, _, err = stage.call("run", "runbook.yaml", "--no-lock", before=limit)
    amiss = [f"pid {pid} was left when the disk was full" for pid in stage.left()]
    folder = stage.run_folder()
    if folder is not None:
        again, _, _ = stage.call("run", "--resume", str(folder), "--no-lock")
        amiss += [] if again in (0, 1, 3) else [f"with room again, the validation ended with exit code {again}"]
    return Played(rc, err, None, None, tuple(amiss))


def port_in_use(stage: Stage) -> Played:
    """Somebody else listens on the port that the trainer wants."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        return fault("bind", port=other.getsockname()[1])(stage)


def hostile(stage: Stage) -> Played:
    """Control sequences, markup, NULs and a line of 200 kB in the log; none may act in a report."""
    played = fault("hostile")(stage)
    if played.folder is None:
        return played
    amiss = []
    for name, raw in (
        ("report.html", "<script>alert('selftest')"),
        ("report.html", "<img src=x"),
        ("report.md", "\x1b"),
    ):
        path = played.folder / name
        if path.is_file() and raw in path.read_text(encoding="utf-8", errors="replace"):
            amiss.append(f"{name} holds the log's {raw[:12]!r} as it was printed")
    return Played(played.rc, played.stderr, played.folder, played.result, tuple(amiss))


_TESTS = """\
import pytest

def test_parity():
    assert 1 + 1 == 2

def test_parity_on_cuda():
    pytest.skip("no CUDA device")
"""


def tests(body: str) -> Play:
    """Tests as a gate."""

    def play(stage: Stage) -> Played:
        path: Path = stage.write("test_gate.py", body)
        return run_book(book({"id": "sanity", "kind": "pytest", "targets": [path.name]}))(stage)

    return play


_SHORT = {"timeout": "4s"}
_TWO = 2

LIVE: tuple[Case, ...] = (
    Case(
        "stall-of-one-rank",
        "one of two ranks stops for good; the other waits for it",
        *("processes", "NO_GO", fault("stall-rank", nproc=_TWO)),
        codes=("hang",),
        evidence=(*_ROWS, *_BUNDLE),
        torch=True,
        about_s=30,
    ),
    Case(
        "stall",
        "a trainer stops for good after step 39",
        *("processes", "NO_GO", fault("stall")),
        codes=("hang",),
        evidence=(*_ROWS, *_BUNDLE),
        about_s=20,
    ),
    Case(
        "live-lock",
        "a trainer spins on its processor and finishes no step",
        *("processes", "NO_GO", fault("spin")),
        codes=("hang",),
        evidence=_ROWS,
        about_s=30,
    ),
    Case(
        "never-starts",
        "a trainer never reaches its first step",
        *("processes", "NO_GO", fault("never-starts", phase={"watchdog": {"first_step": "2s", "interval": "100ms"}})),
        codes=("hang",),
        about_s=18,
    ),
    Case(
        "slow-rank",
        "one of two ranks needs twice as long for its own work",
        *("processes", "NO_GO", fault("slow-rank", nproc=_TWO, phase={"accept": ["straggler.score >= 0.75"]})),
        codes=("straggler",),
        evidence=_ROWS,
        torch=True,
        about_s=12,
    ),
    Case("nan", "the loss becomes NaN at step 40", "learning", "NO_GO", fault("nan"), ("nan-loss",), evidence=_ROWS),
    Case("inf", "the loss becomes infinite", "learning", "NO_GO", fault("inf"), ("nan-loss",), evidence=_ROWS),
    Case("zero-rate", "the rate falls to zero", "pace", "NO_GO", fault("zero-rate"), ("zero-rate",), evidence=_ROWS),
    Case(
        "frozen-table",
        "rows go on, all of them of step 40",
        *("pace", "NO_GO", fault("frozen")),
        codes=("zero-rate",),
        evidence=_ROWS,
    ),
    Case(
        "gate-collapse",
        "the gates send everything through one branch",
        *("learning", "NO_GO", fault("gates")),
        codes=("gate-collapse",),
        evidence=_ROWS,
    ),
    Case(
        "zero-gradient",
        "the gradient norm becomes exactly zero",
        *("learning", "NO_GO", fault("zero-grad")),
        codes=("zero-grad",),
        evidence=_ROWS,
    ),
    Case(
        "out-of-memory",
        "GPU memory runs out at step 40",
        *("processes", "NO_GO", fault("oom")),
        codes=("oom",),
        evidence=_ROWS,
    ),
    Case("exit-at-a-step", "exit code 7 at step 40", "processes", "NO_GO", fault("exit"), ("crashed",), evidence=_ROWS),
    Case("exception", "an exception at step 40", "processes", "NO_GO", fault("raise"), ("crashed",), evidence=_ROWS),
    Case(
        "sigkill-of-a-worker",
        "one of two ranks is killed",
        *("processes", "NO_GO", fault("kill-worker", nproc=_TWO)),
        codes=("crashed",),
        evidence=_ROWS,
        torch=True,
        about_s=15,
    ),
    Case(
        "sigkill-of-torchrun",
        "the launcher is killed; its workers are in sessions of their own",
        *("processes", "NO_GO", fault("kill-launcher", nproc=_TWO)),
        codes=("crashed", "leftover-process"),
        evidence=_ROWS,
        torch=True,
        about_s=20,
    ),
    Case(
        "sigkill-of-the-runner",
        "validator itself is killed, then resumed",
        *("processes", "GO", kill_runner()),
        evidence=_ROWS,
        about_s=20,
    ),
    Case(
        "sigkill-of-the-runner-under-torchrun",
        "validator is killed while torchrun runs two ranks, then resumed",
        *("processes", "GO", kill_runner(nproc=_TWO)),
        evidence=_ROWS,
        torch=True,
        about_s=40,
    ),
    Case(
        "ignores-sigterm",
        "past its budget, the trainer ignores every signal but SIGKILL",
        *("processes", "NO_GO", fault("deaf", phase={**_SHORT, "watchdog": {"stall": "60s"}})),
        codes=("over-budget",),
        evidence=_ROWS,
        about_s=55,
    ),
    Case(
        "past-its-budget",
        "the steps need more time than the phase has",
        *("pace", "NO_GO", fault("none", pace=0.2, phase={**_SHORT, "watchdog": {"stall": "60s"}})),
        codes=("over-budget",),
        evidence=_ROWS,
        about_s=8,
    ),
    Case(
        "forks",
        "the trainer leaves a process behind",
        *("processes", "GO", fault("fork")),
        codes=("leftover-process",),
        evidence=_ROWS,
        about_s=14,
    ),
    Case(
        "forks-with-a-cleared-environment",
        "the trainer leaves a daemon without marks behind",
        *("processes", "GO", fault("fork-cleared")),
        codes=("leftover-process",),
        evidence=_ROWS,
        about_s=14,
    ),
    Case(
        "fault-that-a-remedy-cures",
        "the trainer crashes as declared, and runs with another setting",
        *("settings", "NO_GO", fault("exit", phase={"on_failure": [{"name": "calm", "args": {"fault": "none"}}]})),
        codes=("remedied",),
        evidence=("runs/**/training.csv",),
        about_s=6,
    ),
    Case(
        "port-in-use",
        "another process listens on the trainer's port",
        *("processes", "NO_GO", port_in_use),
        codes=("port-in-use",),
        evidence=_ROWS,
    ),
    Case(
        "disk-full",
        "a checkpoint finds no space left",
        *("machine", "NO_GO", fault("disk-full")),
        codes=("disk-full",),
        evidence=_ROWS,
    ),
    Case(
        "disk-full-for-the-runner",
        "the results themselves find no space, then there is room again",
        *("machine", "UNABLE", runner_disk_full),
        about_s=7,
    ),
    Case(
        "missing-table",
        "the trainer writes no training.csv",
        *("files", "INCONCLUSIVE", fault("no-csv")),
        codes=("missing-evidence",),
    ),
    Case(
        "flags-ignored",
        "seq_len 512 was asked for, 128 ran",
        *("settings", "NO_GO", fault("ignore-config")),
        codes=("config-ignored",),
        evidence=_ROWS,
    ),
    Case(
        "skipped-tests",
        "pytest ends with exit code 0 although the CUDA test was skipped",
        *("settings", "INCONCLUSIVE", tests(_TESTS)),
        codes=("skipped-as-pass",),
        evidence=("runs/sanity/r1/junit.xml",),
    ),
    Case("hostile-log", "control sequences, markup and NULs in the log", "processes", "GO", hostile, evidence=_ROWS),
    Case(
        "slow-logging",
        "a record every three seconds where a stall is three seconds; slow is not stalled",
        *(
            "pace",
            "GO",
            fault("none", pace=0.15, log_every=20, phase={"steps": 80, "accept": ["loss.last < loss.first"]}),
        ),
        evidence=_ROWS,
        about_s=14,
    ),
    Case(
        "ten-thousand-lines-a-second",
        "the trainer floods its standard output",
        *("processes", "GO", fault("flood")),
        evidence=(*_ROWS, *_STARTED),
        about_s=6,
    ),
    Case(
        "ten-thousand-heartbeats-a-second",
        "the trainer floods its heartbeat",
        *("processes", "GO", fault("flood-beats")),
        evidence=_ROWS,
        about_s=6,
    ),
)
