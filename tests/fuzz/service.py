"""The service asked without a network: every page over a hostile folder, and requests of all kinds to its API."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote, unquote, urlencode

from pydantic import TypeAdapter
from starlette.applications import Starlette
from starlette.routing import Route

from validator.files import Tree
from validator.service import api
from validator.service.index import RunIndex
from validator.service.serve import make_app

__all__ = ["ApiCase", "ask", "every_page", "play_requests"]

T = TypeVar("T")

MAX_ANSWER = 2**20
MAX_FILES = 20
_LIMIT_S = 20.0


class Answer(NamedTuple):
    """What was answered, as much of it as was read."""

    status: int
    kind: str
    body: bytes


async def ask(
    app: Starlette, method: str, target: str, *, headers: Sequence[tuple[str, str]] = (), body: bytes = b""
) -> Answer:
    """Send one request; of an answer that is long, or never ends, the first MiB is read."""
    path, _, query = target.partition("?")
    sent = [("host", "127.0.0.1:8700"), ("content-length", str(len(body))), *headers]
    scope: dict[str, Any] = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http",
        "path": unquote(path), "raw_path": path.encode(), "query_string": query.encode(), "root_path": "",
        "headers": [(name.encode("latin-1"), value.encode("latin-1")) for name, value in sent],
        "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 8700),
    }  # fmt: skip
    bodies, enough = iter([body]), asyncio.Event()
    status, kind, found = 0, "", bytearray()

    async def receive() -> dict[str, Any]:
        for data in bodies:
            return {"type": "http.request", "body": data, "more_body": False}
        await enough.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        nonlocal status, kind
        if message["type"] == "http.response.start":
            status, kind = message["status"], dict(message["headers"]).get(b"content-type", b"").decode("latin-1")
        elif not enough.is_set():
            found.extend(message.get("body", b"")[: MAX_ANSWER - len(found)])
            if len(found) == MAX_ANSWER or not message.get("more_body") or kind.startswith("text/event-stream"):
                enough.set()

    await asyncio.wait_for(app(scope, receive, send), _LIMIT_S)
    return Answer(status, kind, bytes(found))


# every page


def _files(reports: Path, run: str) -> list[str]:
    try:
        with Tree(reports / run) as tree:
            return [quote(entry.path, errors="surrogateescape") for entry in islice(tree.walk(), MAX_FILES)]
    except OSError:
        return []


def _addresses(app: Starlette, reports: Path) -> Iterator[str]:
    """Each address that is read, with each folder there and the files in it."""
    names = [path.name.encode("utf-8", "surrogateescape") for path in sorted(reports.iterdir())]
    runs = [quote(name) for name in names]
    for route in app.routes:
        assert isinstance(route, Route)
        if "GET" not in (route.methods or ()):
            continue
        if "{run}" not in route.path:
            yield route.path.replace("{runbook}", "x").replace("{name}", "service.js")
            continue
        for run in runs:
            filled = route.path.replace("{run}", run)
            if "{path:path}" in filled:
                yield from (filled.replace("{path:path}", file) for file in _files(reports, unquote(run)))
            else:
                yield filled
    for side in runs:
        yield f"/compare?a={runs[0]}&b={side}"
        yield f"/api/v1/compare?a={runs[0]}&b={side}"


def _carried_out(work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine. In a thread of its own: the browser of other tests leaves a loop in the main one."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()


def every_page(reports: Path, out: Path) -> None:
    """Ask for every page and file, and keep the answers in `out`. Raises AssertionError for an answer of 5xx."""
    with closing(RunIndex(reports, out / "index.sqlite")) as index:
        app = make_app(index, None)

        async def asked() -> None:
            for number, address in enumerate(_addresses(app, reports)):
                answer = await ask(app, "GET", address)
                assert 200 <= answer.status < 500, f"{answer.status} of {address}"
                page = answer.kind.startswith("text/html") and not address.endswith("report.html")
                (out / f"{'report' if page else 'answer'}{number}.html").write_bytes(answer.body)

        _carried_out(asked())


# requests of all kinds

_TEXTS = (
    *(
        "",
        ".",
        "..",
        "../../etc/passwd",
        "\x00",
        "a\r\nx: y",
        "'; DROP TABLE runs; --",
        "{{7*7}}",
        "<script>",
        "%",
        "GO",
    ),
    *("x" * 300, "x" * 5000, "\u202e", "\U0001f600", "[", "null", "smoke-cpu", "%2e%2e%2f"),
)
_NUMBERS = ("0", "1", "-1", "500", "501", "10000001", "9" * 40, "1e3", "", "0x1", "²", "1 ", "NaN", "true")
_BODIES = (b"", b"{", b"null", b"[]", b"{}", b"[" * 20_000, b"\xff\xfe", b'{"a": NaN}', b"x" * 20_000, b"a=1&a=2")
_KINDS = ("application/json", "application/octet-stream", "application/x-www-form-urlencoded", "text/plain", "")


class ApiCase(NamedTuple):
    """A request, its status, and what is wrong with the answer; None when all is well."""

    request: str
    status: int
    problem: str | None


def play_requests(app: Starlette, draw: random.Random, count: int, *, runs: Sequence[str]) -> list[ApiCase]:
    """Send requests that the API's own description draws, valid or not, and compare each answer with it."""
    described = json.loads(api.description())
    operations = [
        (method, path, operation)
        for path, methods in described["paths"].items()
        for method, operation in methods.items()
    ]

    async def played() -> list[ApiCase]:
        return [await _play(app, draw, *draw.choice(operations), runs) for _ in range(count)]

    return _carried_out(played())


