"""The small language of acceptance criteria: `toks_per_s.mean >= 0.9 * baseline.toks_per_s.mean`.

    criterion  := sum comparison (sum | '?') [unit]
    comparison := '>=' | '>' | '<=' | '<' | '==' | '!='
    sum        := product (('+' | '-') product)*
    product    := factor (('*' | '/') factor)*
    factor     := ['-'] (number | text | reference | function '(' sum (',' sum)* ')' | '(' sum ')')
    reference  := [phase '.'] metric '.' statistic | [phase '.'] scalar
    function   := 'abs' | 'min' | 'max'

`?` is a bound that is still to be filled in: what was measured is shown, and the criterion is inconclusive.

It is parsed into a tree and evaluated by `validator.judge`; nothing is ever passed to `eval`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple

Operator = Literal[">=", ">", "<=", "<", "==", "!="]
_COMPARISONS: tuple[Operator, ...] = (">=", "<=", "==", "!=", ">", "<")
_FUNCTIONS = ("abs", "min", "max")
_TOKEN = re.compile(  # 0.9 | baseline.toks_per_s.mean | 'bf16' | >=
    r"\s*(?:(?P<number>\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)"
    r"|(?P<name>[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*)"
    r"|(?P<text>'[^']*'|\"[^\"]*\")"
    r"|(?P<op>>=|<=|==|!=|[-+*/()<>,%?]))"
)


class ExpressionError(ValueError):
    """A criterion that cannot be parsed. `column` is 0-based within the text."""

    def __init__(self, message: str, column: int) -> None:
        super().__init__(message)
        self.column = column


class Number(NamedTuple):
    """A literal number."""

    value: float


class Text(NamedTuple):
    """A quoted text, comparable by `==` and `!=` only."""

    value: str


class Reference(NamedTuple):
    """A dotted name as written. Which phase, metric and statistic it means is resolved against the runbook."""

    name: str
    column: int = 0


@dataclass(frozen=True)
class OpenBound:
    """`?`, the whole right side: a bound that is still to be filled in."""


class Binary(NamedTuple):
    """`left operator right` for one of + - * /."""

    operator: Literal["+", "-", "*", "/"]
    left: Expression
    right: Expression


class Call(NamedTuple):
    """`abs(x)`, `min(x, y, …)` or `max(x, y, …)`."""

    function: Literal["abs", "min", "max"]
    arguments: tuple[Expression, ...]


Expression = Number | Text | Reference | OpenBound | Binary | Call


class Relation(NamedTuple):
    """A whole criterion: `left operator right [unit]`."""

    left: Expression
    operator: Operator
    right: Expression
    unit: str | None
    text: str


_MEANT = re.compile(  # 15,000 | 2,5 | 15k | 1e3
    r"(?P<sign>[-+]?)(?:(?P<thousands>\d{1,3}(?:,\d{3})+(?:\.\d+)?)|(?P<comma>\d+,\d+)"
    r"|(?P<number>\d+(?:\.\d+)?(?:[eE][-+]?\d+)?))(?P<times>[kKMG]?)"
)
_TIMES = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9}
_SIGNS = {"=>": "; write >=", "=<": "; write <=", "=": "; write >=, <= or =="}


def meant_number(text: str) -> float | None:
    """The number that a text means, though no runbook writes it so: `15,000`, `15k`, `2,5`; None for any other."""
    found = _MEANT.fullmatch(text.strip())
    if found is None:
        return None
    thousands, comma = (found["thousands"] or "").replace(",", ""), (found["comma"] or "").replace(",", ".")
    return float(found["sign"] + (thousands or comma or found["number"])) * _TIMES[found["times"]]


class _Token(NamedTuple):
    kind: str
    text: str
    column: int


def _tokens(text: str) -> list[_Token]:
    found, position = [], 0
    while position < len(text.rstrip()):
        match = _TOKEN.match(text, position)
        if match is None or match.lastgroup is None:
            start = position + len(text[position:]) - len(text[position:].lstrip())
            fix = _SIGNS.get(text[max(start - 1, 0) : start + 2].strip(), "")
            raise ExpressionError(f"unexpected {text[start]!r} in criterion {text!r}{fix}", start)
        found.append(_Token(match.lastgroup, match[match.lastgroup], match.start(match.lastgroup)))
        position = match.end()
    return found


class _Parser:
    """Recursive descent over the tokens of one criterion."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = _tokens(text)
        self.index = 0

    def peek(self) -> _Token:
        if self.index < len(self.tokens):
            return self.tokens[self.index]
        return _Token("end", "", len(self.text))

    def take(self) -> _Token:
        token = self.peek()
        self.index += 1
        return token

    def accept(self, *texts: str) -> _Token | None:
        if self.peek().kind == "op" and self.peek().text in texts:
            return self.take()
        return None

    def expect(self, text: str) -> None:
        if self.accept(text) is None:
            found = self.peek().text or "the end"
            raise ExpressionError(f"expected {text!r}, found {found!r} in criterion {self.text!r}", self.peek().column)

    def criterion(self) -> Relation:
        left = self.sum()
        token = self.take()
        operator = next((c for c in _COMPARISONS if c == token.text), None)
        if operator is None:
            found = token.text or "the end"
            raise ExpressionError(
                f"expected one of {', '.join(_COMPARISONS)}, found {found!r} in criterion {self.text!r}; "
                "write it as metric.statistic operator value",
                token.column,
            )
        right = OpenBound() if self.accept("?") else self.sum()
        if operator in ("==", "!=") and isinstance(right, OpenBound):
            raise ExpressionError(
                f"an open bound follows >=, >, <= or <, not {operator}, in {self.text!r}", token.column
            )
        unit = self.unit()
        relation = Relation(left=left, operator=operator, right=right, unit=unit, text=self.text.strip())
        if operator not in ("==", "!=") and any(isinstance(side, Text) for side in (left, right)):
            raise ExpressionError(f"text can only be compared by == or != in criterion {self.text!r}", 0)
        return relation

    def unit(self) -> str | None:
        """Whatever follows the right side is its unit: `tok/s`, `MiB`, `%`."""
        if self.peek().kind == "end":
            return None
        unit = self.text[self.peek().column :].strip()
        if re.fullmatch(r"[A-Za-z%]+(/[A-Za-z]+)?", unit) is None:
            token = self.peek()
            fix = self.number_fix()
            message = f"unexpected {token.text!r} after the value in criterion {self.text!r}{fix}"
            raise ExpressionError(message, token.column)
        self.index = len(self.tokens)
        return unit

    def number_fix(self) -> str:
        """How to write the number before this token, where it and what follows are one: `15,000`, `15k tok/s`."""
        before = self.tokens[self.index - 1]
        written, _, unit = self.text[before.column :].strip().partition(" ")
        meant = meant_number(written)
        if before.kind != "number" or meant is None:
            return ""
        return f"; write {self.text[: before.column]}{meant:.15g}{' ' + unit if unit else ''}"

    def sum(self) -> Expression:
        node = self.product()
        while token := self.accept("+", "-"):
            node = Binary("+" if token.text == "+" else "-", node, self.product())
        return node

    def product(self) -> Expression:
        node = self.factor()
        while token := self.accept("*", "/"):
            node = Binary("*" if token.text == "*" else "/", node, self.factor())
        return node

    def factor(self) -> Expression:
        if self.accept("-"):
            return Binary("-", Number(0.0), self.factor())
        if self.accept("("):
            node = self.sum()
            self.expect(")")
            return node
        token = self.take()
        if token.kind == "number":
            return Number(float(token.text))
        if token.kind == "text":
            return Text(token.text[1:-1])
        if token.kind == "name" and self.peek().text == "(":
            return self.call(token)
        if token.kind == "name":
            return Reference(token.text, token.column)
        raise ExpressionError(
            f"expected a number or metric.statistic, found {token.text or 'the end'!r} in criterion {self.text!r}",
            token.column,
        )

    def call(self, name: _Token) -> Call:
        if name.text not in _FUNCTIONS:
            raise ExpressionError(
                f"unknown function {name.text!r} in criterion {self.text!r}; known: {', '.join(_FUNCTIONS)}",
                name.column,
            )
        self.expect("(")
        arguments = [self.sum()]
        while self.accept(","):
            arguments.append(self.sum())
        self.expect(")")
        if name.text == "abs" and len(arguments) != 1:
            raise ExpressionError(f"abs takes one value in criterion {self.text!r}", name.column)
        function: Literal["abs", "min", "max"] = "abs" if name.text == "abs" else "min" if name.text == "min" else "max"
        return Call(function, tuple(arguments))


