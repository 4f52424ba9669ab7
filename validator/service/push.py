"""Run folders that other machines hand in, as `validator push` sends them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import TypeVar

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from validator.service.access import require, require_own_origin
from validator.service.context import audit, number_of, service_of
from validator.service.inbox import Inbox

_PIECE = 256 << 10
"""Bytes that are written at a time, and of each request in memory."""

Answer = TypeVar("Answer")


async def begin_push(request: Request) -> Response:
    """Begin or continue an upload by its manifest; the answer says where it continues, or that the run is stored."""
    visitor = require(request, "push")
    require_own_origin(request)
    inbox = service_of(request).inbox
    with inbox.request():
        data = await request.body()
        receipt = await _in_thread(inbox, inbox.begin, data, visitor.name)
    if receipt.stored:
        audit(request, "push", receipt.run)
    return JSONResponse(receipt.model_dump())


async def continue_push(request: Request) -> Response:
    """Add bytes to an upload, from a file and an offset on; the answer says where it continues."""
    require(request, "push")
    require_own_origin(request)
    inbox, file = service_of(request).inbox, number_of(request, "file")
    offset = number_of(request, "at")
    with inbox.request():
        upload = await _in_thread(inbox, inbox.opened, str(request.path_params["upload"]))
        receipt = upload.receipt(file, offset)
        async for data in _pieces(request):
            receipt = await _in_thread(inbox, inbox.add, upload, receipt.file, receipt.offset, data)
        return JSONResponse(receipt.model_dump())


async def _in_thread(inbox: Inbox, function: Callable[..., Answer], *values: object) -> Answer:
    return await asyncio.get_running_loop().run_in_executor(inbox.threads, function, *values)


async def _pieces(request: Request) -> AsyncIterator[bytes]:
    """The body in pieces; the last is what had come when it ended, also by a break, for the upload continues there."""
    pending = bytearray()
    try:
        async for data in request.stream():
            pending += data
            if len(pending) >= _PIECE:
                yield bytes(pending)
                pending.clear()
    except (ClientDisconnect, HTTPException):  # of the latter the time and the size of a request
        pass
    yield bytes(pending)
