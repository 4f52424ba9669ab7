"""The audit log: who did what, and what keeps it whole."""

from __future__ import annotations

import json
import multiprocessing
from pathlib import Path
from typing import Any

import pytest

from tests.validator.service.serving import client, form_key, make_running
from tests.validator.service.test_access import bearer
from validator.service.access import AuditLog
from validator.service.tokens import Tokens


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def write(log: AuditLog, action: str, *, who: str = "me", outcome: str = "done") -> None:
    log.write(who=who, address="127.0.0.1", action=action, outcome=outcome)


def test_each_change_is_a_line_and_no_token_is_in_it(tmp_path: Path) -> None:
    tokens = Tokens(tmp_path / "config" / "tokens.json")
    run, read = tokens.add("me", "run"), tokens.add("grafana", "read")
    folder, journal = make_running(tmp_path / "reports")
    asking = client(tmp_path / "reports", tokens)
    asking.get("/api/v1/runs", headers=bearer("vt_wrong"))
    asking.post("/login", data={"token": tokens.add("ci", "push")})
    asking.post("/login", data={"token": run})
    key = form_key(asking.get("/").text)
    asking.post(f"/stop/{folder.root.name}", data={"key": "0" * 64, "how": "stop"})
    journal.close()  # so nobody works on it
    asking.post(f"/stop/{folder.root.name}", data={"key": key, "how": "halt"})
    asking.post(f"/stop/{run}", headers=bearer(read))
    asking.post("/logout", data={"key": key})
    path = tmp_path / "state" / "index.audit.jsonl"
    said = [(one["who"], one["action"], one["object"], one["outcome"].partition(":")[0]) for one in lines(path)]
    assert said == [
        ("", "token", "", "wrong"),
        ("ci", "log in", "", "refused"),
        ("me", "log in", "", "done"),
        ("me", "POST", f"/stop/{folder.root.name}", "refused"),
        ("me", "POST", f"/stop/{folder.root.name}", "failed"),
        ("grafana", "POST", "/stop/[redacted]", "refused"),
        ("me", "log out", "", "done"),
    ]
    assert {one["address"] for one in lines(path)} == {"testclient"}
    assert "vt_" not in path.read_text(encoding="utf-8")
    assert path.stat().st_mode & 0o777 == 0o600


def _many(path: Path, name: str) -> None:
    for number in range(200):
        write(AuditLog(path), str(number), who=name)


def test_two_servers_share_one_log(tmp_path: Path) -> None:
    path = tmp_path / "x.audit.jsonl"
    fork = multiprocessing.get_context("fork")
    servers = [fork.Process(target=_many, args=(path, name)) for name in ("a", "b")]
    for server in servers:
        server.start()
    for server in servers:
        server.join()
    kept = lines(path)
    for name in ("a", "b"):
        numbers = sorted(int(one["action"]) for one in kept if one["who"] == name)
        assert numbers == list(range(200)), "none is lost, or cut"


def test_refusals_do_not_drive_out_the_rest(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "x.audit.jsonl")
    for _ in range(500):
        write(log, "token", who="", outcome="wrong")
    write(log, "stop")
    assert len(lines(log.path)) < 2 * 60 + 2
    assert lines(log.path)[-1]["action"] == "stop"


def test_what_cannot_be_written_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    for path in (tmp_path / "none" / "x.jsonl", tmp_path / "link", Path("/dev/full")):
        write(AuditLog(path), "stop\x1b[2J\n")
        said = capsys.readouterr().err
        assert "the audit log cannot be written" in said
        assert '"action": "stop' in said
        assert "\x1b" not in said
    assert not (tmp_path / "elsewhere").exists()
