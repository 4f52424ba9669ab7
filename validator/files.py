"""Files below a folder: the one way to read what others wrote, and the one way to write.

A run folder holds what a trainer, another user or a stranger wrote. `Tree` holds such a folder by a directory handle:
below it no link is followed, only regular files are opened, no open ever blocks, and every read has a limit. What
cannot be read is an `Unreadable`, which says what and why. The folder itself is the operator's choice, so links that
lead *to* it are followed, once.

Source of the technique: openat(2) with O_NOFOLLOW for each component, so that a path cannot change between a check and
its use.
"""

from __future__ import annotations

import errno
import json
import os
import re
import secrets
import stat
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, BinaryIO, Literal

__all__ = [
    "MAX_BYTES",
    "MAX_DEPTH",
    "Entry",
    "Tree",
    "Unreadable",
    "is_file",
    "new_file",
    "open_file",
    "parse_json",
    "parse_yaml",
    "reading_below",
    "replace_file",
    "stat_file",
    "sync_folder",
    "unpack",
    "write_atomic",
]

MAX_BYTES = 64 * 2**20
"""Largest file that is read whole, and largest content that is unpacked, unless a caller says otherwise."""

MAX_DEPTH = 64
"""Deepest nesting of JSON and of folders that is read: nothing of the contract comes near, and code may recurse."""

_MAX_INTEGER = 2**63 - 1
_MAX_VALUES = 100_000
_INTEGER_DIGITS = 20
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")

Kind = Literal["file", "folder", "link", "other"]


class Unreadable(OSError):
    """A file below a tree that is not read: a link, a device, too large, or gone. The message says which and why."""


@dataclass(frozen=True)
class Entry:
    """Something below a tree: its path relative to the root, what it is, and its size in bytes (0 unless a file)."""

    path: str
    kind: Kind
    bytes: int
    mtime_ns: int


