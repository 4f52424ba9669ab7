"""`--set KEY=VALUE`: one value of a runbook, given on the command line.

KEY is a path such as `defaults.timeout`, `phases.baseline.steps`, `baseline.steps` (a phase by its id),
`baseline.accept[0]` or `hardware.gpus`; VALUE is YAML. `accept[N]` with N one past the end appends.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from validator.model.runbook import Runbook
from validator.runbook.document import Node, Path, Step, node_at, parse
from validator.runbook.problems import Mark, Problem, nearest
from validator.runbook.shape import FREE_MAPPINGS, key_names, model_at, spell

__all__ = ["apply"]

_SEGMENT = re.compile(r"([^.\[\]]+)((?:\[\d+\])*)(?:\.|$)")


class _Refused(ValueError):
    """An override that cannot be applied."""

    def __init__(self, message: str, fix: str) -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix


def apply(root: Node, overrides: Sequence[str]) -> tuple[Node, list[Problem]]:
    """A tree with the overrides applied, in their order, and the problems of those that could not be."""
    problems: list[Problem] = []
    for text in overrides:
        file = f"--set {text}"
        try:
            path, value = _split(text)
            steps = _steps(root, path)
            node, found = parse(value, file=file, lined=False)
            problems += found
            if not found:
                root = _assign(root, steps, node or Node(None, Mark(file)), Mark(file))
        except _Refused as error:
            problems.append(Problem.at(Mark(file), error.message, error.fix))
    return root, problems


def _split(text: str) -> tuple[str, str]:
    path, separator, value = text.partition("=")
    if not separator or not path.strip():
        raise _Refused("an override is written KEY=VALUE", "write --set defaults.timeout=5m")
    return path.strip(), value.strip()


def _words(path: str) -> list[Step]:
    words: list[Step] = []
    end = 0
    for match in _SEGMENT.finditer(path):
        if match.start() != end:
            break
        words.append(match[1])
        words += [int(index) for index in re.findall(r"\[(\d+)\]", match[2])]
        end = match.end()
    if end != len(path) or path.endswith("."):
        raise _Refused(f"{path} is not a path", "write it as phases.baseline.steps or baseline.accept[0]")
    return words


def _phase_ids(root: Node) -> list[str]:
    phases = node_at(root, ("phases",))
    items = phases.value if phases is not None and isinstance(phases.value, list) else []
    return [_id(item) for item in items]


def _id(phase: Node) -> str:
    found = phase.value.get("id") if isinstance(phase.value, dict) else None
    return str(found.value) if found is not None else ""


def _steps(root: Node, path: str) -> Path:
    """The path in the tree that an override means; every word of it is checked against what may stand there."""
    words = _words(path)
    top, ids = key_names(Runbook), [name for name in _phase_ids(root) if name]
    first = words[0]
    if first not in top:
        if first not in ids:
            raise _Refused(
                f"{path}: the runbook has neither a key nor a phase called {first}", nearest(str(first), [*top, *ids])
            )
        words.insert(0, "phases")
    steps: Path = ()
    while words:
        steps, words = _descend(root, steps, words, path, ids)
    return steps


def _descend(root: Node, steps: Path, words: list[Step], path: str, ids: list[str]) -> tuple[Path, list[Step]]:
    """One step further down; returns the path so far and the words that are left."""
    word, rest = words[0], words[1:]
    where = spell(root, steps) or "the runbook"
    if steps == ("phases",) and isinstance(word, str):
        if word not in ids:
            raise _Refused(f"{path}: there is no phase called {word}", nearest(word, ids))
        return (*steps, _phase_ids(root).index(word)), rest
    if isinstance(word, int):
        return (*steps, _index(root, steps, word, path)), rest
    if steps and steps[-1] in FREE_MAPPINGS and len(steps) > 1:
        if steps[-1] == "over" and word in ("env", "args") and rest:
            return (*steps, f"{word}.{rest[0]}"), rest[1:]
        return (*steps, word), rest
    model = model_at(root, steps)
    if model is None:
        raise _Refused(f"{path}: {where} has no keys", f"end the path at {where}")
    names = key_names(model)
    if word not in names:
        raise _Refused(f"{path}: there is no key {word} in {where}", nearest(word, names))
    return (*steps, word), rest


def _index(root: Node, steps: Path, index: int, path: str) -> int:
    node = node_at(root, steps)
    items = node.value if node is not None else None
    where = spell(root, steps)
    if items is not None and not isinstance(items, list):
        raise _Refused(f"{path}: {where} is not a list", f"write {where}=VALUE")
    count = len(items) if items is not None else 0
    if index > count:
        raise _Refused(f"{path}: {where} has {count} entries, counted from 0", f"write {where}[{count}] to append")
    return index


def _assign(node: Node, steps: Path, value: Node, mark: Mark) -> Node:
    """A copy of the tree with `value` at `steps`; what lies beside the path is shared with the original."""
    if not steps:
        return value
    step, rest = steps[0], steps[1:]
    copy = node.copy()
    if isinstance(step, int):
        if not isinstance(copy.value, list):
            copy = Node([], mark)
        items = copy.value if isinstance(copy.value, list) else []
        if step == len(items):
            items.append(Node(None, mark))
        items[step] = _assign(items[step], rest, value, mark)
        return copy
    if not isinstance(copy.value, dict):
        # A criterion written as plain text becomes a mapping when one of its other keys is set.
        text = copy.value
        copy = Node({}, mark)
        if isinstance(text, str) and step in ("expr", "required", "why"):
            copy = Node({"expr": node}, mark, {"expr": node.mark})
    mapping = copy.value if isinstance(copy.value, dict) else {}
    mapping[step] = _assign(mapping.get(step, Node(None, mark)), rest, value, mark)
    copy.keys[step] = mark
    return copy
