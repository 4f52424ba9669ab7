"""The run folder: its name, its header, and the files that every stage finds in it.

A run folder can be moved or copied to another machine and judged there again; nothing in it needs an absolute path.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import socket
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from pydantic import Field

import validator
from validator.model.base import Frozen
from validator.model.runbook import Runbook
from validator.runbook import LoadedRunbook

__all__ = ["FolderError", "Header", "RunFolder", "utc_now"]

_HASH_LIMIT_BYTES = 64 * 2**20


class FolderError(Exception):
    """A folder that is not a run folder, or one that cannot be read. The message says what to do."""


class Header(Frozen):
    """run.json: written once at the start, never changed."""

    schema_version: int = 1
    run_id: str
    validator_version: str
    started: str = Field(description="UTC, ISO 8601.")
    runbook_path: str
    runbook_sha256: str
    overrides: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    cwd: str
    python: str
    pid: int
    pid_created: float
    host: str
    runbook: Runbook


def utc_now() -> str:
    """The present moment as ISO 8601 in UTC, to the millisecond."""
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9-]+", "-", text.lower()).strip("-")[:24] or "host"


@dataclass(frozen=True)
class RunFolder:
    """Paths below one run folder."""

    root: Path
    header: Header

    @classmethod
    def create(
        cls, loaded: LoadedRunbook, *, parent: Path, python: str, only: Sequence[str], skip: Sequence[str]
    ) -> RunFolder:
        """A new folder `<UTC time>-<runbook>-<host>-<id>` below `parent`, with its header and the runbook's source.

        Raises:
            FolderError: when the folder cannot be written.
        """
        import psutil

        started = utc_now()
        stamp = re.sub(r"[-:]|\.\d+", "", started)
        run_id = f"{stamp}-{loaded.runbook.name}-{_slug(socket.gethostname())}-{secrets.token_hex(2)}"
        header = Header(
            run_id=run_id,
            validator_version=validator.__version__,
            started=started,
            runbook_path=str(loaded.path),
            runbook_sha256=loaded.sha256,
            overrides=tuple(loaded.overrides),
            only=tuple(only),
            skip=tuple(skip),
            cwd=str(Path.cwd()),
            python=python,
            pid=os.getpid(),
            pid_created=psutil.Process().create_time(),
            host=socket.gethostname(),
            runbook=loaded.runbook,
        )
        root = parent.resolve() / run_id
        try:
            root.mkdir(parents=True)
            (root / "runbook.yaml").write_text(loaded.text, encoding="utf-8")
            text = header.model_dump_json(by_alias=True, indent=2)
            (root / "run.json").write_text(text + "\n", encoding="utf-8")
        except OSError as error:
            raise FolderError(
                f"the run folder {root} cannot be written: {error.strerror}; choose another with --out"
            ) from error
        return cls(root=root, header=header)

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """The run folder at `path`.

        Raises:
            FolderError: when it is not one, or its header cannot be read.
        """
        header = path / "run.json"
        if not header.is_file():
            raise FolderError(
                f"{path} is not a run folder: it has no run.json; give a folder that `validator run` made"
            )
        try:
            return cls(root=path.resolve(), header=Header.model_validate_json(header.read_text(encoding="utf-8")))
        except ValueError as error:
            first = str(error).splitlines()[0]
            raise FolderError(
                f"{header} cannot be read ({first}); it was damaged or made by another version"
            ) from error

    @property
    def journal(self) -> Path:
        """journal.jsonl."""
        return self.root / "journal.jsonl"

    @property
    def environment(self) -> Path:
        """environment.json."""
        return self.root / "environment.json"

    def load_environment(self) -> dict[str, Any]:
        """The snapshot of the machine; empty when it was never taken or cannot be read."""
        try:
            found = json.loads(self.environment.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def runner_alive(self) -> bool:
        """Whether the process that made this folder still runs here (pid and creation time agree)."""
        import psutil

        if self.header.host != socket.gethostname():
            return False
        try:
            return abs(psutil.Process(self.header.pid).create_time() - self.header.pid_created) < 1.0
        except psutil.Error:
            return False

    def artifacts(self) -> Iterator[tuple[str, int, str | None]]:
        """(path relative to the folder, bytes, sha256) of every file but the renderings of the result.

        Files above 64 MiB (checkpoints, traces) are listed without a hash.
        """
        for path in sorted(self.root.rglob("*")):
            relative = path.relative_to(self.root).as_posix()
            if path.is_symlink() or not path.is_file() or relative in _RENDERINGS:
                continue
            size = path.stat().st_size
            digest = hashlib.sha256(path.read_bytes()).hexdigest() if size <= _HASH_LIMIT_BYTES else None
            yield relative, size, digest


_RENDERINGS = frozenset({"result.json", "report.html", "report.md", "junit.xml", "recommended.env", "journal.jsonl"})


def interpreter() -> str:
    """The Python that runs trainers: the one that runs this."""
    return sys.executable
