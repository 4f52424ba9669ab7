"""Who may do what, and how much: the part of the service that sees each request before any page does.

Without tokens the service listens on loopback alone, and answers only to names of this machine, so that no page of
another site can reach it under a name of its own. With tokens a visitor has a role, by the header `Authorization` or by
the cookie of a login.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import re
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, cast
from urllib.parse import parse_qs, quote

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from validator.errors import UserError
from validator.service.audit import AuditLog
from validator.service.tokens import Role, Token, Tokens, digest_of

COOKIE = "validator_session"
MAX_BODY_BYTES = 16 << 10
"""Of a form: a token, a path and a number."""

MAX_TARGET_BYTES = 4 << 10
MAX_HEADER_BYTES = 16 << 10
_BODY_S = 10.0
PUSH = "/api/v1/push"
"""Where machines hand in results: the one address that the role `push` may ask, and that takes large bodies."""

_PUSH_BYTES, _PUSH_S = 4 << 20, 60.0
_SESSION_S = 12 * 3600.0
_MAX_SESSIONS = 1000
_MAX_FAILURES, _FAILURES_S = 10, 60.0
"""Wrong tokens from one address within so many seconds, after which more are refused."""

_OPEN = ("/login", "/static/")
_PROXIED = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip", "via")
_LOOPBACK = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:\d*)?", re.IGNORECASE)

POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'self'"
)
_HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


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
    _sessions: OrderedDict[str, tuple[str, float]] = field(default_factory=OrderedDict)
    _failures: OrderedDict[str, list[float]] = field(default_factory=OrderedDict)

    def visitor(self, asked: HTTPConnection) -> Visitor:
        """Who a request is from.

        Raises:
            HTTPException: 429 after too many wrong tokens, 503 where the tokens cannot be read.
        """
        session, token = asked.cookies.get(COOKIE, "")[:100], None
        scheme, _, text = asked.headers.get("authorization", "").partition(" ")
        if self.tokens is not None and scheme.lower() == "bearer":
            session, token = "", self.checked(text.strip(), address_of(asked))
        elif self.tokens is not None:
            of, until = self._sessions.get(digest_of(session), ("", 0.0))
            token = self._holder(of) if time.monotonic() < until else None
        return Visitor(token, self.tokens is not None, session, self._key)

    def checked(self, text: str, address: str) -> Token | None:
        """The token of a text, None for a wrong one; raises as `visitor` does."""
        found = self._holder(digest_of(text))  # a right one is never refused: behind a proxy all may have one address
        if found is None:
            now = time.monotonic()
            recent = [at for at in self._failures.get(address, ()) if now - at < _FAILURES_S]
            if len(recent) >= _MAX_FAILURES:
                raise HTTPException(429, "Too many wrong tokens: wait a minute.", {"retry-after": "60"})
            self.audit.write(who="", address=address, action="token", outcome="wrong")
            _remember_latest(self._failures, address, [*recent, now])
        return found

    def _holder(self, sha256: str) -> Token | None:
        try:
            return None if self.tokens is None else self.tokens.find(sha256)
        except UserError as error:
            raise HTTPException(503, "The tokens cannot be read: `validator token list` there says why.") from error

    def log_in(self, text: str) -> str:
        """A new session for a token that was checked: the value of its cookie."""
        session = secrets.token_urlsafe(32)
        _remember_latest(self._sessions, digest_of(session), (digest_of(text), time.monotonic() + _SESSION_S))
        return session

    def log_out(self, session: str) -> None:
        """End a session."""
        self._sessions.pop(digest_of(session), None)


def _remember_latest(known: OrderedDict[str, Any], name: str, value: Any) -> None:
    """Remember a value, and no more than the latest."""
    known[name] = value
    known.move_to_end(name)
    if len(known) > _MAX_SESSIONS:
        known.popitem(last=False)


def address_of(asked: HTTPConnection) -> str:
    """The address that a request is from."""
    return asked.client.host if asked.client else ""


def require_own_origin(request: Request) -> None:
    """Raises HTTPException 403 where the browser says that a page of another site sent this."""
    origin, host = request.headers.get("origin"), request.headers.get("host", "")
    other = origin is not None and origin.partition("://")[2] != host
    if other or request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        raise HTTPException(403, "The form was sent by another site.")


def visitor_of(request: Request) -> Visitor:
    """Who a request is from, as the guard has found."""
    return cast(Visitor, request.scope["visitor"])


def require(request: Request, role: Role) -> Visitor:
    """The visitor; raises HTTPException 403 for one who may not do what needs `role`."""
    visitor = visitor_of(request)
    if not visitor.may(role):
        raise HTTPException(403, f"This needs a token with the role {role}.")
    return visitor


def with_cookie(request: Request, response: Response, session: str) -> Response:
    """A response that gives the visitor a session; an empty one ends it."""
    age, secure = int(_SESSION_S) if session else 0, request.scope["scheme"] == "https"
    response.set_cookie(COOKIE, session, max_age=age, httponly=True, secure=secure, samesite="strict")
    return response


async def form_of(request: Request, *, most: int = 16) -> dict[str, str]:
    """The fields of a form, each once.

    Raises:
        HTTPException: 403 for one of another site, 415 for a body of another kind, 400 for too many fields.
    """
    require_own_origin(request)
    kind = request.headers.get("content-type", "").partition(";")[0].strip()
    if kind != "application/x-www-form-urlencoded":
        raise HTTPException(415, "A form is application/x-www-form-urlencoded.")
    try:
        found = parse_qs((await request.body()).decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=most)
    except ValueError as error:
        raise HTTPException(400, "The form has too many fields.") from error
    return {name: values[0] for name, values in found.items()}


FormAction = Callable[[Request, Mapping[str, str]], Response]
"""What a form does, by its request and its fields, each once; it may block."""


def posted(path: str, action: FormAction, role: Role = "run", *, most: int = 16) -> Route:
    """The route of a form that a page of this service gave to its visitor, who may do what needs `role`.

    Any other is answered by 403, or as `form_of` says, and does nothing.
    """

    async def endpoint(request: Request) -> Response:
        visitor, form = require(request, role), await form_of(request, most=most)
        if not visitor.session or not hmac.compare_digest(form.get("key", "").encode(), visitor.form_key.encode()):
            raise HTTPException(403, "The form has expired: open the page again.")
        return await run_in_threadpool(action, request, form)

    return Route(path, endpoint, methods=["POST"])


def inner_path(text: str) -> str:
    """An address within the service to continue at; `/` for what could lead elsewhere."""
    inner = text.startswith("/") and not text.startswith(("//", "/\\")) and text.isprintable() and "\\" not in text
    return text if inner else "/"


class Guard:
    """ASGI middleware: hosts, sizes, headers, and the visitor of each request in `scope["visitor"]`."""

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

        try:
            scope["visitor"] = self._admitted(HTTPConnection(scope))
        except HTTPException as error:
            status, headers = error.status_code, error.headers
            as_json = scope["path"].startswith("/api/")
            refused = JSONResponse({"error": error.detail}, status, headers) if as_json else None
            await (refused or PlainTextResponse(f"{error.detail}\n", status, headers))(scope, receive, sending)
            return
        read = scope["method"] not in ("GET", "HEAD")  # of the others no page reads a body
        limited = _limited(receive, *_limits(scope["path"])) if read else receive
        await self._app(scope, limited, sending)

    def _admitted(self, asked: HTTPConnection) -> Visitor:
        """The visitor; raises HTTPException for a request that reaches no page."""
        scope, path = asked.scope, str(asked.scope["path"])
        for refused, status, why in self._refusals(asked):
            if refused:
                raise HTTPException(status, why, {"connection": "close"})
        visitor = self._access.visitor(asked)
        needed: Role = "push" if _is_push(path) else "read"
        if visitor.may(needed) or path.startswith(_OPEN):
            return visitor
        if visitor.token is not None:
            raise HTTPException(403, f"This needs a token with the role {needed}.")
        if path.startswith(("/api/", "/metrics", "/badge/", "/events")) or scope["method"] not in ("GET", "HEAD"):
            raise HTTPException(401, "A token is needed.", {"www-authenticate": "Bearer"})
        raise HTTPException(303, "A token is needed.", {"location": f"/login?next={quote(path, safe='/')}"})

    def _refusals(self, asked: HTTPConnection) -> Iterator[tuple[bool, int, str]]:
        """Whether a request is refused, whoever sent it, with the status and why."""
        scope, headers = asked.scope, asked.headers
        if self._access.tokens is None:
            local = _LOOPBACK.fullmatch(headers.get("host", ""))
            yield not local, 421, "Without tokens only names of this machine are answered: use 127.0.0.1."
            proxied = scope["http_version"] == "1.0" or any(name in headers for name in _PROXIED)  # 1.0 is nginx's own
            yield proxied, 421, "A proxy passes this on: start the service with --token-file."
        target = len(scope.get("raw_path") or b"") + len(scope["query_string"])
        yield target > MAX_TARGET_BYTES, 414, "The address is too long."
        size = sum(len(name) + len(value) for name, value in headers.raw)
        yield size > MAX_HEADER_BYTES, 431, "The headers are too long."
        other = headers.get("sec-fetch-site") in ("cross-site", "same-site")
        loads = other and headers.get("sec-fetch-mode") != "navigate"
        yield loads, 403, "A page of another site may link to this one, and load nothing of it."
        two = "content-length" in headers and "transfer-encoding" in headers  # a proxy may take the other one
        yield two, 400, "The request has two lengths."
        length = headers.get("content-length", "0")
        number = int(length[:18]) if length.isascii() and length.isdigit() else None
        yield number is None or number > _limits(scope["path"])[0], 413, "The request is too large."


def _is_push(path: str) -> bool:
    return path == PUSH or path.startswith(f"{PUSH}/")


def _limits(path: str) -> tuple[int, float]:
    """Bytes of a body, and seconds within which it has to come."""
    return (_PUSH_BYTES, _PUSH_S) if _is_push(path) else (MAX_BODY_BYTES, _BODY_S)


def _limited(receive: Receive, left: int, seconds: float) -> Receive:
    """The body of a request, of so many bytes and within so many seconds."""
    until = time.monotonic() + seconds
    whole = False

    async def limited() -> Message:
        nonlocal left, whole
        if whole:  # what follows is the end of the connection, for which an answer may wait
            return await receive()
        try:
            message = await asyncio.wait_for(receive(), max(0.1, until - time.monotonic()))
        except asyncio.TimeoutError as error:
            raise HTTPException(408, "The request came too slowly.") from error
        left -= len(message.get("body", b""))
        whole = not message.get("more_body", False)
        if left < 0:
            raise HTTPException(413, "The request is too large.")
        return message

    return limited
