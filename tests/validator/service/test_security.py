"""What an attacker tried on the service, by requests and by folders: each test is one attempt and what holds it."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.validator.history.folders import make_run
from tests.validator.service.serving import client, form_key, make_running, spec
from validator.errors import Unable
from validator.history import read
from validator.model.machine import NODES_ALONE
from validator.service import files, index, live, serve
from validator.service.index import RunIndex
from validator.service.live import request_stop
from validator.service.serve import make_app


def changed(folder: Path, **fields: Any) -> None:
    """A folder whose result says something else."""
    found = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    (folder / "result.json").write_text(json.dumps(found | fields), encoding="utf-8")


@pytest.mark.parametrize("wrong", [{"rows": [[]]}, {"version": float("inf")}])
def test_a_result_that_cannot_be_read_hides_no_other(tmp_path: Path, wrong: dict[str, Any]) -> None:
    reports = tmp_path / "reports"
    first, forged, last = (make_run(reports, number) for number in range(3))
    phases = json.loads((forged / "result.json").read_text(encoding="utf-8"))["phases"]
    for run in (run for phase in phases for run in phase["runs"]):
        run["tables"] = [{"caption": NODES_ALONE, "rows": [], **wrong}]
        for stats in run["metrics"].values():
            stats |= wrong
    changed(forged, phases=phases)
    asking = client(reports)
    for path in ("/", "/past", "/fleet", "/metrics"):
        assert asking.get(path).status_code == 200, path
    named = [run["folder"] for run in asking.get("/api/v1/runs").json()["runs"]]
    assert {first.name, last.name} <= set(named)


def test_a_result_of_odd_parts_has_a_page_that_says_so(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "reports", 0)
    phases = json.loads((folder / "result.json").read_text(encoding="utf-8"))["phases"]
    for run in (run for phase in phases for run in phase["runs"]):
        run["outcome"] = {**(run["outcome"] or {}), "attempts": ["", {"bundle": 1}]}
    changed(folder, phases=phases)
    answer = client(tmp_path / "reports").get(f"/runs/{folder.name}/")
    assert (answer.status_code, "cannot be shown" in answer.text) == (200, True)


def test_only_run_folders_are_compared(tmp_path: Path) -> None:
    """Files of others are tried as logs: a long line of JSON took minutes of the whole server."""
    one, other = (make_run(tmp_path / "reports", number) for number in range(2))
    for folder in (one, other):
        (folder / "run.json").unlink()
    for path in ("/compare", "/api/v1/compare"):
        answer = client(tmp_path / "reports").get(f"{path}?a={one.name}&b={other.name}")
        assert (answer.status_code, "no run.json" in answer.text) == (409, True)


def test_a_result_that_is_too_large_is_read_by_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixty megabytes of empty lists took two gigabytes of memory, at each look at their page."""
    folder, long = make_run(tmp_path / "reports", 0), make_run(tmp_path / "reports", 1)
    monkeypatch.setattr(read, "MAX_RESULT", (folder / "result.json").stat().st_size + 1000)
    changed(folder, padding=[[]] * 1000)
    monkeypatch.setattr(index, "_MAX_ENTRY", 100_000)
    changed(long, why="x" * 100_000)
    asking = client(tmp_path / "reports")
    for one in (folder, long):
        for path in (f"/runs/{one.name}/", f"/runs/{one.name}/result.json", f"/api/v1/runs/{one.name}/result"):
            assert asking.get(path).status_code == 404, path


def test_a_folder_that_a_link_replaces_leads_nowhere(tmp_path: Path) -> None:
    """Between a look at the folders and a request for a file of one: others may write to the reports folder."""
    folder = make_run(tmp_path / "reports", 0)
    secret = tmp_path / "secret"
    secret.mkdir()
    for name in ("key.txt", "report.html", "result.json"):
        (secret / name).write_text("secret", encoding="utf-8")
    asking = client(tmp_path / "reports")
    assert asking.get(f"/runs/{folder.name}/").status_code == 200
    folder.rename(tmp_path / "reports" / ".away")
    folder.symlink_to(secret)
    for path in ("key.txt", "report.html", "result.json", ""):
        answer = asking.get(f"/runs/{folder.name}/{path}")
        assert "secret" not in answer.text, path
    assert asking.get(f"/api/v1/runs/{folder.name}/result").status_code == 404


