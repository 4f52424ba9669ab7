"""What a runbook names on the machine: paths relative to it, the files of its environment, and what is not there.

A runbook may be checked on another machine than the one that it is for. So what is absent is a warning of `check`, and
an error when it is to be run.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from validator.files import Tree
from validator.model.runbook import Runbook, Setting
from validator.model.settings import has_placeholder
from validator.runbook.build import Built
from validator.runbook.problems import Problem, RunbookError

Absent = tuple[str, str, str]
"""A key of `trainer`, what it names and is not there, and what to do."""

_ENV_BYTES = 1 << 20
"""Variables are lines of a text; the kernel takes no more than some megabytes of them either."""

_BRACES = re.compile(r"\$\{[^}]*\}?|[{}]")
"""A brace, but for those of `${NAME}`, which are no placeholders."""


def placed(built: Built, runbook: Runbook, *, file: Path, overrides: Sequence[str]) -> Runbook:
    """The runbook with absolute paths, and with the variables of its files below those that it sets itself.

    What is given by an override is relative to the working directory, as other paths of a command line are.

    Raises:
        RunbookError: when a file of the environment cannot be used. One that does not exist is only `absent`.
    """
    trainer, found = runbook.trainer, dict[str, object]()

    def base(key: str) -> Path:
        given = any(one.partition("=")[0].strip() == f"trainer.{key}" for one in overrides)
        return Path.cwd() if given else Path(os.path.abspath(file)).parent  # noqa: PTH100 - links stay as people chose

    if trainer.workdir is not None:
        found["workdir"] = _below(base("workdir"), trainer.workdir)
    if trainer.python is not None and trainer.container is None:
        found["python"] = _python(base("python"), trainer.python)
    if trainer.env_file:
        found["env_file"] = tuple(_below(base("env_file"), one) for one in trainer.env_file)
    if not found:
        return runbook
    runbook = runbook.model_copy(update={"trainer": trainer.model_copy(update=found)})
    variables = _variables(built, runbook.trainer.env_file)
    if not variables:
        return runbook
    env = {**variables, **runbook.defaults.env}
    return runbook.model_copy(update={"defaults": runbook.defaults.model_copy(update={"env": env})})


def absent(runbook: Runbook) -> Iterator[Absent]:
    """What the trainer is to be started with, and this machine lacks; of a runbook whose paths are absolute."""
    trainer = runbook.trainer
    if trainer.container is not None:
        engine = trainer.container.engine
        if shutil.which(engine) is None:
            yield "container", f"container engine {engine} is not on PATH", f"install {engine}, or name another engine"
    elif trainer.python is not None and (why := _no_python(trainer.python)) is not None:
        yield "python", why, "name a Python or the folder of a virtual environment, as python: ../venv"
    if trainer.workdir is not None and not has_placeholder(trainer.workdir) and not Path(trainer.workdir).is_dir():
        yield "workdir", f"trainer.workdir {trainer.workdir!r} is no folder", "make it, or name another"
    if trainer.launcher == "mpirun" and trainer.container is None and shutil.which("mpirun") is None:
        yield "launcher", "launcher mpirun is not on PATH", "install an MPI, or put its bin folder on PATH"


def absent_files(runbook: Runbook) -> Iterator[Absent]:
    """Files of the environment that do not exist. A validation that is resumed has read them already."""
    for name in runbook.trainer.env_file:
        if not os.path.lexists(name):
            yield "env_file", f"trainer.env_file {name!r} does not exist", "write it, as KEY=VALUE lines, or remove it"


def _below(folder: Path, name: str) -> str:
    text = os.path.expanduser(name)  # noqa: PTH111 - it may hold a placeholder
    if text.startswith("{") and has_placeholder(text):
        return text
    return os.path.normpath(folder / text)


def _python(folder: Path, name: str) -> str:
    """A name alone, where nothing of that name is beside the runbook, is a program on PATH."""
    path = _below(folder, name)
    return name if "/" not in name and not os.path.lexists(path) else path


def _no_python(python: str) -> str | None:
    """Why it is no interpreter, as a sentence; None where it may be one."""
    if "/" not in python:
        return None if shutil.which(python) else f"trainer.python {python!r} is neither beside the runbook nor on PATH"
    path = Path(python)
    if not path.exists():
        return f"trainer.python {python!r} does not exist"
    if path.is_dir():
        path = path / "bin" / "python"
        if not path.exists():
            return f"trainer.python {python!r} is a folder without bin/python"
    return None if os.access(path, os.X_OK) and path.is_file() else f"trainer.python {str(path)!r} is no program"


# Files of the environment.


def _variables(built: Built, names: Sequence[str]) -> dict[str, Setting]:
    found: dict[str, Setting] = {}
    for name in names:
        if os.path.lexists(name):
            found |= {key: _literal(value) for key, value in read_env_file(built, Path(name)).items()}
    return found


def _literal(value: str) -> str:
    """The value as a setting: its braces are not placeholders."""
    return _BRACES.sub(lambda match: match[0] if match[0].startswith("$") else 2 * match[0], value)


def read_env_file(built: Built, path: Path) -> Mapping[str, str]:
    """The variables of a file: `KEY=VALUE` lines, `export` before them or not, comments, values in quotes or not.

    Nothing is expanded. Within double quotes a backslash escapes a quote, a backslash, and `n`.

    Raises:
        RunbookError: when it is no regular file of text, or has a line that is none of these, with its place.
    """
    try:
        with Tree(path.parent) as tree:
            text = tree.read(path.name, limit=_ENV_BYTES).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        why = "it is not UTF-8" if isinstance(error, UnicodeDecodeError) else str(error.strerror or error)
        message = f"trainer.env_file {str(path)!r} cannot be read: {why}"
        fix = "name a regular file of KEY=VALUE lines"
        raise RunbookError([built.problem(("trainer", "env_file"), message, fix)]) from error
    found: dict[str, str] = {}
    problems: list[Problem] = []
    for number, line in enumerate(text.splitlines(), start=1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        name, equals, value = stripped.removeprefix("export ").partition("=")
        name, read = name.strip(), _value(value.strip())
        if not equals or not name.replace("_", "a").isalnum() or not name.isascii() or name[0].isdigit():
            problems.append(Problem(str(path), number, 1, "this line is no KEY=VALUE", "write NAME=value, or # before"))
        elif read is None or "\0" in read:
            fix = "close the quotes on the same line"
            problems.append(Problem(str(path), number, 1, f"the value of {name} cannot be read", fix))
        else:
            found[name] = read
    if problems:
        raise RunbookError(problems)
    return found


def _value(text: str) -> str | None:
    """A value without its quotes and without a comment behind it; None where its quotes are not closed."""
    if text[:1] == "'":
        inner, closed, rest = text[1:].partition("'")
        return inner if closed and _is_comment(rest) else None
    if text[:1] != '"':
        before, hash_, _ = text.partition(" #")
        return before.rstrip() if hash_ else text
    read, at = "", 1
    while at < len(text) and text[at] != '"':
        escaped = text[at] == "\\" and text[at + 1 : at + 2] in ('"', "\\", "n")
        read += {"n": "\n"}.get(text[at + 1], text[at + 1]) if escaped else text[at]
        at += 2 if escaped else 1
    return read if at < len(text) and _is_comment(text[at + 1 :]) else None


def _is_comment(text: str) -> bool:
    return not text.strip() or text.lstrip().startswith("#")
