"""The service: its application with routes and errors, where it listens, who may come in, and how it ends."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import socket
import sqlite3
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, cast
from urllib.parse import quote

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Match
from uvicorn.protocols.http.h11_impl import H11Protocol

from validator.errors import FolderError, Unable, UserError
from validator.service import api, pages, start
from validator.service.access import Access, AuditLog, Guard, audit
from validator.service.context import Service, page
from validator.service.events import Feed
from validator.service.index import RunIndex, index_path
from validator.service.live import LiveRuns
from validator.service.queue import RunQueue
from validator.service.tokens import Tokens
from validator.service.webhooks import Webhook, read_secret
from validator.system.host import is_loopback
from validator.text import clean, one_line

_HEADERS_S = 15.0
_TAKEN_S = 60.0
_TICK_S = 1.0
"""Time between two looks whether the server is to end, and between two steps of the queue."""

_END_S = 5
_MAX_CONNECTIONS, _MAX_OF_ONE = 400, 200
"""Of all, and of one other machine: one that opens many and says nothing must not keep others out."""


def make_app(index: RunIndex, tokens: Tokens | None, runbooks: Path | None = None) -> Starlette:
    """The application of an index. `tokens` is None where everybody who reaches it may do everything; `runbooks` is a
    folder of runbooks besides those that are bundled."""
    access = Access(tokens, AuditLog(index.path.with_suffix(".audit.jsonl")))
    host = quote(socket.gethostname(), safe="")  # machines may share the folder, and each has a queue of its own
    live, queue = LiveRuns(index), RunQueue(index.path.with_suffix(f".{host}.queue.json"))
    feed = Feed(live, queue)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        beside = [asyncio.create_task(one) for one in (_start_next(queue), feed.draw())]
        yield
        for one in beside:
            one.cancel()

    app = Starlette(
        routes=[*pages.ROUTES, *start.ROUTES, *api.ROUTES],
        middleware=[Middleware(Guard, access=access)],
        exception_handlers=dict.fromkeys((HTTPException, UserError, ClientDisconnect, OSError, sqlite3.Error), _failed),
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False  # it would answer with the name that a request gives this machine
    app.state.service = Service(index, live, access, feed, queue, runbooks)
    return app


async def _start_next(queue: RunQueue) -> None:
    """Step the queue once a second. Why it cannot, its page says; the next step may."""
    while True:
        with suppress(OSError, UserError):
            if queue.stamp() != queue.idle:
                await run_in_threadpool(queue.step)
        await asyncio.sleep(_TICK_S)


async def _failed(request: Request, error: Exception) -> Response:
    """Why a request is not carried out: for its sender, and what is not the sender's fault also for the log."""
    status, why, headers = 503, "The reports folder or its index cannot be read; the server's log says why.", {}
    path = request.scope["path"]
    if isinstance(error, HTTPException):
        status, why, headers = error.status_code, str(error.detail), dict(error.headers or {})
    elif isinstance(error, UserError):
        status, why = 409, str(error)
        if request.method == "POST":
            audit(request, "POST", path, f"failed: {why}")
    elif isinstance(error, ClientDisconnect):
        status, why = 400, "Half a request."  # which nobody gets: who sent it is gone, and that is no error here
    elif isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        status, why = 507, "The disk is full: remove old runs there."
    else:
        sys.stderr.write(f"{request.method} {one_line(path)}: {one_line(error)}\n")
    if status == 403:
        audit(request, request.method, path, f"refused: {why}")
    if status == 405:  # Starlette names the methods of the first route of a path
        found = [route for route in request.app.routes if route.matches(request.scope)[0] is not Match.NONE]
        headers["allow"] = ", ".join(sorted({method for route in found for method in route.methods}))
    if path.startswith(api.BASE):
        return JSONResponse({"error": clean(why)}, status, headers)
    response = page(request, "error", status=status, code=status, why=clean(why), form=request.scope.get("form", {}))
    response.headers.update(headers)
    return response


# Where it listens, and how it ends.


def parse_listen(text: str) -> tuple[str, int]:
    """`127.0.0.1:8700` or `[::1]:8700` as host and port; raises UserError for what is neither."""
    host, _, port = text.rpartition(":")
    host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not host or not port.isdigit() or int(port) > 65535:
        raise UserError(f"--listen {text}: write an address and a port, such as 127.0.0.1:8700 or [::1]:8700")
    return host, int(port)


def tokens_for(host: str, given: Path | None) -> Tokens | None:
    """The tokens that are needed to listen on a host: none on loopback, unless their file is given.

    Raises:
        UserError: when they are needed and there are none, or their file cannot be used.
    """
    if given is None and is_loopback(host):
        return None
    tokens = Tokens.of(given)
    if not tokens.all():
        why = f"--token-file {given} has no token" if given else f"--listen {host} needs tokens, since others reach it"
        at = f" --token-file {given}" if given else ""
        raise UserError(f"{why}; make one with `validator token add NAME --role run{at}`, or listen on 127.0.0.1")
    return tokens