def test_a_file_has_one_address(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "reports", 0)
    (folder / "runs").mkdir()
    for name in ("a.log", "runs/a.log"):
        (folder / name).write_text("", encoding="utf-8")
    asking = client(tmp_path / "reports")
    for path in ("runs//a.log", "./a.log", "runs/../a.log", "a.log/", "/a.log", "a.log/."):
        assert asking.get(f"/runs/{folder.name}/{path.replace('.', '%2e')}").status_code == 404, path
    assert asking.get(f"/runs/{folder.name}/runs/a.log").status_code == 200, "an empty file"


def test_names_of_files_that_are_no_text_are_left_out(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "reports", 0)
    for name in (b"\xff.log", "\u202egol.log".encode(), b"a\nb.log", "größe 1.log".encode()):
        with open(os.fsencode(folder) + b"/" + name, "w"):
            pass
    shown = client(tmp_path / "reports").get(f"/runs/{folder.name}/")
    assert shown.status_code == 200
    assert shown.text.count('.log">') == 1
    assert "größe 1.log" in shown.text


def test_many_files_do_not_hold_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_run(tmp_path / "reports", 0)
    for number in range(30):
        (folder / f"{number:02}.log").touch()
    monkeypatch.setattr(files, "_MAX_WALKED", 10)
    assert files.listed_logs(folder)[1] == 10
    assert client(tmp_path / "reports").get(f"/runs/{folder.name}/29.log").status_code == 200, "listed or not"


def test_a_question_for_the_head_reads_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_run(tmp_path / "reports", 0)
    with (folder / "model.pt").open("wb") as file:
        file.truncate(1 << 40)
    answer = client(tmp_path / "reports").head(f"/runs/{folder.name}/model.pt")
    assert (answer.status_code, answer.content) == (200, b"")


def test_a_report_leads_to_no_other_page_by_itself(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "reports", 0)
    text = '<meta HTTP-EQUIV="re&#102;resh" content="0;url=//evil.test"><body' + "<body" * 300_000
    (folder / "report.html").write_text(text, encoding="utf-8")
    shown = client(tmp_path / "reports").get(f"/runs/{folder.name}/report.html")
    assert "http-equiv" not in shown.text.lower()


def test_a_page_of_another_site_loads_nothing(tmp_path: Path) -> None:
    make_run(tmp_path / "reports", 0)
    asking = client(tmp_path / "reports")
    for site in ("cross-site", "same-site"):  # another port of this machine is the same site
        for path in ("/", "/events", "/metrics", "/badge/x.svg", "/api/v1/compare?a=x&b=y", "/static/service.js"):
            headers = {"sec-fetch-site": site, "sec-fetch-mode": "no-cors"}
            assert asking.get(path, headers=headers).status_code == 403, path
        assert asking.get("/", headers={"sec-fetch-site": site, "sec-fetch-mode": "navigate"}).status_code == 200


def test_no_link_of_a_page_leads_to_another_server(tmp_path: Path) -> None:
    shown = client(tmp_path / "reports").get("http://127.0.0.1:8700//evil.test/")
    assert shown.status_code == 404
    assert 'href="//' not in shown.text