class Tree:
    """A folder held by a handle. Use it as a context manager, or `close` it.

    Args:
        path: the folder, as the operator gave it; links that lead to it are followed.
        link_roots: folders, as the operator named them; a file that is a link to below one of them is opened there.

    Raises:
        OSError: when it is no folder, or may not be read.
    """

    def __init__(self, path: Path, *, link_roots: Sequence[str] = ()) -> None:
        self._link_roots = tuple(Path(root).expanduser() for root in link_roots)
        self.given = path
        self.path = Path(os.path.realpath(path))  # Path.resolve raises RuntimeError where links go round
        self._fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def __enter__(self) -> Tree:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the handle back. A closed tree reads and writes nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    @contextmanager
    def _parent(self, relative: str | PurePath, *, make: bool = False) -> Iterator[tuple[int, str]]:
        """A handle of the folder that holds `relative`, and the last component; no link is followed on the way."""
        parts = _parts(relative)
        held = os.dup(self._fd)
        try:
            for part in parts[:-1]:
                if make:
                    with suppress(FileExistsError):
                        os.mkdir(part, dir_fd=held)
                try:
                    inner = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=held)
                except OSError as error:
                    raise _refused(error, relative) from error
                os.close(held)
                held = inner
            yield held, parts[-1]
        finally:
            os.close(held)

    @contextmanager
    def open(self, relative: str | PurePath) -> Iterator[BinaryIO]:
        """A regular file below the tree, opened for reading.

        Raises:
            Unreadable: when it is a link, or anything but a regular file, or cannot be opened.
        """
        with self._parent(relative) as (folder, name):
            try:
                # Without O_NONBLOCK a FIFO without a writer would block for ever.
                fd = os.open(
                    name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC, dir_fd=folder
                )
            except OSError as error:
                linked = self._linked(relative) if error.errno == errno.ELOOP else None
                if linked is None:
                    raise _refused(error, relative) from error
                root, inside = linked
                with Tree(root) as tree, tree.open(inside) as file:
                    yield file
                return
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise Unreadable(errno.EINVAL, f"{relative} is not a regular file")
        with os.fdopen(fd, "rb") as file:
            yield file

    def _linked(self, relative: str | PurePath) -> tuple[Path, PurePath] | None:
        """The root and the path below it that a link leads to, where it leads to one."""
        target = Path(os.path.realpath(self.path / relative))
        for root in map(os.path.realpath, self._link_roots):
            if target != Path(root) and target.is_relative_to(root):
                return Path(root), target.relative_to(root)
        return None

    def read(self, relative: str | PurePath, *, limit: int = MAX_BYTES) -> bytes:
        """The bytes of a regular file of at most `limit` bytes.

        Raises:
            Unreadable: as `open` does, and when the file is larger.
        """
        with self.open(relative) as file:
            data = file.read(limit + 1)
        if len(data) > limit:
            raise Unreadable(errno.EFBIG, f"{relative} is larger than {limit} bytes, the limit for such a file")
        return data

    def text(self, relative: str | PurePath, *, limit: int = MAX_BYTES) -> str:
        """The same as text; bytes that are not UTF-8 become replacement characters."""
        return self.read(relative, limit=limit).decode("utf-8", "replace")

    def json(self, relative: str | PurePath, *, limit: int = MAX_BYTES) -> Any:
        """The value of a JSON file.

        Raises:
            Unreadable: as `read` does.
            ValueError: as `parse_json` does.
        """
        return parse_json(self.read(relative, limit=limit))

    def stat(self, relative: str | PurePath) -> os.stat_result:
        """What lies at a path, links not followed.

        Raises:
            Unreadable: when nothing lies there, or a folder on the way is a link.
        """
        with self._parent(relative) as (folder, name):
            try:
                return os.stat(name, dir_fd=folder, follow_symlinks=False)
            except OSError as error:
                raise _refused(error, relative) from error

    def has_file(self, relative: str | PurePath) -> bool:
        """Whether a regular file lies there."""
        try:
            return stat.S_ISREG(self.stat(relative).st_mode)
        except OSError:
            return False

    def walk(self) -> Iterator[Entry]:
        """Everything below the tree, sorted by path within each folder; links are listed and not followed.

        Folders nested deeper than 64 are listed, and not entered.
        """
        yield from _walk(self._fd, "")

    def write(self, relative: str | PurePath, data: bytes | str, *, sync: bool = True) -> None:
        """Replace a file at once: written beside it, synced, renamed. A reader never sees half of it.

        A link at that place is replaced, not followed; missing folders are made; the mode follows the umask.

        Raises:
            OSError: when it cannot be written; then nothing of it is left.
        """
        content = data.encode("utf-8", "backslashreplace") if isinstance(data, str) else data
        with self._parent(relative, make=True) as (folder, name):
            _replace_in(folder, name, content, sync=sync)

    def append(self, relative: str | PurePath, data: bytes) -> None:
        """Add to a regular file's end, and make it where there is none; neither links nor FIFOs are written to.

        Raises:
            Unreadable: when something else lies there.
            OSError: when it cannot be written.
        """
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with self._parent(relative) as (folder, name):
            try:
                fd = os.open(name, flags, 0o666, dir_fd=folder)
            except OSError as error:
                raise _refused(error, relative) from error
        with os.fdopen(fd, "wb", buffering=0) as file:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise Unreadable(errno.EINVAL, f"{relative} is not a regular file")
            file.write(data)

    def remove(self, relative: str | PurePath) -> None:
        """Remove a file or a link; nothing happens where there is none."""
        with suppress(FileNotFoundError, Unreadable), self._parent(relative) as (folder, name):
            os.unlink(name, dir_fd=folder)


_reading: ContextVar[Tree | None] = ContextVar("reading", default=None)


@contextmanager
def reading_below(root: Path) -> Iterator[Tree]:
    """Hold a folder while `open_file`, `is_file` and `stat_file` read what lies in it; all else is refused to them.

    Raises:
        OSError: when it is no folder, or may not be read.
    """
    with Tree(root) as tree:
        token = _reading.set(tree)
        try:
            yield tree
        finally:
            _reading.reset(token)


