"""Files below a folder: the one way to read what other programs wrote, and the one way to write.

A run folder holds what a trainer or another user wrote. `Tree` holds such a folder by a directory handle: below it no
link is followed, only regular files are opened, no open ever blocks, and every read has a limit. What cannot be read is
an `Unreadable`, which says what and why. The folder itself is the operator's choice, so links that lead *to* it are
followed, once.

Source of the technique: openat(2) with O_NOFOLLOW for each component, so that a path cannot change between a check and
its use.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import secrets
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path, PurePath
from typing import Any, BinaryIO, Literal, NamedTuple, TypeVar

from validator.documents import MAX_BYTES, MAX_DEPTH, parse_json

EntryKind = Literal["file", "folder", "link", "other"]

T = TypeVar("T")

_MOST_PARSED = 64 << 20


class Unreadable(OSError):
    """A file below a tree that is not read: a link, a device, too large, or gone. The message says which and why."""


class TreeEntry(NamedTuple):
    """Something below a tree: its path relative to the root, what it is, and its size in bytes (0 unless a file)."""

    path: str
    kind: EntryKind
    bytes: int
    mtime_ns: int


class Tree:
    """A folder held by a handle. Use it as a context manager, or `close` it.

    Args:
        path: the folder, as the operator gave it; links that lead to it are followed.
        link_roots: folders, as the operator named them; a file that is a link to below one of them is opened there.
        follow: whether the path may lead over links; False for a real path, whose folder others may have replaced.

    Raises:
        OSError: when it is no folder, or may not be read.
    """

    def __init__(self, path: Path, *, link_roots: Sequence[str] = (), follow: bool = True) -> None:
        self._link_roots = tuple(Path(root).expanduser() for root in link_roots)
        self.given = path
        self._fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        if not follow and self.path != path:
            self.close()
            raise Unreadable(errno.ELOOP, f"{path} is a link, or is behind one, which is not followed")

    @property
    def path(self) -> Path:
        """Where the folder that is held is now, without links on the way."""
        return Path(f"/proc/self/fd/{self._fd}").readlink()

    def __enter__(self) -> Tree:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the handle. A closed tree reads and writes nothing."""
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
        """The status of what is at a path, links not followed.

        Raises:
            Unreadable: when nothing is there, or a folder on the way is a link.
        """
        with self._parent(relative) as (folder, name):
            try:
                return os.stat(name, dir_fd=folder, follow_symlinks=False)
            except OSError as error:
                raise _refused(error, relative) from error

    def has_file(self, relative: str | PurePath) -> bool:
        """Whether a regular file is there."""
        try:
            return stat.S_ISREG(self.stat(relative).st_mode)
        except OSError:
            return False

    def walk(self, below: str = "") -> Iterator[TreeEntry]:
        """Everything below the tree, or below a folder in it, sorted by path within each folder; links are listed and
        not followed.

        Folders nested deeper than 64 are listed, and not entered.

        Raises:
            OSError: when the folder is not there, or is behind a link.
        """
        with self._parent(PurePath(below, "each")) as (folder, _):
            yield from _walk(folder, f"{below}/" if below else "")

    def write(self, relative: str | PurePath, data: bytes | str, *, sync: bool = True) -> None:
        """Replace a file at once: written beside it, synced, renamed. A reader never sees half of it.

        A link at that place is replaced, not followed; missing folders are made; the mode follows the umask.

        Raises:
            OSError: when it cannot be written; then nothing of it is left.
        """
        content = data.encode("utf-8", "backslashreplace") if isinstance(data, str) else data
        with self._parent(relative, make=True) as (folder, name), _replacing_in(folder, name, sync=sync) as file:
            file.write(content)

    def write_at(self, relative: str | PurePath, data: bytes | memoryview, at: int) -> None:
        """Write a piece of a regular file at a place in it, the first piece of a new one at 0; folders are made.

        Raises:
            Unreadable: when something else is there.
            OSError: when it cannot be written; what was written of it before stays.
        """
        with self._writing(relative, 0 if at else os.O_TRUNC, make=True) as fd:
            rest = memoryview(data)
            while rest:
                written = os.pwrite(fd, rest, at)
                rest, at = rest[written:], at + written

    def append(self, relative: str | PurePath, data: bytes, *, mode: int = 0o666) -> None:
        """Add to a regular file's end, and make it where there is none; neither links nor FIFOs are written to.

        Raises:
            Unreadable: when something else is there.
            OSError: when it cannot be written, or not all of it.
        """
        with self._writing(relative, os.O_APPEND, mode=mode) as fd:
            if os.write(fd, data) < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    @contextmanager
    def locked(self, relative: str | PurePath, *, mode: int = 0o666) -> Iterator[None]:
        """Hold a file, which is made where there is none, alone among all threads and processes; wait for it.

        Whoever can open it can hold it: `mode`, less the umask, says who.

        Raises:
            OSError: when its folder is gone, or something else is there.
        """
        with self._writing(relative, 0, mode=mode) as fd:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield

    @contextmanager
    def _writing(self, relative: str | PurePath, flags: int, *, make: bool = False, mode: int = 0o666) -> Iterator[int]:
        flags |= os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with self._parent(relative, make=make) as (folder, name):
            try:
                fd = os.open(name, flags, mode, dir_fd=folder)
            except OSError as error:
                raise _refused(error, relative) from error
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise Unreadable(errno.EINVAL, f"{relative} is not a regular file")
            yield fd
        finally:
            os.close(fd)

    def move(self, relative: str | PurePath, to: str | PurePath) -> None:
        """Rename a file, or a folder to where no other one has a file in it; folders on the way to it are made."""
        with self._parent(relative) as (old, name), self._parent(to, make=True) as (new, renamed):
            os.replace(name, renamed, src_dir_fd=old, dst_dir_fd=new)

    def remove(self, relative: str | PurePath) -> None:
        """Remove a file or a link; nothing happens where there is none."""
        with suppress(FileNotFoundError, Unreadable), self._parent(relative) as (folder, name):
            os.unlink(name, dir_fd=folder)


