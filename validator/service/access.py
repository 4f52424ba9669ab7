"""Who may do what, and how much: the part of the service that sees each request before any page does.

Without tokens the service listens on loopback alone, and answers only to names of this machine, so that no page of
another site can reach it under a name of its own. With tokens a visitor has a role, by the header `Authorization` or by
the cookie of a login.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs, quote, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from validator.service.audit import AuditLog
from validator.service.tokens import Role, Token, TokenError, Tokens

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
LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})

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
    """Who asks. `token` is None for one who needs none, or has none; `session` is the value of the cookie."""

    token: Token | None
    needs_token: bool
    session: str = ""

    def may(self, role: Role) -> bool:
        """Whether the visitor may do what needs `role`."""
        return self.token.allows(role) if self.token is not None else not self.needs_token

    @property
    def name(self) -> str:
        """For the log; empty for one who needs a token and has none."""
        return self.token.name if self.token is not None else "" if self.needs_token else "loopback"


@dataclass
class Access:
    """Sessions, failures and the key of forms; `tokens` is None where none are needed."""

    tokens: Tokens | None
    audit: AuditLog
    _key: bytes = field(default_factory=lambda: secrets.token_bytes(32))
    _sessions: OrderedDict[str, tuple[str, float]] = field(default_factory=OrderedDict)
    _failures: OrderedDict[str, list[float]] = field(default_factory=OrderedDict)

    def visitor(self, headers: Headers, address: str) -> Visitor:
        """Who a request is from.

        Raises:
            HTTPException: 429 after too many wrong tokens, 503 where the tokens cannot be read.
        """
        session = _cookie(headers.get("cookie", ""))
        if self.tokens is None:
            return Visitor(None, needs_token=False, session=session)
        scheme, _, text = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return Visitor(self.checked(text.strip(), address), needs_token=True)
        return Visitor(self._of_session(session), needs_token=True, session=session)

    def checked(self, text: str, address: str) -> Token | None:
        """The token of a text, None for a wrong one; raises as `visitor` does."""
        now = time.monotonic()
        recent = [at for at in self._failures.get(address, ()) if now - at < _FAILURES_S]
        found = self._find(text)  # a right one is never refused: behind a proxy all may have one address
        if found is None and len(recent) >= _MAX_FAILURES:
            raise HTTPException(429, "Too many wrong tokens: wait a minute.", {"retry-after": "60"})
        if found is None:
            self.audit.write(who="", address=address, action="token", outcome="wrong")
            self._failures[address] = [*recent, now]
            self._failures.move_to_end(address)
            while len(self._failures) > _MAX_SESSIONS:
                self._failures.popitem(last=False)
        return found

    def _find(self, text: str) -> Token | None:
        assert self.tokens is not None, "asked only where tokens are needed"
        try:
            return self.tokens.find(text)
        except TokenError as error:
            raise HTTPException(503, "The tokens cannot be read; the server's log says why.") from error

    def log_in(self, text: str) -> str:
        """A new session for a token that was checked: the value of its cookie."""
        session = secrets.token_urlsafe(32)
        self._sessions[_hashed(session)] = (_hashed(text), time.monotonic() + _SESSION_S)
        while len(self._sessions) > _MAX_SESSIONS:
            self._sessions.popitem(last=False)
        return session

    def log_out(self, session: str) -> None:
        """End a session."""
        self._sessions.pop(_hashed(session), None)

    def _of_session(self, session: str) -> Token | None:
        known = self._sessions.get(_hashed(session)) if session else None
        if known is None or time.monotonic() > known[1] or self.tokens is None:
            return None
        try:
            return next((one for one in self.tokens.all() if hmac.compare_digest(one.sha256, known[0])), None)
        except TokenError as error:
            raise HTTPException(503, "The tokens cannot be read; the server's log says why.") from error

    def form_key(self, session: str) -> str:
        """What a form of this session must carry, and a page of another site cannot know."""
        return hmac.new(self._key, session.encode(), hashlib.sha256).hexdigest()

    def require_own_form(self, request: Request, form: Mapping[str, str]) -> None:
        """Raises HTTPException 403 unless a form was sent by a page of this service to the one who sends it back."""
        visitor = visitor_of(request)
        require_own_origin(request)
        sent = form.get("key", "")
        if not visitor.session or not hmac.compare_digest(sent.encode(), self.form_key(visitor.session).encode()):
            raise HTTPException(403, "The form has expired: open the page again.")


def require_own_origin(request: Request) -> None:
    """Raises HTTPException 403 where the browser says that a page of another site sent this."""
    origin, host = request.headers.get("origin"), request.headers.get("host", "")
    other = origin is not None and origin.partition("://")[2] != host
    if other or request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        raise HTTPException(403, "The form was sent by another site.")


def visitor_of(request: Request) -> Visitor:
    """Who a request is from, as the guard has found."""
    found = request.scope["visitor"]
    assert isinstance(found, Visitor), "every request passes the guard"
    return found


def require(request: Request, role: Role) -> Visitor:
    """The visitor; raises HTTPException 403 for one who may not do what needs `role`."""
    visitor = visitor_of(request)
    if not visitor.may(role):
        raise HTTPException(403, f"This needs a token with the role {role}.")
    return visitor


def set_cookie(response: Response, session: str, *, secure: bool) -> None:
    """Give the visitor a session; an empty one ends it."""
    response.set_cookie(
        COOKIE, session, max_age=int(_SESSION_S) if session else 0, httponly=True, secure=secure, samesite="strict"
    )


async def form_of(request: Request, *, most: int = 16) -> dict[str, str]:
    """The fields of a form, each once. Raises HTTPException 415 for a body of another kind, 400 for too many fields."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip()
    if kind != "application/x-www-form-urlencoded":
        raise HTTPException(415, "A form is application/x-www-form-urlencoded.")
    try:
        found = parse_qs((await request.body()).decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=most)
    except ValueError as error:
        raise HTTPException(400, "The form has too many fields.") from error
    return {name: values[0] for name, values in found.items()}


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
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":  # a WebSocket, which nothing here speaks
            await send({"type": "websocket.close", "code": 1008})
            return

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            refused = self._refusal(scope)
        except HTTPException as error:
            refused = PlainTextResponse(f"{error.detail}\n", error.status_code, error.headers)
        if isinstance(refused, PlainTextResponse) and scope["path"].startswith("/api/"):
            kept = {name: value for name, value in refused.headers.items() if name in ("retry-after", "connection")}
            refused = JSONResponse({"error": bytes(refused.body).decode().strip()}, refused.status_code, kept)
        if refused is not None:
            await refused(scope, receive, sending)
            return
        read = scope["method"] not in ("GET", "HEAD")  # of the others no page reads a body
        limited = _limited(receive, *_limits(scope["path"])) if read else receive
        await self._app(scope, limited, sending)

    def _refusal(self, scope: Scope) -> Response | None:
        headers, path = Headers(scope=scope), str(scope["path"])
        if self._access.tokens is None and _host(headers.get("host", "")) not in LOOPBACK:
            return PlainTextResponse("Without tokens only names of this machine are answered: use 127.0.0.1.\n", 421)
        proxied = scope["http_version"] == "1.0" or any(name in headers for name in _PROXIED)  # 1.0 is nginx's own
        if self._access.tokens is None and proxied:
            return PlainTextResponse("A proxy passes this on: start the service with --token-file.\n", 421)
        if len(scope.get("raw_path") or b"") + len(scope["query_string"]) > MAX_TARGET_BYTES:
            return PlainTextResponse("The address is too long.\n", 414)
        if sum(len(name) + len(value) for name, value in headers.raw) > MAX_HEADER_BYTES:
            return PlainTextResponse("The headers are too long.\n", 431)
        if headers.get("sec-fetch-site") in ("cross-site", "same-site") and headers.get("sec-fetch-mode") != "navigate":
            return PlainTextResponse("A page of another site may link to this one, and load nothing of it.\n", 403)
        if "content-length" in headers and "transfer-encoding" in headers:  # a proxy may take the other one
            return PlainTextResponse("The request has two lengths.\n", 400, {"connection": "close"})
        length = headers.get("content-length", "0")
        if not (length.isascii() and length.isdigit()) or int(length[:18]) > _limits(path)[0]:
            return PlainTextResponse("The request is too large.\n", 413)
        address = (scope.get("client") or ("",))[0]
        scope["visitor"] = visitor = self._access.visitor(headers, address)
        needed: Role = "push" if _is_push(path) else "read"
        if visitor.may(needed) or path.startswith(_OPEN):
            return None
        if visitor.token is not None:
            return JSONResponse({"error": f"this needs a token with the role {needed}"}, 403)
        if path.startswith(("/api/", "/metrics", "/badge/", "/events")) or scope["method"] not in ("GET", "HEAD"):
            return JSONResponse({"error": "a token is needed"}, 401, {"www-authenticate": "Bearer"})
        return RedirectResponse(f"/login?next={quote(path, safe='/')}", 303)


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


def _host(value: str) -> str:
    """The name in a Host header, without its port."""
    try:
        return urlsplit(f"//{value}").hostname or ""
    except ValueError:
        return ""


def _cookie(header: str) -> str:
    try:
        found = SimpleCookie(header[:MAX_TARGET_BYTES]).get(COOKIE)
    except CookieError:
        return ""
    return "" if found is None else found.value[:100]


def _hashed(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()