@contextmanager
def _holding(path: Path) -> Iterator[tuple[Tree, PurePath]]:
    """The folder that is held and the path within it; where none is held, the folder that the file lies in."""
    held = _reading.get()
    if held is None:
        with Tree(path.parent) as tree:
            yield tree, PurePath(path.name)
        return
    root = next((root for root in (held.given, held.path) if path.is_relative_to(root)), None)
    if root is None:
        raise Unreadable(errno.EINVAL, f"{str(path)!r} does not lie below the folder that is read")
    yield held, path.relative_to(root)


@contextmanager
def open_file(path: Path) -> Iterator[BinaryIO]:
    """A regular file of the folder that `reading_below` holds, opened for reading; raises as `Tree.open` does."""
    with _holding(path) as (tree, relative), tree.open(relative) as file:
        yield file


def new_file(path: Path) -> BinaryIO:
    """An empty file for writing, in place of whatever lay there: a link is removed, not followed."""
    path.unlink(missing_ok=True)
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666), "wb")


def stat_file(path: Path) -> os.stat_result:
    """What lies there, links not followed; raises as `Tree.stat` does."""
    with _holding(path) as (tree, relative):
        return tree.stat(relative)


def is_file(path: Path) -> bool:
    """Whether a regular file lies there: neither a link nor behind one."""
    try:
        return stat.S_ISREG(stat_file(path).st_mode)
    except OSError:
        return False


def _parts(relative: str | PurePath) -> tuple[str, ...]:
    parts = PurePath(relative).parts
    if not parts or PurePath(relative).is_absolute() or ".." in parts or any("\0" in part for part in parts):
        raise Unreadable(errno.EINVAL, f"{str(relative)!r} does not lie below the folder")
    return parts


def _refused(error: OSError, relative: str | PurePath) -> OSError:
    if error.errno in (errno.ELOOP, errno.ENOTDIR):
        return Unreadable(errno.ELOOP, f"{relative} is, or lies behind, a link or a file, which is not followed")
    if error.errno in (errno.ENXIO, errno.ENODEV):
        return Unreadable(errno.EINVAL, f"{relative} is not a regular file")
    return type(error)(error.errno, f"{relative}: {error.strerror}")


