"""YAML to a tree with places: the core schema, anchors, bounds, and where a word stands."""

from __future__ import annotations

import math
from typing import Any

import pytest

from validator.runbook.document import YamlNode, mark_at, node_at, parse, plain, position


def tree(text: str) -> YamlNode:
    root, problems = parse(text, file="f.yaml")
    assert not problems
    assert root is not None
    return root


def only_problem(text: str) -> str:
    _, problems = parse(text, file="f.yaml")
    assert len(problems) == 1
    assert problems[0].fix
    return str(problems[0]).splitlines()[0]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("on", "on"),
        ("yes", "yes"),
        ("No", "No"),
        ("12:30", "12:30"),
        ("1_000", "1_000"),
        ("2024-01-02", "2024-01-02"),
        ("true", True),
        ("False", False),
        ("~", None),
        ("", None),
        ("'null'", "null"),
        ("0123", 123),
        ("0o17", 15),
        ("0x1F", 31),
        ("-7", -7),
        ("1e3", 1000.0),
        (".5", 0.5),
        ("3.", 3.0),
        ("-.inf", -math.inf),
        ("!!str 12", "12"),
        ("!!float 3", 3.0),
        ('"a\\tb"', "a\tb"),
    ],
)
def test_words_mean_what_the_core_schema_says(text: str, value: Any) -> None:
    found = plain(tree(f"key: {text}"))["key"]
    assert found == value
    assert type(found) is type(value)


def test_not_a_number_is_a_float() -> None:
    assert math.isnan(plain(tree("a: .nan"))["a"])


def test_anchors_and_merge_keys_are_applied_and_own_keys_win() -> None:
    text = "base: &b {x: 1, y: 2}\nother: &o {y: 9, z: 3}\nuse:\n  <<: [*b, *o]\n  x: 5\nagain: *b\n"
    assert plain(tree(text))["use"] == {"x": 5, "y": 2, "z": 3}
    assert plain(tree(text))["again"] == {"x": 1, "y": 2}


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("a: 1\nb: 2\na: 3\n", "f.yaml:3:1: a is given twice, first in line 1"),
        ("a: *nobody\n", "f.yaml:1:4: *nobody refers to an anchor that is not defined above"),
        ("a: &me [1, *me]\n", "f.yaml:1:12: *me refers to a part that contains it"),
        ("a: 1\n---\nb: 2\n", "f.yaml:2:1: the file contains a second document"),
        ("a: !!int x\n", "f.yaml:1:4: 'x' is not of the type !!int"),
        ("a: !mine x\n", "f.yaml:1:4: tag !mine is not supported"),
        ("? [1, 2]\n: 3\n", "f.yaml:1:3: a key is a list or a mapping"),
        ("a: b: c\n", "f.yaml:1:5: not valid YAML"),
        ("a:\n\tb: 1\n", "f.yaml:2:1: not valid YAML"),
        ("a: [1, 2\n", "f.yaml:2:1: not valid YAML"),
        ("a: \x01\n", "f.yaml: the text is not YAML"),
    ],
)
def test_each_mistake_has_a_place_a_sentence_and_a_fix(text: str, start: str) -> None:
    assert only_problem(text).startswith(start)


def test_alias_bombs_depth_and_size_are_bounded() -> None:
    bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
    bomb += "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 9))
    assert "after expanding aliases" in only_problem(bomb)
    assert "levels deep" in only_problem("[" * 200_000)
    assert "larger than" in only_problem("a: " + "x" * (2 << 20))


@pytest.mark.parametrize(
    ("text", "line", "column"),
    [
        ("- loss.last < bad.first", 1, 15),
        ("- 'loss.last < bad.first'", 1, 16),
        ('- "loss.last < bad.first"', 1, 16),
        ("- {expr: loss.last < bad.first}", 1, 22),
        ("- loss.last <\n    bad.first", 2, 5),
        ("- >-\n  loss.last <\n  bad.first", 3, 3),
        ("- |\n    loss.last <\n    bad.first", 3, 5),
        ("- 'é loss < bad'", 1, 13),
    ],
)
def test_a_word_is_found_through_quotes_folding_and_blocks(text: str, line: int, column: int) -> None:
    node = node_at(tree(text), (0,))
    assert node is not None
    node = node if node.is_scalar else node_at(node, ("expr",))
    mark = position(node, str(node.value).index("bad"))
    assert (mark.line, mark.column) == (line, column)


def test_marks_of_keys_and_values_and_of_what_is_absent() -> None:
    root = tree("outer:\n  inner:  5\n")
    assert (mark_at(root, ("outer", "inner")).line, mark_at(root, ("outer", "inner")).column) == (2, 11)
    assert mark_at(root, ("outer", "inner"), key=True).column == 3
    assert mark_at(root, ("outer", "absent")).line == 2
