"""Who may do what: tokens, sessions, forms, hosts and sizes."""

from __future__ import annotations

import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from tests.validator.history.folders import make_run
from tests.validator.service.serving import client, form_key, make_running
from validator.errors import Unable, UserError
from validator.service import access, live, serve
from validator.service.index import RunIndex
from validator.service.serve import make_app
from validator.service.tokens import Tokens, digest_of


@pytest.fixture
def tokens(tmp_path: Path) -> Tokens:
    return Tokens(tmp_path / "config" / "tokens.json")


def bearer(text: str) -> dict[str, str]:
    return {"authorization": f"Bearer {text}"}


def test_a_token_is_shown_once_and_stored_hashed(tokens: Tokens) -> None:
    text = tokens.add("grafana", "read")
    stored = tokens.path.read_text(encoding="utf-8")
    assert text not in stored
    assert "grafana" in stored
    assert tokens.path.stat().st_mode & 0o077 == 0
    found = tokens.find(digest_of(text))
    assert found is not None
    assert (found.allows("read"), found.allows("push"), found.allows("run")) == (True, False, False)
    with pytest.raises(UserError, match="revoke it first"):
        tokens.add("grafana", "run")
    with pytest.raises(UserError, match="no name of a token"):
        tokens.add("a b", "run")
    tokens.revoke("grafana")
    assert tokens.find(digest_of(text)) is None
    with pytest.raises(UserError, match="is no token"):
        tokens.revoke("grafana")


def test_tokens_that_are_changed_at_once_are_all_as_asked(tokens: Tokens) -> None:
    """One who adds must not write back what another has revoked meanwhile."""
    for number in range(6):
        tokens.add(f"old{number}", "run")
    changes = [partial(tokens.revoke, f"old{number}") for number in range(6)]
    changes += [partial(tokens.add, f"new{number}", "read") for number in range(6)]
    with ThreadPoolExecutor(12) as threads:
        list(threads.map(lambda change: change(), changes))
    assert sorted(one.name for one in tokens.all()) == [f"new{number}" for number in range(6)]


def test_a_file_of_tokens_that_others_can_read_is_refused(tokens: Tokens) -> None:
    tokens.add("one", "run")
    tokens.path.chmod(0o644)
    with pytest.raises(UserError, match="chmod 600"):
        tokens.all()
    tokens.path.chmod(0o600)
    tokens.path.write_text("[]", encoding="utf-8")
    with pytest.raises(UserError, match="is not what"):
        tokens.all()


def test_an_address_that_others_reach_needs_tokens(tokens: Tokens, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tokens.path.parent / "none"))
    for host in ("0.0.0.0", "::", "192.0.2.7", "gpu7.example.com"):
        with pytest.raises(UserError, match="validator token add"):
            serve.tokens_for(host, None)
    with pytest.raises(UserError, match="has no token"):
        serve.tokens_for("127.0.0.1", tokens.path)
    tokens.add("me", "run")
    assert serve.tokens_for("0.0.0.0", tokens.path) == tokens
    assert serve.tokens_for("127.0.0.1", None) is None
    assert serve.tokens_for("localhost", None) is None


def test_an_address_that_is_none_is_named() -> None:
    for text in ("8700", "127.0.0.1", "127.0.0.1:x", ":8700", "127.0.0.1:70000"):
        with pytest.raises(UserError, match="write an address and a port"):
            serve.parse_listen(text)
    assert serve.parse_listen("[::1]:8700") == ("::1", 8700)


