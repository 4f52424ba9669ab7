"""How Python is started: the arguments of other interpreters, what this one leaves out to start quickly, and where the
files are that come with the package.
"""

from __future__ import annotations

import gc
import importlib
import os
import re
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import validator


def shipped(name: str) -> Path:
    """A folder that comes along, such as `runbooks`: package data of a wheel, the repository's own in a clone.

    Raises:
        FileNotFoundError: when the installation is damaged.
    """
    package = Path(validator.__file__).resolve().parent
    for folder in (package / "_data" / name, package.parent / name):
        if folder.is_dir():
            return folder
    raise FileNotFoundError(f"the folder {name} is missing from {package}; install the package again")


_NOT_HERE = "import sys; sys.path[:] = [place for place in sys.path if place]; "

_CALL = (
    _NOT_HERE + "place = sys.argv.pop(1); place in sys.path or sys.path.insert(0, place); "
    "from {module} import {function}; sys.exit({function}())"
)


def inline_argv(python: str, code: str) -> tuple[str, ...]:
    """The arguments that start `python` with `code`; those of the code may follow."""
    return (python, "-c", _NOT_HERE + "\n" + code)


def call_argv(module: str, function: str, *, python: str | None = None) -> tuple[str, ...]:
    """The arguments that start `python`, by default this one, with a function of this package as the caller has it.

    The function takes its own arguments from `sys.argv`; they may follow. What it returns is the exit code.
    """
    code = _CALL.format(module=module, function=function)
    return (python or sys.executable, "-c", code, str(Path(validator.__file__).parents[1]))


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


class _LateExpression:
    """A regular expression that is compiled when it is first used."""

    def __init__(self, *given: Any) -> None:
        self._given = given

    def __getattr__(self, name: str) -> Any:
        return getattr(re.compile(*self._given), name)


@contextmanager
def late_expressions() -> Iterator[None]:
    """While modules are imported: their regular expressions are compiled when they are first used.

    PyYAML compiles those of its parser in Python, which take a fifteenth of `check`, and the parser in C is used. A
    program that imports the package as a library may have threads, and keeps `re` as it is.
    """
    compiled = re.compile
    if isinstance(sys.modules.get(_LOADER), _NoPlugins):
        re.compile = _LateExpression  # type: ignore[assignment]
    try:
        yield
    finally:
        re.compile = compiled


def trim_imports() -> None:
    """Switch off garbage collection, which finds nothing while modules load, and pydantic's search for plugins.

    The command line calls it before anything else is imported; a program that imports the package as a library is left
    alone. Commands that do real work call `gc.enable()`.
    """
    gc.disable()
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    if os.environ["PYDANTIC_DISABLE_PLUGINS"] == "__all__":
        sys.modules.setdefault(_LOADER, _NoPlugins(_LOADER))
