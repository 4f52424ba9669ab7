"""Keeps short commands short: what the interpreter and pydantic would do at start-up, and nobody here needs.

Called by the command line before anything else is imported; a program that imports the package as a library is left
alone.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
import types
from typing import Any

__all__ = ["lean"]

_LOADER = "pydantic.plugin._loader"


class _NoPlugins(types.ModuleType):
    """In place of pydantic's plugin loader, whose import alone (importlib.metadata, email, zipfile) costs 30 ms.

    It answers as the loader does when PYDANTIC_DISABLE_PLUGINS turns plugins off, which is always the case here; any
    other question brings in the loader itself.
    """

    def get_plugins(self) -> tuple[()]:
        """No plugins."""
        return ()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        sys.modules.pop(_LOADER, None)
        return getattr(importlib.import_module(_LOADER), name)


def lean() -> None:
    """Switch off garbage collection, which finds nothing while modules load, and pydantic's search for plugins.

    Commands that do real work call `gc.enable()`.
    """
    gc.disable()
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    if os.environ["PYDANTIC_DISABLE_PLUGINS"] == "__all__":
        sys.modules.setdefault(_LOADER, _NoPlugins(_LOADER))