def test_roles_decide_what_is_answered(tmp_path: Path, tokens: Tokens) -> None:
    run = make_run(tmp_path / "reports", 0).name
    held = {role: tokens.add(role, role) for role in ("read", "push", "run")}  # type: ignore[arg-type]
    asking = client(tmp_path / "reports", tokens)
    for path in ("/api/v1/runs", "/metrics", "/badge/x.svg", "/events", f"/api/v1/runs/{run}/result"):
        assert asking.get(path).status_code == 401, path
        assert asking.get(path, headers=bearer("vt_wrong" + path)).status_code == 401, path
    for path in ("/", "/past", f"/runs/{run}/", f"/runs/{run}/result.json"):
        refused = asking.get(path)
        assert (refused.status_code, refused.headers["location"]) == (303, f"/login?next={path}")
    assert asking.get("/api/v1/runs", headers=bearer(held["read"])).status_code == 200
    assert asking.get("/api/v1/runs", headers=bearer(held["push"])).status_code == 403
    for path in (f"/stop/{run}", "/start/smoke_cpu", "/schedules"):  # the last one starts processes
        assert asking.get(path, headers=bearer(held["read"])).status_code == 403, path
    for role in ("read", "push"):
        for path in (f"/stop/{run}", "/start/smoke_cpu", "/queue/x", "/schedules/x", "/none"):
            assert asking.post(path, headers=bearer(held[role])).status_code == 403, path
    assert asking.get(f"/stop/{run}", headers=bearer(held["run"])).status_code == 409, "it does not run"
    tokens.revoke("read")
    assert asking.get("/api/v1/runs", headers=bearer(held["read"])).status_code == 401


def test_a_login_gives_a_cookie_that_ends_with_its_token(tmp_path: Path, tokens: Tokens) -> None:
    text = tokens.add("me", "read")
    asking = client(tmp_path / "reports", tokens)
    assert asking.post("/login", data={"token": "vt_wrong"}).status_code == 403
    assert asking.post("/login", data={"token": text}, headers={"origin": "http://evil.test"}).status_code == 403
    proxied = asking.post("https://testserver/login", data={"token": text})
    assert "Secure" in proxied.headers["set-cookie"], "of a page that came encrypted"
    asking.cookies.clear()
    done = asking.post("/login", data={"token": text, "next": "//evil.test/"})
    assert (done.status_code, done.headers["location"]) == (303, "/")
    cookie = done.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert text.lower() not in cookie
    now = asking.get("/")
    assert now.status_code == 200
    assert asking.post("/logout", data={"key": "0" * 64}).status_code == 403
    assert asking.post("/logout", data={"key": form_key(now.text)}).status_code == 303
    assert asking.get("/").status_code == 303
    asking.post("/login", data={"token": text})
    assert asking.get("/").status_code == 200
    tokens.revoke("me")
    assert asking.get("/").status_code == 303


def test_wrong_tokens_are_counted(tmp_path: Path, tokens: Tokens) -> None:
    text = tokens.add("me", "read")
    asking = client(tmp_path / "reports", tokens)
    codes = [asking.get("/api/v1/runs", headers=bearer(f"vt_{number}")).status_code for number in range(12)]
    assert codes == [401] * 10 + [429] * 2
    assert asking.get("/api/v1/runs", headers=bearer(text)).status_code == 200, "a right one always passes"


def test_without_tokens_another_name_and_a_proxy_are_not_answered(tmp_path: Path) -> None:
    asking = client(tmp_path / "reports")
    for host in ("evil.test", "127.0.0.1.evil.test:8700", "192.0.2.1", "", "[::1", "a b"):
        assert asking.get("/", headers={"host": host}).status_code == 421, host
        assert asking.get("/static/service.js", headers={"host": host}).status_code == 421, host
    assert asking.get("/", headers={"host": "localhost:1"}).status_code == 200
    assert asking.get("/", headers={"x-forwarded-for": "192.0.2.1"}).status_code == 421


def test_an_odd_host_is_neither_repeated_nor_an_error(tmp_path: Path, tokens: Tokens) -> None:
    text = tokens.add("me", "run")
    asking = client(tmp_path / "reports", tokens)
    for host in ("[", "evil.test", "a b", "[::1"):
        for path in ("/", "/none", "/api/v1/runs", "/login", "/past/"):
            answer = asking.get(path, headers={"host": host, **bearer(text)})
            assert answer.status_code in (200, 404)
            assert "evil" not in answer.text + str(answer.headers)


def test_what_is_too_large_or_odd_is_refused(tmp_path: Path) -> None:
    asking = client(tmp_path / "reports")
    assert asking.get("/past?runbook=" + "x" * access.MAX_HEAD_BYTES).status_code == 431
    assert asking.get("/", headers={"x": "x" * access.MAX_HEAD_BYTES}).status_code == 431
    form = {"content-type": "application/x-www-form-urlencoded"}
    assert asking.post("/login", content=b"x" * (access.MAX_BODY_BYTES + 1), headers=form).status_code == 413
    chunks = (b"x" * 1000 for _ in range(100))  # of no declared length
    assert asking.post("/login", content=chunks, headers=form).status_code == 413
    assert asking.post("/login", json={"token": "x"}).status_code == 415
    assert asking.request("DELETE", "/past").status_code == 405
    assert asking.request("DELETE", "/login").headers["allow"] == "GET, HEAD, POST", "of both its routes"
    assert asking.get("/past/").status_code == 404, "no redirect to a name that the request chose"


