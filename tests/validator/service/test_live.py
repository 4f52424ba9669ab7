"""Running validations: what is read of them, and that only their runner is ever asked to stop."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import psutil
import pytest

from tests.validator.history.folders import make_run
from tests.validator.service.serving import client, make_running, spec
from validator.errors import Unable
from validator.model.record import Outcome
from validator.runs.folder import Runner
from validator.service.index import RunIndex
from validator.service.live import LiveRuns, Running, request_stop
from validator.times import utc_now

_ROWS = "step,loss,lr,toks_per_s\n10,3.5,0.1,900\n20,2.5,0.1,1000\n"


def looked(reports: Path) -> tuple[Running, ...]:
    return LiveRuns(RunIndex(reports, reports.parent / "index.sqlite")).look()


def test_a_running_validation_shows_its_phases_and_latest_values(tmp_path: Path) -> None:
    folder, journal = make_running(tmp_path / "reports", title="A <b>line</b>")
    with journal:
        run = spec(folder)
        journal.append("run_started", run=run.id, as_it_is={"spec": run})
        (folder.root / run.out / "training.csv").write_text(_ROWS, encoding="utf-8")
        journal.append("anomaly", run=run.id, code="spike", message="the loss rose", step=20)
        (one,) = looked(tmp_path / "reports")
        assert (one.working, one.title, one.folder) == (True, "A <b>line</b>", folder.root.name)
        assert [(phase.id, phase.status) for phase in one.phases] == [("first", "RUNNING"), ("second", "PENDING")]
        assert one.run is not None
        assert (one.run.id, one.run.step, one.run.steps) == ("first/r1", 20, 100)
        assert dict(one.run.values)["Rate"] == "1,000 tok/s"
        assert dict(one.run.values)["Loss"] == "2.5"
        assert one.texts()[f"{one.folder} step"] == "step 20 of 100"
        assert one.notes == ("first/r1: the loss rose",)
        page = client(tmp_path / "reports").get("/").text
        assert "A &lt;b&gt;line&lt;/b&gt;" in page
        assert "step 20 of 100" in page
        log = folder.root / run.out / "logs" / "stdout.log"
        log.parent.mkdir()
        log.write_text("token=hunter2hunter2", encoding="utf-8")
        asking = client(tmp_path / "reports")
        address = f"/runs/{folder.root.name}/{run.out}/logs/stdout.log"
        assert asking.get(address).status_code == 409, "secrets are removed when the run has ended"
        assert "stdout.log" not in asking.get(f"/runs/{folder.root.name}/").text
        attempt = {"number": 1, "command": (), "pid": 1, "started": "", "duration_s": 1.0, "rc": 0, "reason": "exited"}
        outcome = Outcome.model_validate({"run": run.id, "attempts": (attempt,)})
        journal.append("run_ended", run=run.id, outcome=outcome)
        assert asking.get(address).text == "token=hunter2hunter2"


def test_what_remains_is_what_the_runner_expected_less_what_has_passed(tmp_path: Path) -> None:
    folder, journal = make_running(tmp_path / "reports")
    drawn = json.loads((make_run(tmp_path, 0) / "result.json").read_text(encoding="utf-8"))
    as_of = (utc_now() - timedelta(seconds=300)).isoformat()
    outlook = {"as_of": as_of, "remaining_s": 1030.0, "at_least": True}
    with journal:
        assert looked(tmp_path / "reports")[0].remaining == "not known"
        result = json.dumps({**drawn, "decision": "IN_PROGRESS", "outlook": outlook})
        (folder.root / "result.json").write_text(result, encoding="utf-8")
        assert looked(tmp_path / "reports")[0].remaining.startswith("at least 12 min")


def test_one_whose_runner_was_killed_is_shown_as_such(tmp_path: Path) -> None:
    folder, journal = make_running(tmp_path / "reports")
    journal.close()  # nobody holds the journal: this process is not its runner any more
    (one,) = looked(tmp_path / "reports")
    assert not one.working
    assert [phase.status for phase in one.phases] == ["INTERRUPTED", "PENDING"]
    page = client(tmp_path / "reports").get("/").text
    assert f"validator run --resume {folder.root.name}" in page
    assert "/stop/" not in page


def test_a_runner_that_leaves_is_noticed_at_the_next_look_and_so_is_the_next_one(tmp_path: Path) -> None:
    """Also where its process lives on, and the journal says nothing of it."""
    folder, journal = make_running(tmp_path / "reports")
    live = LiveRuns(RunIndex(tmp_path / "reports", tmp_path / "index.sqlite"))
    with journal:
        run = spec(folder)
        journal.append("run_started", run=run.id, as_it_is={"spec": run})
        assert [live.look(fresh=True)[0].working for _ in range(3)] == [True] * 3
    with folder.journal.open("rb"):
        (one,) = live.look(fresh=True)
        assert (one.working, one.run, one.phases[0].status) == (False, None, "INTERRUPTED")
    with folder.journal.open("ab"):
        (one,) = live.look(fresh=True)
        assert (one.working, one.run is None, one.phases[0].status) == (True, False, "RUNNING")


def test_one_that_ended_is_not_shown(tmp_path: Path) -> None:
    make_run(tmp_path / "reports", 0)
    _, journal = make_running(tmp_path / "reports")
    journal.append("finished", finished="2026-01-01T00:00:00Z", duration_s=1.0)
    journal.close()
    assert looked(tmp_path / "reports") == ()


def sleeper(journal: Path | None, *, catching: bool = True) -> subprocess.Popen[bytes]:
    """A process that counts SIGTERM and ends with the count, with a journal open or none."""
    code = (
        "import signal, sys, time\nseen = []\n"
        f"{catching} and signal.signal(signal.SIGTERM, lambda *_: seen.append(1))\n"
        "held = open(sys.argv[1], 'a') if len(sys.argv) > 1 else None\nprint('ready', flush=True)\n"
        "end = time.monotonic() + 20\n"
        "while not seen and time.monotonic() < end: time.sleep(0.01)\n"
        "time.sleep(0.8)\nsys.exit(len(seen))\n"
    )
    argv = [sys.executable, "-S", "-c", code, *([] if journal is None else [str(journal)])]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    return process


@pytest.mark.parametrize(("how", "signals"), [("stop", 1), ("halt", 2)])
def test_the_runner_gets_one_request_or_two(tmp_path: Path, how: str, signals: int) -> None:
    folder, journal = make_running(tmp_path / "reports")
    process = sleeper(folder.journal)
    with process, journal:
        created = psutil.Process(process.pid).create_time()
        runner = Runner(pid=process.pid, pid_created=created, host=folder.header.host)
        journal.append("resumed", runner=runner)
        request_stop(folder, how)  # type: ignore[arg-type]
        assert process.wait(timeout=10) == signals


def test_a_runner_that_a_signal_would_kill_gets_none(tmp_path: Path) -> None:
    """It is starting or ending: its report may still have to be written."""
    folder, journal = make_running(tmp_path / "reports")
    process = sleeper(folder.journal, catching=False)
    with process, journal:
        created = psutil.Process(process.pid).create_time()
        journal.append("resumed", runner=Runner(pid=process.pid, pid_created=created, host=folder.header.host))
        with pytest.raises(Unable, match="try again"):
            request_stop(folder, "halt")
        assert process.poll() is None
        process.kill()


def test_no_other_process_is_ever_signalled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither one that a folder names and that does not work on it, nor one that has the pid of a runner that ended."""
    sent: list[int] = []
    monkeypatch.setattr(signal, "pidfd_send_signal", lambda handle, number: sent.append(number))
    folder, journal = make_running(tmp_path / "reports")
    with journal:
        process = sleeper(None)
        with process:
            created = psutil.Process(process.pid).create_time()
            named = Runner(pid=process.pid, pid_created=created, host=folder.header.host)
            for runner in (
                named,
                Runner(pid=os.getpid(), pid_created=created - 1000, host=named.host),
                Runner(pid=os.getpid(), pid_created=psutil.Process().create_time(), host="elsewhere"),
                Runner(pid=0, pid_created=0.0, host=named.host),
            ):
                journal.append("resumed", runner=runner)
                with pytest.raises(Unable, match="not running here"):
                    request_stop(folder, "halt")
            process.kill()
    assert sent == []
