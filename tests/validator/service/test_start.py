"""Starting from a form: what it offers and takes, what it shows first, and who may send it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from tests.crontab import use_own_crontab
from tests.validator.service.serving import client, form_key
from validator.model.schemas import SCHEMAS
from validator.nightly.settings import load, names
from validator.runbook.offered import offered_settings
from validator.service import start
from validator.service.tokens import Tokens

RUNBOOK = """
schema: 1
name: waits
title: <b>Waits</b>
defaults: {timeout: 2m, env: {A_TOKEN: "hunter2hunter2"}}
phases:
  - {id: long, kind: command, run: sleep 60}
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for settings, with runbooks in it."""
    for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME", "XDG_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path))
    (tmp_path / "books").mkdir()
    (tmp_path / "books" / "waits.yaml").write_text(RUNBOOK, encoding="utf-8")
    (tmp_path / "outside.yaml").write_text(RUNBOOK, encoding="utf-8")
    return tmp_path


@pytest.fixture
def asking(home: Path) -> TestClient:
    return client(home / "reports", runbooks=home / "books")


def hidden(html: str) -> dict[str, str]:
    """The hidden fields of the first form of a page's content."""
    first = html.partition("<main")[2].partition("<form")[2].partition("</form>")[0]
    return dict(re.findall(r'type="hidden" name="([^"]+)" value="([^"]*)"', first))


def planned(asking: TestClient, name: str = "waits", **values: str) -> str:
    key = form_key(asking.get(f"/start/{name}").text)
    return asking.post(f"/start/{name}", data={"key": key, "do": "check", **values}).text


def test_a_form_offers_numbers_switches_and_choices_alone(home: Path) -> None:
    phases = "".join(f"  - {{id: p{at}, kind: {kind}, watchdog: {{}}}}\n" for at, kind in enumerate(SCHEMAS))
    book = home / "books" / "all.yaml"
    book.write_text(f"schema: 1\nname: all\ntrainer: {{launcher: plain, stop: trainer}}\nphases:\n{phases}", "utf-8")
    found = {one.path: one for one in offered_settings(book)}
    assert {"hardware.gpus", "defaults.timeout", "phases.p7.steps", "phases.p12.watchdog.stall"} <= set(found)
    assert found["hardware.interconnect"].choices == ("pcie", "nvlink", "any")
    assert (found["defaults.timeout"].type, found["defaults.timeout"].present) == ("duration", "30m")
    assert {path.partition(".")[0] for path in found} == {"hardware", "defaults", "phases"}
    assert {one.type for one in found.values() if not one.choices} <= {"whole number", "number", "duration", "size"}
    keys = {one.key for one in found.values()}
    # All keys that may be texts, lists or mappings, and those that say what a phase must fulfil.
    assert not keys & {
        "run",
        "stdout",
        "env",
        "args",
        "targets",
        "keyword",
        "path",
        "name",
        "command",
        "python",
        "over",
    }
    assert not keys & {"accept", "required", "observe", "allow_skipped", "on_failure", "arms", "log_contains", "kind"}
    assert tuple(offered_settings(home / "none.yaml")) == ()


def test_runbooks_are_those_of_the_folder_and_the_bundled_ones(home: Path, asking: TestClient) -> None:
    (home / "books" / "broken.yaml").write_bytes(b"\xff: [}")
    (home / "books" / "odd.yaml").write_text("hardware: 3\nphases: 4\ntrainer: x\n", encoding="utf-8")
    listed = asking.get("/start").text
    assert 'href="/start/waits"' in listed
    assert 'href="/start/smoke_cpu"' in listed
    assert "&lt;b&gt;Waits" in listed
    for name in ("broken", "odd"):
        assert asking.get(f"/start/{name}").status_code == 200
        assert 'role="alert"' in planned(asking, name)
    for path in ("/start/..%2foutside", "/start/outside", "/start/%2e%2e", "/start/books%2fwaits", "/start/waits.yaml"):
        assert asking.get(path).status_code == 404, path


