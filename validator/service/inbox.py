"""Uploads of run folders: files grow in a hidden folder, and one rename makes a run of them when all are right.

An upload is named by the checksum of its manifest, and all that is known of it is in its folder. So any server over the
reports folder continues it, also after a kill: a file in `run/` is whole and verified, `part-N` is what has come of
file N. An address leads here by checksums and numbers alone; paths are those of the manifest, which was checked.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import time
from contextlib import suppress
from pathlib import Path

from pydantic import ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from validator.errors import FolderError
from validator.files import Tree, sha256_of, sync_folder
from validator.pipeline.push import Manifest, ManifestFile, Receipt, first_message, manifest_of, require_decided
from validator.runs.pushed import PUSHED
from validator.service.access import audit, visitor_of
from validator.service.context import number_of, service_of
from validator.text import format_size
from validator.times import iso_now

_FOLDER = ".push"
_UPLOAD = re.compile(r"[0-9a-f]{64}")
_MAX_UPLOADS = 100
_KEPT_S = 7 * 86400.0
"""How long an upload is kept that nobody continues."""

_RESERVE = 1 << 30
"""Bytes of the disk that uploads leave free; a twentieth of a disk that is smaller than 20 GiB."""


async def begin_push(request: Request) -> Response:
    """Begin or continue an upload by its manifest; the answer says where it continues, or that the run is stored."""
    service, by = service_of(request), visitor_of(request).name
    async with service.pushes:
        receipt = await run_in_threadpool(_begin, service.index.reports, await request.body(), by)
    if receipt.stored:
        audit(request, "push", receipt.run)
    return JSONResponse(receipt.model_dump())


async def continue_push(request: Request) -> Response:
    """Add bytes to an upload, from a file and an offset on; the answer says where it continues."""
    service, upload, data = service_of(request), str(request.path_params["upload"]), bytearray()
    file, offset = number_of(request, "file"), number_of(request, "at")
    async with service.pushes:
        with suppress(ClientDisconnect, HTTPException):  # of a request that breaks, what had come is kept
            async for piece in request.stream():
                data += piece
        receipt = await run_in_threadpool(_add, service.index.reports, upload, file, offset, data)
    return JSONResponse(receipt.model_dump())


def _begin(reports: Path, data: bytes, by: str) -> Receipt:
    """Take a manifest: begin its upload or continue it, or store the run when all of it is there.

    Raises:
        HTTPException: 422 for a manifest or a run that is none, 409 where another run has its name, 503 and 507
            where there is no room.
        OSError: when it cannot be written; what was written before stays. So does `_add`.
    """
    try:
        manifest = Manifest.model_validate_json(data)
    except ValidationError as error:
        raise HTTPException(422, first_message(error)) from error
    with Tree(reports) as tree:
        text, files = manifest.model_dump_json().encode(), manifest.files
        name = hashlib.sha256(text).hexdigest()
        stored = Receipt(run=manifest.run, upload=name, stored=True, file=0, offset=0)
        if os.path.lexists(reports / manifest.run):
            if manifest_of(reports / manifest.run, manifest.run)[0].content != manifest.content:
                fix = "remove or rename that folder of the service, then push again"
                raise HTTPException(409, f"{manifest.run} is here already with other content: {fix}.")
            if not (reports / _FOLDER).is_symlink():  # another server stored it while this one began it again
                shutil.rmtree(reports / _FOLDER / name, ignore_errors=True)
            return stored
        if _clear(reports) >= _MAX_UPLOADS:
            raise HTTPException(503, "Too many uploads are not finished: try again later.", {"retry-after": "600"})
        folder = f"{_FOLDER}/{name}"
        tree.write(f"{folder}/manifest.json", text)
        with tree.locked(f"{folder}/lock"):
            for number, one in enumerate(files):
                if _size(tree, f"{folder}/run/{one.path}") != one.bytes:
                    offset = max(0, _size(tree, f"{folder}/part-{number}"))
                    _require_room(reports, sum(left.bytes for left in files[number:]) - offset)
                    return stored.model_copy(update={"stored": False, "file": number, "offset": offset})
            _store(tree, folder, manifest.run, by)
        return stored


def _add(reports: Path, name: str, file: int, offset: int, data: bytes | bytearray) -> Receipt:
    """Write what came for a place in the files; what is more than the file has left continues in the next.

    Raises:
        HTTPException: 404 for an upload that is none, 409 where it is at another place, or a file is not the
            manifest's; 507 where there is no room.
    """
    folder, rest = f"{_FOLDER}/{name}", memoryview(data)
    if not _UPLOAD.fullmatch(name) or not (reports / folder).is_dir():
        raise HTTPException(404, "No such upload is here: send the manifest.")
    _require_room(reports, len(data))
    with Tree(reports) as tree, tree.locked(f"{folder}/lock"):
        manifest = Manifest.model_validate_json(tree.read(f"{folder}/manifest.json"))
        for one in manifest.files[file:]:
            part = f"{folder}/part-{file}"
            if not rest and offset < one.bytes:
                break
            if max(0, _size(tree, part)) != offset:
                raise HTTPException(409, "The upload is at another place: send the manifest.")
            piece = rest[: one.bytes - offset]
            tree.write_at(part, piece, offset)
            rest, offset = rest[len(piece) :], offset + len(piece)
            if offset < one.bytes:
                break
            _verify(tree, part, f"{folder}/run/{one.path}", one)
            file, offset = file + 1, 0
    return Receipt(run=manifest.run, upload=name, stored=False, file=file, offset=offset)


def _require_room(reports: Path, need: int) -> None:
    disk = shutil.disk_usage(reports)
    if disk.free - need < min(_RESERVE, disk.total // 20):
        free = f"{format_size(disk.free)} are free and {format_size(need)} needed"
        raise HTTPException(507, f"The disk of the reports has no room ({free}): remove old runs there.")


def _store(tree: Tree, upload: str, run: str, by: str) -> None:
    """Make a run of an upload whose files are all there."""
    try:
        require_decided(tree.path / upload / "run", run)
    except FolderError as error:
        shutil.rmtree(tree.path / upload, ignore_errors=True)
        raise HTTPException(422, f"{error}.") from error
    tree.write(f"{upload}/run/{PUSHED}", json.dumps({"by": by, "at": iso_now("seconds")}) + "\n")
    tree.move(f"{upload}/run", run)
    sync_folder(tree.path)
    shutil.rmtree(tree.path / upload, ignore_errors=True)


def _clear(reports: Path) -> int:
    """Remove uploads that nobody continued for long; returns how many are left."""
    left, folder = 0, reports / _FOLDER
    with suppress(OSError):
        for one in () if folder.is_symlink() else folder.iterdir():
            if time.time() - one.stat(follow_symlinks=False).st_mtime < _KEPT_S:
                left += 1
            elif _UPLOAD.fullmatch(one.name):
                shutil.rmtree(one, ignore_errors=True)
    return left


def _verify(tree: Tree, part: str, to: str, one: ManifestFile) -> None:
    """Make a file of the run of what has come, when it is the manifest's."""
    with tree.open(part) as file:
        right = sha256_of(file) == one.sha256
        os.utime(file.fileno(), ns=(one.mtime_ns, one.mtime_ns))
        os.fsync(file.fileno())
    if not right:
        tree.remove(part)
        raise HTTPException(409, f"{one.path} has another checksum than in the manifest: it is sent again.")
    tree.move(part, to)


def _size(tree: Tree, path: str) -> int:
    """The size of a regular file; -1 where there is none."""
    return tree.stat(path).st_size if tree.has_file(path) else -1
