"""The run folder: its name, its header, its files, and the last GO beside it.

A run folder can be moved or copied to another machine and judged there again; nothing in it needs an absolute path.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import secrets
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import Field

import validator
from validator.documents import MAX_BYTES
from validator.errors import FolderError
from validator.files import Tree, replace_file
from validator.model.machine import machine_class, sound_snapshot
from validator.model.runbook import Runbook
from validator.model.schemas import SCHEMAS, UnknownKind
from validator.model.units import Frozen, RunId
from validator.model.verdict import ValidationReport
from validator.runs.pushed import was_pushed
from validator.times import iso_now

if TYPE_CHECKING:
    from validator.runbook.load import LoadedRunbook


RENDERINGS = ("result.json", "report.html", "report.md", "junit.xml", "recommended.env")
"""The files of a report, in the order in which they are written: result.json is the truth, the others show it."""


HAND_OVER = ("good_nodes.txt", "ticket.txt")
"""Of a validation on a cluster: the nodes to use, and a text for who provides them."""


class ReportPaths(NamedTuple):
    """Where the renderings of one report are."""

    result: Path
    html: Path
    markdown: Path
    junit: Path
    recommended_env: Path


JOURNAL = "journal.jsonl"

_MAX_HASHED = 2**30

_NOT_ALLOWED = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR, errno.EEXIST, errno.ENAMETOOLONG)


class Runner(Frozen):
    """The process that carries a validation out. A pid alone may have been given to another process since."""

    pid: int
    pid_created: float = Field(description="Seconds since the epoch, as the kernel says.")
    host: str

    def alive(self) -> bool:
        """Whether it still runs here (pid and creation time agree)."""
        import psutil

        if self.host != socket.gethostname() or self.pid <= 0:
            return False
        try:
            process = psutil.Process(self.pid)
            same = abs(process.create_time() - self.pid_created) < 1.0
            return same and process.status() != psutil.STATUS_ZOMBIE
        except psutil.Error:
            return False


def runbook_was_edited(folder: RunFolder) -> bool:
    """Whether the file that the runbook was read from is another one now; one that is gone was not edited."""
    path = Path(folder.header.cwd) / folder.header.runbook_path
    try:
        with Tree(path.resolve().parent) as tree:
            return hashlib.sha256(tree.read(path.resolve().name)).hexdigest() != folder.header.runbook_sha256
    except OSError:
        return False


def this_runner() -> Runner:
    """The present process as a runner."""
    import psutil

    return Runner(pid=os.getpid(), pid_created=psutil.Process().create_time(), host=socket.gethostname())


class Header(Frozen):
    """run.json: written once at the start, never changed."""

    schema_version: int = 1
    run_id: RunId
    validator_version: str
    started: str = Field(description="UTC, ISO 8601.")
    runbook_path: str
    runbook_sha256: str
    overrides: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    fail_fast: bool = False
    command: tuple[str, ...] = Field((), description="Of `run -- COMMAND`: the options, `--` and the command.")
    written_steps: dict[str, int] = Field(
        default_factory=dict, description="Steps in the runbook's file of each phase whose steps an override changed."
    )
    cwd: str
    python: str
    pid: int
    pid_created: float
    host: str
    runbook: Runbook

    @property
    def runner(self) -> Runner:
        """The process that made the folder."""
        return Runner(pid=self.pid, pid_created=self.pid_created, host=self.host)


def utc_now() -> str:
    """The present moment as ISO 8601 in UTC, to the millisecond."""
    return iso_now().replace("+00:00", "Z")


def new_run_id(started: str, name: str) -> str:
    """The name of a new folder: `20261121T020000Z-smoke-cpu-myhost-3fa9`, from UTC time, `name` and this host."""
    stamp = re.sub(r"[-:]|\.\d+", "", started)
    host = re.sub(r"[^a-z0-9-]+", "-", socket.gethostname().lower()).strip("-")[:24] or "host"
    return f"{stamp}-{name}-{host}-{secrets.token_hex(2)}"


@dataclass(frozen=True)
class RunFolder:
    """Paths below one run folder."""

    root: Path
    header: Header

    @classmethod
    def create(
        cls,
        loaded: LoadedRunbook,
        *,
        parent: Path,
        python: str,
        only: Sequence[str],
        skip: Sequence[str],
        fail_fast: bool = False,
        command: Sequence[str] = (),
    ) -> RunFolder:
        """A new folder `<UTC time>-<runbook>-<host>-<id>` below `parent`, with its header and the runbook's source.

        Raises:
            FolderError: when the folder cannot be written.
        """
        started = utc_now()
        run_id = new_run_id(started, loaded.runbook.name)
        header = Header(
            run_id=run_id,
            validator_version=validator.__version__,
            started=started,
            runbook_path=str(loaded.path),
            runbook_sha256=loaded.sha256,
            overrides=tuple(loaded.overrides),
            only=tuple(only),
            skip=tuple(skip),
            fail_fast=fail_fast,
            command=tuple(command),
            written_steps=loaded.written_steps,
            cwd=str(Path.cwd()),
            python=python,
            **this_runner().model_dump(),
            runbook=loaded.runbook,
        )
        root = parent.resolve() / run_id
        for path in (str(root), header.cwd, header.runbook_path, python):
            if "\N{REPLACEMENT CHARACTER}" in path.encode("utf-8", "surrogateescape").decode("utf-8", "replace"):
                shown = path.encode("utf-8", "replace").decode()
                raise FolderError(f"the path {shown} is not in UTF-8, as every record of it would be; rename it")
        try:
            root.mkdir(parents=True)
            replace_file(root / "runbook.yaml", loaded.text)
            text = header.model_dump_json(by_alias=True, indent=2)
            replace_file(root / "run.json", text + "\n")
        except OSError as error:
            if error.errno not in _NOT_ALLOWED:
                raise  # a disk that is full or failing is the machine's fault, not the user's
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
        try:
            with Tree(path) as tree:
                stored = tree.json("run.json")
            _require_kinds(stored.get("runbook") if isinstance(stored, dict) else None)
            header = Header.model_validate(stored)
        except OSError as error:
            raise FolderError(
                f"{path} is not a run folder: {error.strerror or error}; give a folder that `validator run` made"
            ) from error
        except UnknownKind as error:
            raise FolderError(f"{path} holds a runbook that cannot be read here: {error}") from error
        except ValueError as error:
            first = str(error).splitlines()[0]
            raise FolderError(
                f"{path / 'run.json'} cannot be read ({first}); it was damaged or made by another version"
            ) from error
        return cls(root=path.resolve(), header=header)

    def tree(self) -> Tree:
        """The folder held by a handle, for reading and writing below it."""
        return Tree(self.root)

    @property
    def journal(self) -> Path:
        """journal.jsonl."""
        return self.root / JOURNAL

    @property
    def environment(self) -> Path:
        """environment.json."""
        return self.root / "environment.json"

    @property
    def drawing(self) -> Path:
        """Where the live report is drawn before it is moved into place; there only while a runner works."""
        return self.root / ".drawing"

    def load_environment(self) -> dict[str, Any]:
        """The snapshot of the machine; empty when it was never taken or cannot be read."""
        try:
            return sound_snapshot(self._json(self.environment.name))
        except (OSError, ValueError):
            return {}

    def save_environment(self, found: Mapping[str, Any]) -> None:
        """Write the snapshot of the machine."""
        replace_file(self.environment, json.dumps(found, indent=2, default=str) + "\n")

    def load_last_go(self) -> ValidationReport | None:
        """The report of the last GO when this validation began; None where there was none, or none is kept."""
        try:
            return ValidationReport.model_validate(self._json("last_go.json"))
        except (OSError, ValueError):
            return None

    def save_last_go(self, text: str) -> None:
        """Keep the last GO's result.json in the folder: judging again must not depend on other run folders."""
        replace_file(self.root / "last_go.json", text)

    def artifacts(self) -> Iterator[tuple[str, int, str | None]]:
        """(path relative to the folder, bytes, sha256) of every file but the renderings of the result.

        Files above 64 MiB (checkpoints, traces) are listed without a hash, and so are the largest where all others
        have more than 1 GiB together: a report must not take as long as the trainer wrote.
        """
        with self.tree() as tree:
            listed = [entry for entry in tree.walk() if entry.kind == "file" and self._is_artifact(entry.path)]
            room, hashed = _MAX_HASHED, set[str]()
            for entry in sorted(listed, key=lambda one: one.bytes):
                room -= entry.bytes
                if entry.bytes > MAX_BYTES or room < 0:
                    break
                hashed.add(entry.path)
            for entry in listed:
                digest = None
                if entry.path in hashed:
                    with suppress(OSError):  # unreadable, or gone meanwhile: listed without a hash
                        digest = hashlib.sha256(tree.read(entry.path)).hexdigest()
                yield entry.path, entry.bytes, digest

    def _is_artifact(self, path: str) -> bool:
        return path not in _NO_ARTIFACTS and not path.startswith(f"{self.drawing.name}/")

    def _json(self, relative: str) -> Any:
        with self.tree() as tree:
            return tree.json(relative)