def test_the_form_that_stops_names_the_folder_that_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`good?x` led to a form for `good`; and a name within a command that is shown must be one word."""
    folder, journal = make_running(tmp_path / "reports")
    name = f"{folder.root.name}?$(id)"
    folder.root.rename(folder.root.with_name(name))
    monkeypatch.setattr(live, "works_on", lambda runner, of: "/proc/self/fd/0")
    asking = client(tmp_path / "reports")
    with journal:
        quoted = name.replace("?", "%3F").replace("$", "%24").replace("(", "%28").replace(")", "%29")
        asking.get(f"/stop/{quoted}")
        shown = asking.get(f"/stop/{quoted}").text
        assert form_key(shown)
        assert f'action="/stop/{quoted}"' in shown
        assert "--resume &#39;" in shown


def test_a_process_that_only_reads_the_journal_gets_no_signal(tmp_path: Path) -> None:
    """As the service itself does, whose pid a folder may name."""
    folder, journal = make_running(tmp_path / "reports")
    journal.close()
    with folder.journal.open("rb"), pytest.raises(Unable, match="no process works on its journal"):
        request_stop(folder, "halt")


def test_what_another_user_runs_is_not_followed_over_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, journal = make_running(tmp_path / "reports")
    run = spec(folder)
    run = run.model_copy(update={"metrics": run.metrics.model_copy(update={"link_roots": (str(tmp_path),)})})
    (tmp_path / "private.csv").write_text("step,loss\n10,3.5\n", encoding="utf-8")
    (folder.root / run.out / "training.csv").symlink_to(tmp_path / "private.csv")
    with journal:
        journal.append("run_started", run=run.id, as_it_is={"spec": run})
        assert '"Loss","3.5"' in client(tmp_path / "reports").get("/api/v1/running").text, "our own"
        monkeypatch.setattr(os, "getuid", lambda: 12345)
        (one,) = client(tmp_path / "reports").get("/api/v1/running").json()["running"]
    assert "Loss" not in json.dumps(one)


def test_files_of_a_run_of_a_kind_that_is_not_known_here_wait_for_its_end(tmp_path: Path) -> None:
    folder, journal = make_running(tmp_path / "reports")
    make_run(tmp_path / "reports", 0).joinpath("result.json").rename(folder.root / "result.json")
    header = json.loads((folder.root / "run.json").read_text(encoding="utf-8"))
    header["runbook"]["phases"][0]["kind"] = "of_a_plugin"
    (folder.root / "run.json").write_text(json.dumps(header), encoding="utf-8")
    (folder.root / "runs").mkdir()
    (folder.root / "runs" / "a.log").write_text("token", encoding="utf-8")
    asking = client(tmp_path / "reports")
    with journal:
        assert asking.get(f"/runs/{folder.root.name}/runs/a.log").status_code == 409
        journal.append("finished", finished="", duration_s=1.0)
        assert asking.get(f"/runs/{folder.root.name}/runs/a.log").status_code == 200


def test_a_reports_folder_that_is_gone_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asking = client(tmp_path / "reports")
    (tmp_path / "reports").rmdir()
    for path in ("/", "/api/v1/runs"):
        answer = asking.get(path)
        assert answer.status_code == 503
        assert str(tmp_path) not in answer.text
    assert "No such file" in capsys.readouterr().err


# Connections, which the framework's test client has none of.


@contextmanager
def listening(tmp_path: Path) -> Iterator[int]:
    """A server's port."""
    (tmp_path / "reports").mkdir(exist_ok=True)
    server = serve.make_server(make_app(RunIndex(tmp_path / "reports", tmp_path / "index.sqlite"), None))
    with serve.bound("127.0.0.1", 0) as made:
        running = threading.Thread(target=server.run, kwargs={"sockets": [made]})
        running.start()
        try:
            yield made.getsockname()[1]
        finally:
            server.should_exit = True
            running.join(timeout=20)


def ended(connection: socket.socket) -> bool:
    """Whether the server ends a connection within the socket's timeout, once all that it sent is read."""
    try:
        while connection.recv(65536):
            pass
    except ConnectionResetError:
        pass
    except TimeoutError:
        return False
    return True


def test_a_request_of_two_lengths_ends_its_connection(tmp_path: Path) -> None:
    """A proxy may take one of them and the server the other: then the rest would be somebody else's request."""
    lengths = b"Host: localhost\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    with listening(tmp_path) as port, socket.create_connection(("127.0.0.1", port), timeout=3) as proxy:
        proxy.sendall(b"POST /login HTTP/1.1\r\n" + lengths + b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert proxy.recv(12) == b"HTTP/1.1 400"
        assert ended(proxy)


def test_one_machine_does_not_take_all_connections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "_MAX_OF_ONE", 3)
    monkeypatch.setattr(serve, "is_loopback", lambda host: False)
    with listening(tmp_path) as port:
        opened = [socket.create_connection(("127.0.0.1", port), timeout=10) for _ in range(4)]
        try:
            assert ended(opened[3])
            opened[0].sendall(b"GET /static/service.js HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert opened[0].recv(12) == b"HTTP/1.1 200"
        finally:
            for one in opened:
                one.close()


def test_who_takes_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "_TAKEN_S", 0.5)
    folder = make_run(tmp_path / "reports", 0)
    with (folder / "model.pt").open("wb") as file:
        file.truncate(1 << 40)
    with listening(tmp_path) as port, socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect(("127.0.0.1", port))
        slow.sendall(f"GET /runs/{folder.name}/model.pt HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        end = threading.Event()
        for _ in range(100):
            if not any(
                one.raddr and one.raddr.port == slow.getsockname()[1] for one in psutil.Process().net_connections()
            ):
                break
            end.wait(0.1)
        else:
            pytest.fail("the connection is still open")
