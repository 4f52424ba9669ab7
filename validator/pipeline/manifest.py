"""What a run folder holds, by paths, sizes and checksums: how one that is pushed is described and compared."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from pathlib import Path, PurePosixPath
from typing import Annotated, get_args

from pydantic import AfterValidator, Field, ValidationError, model_validator

from validator.documents import MAX_DEPTH
from validator.errors import FolderError
from validator.files import EntryKind, Tree, TreeEntry, sha256_of
from validator.history.read import PIN, HistoryEntry, read_entry
from validator.model.units import Frozen
from validator.model.verdict import Decision
from validator.runs.folder import JOURNAL
from validator.runs.pushed import PUSHED
from validator.text import format_size, one_line
from validator.times import parse_time, utc_now

MAX_FILES = 10_000
MAX_FILE_BYTES = 4 << 30
MAX_BYTES = 16 << 30
_MAX_PATH, _MAX_NAME = 1024, 255
"""Bytes of a path and of each of its parts."""

_REQUIRED = ("run.json", "result.json")
_MAX_PARSED = 16 << 20
"""Size of what a service reads whole."""

_OWN = frozenset({PIN, PUSHED})
"""Files that belong to the place where a folder lies, not to the run."""

_AHEAD = timedelta(minutes=5)
"""How far the clock of another machine may be ahead."""

_NO_SUM = "0" * 64


def _plain_path(path: str) -> str:
    parts = path.split("/")
    plain = path.isprintable() and len(path.encode()) <= _MAX_PATH and len(parts) <= MAX_DEPTH
    if not plain or any(part in ("", ".", "..") or len(part.encode()) > _MAX_NAME for part in parts) or path in _OWN:
        raise ValueError(f"the file name {path!r} cannot be pushed; rename the file, or remove it")
    return path


class ManifestFile(Frozen):
    """A regular file below a run folder. The time is part of the evidence: it says which process wrote the file."""

    path: Annotated[str, AfterValidator(_plain_path)]
    bytes: int = Field(ge=0, le=MAX_FILE_BYTES)
    mtime_ns: int = Field(ge=0, lt=2**62)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class Manifest(Frozen):
    """A run folder: its name, which `validator run` made from the time and the host, and its files."""

    run: str = Field(pattern=r"^[0-9]{8}T[0-9]{6}Z-[A-Za-z0-9._-]{1,200}$")
    files: tuple[ManifestFile, ...] = Field(max_length=MAX_FILES)

    @model_validator(mode="after")
    def _can_be_stored(self) -> Manifest:
        sizes = {one.path: one.bytes for one in self.files}
        folders = {str(folder) for path in sizes for folder in PurePosixPath(path).parents}
        if len(sizes) < len(self.files) or not folders.isdisjoint(sizes):
            raise ValueError("a path is there twice")
        for name in (*_REQUIRED, JOURNAL):
            if name in _REQUIRED and name not in sizes:
                raise ValueError(f"{name} is missing, so it is no run folder")
            if sizes.get(name, 0) > _MAX_PARSED:
                raise ValueError(f"{name} is larger than {format_size(_MAX_PARSED)}")
        if sum(sizes.values()) > MAX_BYTES:
            raise ValueError(
                f"the files have more than {format_size(MAX_BYTES)} together; remove checkpoints and traces"
            )
        return self

    def difference(self, root: Path) -> str | None:
        """By what a run folder differs from this one; None where all files are the same. Only own files are named."""
        with Tree(root, follow=False) as tree:
            if {one.path: one.bytes for one in _of_kind(tree, "file")} != {one.path: one.bytes for one in self.files}:
                return "files or their sizes"
            return next((f"checksum of {one.path}" for one in self.files if _sum(tree, one.path) != one.sha256), None)


class Receipt(Frozen):
    """How far an upload is: the number of the first file that is not whole, and how many bytes of it are there."""

    run: str
    upload: str = Field(pattern=r"^[0-9a-f]{64}$")
    stored: bool
    file: int = Field(ge=0)
    offset: int = Field(ge=0)


def manifest_of(root: Path, run: str) -> tuple[Manifest, int]:
    """The manifest of a run folder, and how many links and special files it leaves out.

    Raises:
        FolderError: when it holds what cannot be pushed.
        OSError: when a file cannot be read.
    """
    with Tree(root) as tree:
        files = [
            {"path": one.path, "bytes": one.bytes, "mtime_ns": one.mtime_ns, "sha256": _NO_SUM}
            for one in _of_kind(tree, "file")
        ]
        try:
            made = Manifest.model_validate({"run": run, "files": files})  # the limits, before everything is read
        except ValidationError as error:
            raise FolderError(f"{root} cannot be pushed: {first_message(error)}") from None
        summed = tuple(one.model_copy(update={"sha256": _sum(tree, one.path)}) for one in made.files)
        return made.model_copy(update={"files": summed}), len(_of_kind(tree, "link", "other"))


def _of_kind(tree: Tree, *kinds: EntryKind) -> list[TreeEntry]:
    return [entry for entry in tree.walk() if entry.kind in kinds and entry.path not in _OWN]


def _sum(tree: Tree, path: str) -> str:
    with tree.open(path) as file:
        return sha256_of(file)


def decided_run(root: Path, run: str) -> HistoryEntry:
    """The entry of the run folder of that name, which may come from anywhere.

    Raises:
        FolderError: when it is another run's, has no decision, or did not start when its name says. A start in the
            future would be the latest for long, and hide what is decided until then.
    """
    header, entry = None, read_entry(root)
    with suppress(OSError, ValueError), Tree(root) as tree:
        header = tree.json("run.json")
    if entry is None or not isinstance(header, dict) or not header.get("run_id") == entry.run_id == run:
        raise FolderError(f"run.json and result.json are not those of {run}")
    if entry.decision not in get_args(Decision) or entry.decision == "IN_PROGRESS":
        raise FolderError(f"{run} has no decision; bring it to one by: validator run --resume {run}")
    moment = parse_time(entry.started)
    times = moment and (f"{moment:%Y%m%dT%H%M%SZ}", f"{moment:%Y-%m-%dT%H:%M:%S}")  # of the latter, since lists sort it
    if times != (run[:16], entry.started[:19]) or header.get("started") != entry.started:
        raise FolderError(f"{run} started by its run.json and result.json at another time than by its name")
    if moment is not None and moment - utc_now() > _AHEAD:
        raise FolderError(f"{run} lies in the future of this machine; set the clocks of both")
    return entry


def first_message(error: ValidationError) -> str:
    """The first thing that is wrong with a manifest: its field, the value and why."""
    first = error.errors()[0]
    place = "".join(f"{part} " for part in first["loc"])
    value = f"{place}{one_line(repr(first['input']), limit=80)}: " if place else ""
    return value + first["msg"].removeprefix("Value error, ")
