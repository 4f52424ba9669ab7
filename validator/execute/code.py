"""What code a command starts, as it is at that moment: files may be edited while a validation goes on, or before it is
resumed, and then its runs do not tell of one trainer."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

__all__ = ["named_files"]

_SUFFIXES = frozenset({".py", ".sh", ".yaml", ".yml", ".json", ".toml", ".cfg", ".ini", ".conf"})
_MOST_BYTES = 4 << 20
"""Code and configuration are small; what is larger is data."""


def named_files(argv: Sequence[str], *, cwd: Path, out: Path) -> dict[str, str]:
    """SHA-256 of each file of code or configuration that a command names, by the word that names it.

    Words are looked up from `cwd`, `--config=FILE` and `-m MODULE` too. What lies below `out` is the run's own.
    """
    found = {}
    for before, word in zip(("", *argv), argv, strict=False):
        name = word.partition("=")[2] if word.startswith("-") else word
        if before == "-m":
            name = f"{word.replace('.', '/')}.py"
        digest = _digest(cwd / name, out) if Path(name).suffix in _SUFFIXES else None
        if digest is not None:
            found[name] = digest
    return found


def _digest(path: Path, out: Path) -> str | None:
    try:
        if path.resolve().is_relative_to(out) or not path.is_file() or path.stat().st_size > _MOST_BYTES:
            return None
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except (OSError, ValueError):
        return None
