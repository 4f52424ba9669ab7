"""How Python is started for the validator's own use: never with the modules of the folder that somebody stands in.

With `-m`, and with `-c`, Python looks for modules in the working folder first. There a trainer may keep a `types.py`, a
`random.py` or a `validator` of its own, which would stand in for what is meant. (`-P` does this from 3.11 on; `-I`
would leave out PYTHONPATH as well, in which packages may lie.)
"""

from __future__ import annotations

import sys
from pathlib import Path

import validator

__all__ = ["calling", "saying"]

_NOT_HERE = "import sys; sys.path[:] = [place for place in sys.path if place]; "

_CALL = (
    _NOT_HERE + "place = sys.argv.pop(1); place in sys.path or sys.path.insert(0, place); "
    "from {module} import {function}; sys.exit({function}())"
)


def saying(python: str, code: str) -> tuple[str, ...]:
    """The words that start `python` with `code`; arguments of the code may follow."""
    return (python, "-c", _NOT_HERE + "\n" + code)


def calling(module: str, function: str, *, python: str | None = None) -> tuple[str, ...]:
    """The words that start `python`, by default this one, with a function of this package as the caller has it.

    The function takes its arguments from `sys.argv`; they may follow the words. What it returns is the exit code.
    """
    code = _CALL.format(module=module, function=function)
    return (python or sys.executable, "-c", code, str(Path(validator.__file__).parents[1]))