def test_check_and_plan_are_shown_first_and_a_wrong_value_beside_its_field(asking: TestClient) -> None:
    wrong = planned(asking, **{"defaults.timeout": "5", "phases.long.retries": "many"})
    assert "duration 5 has no unit" in wrong
    assert re.search(r'id="wrong-phases\.long\.retries">[^<]*must be a whole number', wrong)
    assert re.search(r'name="phases\.long\.retries" value="many"[^>]*aria-invalid="true"', wrong)
    shown = planned(asking, **{"defaults.timeout": " 5m ", "phases.long.retries": ""})
    assert "--set defaults.timeout=5m" in shown
    assert "sleep 60" in shown, "the plan"
    assert "hunter2" not in shown
    assert "the decision cannot be GO" in shown, "a warning of the check"
    assert asking.get("/api/v1/queue").json() == {"queue": []}
    edited = asking.post("/start/waits", data={**hidden(shown), "do": "edit"}).text
    assert 'name="defaults.timeout" value="5m"' in edited


def test_a_plan_of_too_many_runs_is_not_made(home: Path, asking: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan of 100,000 repeats takes minutes, in which the server answers nobody else."""
    phase = "kind: sweep, steps: 100, over: {env.A: [1, 2]}, choose: {highest: toks_per_s.mean}"
    trainer = '{command: [train.py], args: {steps: "{steps}", out: "{out}"}, metrics: {csv: training.csv}}'
    head = f"schema: 1\nname: many\ntrainer: {trainer}\ndefaults: {{nproc: 0}}\nphases:\n"
    text = f"{head}  - {{id: p0, kind: preflight}}\n  - {{id: p1, {phase}}}\n  - {{id: p2, {phase}}}\n"
    (home / "books" / "many.yaml").write_text(text, encoding="utf-8")
    assert "Start it when" in planned(asking, "many", **{"defaults.repeats": "250"})
    monkeypatch.setattr(start, "first_plan", None)
    for repeats, runs in ((251, 1004), (10**9, 4 * 10**9)):
        shown = planned(asking, "many", **{"defaults.repeats": str(repeats)})
        assert f"its phases have {runs} runs with these values" in shown
    one = planned(asking, "many", **{"phases.p1.repeats": "501"})
    assert "1004 runs" in one
    assert "1001 runs" in planned(asking, "many", **{"phases.p0.rounds": "997"}), "each round of a search is a run"


def test_what_the_form_does_not_offer_is_refused(asking: TestClient) -> None:
    key = form_key(asking.get("/start/waits").text)
    for path, value in (
        ("trainer.command", "x"),
        ("trainer.python", "/bin/sh"),
        ("defaults.env.LD_PRELOAD", "x.so"),
        ("phases.long.run", "touch planted"),
        ("phases.long.required", "false"),
        ("phases.long.accept[0]", "x"),
        ("phases.none.retries", "1"),
        ("defaults.timeout\n--out", "1m"),
        ("defaults.timeout", "1m\n2m"),
        ("defaults.timeout", "1m\0"),
        ("defaults.timeout", "1" * 200),
    ):
        assert asking.post("/start/waits", data={"key": key, path: value}).status_code == 400, path
    assert asking.get("/api/v1/queue").json() == {"queue": []}


def test_what_was_shown_is_queued_once_and_can_be_cancelled(home: Path, asking: TestClient) -> None:
    fields = hidden(planned(asking, **{"defaults.timeout": "5m"}))
    assert (fields["do"], fields["defaults.timeout"]) == ("start", "5m")
    for _ in range(2):
        assert asking.post("/start/waits", data=fields).headers["location"] == "/queue"
    (entry,) = asking.get("/api/v1/queue").json()["queue"]
    assert entry["overrides"] == ["defaults.timeout=5m"]
    assert (entry["path"], entry["out"]) == (str(home / "books" / "waits.yaml"), str(home / "reports"))
    assert (entry["by"], entry["state"], entry["locks"]) == ("loopback", "waiting", ["cpu"])
    page = asking.get("/queue").text
    cancel = {"key": form_key(page)}
    assert asking.post(f"/queue/{entry['id']}", data={"key": "0" * 64}).status_code == 403
    assert asking.post("/queue/..%2f..", data=cancel).status_code in (404, 409)
    assert asking.post(f"/queue/{entry['id']}", data=cancel).status_code == 303
    assert "cancelled by loopback" in asking.get("/queue").text
    assert asking.post(f"/queue/{entry['id']}", data=cancel).status_code == 409
    assert "Start it" in asking.post("/start/waits", data={**fields, "entry": "../x"}).text
    book = home / "books" / "waits.yaml"
    book.write_text(RUNBOOK.replace("sleep 60", "sleep 61"), encoding="utf-8")
    assert "sleep 61" in asking.post("/start/waits", data=fields).text, "what was edited is shown again"
    assert len(asking.get("/api/v1/queue").json()["queue"]) == 1


def test_a_machine_that_lacks_gpus_cannot_start(asking: TestClient) -> None:
    shown = planned(asking, **{"hardware.gpus": "64"})
    assert "This machine cannot run it" in shown
    assert "Start it when" not in shown
    answer = asking.post("/start/waits", data={**hidden(shown), "do": "start"})
    assert (answer.status_code, "GPU" in answer.text) == (409, True)


def test_a_reader_sees_the_queue_and_starts_nothing(home: Path) -> None:
    tokens = Tokens(home / "config" / "tokens.json")
    text = tokens.add("me", "run")
    asking = client(home / "reports", tokens, runbooks=home / "books")
    asking.post("/login", data={"token": text})
    assert asking.post("/start/waits", data=hidden(planned(asking))).headers["location"] == "/queue"
    assert "Cancel" in asking.get("/queue").text
    asking.cookies.clear()
    read = {"authorization": f"Bearer {tokens.add('reader', 'read')}"}
    assert "me" in asking.get("/queue", headers=read).text
    assert "Cancel" not in asking.get("/queue", headers=read).text
    assert 'href="/start/waits"' not in asking.get("/start", headers=read).text


def test_a_schedule_is_added_changed_paused_and_removed(
    home: Path, asking: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = use_own_crontab(home, monkeypatch)
    fields = hidden(planned(asking, **{"defaults.timeout": "5m"})) | {"do": "schedule", "job": "mine", "at": "04:30"}
    wrong = asking.post("/start/waits", data={**fields, "at": "99:00", "days": "mon"})
    assert (wrong.status_code, "At &#39;99:00&#39; is no time of day" in wrong.text) == (409, True)
    assert "--at" not in wrong.text
    assert asking.post("/start/waits", data=hidden(wrong.text) | {"at": "99:01"}).status_code == 409
    for name, value in (("at", "99:00"), ("days", "mon"), ("job", "mine")):
        assert f'name="{name}" value="{value}"' in wrong.text, "what was typed"
    assert asking.post("/start/waits", data={**fields, "job": "../mine"}).status_code == 409
    assert asking.post("/start/waits", data={**fields, "days": "someday"}).status_code == 409
    assert names() == ()
    assert asking.post("/start/waits", data={**fields, "days": "Mon, fri"}).status_code == 303
    assert table.read_text(encoding="utf-8").startswith("30 4 * * 1,5 ")
    job = load("mine")
    assert (job.overrides, job.out, job.runbook) == (
        ("defaults.timeout=5m",), str(home / "reports"), str(home / "books" / "waits.yaml"),
    )  # fmt: skip
    again = asking.post("/start/waits", data=fields)
    assert (again.status_code, "mine is a schedule already" in again.text) == (409, True)
    page = asking.get("/schedules").text
    assert "cron, at 30 4 * * 1,5" in page
    assert "not started yet" in page
    key = {"key": form_key(page)}
    assert asking.post("/schedules/mine", data={"do": "pause"}).status_code == 403, "not our form"
    assert asking.post("/schedules/mine", data={**key, "do": "run"}).status_code == 400
    for other in ("none", "..%2fmine", "mine.json"):
        assert asking.post(f"/schedules/{other}", data={**key, "do": "remove"}).status_code == 404
    asking.post("/schedules/mine", data={**key, "do": "save", "at": "5:00", "days": ""})
    assert table.read_text(encoding="utf-8").startswith("0 5 * * * ")
    wrong = asking.post("/schedules/mine", data={**key, "do": "save", "at": "5:00", "days": "someday"})
    assert (wrong.status_code, 'value="someday"' in wrong.text, 'id="wrong-days"' in wrong.text) == (409, True, True)
    asking.post("/schedules/mine", data={**key, "do": "pause"})
    assert (table.read_text(encoding="utf-8"), names()) == ("", ("mine",))
    assert "paused" in asking.get("/schedules").text
    asking.post("/schedules/mine", data={**key, "do": "remove"})
    assert names() == ()


def test_without_a_scheduler_or_with_a_damaged_job_it_is_said(
    home: Path, asking: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(home))
    (home / "validator" / "nightly").mkdir(parents=True)
    (home / "validator" / "nightly" / "damaged.json").write_text("{}", encoding="utf-8")
    assert "install the job again" in asking.get("/schedules").text
    refused = asking.post("/start/waits", data=hidden(planned(asking)) | {"do": "schedule", "job": "a", "at": "04:30"})
    assert (refused.status_code, "neither systemd" in refused.text) == (409, True)