def test_every_answer_has_the_headers_that_limit_a_page(tmp_path: Path) -> None:
    asking = client(tmp_path / "reports")
    for path in ("/", "/past", "/none", "/api/v1/runs", "/metrics", "/static/service.js"):
        headers = asking.get(path).headers
        assert "'unsafe-inline'" not in headers["content-security-policy"]
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
    assert "<script>" not in asking.get("/").text
    assert " style=" not in asking.get("/").text


def test_a_stop_is_asked_twice_and_comes_from_our_own_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, journal = make_running(tmp_path / "reports")
    asked: list[tuple[str, str]] = []

    def request_stop(of: object, how: str) -> None:
        asked.append((folder.header.run_id, how))

    monkeypatch.setattr(live, "request_stop", request_stop)
    monkeypatch.setattr(live, "_LOOK_S", 0.0)
    asking = client(tmp_path / "reports")
    address = f"/stop/{folder.root.name}"
    with journal:
        assert asking.post(address, data={"how": "stop"}).status_code == 403, "no session"
        key = form_key(asking.get(f"{address}?how=halt").text)
        good = {"how": "halt", "key": key}
        assert asking.post(address, data={"how": "halt"}).status_code == 403
        assert asking.post(address, data={**good, "key": "0" * 64}).status_code == 403
        assert asking.post(address, data=good, headers={"origin": "http://evil.test"}).status_code == 403
        assert asking.post(address, data=good, headers={"sec-fetch-site": "cross-site"}).status_code == 403
        assert asking.post(address, data={**good, "how": "kill"}).status_code == 400
        other = client(tmp_path / "reports")
        other.get(f"{address}?how=halt")
        assert other.post(address, data=good).status_code == 403, "the key of another session"
        assert asked == []
        done = asking.post(address, data=good, headers={"origin": "http://127.0.0.1:8700"})
        assert (done.status_code, done.headers["location"]) == (303, f"/runs/{folder.root.name}/")
        assert asked == [(folder.header.run_id, "halt")]
        assert "HALTING" in asking.get("/").text

        def refuse(of: object, how: str) -> None:
            raise Unable("it belongs to another user")

        monkeypatch.setattr(live, "request_stop", refuse)
        assert asking.post(address, data=good).status_code == 409
    assert "HALTING" not in asking.get("/").text, "its runner has ended"


def test_a_slow_client_is_left_and_a_proxy_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "_HEADERS_S", 0.3)
    (tmp_path / "reports").mkdir()
    app = make_app(RunIndex(tmp_path / "reports", tmp_path / "index.sqlite"), None)
    server = serve.make_server(app)
    with serve.bound("127.0.0.1", 0) as made:
        port = made.getsockname()[1]
        running = threading.Thread(target=server.run, kwargs={"sockets": [made]})
        running.start()
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=10) as slow:
                slow.sendall(b"GET / HTTP/1.1\r\nHost: ")
                assert slow.recv(1) == b"", "it is closed"
            with socket.create_connection(("127.0.0.1", port), timeout=10) as quick:
                quick.sendall(b"GET /static/service.js HTTP/1.1\r\nHost: localhost\r\n\r\n")
                assert quick.recv(12) == b"HTTP/1.1 200"
            with socket.create_connection(("127.0.0.1", port), timeout=10) as proxy:  # nginx, with its own settings
                proxy.sendall(b"GET / HTTP/1.0\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
                assert proxy.recv(12) == b"HTTP/1.1 421"
        finally:
            server.should_exit = True
            running.join(timeout=20)


@pytest.mark.parametrize(
    ("given", "inner"),
    [("/past?page=2", "/past?page=2"), ("//evil.test", "/"), ("/\\evil.test", "/"), ("https://evil.test", "/")],
)
def test_a_login_continues_within_the_service(given: str, inner: str) -> None:
    assert access.inner_path(given) == inner