_NO_ARTIFACTS = frozenset({*RENDERINGS, *HAND_OVER, JOURNAL})


def require_made_from(folder: RunFolder, loaded: LoadedRunbook) -> None:
    """Raises FolderError when a folder was made from another runbook, by name, than the one that was read."""
    made_from = folder.header.runbook.name
    if loaded.runbook.name != made_from:
        raise FolderError(
            f"{folder.header.run_id} was made from the runbook `{made_from}`, not `{loaded.runbook.name}`; "
            "leave the runbook out, since the folder holds its own copy"
        )


# The last GO that a validation can be compared with.

_MAX_FOLDERS = 500
"""Run folders that are looked through for the last GO; the newest come first."""


def is_run_folder(path: Path) -> bool:
    with suppress(OSError), Tree(path) as tree:
        return tree.has_file("run.json")
    return False


def last_go(folder: RunFolder, environment: Mapping[str, Any]) -> RunFolder | None:
    """The newest run folder beside this one that began earlier, ended GO, and can be compared with it.

    Comparable means the same runbook by name, the same machine class, and nothing overridden or left out that was not
    so in the other. Overrides and `--only` make another experiment of the same runbook.
    """
    wanted = machine_class(environment)
    for other in _earlier(folder):
        header = other.header
        same = header.runbook.name == folder.header.runbook.name
        alike = (header.overrides, header.only, header.skip) == (
            folder.header.overrides,
            folder.header.only,
            folder.header.skip,
        )
        if same and alike and _decision(other) == "GO" and machine_class(other.load_environment()) == wanted:
            return other
    return None


