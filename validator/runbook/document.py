"""YAML text becomes a tree of nodes that remember their place, so that each mistake can be pointed at.

The tree is built from the parser's events: constructing objects would lose places, and untrusted text could nest or
repeat itself without bound. Anchors and merge keys work; duplicate keys, cycles and excess are problems.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from validator.runbook.problems import Mark, Problem

Scalar = str | int | float | bool | None

_NULL = ("", "~", "null", "Null", "NULL")
_TRUE = ("true", "True", "TRUE")
_FALSE = ("false", "False", "FALSE")
# Numbers as the core schema of YAML 1.2 writes them: 12 and -3; 0o17; 0xFF; 1.5, .5 and 2e-4; -.inf. No 12:30, no yes.
_INTEGER = re.compile(r"[-+]?[0-9]{1,300}")
_OCTAL = re.compile(r"0o[0-7]{1,300}")
_HEX = re.compile(r"0x[0-9a-fA-F]{1,300}")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_INFINITY = re.compile(r"[-+]?\.(inf|Inf|INF)")
_NAN = (".nan", ".NaN", ".NAN")
_PREFIX = "tag:yaml.org,2002:"


class TagError(ValueError):
    """A tag outside the core schema, or a value that does not fit its tag."""


def plain_value(text: str) -> Scalar:
    """The value of an unquoted scalar."""
    if text in _NULL:
        return None
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    if _INTEGER.fullmatch(text):
        return int(text)
    if _OCTAL.fullmatch(text) or _HEX.fullmatch(text):
        return int(text, 0)
    if _FLOAT.fullmatch(text):
        return float(text)
    if _INFINITY.fullmatch(text):
        return float(text.replace(".", ""))
    return float("nan") if text in _NAN else text


def tagged_value(tag: str, text: str) -> Scalar:
    """The value of a scalar with an explicit tag such as `!!str`.

    Raises:
        TagError: for any tag but str, int, float, bool and null, and for a value that does not fit.
    """
    name = tag.removeprefix(_PREFIX)
    if name in ("str", "!"):
        return text
    value = plain_value(text)
    if name == "float" and type(value) is int:
        return float(value)
    kinds: dict[str, type] = {"int": int, "float": float, "bool": bool, "null": type(None)}
    if name not in kinds:
        raise TagError(f"tag {tag.replace(_PREFIX, '!!')} is not supported")
    if type(value) is not kinds[name]:
        raise TagError(f"{text!r} is not of the type !!{name}")
    return value


# YAML text becomes a tree of nodes that remember their place, so that each mistake can be pointed at.

MAX_BYTES = 1 << 20
"""Larger files are refused: no runbook that a person writes comes near."""

MAX_DEPTH = 40
MAX_NODES = 100_000
"""Limit on nodes after expanding aliases, against alias bombs."""

Step = str | int
Path = tuple[Step, ...]

_Loader = getattr(yaml, "CLoader", yaml.Loader)


@dataclass(eq=False)
class YamlNode:
    """A scalar, a list or a mapping.

    `keys` marks the keys of a mapping. `raw` is the scalar as written in the file, quotes included, from which
    `position` finds the place of a single word.
    """

    value: Scalar | list[YamlNode] | dict[str, YamlNode]
    mark: Mark
    keys: dict[str, Mark] = field(default_factory=dict)
    raw: str = ""

    @property
    def is_scalar(self) -> bool:
        """Whether it is neither a list nor a mapping."""
        return not isinstance(self.value, (list, dict))

    def copy(self) -> YamlNode:
        """A copy that can be changed without touching the original's own entries."""
        value = self.value
        if isinstance(value, dict):
            value = dict(value)
        elif isinstance(value, list):
            value = list(value)
        return YamlNode(value, self.mark, dict(self.keys), self.raw)


class _Stop(Exception):
    """Parsing must stop."""


def parse(text: str, *, file: str, lined: bool = True) -> tuple[YamlNode | None, list[Problem]]:
    """The tree of a YAML text, and what is wrong with it. The tree is None when nothing can be made of the text.

    Args:
        file: what to call the text in problems.
        lined: False for a text without lines of its own (an override), whose marks then have neither line nor column.
    """
    if len(text.encode("utf-8", "replace")) > MAX_BYTES:
        message = f"the file is larger than {MAX_BYTES // 1024} KiB"
        return None, [Problem.at(Mark(file), message, "keep data out of the runbook, and name its files instead")]
    builder = _Builder(text, file=file, lined=lined)
    try:
        root = builder.document()
    except _Stop:
        root = None
    except yaml.MarkedYAMLError as error:
        builder.problems.append(_syntax_problem(error, builder))
        root = None
    except (yaml.YAMLError, ValueError) as error:
        message = f"the text is not YAML: {error}".splitlines()[0]
        builder.problems.append(Problem.at(Mark(file), message, "remove characters that are not text"))
        root = None
    return root, builder.problems


