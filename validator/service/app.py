"""The application: routes, errors, and the guard before them."""

from __future__ import annotations

import asyncio
import errno
import socket
import sqlite3
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Match

from validator.errors import UserError
from validator.service import api, pages, start
from validator.service.access import Access, Guard, audit
from validator.service.audit import AuditLog
from validator.service.context import Service, page
from validator.service.events import Feed
from validator.service.index import RunIndex
from validator.service.live import LiveRuns
from validator.service.queue import RunQueue
from validator.service.tokens import Tokens
from validator.text import clean, one_line

_STEP_S = 1.0


def make_app(index: RunIndex, tokens: Tokens | None, runbooks: Path | None = None) -> Starlette:
    """The application of an index. `tokens` is None where everybody who reaches it may do everything; `runbooks` is a
    folder of runbooks besides those that are bundled."""
    access = Access(tokens, AuditLog(index.path.with_suffix(".audit.jsonl")))
    host = quote(socket.gethostname(), safe="")  # machines may share the folder, and each has a queue of its own
    live, queue = LiveRuns(index), RunQueue(index.path.with_suffix(f".{host}.queue.json"))
    feed = Feed(live, queue)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        beside = asyncio.gather(_start_next(queue), feed.draw())
        yield
        beside.cancel()

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
            await run_in_threadpool(queue.step)
        await asyncio.sleep(_STEP_S)


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
    response = page(request, "error", status=status, code=status, why=clean(why))
    response.headers.update(headers)
    return response
