"""Takes secrets out of the files of a run that has ended: a program may print, or write down, what it was given.

Programs write to their files directly, so a line costs them what it costs without a supervisor. What they wrote is
gone over before anybody reads it: when their processes are gone, and, where the runner was killed before that, when the
validation is resumed.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import BinaryIO

from validator.files import new_file, open_file

__all__ = ["mask_file", "mask_files"]

_BLOCK = 4 << 20
_LOOK_AT = 4096
_MOST = 256 << 20
"""Larger files are no logs (which are capped) and no settings; nobody reads them here either."""


def mask_files(folder: Path, *, mask: Callable[[bytes], bytes]) -> tuple[Path, ...]:
    """Apply `mask` to the texts below a folder, whole lines at a time, and to the names of all that lies there; returns
    the files whose texts were changed, by their names before.

    Links are not followed. A file that cannot be rewritten, as on a full disk, stays as it is: what it says is cleaned
    again wherever it is quoted.
    """
    changed = tuple(path for path in _texts(folder) if mask_file(path, mask=mask))
    _rename(folder, mask)
    return changed


def _rename(folder: Path, mask: Callable[[bytes], bytes]) -> None:
    """Names are listed in reports, so they must not hold a secret either. Two that become the same are numbered."""
    for root, names in reversed(_folders(folder)):
        for name in names:
            _redirect(Path(root, name), mask)
            clean = os.fsdecode(mask(os.fsencode(name))).replace("/", "_")
            if clean == name:
                continue
            target, number = Path(root, clean), 1
            while os.path.lexists(target):
                number += 1
                target = Path(root, f"{clean}.{number}")
            with suppress(OSError):
                Path(root, name).rename(target)


def _redirect(path: Path, mask: Callable[[bytes], bytes]) -> None:
    """What a link leads to is a text like any other."""
    if not path.is_symlink():
        return
    with suppress(OSError):
        target = os.fsencode(path.readlink())
        if (clean := mask(target)) != target:
            path.unlink()
            path.symlink_to(os.fsdecode(clean))


def mask_file(path: Path, *, mask: Callable[[bytes], bytes]) -> bool:
    """Apply `mask` to a file; it is replaced as a whole, and only when something in it has to change."""
    part = path.with_name(f".{path.name}.masked")
    try:
        if not _changes(path, part, mask):
            return False
        shutil.copystat(path, part)  # a file's age tells whose it is
        part.replace(path)
    except OSError:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        return False
    return True


def _changes(path: Path, part: Path, mask: Callable[[bytes], bytes]) -> bool:
    """Write the masked text to `part`, from the first block on that changes; False when none does."""
    at = 0
    with open_file(path) as source, ExitStack() as stack:
        target: BinaryIO | None = None
        for block in _blocks(source.fileno()):
            clean = mask(block)
            if clean != block and target is None:
                target = stack.enter_context(new_file(part))
                _copy(path, target, at)
            if target is not None:
                target.write(clean)
            at += len(block)
    return target is not None


def _blocks(fd: int) -> Iterator[bytes]:
    """The file in pieces that end where a line does, but for a line that is longer than a piece."""
    rest = b""
    while chunk := os.read(fd, _BLOCK):
        chunk = rest + chunk
        end = chunk.rfind(b"\n") + 1 or (len(chunk) if len(chunk) > 2 * _BLOCK else 0)
        rest = chunk[end:]
        if end:
            yield chunk[:end]
    if rest:
        yield rest


def _copy(path: Path, target: BinaryIO, count: int) -> None:
    """The first `count` bytes of a file."""
    with open_file(path) as source:
        while count > 0 and (chunk := source.read(min(count, _BLOCK))):
            target.write(chunk)
            count -= len(chunk)


def _folders(folder: Path) -> list[tuple[str, list[str]]]:
    """Every folder from `folder` on, before those within it, with the sorted names of what lies there.

    `os.walk` calls itself for each level, up to Python 3.11, and a trainer may nest folders deeper than that goes.
    """
    found, open_ = list[tuple[str, list[str]]](), [str(folder)]
    while open_:
        root = open_.pop()
        with suppress(OSError), os.scandir(root) as entries:  # gone, or deeper than a path can be
            listed = sorted(entries, key=lambda entry: entry.name)
            found.append((root, [entry.name for entry in listed]))
            open_ += [entry.path for entry in reversed(listed) if entry.is_dir(follow_symlinks=False)]
    return found


def _texts(folder: Path) -> Iterator[Path]:
    """Regular files that begin like a text, or are a log."""
    for root, names in _folders(folder):
        for name in names:
            path = Path(root, name)
            with suppress(OSError):
                if path.is_symlink() or not path.is_file() or not 0 < path.stat().st_size <= _MOST:
                    continue
                with open_file(path) as file:
                    is_text = b"\0" not in file.read(_LOOK_AT)
                if is_text or name.endswith(".log"):
                    yield path
