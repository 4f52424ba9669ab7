"""`--set KEY=VALUE`: one value of a runbook, given on the command line.

KEY is a path such as `defaults.timeout`, `phases.baseline.steps`, `baseline.steps` (a phase by its id),
`baseline.accept[0]` or `hardware.gpus`; VALUE is YAML. `accept[N]` with N one past the end appends.
"""

from __future__ import annotations

import re
import types
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel

from validator.model.runbook import Runbook
from validator.model.schemas import SCHEMAS
from validator.runbook.document import Path, Step, YamlNode, node_at, parse
from validator.runbook.problems import Mark, Problem
from validator.text import nearest


def key_names(model: type[BaseModel]) -> list[str]:
    """The keys of a model as they are written in YAML."""
    return [field.alias or name for name, field in model.model_fields.items()]


def model_at(root: YamlNode, path: Path) -> type[BaseModel] | None:
    """The model of the mapping at `path`; None for lists, scalars and mappings whose keys the user chooses."""
    found = _type_at(root, path)
    return found if isinstance(found, type) and issubclass(found, BaseModel) else None


def _type_at(root: YamlNode, path: Path) -> Any:
    """What is declared at `path`, without `None`; None where nothing is."""
    if not path:
        return Runbook
    if path[0] == "phases" and len(path) == 2:
        kind = node_at(root, (*path, "kind"))
        return SCHEMAS.get(str(kind.value)) if kind is not None else None
    owner, step = _type_at(root, path[:-1]), path[-1]
    if isinstance(step, int):
        return bare_type(get_args(owner)[0]) if get_origin(owner) is tuple else None
    if get_origin(owner) is dict:
        return bare_type(get_args(owner)[1])
    fields = owner.model_fields if isinstance(owner, type) and issubclass(owner, BaseModel) else {}
    return next((bare_type(one.annotation) for name, one in fields.items() if step == (one.alias or name)), None)


def bare_type(annotation: Any) -> Any:
    """A type without its `Annotated` and without `None`; of several alternatives the first."""
    while get_origin(annotation) in (Annotated, Union, types.UnionType):
        annotation = next(one for one in get_args(annotation) if one is not type(None))
    return annotation


def _sections(model: type[BaseModel]) -> Iterator[tuple[str, type[BaseModel]]]:
    """The keys below a model that hold a mapping with keys of its own, and the model of each."""
    for name, one in model.model_fields.items():
        found = bare_type(one.annotation)
        if isinstance(found, type) and issubclass(found, BaseModel):
            yield one.alias or name, found
            yield from _sections(found)


def homes(key: str) -> str | None:
    """Where a misplaced key belongs, as text: `phases of kind sweep, ab`; None for a key that exists nowhere."""
    kinds = [kind for kind, model in SCHEMAS.items() if key in key_names(model)]
    models: list[type[BaseModel]] = [Runbook, *SCHEMAS.values()]
    sections = dict(pair for model in models for pair in _sections(model))
    places = [f"`{name}`" for name, model in sections.items() if key in key_names(model)]
    if kinds and len(kinds) < len(SCHEMAS):
        places.insert(0, f"phases of kind {', '.join(kinds)}")
    elif kinds:
        places.insert(0, "phases")
    return " and ".join(places) if places else None


def spell(root: YamlNode, path: Path) -> str:
    """A path as `--set` takes it: `phases.baseline.accept[0]`."""
    text = ""
    for index, step in enumerate(path):
        if isinstance(step, str):
            text += f".{step}" if text else step
            continue
        name = node_at(root, (*path[: index + 1], "id")) if path[:index] == ("phases",) else None
        text += f".{name.value}" if name is not None and _phase_ids(root).count(str(name.value)) == 1 else f"[{step}]"
    return text


# Applying overrides to the tree.

_SEGMENT = re.compile(r"([^.\[\]]+)((?:\[\d+\])*)(?:\.|$)")
"""One step of a path with its indices: `accept[0]`, `baseline.`."""


class _Refused(ValueError):
    """An override that cannot be applied."""

    def __init__(self, message: str, fix: str) -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix


def apply(root: YamlNode, overrides: Sequence[str]) -> tuple[YamlNode, list[Problem]]:
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
                root = _assign(root, steps, node or YamlNode(None, Mark(file)), Mark(file))
        except _Refused as error:
            problems.append(Problem.at(Mark(file), error.message, error.fix))
    return root, problems


