"""A service as a user starts it, with a validation that really runs."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlencode, urlsplit

import pytest

from tests.processes import python, start_validator
from tests.validator.service.serving import form_key

RUNBOOK = """
schema: 1
name: waits
phases:
  - {id: long, kind: command, run: sleep 60}
"""
SLOW = """
import time
from pathlib import Path
from validator.cli import main
from validator.service import serve
from validator.service.index import RunIndex
def choices(index):
    with index._asked():
        Path("reading").touch()
        time.sleep(60)
serve._END_S, RunIndex.choices = 1, choices
main()
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for a user's settings and runs."""
    for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME", "XDG_RUNTIME_DIR"):
        # Not where commands start: `-m validator` would find a folder of that name before an editable install.
        monkeypatch.setenv(name, str(tmp_path / "own"))
    (tmp_path / "reports").mkdir()
    (tmp_path / "waits.yaml").write_text(RUNBOOK, encoding="utf-8")
    return tmp_path


@pytest.fixture
def address(home: Path) -> Iterator[str]:
    """Where a server listens that ends well by SIGTERM, also with a viewer and while a page takes very long."""
    command = [sys.executable, "-c", SLOW, "serve", "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, cwd=home, text=True, stderr=subprocess.PIPE) as server:
        try:
            found = address_of(server)
            yield found
            with (
                socket.create_connection(("127.0.0.1", urlsplit(found).port), timeout=10) as slow,
                urllib.request.urlopen(found + "events", timeout=10) as events,
            ):
                slow.sendall(b"GET /past HTTP/1.1\r\nHost: localhost\r\n\r\n")
                until((home / "reading").exists, "the page is not being made")
                assert events.readline().startswith(b"retry")
                server.send_signal(signal.SIGTERM)
                assert server.wait(timeout=20) == 0
        finally:
            server.kill()


def until(found: Callable[[], object], what: str) -> None:
    end = time.monotonic() + 30
    while not found():
        assert time.monotonic() < end, what
        time.sleep(0.1)


def test_a_running_validation_is_shown_and_stopped(home: Path, address: str) -> None:
    def running() -> list[dict[str, object]]:
        return asked(address, "running")

    opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
    with start_validator("run", "waits.yaml", cwd=home, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as runner:
        try:
            until(lambda: any(one["run"] for one in running()), "no run is open")
            (one,) = running()
            assert one["working"]
            assert [phase["status"] for phase in one["phases"]] == ["RUNNING"]  # type: ignore[attr-defined]
            stop = f"{address}stop/{one['folder']}?how=halt"
            with opener.open(stop, timeout=10) as page:
                key = form_key(page.read().decode())
            with opener.open(stop, f"how=halt&key={key}".encode(), timeout=10) as page:
                assert page.url == f"{address}runs/{one['folder']}/"
            assert runner.wait(timeout=30) == 130
        finally:
            runner.kill()
    until(lambda: not running(), "it is still shown as running")
    result = json.loads((home / "reports" / str(one["folder"]) / "result.json").read_text(encoding="utf-8"))
    assert (result["decision"], result["exit_code"]) == ("INCONCLUSIVE", 130)


def test_a_queue_outlives_its_servers(home: Path) -> None:
    """Two servers share a queue; both are killed during a run: it is judged, and another server starts the next."""
    (home / "runbooks").mkdir()
    book = RUNBOOK.replace("sleep 60", "until test -e end; do sleep 0.1; done")
    (home / "runbooks" / "quick.yaml").write_text(book, encoding="utf-8")
    opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
    servers = [start_server(home), start_server(home)]
    try:
        one, other = map(address_of, servers)
        for number in (1, 2):
            start = f"{one}start/quick"
            with opener.open(start, timeout=10) as page:
                form = {"key": form_key(page.read().decode()), "phases.long.retries": str(number)}
            with opener.open(start, urlencode(form).encode(), timeout=10) as page:
                form |= {
                    "do": "start",
                    **dict(re.findall(r'name="(sha256|entry)" value="(\w+)"', page.read().decode())),
                }
            with opener.open(start, urlencode(form).encode(), timeout=10) as page:
                assert page.url == f"{one}queue"
        until(lambda: asked(other, "running"), "nothing was started")
        for server in servers:
            kill(server)
        servers.append(start_server(home))
        address = address_of(servers[-1])
        (running,) = asked(address, "running")
        first, second = asked(address, "queue")
        assert (first["folder"], first["state"], second["state"]) == (running["folder"], "running", "waiting")
        (home / "end").touch()
        until(lambda: asked(address, "queue")[1]["state"] == "ended", "the next was not started, or does not end")
        first, second = asked(address, "queue")
        assert [one["note"] for one in (first, second)] == ["INCONCLUSIVE"] * 2
        with urllib.request.urlopen(f"{address}api/v1/runs/{first['folder']}/result", timeout=10) as answer:
            assert [phase["status"] for phase in json.load(answer)["phases"]] == ["PASS"]
        assert len(list((home / "reports").glob("2*"))) == 2, "each was started once"
    finally:
        (home / "end").touch()
        for server in servers:
            kill(server)


def start_server(home: Path) -> subprocess.Popen[str]:
    """A server that is being started."""
    return start_validator("serve", "--listen", "127.0.0.1:0", cwd=home, stderr=subprocess.PIPE)


def address_of(server: subprocess.Popen[str]) -> str:
    """Where it listens."""
    assert server.stderr is not None
    found = re.search(r"http://[\d.:]+/", server.stderr.readline())
    assert found
    return found[0]


def kill(server: subprocess.Popen[str]) -> None:
    """End a server at once."""
    with server:
        server.kill()


def asked(address: str, what: str) -> list[dict[str, object]]:
    """A list of the API."""
    with urllib.request.urlopen(f"{address}api/v1/{what}", timeout=10) as answer:
        return list(json.load(answer)[what])


def test_what_cannot_be_served_is_a_sentence(home: Path) -> None:
    missing = """
import sys
sys.modules["uvicorn"] = None
sys.argv = ["validator", "serve"]
from validator.cli import main
main()
"""
    for code, arguments, said in (
        (4, ("-c", missing), "pip install 'training-validator[serve]'"),
        (2, ("-m", "validator", "serve", "--listen", "0.0.0.0:0"), "validator token add NAME --role run"),
        (2, ("-m", "validator", "serve", "--reports", "none", "--listen", "127.0.0.1:0"), "none is no folder"),
        (2, ("-m", "validator", "serve", "--listen", "127.0.0.1:0", "--webhook", "https://x.test/"), "needs a secret"),
        (2, ("-m", "validator", "serve", "--runbooks", "none", "--listen", "127.0.0.1:0"), "--runbooks none is no"),
    ):
        done = python(*arguments, cwd=home)
        assert (done.returncode, said in done.stderr) == (code, True), done.stderr
        assert "Traceback" not in done.stderr


def test_tokens_are_made_listed_and_revoked(home: Path) -> None:
    made = python("-m", "validator", "token", "add", "ci", "--role", "push", cwd=home)
    assert re.fullmatch(r"vt_[\w-]{43}\n", made.stdout)
    listed = python("-m", "validator", "token", "list", "--json", cwd=home)
    assert [(one["name"], one["role"]) for one in json.loads(listed.stdout)] == [("ci", "push")]
    assert python("-m", "validator", "token", "add", "x", "--role", "all", cwd=home).returncode == 2
    assert python("-m", "validator", "token", "revoke", "ci", cwd=home).returncode == 0
    assert python("-m", "validator", "token", "revoke", "ci", cwd=home).returncode == 2
