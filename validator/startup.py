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
    """A regular expression that is compiled when it is first used. It passes for a compiled one."""

    def __init__(self, *given: Any) -> None:
        self._given = given

    @property  # type: ignore[misc]
    def __class__(self) -> type[Any]:  # so that `re.sub` takes it in place of a text
        return re.Pattern

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        found = getattr(_compile(*self._given), name)
        setattr(self, name, found)
        return found


_compile = re.compile

_CO_OPTIMIZED = 1
"""Flag of the code of functions, which that of modules and classes does not have."""


def _compile_late(pattern: Any, flags: int = 0) -> Any:
    """`re.compile`; what a module or a class compiles while it is imported is compiled when it is first used."""
    if sys._getframe(1).f_code.co_flags & _CO_OPTIMIZED:
        return _compile(pattern, flags)
    return _LateExpression(pattern, flags)


def trim_imports() -> None:
    """Leave out what takes time while modules are imported, and what a short command never needs.

    Garbage collection finds nothing then; most regular expressions of the libraries are never used, and compiling them
    takes a thirtieth of `check`; pydantic searches for plugins. The command line calls it before anything else is
    imported; a program that imports the package as a library may have threads, and is left alone. Commands that do
    real work call `end_trimming`.
    """
    gc.disable()
    re.compile = _compile_late
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    if os.environ["PYDANTIC_DISABLE_PLUGINS"] == "__all__":
        sys.modules.setdefault(_LOADER, _NoPlugins(_LOADER))


def end_trimming() -> None:
    """Collect garbage again, and compile what is imported from here on at once."""
    gc.enable()
    re.compile = _compile