@lru_cache(maxsize=4096)
def parse_criterion(text: str) -> Relation:
    """The tree of a criterion, which is kept: `check` alone asks for it three times.

    Raises:
        ExpressionError: with the 0-based column of the first token that does not fit.
    """
    if not text.strip():
        raise ExpressionError("the criterion is empty; write it as metric.statistic operator value", 0)
    return _Parser(text).criterion()


def open_reference(text: str) -> tuple[Reference, Operator] | None:
    """Reference and operator of a criterion whose bound is open, as in `toks_per_s.mean >= ?`; None for any other."""
    try:
        relation = parse_criterion(text)
    except ExpressionError:
        return None
    left = relation.left
    return (left, relation.operator) if isinstance(relation.right, OpenBound) and isinstance(left, Reference) else None


def parse_reference(text: str) -> Reference:
    """A lone `metric.statistic` or scalar name, as `choose` takes it.

    Raises:
        ExpressionError: when the text is anything else.
    """
    parser = _Parser(text)
    node = parser.factor() if parser.tokens else None
    if not isinstance(node, Reference) or parser.peek().kind != "end":
        raise ExpressionError(f"expected metric.statistic, found {text!r}", 0)
    return node


def references(node: Expression | Relation) -> Iterator[Reference]:
    """Every reference below a node, left to right."""
    if isinstance(node, Reference):
        yield node
    elif isinstance(node, (Binary, Relation)):
        yield from references(node.left)
        yield from references(node.right)
    elif isinstance(node, Call):
        for argument in node.arguments:
            yield from references(argument)
