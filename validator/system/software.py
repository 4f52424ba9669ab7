"""The software of a run: interpreter, packages, working tree.

importlib.metadata (30 ms) is imported where it is needed: most commands ask for no version.
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from validator.startup import inline_argv

_TIMEOUT_S = 10.0

_VERSIONS = """
import importlib.metadata as m, json, platform, sys
def version(name):
    try:
        return m.version(name)
    except m.PackageNotFoundError:
        return None
print(json.dumps({"python": platform.python_version(), "versions": {name: version(name) for name in sys.argv[1:]}}))
"""
"""Run in the trainer's interpreter where that is another one. Reads metadata; imports no package."""


class PackageError(ValueError):
    """A requirement that cannot be read."""


@dataclass(frozen=True)
class GitFacts:
    """The working tree that a run starts in. `changed` counts files that differ from the commit, new ones included."""

    sha: str | None = None
    branch: str | None = None
    dirty: bool | None = None
    changed: int = 0
    why_none: str | None = None

    def as_json(self) -> dict[str, Any]:
        """Facts as plain values."""
        return {key: value for key, value in asdict(self).items() if value is not None}


def git_facts(folder: Path) -> GitFacts:
    """The commit, branch and state of the repository around `folder`."""
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), "status", "--porcelain=v2", "--branch"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_S,
            check=False,
        )
    except FileNotFoundError:
        return GitFacts(why_none="git is not installed")
    except (OSError, subprocess.TimeoutExpired) as error:
        return GitFacts(why_none=f"git did not answer ({type(error).__name__})")
    if done.returncode != 0:
        return GitFacts(why_none="the folder is not in a git repository")
    lines = done.stdout.splitlines()
    headers = dict(line[2:].split(" ", 1) for line in lines if line.startswith("# ") and " " in line[2:])
    changed = sum(not line.startswith("#") for line in lines)
    sha = headers.get("branch.oid")
    return GitFacts(
        sha=None if sha == "(initial)" else sha,
        branch=headers.get("branch.head"),
        dirty=changed > 0,
        changed=changed,
    )


def python_version(python: str) -> str | None:
    """Version of an interpreter, or None when it cannot be started."""
    if _is_ours(python):
        return platform.python_version()
    found = _ask_interpreter(python, ())
    return str(found["python"]) if found else None


def package_versions(python: str, names: Iterable[str]) -> dict[str, str | None]:
    """Version of each package in an interpreter's environment; None where it is not installed."""
    wanted = list(dict.fromkeys(names))
    if _is_ours(python):
        from importlib import metadata

        found: dict[str, str | None] = {}
        for name in wanted:
            try:
                found[name] = metadata.version(name)
            except metadata.PackageNotFoundError:
                found[name] = None
        return found
    answer = _ask_interpreter(python, wanted)
    return {name: (answer["versions"].get(name) if answer else None) for name in wanted}


def _is_ours(python: str) -> bool:
    return Path(python).absolute() == Path(sys.executable).absolute()


def _ask_interpreter(python: str, names: Iterable[str]) -> Mapping[str, Any] | None:
    with suppress(OSError, subprocess.TimeoutExpired, ValueError):
        done = subprocess.run(
            [*inline_argv(python, _VERSIONS), *names], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
        if done.returncode == 0:
            answer: Mapping[str, Any] = json.loads(done.stdout)
            return answer
    return None


def requirement(text: str) -> tuple[str, str]:
    """Name and version bound of a requirement such as `torch>=2.6`.

    Raises:
        PackageError: when it cannot be read.
    """
    try:
        parsed = Requirement(text)
    except InvalidRequirement as error:
        raise PackageError(f"package {text!r} cannot be read; write it as name or name>=version") from error
    return parsed.name, str(parsed.specifier)


def satisfies(version: str, bound: str) -> bool:
    """Whether a version is within a bound such as `>=2.6,<3`; local parts (`+cu128`) and pre-releases count."""
    try:
        return SpecifierSet(bound).contains(Version(version), prereleases=True)
    except InvalidVersion:
        return not bound
