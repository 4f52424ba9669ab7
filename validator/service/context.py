"""What the pages and the API of one server share, and how a page is made of a template."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

import validator
from validator.pipeline.push import MAX_FILE_BYTES, MAX_FILES
from validator.report.templates import environment, style, text
from validator.service.access import Access, visitor_of, with_cookie
from validator.service.events import Feed
from validator.service.index import RunFilter, RunIndex
from validator.service.live import LiveRuns
from validator.service.queue import RunQueue

NUMBERS = {
    "page": (1, 100_000, 1),
    "limit": (1, 500, 100),
    "offset": (0, 10_000_000, 0),
    "file": (0, MAX_FILES, 0),
    "at": (0, MAX_FILE_BYTES, 0),
}
"""The numbers of addresses: least, most, and what they are where they are left out."""

MAX_PUSHES = 8
"""Requests of pushes at a time; others wait. Each holds at most 4 MiB, and a thread that pages could need."""


@dataclass(frozen=True)
class Service:
    """One server: the index of its folder, what runs there, who may look, and the queue.

    `runbooks` is the folder of runbooks besides those that are bundled.
    """

    index: RunIndex
    live: LiveRuns
    access: Access
    feed: Feed
    queue: RunQueue
    runbooks: Path | None
    pushes: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MAX_PUSHES))

    def folder(self, name: str) -> Path:
        """The path of a run folder by its name.

        Raises:
            HTTPException: 404 for one that the index does not know.
        """
        found = self.index.path_of(name)
        if found is None:
            raise HTTPException(404, "No run of this name is here.")
        return found


def service_of(request: Request) -> Service:
    """The server that a request came to."""
    return cast(Service, request.app.state.service)


@lru_cache(maxsize=1)
def assets() -> dict[str, tuple[str, str, str]]:
    """Style sheet and script of the pages by name: content, media type, and an address that changes with it."""
    sheet = "\n".join((style(text("history.css")), text("service/service.css")))
    script = "\n".join((text("report.js"), text("service/service.js")))
    found = {"service.css": (sheet, "text/css"), "service.js": (script, "text/javascript")}
    return {
        name: (content, kind, f"/static/{name}?{hashlib.sha256(content.encode()).hexdigest()[:12]}")
        for name, (content, kind) in found.items()
    }


def run_address(folder: str) -> str:
    """Where the page of a run folder is."""
    return f"/runs/{quote(folder, safe='')}/"


def to(address: str) -> Response:
    """The answer to a form that was carried out."""
    return RedirectResponse(address, 303)


def page(request: Request, name: str, *, status: int = 200, **values: Any) -> Response:
    """The page of a template, with what each of them needs. Forms need a session, also where nobody logs in."""
    visitor = visitor_of(request)
    made = "" if visitor.session or visitor.needs_token else secrets.token_urlsafe(32)
    visitor = replace(visitor, session=made or visitor.session)
    content = environment().get_template(f"service/{name}.html.j2")
    html = content.render(
        visitor=visitor,
        logged_in=visitor.needs_token and visitor.token is not None,
        path="/" + quote(request.scope["path"].lstrip("/")),  # two strokes would begin the name of another server
        version=validator.__version__,
        asset={name: address for name, (_, _, address) in assets().items()},
        **values,
    )
    response = HTMLResponse(html, status)
    return with_cookie(request, response, made) if made else response


def run_filter(request: Request) -> RunFilter:
    """The filter that an address names."""
    return RunFilter(**{name: request.query_params.get(name, "")[:300] for name in RunFilter._fields})


def number_of(request: Request, name: str) -> int:
    """A number of the address.

    Raises:
        HTTPException: 400 for one that is none, or out of its range.
    """
    least, most, default = NUMBERS[name]
    given = request.query_params.get(name, str(default))
    if not (given.isascii() and given.isdigit() and len(given) < 12 and least <= int(given) <= most):
        raise HTTPException(400, f"{name} must be a whole number from {least} to {most}.")
    return int(given)
