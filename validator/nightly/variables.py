"""Variables of the environment that a runbook relies on, and that a scheduler does not hand on to its nights."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from validator.files import Tree
from validator.model.plan import RunSpec
from validator.nightly.settings import CARRIED
from validator.plan.whole import first_plan
from validator.runbook.load import LoadedRunbook

_SCHEDULED = frozenset({"HOME", "USER", "LOGNAME", "SHELL", "PWD"})
"""What cron and systemd set themselves."""

_READ = re.compile(r"(?:environ\W{1,3}(?:get\W{1,3})?|getenv\W{1,3}|\$\{?)([A-Za-z_][A-Za-z0-9_]*)")
"""`$NAME` of a shell, and what Python reads: `environ["NAME"]`, `environ.get("NAME")`, `getenv("NAME")`."""

_BETWEEN = re.compile(r"[\s;&|]+")
_SCRIPT_BYTES = 1 << 20


def lacking_variables(loaded: LoadedRunbook, *, environment: Mapping[str, str]) -> tuple[str, ...]:
    """Names of the variables of this environment that a run reads and neither a night nor the runbook sets.

    What a run reads is what its command names, and the scripts in it; not what these import.
    """
    left = {name for name in environment if name not in CARRIED and name not in _SCHEDULED}
    found = set[str]()
    for spec in first_plan(loaded.runbook).runs if left else ():
        read = {name for text in _command_texts(spec) for name in _READ.findall(text)}
        found |= (read | set(loaded.runbook.secrets)) & left - set(spec.env)
    return tuple(sorted(found))


def _command_texts(spec: RunSpec) -> Iterator[str]:
    yield from spec.argv
    yield from spec.env.values()
    folder = Path.cwd() / (spec.cwd or "")
    words = [word for one in spec.argv for word in (one, *_BETWEEN.split(one))]  # a shell's line is one of them
    for previous, word in zip(("", *words), words, strict=False):
        path = folder / (f"{word.replace('.', '/')}.py" if previous == "-m" else word)
        try:
            if path.is_file() and path.stat().st_size <= _SCRIPT_BYTES:
                with Tree(path.parent) as tree:
                    yield tree.text(path.name, limit=_SCRIPT_BYTES)
        except (OSError, ValueError):  # no text, or a command in the shape of no path
            continue


def lacking_sentence(names: tuple[str, ...]) -> str:
    """Why a night may end otherwise than a run by hand, and what to do."""
    return (
        f"{', '.join(names)}: set in the shell that installed the job, read by the runbook or its script, and not set "
        "at night; set it in defaults.env of the runbook, or in a file of trainer.env_file, and install "
        "the job again"
    )
