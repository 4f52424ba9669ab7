"""What the service takes of other machines: nothing but runs, from who may, and nothing that acts or decides here."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.validator.history.folders import make_run
from tests.validator.service.pushing import (
    content_of,
    hand_in,
    make_ended,
    manifest_json,
    put,
)
from tests.validator.service.serving import client, make_running
from validator.history.page import node_before
from validator.history.read import read_entry
from validator.history.store import is_run, read_history
from validator.history.trend import group_entries
from validator.runs.folder import RunFolder, last_go, this_runner
from validator.runs.journal import read
from validator.service import inbox
from validator.service.live import works_on
from validator.service.tokens import Tokens

# What is not taken.


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_ended(tmp_path / "here", files={"runs/first/r1/out.log": b"step 1\n"})


@pytest.fixture(scope="module")
def described(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The manifest of a run, for tests that send no more."""
    return manifest_json(make_ended(tmp_path_factory.mktemp("described")))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"path": "/etc/cron.d/x"}, "cannot be pushed"),
        ({"path": "../x"}, "cannot be pushed"),
        ({"path": "a/../../x"}, "cannot be pushed"),
        ({"path": "a//x"}, "cannot be pushed"),
        ({"path": "./x"}, "cannot be pushed"),
        ({"path": "a\0b"}, "cannot be pushed"),
        ({"path": "a\nb"}, "cannot be pushed"),
        ({"path": ""}, "cannot be pushed"),
        ({"path": "x" * 256}, "cannot be pushed"),
        ({"path": "/".join("x" * 65)}, "cannot be pushed"),
        ({"path": "y/".join(["x" * 200] * 6)}, "cannot be pushed"),
        ({"path": ".pinned"}, "cannot be pushed"),
        ({"path": ".pushed"}, "cannot be pushed"),
        ({"path": "run.json"}, "is there twice"),
        ({"path": "run.json/x"}, "is there twice"),
        ({"bytes": -1}, "greater than or equal"),
        ({"bytes": 5 << 30}, "less than or equal"),
        ({"sha256": "0" * 63}, "match pattern"),
        ({"sha256": "g" * 64}, "match pattern"),
        ({"mtime_ns": 1 << 70}, "mtime_ns"),
        ({"mode": 0o4755}, "Extra inputs"),
    ],
)
def test_a_manifest_names_only_what_a_run_folder_holds(
    tmp_path: Path, described: dict[str, Any], changes: dict[str, Any], said: str
) -> None:
    more = {"path": "more", "bytes": 1, "mtime_ns": 0, "sha256": "0" * 64, **changes}
    found = {**described, "files": [*described["files"], more]}
    answer = client(tmp_path / "reports").post("/api/v1/push", json=found)
    assert (answer.status_code, said in answer.json()["error"]) == (422, True), answer.text
    assert not (tmp_path / "reports" / ".push").exists()


@pytest.mark.parametrize(
    "name", ["../x", ".push", "index.html", "sample-1", "20260101T000000Z-a/b", "20260101T000000Z-..\n", "", "x" * 300]
)
def test_a_run_has_the_name_that_a_run_gets(tmp_path: Path, described: dict[str, Any], name: str) -> None:
    answer = client(tmp_path / "reports").post("/api/v1/push", json={**described, "run": name})
    assert answer.status_code == 422, answer.text