def _split(text: str) -> tuple[str, str]:
    path, separator, value = text.partition("=")
    if not separator or not path.strip():
        raise _Refused("an override is written KEY=VALUE", "write --set defaults.timeout=5m")
    return path.strip(), value.strip()


def _parse_path(path: str) -> list[Step]:
    steps: list[Step] = []
    end = 0
    for match in _SEGMENT.finditer(path):
        if match.start() != end:
            break
        steps.append(match[1])
        steps += [int(index) for index in re.findall(r"\[(\d+)\]", match[2])]
        end = match.end()
    if end != len(path) or path.endswith("."):
        raise _Refused(f"{path} is not a path", "write it as phases.baseline.steps or baseline.accept[0]")
    return steps


def _phase_ids(root: YamlNode) -> list[str]:
    phases = node_at(root, ("phases",))
    items = phases.value if phases is not None and isinstance(phases.value, list) else []
    found = (item.value.get("id") if isinstance(item.value, dict) else None for item in items)
    return [str(node.value) if node is not None else "" for node in found]


def _steps(root: YamlNode, path: str) -> Path:
    """The path in the tree that an override means. Each step must exist there."""
    left = _parse_path(path)
    top, ids = key_names(Runbook), [name for name in _phase_ids(root) if name]
    first = left[0]
    if first not in top:
        if first not in ids:
            raise _Refused(
                f"{path}: the runbook has neither a key nor a phase called {first}", nearest(str(first), [*top, *ids])
            )
        left.insert(0, "phases")
    steps: Path = ()
    while left:
        steps, left = _descend(root, steps, left, path, ids)
    return steps


def _descend(root: YamlNode, steps: Path, left: list[Step], path: str, ids: list[str]) -> tuple[Path, list[Step]]:
    """One step down; returns the path with it and the steps that are left."""
    step, rest = left[0], left[1:]
    where = spell(root, steps) or "the runbook"
    if steps == ("phases",) and isinstance(step, str):
        if step not in ids:
            raise _Refused(f"{path}: there is no phase called {step}", nearest(step, ids))
        return (*steps, _phase_ids(root).index(step)), rest
    if isinstance(step, int):
        return (*steps, _index(root, steps, step, path)), rest
    if get_origin(_type_at(root, steps)) is dict:
        if steps[-1] == "over" and step in ("env", "args") and rest:
            return (*steps, f"{step}.{rest[0]}"), rest[1:]
        return (*steps, step), rest
    model = model_at(root, steps)
    if model is None:
        raise _Refused(f"{path}: {where} has no keys", f"end the path at {where}")
    names = key_names(model)
    if step not in names:
        raise _Refused(f"{path}: there is no key {step} in {where}", nearest(step, names))
    return (*steps, step), rest


def _index(root: YamlNode, steps: Path, index: int, path: str) -> int:
    node = node_at(root, steps)
    items = node.value if node is not None else None
    where = spell(root, steps)
    if items is not None and not isinstance(items, list):
        raise _Refused(f"{path}: {where} is not a list", f"write {where}=VALUE")
    count = len(items) if items is not None else 0
    if index > count:
        raise _Refused(f"{path}: {where} has {count} entries, counted from 0", f"write {where}[{count}] to append")
    return index


def _assign(node: YamlNode, steps: Path, value: YamlNode, mark: Mark) -> YamlNode:
    """A copy of the tree with `value` at `steps`; the rest is shared with the original."""
    if not steps:
        return value
    step, rest = steps[0], steps[1:]
    copy = node.copy()
    if isinstance(step, int):
        if not isinstance(copy.value, list):
            copy = YamlNode([], mark)
        items = copy.value if isinstance(copy.value, list) else []
        if step == len(items):
            items.append(YamlNode(None, mark))
        items[step] = _assign(items[step], rest, value, mark)
        return copy
    if not isinstance(copy.value, dict):
        # A criterion written as plain text becomes a mapping when one of its other keys is set.
        text = copy.value
        copy = YamlNode({}, mark)
        if isinstance(text, str) and step in ("expr", "required", "why"):
            copy = YamlNode({"expr": node}, mark, {"expr": node.mark})
    mapping = copy.value if isinstance(copy.value, dict) else {}
    mapping[step] = _assign(mapping.get(step, YamlNode(None, mark)), rest, value, mark)
    copy.keys[step] = mark
    return copy