_reading: ContextVar[Tree | None] = ContextVar("reading", default=None)


@contextmanager
def reading_below(root: Path) -> Iterator[Tree]:
    """Hold a folder while `open_file`, `is_file` and `stat_file` read what is in it; they refuse everything else.

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
    """The folder that is held and the path within it; where none is held, the folder that the file is in."""
    held = _reading.get()
    if held is None:
        with Tree(path.parent) as tree:
            yield tree, PurePath(path.name)
        return
    root = held.given if path.is_relative_to(held.given) else held.path
    if not path.is_relative_to(root):
        raise Unreadable(errno.EINVAL, f"{str(path)!r} is not below the folder that is read")
    yield held, path.relative_to(root)


@contextmanager
def open_file(path: Path) -> Iterator[BinaryIO]:
    """A regular file of the folder that `reading_below` holds, opened for reading; raises as `Tree.open` does."""
    with _holding(path) as (tree, relative), tree.open(relative) as file:
        yield file


def parsed_file(path: Path, parse: Callable[[bytes], T]) -> T | None:
    """What `parse` makes of a file, of 64 MiB of it at most; None where there is none, or `parse` raises ValueError."""
    if not os.access(path, os.F_OK):  # the usual case of files that are asked for at every look of a run
        return None
    try:
        with open_file(path) as file:
            return parse(file.read(_MOST_PARSED))
    except (OSError, ValueError):
        return None


def stat_file(path: Path) -> os.stat_result:
    """The status of what is there, links not followed; raises as `Tree.stat` does."""
    with _holding(path) as (tree, relative):
        return tree.stat(relative)


def is_file(path: Path) -> bool:
    """Whether a regular file is there: neither a link nor behind one."""
    try:
        return stat.S_ISREG(stat_file(path).st_mode)
    except OSError:
        return False


def _parts(relative: str | PurePath) -> tuple[str, ...]:
    parts = PurePath(relative).parts
    if not parts or parts[0][0] == "/" or ".." in parts or any("\0" in part for part in parts):
        raise Unreadable(errno.EINVAL, f"{str(relative)!r} is not below the folder")
    return parts


def _refused(error: OSError, relative: str | PurePath) -> OSError:
    if error.errno in (errno.ELOOP, errno.ENOTDIR):
        return Unreadable(errno.ELOOP, f"{relative} is a link, or is behind a link or a file, which is not followed")
    if error.errno in (errno.ENXIO, errno.ENODEV):
        return Unreadable(errno.EINVAL, f"{relative} is not a regular file")
    return type(error)(error.errno, f"{relative}: {error.strerror}")


def _walk(fd: int, prefix: str) -> Iterator[TreeEntry]:
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
        yield TreeEntry(path, kind, seen.st_size if kind == "file" else 0, seen.st_mtime_ns)
        if kind == "folder" and enter:
            with suppress(OSError):
                inner = os.open(entry.name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
                try:
                    yield from _walk(inner, f"{path}/")
                finally:
                    os.close(inner)


def _kind(mode: int) -> EntryKind:
    if stat.S_ISREG(mode):
        return "file"
    if stat.S_ISDIR(mode):
        return "folder"
    return "link" if stat.S_ISLNK(mode) else "other"


@contextmanager
def _replacing_in(
    folder: int, name: str, *, sync: bool = True, mode: int = 0o666, keep_stat: bool = False
) -> Iterator[BinaryIO]:
    """`replacing` in a folder that is held by its handle."""
    part = f".{name[:200]}.{secrets.token_hex(4)}.part"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with open(part, "wb", opener=lambda path, _: os.open(path, flags, mode, dir_fd=folder)) as file:
            yield file
            file.flush()
            if sync:
                os.fsync(file.fileno())
            if keep_stat:
                before = os.stat(name, dir_fd=folder, follow_symlinks=False)
                os.fchmod(file.fileno(), stat.S_IMODE(before.st_mode))
                os.utime(file.fileno(), ns=(before.st_atime_ns, before.st_mtime_ns))
        os.replace(part, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with suppress(OSError):
            os.unlink(part, dir_fd=folder)
        raise
    if sync:
        with suppress(OSError):  # file systems that cannot sync a folder are left alone
            os.fsync(folder)


@contextmanager
def replacing(path: Path, *, mode: int = 0o666, keep_stat: bool = False) -> Iterator[BinaryIO]:
    """A file for writing that takes the place of `path` when the block ends: written beside it, synced, renamed.

    A reader never sees half of it. Where the block raises, `path` stays as it was and nothing is left beside it. The
    name of the new file until then is `file.name`, in the folder of `path`, which is the operator's or our own choice.

    Args:
        path: the file to be replaced, or made; a link there is replaced, not followed.
        mode: the permissions, less the umask.
        keep_stat: take permissions and times from the file that is replaced instead.

    Raises:
        OSError: when it cannot be written.
    """
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with _replacing_in(folder, path.name, mode=mode, keep_stat=keep_stat) as file:
            yield file
    finally:
        os.close(folder)


def replace_file(path: Path, text: str, *, mode: int = 0o666) -> None:
    """Replace a file's text by `replacing`."""
    with replacing(path, mode=mode) as file:
        file.write(text.encode("utf-8", "backslashreplace"))


def sha256_of(file: BinaryIO) -> str:
    """The SHA-256 of what is left to be read of a file, as hexadecimal digits; it may be larger than the memory."""
    digest = hashlib.sha256()
    while data := file.read(1 << 20):
        digest.update(data)
    return digest.hexdigest()


def sync_folder(folder: Path) -> None:
    """Make a rename durable; file systems that cannot sync a folder are left alone."""
    with suppress(OSError):
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def user_folder(variable: str, default: str) -> Path:
    """The folder that a variable of the XDG base directories names, by default one in the user's home."""
    base = os.environ.get(variable)
    return Path(base) if base else Path.home() / default