def test_sizes_and_numbers_are_limited(tmp_path: Path, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = manifest_json(run)
    asking = client(tmp_path / "reports")

    def refused(files: list[dict[str, Any]]) -> str:
        answer = asking.post("/api/v1/push", json={**found, "files": files})
        assert answer.status_code == 422, answer.text
        return str(answer.json()["error"])

    one = found["files"][0]
    assert "is missing" in refused([file for file in found["files"] if file["path"] != "result.json"])
    large = [{**file, "bytes": 17 << 20} if file["path"] == "journal.jsonl" else file for file in found["files"]]
    assert "journal.jsonl is missing, or larger than 16" in refused(large)
    assert "have more than 16" in refused(
        [*found["files"], *({**one, "path": f"{n}", "bytes": 4 << 30} for n in range(5))]
    )
    assert "10000 items" in refused([{**one, "path": f"{n}"} for n in range(10_001)])
    assert asking.post("/api/v1/push", content=b"[" * 100_000).status_code == 422
    assert asking.post("/api/v1/push", content=bytes(5 << 20)).status_code == 413
    monkeypatch.setattr(inbox, "_MAX_UPLOADS", 0)
    assert asking.post("/api/v1/push", json=found).status_code == 503


def test_bytes_go_only_where_an_upload_needs_them(tmp_path: Path, run: Path) -> None:
    asking = client(tmp_path / "reports")
    begun = asking.post("/api/v1/push", json=manifest_json(run)).json()
    assert begun == {"run": run.name, "upload": begun["upload"], "stored": False, "file": 0, "offset": 0}
    for changes, code in (
        ({"upload": "0" * 64}, 404),
        ({"upload": "..%2F" + "0" * 59}, 404),
        ({"offset": 1}, 409),
        ({"offset": -1}, 400),
        ({"offset": 10**11}, 400),
        ({"file": "x"}, 400),
    ):
        assert put(asking, {**begun, **changes}, b"x").status_code == code, changes
    assert put(asking, {**begun, "file": 10_000}, b"x").json()["offset"] == 0
    wrong = put(asking, begun, bytes(manifest_json(run)["files"][0]["bytes"]))
    assert (wrong.status_code, "another checksum" in wrong.text) == (409, True)
    assert asking.post("/api/v1/push", json=manifest_json(run)).json() == begun, "it is sent again"
    assert hand_in(asking, run).json()["stored"]
    assert content_of(tmp_path / "reports" / run.name) == content_of(run)


def test_no_link_in_the_reports_folder_is_followed(tmp_path: Path, run: Path) -> None:
    """Who else may write there must not lead an upload, or its removal, elsewhere."""
    outside, reports = tmp_path / "outside", tmp_path / "reports"
    (outside / ("0" * 64)).mkdir(parents=True)
    os.utime(outside / ("0" * 64), (0, 0))
    reports.mkdir()
    (reports / ".push").symlink_to(outside)
    assert hand_in(client(reports), run).status_code == 503
    assert [path.name for path in outside.iterdir()] == ["0" * 64]


def test_a_run_that_is_there_already(tmp_path: Path, run: Path) -> None:
    asking, there = client(tmp_path / "reports"), tmp_path / "reports" / run.name
    assert hand_in(asking, run).json()["stored"]
    (there / ".pinned").touch()
    before = content_of(there)
    assert asking.post("/api/v1/push", json=manifest_json(run)).json()["stored"], "the same content"
    for path in ("report.md", "result.json"):
        with (run / path).open("a") as file:
            file.write(" ")
        refused = asking.post("/api/v1/push", json=manifest_json(run))
        assert (refused.status_code, "remove or rename" in refused.text) == (409, True)
        (there / path).write_bytes((run / path).read_bytes())
    (there / "report.md").write_text("x")
    assert "here already with other content" in asking.post("/api/v1/push", json=manifest_json(run)).text
    assert content_of(there).keys() == before.keys() | {"report.md"}


@pytest.mark.parametrize(
    ("path", "text", "why"),
    [
        ("result.json", "[]", "are not those of"),
        ("result.json", "[" * 10_000, "are not those of"),
        ("run.json", '{"run_id": "20260101T000000Z-other"}', "are not those of"),
        ("run.json", "[]", "are not those of"),
    ],
)
def test_what_is_no_run_is_not_stored(tmp_path: Path, run: Path, path: str, text: str, why: str) -> None:
    (run / path).write_text(text)
    require_refused(tmp_path, run, why)


def claiming(run: Path, name: str = "", **claims: Any) -> Path:
    """The run with other values in its run.json and result.json, and with another name."""
    made = run.rename(run.with_name(name or run.name))
    for path in ("run.json", "result.json"):
        found = {**json.loads((made / path).read_text()), "run_id": made.name, **claims}
        (made / path).write_text(json.dumps(found))
    return made


def require_refused(tmp_path: Path, run: Path, why: str) -> None:
    answer = hand_in(client(tmp_path / "reports"), run)
    assert (answer.status_code, why in answer.json()["error"]) == (422, True), answer.text
    assert [one.name for one in (tmp_path / "reports").iterdir()] == [".push"]
    assert list((tmp_path / "reports" / ".push").iterdir()) == []


@pytest.mark.parametrize(
    ("name", "claims", "why"),
    [
        ("", {"decision": "IN_PROGRESS"}, "no decision"),
        ("", {"started": "2025-01-01T00:00:00.000Z"}, "another time than by its name"),
        ("20250101T000000Z-a-b", {"started": "20250101T000000Z"}, "another time"),  # which would be sorted as later
        ("20250101T000000Z-a-b", {"started": "2025-01-01T14:00:00+14:00"}, "another time"),
        ("20259901T000000Z-a-b", {"started": "x"}, "another time"),
        ("20990101T000000Z-a-b", {"started": "2099-01-01T00:00:00.123Z"}, "in the future"),
    ],
)
def test_a_run_cannot_be_later_than_it_is(
    tmp_path: Path, run: Path, name: str, claims: dict[str, Any], why: str
) -> None:
    """It would be the latest for long, and hide the decisions that are made meanwhile."""
    require_refused(tmp_path, claiming(run, name, **claims), why)


def test_run_and_result_start_at_one_time(tmp_path: Path, run: Path) -> None:
    header = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**header, "started": "2025-01-01T00:00:00.000Z"}))
    require_refused(tmp_path, run, "another time than by its name")