def _earlier(folder: RunFolder) -> Iterator[RunFolder]:
    """Readable run folders beside this one that began before it, the newest first.

    Names begin with the second in UTC; those of one second are in the order of their headers, which have milliseconds.
    """
    try:
        found = (path for path in folder.root.parent.iterdir() if _second(path) <= _second(folder.root))
        paths = sorted((path for path in found if not was_pushed(path)), reverse=True)
    except OSError:
        return
    for _, together in groupby(paths[:_MAX_FOLDERS], key=_second):
        begun = [one for path in together if (one := _readable(path)) is not None]
        for one in sorted(begun, key=lambda one: one.header.started, reverse=True):
            if one.header.started < folder.header.started:
                yield one


def _second(path: Path) -> str:
    return path.name.partition("-")[0]


def _readable(path: Path) -> RunFolder | None:
    try:
        return RunFolder.open(path) if is_run_folder(path) else None
    except (FolderError, OSError):
        return None


def _decision(folder: RunFolder) -> str | None:
    try:
        with folder.tree() as tree:
            found = tree.json("result.json")
    except (OSError, ValueError):
        return None
    return found.get("decision") if isinstance(found, dict) else None


def _require_kinds(runbook: object) -> None:
    """Make sure that the phases of a stored runbook are of kinds that are known here.

    Raises:
        UnknownKind: for the first that is not.
    """
    phases = runbook.get("phases") if isinstance(runbook, dict) else None
    names = [phase.get("kind") for phase in phases if isinstance(phase, dict)] if isinstance(phases, list) else []
    for name in names:
        if isinstance(name, str) and name not in SCHEMAS:
            # Only a kind from outside needs the registry, which loads all that runbooks are made of.
            from validator.kinds.registry import kind_of

            kind_of(name)