def _syntax_problem(error: yaml.MarkedYAMLError, builder: _Builder) -> Problem:
    where = error.problem_mark or error.context_mark
    mark = builder.mark(where) if where is not None else Mark(builder.file)
    detail = error.problem or error.context or "it cannot be read"
    fix = "check the indentation and the punctuation just before this place"
    if "mapping values are not allowed" in detail:
        fix = "put quotes around a text that contains a colon followed by a space, or check the indentation"
    elif "\\t" in detail or "tab" in detail or "cannot start any token" in detail:
        fix = "indent with spaces, and put quotes around a text that begins with a special character"
    elif "expected <block end>" in detail or "did not find expected" in detail:
        fix = "align the keys of one block in one column, and close every bracket and quote"
    braces = _unquoted_braces(builder.text, mark.line)
    if braces is not None:
        fix = f"put quotes around the whole value that contains {braces}"
    return Problem.at(mark, f"not valid YAML: {detail}", fix)


_BRACED = re.compile(r"(?<![\w\"'{}/=.:-])[\w/=.:-]*\{[a-z_]+\}[\w/=.:{}-]*")


def _unquoted_braces(text: str, number: int | None) -> str | None:
    """A word of the line that contains braces and has no quotes: `--steps={steps}`."""
    lines = text.splitlines()
    if number is None or not 1 <= number <= len(lines):
        return None
    unquoted = re.sub(r"""'[^']*'|"(?:[^"\\]|\\.)*"|\s\#.*""", " ", lines[number - 1])
    found = _BRACED.search(unquoted)
    return found[0] if found is not None else None


class _Builder:
    """Builds the tree from the parser's events."""

    def __init__(self, text: str, *, file: str, lined: bool) -> None:
        self.text = text
        self.file = file
        self.lined = lined
        self.problems: list[Problem] = []
        self.anchors: dict[str, YamlNode] = {}
        self.open_anchors: set[str] = set()
        self.sizes: dict[int, int] = {}
        self.events: Iterator[Any] = iter(yaml.parse(text, Loader=_Loader))

    def mark(self, mark: Any) -> Mark:
        return Mark(self.file, mark.line + 1, mark.column + 1) if self.lined else Mark(self.file)

    def problem(self, mark: Mark, message: str, fix: str) -> None:
        self.problems.append(Problem.at(mark, message, fix))

    def stop(self, mark: Mark, message: str, fix: str) -> _Stop:
        self.problem(mark, message, fix)
        return _Stop()

    def document(self) -> YamlNode | None:
        root: YamlNode | None = None
        for event in self.events:
            if isinstance(event, yaml.DocumentStartEvent):
                if root is not None:
                    fix = "keep one document in the file and remove the line ---"
                    raise self.stop(self.mark(event.start_mark), "the file contains a second document", fix)
                root = self.node(next(self.events), depth=0)
        return root

    def node(self, event: Any, *, depth: int) -> YamlNode:
        mark = self.mark(event.start_mark)
        if isinstance(event, yaml.AliasEvent):
            return self.alias(str(event.anchor), mark)
        if depth > MAX_DEPTH:
            raise self.stop(mark, f"nested more than {MAX_DEPTH} levels deep", "flatten this part")
        if event.anchor:
            self.open_anchors.add(event.anchor)
        if isinstance(event, yaml.ScalarEvent):
            node = self.scalar(event, mark)
        elif isinstance(event, yaml.SequenceStartEvent):
            node = self.sequence(mark, depth)
        else:
            node = self.mapping(mark, depth)
        if event.anchor:
            self.open_anchors.discard(event.anchor)
            self.anchors[event.anchor] = node
        self.weigh(node)
        return node

    def alias(self, name: str, mark: Mark) -> YamlNode:
        if name in self.open_anchors:
            raise self.stop(mark, f"*{name} refers to a part that contains it", f"remove *{name}")
        if name not in self.anchors:
            fix = f"put &{name} in front of the value that is meant, above this line"
            raise self.stop(mark, f"*{name} refers to an anchor that is not defined above", fix)
        return self.anchors[name]

    def weigh(self, node: YamlNode) -> None:
        """Count nodes as if aliases were expanded, without expanding them."""
        children: list[YamlNode] = []
        if isinstance(node.value, dict):
            children = list(node.value.values())
        elif isinstance(node.value, list):
            children = node.value
        size = 1 + sum(self.sizes[id(child)] for child in children)
        if size > MAX_NODES:
            fix = "use fewer aliases"
            raise self.stop(node.mark, f"more than {MAX_NODES} values after expanding aliases", fix)
        self.sizes[id(node)] = size

    def scalar(self, event: Any, mark: Mark) -> YamlNode:
        raw = self.text[event.start_mark.index : event.end_mark.index]
        value: Scalar = event.value
        try:
            if event.tag and event.tag != "!":
                value = tagged_value(event.tag, event.value)
            elif event.style in (None, "") and event.tag != "!":
                value = plain_value(event.value)
        except TagError as error:
            self.problem(mark, str(error), "use no tag, or one of !!str, !!int, !!float, !!bool, !!null")
        return YamlNode(value, mark, raw=raw)

    def sequence(self, mark: Mark, depth: int) -> YamlNode:
        items: list[YamlNode] = []
        while not isinstance(event := next(self.events), yaml.SequenceEndEvent):
            items.append(self.node(event, depth=depth + 1))
        return YamlNode(items, mark)

    def mapping(self, mark: Mark, depth: int) -> YamlNode:
        own: dict[str, YamlNode] = {}
        keys: dict[str, Mark] = {}
        merged: list[YamlNode] = []
        while not isinstance(event := next(self.events), yaml.MappingEndEvent):
            key_mark = self.mark(event.start_mark)
            is_merge = isinstance(event, yaml.ScalarEvent) and event.value == "<<" and event.style in (None, "")
            key = self.key(event, key_mark, depth)
            value = self.node(next(self.events), depth=depth + 1)
            if is_merge:
                merged += self.merge_sources(value)
            elif key is not None and key in own:
                line = f", first in line {keys[key].line}" if keys[key].line else ""
                self.problem(key_mark, f"{key} is given twice{line}", "keep one of the two")
            elif key is not None:
                own[key], keys[key] = value, key_mark
        for source in merged:
            for key, child in source.value.items() if isinstance(source.value, dict) else ():
                if key not in own:
                    own[key], keys[key] = child, source.keys[key]
        return YamlNode(own, mark, keys)

    def key(self, event: Any, mark: Mark, depth: int) -> str | None:
        if isinstance(event, yaml.ScalarEvent):
            if event.anchor:
                self.node(event, depth=depth + 1)
            return str(event.value)
        node = self.node(event, depth=depth + 1)
        if node.is_scalar:
            return str(node.value)
        self.problem(mark, "a key is a list or a mapping", "write a plain word as the key")
        return None

    def merge_sources(self, value: YamlNode) -> list[YamlNode]:
        sources = value.value if isinstance(value.value, list) else [value]
        for source in sources:
            if not isinstance(source.value, dict):
                fix = "write <<: *NAME, where &NAME marks a mapping"
                self.problem(source.mark, "<< needs a mapping, or a list of mappings", fix)
        return sources