def _walk(fd: int, prefix: str) -> Iterator[Entry]:
    with os.scandir(fd) as found:
        entries = sorted(found, key=lambda entry: entry.name)
    enter = prefix.count("/") < MAX_DEPTH
    for entry in entries:
        path = f"{prefix}{entry.name}"
        try:
            seen = os.stat(entry.name, dir_fd=fd, follow_symlinks=False)
        except OSError:
            continue  # gone meanwhile
        kind = _kind(seen.st_mode)
        yield Entry(path, kind, seen.st_size if kind == "file" else 0, seen.st_mtime_ns)
        if kind == "folder" and enter:
            with suppress(OSError):
                inner = os.open(entry.name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
                try:
                    yield from _walk(inner, f"{path}/")
                finally:
                    os.close(inner)


def _kind(mode: int) -> Kind:
    if stat.S_ISREG(mode):
        return "file"
    if stat.S_ISDIR(mode):
        return "folder"
    return "link" if stat.S_ISLNK(mode) else "other"


def _replace_in(folder: int, name: str, content: bytes, *, sync: bool) -> None:
    part = f".{name[:200]}.{secrets.token_hex(4)}.part"
    fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666, dir_fd=folder)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(content)
            file.flush()
            if sync:
                os.fsync(file.fileno())
        os.replace(part, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with suppress(OSError):
            os.unlink(part, dir_fd=folder)
        raise
    if sync:
        with suppress(OSError):  # file systems that cannot sync a folder are left alone
            os.fsync(folder)


def write_atomic(path: Path, text: str) -> None:
    """Replace a file's text at once, and make the rename durable. `path` is the operator's or our own choice."""
    replace_file(path, text)
    sync_folder(path.parent)


def replace_file(path: Path, text: str) -> None:
    """The same without syncing the folder, for a caller that writes several files and syncs it once."""
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _replace_in(folder, path.name, text.encode("utf-8", "backslashreplace"), sync=True)
    finally:
        os.close(folder)


def sync_folder(folder: Path) -> None:
    """Make a rename durable; file systems that cannot sync a folder are left alone."""
    with suppress(OSError):
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def unpack(data: bytes, *, limit: int = MAX_BYTES) -> bytes:
    """The content of a gzip file, at most `limit` bytes of it.

    Raises:
        ValueError: when it is no gzip file, is cut short, or holds more than `limit` bytes.
    """
    decoder = zlib.decompressobj(wbits=31)
    try:
        content = decoder.decompress(data, limit + 1)
    except zlib.error as error:
        raise ValueError(f"it is not a sound gzip file: {error}") from error
    if len(content) > limit:
        raise ValueError(f"it unpacks to more than {limit} bytes, the limit for such a file")
    if not decoder.eof:
        raise ValueError("the gzip file is cut short")
    return content


def parse_json(data: bytes | str, *, depth: int = MAX_DEPTH, exact: bool = False) -> Any:
    """The value of a JSON text that someone else wrote.

    NaN and infinities are accepted, for trainers write them. An integer beyond 64 bits becomes a float, and a lone
    surrogate a replacement character, for neither survives what is done with the value later; with `exact`, for a value
    that is written again, both stay.

    Raises:
        ValueError: when it is no JSON, or is nested deeper than `depth`.
    """
    text = data if isinstance(data, str) else data.decode("utf-8", "replace")
    try:
        value = json.loads(text, parse_int=int if exact else _integer)
    except RecursionError as error:
        raise ValueError(f"it is nested deeper than {depth} levels") from error
    _require_shallow(value, depth)
    return _without_surrogates(value) if not exact and _SURROGATE.search(text) else value


def parse_yaml(text: str) -> Any:
    """The value of a YAML text that someone else wrote, of plain types alone.

    Raises:
        ValueError: when it is no YAML, is nested too deep, refers to itself, or is too large with its aliases written
            out.
    """
    import yaml

    try:
        depth = 0
        for event in yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > MAX_DEPTH:
                raise ValueError(f"it is nested deeper than {MAX_DEPTH} levels")
        value = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(f"it is no sound YAML: {error}") from error
    if _written_out(value, {}) > _MAX_VALUES:
        raise ValueError(f"it refers to itself, or holds more than {_MAX_VALUES} values with its aliases written out")
    return value


def _written_out(value: object, known: dict[int, int]) -> int:
    """How many values a value holds, shared ones counted wherever they stand."""
    if not isinstance(value, (dict, list)):
        return 1
    if id(value) not in known:
        known[id(value)] = _MAX_VALUES + 1  # what it counts as within itself
        children = value.values() if isinstance(value, dict) else value
        known[id(value)] = 1 + sum(_written_out(child, known) for child in children)
    return known[id(value)]


def _integer(digits: str) -> int | float:
    value = int(digits) if len(digits) <= _INTEGER_DIGITS else float(digits)
    return value if abs(value) <= _MAX_INTEGER else float(value)


def _require_shallow(value: object, depth: int) -> None:
    level = [value]
    for _ in range(depth):
        level = [
            child
            for one in level
            if isinstance(one, (dict, list))
            for child in (one.values() if isinstance(one, dict) else one)
            if isinstance(child, (dict, list))
        ]
        if not level:
            return
    raise ValueError(f"it is nested deeper than {depth} levels")


def _without_surrogates(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [_without_surrogates(one) for one in value]
    if isinstance(value, dict):
        return {_without_surrogates(key): _without_surrogates(one) for key, one in value.items()}
    return value