def test_a_run_counts_for_no_machine_but_its_senders(tmp_path: Path, run: Path) -> None:
    """Its result.json may name this machine as its host and among its nodes, or that of another sender."""
    own = make_run(tmp_path / "reports", 0, started="2026-01-01T00:00:00Z")
    claims = json.loads((own / "result.json").read_text())
    fleet = {"engine": "ssh", "nodes": [{"name": "host", "state": "slow"}]}
    claiming(run, environment=claims["environment"], runbook=claims["runbook"], fleet=fleet, decision="NO_GO")
    tokens = Tokens(tmp_path / "tokens.json")
    asking = client(tmp_path / "reports", tokens, authorization=f"Bearer {tokens.add('ci', 'run')}")
    assert hand_in(asking, run).json()["stored"]
    foreign = asking.get(f"/api/v1/runs/{run.name}").json()
    assert (foreign["host"], foreign["nodes"][0]["name"], foreign["variant"]) == ("ci/host", "ci/host", "results of ci")
    (local,) = asking.get("/api/v1/runs?host=host").json()["runs"]
    assert (local["folder"], local["variant"]) == (own.name, "")
    for path in ("/badge/smoke-cpu.svg?host=host", "/fleet"):
        assert ">GO<" in asking.get(path).text
    entries = read_history(tmp_path / "reports")
    assert (len(group_entries(entries)), node_before(entries, "host")) == (2, "")
    (tmp_path / "reports" / run.name / ".pushed").write_text("[]")
    assert [one.host for one in read_history(tmp_path / "reports", rebuild=True)[1:]] == ["unknown/host"]


def test_an_upload_that_nobody_continues_is_removed(tmp_path: Path, run: Path) -> None:
    asking = client(tmp_path / "reports")
    begun = asking.post("/api/v1/push", json=manifest_json(run)).json()
    folder = tmp_path / "reports" / ".push" / begun["upload"]
    os.utime(folder, (0, 0))
    assert asking.post("/api/v1/push", json={**manifest_json(run), "run": f"{run.name}-2"}).status_code == 200
    assert not folder.exists()
    assert put(asking, begun, b"x").status_code == 404


# Who may, and what a run that was handed in cannot do.


def test_a_push_needs_its_role_and_comes_from_no_other_site(tmp_path: Path, run: Path) -> None:
    tokens = Tokens(tmp_path / "config" / "tokens.json")
    held = {role: tokens.add(role, role) for role in ("read", "push", "run")}  # type: ignore[arg-type]
    asking, found = client(tmp_path / "reports", tokens), manifest_json(run)

    def status(role: str, **headers: str) -> int:
        given = {"authorization": f"Bearer {held[role]}"} if role else {}
        return asking.post("/api/v1/push", json=found, headers={**given, **headers}).status_code

    assert [status(role) for role in ("", "read", "push", "run")] == [401, 403, 200, 200]
    assert status("push", origin="http://evil.test") == 403
    assert status("push", **{"sec-fetch-site": "cross-site"}) == 403
    for path in ("/api/v1/runs", "/api/v1/pushes", "/"):
        assert asking.get(path, headers={"authorization": f"Bearer {held['push']}"}).status_code == 403
    assert client(tmp_path / "reports").post("/api/v1/push", json=found, headers={"origin": "null"}).status_code == 403


def test_a_run_that_was_handed_in_stops_no_process(tmp_path: Path) -> None:
    """Not even the server, which reads its journal, and which a forged folder may name as its runner."""
    folder, journal = make_running(tmp_path / "reports")
    with journal:
        assert works_on(this_runner(), folder)
    with folder.journal.open("rb"):
        assert not works_on(this_runner(), folder)
        assert read(folder.journal)


def test_a_run_that_was_handed_in_decides_nothing_here(tmp_path: Path, run: Path) -> None:
    """A forged GO must lower no bound, and many runs must push none out of those that are kept."""
    reports = tmp_path / "reports"
    assert hand_in(client(reports), run).json()["stored"]
    pushed = RunFolder.open(reports / run.name)
    later = pushed.header.model_copy(update={"started": "2099-01-01T00:00:00Z"})
    local = RunFolder(reports / "20990101T000000Z-line-host-0000", later)
    entry = read_entry(pushed.root)
    assert entry is not None
    assert (last_go(local, pushed.load_environment()), is_run(reports, entry)) == (None, False)
    (pushed.root / ".pushed").unlink()
    found = last_go(local, pushed.load_environment())
    assert (found and found.root, is_run(reports, entry)) == (pushed.root, True)


def test_a_report_that_was_handed_in_runs_no_script(tmp_path: Path, run: Path) -> None:
    (run / "report.html").write_text("<body><script>alert(1)</script>")
    asking = client(tmp_path / "reports")
    assert hand_in(asking, run).json()["stored"]
    policy = asking.get(f"/runs/{run.name}/report.html").headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'sha256-" in policy
    assert "script-src 'unsafe" not in policy