def plain(node: YamlNode) -> Any:
    """The tree as lists, dicts and scalars."""
    if isinstance(node.value, dict):
        return {key: plain(child) for key, child in node.value.items()}
    if isinstance(node.value, list):
        return [plain(child) for child in node.value]
    return node.value


def node_at(root: YamlNode, path: Path) -> YamlNode | None:
    """The node at a path, or None."""
    node: YamlNode | None = root
    for step in path:
        value = node.value if node is not None else None
        if isinstance(value, Mapping) and isinstance(step, str):
            node = value.get(step)
        elif isinstance(value, list) and isinstance(step, int) and step < len(value):
            node = value[step]
        else:
            return None
    return node


def mark_at(root: YamlNode, path: Path, *, key: bool = False) -> Mark:
    """The place of the value at a path, or of its key; of the nearest thing above when there is no such value."""
    for length in range(len(path), -1, -1):
        node = node_at(root, path[:length])
        if node is None:
            continue
        if key and length and isinstance(path[length - 1], str):
            parent = node_at(root, path[: length - 1])
            if parent is not None and path[length - 1] in parent.keys:
                return parent.keys[str(path[length - 1])]
        return node.mark
    return root.mark


def problem_at(root: YamlNode, path: Path, message: str, fix: str, *, key: bool = False) -> Problem:
    """A problem at the place that `mark_at` finds."""
    return Problem.at(mark_at(root, path, key=key), message, fix)


def position(node: YamlNode, column: int) -> Mark:
    """The place of the character at 0-based `column` of a text value, wherever folding or quotes have moved it."""
    mark, raw = node.mark, node.raw
    if mark.line is None or mark.column is None or not isinstance(node.value, str):
        return mark
    start = raw.find("\n") + 1 if raw[:1] in ("|", ">") else 0
    at = _raw_index(node.value, raw, column, start)
    if at is None:
        return mark
    lines = raw[:at].split("\n")
    if len(lines) == 1:
        return Mark(mark.file, mark.line, mark.column + at)
    return Mark(mark.file, mark.line + len(lines) - 1, len(lines[-1]) + 1)


def _raw_index(value: str, raw: str, column: int, start: int) -> int | None:
    """The index in `raw` of the character `value[column]`; None where they differ in more than the number of blanks."""
    if start == 0 and (found := raw.find(value)) >= 0:
        return found + min(column, len(value))
    at = start + (raw[start : start + 1] in ("'", '"'))
    for index, char in enumerate(value):
        if not char.isspace():
            while at < len(raw) and raw[at].isspace():
                at += 1
            if at >= len(raw) or raw[at] != char:
                return None
        if index == column:
            return at
        if not char.isspace():
            at += 1
    return at


def leaves(path: Path, node: YamlNode) -> Iterator[tuple[Path, YamlNode]]:
    """Every value in the node that holds no others, with its path."""
    if isinstance(node.value, (dict, list)):
        inside = node.value.items() if isinstance(node.value, dict) else enumerate(node.value)
        for key, child in inside:
            yield from leaves((*path, key), child)
    else:
        yield path, node
