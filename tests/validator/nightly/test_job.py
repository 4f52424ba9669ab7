"""One start of a job: its decision, what is told to whom, what is cleared away, and that two never overlap."""

from __future__ import annotations

import json
import shutil
import socket
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import apprise
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.validator.service.pushing import served
from tests.webhooks import Post, listening
from validator.errors import UserError
from validator.kinds.registry import load
from validator.nightly import job as nightly_job
from validator.nightly import notification
from validator.nightly.job import Overlap, _alone, require_prometheus, run_job
from validator.nightly.notification import Notification, _mask, deliver, require_apprise, waiting_notifications
from validator.nightly.settings import (
    Begun,
    Nightly,
    NightlyError,
    NightlyRun,
    begun_start,
    last_ended,
    unsent_runs,
)
from validator.nightly.variables import lacking_variables
from validator.pipeline import push as pipeline_push
from validator.runs.folder import RunFolder, this_runner
from validator.supervise.lock import LockHeld

TOKEN = "b3xk7pq9wz2m"
TOLD = Notification(NightlyRun("quick", 0, "GO", "why", "2026-01-02T03:04:05+00:00", 1.0, None, None, "log"), ())
RUNBOOK = """
schema: 1
name: quick
phases:
  - {id: look, kind: command, run: "cat answer.txt", stdout: 'is (?P<it>\\d+)', accept: [metrics.it == 42]}
"""


@pytest.fixture
def workdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("config", "state", "runtime"):
        (tmp_path / name).mkdir()
        monkeypatch.setenv(f"XDG_{name.upper()}_{'DIR' if name == 'runtime' else 'HOME'}", str(tmp_path / name))
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "quick.yaml").write_text(RUNBOOK, encoding="utf-8")
    (folder / "answer.txt").write_text("it is 42\n", encoding="utf-8")
    for name in ("types.py", "validator.py"):  # a trainer's modules are nobody else's
        (folder / name).write_text("raise SystemExit(1)", encoding="utf-8")
    return folder


@pytest.fixture
def job(workdir: Path) -> Callable[..., Nightly]:
    def make(**changes: Any) -> Nightly:
        given: dict[str, Any] = {
            "name": "quick",
            "runbook": "quick.yaml",
            "at": "02:00",
            "out": str(workdir / "reports"),
            "state": str(workdir / "state"),
            "cwd": str(workdir),
            "python": sys.executable,
        }
        return Nightly(**{**given, **changes})

    return make


@pytest.fixture
def webhook() -> Iterator[tuple[str, list[Post]]]:
    """A local web server, and what it was sent."""
    with listening() as (address, posts):
        yield f"json://{address}", posts


def test_only_a_change_of_decision_is_told(
    job: Callable[..., Nightly], workdir: Path, webhook: tuple[str, list[Post]]
) -> None:
    url, received = webhook
    night = job(notify=(url,))
    assert run_job(night).decision == "GO"
    assert run_job(night).decision == "GO"
    (workdir / "answer.txt").write_text("it is 41\n", encoding="utf-8")
    ended = run_job(night)
    assert (ended.decision, ended.before, ended.exit_code) == ("NO_GO", "GO", 1)
    assert [post.json["title"] for post in received] == ["GO: nightly quick", "NO-GO (was GO): nightly quick"]
    assert [post.json["type"] for post in received] == ["success", "failure"]
    assert f"{ended.folder}/report.html" in received[1].json["message"]
    assert Path(f"{ended.folder}/report.html").is_file()
    assert last_ended(job()) == ended


def test_a_night_without_a_decision_is_told_and_not_taken_for_one(
    job: Callable[..., Nightly], workdir: Path, webhook: tuple[str, list[Post]]
) -> None:
    url, received = webhook
    (workdir / "quick.yaml").write_text("schema: 1\nname: quick\nphases: [{id: look}]\n", encoding="utf-8")
    ended = run_job(job(notify=(url,), notify_on="always", prometheus=str(workdir / "v.prom")))
    assert (ended.decision, ended.exit_code, ended.run_id) == ("UNABLE", 2, None)
    assert received[0].json["title"] == "UNABLE: nightly quick"
    assert "quick.yaml:" in received[0].json["message"], "the mistake in the runbook is what there is to tell"