class _Connection(H11Protocol):
    """A connection that is closed when the head of a request takes too long: many that say little cost a server all."""

    _late: asyncio.TimerHandle

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._late = self.loop.call_later(_HEADERS_S, transport.abort)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if not getattr(self.cycle, "response_complete", True):  # no cycle before the first request
            self._late.cancel()
        elif self._late.cancelled():
            self._late = self.loop.call_later(_HEADERS_S, self.transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self._late.cancel()
        super().connection_lost(exc)


class _Listener(socket.socket):
    """Takes so many connections of one other machine and no more."""

    def __init__(self, family: int) -> None:
        super().__init__(family, socket.SOCK_STREAM)
        self._taken: list[tuple[str, socket.socket]] = []

    def accept(self) -> tuple[socket.socket, Any]:
        """The next connection; raises BlockingIOError for one too many, as where none waits."""
        made, address = super().accept()
        self._taken = [(address[0], made), *(one for one in self._taken if one[1].fileno() >= 0)]
        if sum(host == address[0] for host, _ in self._taken) > _MAX_OF_ONE and not is_loopback(address[0]):
            made.close()
            raise BlockingIOError
        return made, address


def _notify(state: str) -> None:
    """Send a state such as `READY=1` to the manager that started this process; nothing happens without one."""
    address = os.environ.get("NOTIFY_SOCKET")
    if address:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sending, suppress(OSError):
            sending.sendto(state.encode(), f"\0{address[1:]}" if address.startswith("@") else address)


class _Server(uvicorn.Server):
    """A server that ends by a signal as well as by itself: open streams are closed, and the exit code is 0."""

    async def main_loop(self) -> None:
        """Wait for the end. uvicorn's own wakes ten times a second, which is most of what an idle server costs."""
        _notify("READY=1")
        while not await self.on_tick(0):
            await asyncio.sleep(_TICK_S)
        cast(Starlette, self.config.app).state.service.feed.close()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Called by a signal's handler."""
        self.should_exit = True


def bound(host: str, port: int) -> socket.socket:
    """A socket that listens there; raises Unable where the machine does not allow it."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        made = _Listener(family)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((host, port))
        # What is sent and not taken for so long ends the connection; those that are accepted inherit it.
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(_TAKEN_S * 1000))
        made.listen()  # whoever reads the address may come at once
    except OSError as error:
        raise Unable(f"--listen {host}:{port}: {error.strerror or error}; choose another port") from error
    return made


def serve(
    reports: Path,
    *,
    listen: str,
    token_file: Path | None = None,
    rebuild: bool = False,
    runbooks: Path | None = None,
    webhook: Sequence[str] = (),
    webhook_secret: Path | None = None,
    public_url: str = "",
) -> None:
    """Serve the run folders below `reports` until SIGTERM or Ctrl-C, and start the runbooks of a folder.

    Decisions are posted to the addresses in `webhook`, with links that begin with `public_url`.

    Raises:
        UserError: when an address of a webhook or the key of the signatures cannot be used.
        FolderError: when there is no such folder.
        UserError: when the address needs tokens that are not there.
        Unable: when the address is in use, or the index cannot be written.
    """
    host, port = parse_listen(listen)
    tokens = tokens_for(host, token_file)
    key = read_secret(webhook_secret) if webhook else b""
    if runbooks is not None and not runbooks.is_dir():
        raise FolderError(f"--runbooks {runbooks} is no folder; give the one with your runbooks, or leave it out")
    made = bound(host, port)
    files, most = resource.getrlimit(resource.RLIMIT_NOFILE)  # a connection that gets a file holds three
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(files, min(most, 4 * _MAX_CONNECTIONS)), most))
    index = RunIndex(reports, index_path(reports), rebuild=rebuild)
    index.refresh(full=True)
    app = make_app(index, tokens, runbooks)
    at = f"http://{f'[{host}]' if ':' in host else host}:{made.getsockname()[1]}/"
    who = "a token is needed" if tokens else "no token is needed"
    app.state.service.access.audit.write(who="server", address=at, action="start", what=str(index.reports))
    sys.stderr.write(f"serving {index.reports} at {at} ({who}); Ctrl-C ends it\n")
    for url in dict.fromkeys(webhook):
        Webhook(url, key, index, address=(public_url or at).rstrip("/")).start()
    make_server(app).run(sockets=[made])
    os._exit(0)  # threads that still read or judge would be waited for, and what they write survives a kill


def make_server(app: Starlette) -> uvicorn.Server:
    """The server of an application, with the limits that do not depend on what is asked."""
    options: dict[str, Any] = {"http": _Connection, "ws": "none", "lifespan": "on", "loop": "asyncio"}
    return _Server(uvicorn.Config(
        app, log_level="warning", access_log=False, server_header=False, timeout_graceful_shutdown=_END_S,
        limit_concurrency=_MAX_CONNECTIONS, h11_max_incomplete_event_size=32 << 10,
        forwarded_allow_ips=["127.0.0.1", "::1"], **options,
    ))  # fmt: skip
