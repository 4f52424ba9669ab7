"""The supervisor ends what it started: asked to stop, with orphans, with helpers of the runner beside them."""

from __future__ import annotations

import os
import secrets
import signal
import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.validator.supervise import programs
from tests.validator.supervise.tools import SHORT, Make, Run, eventually, marked, runs
from validator.model.plan import RunSpec
from validator.model.record import Outcome
from validator.supervise.guardian import Guardian
from validator.supervise.monitor import Progress
from validator.supervise.wait import CancelToken


def _command(line: str) -> tuple[str, ...]:
    return ("sh", "-c", line)


def _stopped(
    supervised: Run, spec: RunSpec, run_dir: Path, ask: Callable[[CancelToken], None], **options: Any
) -> tuple[Outcome, float]:
    """A run that is asked to end once it has its handlers; its outcome, and the seconds since the last request."""
    asked: list[float] = []
    with closing(CancelToken()) as cancel:

        def later() -> None:
            eventually((run_dir / spec.out / "training.csv").exists)  # SIGTERM is answered, or ignored, from here on
            ask(cancel)
            asked.append(time.monotonic())

        thread = threading.Thread(target=later)
        thread.start()
        outcome = supervised(spec, cancel=cancel, **options)
        thread.join()
    return outcome, time.monotonic() - asked[0]


def test_a_request_to_stop_ends_the_run_in_order(make_spec: Make, supervised: Run, run_dir: Path) -> None:
    program = programs.TRAINER + "signal.signal(signal.SIGTERM, lambda *a: sys.exit(7))\nrow(1)\ntime.sleep(60)\n"
    outcome, took_s = _stopped(supervised, make_spec(program, retries=2), run_dir, CancelToken.request)
    assert (outcome.reason, outcome.rc) == ("interrupted", 7)
    assert len(outcome.attempts) == 1
    assert took_s < 3


def test_after_a_request_to_stop_nothing_is_started(make_spec: Make, supervised: Run, run_dir: Path) -> None:
    cancel = CancelToken()
    cancel.request("received SIGINT")
    outcome = supervised(make_spec(_command(f"touch {run_dir}/started"), retries=2), cancel=cancel)
    cancel.close()
    assert (outcome.reason, outcome.rc, outcome.last.pid) == ("interrupted", None, None)
    assert not (run_dir / "started").exists()


def test_leftovers_do_not_lengthen_the_run(make_spec: Make, supervised: Run) -> None:
    spec = make_spec(_command("(trap '' TERM; exec setsid sleep 60) & exit 0"), launcher="exec")
    outcome = supervised(spec, grace=replace(SHORT, leftover_s=2.0))
    assert outcome.duration_s < 2.5  # waiting for it to go takes three seconds: one, and two after SIGTERM
    assert len(outcome.last.killed) == 1


def test_a_guardian_that_was_stopped_does_not_hold_up_the_end() -> None:
    guardian = Guardian.start(token=secrets.token_hex(8))
    os.kill(guardian.pid, signal.SIGSTOP)
    guardian.close()
    assert not runs(guardian.pid)


def test_a_second_request_does_not_wait(make_spec: Make, supervised: Run, run_dir: Path) -> None:
    def ask_twice(cancel: CancelToken) -> None:
        cancel.request()
        time.sleep(0.4)
        cancel.request()

    patient = SHORT.__class__(term_s=30.0, leftover_s=30.0)
    outcome, took_s = _stopped(supervised, make_spec(programs.IGNORES_SIGTERM), run_dir, ask_twice, grace=patient)
    assert (outcome.reason, outcome.rc) == ("interrupted", -signal.SIGKILL)
    assert took_s < 4


def test_a_double_fork_into_another_session_is_found_and_ended(make_spec: Make, supervised: Run, run_dir: Path) -> None:
    pid_file = run_dir / "pid"
    token = secrets.token_hex(8)
    spec = make_spec(programs.DOUBLE_FORK)
    outcome = supervised(spec.model_copy(update={"argv": (*spec.argv, str(pid_file))}), token=token)
    grandchild = int(pid_file.read_text())
    assert outcome.ok  # the trainer itself did well
    assert outcome.last.killed == (grandchild,)
    assert "left behind" in (outcome.last.detail or "")
    assert not runs(grandchild)
    assert marked(token) == []


def test_an_orphan_that_dropped_the_marker_is_ended_as_well(make_spec: Make, supervised: Run, run_dir: Path) -> None:
    pid_file = run_dir / "pid"
    line = f"(setsid env -i sleep 60 & echo $! > {pid_file}) ; while ! test -s {pid_file}; do :; done; sleep 0.1"
    outcome = supervised(make_spec(_command(line), launcher="exec"))
    assert outcome.ok
    assert len(outcome.last.killed) == 1
    assert not runs(outcome.last.killed[0])


def test_helpers_that_end_by_themselves_are_not_counted(make_spec: Make, supervised: Run) -> None:
    spec = make_spec(_command("sleep 0.1 & exit 0"), launcher="exec")
    outcome = supervised(spec, grace=replace(SHORT, leftover_s=1.0))
    assert outcome.ok
    assert outcome.last.killed == ()


def test_no_zombie_is_left(make_spec: Make, supervised: Run) -> None:
    before = _children()  # a browser that was closed in another test may have left its own
    supervised(make_spec(_command("(sleep 0.1 &) ; (sleep 60 &) ; true"), launcher="exec"))
    left = _children() - before
    states = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] for pid in left]
    assert "Z" not in states


def _children() -> set[str]:
    return set(Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split())


def test_a_child_of_the_runner_that_is_not_the_runs_is_spared(make_spec: Make, supervised: Run) -> None:
    import subprocess

    with subprocess.Popen(["sleep", "60"], start_new_session=True) as older:
        supervised(make_spec(_command("(setsid sleep 60 &) ; true"), launcher="exec"))
        assert runs(older.pid)
        older.kill()


def test_a_helper_that_the_runner_starts_during_a_run_is_spared(make_spec: Make, supervised: Run) -> None:
    """`nvidia-smi` captures start in the background while a run is under way, in sessions of their own."""
    import subprocess

    helpers: list[subprocess.Popen[bytes]] = []
    timer = threading.Timer(0.3, lambda: helpers.append(subprocess.Popen(["sleep", "60"], start_new_session=True)))
    timer.start()
    outcome = supervised(make_spec(_command("sleep 1; (setsid sleep 60 &) ; true"), launcher="exec"))
    timer.join()
    assert runs(helpers[0].pid)
    assert len(outcome.last.killed) == 1
    helpers[0].kill()
    helpers[0].wait()


def test_an_error_in_the_display_leaves_no_process(make_spec: Make, supervised: Run) -> None:
    token = secrets.token_hex(8)

    def broken(progress: Progress) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        supervised(make_spec(_command("sleep 60 & sleep 60"), launcher="exec"), token=token, on_progress=broken)
    assert marked(token) == []


def test_the_guardian_is_replaced_when_it_died(make_spec: Make, supervised: Run) -> None:
    token = secrets.token_hex(8)
    with Guardian.start(token=token) as guardian:
        first = guardian.pid
        os.kill(first, signal.SIGKILL)
        assert eventually(lambda: not runs(first))
        assert supervised(make_spec(("true",)), token=token, guardian=guardian).ok
        assert guardian.pid != first
        assert runs(guardian.pid)
    assert not runs(guardian.pid)
