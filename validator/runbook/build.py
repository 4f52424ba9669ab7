"""A tree becomes a Runbook, and every mistake in it is found, not only the first layer of them.

What the models refuse is reported, then removed or replaced by a substitute, and the rest is validated again, until it
can be built. So a bad duration in one phase does not hide an unknown metric in another. A runbook that had problems is
never returned to be run: `load` raises.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from validator.model.runbook import Runbook
from validator.model.schemas import SCHEMAS
from validator.runbook.document import Path, YamlNode, node_at, plain, problem_at
from validator.runbook.problems import Mark, Problem
from validator.runbook.translate import resolve_path, translate
from validator.text import nearest

_ROUNDS = 50
"""Each round repairs at least one mistake of every part; real files need two or three."""

_SUBSTITUTES: Mapping[str, Any] = {"schema": 1, "name": "unnamed"}


@dataclass
class Built:
    """The runbook as far as it could be built (None when there are no phases to speak of), and what was wrong.

    `root` is the tree that `runbook` was built from, so that paths of the one are paths of the other. `lost` holds ids
    of phases that had to be left out, `touched` the paths of what was removed or replaced because it was wrong:
    problems that follow from them would be noise.
    """

    root: YamlNode
    runbook: Runbook | None = None
    problems: list[Problem] = field(default_factory=list)
    lost: set[str] = field(default_factory=set)
    touched: set[Path] = field(default_factory=set)

    def sound(self, *keys: str) -> bool:
        """Whether nothing at or below the path `keys` had to be repaired."""
        return not any(path[: len(keys)] == keys for path in self.touched)

    def problem(self, path: Path, message: str, fix: str, *, key: bool = False) -> Problem:
        """A problem at the value of a path, or at its key; at the nearest thing above where there is no such value."""
        return problem_at(self.root, path, message, fix, key=key)


def build(root: YamlNode) -> Built:
    """Build what can be built; never raises."""
    built = Built(_deep_copy(root))
    damaged: set[int] = set()
    for _ in range(_ROUNDS):
        try:
            built.runbook = Runbook.model_validate(plain(built.root))
            return built
        except ValidationError as error:
            if not _repair_all(built, error, damaged):
                return built
    return built


def _deep_copy(node: YamlNode) -> YamlNode:
    """A tree of its own for every use of an alias, so that a repair in one place leaves the others alone."""
    copy = node.copy()
    if isinstance(copy.value, dict):
        copy.value = {key: _deep_copy(child) for key, child in copy.value.items()}
    elif isinstance(copy.value, list):
        copy.value = [_deep_copy(child) for child in copy.value]
    return copy


def _repair_all(built: Built, error: ValidationError, damaged: set[int]) -> bool:
    """Report and repair every error of one round; False when nothing could be changed."""
    items = [(item, *resolve_path(built.root, tuple(item["loc"]))) for item in error.errors(include_url=False)]
    repairs: list[tuple[Path, str | None, str]] = []
    for item, path, missing in items:
        if item["type"] == "too_short" and any(len(p) > len(path) and p[: len(path)] == path for _, p, _ in items):
            continue  # pydantic counts sound entries only, so a list of one bad entry is "too short" besides
        unknown = [str(p[-1]) for other, p, _ in items if other["type"] == "extra_forbidden" and p[:-1] == path]
        node = node_at(built.root, path)
        follow_up = node is not None and id(node) in damaged and item["type"] in ("missing", "too_short", "value_error")
        follow_up |= bool(missing and difflib.get_close_matches(missing, unknown, n=1, cutoff=0.7))  # misspelled
        if not follow_up:
            problem = translate(built.root, item)
            if not any(_identity(known) == _identity(problem) for known in built.problems):
                built.problems.append(problem)
        repairs.append((path, missing if item["type"] == "missing" else None, item["type"]))
    changed = False
    for path, missing, kind in sorted(set(repairs), key=lambda repair: _sort_key(repair[0]), reverse=True):
        changed |= _repair(built, path, missing, kind, damaged)
    return changed


def _identity(problem: Problem) -> tuple[str, int | None, int | None, str]:
    return (problem.file, problem.line, problem.column, problem.message)


def _sort_key(path: Path) -> tuple[tuple[int, str], ...]:
    """Later list entries first, so that removing one does not move those still to be repaired."""
    return tuple((step, "") if isinstance(step, int) else (0, step) for step in path)


def _repair(built: Built, path: Path, missing: str | None, kind: str, damaged: set[int]) -> bool:
    node = node_at(built.root, path)
    if node is None:
        return False
    if missing is not None:
        return _supply(built, path, node, missing, damaged)
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        return _repair_kind(built, path, node, damaged)
    return _remove(built, path, damaged)


def _supply(built: Built, path: Path, node: YamlNode, key: str, damaged: set[int]) -> bool:
    """Give a required key a substitute, so that the rest of its phase can be checked."""
    built.touched.add((*path, key))
    if not isinstance(node.value, dict):
        return False
    if key == "id":
        node.value["id"] = YamlNode(f"unnamed_{path[-1]}", node.mark)
        return True
    kind = node.value.get("kind")
    schema = SCHEMAS.get(str(kind.value)) if kind is not None else None
    substitutes = _SUBSTITUTES if schema is None else schema.every_substitute()
    if key in substitutes:
        node.value[key] = _grow(substitutes[key], node.mark)
        return True
    return _remove(built, path, damaged) if path else False


def _grow(value: Any, mark: Mark) -> YamlNode:
    if isinstance(value, dict):
        grown = {key: _grow(child, mark) for key, child in value.items()}
        return YamlNode(grown, mark, dict.fromkeys(grown, mark))
    if isinstance(value, list):
        return YamlNode([_grow(child, mark) for child in value], mark)
    return YamlNode(value, mark)


def _repair_kind(built: Built, path: Path, node: YamlNode, damaged: set[int]) -> bool:
    kind = node.value.get("kind") if isinstance(node.value, dict) else None
    if kind is not None:  # a misspelled kind: check the rest of the phase as the kind that was probably meant
        guess = nearest(str(kind.value), SCHEMAS, "").removeprefix("did you mean ").rstrip("?")
        if guess:
            kind.value = guess
            return True
    return _remove(built, path, damaged)


def _remove(built: Built, path: Path, damaged: set[int]) -> bool:
    """Take the value at a path out of the tree."""
    if not path:
        return False
    parent = node_at(built.root, path[:-1])
    last = path[-1]
    if parent is None:
        return False
    built.touched.add(path)
    damaged.add(id(parent))
    if isinstance(parent.value, list) and isinstance(last, int):
        gone = parent.value.pop(last)
        if path[:-1] == ("phases",) and isinstance(gone.value, dict) and "id" in gone.value:
            built.lost.add(str(gone.value["id"].value))
        return True
    if isinstance(parent.value, dict) and isinstance(last, str) and last in parent.value:
        if last == "id":
            built.lost.add(str(parent.value[last].value))
        del parent.value[last]
        return True
    return False