def test_a_night_that_cannot_be_started_is_told(
    job: Callable[..., Nightly], workdir: Path, webhook: tuple[str, list[Post]]
) -> None:
    """Its folder is gone, or its Python does not start, which ends with 1: neither is a NO-GO, and both are told."""
    url, received = webhook
    gone, broken = str(workdir / "gone"), {"PYTHONHOME": str(workdir / "gone")}
    for changes in ({"cwd": gone}, {"environment": broken}):
        ended = run_job(job(notify=(url,), notify_on="always", **changes))
        assert (ended.decision, ended.exit_code, ended.run_id) == ("UNABLE", 4, None)
        assert last_ended(job()) == ended
    assert "cannot be started" in received[0].json["message"]
    assert received[1].json["title"] == "UNABLE: nightly quick"


def test_a_disk_that_is_full_keeps_nobody_from_being_told(
    job: Callable[..., Nightly], workdir: Path, webhook: tuple[str, list[Post]], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, received = webhook
    (workdir / "state" / "last.json").mkdir(parents=True)  # where nothing can be written
    genuine = nightly_job._opened_log
    monkeypatch.setattr(nightly_job, "_opened_log", lambda _: genuine(Path("/dev/full")))
    assert run_job(job(notify=(url,))).decision == "GO"
    assert [post.json["title"] for post in received] == ["GO: nightly quick"]


def test_what_is_not_delivered_waits_until_it_is(
    job: Callable[..., Nightly], workdir: Path, webhook: tuple[str, list[Post]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A NO-GO whose night finds the receiver down would never be announced: the next night has the same decision."""
    url, received = webhook
    command = f'test -e {workdir}/up && echo "$VALIDATOR_DECISION $VALIDATOR_STARTED" >> {workdir}/told.txt'
    night = job(notify=(url,), command=command)
    (workdir / "state").mkdir()
    bad = replace(TOLD.run, decision="NO_GO", started="2026-01-03T02:00:00+00:00", before="GO")
    good = replace(TOLD.run, started="2026-01-05T02:00:00+00:00", before="NO_GO")

    def waits() -> list[str]:
        return [one.run.decision for one in waiting_notifications(night)]

    with monkeypatch.context() as down:
        down.setattr(notification, "_send_now", lambda *_: (False, "could not be reached"))
        tuple(deliver(night, [Notification(bad, ())], started=bad.started))
        assert waits() == ["NO_GO"]
        tuple(deliver(night, [], started="2026-01-04T02:00:00+00:00"))
        assert waits() == ["NO_GO"]
        muted = job(notify=(url,), notify_on="never", state=str(workdir / "muted"))
        shutil.copytree(workdir / "state", workdir / "muted")
        tuple(deliver(muted, [], started="2026-01-04T02:00:00+00:00"))
        assert waiting_notifications(muted) == ()
    lines = tuple(deliver(night, [Notification(good, ())], started=good.started))
    assert lines[0] == "address 1 (json): sent (of 2026-01-03 02:00:00 UTC)"
    titles = ["NO-GO (was GO): nightly quick, of 2026-01-03 02:00:00 UTC", "GO (was NO-GO): nightly quick"]
    assert [post.json["title"] for post in received] == titles
    assert waits() == ["NO_GO", "GO"], "the command has neither"
    (workdir / "up").touch()
    tuple(deliver(night, [], started="2026-01-06T02:00:00+00:00"))
    assert (workdir / "told.txt").read_text().splitlines() == [f"NO_GO {bad.started}", f"GO {good.started}"]
    assert len(received) == 2, "the address that has them gets neither again"
    assert waits() == []


def test_a_start_that_was_killed_is_reported_by_the_next_one(
    job: Callable[..., Nightly], webhook: tuple[str, list[Post]], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, received = webhook
    night = job()
    first, last = run_job(night), Path(night.state) / "last.json"
    header = RunFolder.open(Path(str(first.folder))).header
    begun = Begun(started=first.started, log="log", runner=header.runner, validation=header.runner.pid)

    def killed(recorded: NightlyRun, started: str) -> NightlyRun | None:
        last.write_text(json.dumps(asdict(recorded)), encoding="utf-8")
        (last.parent / "begun.json").write_text(begun.model_copy(update={"started": started}).model_dump_json())
        return last_ended(night)

    before = replace(first, decision="NO_GO", started="2026-01-01T02:00:00+00:00")
    found = killed(before, "2026-01-02T02:00:00+00:00")  # not the second in which the next start may begin
    assert found is not None
    assert (found.decision, found.before, found.folder) == ("UNABLE", "NO_GO", first.folder)
    assert found.why.endswith(f"its validation {first.run_id} ended with GO")
    monkeypatch.setattr(nightly_job, "_start_validation", lambda *_: (0, '{"exit_code": 0, "why": "fine"}'))
    ended = run_job(job(notify=(url,)))
    assert (ended.decision, ended.before, begun_start(night)) == ("GO", "UNABLE", None)
    titles = [
        "UNABLE (was NO-GO): nightly quick, of 2026-01-02 02:00:00 UTC",
        "GO (was UNABLE): nightly quick",
    ]
    assert [post.json["title"] for post in received] == titles
    received.clear()
    assert killed(before, before.started) == before, "recorded, and killed before it was reported"
    run_job(job(notify=(url,)))
    titles = ["NO-GO: nightly quick, of 2026-01-01 02:00:00 UTC", "GO (was NO-GO): nightly quick"]
    assert [post.json["title"] for post in received] == titles
    begun = begun.model_copy(update={"runner": this_runner()})
    assert killed(before, first.started) == before, "in progress"


def test_an_address_that_does_not_answer_changes_no_decision(job: Callable[..., Nightly]) -> None:
    ended = run_job(job(notify=("json://127.0.0.1:9",)))
    assert ended.decision == "GO"
    assert "address 1 (json): could not be reached" in Path(ended.log).read_text(encoding="utf-8")


@pytest.mark.timeout(30)
def test_an_address_that_answers_without_end_is_given_up(
    job: Callable[..., Nightly], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each byte is in time; only all of them together never are."""
    monkeypatch.setattr("validator.nightly.notification._SEND_S", 2)
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool:

        def drip() -> None:
            connection, _ = server.accept()
            with connection, suppress(OSError):
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
                for _ in range(80):
                    connection.sendall(b".")
                    time.sleep(0.1)

        pool.submit(drip)
        ended = run_job(job(notify=(f"json://127.0.0.1:{server.getsockname()[1]}",)))
    assert ended.decision == "GO"
    assert "was given up after 2 s" in Path(ended.log).read_text()


def test_an_address_that_breaks_the_library_keeps_nobody_else_from_being_told(
    job: Callable[..., Nightly],
    workdir: Path,
    webhook: tuple[str, list[Post]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    url, received = webhook
    notify = apprise.Apprise.notify
    broken, broken_once = "json://127.0.0.1:9/hooks/s3cretpath", list[bool]()

    def breaks(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not broken_once:
            broken_once.append(True)
            raise RuntimeError(f"no answer from {broken}")
        return notify(self, *args, **kwargs)

    monkeypatch.setattr(apprise.Apprise, "notify", breaks)
    ended = run_job(job(notify=(broken, url), command=f"touch {workdir}/told.txt"))
    log = Path(ended.log).read_text(encoding="utf-8")
    assert "address 1 (json): failed: RuntimeError: no answer from json://127.0.0.1:9/[redacted]" in log
    assert len(received) == 1
    assert "address 2 (json): sent" in log
    assert (workdir / "told.txt").exists()
    assert "s3cretpath" not in log


@pytest.mark.parametrize("chars", range(285, 300, 2))
def test_a_complaint_is_cut_where_no_half_of_an_address_is_left(
    job: Callable[..., Nightly], workdir: Path, chars: int
) -> None:
    """Only its end is kept; wherever the cut falls, what is left of a secret is not told."""
    (workdir / "complain").write_text(f"echo {TOKEN}{'.' * chars} >&2; exit 1", encoding="utf-8")
    night = job(command=f"sh {workdir}/complain https://chat.example/hook/{TOKEN}")
    told = tuple(line for line in deliver(night, [TOLD], started=TOLD.run.started) if line.startswith("command"))
    assert told[0].startswith("command: ended with 1: ")
    assert not any(TOKEN[at:] in told[0] for at in range(len(TOKEN) - 3))


def test_a_run_that_cannot_be_pushed_waits_for_the_next_night(
    job: Callable[..., Nightly], workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline_push, "_MAX_PAUSE_S", 0.01)
    night = job(push="http://127.0.0.1:9")
    (workdir / "state").mkdir()
    (workdir / "state" / "unsent.json").write_text('["20260101T000000Z-gone"]', encoding="utf-8")
    ended = run_job(night)
    assert (ended.decision, ended.exit_code) == ("GO", 0)
    log = Path(ended.log).read_text(encoding="utf-8")
    assert f"push failed: Unable: http://127.0.0.1:9 has not got all of {ended.run_id}: " in log
    assert unsent_runs(night) == ("20260101T000000Z-gone", ended.run_id)
    with served(workdir / "theirs") as address:
        lines = list(nightly_job._hand_in(job(push=address), replace(ended, run_id=None)))
    assert lines[0] == f"{address} has {ended.run_id}"
    assert lines[1].startswith("20260101T000000Z-gone is left out: ")
    assert unsent_runs(night) == ()
    assert (workdir / "theirs" / str(ended.run_id) / "report.html").is_file()
    with pytest.raises(UserError, match="http://HOST:PORT"):
        nightly_job.push_destination(job(push="gpu7:8700"))


def test_a_password_is_masked_as_it_is_typed_and_as_the_address_has_it(job: Callable[..., Nightly]) -> None:
    """Libraries decode what stands in an address before they complain of it."""
    mask = _mask(job(notify=("json://me:zq%2Bword9%21@host.example/hook",)))
    assert mask.sentence("no login with zq+word9! or zq%2Bword9%21") == "no login with [redacted] or [redacted]"


def test_a_command_is_told_the_decision(job: Callable[..., Nightly], workdir: Path) -> None:
    run_job(
        job(command=f'echo "$VALIDATOR_DECISION $VALIDATOR_EXIT_CODE" > {workdir}/told.txt; cat >> {workdir}/told.txt')
    )
    told = (workdir / "told.txt").read_text(encoding="utf-8").splitlines()
    assert told[0] == "GO 0"
    assert told[1] == "GO: nightly quick"


def test_a_variable_that_only_the_shell_has_is_named(
    job: Callable[..., Nightly], workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (workdir / "train.py").write_text(
        'os.environ["MY_DATA_DIR"], os.getenv("GIVEN"), os.environ.get("LANG"), os.environ.get("NOBODY_HAS")'
    )
    (workdir / "needs.yaml").write_text(
        f"{RUNBOOK}defaults: {{env: {{GIVEN: 1}}}}\n".replace("cat answer.txt", "cat $WHERE; python train.py")
    )
    monkeypatch.chdir(workdir)
    shell = {"MY_DATA_DIR": "/data", "GIVEN": "2", "LANG": "C", "HOME": "/root", "WHERE": "/here", "UNREAD": "1"}
    assert lacking_variables(load("needs.yaml"), environment=shell) == ("MY_DATA_DIR", "WHERE")
    monkeypatch.setattr(nightly_job, "_start_validation", lambda *_: (1, '{"exit_code": 1, "why": "It failed."}'))
    ended = run_job(job(lacking=("MY_DATA_DIR",)))
    assert (ended.decision, ended.why.startswith("It failed. MY_DATA_DIR: set in the shell")) == ("NO_GO", True)
    monkeypatch.setattr(nightly_job, "_start_validation", lambda *_: (0, '{"exit_code": 0, "why": "fine"}'))
    assert run_job(job(lacking=("MY_DATA_DIR",))).why == "fine"


@pytest.mark.parametrize(("wait_s", "decision"), [(3600.0, "GO"), (60.0, "UNABLE"), (0.0, "UNABLE")])
def test_a_start_waits_for_the_machine(
    job: Callable[..., Nightly], monkeypatch: pytest.MonkeyPatch, wait_s: float, decision: str
) -> None:
    """Two jobs at the same time: each night one of them was UNABLE, at random."""
    night, now, starts = job(wait_s=wait_s), [0.0], list[float]()
    other = {"pid": 1234, "command": "validator run", "since": "", "run_dir": None}
    held = LockHeld("cpu", other)
    refused = json.dumps({"exit_code": 4, "error": str(held), **held.details()})

    def start(*_: object) -> tuple[int, str]:
        starts.append(now[0])
        return (4, refused) if now[0] < 600 else (0, '{"exit_code": 0, "why": "fine"}')

    def sleep(seconds: float) -> None:
        found = begun_start(night)
        assert found is not None
        assert found.waits.startswith("the CPU of this machine is in use by another validation: process 1234")
        now[0] += seconds

    monkeypatch.setattr(nightly_job, "_start_validation", start)
    monkeypatch.setattr(nightly_job, "holders", lambda: {"cpu": other} if now[0] < 600 else {})
    monkeypatch.setattr(nightly_job, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    ended = run_job(night)
    assert ended.decision == decision
    assert starts == ([0.0, 600.0] if decision == "GO" else [0.0]), "it is not started while the lock is held"
    assert ("; this start waited " in ended.why) == (decision == "UNABLE")


def test_metrics_are_what_prometheus_reads(job: Callable[..., Nightly], workdir: Path) -> None:
    run_job(job(prometheus=str(workdir / "v.prom")))
    families = {f.name: f for f in text_string_to_metric_families((workdir / "v.prom").read_text(encoding="utf-8"))}
    decision = {s.labels["decision"]: s.value for s in families["validator_nightly_decision"].samples}
    assert decision == {"GO": 1.0, "NO_GO": 0.0, "INCONCLUSIVE": 0.0, "UNABLE": 0.0}
    (figure,) = families["validator_nightly_figure"].samples
    assert (figure.labels["phase"], figure.labels["metric"], figure.value) == ("look", "metrics.it", 42.0)
    assert families["validator_nightly_duration_seconds"].samples[0].value > 0


def test_old_runs_go_and_the_last_go_stays(job: Callable[..., Nightly], workdir: Path) -> None:
    first = run_job(job())
    (workdir / "answer.txt").write_text("it is 41\n", encoding="utf-8")
    run_job(job())
    last = run_job(job(keep_count=1))
    left = sorted(path.name for path in (workdir / "reports").iterdir() if (path / "run.json").is_file())
    assert left == sorted([str(first.run_id), str(last.run_id)])
    assert "more than 1 runs" in Path(last.log).read_text(encoding="utf-8")


def test_a_second_start_does_nothing_while_the_first_goes_on(job: Callable[..., Nightly], workdir: Path) -> None:
    night = job()
    folder = Path(night.state)
    folder.mkdir(parents=True)
    with _alone(folder, "quick"), pytest.raises(Overlap, match=r"quick has not ended yet .*process"):
        run_job(night)
    assert not (workdir / "reports").exists()
    assert "since" in (folder / "refused.txt").read_text(encoding="utf-8"), "cron throws stderr away"
    assert run_job(night).decision == "GO", "and the lock is free again"


def test_what_cannot_work_at_night_is_refused_by_day(tmp_path: Path) -> None:
    with pytest.raises(NightlyError, match=r"--notify number 1 \(nonsense://…\)"):
        require_apprise(("nonsense://token",))
    with pytest.raises(NightlyError, match=r"ends in \.prom"):
        require_prometheus(tmp_path / "metrics.txt")


def test_a_timer_with_another_environment_finds_the_same_logs(
    job: Callable[..., Nightly], workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    night = job()
    monkeypatch.setenv("XDG_STATE_HOME", str(workdir / "elsewhere"))
    run_job(night)
    assert len(list((workdir / "state").glob("*.log"))) == 1
    assert not (workdir / "elsewhere").exists()


def test_a_history_that_cannot_be_read_keeps_no_decision_back(
    job: Callable[..., Nightly], monkeypatch: pytest.MonkeyPatch, webhook: tuple[str, list[Post]]
) -> None:
    def broken(*_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("validator.nightly.job.read_history", broken)
    url, received = webhook
    ended = run_job(job(notify=(url,), keep_count=1))
    assert ended.decision == "GO"
    assert [post.json["title"] for post in received] == ["GO: nightly quick"]
    assert "history failed: OSError" in Path(ended.log).read_text(encoding="utf-8")
