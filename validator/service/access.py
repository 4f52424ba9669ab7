"""Who may do what, and how much, and who did: the part of the service that sees each request before any page does.

Without tokens the service listens on loopback alone, and answers only to names of this machine, so that no page of
another site can reach it under a name of its own. With tokens a visitor has a role, by the header `Authorization` or by
the cookie of a login. The audit log has a line of JSON for each change. Servers may share it. Where it cannot be
written, its lines go to standard error: a full disk must not keep anybody from stopping a validation.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import re
import secrets
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast
from urllib.parse import parse_qsl, quote

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from validator.errors import UserError
from validator.files import Tree
from validator.service.tokens import Role, Token, Tokens, digest_of
from validator.text import one_line
from validator.times import iso_now

COOKIE = "validator_session"
MAX_BODY_BYTES = 64 << 10
"""Of a form: the settings of a long runbook."""

MAX_HEAD_BYTES = 16 << 10
"""Of an address and headers together."""

_BODY_S = 10.0
PUSH = "/api/v1/push"
"""Where machines hand in results: the one address that the role `push` may ask, and that takes large bodies."""

_RUNS_ALONE = ("/start/", "/stop/", "/schedules")
"""Pages for the role `run`: what starts and stops, and what asks the machine's scheduler."""

_PUSH_BYTES, _PUSH_S = 4 << 20, 60.0
_SESSION_S = 12 * 3600.0
_MAX_SESSIONS = 1000
_MAX_FAILURES, _FAILURES_S = 10, 60.0
"""Wrong tokens within so many seconds, after which more are answered by 429."""

_OWN = ("same-origin", "none")
"""What a browser says of requests that our own pages or the user made."""

_PROXIED = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip", "via")
_LOOPBACK = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:\d*)?", re.IGNORECASE)

