"""Decisions posted to the operator's addresses: signed, at least once each, and never to where a redirect leads."""

from __future__ import annotations

import hashlib
import hmac
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.validator.history.folders import make_run
from tests.webhooks import Post, listening
from validator.errors import UserError
from validator.runs.pushed import PUSHED
from validator.service import webhooks
from validator.service.index import RunIndex
from validator.service.webhooks import Webhook, read_secret
from validator.times import iso_now

SECRET = b"a secret of the operator"


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhooks, "_LOOK_S", 0.02)
    monkeypatch.setattr(webhooks, "_LONGEST_S", 0.1)
    monkeypatch.setattr("validator.service.index._FRESH_S", 0.0)


class Service:
    """The webhooks of a reports folder, started as often as a test wants."""

    def __init__(self, tmp_path: Path, *urls: str) -> None:
        self.reports = tmp_path / "reports"
        self.reports.mkdir(exist_ok=True)
        index = RunIndex(self.reports, tmp_path / "index.sqlite")
        self.hooks = [Webhook(url, SECRET, index, address="http://gpu7:8700") for url in urls]

    def __enter__(self) -> Service:
        for hook in self.hooks:
            hook.start()
        return self

    def __exit__(self, *_: object) -> None:
        for hook in self.hooks:
            hook.ended.set()

    @property
    def state(self) -> Path:
        """What the only address has."""
        (found,) = self.reports.parent.glob("index.webhook.*.json")
        return found

    def decide(self, number: int, **changes: Any) -> str:
        """A run that has just ended; the name of its folder."""
        made = make_run(self.reports.parent / "made", number, **{"finished": iso_now(), **changes})
        return made.rename(self.reports / made.name).name  # whole at once, as runners write it


def until(found: Callable[[], object]) -> None:
    end = time.monotonic() + 10
    while not found():
        assert time.monotonic() < end
        time.sleep(0.01)


def runs(posts: list[Post]) -> list[str]:
    return [str(post.json["run"]) for post in posts]


def test_a_decision_is_posted_once_signed_and_only_from_then_on(tmp_path: Path) -> None:
    with listening() as (host, posts):
        url = f"http://{host}/hook?key=1"
        with Service(tmp_path, url) as service:
            first = service.decide(0)
            until(lambda: posts)
            (post,) = posts
            assert post.path == "/hook?key=1"
            stamp = post.headers["X-Validator-Timestamp"]
            assert abs(int(stamp) - time.time()) < 30
            digest = hmac.new(SECRET, f"{stamp}.{post.text}".encode(), hashlib.sha256).hexdigest()
            assert post.headers["X-Validator-Signature"] == f"sha256={digest}"
            named = ("run", "decision", "machine", "link", "why", "pushed")
            assert [post.json[name] for name in named] == [
                first, "GO", "2 x NVIDIA H200, NVLink", f"http://gpu7:8700/runs/{first}/",
                "All 7 required criteria passed on the declared configuration.", False,
            ]  # fmt: skip
            second = service.decide(1, decision="NO_GO")
            until(lambda: second in service.state.read_text(encoding="utf-8"))
        third = service.decide(2)
        (service.reports / first / "result.json").touch()  # judged again
        with Service(tmp_path, url):
            until(lambda: third in service.state.read_text(encoding="utf-8"))
            time.sleep(0.1)
        assert runs(posts) == [first, second, third]
        assert "key" not in service.state.read_text(encoding="utf-8")
        with Service(tmp_path, url, f"http://{host}/new") as service:  # what it missed is not sent to a new one
            fourth = service.decide(3)
            until(lambda: len(posts) == 5)
        assert runs(posts)[3:] == [fourth, fourth]


def test_what_is_refused_or_not_answered_is_sent_again_and_others_do_not_wait(tmp_path: Path) -> None:
    codes = iter([503, 302, None, 429, 200])
    with listening(lambda path: next(codes) if path == "/bad" else 200) as (host, posts):
        with Service(tmp_path, f"http://{host}/bad", f"http://{host}/good") as service:
            service.decide(0)
            until(lambda: [post.path for post in posts].count("/bad") == 5)
        assert [post.path for post in posts].count("/good") == 1
        assert len({post.headers["X-Validator-Delivery"] for post in posts}) == 1


