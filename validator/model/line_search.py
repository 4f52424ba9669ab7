"""Search for a regular expression in many lines that are alike: those that differ in digits alone match in one place.

The expressions that go by words look ahead through the whole line for each of twenty groups, which takes a third of a
millisecond. The lines of a trainer have a few dozen shapes, so nearly all of them are found without a search.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping
from functools import lru_cache
from typing import NamedTuple

__all__ = ["MANY_SHAPES", "LineSearch", "Match", "without_digits"]

_ANY_DIGIT = str.maketrans("123456789", "000000000")

_ASKED_FOR = re.compile(
    r"(?<![\d.,])0(?![\d.])|(?<=[A-Za-z_])\d+"
    r"|(?P<moment>20\d{6}[-_](?:[01]\d|2[0-3])[0-5]\d[0-5]\d(?!\d)|(?<!\d)1[4-9]\d{8}(?:\d{3})?(?!\d))"
)
"""Digits that an expression may ask for: a zero by itself, those of a name (`G_L1`), those of a moment."""

MANY_SHAPES = 1024
"""Shapes after which no further one is kept: a name with a number that counts, `step17`, is new in each line."""


def without_digits(text: str) -> str:
    """A text with a zero in place of each digit."""
    return text.translate(_ANY_DIGIT)


class Match(NamedTuple):
    """Where the groups of an expression were found in a line, of those that took part."""

    line: str
    spans: Mapping[str, tuple[int, int]]
    expression: str


class LineSearch:
    """A compiled expression that is searched for in lines.

    Args:
        alike: remember the places of the groups by the line's shape. For expressions that ask for no digits but those
            of the kinds in `_ASKED_FOR`.
    """

    def __init__(self, expression: re.Pattern[str], *, alike: bool) -> None:
        self.expression = expression
        self._known: dict[Hashable, Mapping[str, tuple[int, int]] | None] | None = {} if alike else None

    def find(self, line: str) -> Match | None:
        """Where the groups first match; None where the expression does not."""
        if self._known is None:
            spans = self._spans(line)
        else:
            shape = _shape(line)
            if shape in self._known:
                spans = self._known[shape]
            else:
                spans = self._spans(line)
                if len(self._known) < MANY_SHAPES:
                    self._known[shape] = spans
        return None if spans is None else Match(line, spans, self.expression.pattern)

    def _spans(self, line: str) -> Mapping[str, tuple[int, int]] | None:
        match = self.expression.search(line)
        if match is None:
            return None
        places = match.regs
        return {name: places[n] for name, n in self.expression.groupindex.items() if places[n][0] >= 0}


@lru_cache(maxsize=8)
def _shape(line: str) -> Hashable:
    asked_for = ((one.start(), None if one["moment"] else one[0]) for one in _ASKED_FOR.finditer(line))
    return without_digits(line), tuple(asked_for)
