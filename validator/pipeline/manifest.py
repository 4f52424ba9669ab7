"""What a run folder holds, by paths, sizes and checksums: how one that is pushed is described and compared."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, get_args

from pydantic import AfterValidator, Field, ValidationError, model_validator

from validator.documents import MAX_DEPTH
from validator.errors import FolderError
from validator.files import Tree, sha256_of
from validator.history.read import PIN, read_entry
from validator.model.units import Frozen
from validator.model.verdict import Decision
from validator.runs.folder import JOURNAL
from validator.runs.pushed import PUSHED
from validator.text import format_size, one_line

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
        folders = {
            "/".join(parts[:end]) for parts in (path.split("/") for path in sizes) for end in range(1, len(parts))
        }
        if len(sizes) < len(self.files) or not folders.isdisjoint(sizes):
            raise ValueError("a path is there twice")
        for name in _REQUIRED:
            if name not in sizes:
                raise ValueError(f"{name} is missing, so it is no run folder")
        for name in (*_REQUIRED, JOURNAL):
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
            there = {
                entry.path: entry.bytes for entry in tree.walk() if entry.kind == "file" and entry.path not in _OWN
            }
            if len(there) != len(self.files):
                return "number of files"
            for one in self.files:
                if there.get(one.path) != one.bytes:
                    return f"size of {one.path}"
            for one in self.files:
                with tree.open(one.path) as file:
                    if sha256_of(file) != one.sha256:
                        return f"checksum of {one.path}"
        return None


def manifest_of(root: Path, run: str) -> tuple[Manifest, int]:
    """The manifest of a run folder, and how many links and special files it leaves out.

    Raises:
        FolderError: when it holds what cannot be pushed.
        OSError: when a file cannot be read.
    """
    with Tree(root) as tree:
        found = [entry for entry in tree.walk() if entry.path not in _OWN]
        files = [
            {"path": entry.path, "bytes": entry.bytes, "mtime_ns": entry.mtime_ns, "sha256": _NO_SUM}
            for entry in found
            if entry.kind == "file"
        ]
        try:
            Manifest.model_validate({"run": run, "files": files})  # the limits, before everything is read
            for one in files:
                with tree.open(str(one["path"])) as file:
                    one["sha256"] = sha256_of(file)
            made = Manifest.model_validate({"run": run, "files": files})
        except ValidationError as error:
            raise FolderError(f"{root} cannot be pushed: {first_message(error)}") from None
    return made, sum(entry.kind in ("link", "other") for entry in found)


def is_decided(root: Path, run: str) -> bool:
    """Whether a folder is that run's and has a decision; whatever cannot be read is neither."""
    try:
        with Tree(root) as tree:
            header = tree.json("run.json")
        entry = read_entry(root)
    except Exception:  # noqa: BLE001 -- it may come from anywhere
        return False
    if entry is None or not isinstance(header, dict) or not header.get("run_id") == entry.run_id == run:
        return False
    return entry.decision in get_args(Decision) and entry.decision != "IN_PROGRESS"


def first_message(error: ValidationError) -> str:
    """The first thing that is wrong with a manifest: its field, the value and why."""
    first = error.errors()[0]
    place = "".join(f"{part} " for part in first["loc"])
    value = f"{place}{one_line(repr(first['input']), limit=80)}: " if place else ""
    return value + first["msg"].removeprefix("Value error, ")