_HEADERS = {
    "content-security-policy": "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; form-action 'self'; frame-ancestors 'none'; base-uri 'self'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


_MAX_REFUSED = 60
"""Lines a minute about what was refused: more would fill the disk, and hide all others."""

_TOKEN = re.compile(r"vt_[\w-]{20,}")


class AuditLog:
    """The log of a file, which only its owner can read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._refused = deque[float](maxlen=_MAX_REFUSED)

    def write(self, *, who: str, address: str, action: str, what: str = "", outcome: str = "done") -> None:
        """Add a line; texts are cut and hold no token.

        Args:
            who: the name of a token, `loopback` where none is needed, empty for a visitor without one.
            address: the visitor's.
            action: what was asked for, in a word or two.
            what: the run, runbook or path that it was asked for.
            outcome: `done`, or how it ended, beginning with `failed`, `refused` or `wrong`.
        """
        if outcome.startswith(("refused", "wrong")):
            if len(self._refused) == _MAX_REFUSED and time.monotonic() - self._refused[0] < 60:
                return
            self._refused.append(time.monotonic())
        texts = {"who": who, "address": address, "action": action, "object": what, "outcome": outcome}
        shown = {name: _TOKEN.sub("[redacted]", one_line(text, limit=300)) for name, text in texts.items()}
        line = json.dumps({"time": iso_now(), **shown})
        try:
            with Tree(self.path.parent) as tree:
                tree.append(self.path.name, f"{line}\n".encode(), mode=0o600)
        except OSError as error:
            sys.stderr.write(f"the audit log cannot be written: {error}: {line}\n")


@dataclass(frozen=True)
class Visitor:
    """Who asks. `token` is None for one who needs none, or has none; `session` is the value of the cookie, and `key`
    the server's for forms."""

    token: Token | None
    needs_token: bool
    session: str
    key: bytes

    def may(self, role: Role) -> bool:
        """Whether the visitor may do what needs `role`."""
        return self.token.allows(role) if self.token is not None else not self.needs_token

    @property
    def name(self) -> str:
        """For the log; empty for one who needs a token and has none."""
        return self.token.name if self.token is not None else "" if self.needs_token else "loopback"

    @property
    def form_key(self) -> str:
        """What a form of this session must carry, and a page of another site cannot know."""
        return hmac.new(self.key, self.session.encode(), hashlib.sha256).hexdigest()


@dataclass
class Access:
    """Sessions, failures and the key of forms; `tokens` is None where none are needed."""

    tokens: Tokens | None
    audit: AuditLog
    _key: bytes = field(default_factory=lambda: secrets.token_bytes(32))
    _sessions: dict[str, tuple[str, float]] = field(default_factory=dict)
    _wrong: deque[float] = field(default_factory=lambda: deque(maxlen=_MAX_FAILURES))

    def visitor(self, asked: HTTPConnection) -> Visitor:
        """Who a request is from.

        Raises:
            HTTPException: 429 after too many wrong tokens, 503 where the tokens cannot be read.
        """
        session, token = asked.cookies.get(COOKIE, "")[:100], None
        scheme, _, text = asked.headers.get("authorization", "").partition(" ")
        if self.tokens is not None and scheme.lower() == "bearer":
            session, token = "", self.checked(text.strip(), asked)
        elif self.tokens is not None:
            of, until = self._sessions.get(digest_of(session), ("", 0.0))
            token = self._holder(of) if time.monotonic() < until else None
        return Visitor(token, self.tokens is not None, session, self._key)

    def checked(self, text: str, asked: HTTPConnection) -> Token | None:
        """The token of a text, None for a wrong one; raises as `visitor` does."""
        found = self._holder(digest_of(text))  # a right one is never refused, however many are wrong
        if found is None:
            if len(self._wrong) == _MAX_FAILURES and time.monotonic() - self._wrong[0] < _FAILURES_S:
                raise HTTPException(429, "Too many wrong tokens: wait a minute.", {"retry-after": "60"})
            self._wrong.append(time.monotonic())
            audit(asked, "token", outcome="wrong")
        return found

    def _holder(self, sha256: str) -> Token | None:
        try:
            return None if self.tokens is None else self.tokens.find(sha256)
        except UserError as error:
            raise HTTPException(503, "The tokens cannot be read: `validator token list` there says why.") from error

    def log_in(self, text: str) -> str:
        """A new session for a token that was checked: the value of its cookie."""
        session = secrets.token_urlsafe(32)
        self._sessions[digest_of(session)] = digest_of(text), time.monotonic() + _SESSION_S
        if len(self._sessions) > _MAX_SESSIONS:
            del self._sessions[next(iter(self._sessions))]
        return session

    def log_out(self, session: str) -> None:
        """End a session."""
        self._sessions.pop(digest_of(session), None)


def audit(asked: HTTPConnection, action: str, what: str = "", outcome: str = "done", *, who: str = "") -> None:
    """Write to the audit log what a request did to `what`, as `AuditLog.write` says; an empty `who` is its visitor."""
    name = who or (asked.scope["visitor"].name if "visitor" in asked.scope else "")
    address = asked.client.host if asked.client else ""
    asked.scope["audit"].write(who=name, address=address, action=action, what=what, outcome=outcome)


def visitor_of(request: Request) -> Visitor:
    """Who a request is from, as the guard has found."""
    return cast(Visitor, request.scope["visitor"])


def with_cookie(request: Request, response: Response, session: str) -> Response:
    """A response that gives the visitor a session; an empty one ends it."""
    age, secure = int(_SESSION_S) if session else 0, request.scope["scheme"] == "https"
    response.set_cookie(COOKIE, session, max_age=age, httponly=True, secure=secure, samesite="strict")
    return response


def posted(path: str, action: Callable[[Request, Mapping[str, str]], Response], *, keyed: bool = True) -> Route:
    """The route of a form that a page of this service gave to its visitor; any other is answered by 403.

    That of a visitor without a session is not `keyed`. `action` gets the request and the fields; it may block.
    """

    async def endpoint(request: Request) -> Response:
        if request.headers.get("content-type", "").partition(";")[0].strip() != "application/x-www-form-urlencoded":
            raise HTTPException(415, "A form is application/x-www-form-urlencoded.")
        form = dict(parse_qsl((await request.body()).decode("utf-8", "replace"), keep_blank_values=True))
        visitor, key = visitor_of(request), form.get("key", "").encode()
        if keyed and not (visitor.session and hmac.compare_digest(key, visitor.form_key.encode())):
            raise HTTPException(403, "The form has expired: open the page again.")
        request.scope["form"] = form  # a page that refuses it shows what was typed
        return await run_in_threadpool(action, request, form)

    return Route(path, endpoint, methods=["POST"])


def inner_path(text: str) -> str:
    """An address within the service to continue at; `/` for what could lead elsewhere."""
    return text if re.fullmatch(r"/(?!/)[^\\]*", text) and text.isprintable() else "/"


def role_for(method: str, path: str) -> Role | None:
    """The role that a request needs, None where none is: what changes anything needs `run`, but for what is here."""
    if path.startswith(("/login", "/static/")):
        return None
    if f"{path}/".startswith(f"{PUSH}/"):
        return "push"
    reads = method in ("GET", "HEAD") or path == "/logout"
    return "read" if reads and not path.startswith(_RUNS_ALONE) else "run"


class Guard:
    """ASGI middleware: hosts, sites, sizes, headers, roles, and the visitor of a request in `scope["visitor"]`."""

    def __init__(self, app: ASGIApp, *, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, or answer it here."""
        if scope["type"] != "http":  # the application's own start and end: the server takes no WebSocket
            await self._app(scope, receive, send)
            return

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        asked, scope["audit"] = HTTPConnection(scope), self._access.audit
        try:
            self._admit(asked)
        except HTTPException as error:
            if error.status_code == 403:
                audit(asked, scope["method"], scope["path"], f"refused: {error.detail}")
            status, headers = error.status_code, error.headers
            as_json = scope["path"].startswith("/api/")
            refused = JSONResponse({"error": error.detail}, status, headers) if as_json else None
            await (refused or PlainTextResponse(f"{error.detail}\n", status, headers))(scope, receive, sending)
            return
        reads = scope["method"] in ("GET", "HEAD")  # no page reads the body of these
        await self._app(scope, receive if reads else _limited(receive, *_limits(scope["path"])), sending)

    def _admit(self, asked: HTTPConnection) -> None:
        """Find the visitor; raises HTTPException for a request that reaches no page."""
        scope, path = asked.scope, str(asked.scope["path"])
        for refused, status, why in self._refusals(asked):
            if refused:
                raise HTTPException(status, why, {"connection": "close"})
        visitor = scope["visitor"] = self._access.visitor(asked)
        needed = role_for(scope["method"], path)
        if needed is None or visitor.may(needed):
            return
        if visitor.token is not None:
            raise HTTPException(403, f"This needs a token with the role {needed}.")
        if path.startswith(("/api/", "/metrics", "/badge/", "/events")) or scope["method"] not in ("GET", "HEAD"):
            raise HTTPException(401, "A token is needed.", {"www-authenticate": "Bearer"})
        raise HTTPException(303, "A token is needed.", {"location": f"/login?next={quote(path, safe='/')}"})

    def _refusals(self, asked: HTTPConnection) -> Iterator[tuple[bool, int, str]]:
        """Whether a request is refused, whoever sent it, with the status and why."""
        scope, headers = asked.scope, asked.headers
        host = headers.get("host", "")
        if self._access.tokens is None:
            local = _LOOPBACK.fullmatch(host)
            yield not local, 421, "Without tokens only names of this machine are answered: use 127.0.0.1."
            proxied = scope["http_version"] == "1.0" or any(name in headers for name in _PROXIED)  # 1.0 is nginx's own
            yield proxied, 421, "A proxy passes this on: start the service with --token-file."
        size = sum(len(name) + len(value) for name, value in headers.raw)
        size += len(scope.get("raw_path") or b"") + len(scope["query_string"])
        yield size > MAX_HEAD_BYTES, 431, "The address and the headers are too long."
        origin, site = headers.get("origin"), headers.get("sec-fetch-site", "none")
        if scope["method"] in ("GET", "HEAD"):
            loads = site not in _OWN and headers.get("sec-fetch-mode") != "navigate"
            yield loads, 403, "A page of another site may link to this one, and load nothing of it."
        else:
            other = site not in _OWN or (origin is not None and origin.partition("://")[2] != host)
            yield other, 403, "The form was sent by another site."
        two = "content-length" in headers and "transfer-encoding" in headers  # a proxy may take the other one
        yield two, 400, "The request has two lengths."
        yield int(headers.get("content-length", 0)) > _limits(scope["path"])[0], 413, "The request is too large."


def _limits(path: str) -> tuple[int, float]:
    """Bytes of a body, and seconds within which it has to come."""
    return (_PUSH_BYTES, _PUSH_S) if f"{path}/".startswith(f"{PUSH}/") else (MAX_BODY_BYTES, _BODY_S)


def _limited(receive: Receive, left: int, seconds: float) -> Receive:
    """The body of a request, of so many bytes and within so many seconds."""
    until = time.monotonic() + seconds

    async def limited() -> Message:
        nonlocal left
        try:
            message = await asyncio.wait_for(receive(), max(0.1, until - time.monotonic()))
        except asyncio.TimeoutError as error:
            raise HTTPException(408, "The request came too slowly.") from error
        left -= len(message.get("body", b""))
        if left < 0:
            raise HTTPException(413, "The request is too large.")
        return message

    return limited
