"""Run folders that other machines hand in, as `validator push` sends them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from validator.pipeline.manifest import Receipt
from validator.service.access import audit, visitor_of
from validator.service.context import number_of, service_of


async def begin_push(request: Request) -> Response:
    """Begin or continue an upload by its manifest; the answer says where it continues, or that the run is stored."""
    inbox = service_of(request).inbox
    with inbox.request():
        receipt = await _in_thread(request, inbox.begin, await request.body(), visitor_of(request).name)
    if receipt.stored:
        audit(request, "push", receipt.run)
    return JSONResponse(receipt.model_dump())


async def continue_push(request: Request) -> Response:
    """Add bytes to an upload, from a file and an offset on; the answer says where it continues."""
    inbox, file = service_of(request).inbox, number_of(request, "file")
    offset = number_of(request, "at")
    data = bytearray()
    with inbox.request():
        with suppress(ClientDisconnect, HTTPException):  # of a request that breaks, what had come is kept
            async for piece in request.stream():
                data += piece
        receipt = await _in_thread(request, inbox.add, str(request.path_params["upload"]), file, offset, data)
    return JSONResponse(receipt.model_dump())


async def _in_thread(request: Request, function: Callable[..., Receipt], *values: object) -> Receipt:
    threads = service_of(request).inbox.threads
    return await asyncio.get_running_loop().run_in_executor(threads, function, *values)
