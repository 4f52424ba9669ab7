"""Print formats that many trainers have: for the readers that a runbook names, and for logs without a pattern."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import cached_property

from validator.model.columns import says_nothing, series_name
from validator.model.evaluation_lines import evaluation_instead
from validator.model.line_search import MANY_SHAPES, without_digits
from validator.model.loss_parts import parts_in
from validator.model.pattern import LinePattern, Printed, line_pattern, read_alike
from validator.model.print_formats import KNOWN, LINE, Recipe
from validator.model.print_words import BARS, GENERAL, RECORDS, TABLES

_WANTED = frozenset(
    {
        "loss",
        "grad_norm",
        "toks_per_s",
        "toks_per_s_per_rank",
        "step_time_s",
        "samples_per_s",
        "elapsed_s",
        "timestamp",
        "mean_reward",
    }
)
"""Series of which a row holds at least one besides its number."""

_ENOUGH = 400
"""Rows of one format after which no further line is looked at."""

_FEWEST = 2

_AMONG_ALL, _AMONG_GENERAL = 1 / 50, 1 / 2
"""Share of the rows of the commonest format that another one needs to be preferred to it."""

RECIPES: tuple[Recipe, ...] = tuple(
    one._replace(pattern=LINE + one.pattern[1:])
    if one.pattern[:2] not in ("^(", "^\\") and one.pattern[0] == "^"
    else one
    for one in (*KNOWN, *BARS, *TABLES, *RECORDS, *GENERAL)
)
"""Formats in the order in which they are preferred. The last, which go by words that many lines hold, are tried where
no other one fits."""

BY_WORDS = frozenset(one.pattern for one in RECIPES[-len(GENERAL) :])
"""Patterns of those that go by words."""

read_alike(one.pattern for one in RECIPES[-len((*BARS, *TABLES, *RECORDS, *GENERAL)) :])

BY_LINES = frozenset(one.pattern for one in RECIPES if "{row}" in one.pattern)
"""Patterns of those that print no step, so that their lines are counted."""

BY_EPOCHS = frozenset(one.name for one in RECIPES if one.by_epochs)
"""Names of those whose rows are epochs."""


def recognize(lines: Iterable[tuple[int, str]], *, in_words: bool = False) -> tuple[Recipe, int] | None:
    """The first format that a fair part of these lines have, and how many have it; None where none is known.

    With `in_words` only the formats that go by words: a library prints its own lines beside those of its user.
    """
    held = list(lines)
    if in_words:
        return _recognize(held, GENERAL, _AMONG_GENERAL)
    return _recognize(held, RECIPES[: -len(GENERAL)], _AMONG_ALL) or _recognize(held, GENERAL, _AMONG_GENERAL)


class _Seen:
    """The rows of one format that a log holds so far."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.rows = 0
        self._by_words = recipe in GENERAL and not recipe.by_epochs
        self._steps: set[float] = set()
        self._changes, self._last = 0, math.nan
        self._begun = False

    @cached_property
    def _pattern(self) -> LinePattern:
        return line_pattern(self.recipe.pattern)

    def take(self, text: str) -> None:
        """Count a line that has this format. A line without a step counts where one with the step alone came before."""
        printed = self._pattern.read(text)
        if printed is None or printed.odd is not None or evaluation_instead(printed, text) is not None:
            return
        if printed.step is not None:
            self._begun = says_nothing(printed.values, self._pattern.names)
        if printed.step is None and "row" not in printed.texts and not self._begun:
            return
        wanted = not _WANTED.isdisjoint(map(series_name, printed.values))
        if not wanted and self._by_words and printed.step is not None and len(parts_in(text)) > 1:
            wanted, self._begun = True, False
        if wanted and not (self._begun and printed.step is not None):
            self.rows += 1
            step = self._step(printed)
            self._steps.add(step)
            self._changes += step != self._last
            self._last = step

    def _step(self, printed: Printed) -> float:
        return float(self.rows) if printed.step is None else printed.step + 1e7 * printed.values.get("epoch", 0.0)

    @property
    def counts(self) -> bool:
        """Whether what it takes for the step counts: the number of an epoch that each of its lines shows does not."""
        return len(self._steps) > 1 and (not self.recipe.by_epochs or 2 * self._changes >= self.rows)


def _recognize(lines: list[tuple[int, str]], recipes: tuple[Recipe, ...], share: float) -> tuple[Recipe, int] | None:
    seen = [_Seen(recipe) for recipe in recipes]
    words = [[without_digits(word) for word in recipe.words] for recipe in recipes]
    with_words: dict[str, list[_Seen]] = {}  # by the line without its digits: most lines differ in these alone
    for _, text in lines:
        shape = without_digits(text.lower())
        of_line = with_words.get(shape)
        if of_line is None:
            of_line = [one for one, own in zip(seen, words, strict=True) if any(word in shape for word in own)]
            if len(with_words) < MANY_SHAPES:
                with_words[shape] = of_line
        for one in of_line:
            one.take(text)
        if any(one.rows >= _ENOUGH for one in of_line):
            break
    least = max(_FEWEST, share * max((one.rows for one in seen if one.counts), default=0))
    return next(((one.recipe, one.rows) for one in seen if one.counts and one.rows >= least), None)
