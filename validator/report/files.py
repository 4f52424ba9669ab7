"""Files that are replaced at once: a reader never sees half of one, and a crash leaves the old one."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

__all__ = ["replace_file", "sync_folder", "write_atomic"]


def write_atomic(path: Path, text: str) -> None:
    """Replace a file's text at once: written beside it, synced, renamed. A reader never sees half of it."""
    replace_file(path, text)
    sync_folder(path.parent)


def replace_file(path: Path, text: str) -> None:
    """The same without syncing the folder, for a caller that writes several files and syncs it once."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(0o644)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def sync_folder(folder: Path) -> None:
    """Make the rename itself durable; file systems that cannot sync a folder are left alone."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(descriptor)
    except OSError:
        return
    finally:
        os.close(descriptor)
