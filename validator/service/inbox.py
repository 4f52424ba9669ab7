"""Uploads of run folders: files grow in a hidden folder, and one rename makes a run of them when all are right.

An upload is named by the checksum of its manifest, and all that is known of it is in its folder. So any server over the
reports folder continues it, also after a kill: a file in `run/` is whole and verified, `part-N` is what has come of
file N. An address leads here by checksums and numbers alone; paths are those of the manifest, which was checked.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

from pydantic import ValidationError
from starlette.exceptions import HTTPException

from validator.errors import FolderError
from validator.files import Tree, sha256_of, sync_folder
from validator.pipeline.manifest import Manifest, ManifestFile, Receipt, decided_run, first_message
from validator.runs.pushed import PUSHED
from validator.text import format_size
from validator.times import iso_now

_FOLDER = ".push"
_UPLOAD = re.compile(r"[0-9a-f]{64}")
_MAX_REQUESTS = 16
_MAX_UPLOADS = 100
_KEPT_S = 7 * 86400.0
"""How long an upload is kept that nobody continues."""

_RESERVE = 1 << 30
"""Bytes of the disk that uploads leave free; a twentieth of a disk that is smaller than 20 GiB."""


class Inbox:
    """The uploads to a reports folder. Its methods block: they are called in `threads`, so that pages have theirs."""

    def __init__(self, reports: Path) -> None:
        self.threads = ThreadPoolExecutor(4, thread_name_prefix="push")
        self._reports = reports
        self._requests = 0
        self._clear()

    @contextmanager
    def request(self) -> Iterator[None]:
        """Count a request while it lasts; raises HTTPException 503 when there are too many."""
        if self._requests >= _MAX_REQUESTS:
            raise HTTPException(503, "Too much is being pushed: try again.", {"retry-after": "5"})
        self._requests += 1
        try:
            yield
        finally:
            self._requests -= 1

    def begin(self, data: bytes, by: str) -> Receipt:
        """Take a manifest: begin its upload or continue it, or store the run when all of it is there.

        Raises:
            HTTPException: 422 for a manifest or a run that is none, 409 where another run has its name, 503 and 507
                where there is no room.
        """
        with _refusing(), Tree(self._reports) as tree:
            manifest = Manifest.model_validate_json(data)
            text, files = manifest.model_dump_json(), manifest.files
            name = hashlib.sha256(text.encode()).hexdigest()
            stored = Receipt(run=manifest.run, upload=name, stored=True, file=len(files), offset=0)
            if os.path.lexists(self._reports / manifest.run):
                self._require_same(manifest)
                return stored
            if self._clear() >= _MAX_UPLOADS:
                raise HTTPException(503, "Too many uploads are not finished: try again later.", {"retry-after": "600"})
            folder = f"{_FOLDER}/{name}"
            tree.write(f"{folder}/manifest.json", text)
            with tree.locked(f"{folder}/lock"):
                for number, one in enumerate(files):
                    if _size(tree, f"{folder}/run/{one.path}") != one.bytes:
                        offset = max(0, _size(tree, f"{folder}/part-{number}"))
                        self._require_room(sum(left.bytes for left in files[number:]) - offset)
                        return stored.model_copy(update={"stored": False, "file": number, "offset": offset})
                self._store(tree, folder, manifest.run, by)
            return stored

    def add(self, name: str, file: int, offset: int, data: bytes | bytearray) -> Receipt:
        """Write what came for a place in the files; what is more than the file has left continues in the next.

        Raises:
            HTTPException: 404 for an upload that is none, 409 where it is at another place, or a file is not the
                manifest's; 507 where there is no room.
        """
        folder = f"{_FOLDER}/{name}"
        if not _UPLOAD.fullmatch(name) or not (self._reports / folder).is_dir():
            raise HTTPException(404, "No such upload is here: send the manifest.")
        self._require_room(len(data))
        rest = memoryview(data)
        with _refusing(), Tree(self._reports) as tree, tree.locked(f"{folder}/lock"):
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

    def _require_same(self, manifest: Manifest) -> None:
        other = manifest.difference(self._reports / manifest.run)
        if other is not None:
            why = f"{manifest.run} is here already with other content ({other})"
            raise HTTPException(409, f"{why}: remove or rename that folder of the service, then push again.")

    def _require_room(self, need: int) -> None:
        disk = shutil.disk_usage(self._reports)
        if disk.free - need < min(_RESERVE, disk.total // 20):
            free = f"{format_size(disk.free)} are free and {format_size(need)} needed"
            raise HTTPException(507, f"The disk of the reports has no room ({free}): remove old runs there.")

    def _store(self, tree: Tree, upload: str, run: str, by: str) -> None:
        """Make a run of an upload whose files are all there."""
        try:
            decided_run(self._reports / upload / "run", run)
        except FolderError as error:
            shutil.rmtree(self._reports / upload, ignore_errors=True)
            raise HTTPException(422, f"{error}.") from error
        tree.write(f"{upload}/run/{PUSHED}", json.dumps({"by": by, "at": iso_now("seconds")}) + "\n")
        tree.move(f"{upload}/run", run)
        sync_folder(self._reports)
        shutil.rmtree(self._reports / upload, ignore_errors=True)

    def _clear(self) -> int:
        """Remove uploads that nobody continued for long; returns how many are left."""
        left, folder = 0, self._reports / _FOLDER
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


@contextmanager
def _refusing() -> Iterator[None]:
    """What is no manifest, and what the disk refuses, as an answer; what was written before stays."""
    try:
        yield
    except ValidationError as error:
        raise HTTPException(422, first_message(error)) from error
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise HTTPException(507, "The disk of the reports is full: remove old runs there.") from error
        raise HTTPException(503, f"The upload cannot be written: {error.strerror}.", {"retry-after": "5"}) from error