def test_a_redirect_is_not_followed_and_what_is_refused_holds_no_other_decision_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    refused: list[str] = []

    def answer(path: str) -> int:
        return 307 if not posts or posts[-1].json["run"] == refused[0] else 200

    with listening(answer) as (host, posts):
        with Service(tmp_path, f"http://{host}/hook/token") as service:
            refused.append(service.decide(0))
            until(lambda: len(posts) >= 2)
            second = service.decide(1)
            until(lambda: runs(posts).count(second) == 1)
            until(lambda: runs(posts).count(refused[0]) >= 5)
        assert {post.path for post in posts} == {"/hook/token"}
        assert runs(posts).count(second) == 1
    said = capsys.readouterr().err
    assert "HTTP 307" in said
    assert "token" not in said


def test_a_kill_before_it_is_noted_sends_again(tmp_path: Path) -> None:
    with listening() as (host, posts):
        url = f"http://{host}/"
        with Service(tmp_path, url) as service:
            before = service.state.read_text(encoding="utf-8")
            name = service.decide(0)
            until(lambda: name in service.state.read_text(encoding="utf-8"))
        service.state.write_text(before, encoding="utf-8")
        for count in (2, 2):
            with Service(tmp_path, url):
                until(lambda count=count: len(posts) == count)  # type: ignore[misc]
                time.sleep(0.1)
        assert runs(posts) == [name, name]
        service.state.write_text("[", encoding="utf-8")
        with pytest.raises(UserError, match=service.state.name), Service(tmp_path, url):
            pass


def test_what_is_remembered_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhooks, "_LATEST", 2)
    with listening() as (host, posts):
        with Service(tmp_path, f"http://{host}/") as service:
            names = []
            for number in range(6):
                names.append(service.decide(number))
                until(lambda: runs(posts) == names)
            until(lambda: [*json.loads(service.state.read_text(encoding="utf-8"))] == names[-4:])
        with Service(tmp_path, f"http://{host}/"):
            time.sleep(0.2)
    assert runs(posts) == names


def test_a_run_of_another_machine_is_said_to_be_one(tmp_path: Path) -> None:
    with listening() as (host, posts):
        with Service(tmp_path, f"http://{host}/") as service:
            made = make_run(tmp_path / "made", 0, finished=iso_now())
            (made / PUSHED).write_text("{}", encoding="utf-8")
            made.rename(service.reports / made.name)
            until(lambda: posts)
        assert posts[0].json["pushed"] is True


def test_an_old_decision_and_one_in_progress_are_not_sent(tmp_path: Path) -> None:
    with listening() as (host, posts):
        with Service(tmp_path, f"http://{host}/") as service:
            service.decide(0, decision="IN_PROGRESS")
            service.decide(3, decision="INCONCLUSIVE", exit_code=130)
            service.decide(1, finished="2026-01-01T00:00:00+00:00")
            last = service.decide(2)
            until(lambda: posts)
            time.sleep(0.1)
        assert runs(posts) == [last]


def test_addresses_and_secrets_that_cannot_be_used(tmp_path: Path) -> None:
    for url in ("file:///etc/passwd", "gopher://x/", "hook", "http://", "http://x/\ny", "http://a:b@x/", "http://x:y/"):
        with pytest.raises(UserError, match="https://"):
            Service(tmp_path, url)
    path = tmp_path / "secret"
    with pytest.raises(UserError, match="cannot be read"):
        read_secret(path)
    path.write_bytes(SECRET + b"\n")
    with pytest.raises(UserError, match="chmod 600"):
        read_secret(path)
    path.chmod(0o600)
    assert read_secret(path) == SECRET
    path.write_bytes(b"short\n")
    with pytest.raises(UserError, match="at least 16"):
        read_secret(path)
    with pytest.raises(UserError, match="needs a secret"):
        read_secret(None)


def test_the_state_holds_no_address(tmp_path: Path) -> None:
    with Service(tmp_path, "http://127.0.0.1:9/very-secret") as service:
        pass
    assert json.loads(service.state.read_text(encoding="utf-8")) == {}
    assert "very" not in service.state.name
