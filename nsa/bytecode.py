"""Bytecode of torch where it came without: images set ``PYTHONDONTWRITEBYTECODE`` and leave it out to be smaller, and
then every process compiles torch's modules again, 2 s of each start on an H200's host."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
from pathlib import Path

__all__ = ["keep_bytecode"]


def keep_bytecode() -> None:
    """Have bytecode kept in ``~/.cache/nsa/bytecode`` where torch has none beside its sources and gets none there.

    The variable asks to keep sources clean, which this does. A cache of the user's (``PYTHONPYCACHEPREFIX``) stays.
    Called before torch is imported.
    """
    torch = importlib.util.find_spec("torch")
    if sys.pycache_prefix is not None or torch is None or torch.origin is None or torch.cached is None:
        return
    written = not sys.dont_write_bytecode and os.access(Path(torch.origin).parent, os.W_OK)
    if written or Path(torch.cached).exists():
        return
    with contextlib.suppress(RuntimeError):  # a user without a home
        cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        sys.pycache_prefix = str(Path(cache, "nsa", "bytecode"))
        sys.dont_write_bytecode = False