async def _play(
    app: Starlette, draw: random.Random, method: str, path: str, operation: dict[str, Any], runs: Sequence[str]
) -> ApiCase:
    query = []
    target = f"{api.BASE}{path}"
    for one in operation["parameters"]:
        numbers = one["schema"].get("type") == "integer"
        names = one["name"] in ("run", "a", "b") and draw.random() < 0.7
        value = draw.choice(_NUMBERS if numbers else runs if names else _TEXTS)
        if one["in"] == "path":
            target = target.replace(f"{{{one['name']}}}", quote(value, safe=""))
        elif one["required"] or draw.random() < 0.4:
            query.append((one["name"], value))
    target += f"?{urlencode(query)}" if query else ""
    method = draw.choice((method, method, method, method, "get", "post", "put", "delete", "patch", "x")).upper()
    body = b"" if method == "GET" else draw.choice(_BODIES)
    answer = await ask(app, method, target, headers=[("content-type", draw.choice(_KINDS))], body=body)
    known = described_answer(path, method)
    problem = None if known is None and answer.status in (400, 404, 405, 413, 414) else _wrong(answer, known)
    return ApiCase(f"{method} {target[:300]}", answer.status, problem)


def described_answer(path: str, method: str) -> Callable[[bytes], Any] | None:
    """What reads an answer of an endpoint as its model; None where the API has no such endpoint."""
    for one in api.ENDPOINTS:
        if (one.path, one.method.upper()) == (path, method):
            return TypeAdapter(one.answer).validate_json
    return None


def _wrong(answer: Answer, read: Callable[[bytes], Any] | None) -> str | None:
    if answer.status >= 500:
        return f"status {answer.status}"
    if not answer.kind.startswith("application/json"):
        return f"{answer.status} of the type {answer.kind}"
    try:
        if answer.status >= 400:
            (said,) = json.loads(answer.body).items()
            return None if said[0] == "error" and isinstance(said[1], str) else f"error is {said}"
        if answer.status < 300 and read is not None and len(answer.body) < MAX_ANSWER:
            read(answer.body)
    except ValueError as error:
        return f"{answer.status}: {error}"[:500]
    return None
