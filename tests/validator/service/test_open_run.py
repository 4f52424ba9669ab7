"""The ends of logs of a run that is open, without its secrets, and the latest sample of the machine."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.validator.service.serving import client, make_running, spec
from validator.model.plan import RunSpec
from validator.model.runbook import TrainerMetrics
from validator.service.index import RunIndex
from validator.service.live import LiveRuns
from validator.supervise.follow import RunFollower
from validator.supervise.open_run import LOG_LINES, OpenRun
from validator.supervise.tail import Tail
from validator.supervise.watchdog import Pace

MARKER = "0123456789abcdef"
SECRET, NAMED, WORD = "hunter2hunter2", "open-sesame-1", "swordfish-77"


@pytest.fixture
def trainer() -> Iterator[subprocess.Popen[str]]:
    """A process of a run, with secrets in its environment and its arguments."""
    environment = {"VALIDATOR_RUN_TOKEN": MARKER, "DB_PASSWORD": SECRET, "PLAIN": NAMED}
    argv = [sys.executable, "-S", "-c", "print(1, flush=True); input()", "--api-key", WORD]
    process = subprocess.Popen(argv, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    yield process
    process.kill()
    process.communicate()


def opened(root: Path, pid: int = 0, marker: str = MARKER, named: tuple[str, ...] = ()) -> OpenRun:
    """What is followed of a run whose folder is `r1`."""
    of = {"id": "r1", "phase": "r1", "kind": "train", "launcher": "exec", "argv": ("x",), "env": {}, "out": "r1"}
    run = RunSpec.model_validate({**of, "steps": 1, "timeout_s": 1.0, "metrics": TrainerMetrics()})
    samples = Tail(root / "r1" / "logs" / "telemetry.csv", root=root)
    return OpenRun(root, run, 1, RunFollower(root, run.metrics), Pace(started=0.0), samples, pid, marker, named)


def write(out: Path, name: str, text: str) -> None:
    path = out / "logs" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(text)


def test_a_log_is_shown_without_what_the_program_was_given(tmp_path: Path, trainer: subprocess.Popen[str]) -> None:
    logs = opened(tmp_path, trainer.pid, named=("plain",))
    assert (logs.log("").text, logs.log("").withheld) == ("", False)
    logs = opened(tmp_path, trainer.pid, named=("PLAIN",))
    write(tmp_path / "r1", "stderr.log", "warned\n")
    text = f"got {SECRET}, {NAMED}, {WORD}\ntoken=abcdefgh1 \x1b[31mred\x1b[0m\x07\nnot wh"
    write(tmp_path / "r1", "stdout.log", text)
    write(tmp_path / "r1", "ranks/x/attempt_0/0/stdout.log", "of rank 0\n")
    shown = logs.log("other.log")
    assert shown.name == "stdout.log"
    assert shown.names == ("stdout.log", "stderr.log", "ranks/x/attempt_0/0/stdout.log")
    assert shown.text == "got [redacted], [redacted], [redacted]\ntoken=[redacted] red\\x07"
    assert logs.log("ranks/x/attempt_0/0/stdout.log").text == "of rank 0"
    write(tmp_path / "r1", "stdout.log", "ole\n 1%\r 2%\r 3%\r")
    assert logs.log("stdout.log").text.endswith("\nnot whole\n 3%")


def test_a_log_is_bounded_and_a_key_that_began_before_is_not_shown(
    tmp_path: Path, trainer: subprocess.Popen[str]
) -> None:
    logs = opened(tmp_path, trainer.pid)
    key = (
        "-----BEGIN PRIVATE KEY-----\n" + "QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVo=\n" * 30 + "-----END PRIVATE KEY-----\n"
    )
    lines = "".join(f"line {number}\n" for number in range(LOG_LINES - 10))
    write(tmp_path / "r1", "stdout.log", "early\n" * 50_000 + key + lines)
    shown = logs.log("").text
    assert "QUJD" not in shown
    assert shown.endswith(f"line {LOG_LINES - 11}")
    write(tmp_path / "r1", "stdout.log", "x" * 3_000_000 + "\n" + "y" * 50_000 + "\n" + "z" * 20_000 + "\n")
    assert logs.log("").text == "z" * 20_000
    write(tmp_path / "r1", "stdout.log", "\0" * 300_000 + "\n" + "end\n")
    assert logs.log("").text == "end"


@pytest.mark.parametrize("what", ["another program", "nobody", "a link"])
def test_no_log_is_shown_whose_secrets_are_not_known(tmp_path: Path, trainer: subprocess.Popen[str], what: str) -> None:
    write(tmp_path / "r1", "stdout.log", SECRET)
    if what == "a link":
        (tmp_path / "r1" / "logs" / "stdout.log").rename(tmp_path / "secret.txt")
        (tmp_path / "r1" / "logs" / "stdout.log").symlink_to(tmp_path / "secret.txt")
    pid = 0 if what == "nobody" else trainer.pid
    shown = opened(tmp_path, pid, MARKER if what == "a link" else "another").log("stdout.log")
    assert (shown.text, shown.names) == ("", ())
    assert shown.withheld == (what != "a link")


def test_the_machine_is_shown_by_the_latest_sample(tmp_path: Path) -> None:
    samples = opened(tmp_path)
    assert samples.sample().host == ()
    head = "ts,host_cpu_pct,host_other_cpu_pct,host_mem_available_mib,gpu0_util_pct,gpu0_power_w,gpu10_util_pct\n"
    rows = f"1,2,3,4,5,6,7\n{time.time():.3f},97.5,,51234,98,612.3,0\n{time.time()},1"
    write(tmp_path / "r1", "telemetry.csv", head + rows)
    found = samples.sample()
    assert found.host == (("CPU", "97.5 %"), ("CPU of others", "–"), ("Memory available", "50.03 GiB"))
    assert [index for index, _ in found.gpus] == [0, 10]
    assert found.gpus[0][1][:3] == (("Utilization", "98 %"), ("Memory", "–"), ("Power", "612.3 W"))
    assert found.age == ""
    write(tmp_path / "r1", "telemetry.csv", f"\n{time.time() - 120:.3f},1,1,1,1,1,1\n")
    assert samples.sample().age == "2 min ago"


@pytest.mark.parametrize("linked", ["runs/first/r1/logs", "runs/first/r1", "runs"])
def test_a_folder_that_is_a_link_shows_nothing_of_where_it_leads(
    tmp_path: Path, trainer: subprocess.Popen[str], linked: str
) -> None:
    folder, journal = make_running(tmp_path / "reports")
    with journal:
        run = spec(folder)
        out = folder.root / run.out
        write(out, "stdout.log", "of somebody else\n")
        write(out, "telemetry.csv", f"ts,host_cpu_pct\n{time.time()},50\n")
        (out / "training.csv").write_text("step,loss\n7,2.5\n", encoding="utf-8")
        (folder.root / linked).rename(tmp_path / "elsewhere")
        (folder.root / linked).symlink_to(tmp_path / "elsewhere")
        journal.append("run_started", run=run.id, as_it_is={"spec": run})
        started = {"number": 1, "pid": trainer.pid, "command": ["x"], "container": None}
        journal.append("attempt_started", run=run.id, marker=MARKER, **started)
        live = LiveRuns(RunIndex(tmp_path / "reports", tmp_path / "index.sqlite"))
        (one,) = live.look()
        assert one.run is not None
        assert (one.run.logs, one.run.machine.host, live.log(one.folder, "stdout.log").text) == ((), (), "")
        assert one.run.step == (7 if linked.endswith("logs") else None)


def test_the_page_of_a_run_has_its_log_and_the_machine(tmp_path: Path, trainer: subprocess.Popen[str]) -> None:
    folder, journal = make_running(tmp_path / "reports")
    with journal:
        run = spec(folder)
        out = folder.root / run.out
        write(out, "stdout.log", f"hello <b> {SECRET}\n")
        write(out, "telemetry.csv", f"ts,host_cpu_pct,gpu0_util_pct\n{time.time()},50,77\n")
        journal.append("run_started", run=run.id, as_it_is={"spec": run})
        started = {"number": 1, "pid": trainer.pid, "command": ["x"], "container": None}
        journal.append("attempt_started", run=run.id, marker=MARKER, **started)
        asking, address = client(tmp_path / "reports"), f"/runs/{folder.root.name}/"
        for log in ("", "?log=stderr.log", "?log=../../../run.json", "?log=/etc/passwd"):
            page = asking.get(address + log).text
            assert "hello &lt;b&gt; [redacted]" in page
            assert SECRET not in page
            assert "77 %" in page
        assert "Watchdog" in asking.get("/").text
        assert f'data-events="/events?run={folder.root.name}&amp;log=stdout.log"' in page
        assert asking.get("/events?run=none").status_code == 404
        live = LiveRuns(RunIndex(tmp_path / "reports", tmp_path / "index.sqlite"))
        (one,) = live.look()
        assert json.dumps(one.texts()).count("77 %") == 1
        assert live.log(one.folder, "").text == "hello <b> [redacted]"
        assert live.log("none", "").text == ""
