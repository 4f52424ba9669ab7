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
import stat
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

from pydantic import ValidationError
from starlette.exceptions import HTTPException

from validator.files import Tree, sha256_of, sync_folder
from validator.model.units import Frozen
from validator.pipeline.manifest import Manifest, first_message, is_decided
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

_FULL = (errno.ENOSPC, errno.EDQUOT)


class Receipt(Frozen):
    """How far an upload is: the number of the first file that is not whole, and how many bytes of it are there."""

    run: str
    upload: str
    stored: bool
    file: int
    offset: int


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
        try:
            manifest = Manifest.model_validate_json(data)
        except ValidationError as error:
            raise HTTPException(422, first_message(error)) from error
        text = manifest.model_dump_json()
        upload = _Upload(hashlib.sha256(text.encode()).hexdigest(), manifest)
        with _refusing(), Tree(self._reports) as tree:
            if os.path.lexists(self._reports / manifest.run):
                self._require_same(manifest)
                return upload.receipt(len(manifest.files), 0, stored=True)
            if self._clear() >= _MAX_UPLOADS:
                raise HTTPException(503, "Too many uploads are not finished: try again later.", {"retry-after": "600"})
            tree.write(f"{upload.folder}/manifest.json", text)
            with tree.locked(f"{upload.folder}/lock"):
                file, offset = upload.place(tree)
                if file < len(manifest.files):
                    self._require_room(sum(one.bytes for one in manifest.files[file:]) - offset)
                    return upload.receipt(file, offset)
                self._store(tree, upload, by)
        return upload.receipt(len(manifest.files), 0, stored=True)

    def opened(self, name: str) -> _Upload:
        """The upload of that name; raises HTTPException 404 where there is none."""
        if _UPLOAD.fullmatch(name):
            with suppress(OSError, ValidationError), Tree(self._reports) as tree:
                return _Upload(name, Manifest.model_validate_json(tree.read(f"{_FOLDER}/{name}/manifest.json")))
        raise HTTPException(404, "No such upload is here: send the manifest.")

    def add(self, upload: _Upload, file: int, offset: int, data: bytes) -> Receipt:
        """Write what came for a place in the files; what is more than the file has left continues in the next.

        Raises:
            HTTPException: 409 where the upload is at another place, or a file is not the manifest's; 507 where there
                is no room.
        """
        self._require_room(len(data))
        with _refusing(), Tree(self._reports) as tree, tree.locked(f"{upload.folder}/lock"):
            if not tree.has_file(f"{upload.folder}/manifest.json"):
                raise HTTPException(409, "The upload has ended: send the manifest.")
            return upload.receipt(*upload.add(tree, file, offset, memoryview(data)))

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

    def _store(self, tree: Tree, upload: _Upload, by: str) -> None:
        """Make a run of an upload whose files are all there."""
        run, folder = upload.manifest.run, self._reports / upload.folder
        if not is_decided(folder / "run", run):
            shutil.rmtree(folder, ignore_errors=True)
            raise HTTPException(422, f"run.json and result.json are not those of {run} with a decision.")
        tree.write(f"{upload.folder}/run/{PUSHED}", json.dumps({"by": by, "at": iso_now("seconds")}) + "\n")
        tree.move(f"{upload.folder}/run", run)
        sync_folder(self._reports)
        shutil.rmtree(folder, ignore_errors=True)

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


class _Upload:
    """One upload: its folder below the reports, and what will be in the run's. Its lock is held by who calls."""

    def __init__(self, name: str, manifest: Manifest) -> None:
        self.name, self.manifest = name, manifest
        self.folder = f"{_FOLDER}/{name}"

    def receipt(self, file: int, offset: int, *, stored: bool = False) -> Receipt:
        """How far it is."""
        return Receipt(run=self.manifest.run, upload=self.name, stored=stored, file=file, offset=offset)

    def place(self, tree: Tree) -> tuple[int, int]:
        """The first file that is not whole, and how much of it is there."""
        for number, one in enumerate(self.manifest.files):
            if _size(tree, f"{self.folder}/run/{one.path}") != one.bytes:
                return number, max(0, _size(tree, f"{self.folder}/part-{number}"))
        return len(self.manifest.files), 0

    def add(self, tree: Tree, file: int, offset: int, data: memoryview) -> tuple[int, int]:
        """Write data from a place on; returns the next place, and raises as `Inbox.add` does."""
        for one in self.manifest.files[file:]:
            part = f"{self.folder}/part-{file}"
            if not data and offset < one.bytes:
                break
            if max(0, _size(tree, part)) != offset:
                raise HTTPException(409, "The upload is at another place: send the manifest.")
            piece = data[: one.bytes - offset]
            tree.write_at(part, piece, offset)
            data, offset = data[len(piece) :], offset + len(piece)
            if offset < one.bytes:
                break
            self._verify(tree, part, number=file)
            file, offset = file + 1, 0
        return file, offset

    def _verify(self, tree: Tree, part: str, *, number: int) -> None:
        one = self.manifest.files[number]
        with tree.open(part) as file:
            right = sha256_of(file) == one.sha256
            os.utime(file.fileno(), ns=(one.mtime_ns, one.mtime_ns))
            os.fsync(file.fileno())
        if not right:
            tree.remove(part)
            raise HTTPException(409, f"{one.path} has another checksum than in the manifest: it is sent again.")
        tree.move(part, f"{self.folder}/run/{one.path}")


def _size(tree: Tree, path: str) -> int:
    """The size of a regular file; -1 where there is none."""
    try:
        found = tree.stat(path)
    except OSError:
        return -1
    return found.st_size if stat.S_ISREG(found.st_mode) else -1


@contextmanager
def _refusing() -> Iterator[None]:
    """What the disk refuses, as an answer; what was written before stays, and the upload continues there."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise HTTPException(507, "The disk of the reports is full: remove old runs there.") from error
        raise HTTPException(503, f"The upload cannot be written: {error.strerror}.", {"retry-after": "5"}) from error
