"""What the linter of imports does not see: circles between files, names with two meanings, imports inside functions."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

import validator

MOST_FILES = 3
"""Files that may have a private function of one name."""

MOST_LOCAL = 2.0
"""Imports inside functions, per 1,000 lines of code: heavy libraries, and what a start has to do without."""

_TWO_MEANINGS: frozenset[str] = frozenset()
"""Names that two classes have: none."""

_PACKAGE = Path(validator.__file__).parent
_BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")
_WITH_DOCSTRING = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


class _File(NamedTuple):
    """A module: its syntax tree, its imports, each with whether it is inside a function, and its lines of code."""

    tree: ast.Module
    imports: tuple[tuple[ast.Import | ast.ImportFrom, bool], ...]
    code_lines: int

    def defines(self, kind: type[ast.ClassDef] | type[ast.FunctionDef]) -> set[str]:
        """Names of the module's own classes or functions."""
        return {node.name for node in self.tree.body if isinstance(node, kind)}


def _statements(node: ast.AST, *, inside: bool = False) -> Iterator[tuple[ast.AST, bool]]:
    """A module's statements, each with whether it is inside a function; expressions, which are most of it, are not."""
    yield node, inside
    inside |= isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    for block in _BLOCKS:
        for one in getattr(node, block, ()):
            yield from _statements(one, inside=inside)


def _read(path: Path) -> _File:
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    statements = list(_statements(tree))
    lines = sum(1 for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#"))
    for node, _ in statements:
        if isinstance(node, _WITH_DOCSTRING) and (docstring := ast.get_docstring(node, clean=False)) is not None:
            lines -= sum(1 for line in docstring.split("\n") if line.strip())
    imports = tuple(one for one in statements if isinstance(one[0], (ast.Import, ast.ImportFrom)))
    return _File(tree, imports, lines)


@pytest.fixture(scope="module")
def files() -> dict[str, _File]:
    """The package's files by the modules' names."""
    found = {}
    for path in sorted(_PACKAGE.rglob("*.py")):
        parts = path.relative_to(_PACKAGE.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = _read(path)
    return found


def _imported(name: str, files: Mapping[str, _File]) -> Iterator[str]:
    """Other modules of the package that a module imports, wherever: for type checkers and in functions too."""
    for node, _ in files[name].imports:
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names if one.name in files)
        elif node.module:
            inner = {f"{node.module}.{one.name}" for one in node.names}
            yield from inner & files.keys() - {name}
            if inner - files.keys() and node.module in files and node.module != name:
                yield node.module


def _shared(
    files: Mapping[str, _File], kind: type[ast.ClassDef] | type[ast.FunctionDef], most: int
) -> dict[str, list[str]]:
    """Names that more than `most` modules define, each with these modules."""
    found = defaultdict(list)
    for module, file in files.items():
        for name in file.defines(kind):
            found[name].append(module)
    return {name: modules for name, modules in found.items() if len(modules) > most}


def test_no_circle_of_files(files: dict[str, _File]) -> None:
    try:
        TopologicalSorter({name: set(_imported(name, files)) for name in files}).prepare()
    except CycleError as error:
        pytest.fail(f"files import each other: {' -> '.join(error.args[1])}")


def test_a_class_name_has_one_meaning(files: dict[str, _File]) -> None:
    found = _shared(files, ast.ClassDef, 1)
    assert found.keys() == _TWO_MEANINGS, {name: found.get(name) for name in found.keys() ^ _TWO_MEANINGS}


def test_a_private_function_has_a_name_of_its_own(files: dict[str, _File]) -> None:
    found = _shared(files, ast.FunctionDef, MOST_FILES)
    assert {name: modules for name, modules in found.items() if name.startswith("_")} == {}


def test_few_imports_are_inside_functions(files: dict[str, _File]) -> None:
    local = [(name, node.lineno) for name, file in files.items() for node, inside in file.imports if inside]
    assert len(local) <= MOST_LOCAL / 1000 * sum(file.code_lines for file in files.values()), local
