"""The application: routes, errors, and the guard before them."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

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
from validator.service.inbox import Inbox
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
    live, queue = LiveRuns(index), RunQueue.beside(index.path)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        starting = asyncio.create_task(_start_next(queue))
        yield
        starting.cancel()
        index.close()

    app = Starlette(
        routes=[*pages.ROUTES, *start.ROUTES, *api.ROUTES],
        middleware=[Middleware(Guard, access=access)],
        exception_handlers={
            HTTPException: _refused,
            UserError: _cannot,
            ClientDisconnect: _left,
            OSError: _unable,
            sqlite3.Error: _unable,
        },
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False  # it would answer with the name that a request gives this machine
    app.state.service = Service(index, live, access, Feed(live, queue), queue, runbooks, Inbox(index.reports))
    return app


async def _start_next(queue: RunQueue) -> None:
    """Step the queue once a second. Why it cannot, its page says; the next step may."""
    while True:
        with suppress(OSError, UserError):
            await run_in_threadpool(queue.step)
        await asyncio.sleep(_STEP_S)


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException), "registered for it alone"
    if error.status_code == 403:
        audit(request, request.method, request.scope["path"], f"refused: {error.detail}")
    headers = dict(error.headers or {})
    if error.status_code == 405:  # Starlette names the methods of the first route of a path
        found = [route for route in request.app.routes if route.matches(request.scope)[0] is not Match.NONE]
        headers["allow"] = ", ".join(sorted({method for route in found for method in route.methods}))
    return _error(request, error.status_code, str(error.detail), headers)


async def _cannot(request: Request, error: Exception) -> Response:
    if request.method == "POST":
        audit(request, "POST", request.scope["path"], f"failed: {error}")
    return _error(request, 409, str(error))


async def _unable(request: Request, error: Exception) -> Response:
    sys.stderr.write(f"{request.scope['method']} {one_line(request.scope['path'])}: {one_line(error)}\n")
    return _error(request, 503, "The reports folder or its index cannot be read; the server's log says why.")


async def _left(request: Request, error: Exception) -> Response:
    return Response(status_code=400)  # which nobody gets: who sent half a request is gone, and that is no error here


def _error(request: Request, status: int, why: str, headers: dict[str, str] | None = None) -> Response:
    if request.scope["path"].startswith(api.BASE):
        return JSONResponse({"error": clean(why)}, status, headers)
    response = page(request, "error", status=status, code=status, why=clean(why))
    response.headers.update(headers or {})
    return response
